//! The promises about limits, bytes, calls and parallel sessions.

use std::sync::Arc;
use std::time::Duration;

use cove_core::BoxFuture;
use cove_core::output::CellOutput;
use cove_core::policy::{Policy, SandboxLimits};
use cove_core::session::{CallHandler, CallingCell, CellEnd, Session, SurvivingState};
use cove_protocol::Language;
use cove_testkit::measure;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::session_starter::SessionStarter;

use super::{cell, open, print, run};

const MIB: u64 = 1024 * 1024;

async fn open_with(starter: &SessionStarter<'_>, change: impl FnOnce(&mut SandboxLimits)) -> Session {
    let mut policy: Policy = measure::config().policy;
    change(&mut policy.limits);
    starter.start(&policy).await
}

pub(crate) async fn exceeding_memory_kills_the_interpreter_and_is_reported(starter: &SessionStarter<'_>) {
    let session = open_with(starter, |limits| limits.memory = 128 * MIB).await;
    print(&session, Language::Python, "kept = open('kept', 'w').write('kept')").await;
    // Shared memory: another limit bounds what a process allocates for itself.
    let code = "import mmap\nsize = 400 << 20\nm = mmap.mmap(-1, size)\nfor i in range(0, size, 4096): m[i] = 1";
    let (end, collected) = run(&session, Language::Python, code).await;
    assert_eq!((end.kind(), end.exit_code()), ("out_of_memory", 137), "{end:?} {collected:?}");
    assert_eq!(end.survived(), SurvivingState::Files, "{end:?}");
    assert_eq!(print(&session, Language::Python, "print(open('kept').read())").await, "kept\n");
    session.stop().await;
}

pub(crate) async fn a_child_killed_for_memory_is_reported(starter: &SessionStarter<'_>) {
    let session = open_with(starter, |limits| limits.memory = 128 * MIB).await;
    let code = "import mmap, os\n\
                if (child := os.fork()) == 0:\n    \
                    size = 400 << 20\n    \
                    m = mmap.mmap(-1, size)\n    \
                    for i in range(0, size, 4096): m[i] = 1\n\
                print(os.waitpid(child, 0)[1])";
    let (end, collected) = run(&session, Language::Python, code).await;
    assert_eq!((end.kind(), collected.stdout.text.as_str()), ("completed", "9\n"), "{end:?} {collected:?}");
    assert!(end.is_success() && matches!(end, CellEnd::AfterMemoryKill { .. }), "{end:?}");
    // It is reported once.
    let (end, _) = run(&session, Language::Python, "1").await;
    assert_eq!(end, CellEnd::Completed { forgotten: false });
    session.stop().await;
}

pub(crate) async fn oversized_allocation_raises_an_ordinary_exception(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    print(&session, Language::Python, "kept = 1").await;
    let (end, collected) = run(&session, Language::Python, "x = bytearray(8 << 30)").await;
    assert!(
        matches!(end, CellEnd::Raised { ref exception, .. } if exception == "MemoryError"),
        "{end:?} {collected:?}"
    );
    assert_eq!(print(&session, Language::Python, "print(kept)").await, "1\n");
    session.stop().await;
}

pub(crate) async fn limits_the_number_of_processes(starter: &SessionStarter<'_>) {
    let session = open_with(starter, |limits| limits.pids = 32).await;
    let code = "import os, signal\nchildren = []\ntry:\n    for _ in range(100):\n        pid = os.fork()\n        \
                if pid == 0:\n            signal.pause()\n        children.append(pid)\nexcept OSError as error:\n    \
                print(error.strerror)\nprint(8 < len(children) < 32)\n\
                for pid in children: os.kill(pid, 9)\nfor pid in children: _ = os.waitpid(pid, 0)";
    let printed = print(&session, Language::Python, code).await;
    assert_eq!(printed, "Resource temporarily unavailable\nTrue\n");
    session.stop().await;
}

