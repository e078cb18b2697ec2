//! Guests that break the protocol: the session ends them, reports it, and never reports success.

use std::sync::Arc;
use std::time::Duration;

use cove_core::backend::{MemoryKiller, SandboxEnd};
use cove_core::output::CellOutput;
use cove_core::policy::{DoorName, Policy, SandboxLimits};
use cove_core::session::{
    Cell, CellEnd, CellProcess, NoCalls, ProgramRun, Session, SessionOptions, StopReason, SurvivingState,
};
use cove_protocol::limits::MAX_ANSWER;
use cove_protocol::{
    CellId, CellOutcome, CodeQuestion, FromRunner, InterpreterPath, Language, OutputStream, ReachableName, StreamDoor,
    StreamId, ToRunner,
};
use cove_testkit::FakeBackend;
use cove_testkit::fake::FakeRunner;

fn policy() -> Policy {
    Policy {
        limits: SandboxLimits { memory: 1 << 29, cpus: 1.0, pids: 256, workspace: 1 << 28, tmp: 1 << 26 },
        ..Policy::default()
    }
}

fn cell() -> Cell {
    Cell {
        language: Language::Python,
        name: "<cell 1>".into(),
        code: "code".into(),
        args: vec![],
        timeout: Duration::from_secs(120),
        grace: Duration::from_millis(300),
    }
}

/// Runs one cell against a scripted runner. Returns how it ended, and its output.
async fn run(backend: &FakeBackend, cell: Cell) -> (CellEnd, String) {
    let session = Session::start(backend, &policy(), SessionOptions::default()).await.unwrap();
    let mut written = Vec::new();
    let show = |shown: CellOutput<'_>| {
        if let CellOutput::Text(_, bytes) = shown {
            written.extend(bytes);
        }
    };
    let end = session.run(cell, show, std::future::pending()).await;
    (end, String::from_utf8_lossy(&written).into_owned())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn send_done(runner: &mut FakeRunner, cell: CellId, outcome: CellOutcome) {
    runner.send(FromRunner::Done { cell, outcome, fresh: false }, &[]).await;
}

