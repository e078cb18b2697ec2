//! A guest that breaks the protocol: the session ends it, says so, and never reports success.

use std::sync::Arc;
use std::time::Duration;

use cove::backend::{Ending, MemoryKiller};
use cove::policy::{Limits, Network, Policy, Root, User};
use cove::session::{Cell, CellEnd, NoCalls, Options, Program, Session, Shown, Stop, Survived, Who};
use cove_protocol::{CellId, FromRunner, Interpreter, Language, Outcome, Stream, ToRunner};
use cove_testkit::FakeBackend;
use cove_testkit::fake::FakeRunner;

fn policy() -> Policy {
    Policy {
        root: Root::Host,
        python: None,
        mounts: vec![],
        network: Network::None,
        runtime: None,
        user: User { uid: 65534, gid: 65534 },
        limits: Limits { memory: 1 << 29, cpus: 1.0, pids: 256, workspace: 1 << 28, tmp: 1 << 26 },
    }
}

fn cell() -> Cell {
    Cell {
        language: Language::Python,
        name: "<cell 1>".into(),
        code: "code".into(),
        args: vec![],
        timeout: Duration::from_secs(20),
        grace: Duration::from_millis(300),
    }
}

/// Runs one cell against a scripted runner; how it ended, and what it wrote.
async fn run(backend: &FakeBackend, cell: Cell) -> (CellEnd, String) {
    let session = Session::start(backend, &policy(), Options::default()).await.unwrap();
    let mut written = Vec::new();
    let show = |shown: Shown<'_>| {
        if let Shown::Text(_, bytes) = shown {
            written.extend(bytes);
        }
    };
    let end = session.run(cell, show, std::future::pending()).await;
    (end, String::from_utf8_lossy(&written).into_owned())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn done(runner: &mut FakeRunner, cell: CellId, outcome: Outcome) {
    runner.say(FromRunner::Done { cell, outcome, fresh: false }, &[]).await;
}

