//! The role of a freshly executed copy of this program: carry out a plan, then watch over the sandbox until it ends.
//!
//! ```text
//! host ──executes──> jail (this process) ──clone──> child ──executes──> runner, pid 1 of the sandbox
//!   │                   │   outside the sandbox       │   inside, step by step
//!   └── control socket ─┘                             │
//!   └── stream ───────────────────────────────────────┘
//! ```
//!
//! On entry descriptor 0 is the stream that becomes the runner's, 1 is the control socket, 2 is the host's log. This
//! process has one thread and has never had another, which is why it may clone.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::plan::{Outside, Plan};
use crate::report::{During, Event, Step, StepFailure};
use crate::steps::cgroup::Cgroups;
use crate::steps::user::HostUser;
use crate::steps::{caps, fds, landlock, lifetime, mount, namespaces, net, pivot, rlimit, user};
use crate::sys::{self, Cloned};
use crate::watch::{self, Watched};

/// Larger than any plan, small enough to refuse nonsense.
const MAX_PLAN: u32 = 4 * 1024 * 1024;

pub fn main() -> ExitCode {
    let control = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3) {
        Ok(fd) => UnixStream::from(fd),
        Err(error) => {
            eprintln!("could not open the control socket\ncaused by: {error}");
            return ExitCode::FAILURE;
        }
    };
    match make(&control) {
        Ok(Made { watched, plan }) => {
            tell(&control, &Event::Started { host_uid: watched.host.user.uid });
            let (exit, exceeded) = watch::until_end(&watched, &plan, &control);
            // Dropping it removes the cgroups, and only then is the end told.
            drop(watched);
            tell(&control, &Event::Ended { exit, exceeded });
            ExitCode::SUCCESS
        }
        Err(failure) => {
            tell(&control, &Event::Failed { failure });
            ExitCode::FAILURE
        }
    }
}

/// The host may be gone: then there is nobody to tell, and nothing else to do about it.
pub(crate) fn tell(mut control: &UnixStream, event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let _ = control.write_all(&line);
    }
}

/// What a host sends first: the plan, behind its length.
pub fn encode_plan(plan: &Plan) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(plan)?;
    let mut bytes = (json.len() as u32).to_be_bytes().to_vec();
    bytes.extend(json);
    Ok(bytes)
}

fn read_plan(mut control: &UnixStream) -> Result<Plan, StepFailure> {
    let action = || "read the plan".to_owned();
    let mut length = [0u8; 4];
    control.read_exact(&mut length).during(Step::Plan, action)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_PLAN {
        return Err(StepFailure::new(Step::Plan, action(), io::Error::other("it is too long")));
    }
    let mut json = vec![0; length as usize];
    control.read_exact(&mut json).during(Step::Plan, action)?;
    serde_json::from_slice(&json).map_err(io::Error::other).during(Step::Plan, action)
}

struct Made {
    watched: Watched,
    plan: Plan,
}

fn make(control: &UnixStream) -> Result<Made, StepFailure> {
    let plan = read_plan(control)?;
    if !mount::has_mount_point() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        return Err(StepFailure::new(Step::Mounts, "find the folder `/tmp` to build a root on", missing));
    }
    let host = HostUser::take(&plan.identity)?;
    let sources = match plan.identity.outside {
        Outside::OneOf { .. } => Some(mount::open_sources(&plan)?),
        Outside::Same(_) => None,
    };
    let cgroups = Cgroups::create(&plan.control)?;
    let (parent_end, child_end) =
        UnixStream::pair().during(Step::Clone, || "open a socket to the child".into())?;
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let cloned = sys::clone_into_namespaces(namespaces, cgroups.born_inside());
    match cloned.during(Step::Clone, || "create a user namespace".into())? {
        Cloned::Child => {
            drop(parent_end);
            let failure = enter(&plan, sources, &cgroups, &child_end);
            if let Ok(text) = serde_json::to_vec(&failure) {
                let _ = (&child_end).write_all(&text);
            }
            std::process::exit(1);
        }
        Cloned::Parent { child, pidfd } => {
            drop((child_end, sources));
            release_stream()?;
            let watched = Watched { child, pidfd, cgroups, host };
            match settle(&plan, &watched, parent_end) {
                Ok(()) => Ok(Made { watched, plan }),
                Err(failure) => {
                    watch::kill_and_reap(&watched);
                    Err(failure)
                }
            }
        }
    }
}