/// After the greeting and one cell the runner sends something wrong: the session must end as lost.
fn check_lost<F>(says: impl Fn(FakeRunner, CellId) -> F + Send + Sync + Copy + 'static, why: &str)
where
    F: Future<Output = ()> + Send + 'static,
{
    let backend = FakeBackend::new(move |mut runner| async move {
        runner.answer_hello().await;
        let (cell, _) = runner.next_cell().await.unwrap();
        says(runner, cell).await;
        std::future::pending::<()>().await;
    });
    let (end, _) = block_on(run(&backend, cell()));
    let CellEnd::SandboxEnded(SandboxEnd::Lost(reason)) = &end else { panic!("{why}: {end:?}") };
    assert!(reason.contains(why), "{why}: {reason}");
    assert!(!end.is_success());
    assert_eq!(end.survived(), SurvivingState::Nothing);
    assert_eq!(backend.kills(), 1, "{why}: a sandbox that cannot be trusted is ended");
}

#[test]
fn ends_a_runner_that_breaks_the_protocol() {
    let output = |cell, offset| FromRunner::Output { cell, stream: OutputStream::Stdout, offset };
    // No session of these tests has a door to the network.
    let open = |cell| FromRunner::OpenStream { cell, stream: StreamId(1), door: StreamDoor::Proxy {} };
    check_lost(move |mut r, cell| async move { r.send(open(cell), b"").await }, "opened a stream out of turn");
    check_lost(
        |mut r, _| async move { r.send(FromRunner::StreamData { stream: StreamId(1) }, b"x").await },
        "never opened",
    );
    check_lost(move |mut r, cell| async move { r.send(output(cell, 7), b"x").await }, "out of order");
    check_lost(move |mut r, _| async move { r.send(output(CellId(99), 0), b"x").await }, "out of order");
    check_lost(
        |mut r, _| async move { send_done(&mut r, CellId(99), CellOutcome::Completed {}).await },
        "a cell that does not run",
    );
    check_lost(|mut r, _| async move { r.send(FromRunner::NeedInput {}, &[]).await }, "input out of turn");
    check_lost(
        |mut r, _| async move { r.send(FromRunner::Pong { nonce: 1, received: 1 }, &[]).await },
        "an unexpected message",
    );
    check_lost(|mut r, _| async move { r.send_bytes(b"\xff\xff\xff\xff").await }, "what it may not");
    check_lost(|mut r, _| async move { r.send_bytes(b"HTTP/1.1 200 OK\r\n\r\n").await }, "what it may not");
    check_lost(
        |mut r, _| async move { r.send(FromRunner::Fault { message: "tired".into() }, &[]).await },
        "could not go on",
    );
}

/// The same for a runner that has opened both doors.
fn check_lost_beside_doors<F>(says: impl Fn(FakeRunner, CellId) -> F + Send + Sync + Copy + 'static, why: &str)
where
    F: Future<Output = ()> + Send + 'static,
{
    let backend = FakeBackend::new(move |mut runner| async move {
        let Some((ToRunner::Hello(hello), _)) = runner.receive().await else { panic!("no hello") };
        let interpreters = hello.interpreters[..1].to_vec();
        let (version, proxy_port, name_door) = (cove_protocol::VERSION, Some(3128), true);
        let ready = cove_protocol::RunnerReady { version, interpreters, received: 0, proxy_port, name_door };
        runner.send(FromRunner::Ready(ready), &[]).await;
        let (cell, _) = runner.next_cell().await.unwrap();
        says(runner, cell).await;
        std::future::pending::<()>().await;
    });
    let name = ReachableName { pattern: "a.test".into(), ports: vec![443] };
    let door_names = vec![DoorName { name, images: Vec::new() }];
    let policy = Policy { proxy_door: true, door_names, ..policy() };
    let end = block_on(async {
        let session = Session::start(&backend, &policy, SessionOptions::default()).await.unwrap();
        session.run(cell(), |_| {}, std::future::pending()).await
    });
    let CellEnd::SandboxEnded(SandboxEnd::Lost(reason)) = &end else { panic!("{why}: {end:?}") };
    assert!(reason.contains(why) && backend.kills() == 1, "{why}: {reason}");
}

#[test]
fn ends_a_runner_that_lies_about_names() {
    async fn open(mut runner: FakeRunner, cell: CellId, host: String, port: u16) {
        let door = StreamDoor::Name { host, port };
        runner.send(FromRunner::OpenStream { cell, stream: StreamId(1), door }, b"").await;
    }
    let none = "a name that is none";
    check_lost_beside_doors(|r, cell| open(r, cell, "a".repeat(300), 443), none);
    check_lost_beside_doors(|r, cell| open(r, cell, "EVIL.test".into(), 443), none);
    check_lost_beside_doors(|r, cell| open(r, cell, "evil\0.a.test".into(), 443), none);
    check_lost_beside_doors(|r, cell| open(r, cell, String::new(), 443), none);
    check_lost_beside_doors(|r, cell| open(r, cell, "a.test".into(), 0), none);
    check_lost_beside_doors(|r, _| open(r, CellId(9), "a.test".into(), 443), "opened a stream out of turn");
    let unknown_door = br#"{"type":"open_stream","cell":1,"stream":1,"door":{"kind":"back"}}"#;
    check_lost_beside_doors(
        move |mut r, _| async move {
            let length = (unknown_door.len() as u32).to_be_bytes();
            let frame = (unknown_door.len() as u32 + 5).to_be_bytes();
            r.send_bytes(&[&frame[..], &[0], &length, unknown_door].concat()).await;
        },
        "what it may not",
    );
    async fn report(mut runner: FakeRunner, cell: CellId, names: &[String]) {
        for name in names {
            runner.send(FromRunner::UnknownName { cell, name: name.clone() }, b"").await;
        }
    }
    let turn = "reported a name out of turn";
    check_lost_beside_doors(|r, cell| async move { report(r, cell, &["a".repeat(300)]).await }, turn);
    check_lost_beside_doors(|r, cell| async move { report(r, cell, &["a b".into()]).await }, turn);
    check_lost_beside_doors(|r, _| async move { report(r, CellId(9), &["a.test".into()]).await }, turn);
    check_lost_beside_doors(|r, cell| async move { report(r, cell, &vec!["a.test".into(); 65]).await }, turn);
    check_lost_beside_doors(
        |mut r, cell| async move { r.send(FromRunner::MoreUnknownNames { cell, count: 1 }, b"").await },
        turn,
    );
    check_lost(
        |mut r, cell| async move { r.send(FromRunner::UnknownName { cell, name: "a.test".into() }, b"").await },
        "a name without a door",
    );
}

#[test]
fn reports_how_a_runner_died() {
    for ending in [SandboxEnd::Signalled(9), SandboxEnd::Exited(3), SandboxEnd::OutOfMemory(MemoryKiller::Kernel)] {
        let backend = FakeBackend::new(|mut runner| async move {
            runner.answer_hello().await;
            let (cell, _) = runner.next_cell().await.unwrap();
            let output = FromRunner::Output { cell, stream: OutputStream::Stdout, offset: 0 };
            runner.send(output, b"partial").await;
        })
        .ending_as(ending.clone());
        let (end, written) = block_on(run(&backend, cell()));
        assert_eq!(end, CellEnd::SandboxEnded(ending));
        assert_eq!(written, "partial", "output before the end is kept");
    }
}

/// A kill while the backend still determines the cause would hide that cause.
#[test]
fn waits_for_the_cause_of_a_sandbox_end() {
    for (within, takes, kills) in [(60, 2, 0), (1, 60, 1)] {
        let backend = FakeBackend::new(move |mut runner| async move {
            runner.answer_hello().await;
            runner.next_cell().await;
            drop(runner);
            tokio::time::sleep(Duration::from_secs(takes)).await;
        })
        .ending_as(SandboxEnd::Exited(3))
        .settling_within(Duration::from_secs(within));
        let (end, _) = block_on(run(&backend, cell()));
        assert_eq!(end, CellEnd::SandboxEnded(SandboxEnd::Exited(3)));
        assert_eq!(backend.kills(), kills, "within {within} s");
    }
}

/// A backend whose cells all end as killed, with the runner's claim about memory.
fn backend_that_kills(signal: i32, out_of_memory: Option<bool>) -> FakeBackend {
    FakeBackend::new(move |mut runner: FakeRunner| async move {
        runner.answer_hello().await;
        while let Some((cell, _)) = runner.next_cell().await {
            send_done(&mut runner, cell, CellOutcome::InterpreterKilled { signal, out_of_memory }).await;
        }
    })
}

#[test]
fn trusts_only_the_sandbox_on_out_of_memory() {
    let who = CellProcess::Interpreter(Language::Python);
    let killed = |signal| CellEnd::Killed { process: who, signal };
    let out_of_memory = |by| CellEnd::OutOfMemory { who, killer: by };
    let (kernel, watchdog) = (MemoryKiller::Kernel, MemoryKiller::Watchdog);
    for (backend, expected) in [
        (backend_that_kills(9, None), killed(9)),
        (backend_that_kills(9, None).out_of_memory(watchdog), out_of_memory(watchdog)),
        // The session considers the runner's claim only if the backend trusts it, and never over the backend's own
        // cause.
        (backend_that_kills(9, Some(true)), killed(9)),
        (backend_that_kills(9, Some(true)).trusting_its_runner(), out_of_memory(kernel)),
        (backend_that_kills(9, Some(true)).trusting_its_runner().out_of_memory(watchdog), out_of_memory(watchdog)),
        (backend_that_kills(9, Some(false)).trusting_its_runner().out_of_memory(watchdog), out_of_memory(watchdog)),
        (backend_that_kills(9, Some(false)).trusting_its_runner(), killed(9)),
        (backend_that_kills(9, None).trusting_its_runner(), killed(9)),
        (backend_that_kills(11, Some(true)).trusting_its_runner().out_of_memory(kernel), killed(11)),
    ] {
        assert_eq!(block_on(run(&backend, cell())).0, expected);
    }
}

/// Runs one program against a scripted runner.
async fn run_program(backend: &FakeBackend, command: &[&str]) -> CellEnd {
    let session = Session::start(backend, &policy(), SessionOptions::default()).await.unwrap();
    let program = ProgramRun {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        directory: None,
        timeout: Duration::from_secs(120),
        grace: Duration::from_millis(300),
    };
    session.run_with_calls(program, |_| {}, std::future::pending(), Arc::new(NoCalls)).await
}

#[test]
fn reports_program_ends_like_process_exits() {
    let ending = |outcome: CellOutcome| {
        FakeBackend::new(move |mut runner| {
            let outcome = outcome.clone();
            async move {
                runner.answer_hello().await;
                let (cell, _) = runner.next_cell().await.unwrap();
                send_done(&mut runner, cell, outcome).await;
                std::future::pending::<()>().await;
            }
        })
    };
    let exited = |code| ending(CellOutcome::InterpreterExited { code });
    for (backend, expected, code) in [
        (exited(0), CellEnd::Completed { forgotten: false }, 0),
        (exited(3), CellEnd::Exited { code: 3, forgotten: false }, 3),
        (backend_that_kills(15, None), CellEnd::Killed { process: CellProcess::Program, signal: 15 }, 143),
        (
            backend_that_kills(9, None).out_of_memory(MemoryKiller::Kernel),
            CellEnd::OutOfMemory { who: CellProcess::Program, killer: MemoryKiller::Kernel },
            137,
        ),
        (
            ending(CellOutcome::Unavailable { reason: "no\x1b[2J".into() }),
            CellEnd::Unavailable { who: CellProcess::Program, reason: "no\\u{1b}[2J".into() },
            125,
        ),
    ] {
        let end = block_on(run_program(&backend, &["/program"]));
        assert_eq!((&end, end.exit_code()), (&expected, code));
        assert_eq!(end.is_success(), code == 0);
        assert_eq!(end.survived(), SurvivingState::Everything, "no interpreter lost anything");
    }
    for lie in [
        CellOutcome::Completed {},
        CellOutcome::Exited { code: 0 },
        CellOutcome::Interrupted {},
        CellOutcome::Raised { exception: "E".into(), message: "m".into() },
    ] {
        let end = block_on(run_program(&ending(lie), &["/program"]));
        let CellEnd::SandboxEnded(SandboxEnd::Lost(reason)) = &end else { panic!("{end:?}") };
        assert!(reason.contains("as only code can end"), "{reason}");
    }
}

#[test]
fn reports_an_unsendable_command_and_continues() {
    let long = "x".repeat(40_000);
    for (command, why) in [
        (vec![], "names no program"),
        (vec!["", "x"], "names no program"),
        (vec![long.as_str()], "40000 bytes"),
        (vec!["x"; 300], "300 words"),
    ] {
        let backend = FakeBackend::new(|mut runner| async move {
            runner.answer_hello().await;
            assert!(runner.next_cell().await.is_none(), "nothing was sent");
        });
        let end = block_on(run_program(&backend, &command));
        let CellEnd::Unavailable { who: CellProcess::Program, reason } = &end else { panic!("{end:?}") };
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn rejects_a_runner_with_an_unoffered_interpreter() {
    let one = |program: &str| InterpreterPath { language: Language::Python, program: program.into() };
    let start = |taken: Vec<InterpreterPath>| {
        let backend = FakeBackend::new(move |mut runner| {
            let taken = taken.clone();
            async move {
                runner.receive().await;
                runner.send_ready(taken).await;
                std::future::pending::<()>().await;
            }
        });
        block_on(async {
            let session = Session::start(&backend, &policy(), SessionOptions::default()).await;
            session.map(|session| session.interpreter_path(Language::Python).map(str::to_owned))
        })
    };
    assert_eq!(start(vec![]).unwrap(), None);
    assert_eq!(start(vec![one("/other/python")]).unwrap().as_deref(), Some("/other/python"));
    let shell = InterpreterPath { language: Language::Sh, program: "/python".into() };
    for lie in [vec![one("/bin/evil")], vec![shell], vec![one("/python"), one("/other/python")]] {
        let error = start(lie).expect_err("it must not start");
        let cause = error.cause.expect("it says why").to_string();
        assert!(cause.contains("were not offered"), "{cause}");
    }
}

#[test]
fn kills_the_sandbox_of_an_unresponsive_runner() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        let mut received = Vec::new();
        while let Some((message, _)) = runner.receive().await {
            received.push(message);
            if matches!(received.last(), Some(ToRunner::Kill { .. })) {
                let interrupts = received.iter().filter(|m| matches!(m, ToRunner::Interrupt { .. })).count();
                assert_eq!(interrupts, 2, "first the interrupts, then the kill");
            }
        }
    })
    .ending_as(SandboxEnd::Signalled(9));
    let (end, _) = block_on(run(&backend, Cell { timeout: Duration::from_millis(100), ..cell() }));
    assert_eq!(end, CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Nothing });
    assert_eq!(backend.kills(), 1);
}