/// After the greeting and one cell the runner says something wrong: the session must end as lost.
fn check_lost<F>(says: impl Fn(FakeRunner, CellId) -> F + Send + Sync + Copy + 'static, why: &str)
where
    F: Future<Output = ()> + Send + 'static,
{
    let backend = FakeBackend::new(move |mut runner| async move {
        runner.greet().await;
        let (cell, _) = runner.cell().await.unwrap();
        says(runner, cell).await;
        std::future::pending::<()>().await;
    });
    let (end, _) = block_on(run(&backend, cell()));
    let CellEnd::SandboxEnded(Ending::Lost(reason)) = &end else { panic!("{why}: {end:?}") };
    assert!(reason.contains(why), "{why}: {reason}");
    assert!(!end.is_success());
    assert_eq!(end.survived(), Survived::Nothing);
    assert_eq!(backend.kills(), 1, "{why}: a sandbox that cannot be trusted is ended");
}

#[test]
fn a_runner_that_breaks_the_protocol_is_ended() {
    let output = |cell, offset| FromRunner::Output { cell, stream: Stream::Stdout, offset };
    check_lost(move |mut r, cell| async move { r.say(output(cell, 7), b"x").await }, "out of order");
    check_lost(move |mut r, _| async move { r.say(output(CellId(99), 0), b"x").await }, "out of order");
    check_lost(
        |mut r, _| async move { done(&mut r, CellId(99), Outcome::Completed {}).await },
        "a cell that does not run",
    );
    check_lost(|mut r, _| async move { r.say(FromRunner::NeedInput {}, &[]).await }, "input out of turn");
    check_lost(
        |mut r, _| async move { r.say(FromRunner::Pong { nonce: 1, received: 1 }, &[]).await },
        "nobody asked for",
    );
    check_lost(|mut r, _| async move { r.say_bytes(b"\xff\xff\xff\xff").await }, "what it may not");
    check_lost(|mut r, _| async move { r.say_bytes(b"HTTP/1.1 200 OK\r\n\r\n").await }, "what it may not");
    check_lost(
        |mut r, _| async move { r.say(FromRunner::Fault { message: "tired".into() }, &[]).await },
        "could not go on",
    );
}

#[test]
fn a_runner_that_dies_is_told_with_its_ending() {
    for ending in [Ending::Signalled(9), Ending::Exited(3), Ending::OutOfMemory(MemoryKiller::Kernel)] {
        let backend = FakeBackend::new(|mut runner| async move {
            runner.greet().await;
            let (cell, _) = runner.cell().await.unwrap();
            let output = FromRunner::Output { cell, stream: Stream::Stdout, offset: 0 };
            runner.say(output, b"partial").await;
        })
        .ending_as(ending.clone());
        let (end, written) = block_on(run(&backend, cell()));
        assert_eq!(end, CellEnd::SandboxEnded(ending));
        assert_eq!(written, "partial", "output before the end is kept");
    }
}

/// Who kills it while the cause is being found out hears of the kill alone.
#[test]
fn an_end_whose_cause_takes_a_while_is_waited_for() {
    for (within, kills) in [(5, 0), (1, 1)] {
        let backend = FakeBackend::new(|mut runner| async move {
            runner.greet().await;
            runner.cell().await;
            drop(runner);
            tokio::time::sleep(Duration::from_millis(2500)).await;
        })
        .ending_as(Ending::Exited(3))
        .settling_within(Duration::from_secs(within));
        let (end, _) = block_on(run(&backend, cell()));
        assert_eq!(end, CellEnd::SandboxEnded(Ending::Exited(3)));
        assert_eq!(backend.kills(), kills, "within {within} s");
    }
}

/// A backend whose cells all end as killed, with what the runner says of memory.
fn killing(signal: i32, out_of_memory: Option<bool>) -> FakeBackend {
    FakeBackend::new(move |mut runner: FakeRunner| async move {
        runner.greet().await;
        while let Some((cell, _)) = runner.cell().await {
            done(&mut runner, cell, Outcome::InterpreterKilled { signal, out_of_memory }).await;
        }
    })
}

#[test]
fn a_killed_interpreter_is_out_of_memory_only_if_the_sandbox_says_so() {
    let who = Who::from(Language::Python);
    let killed = |signal| CellEnd::Killed { who, signal };
    let out_of_memory = |by| CellEnd::OutOfMemory { who, by };
    let (kernel, watchdog) = (MemoryKiller::Kernel, MemoryKiller::Watchdog);
    for (backend, expected) in [
        (killing(9, None), killed(9)),
        (killing(9, None).out_of_memory(watchdog), out_of_memory(watchdog)),
        // A runner is asked only where its backend says so, and even there it does not speak against it.
        (killing(9, Some(true)), killed(9)),
        (killing(9, Some(true)).trusting_its_runner(), out_of_memory(kernel)),
        (killing(9, Some(true)).trusting_its_runner().out_of_memory(watchdog), out_of_memory(watchdog)),
        (killing(9, Some(false)).trusting_its_runner().out_of_memory(watchdog), out_of_memory(watchdog)),
        (killing(9, Some(false)).trusting_its_runner(), killed(9)),
        (killing(9, None).trusting_its_runner(), killed(9)),
        (killing(11, Some(true)).trusting_its_runner().out_of_memory(kernel), killed(11)),
    ] {
        assert_eq!(block_on(run(&backend, cell())).0, expected);
    }
}

/// Runs one program against a scripted runner.
async fn run_program(backend: &FakeBackend, command: &[&str]) -> CellEnd {
    let session = Session::start(backend, &policy(), Options::default()).await.unwrap();
    let program = Program {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        directory: None,
        timeout: Duration::from_secs(20),
        grace: Duration::from_millis(300),
    };
    session.run_program(program, |_| {}, std::future::pending(), Arc::new(NoCalls)).await
}

#[test]
fn a_program_ends_as_processes_do() {
    let ending = |outcome: Outcome| {
        FakeBackend::new(move |mut runner| {
            let outcome = outcome.clone();
            async move {
                runner.greet().await;
                let (cell, _) = runner.cell().await.unwrap();
                done(&mut runner, cell, outcome).await;
                std::future::pending::<()>().await;
            }
        })
    };
    let exited = |code| ending(Outcome::InterpreterExited { code });
    for (backend, expected, code) in [
        (exited(0), CellEnd::Completed { forgotten: false }, 0),
        (exited(3), CellEnd::Exited { code: 3, forgotten: false }, 3),
        (killing(15, None), CellEnd::Killed { who: Who::Program, signal: 15 }, 143),
        (
            killing(9, None).out_of_memory(MemoryKiller::Kernel),
            CellEnd::OutOfMemory { who: Who::Program, by: MemoryKiller::Kernel },
            137,
        ),
        (
            ending(Outcome::Unavailable { reason: "no\x1b[2J".into() }),
            CellEnd::Unavailable { who: Who::Program, reason: "no\\u{1b}[2J".into() },
            125,
        ),
    ] {
        let end = block_on(run_program(&backend, &["/program"]));
        assert_eq!((&end, end.exit_code()), (&expected, code));
        assert_eq!(end.is_success(), code == 0);
        assert_eq!(end.survived(), Survived::Everything, "no interpreter lost anything");
    }
    for lie in [
        Outcome::Completed {},
        Outcome::Exited { code: 0 },
        Outcome::Interrupted {},
        Outcome::Raised { exception: "E".into(), message: "m".into() },
    ] {
        let end = block_on(run_program(&ending(lie), &["/program"]));
        let CellEnd::SandboxEnded(Ending::Lost(reason)) = &end else { panic!("{end:?}") };
        assert!(reason.contains("as only code can end"), "{reason}");
    }
}

#[test]
fn a_command_that_cannot_be_sent_is_told_and_harms_nothing() {
    let long = "x".repeat(40_000);
    for (command, why) in [
        (vec![], "names no program"),
        (vec!["", "x"], "names no program"),
        (vec![long.as_str()], "40000 bytes"),
        (vec!["x"; 300], "300 words"),
    ] {
        let backend = FakeBackend::new(|mut runner| async move {
            runner.greet().await;
            assert!(runner.cell().await.is_none(), "nothing was sent");
        });
        let end = block_on(run_program(&backend, &command));
        let CellEnd::Unavailable { who: Who::Program, reason } = &end else { panic!("{end:?}") };
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn a_runner_takes_one_of_the_interpreters_that_were_offered() {
    let one = |program: &str| Interpreter { language: Language::Python, program: program.into() };
    let start = |taken: Vec<Interpreter>| {
        let backend = FakeBackend::new(move |mut runner| {
            let taken = taken.clone();
            async move {
                runner.hear().await;
                runner.take(taken).await;
                std::future::pending::<()>().await;
            }
        });
        block_on(async {
            let session = Session::start(&backend, &policy(), Options::default()).await;
            session.map(|session| session.program(Language::Python).map(str::to_owned))
        })
    };
    assert_eq!(start(vec![]).unwrap(), None);
    assert_eq!(start(vec![one("/other/python")]).unwrap().as_deref(), Some("/other/python"));
    let shell = Interpreter { language: Language::Sh, program: "/python".into() };
    for lie in [vec![one("/bin/evil")], vec![shell], vec![one("/python"), one("/other/python")]] {
        let error = start(lie).expect_err("it must not start");
        let cause = error.cause.expect("it says why").to_string();
        assert!(cause.contains("were not offered"), "{cause}");
    }
}

#[test]
fn a_runner_that_ignores_every_measure_loses_its_sandbox() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        let mut heard = Vec::new();
        while let Some((message, _)) = runner.hear().await {
            heard.push(message);
            if matches!(heard.last(), Some(ToRunner::Kill { .. })) {
                let interrupts = heard.iter().filter(|m| matches!(m, ToRunner::Interrupt { .. })).count();
                assert_eq!(interrupts, 2, "first the interrupts, then the kill");
            }
        }
    })
    .ending_as(Ending::Signalled(9));
    let (end, _) = block_on(run(&backend, Cell { timeout: Duration::from_millis(100), ..cell() }));
    assert_eq!(end, CellEnd::Stopped { why: Stop::Deadline, survived: Survived::Nothing });
    assert_eq!(backend.kills(), 1);
}