/// The stream must have one owner on this side, the sandbox, so that its end is seen when the sandbox ends.
fn release_stream() -> Result<(), StepFailure> {
    let action = || "let go of the stream".to_owned();
    let null: OwnedFd = std::fs::File::open("/dev/null").during(Step::Descriptors, action)?.into();
    rustix::stdio::dup2_stdin(&null).during(Step::Descriptors, action)?;
    // Standard output was the control socket, of which `control` is a copy.
    rustix::stdio::dup2_stdout(&null).during(Step::Descriptors, action)
}

/// In the parent: does for the child what it cannot do itself, lets it go, and hears how far it came.
fn settle(plan: &Plan, watched: &Watched, mut child: UnixStream) -> Result<(), StepFailure> {
    let helped = help(plan, watched, &child);
    if helped.is_err() {
        // Or it waits for ever.
        let _ = child.shutdown(std::net::Shutdown::Write);
    }
    // The child's end closes when it executes the runner; before that it only speaks to tell of a failure. One that
    // fails before it has read what we sent resets the socket, behind its own words.
    let mut told = Vec::new();
    let heard = child.read_to_end(&mut told).during(Step::Clone, || "hear from the child".into());
    if told.is_empty() {
        return helped.and(heard.map(drop));
    }
    // A child that has failed cannot be helped, and one that is not helped can only say that it waited in vain.
    let theirs = decode_failure(&told);
    Err(helped.err().filter(|_| theirs.step == Step::Clone).unwrap_or(theirs))
}

fn help(plan: &Plan, watched: &Watched, mut child: &UnixStream) -> Result<(), StepFailure> {
    user::write_maps(watched.child, &plan.identity, &watched.host)?;
    // When the machine runs out of memory, a sandbox goes before anything else does.
    std::fs::write(format!("/proc/{}/oom_score_adj", watched.child.as_raw_nonzero()), "1000")
        .during(Step::Cgroup, || "make the sandbox first to go when memory runs out".into())?;
    child.write_all(b"g").during(Step::Clone, || "let the child go".into())
}

fn decode_failure(told: &[u8]) -> StepFailure {
    serde_json::from_slice(told).unwrap_or_else(|error| {
        StepFailure::new(Step::Clone, "understand the child", io::Error::other(error))
    })
}

/// In the child: every step, in the order in which they must be taken. Only returns if one of them fails.
fn enter(
    plan: &Plan,
    sources: Option<mount::Sources>,
    cgroups: &Cgroups,
    parent: &UnixStream,
) -> StepFailure {
    match enter_steps(plan, sources, cgroups, parent) {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

fn enter_steps(
    plan: &Plan,
    sources: Option<mount::Sources>,
    cgroups: &Cgroups,
    parent: &UnixStream,
) -> Result<std::convert::Infallible, StepFailure> {
    cgroups.walk_in()?;
    namespaces::close_cgroup_view()?;
    (&*parent).read_exact(&mut [0u8; 1]).during(Step::Clone, || "wait for the parent".into())?;
    user::become_user(&plan.identity)?;
    lifetime::tie_to_parent(parent.as_fd())?;
    namespaces::name_host(plan)?;
    net::bring_loopback_up()?;
    mount::make_private()?;
    let sources = sources.map_or_else(|| mount::open_sources(plan), Ok)?;
    let root = mount::build_root(plan, sources)?;
    namespaces::forbid_nested(plan)?;
    pivot::into_root(root, &plan.working_directory)?;
    rlimit::apply(plan)?;
    fds::keep_stream_only()?;
    caps::drop_all()?;
    landlock::restrict(&plan.landlock)?;
    // Last, because it forbids what the steps before had to do.
    if let Some(program) = &plan.seccomp {
        sys::install_filter(program).during(Step::Seccomp, || "install the system call filter".into())?;
    }
    let (program, args) = plan
        .command
        .split_first()
        .ok_or_else(|| StepFailure::new(Step::Execute, "find the program", rustix::io::Errno::NOENT))?;
    let error = Command::new(program).args(args).env_clear().envs(&plan.environment).exec();
    Err(StepFailure::new(Step::Execute, format!("execute `{program}`"), error))
}
