//! The role of a freshly executed copy of this program: carries out a plan, then watches the sandbox until it ends.
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
//!
//! The jail process (the parent) and its child share a socket pair while they make the sandbox:
//!
//! 1. The parent clones the child into new namespaces. The child joins its cgroup, and waits for one byte.
//! 2. The parent writes the child's user map and its OOM score, which the child may not write itself. Then it sends the
//!    byte. If it cannot, it closes its sending side instead, which ends the child's wait.
//! 3. The child takes the remaining steps. For a watchdog it sends a socket of its network namespace, with a newline.
//!    If a step fails, it sends the failure as JSON and exits. If all succeed, it executes the runner, which closes the
//!    child's end of the socket without a word.
//! 4. The parent reads until the end of the socket. Nothing read but a newline means that the runner runs, and the
//!    parent reports `Started` to the host; else it reaps the child and reports `Failed`.
//!
//! From then on the parent only watches: see `watch`.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::plan::{HostIds, JailPlan};
use crate::report::{JailEvent, JailStep, StepContext, StepFailure};
use crate::steps::cgroup::SandboxCgroups;
use crate::steps::user::HostUser;
use crate::steps::{caps, fds, landlock, lifetime, mount, namespaces, net, pivot, rlimit, user};
use crate::sys::{self, CloneSide};
use crate::watch::{self, SocketMeter, WatchedSandbox};

/// Larger than any plan, and small enough to refuse garbage.
const MAX_PLAN: u32 = 4 * 1024 * 1024;

/// Runs the jail's role until the sandbox has ended. Returns success once `Started` has been reported, however the
/// sandbox ended after that.
pub fn main() -> ExitCode {
    let control = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3) {
        Ok(fd) => UnixStream::from(fd),
        Err(error) => {
            eprintln!("could not open the control socket\ncaused by: {error}");
            return ExitCode::FAILURE;
        }
    };
    match make_sandbox(&control) {
        Ok((watched, plan, sockets)) => {
            let kill_counter = watched.cgroups.kill_counter().map(Into::into);
            JailEvent::Started { host_uid: watched.host.user.uid, kill_counter }.send(&control);
            let (exit, exceeded) = watch::until_end(&watched, &plan, sockets, &control);
            // Dropping it removes the cgroups: `Ended` promises that they are gone.
            drop(watched);
            JailEvent::Ended { exit, exceeded }.send(&control);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            JailEvent::Failed { failure }.send(&control);
            ExitCode::FAILURE
        }
    }
}

/// Returns the bytes that a host sends first: the plan as JSON, after its length. Fails if the plan has no JSON.
pub fn encode_plan(plan: &JailPlan) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(plan)?;
    let mut bytes = (json.len() as u32).to_be_bytes().to_vec();
    bytes.extend(json);
    Ok(bytes)
}

fn read_plan(mut control: &UnixStream) -> Result<JailPlan, StepFailure> {
    let action = || "read the plan".to_owned();
    let mut length = [0u8; 4];
    control.read_exact(&mut length).during(JailStep::Plan, action)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_PLAN {
        let error = io::Error::other(format!("it has {length} bytes, more than {MAX_PLAN}"));
        return Err(StepFailure::new(JailStep::Plan, action(), error));
    }
    let mut json = vec![0; length as usize];
    control.read_exact(&mut json).during(JailStep::Plan, action)?;
    serde_json::from_slice(&json).map_err(io::Error::other).during(JailStep::Plan, action)
}