#[test]
fn completion_after_the_deadline_counts_as_timeout() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        let (cell, _) = runner.next_cell().await.unwrap();
        while let Some((message, _)) = runner.receive().await {
            if matches!(message, ToRunner::Interrupt { .. }) {
                send_done(&mut runner, cell, CellOutcome::Completed {}).await;
            }
        }
    });
    let (end, _) =
        block_on(run(&backend, Cell { timeout: Duration::from_millis(50), grace: Duration::from_secs(60), ..cell() }));
    assert_eq!(end, CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Everything });
}

#[test]
fn reports_variables_lost_between_cells() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        while let Some((cell, _)) = runner.next_cell().await {
            runner.send(FromRunner::Done { cell, outcome: CellOutcome::Completed {}, fresh: true }, &[]).await;
        }
    });
    block_on(async {
        let session = Session::start(&backend, &policy(), SessionOptions::default()).await.unwrap();
        let first = session.run(cell(), |_| {}, std::future::pending()).await;
        assert_eq!(first, CellEnd::Completed { forgotten: false });
        let second = session.run(cell(), |_| {}, std::future::pending()).await;
        assert_eq!(second, CellEnd::Completed { forgotten: true });
    });
}

#[test]
fn refuses_a_runner_of_another_version() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.receive().await;
        let ready = cove_protocol::RunnerReady {
            version: 0,
            interpreters: vec![],
            received: 0,
            proxy_port: None,
            name_door: false,
        };
        runner.send(FromRunner::Ready(ready), &[]).await;
        std::future::pending::<()>().await;
    });
    let refused = block_on(Session::start(&backend, &policy(), SessionOptions::default()));
    let error = refused.err().expect("it must not start");
    assert_eq!(error.to_string(), "could not reach the runner in the sandbox");
    assert_eq!(backend.kills(), 1);
}