#[test]
fn a_cell_that_completes_after_its_deadline_is_late() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        let (cell, _) = runner.cell().await.unwrap();
        while let Some((message, _)) = runner.hear().await {
            if matches!(message, ToRunner::Interrupt { .. }) {
                done(&mut runner, cell, Outcome::Completed {}).await;
            }
        }
    });
    let (end, _) = block_on(run(&backend, Cell { timeout: Duration::from_millis(50), ..cell() }));
    assert_eq!(end, CellEnd::Stopped { why: Stop::Deadline, survived: Survived::Everything });
}

#[test]
fn variables_lost_between_cells_are_told() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        while let Some((cell, _)) = runner.cell().await {
            runner.say(FromRunner::Done { cell, outcome: Outcome::Completed {}, fresh: true }, &[]).await;
        }
    });
    block_on(async {
        let session = Session::start(&backend, &policy(), Options::default()).await.unwrap();
        let first = session.run(cell(), |_| {}, std::future::pending()).await;
        assert_eq!(first, CellEnd::Completed { forgotten: false });
        let second = session.run(cell(), |_| {}, std::future::pending()).await;
        assert_eq!(second, CellEnd::Completed { forgotten: true });
    });
}

#[test]
fn a_runner_of_another_version_is_refused() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.hear().await;
        let ready = cove_protocol::Ready { version: 0, interpreters: vec![], received: 0 };
        runner.say(FromRunner::Ready(ready), &[]).await;
        std::future::pending::<()>().await;
    });
    let refused = block_on(Session::start(&backend, &policy(), Options::default()));
    let error = refused.err().expect("it must not start");
    assert_eq!(error.to_string(), "could not reach the runner in the sandbox");
    assert_eq!(backend.kills(), 1);
}