/// Reads the plan and makes the sandbox, up to its runner. If it fails, nothing of the sandbox is left.
fn make_sandbox(control: &UnixStream) -> Result<(WatchedSandbox, JailPlan, SocketMeter), StepFailure> {
    let plan = read_plan(control)?;
    if !mount::has_mount_point() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        return Err(StepFailure::new(JailStep::Mounts, "find the folder `/tmp` to build a root on", missing));
    }
    rlimit::forbid_core_files()?;
    let host = HostUser::take(&plan.identity)?;
    let sources = match plan.identity.outside {
        HostIds::OneOf { .. } => Some(mount::open_sources(&plan)?),
        HostIds::Same { .. } | HostIds::Subordinate { .. } => None,
    };
    let cgroups = SandboxCgroups::create(&plan.control)?;
    let (parent_end, child_end) = UnixStream::pair().during(JailStep::Clone, || "open a socket to the child".into())?;
    // Without CLONE_NEWCGROUP: the child makes its cgroup namespace itself, once it has joined its cgroup.
    use libc::{CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS};
    let namespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    host.own_new_namespaces()?;
    let cloned = sys::clone_into_namespaces(namespaces, cgroups.clone_target());
    match cloned.during(JailStep::Clone, || "create a user namespace".into())? {
        CloneSide::Child => {
            // If the child held the parent's end too, it could not see the parent die.
            drop(parent_end);
            let Err(failure) = enter(&plan, sources, &cgroups, &child_end);
            if let Ok(text) = serde_json::to_vec(&failure) {
                let _ = (&child_end).write_all(&text);
            }
            std::process::exit(1);
        }
        CloneSide::Parent { child, pidfd } => {
            // If the parent held the child's end too, it could not see the child close it.
            drop((child_end, sources));
            let priority = format!("/proc/{}/autogroup", child.as_raw_nonzero());
            let priority = std::fs::File::options().write(true).open(priority).ok();
            let mut watched = WatchedSandbox { child, pidfd, cgroups, host, priority };
            let freed = watched.host.stop_owning().and_then(|()| release_stream());
            match freed.and_then(|()| finish_start(&plan, &mut watched, parent_end)) {
                Ok(sockets) => Ok((watched, plan, sockets)),
                Err(failure) => {
                    watch::kill_and_reap(&watched);
                    Err(failure)
                }
            }
        }
    }
}

/// Closes this process's copies of the stream and of the control socket's first descriptor. Only the sandbox may hold
/// the stream on this side, so that the host sees its end when the sandbox ends.
fn release_stream() -> Result<(), StepFailure> {
    let action = || "close the jail's copy of the stream".to_owned();
    let null: OwnedFd = std::fs::File::open("/dev/null").during(JailStep::Descriptors, action)?.into();
    rustix::stdio::dup2_stdin(&null).during(JailStep::Descriptors, action)?;
    // Standard output was the control socket. `main` holds a copy of it.
    rustix::stdio::dup2_stdout(&null).during(JailStep::Descriptors, action)
}

/// In the parent: does what the child cannot do itself, releases the child, and waits until it has executed the runner.
/// Returns what it needs to measure the sandbox's sockets. Fails with the child's failure, or with that of this process.
fn finish_start(plan: &JailPlan, watched: &mut WatchedSandbox, child: UnixStream) -> Result<SocketMeter, StepFailure> {
    let released = release_child(plan, watched, &child);
    if released.is_err() {
        // Without this the child would wait forever.
        let _ = child.shutdown(std::net::Shutdown::Write);
    }
    // The child's end closes when the child executes the runner; before that the child writes only a failure. If it
    // fails before it has read the parent's byte, the kernel resets the socket after the child's report: an error that
    // comes with a report does not matter.
    let mut report = Vec::new();
    let mut diagnosis = None;
    let read = read_report(&child, &mut report, &mut diagnosis).during(JailStep::Clone, || "wait for the child".into());
    if report.trim_ascii().is_empty() {
        return released.and(read).map(|()| SocketMeter::new(diagnosis));
    }
    // Both sides may have failed. A child in its `Clone` step only reports that the parent's byte did not come, so then
    // the parent's failure is the cause; in any other step the child's failure is.
    let failure = decode_failure(&report);
    Err(released.err().filter(|_| failure.step == JailStep::Clone).unwrap_or(failure))
}