#[test]
fn answers_about_code_have_bounds_and_a_deadline() {
    let check = |answer: Option<Vec<u8>>, expected: Option<&str>| {
        let patience = Duration::from_millis(if answer.is_some() { 60_000 } else { 300 });
        let backend = FakeBackend::new(move |mut runner| {
            let answer = answer.clone();
            async move {
                runner.answer_hello().await;
                while let Some((message, _)) = runner.receive().await {
                    if let (ToRunner::Ask { request, .. }, Some(answer)) = (message, &answer) {
                        runner.send(FromRunner::Answer { request }, answer).await;
                    }
                }
            }
        });
        block_on(async {
            let session = Session::start(&backend, &policy(), SessionOptions::default()).await.unwrap();
            let ask = async |language| session.ask(language, CodeQuestion::Completeness, "f(", patience).await;
            assert_eq!(ask(Language::Python).await.as_deref(), expected);
            // A language without an interpreter gets no question.
            assert_eq!(ask(Language::Node).await, None);
        });
    };
    check(Some(b"open".to_vec()), Some("open"));
    check(Some(vec![]), None);
    check(Some(vec![b'x'; MAX_ANSWER + 1]), None);
    check(Some(b"\xff".to_vec()), None);
    check(None, None);
}

#[test]
fn certificates_that_a_runner_cannot_write_are_named_with_their_setting() {
    let fail = |bytes: u64| {
        let backend = FakeBackend::new(move |mut runner| async move {
            runner.receive().await;
            let message = "could not write `/tmp/.cove/ca\u{1b}-bundle.pem`: No space left on device".to_owned();
            runner.send(FromRunner::NoCertificates { bytes, message }, &[]).await;
            std::future::pending::<()>().await;
        });
        let Err(failure) = block_on(Session::start(&backend, &policy(), SessionOptions::default())) else {
            panic!("it started");
        };
        assert_eq!(backend.kills(), 1);
        failure.report().to_string()
    };
    let tmp = policy().limits.tmp;
    let report = fail(tmp + 1);
    assert!(report.starts_with("could not write the certificates of a session"), "{report}");
    assert!(report.contains("No space left on device") && !report.contains('\u{1b}'), "{report}");
    let enough = cove_core::units::show_size((tmp + 1).next_multiple_of(1 << 20));
    assert!(report.contains(&format!("hint: set `tmp-size` to at least `{enough}`; it is `")), "{report}");
    assert!(fail(1).ends_with("hint: the sandbox's `/tmp` must be writable and have room"));
    assert!(fail(u64::MAX).contains("hint: set `tmp-size` to at least "), "a runner may say any number");
    check_lost(
        |mut r, _| async move { r.send(FromRunner::NoCertificates { bytes: 1, message: "late".into() }, &[]).await },
        "after its start",
    );
}