/// Including bytes that a terminal would take for commands.
pub(crate) async fn delivers_every_output_byte(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.extend(b"\x10\x11\x03\x04\x1a\x10\x10\x11\x11");
    let bytes = bytes.repeat(10_000);
    session.write_file("bytes", &bytes).await.expect("a file goes in");
    assert!(session.read_file("bytes").await.expect("a file comes out") == bytes);
    let mut seen = Vec::new();
    let code = "import sys; _ = sys.stdout.buffer.write(open('bytes', 'rb').read() * 12)";
    let show = |shown: CellOutput<'_>| {
        if let CellOutput::Text(_, piece) = shown {
            seen.extend_from_slice(piece);
        }
    };
    let end = session.run(cell(Language::Python, code), show, std::future::pending()).await;
    assert!(end.is_success(), "{end:?}");
    assert!(seen == bytes.repeat(12), "{} of {} bytes came", seen.len(), 12 * bytes.len());
    session.stop().await;
}

/// Returns each request as its answer.
struct EchoCalls;

impl CallHandler for EchoCalls {
    fn answer<'a>(&'a self, _cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let request: Value = serde_json::from_slice(&request).expect("the runner checks that it is JSON");
            let server = json!({"name": "github", "alias": "github", "description": "", "tools": 1, "state": "ready"});
            let answer = match request["ask"].as_str() {
                Some("servers") => json!({ "ok": [server] }),
                _ => json!({"ok": {"value": request["arguments"]}}),
            };
            answer.to_string().into_bytes()
        })
    }
}

pub(crate) async fn code_calls_the_host_in_every_language(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    for (language, code) in [
        (Language::Python, "r = mcp.github.echo(a=41)\nprint(r['a'] + 1)"),
        (Language::Node, "const r = await mcp.github.echo({a: 41}); console.log(r.a + 1)"),
        (Language::Bash, r#"mcp call github.echo '{"a": 42}' | grep -o '[0-9]*'"#),
        (Language::Sh, r#"mcp call github.echo '{"a": 42}' | grep -o '[0-9]*'"#),
    ] {
        let mut seen = String::new();
        let show = |shown: CellOutput<'_>| {
            if let CellOutput::Text(_, piece) = shown {
                seen += &String::from_utf8_lossy(piece);
            }
        };
        let end = session.run_with_calls(cell(language, code), show, std::future::pending(), Arc::new(EchoCalls)).await;
        assert!(end.is_success() && seen == "42\n", "{language}: {end:?} {seen}");
    }
    session.stop().await;
}

pub(crate) async fn twenty_sessions_at_once_do_not_mix(starter: &SessionStarter<'_>) {
    // All sessions exist at once, but start a few at a time, because a runner has to answer within seconds.
    let starts = futures_util::stream::iter((0..20).map(|_| open(starter)));
    let sessions: Vec<Session> = starts.buffered(5).collect().await;
    let each = sessions.iter().enumerate().map(|(number, session)| async move {
        print(session, Language::Python, &format!("x = {number}\n_ = open('mine', 'w').write('{number}')")).await;
        for round in 0..5 {
            let code = format!("import time; time.sleep(0.02); x += {round}; print(x, open('mine').read())");
            let expected = number + (0..=round).sum::<usize>();
            assert_eq!(print(session, Language::Python, &code).await, format!("{expected} {number}\n"));
        }
    });
    futures_util::future::join_all(each).await;
    futures_util::future::join_all(sessions.iter().map(Session::stop)).await;
    for session in &sessions {
        assert!(!session.is_alive().await);
    }
}

pub(crate) async fn stopped_session_ends_at_once(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let begun = Notify::new();
    let code = "print('on', flush=True)\nwhile True: pass";
    let show = |_: CellOutput<'_>| begun.notify_one();
    let running = session.run(cell(Language::Python, code), show, std::future::pending());
    let stopping = async {
        tokio::time::timeout(Duration::from_secs(60), begun.notified()).await.expect("it runs");
        session.kill().await
    };
    let (end, _) = tokio::join!(running, stopping);
    assert!(matches!(end, CellEnd::SandboxEnded(_)), "{end:?}");
    let (after, _) = run(&session, Language::Python, "1").await;
    assert!(matches!(after, CellEnd::SandboxEnded(_)), "{after:?}");
}