/// Reads what the child sends until it closes its end, and the descriptor that comes with it.
fn read_report(child: &UnixStream, report: &mut Vec<u8>, diagnosis: &mut Option<OwnedFd>) -> io::Result<()> {
    loop {
        let mut bytes = [0u8; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [io::IoSliceMut::new(&mut bytes)];
        let received = match recvmsg(child, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                *diagnosis = descriptors.last();
            }
        }
        if received == 0 {
            return Ok(());
        }
        report.extend_from_slice(&bytes[..received]);
    }
}

/// In the child: hands the parent a socket that reports the sockets of this network namespace. A kernel without such
/// sockets is no failure: the watchdog then counts every socket as full.
fn send_diagnosis(parent: &UnixStream) -> Result<(), StepFailure> {
    let Ok(socket) = net::open_diagnosis() else { return Ok(()) };
    let descriptors = [socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(parent, &[io::IoSlice::new(b"\n")], &mut ancillary, SendFlags::empty())
        .during(JailStep::Network, || "hand a socket to the parent".into())
        .map(drop)
}

/// In the parent: maps the child's user, sets its OOM score, and sends the byte that it waits for.
fn release_child(plan: &JailPlan, watched: &mut WatchedSandbox, mut child: &UnixStream) -> Result<(), StepFailure> {
    watched.host.write_maps(watched.child, &plan.identity)?;
    // When the machine runs out of memory, the kernel kills a sandbox before anything else.
    std::fs::write(format!("/proc/{}/oom_score_adj", watched.child.as_raw_nonzero()), "1000")
        .during(JailStep::Cgroup, || "mark the sandbox as the first to kill when memory runs out".into())?;
    child.write_all(&[watched.host.kind.byte()]).during(JailStep::Clone, || "release the child".into())
}

fn decode_failure(report: &[u8]) -> StepFailure {
    serde_json::from_slice(report)
        .unwrap_or_else(|error| StepFailure::new(JailStep::Clone, "read the child's report", io::Error::other(error)))
}

/// In the child: takes every step, in the order in which they must be taken, and executes the runner. Returns only if a
/// step fails.
fn enter(
    plan: &JailPlan,
    sources: Option<mount::BindSources>,
    cgroups: &SandboxCgroups,
    parent: &UnixStream,
) -> Result<std::convert::Infallible, StepFailure> {
    cgroups.join()?;
    namespaces::hide_host_cgroups()?;
    let mut byte = [0u8; 1];
    (&*parent).read_exact(&mut byte).during(JailStep::Clone, || "wait for the parent".into())?;
    mount::make_private()?;
    // Before this process becomes another user, who may not reach them.
    let sources = sources.map_or_else(|| mount::open_sources(plan), Ok)?;
    user::become_user(plan.identity.inside, byte[0])?;
    lifetime::tie_to_parent(parent.as_fd())?;
    namespaces::set_host_name(plan)?;
    net::bring_loopback_up()?;
    if plan.control.watchdog_millis.is_some() {
        send_diagnosis(parent)?;
    }
    let root = mount::build_root(plan, sources)?;
    namespaces::set_limits(plan)?;
    pivot::into_root(root, &plan.working_directory)?;
    rlimit::apply(plan)?;
    fds::keep_stream_only()?;
    caps::drop_all()?;
    landlock::restrict(&plan.landlock)?;
    // Last, because it forbids the system calls of the steps before.
    if let Some(program) = &plan.seccomp {
        sys::install_filter(program).during(JailStep::Seccomp, || "install the system call filter".into())?;
    }
    let [program, args @ ..] = plan.command.as_slice() else {
        return Err(StepFailure::new(JailStep::Execute, "find the program in the plan", rustix::io::Errno::NOENT));
    };
    let error = Command::new(program).args(args).env_clear().envs(&plan.environment).exec();
    Err(StepFailure::new(JailStep::Execute, format!("execute `{program}`"), error))
}
