//! Tests of how requests end: clients that disconnect, servers that stop, and panics.

use super::*;
use cove_core::private_file::{ExistingFile, write_private_file};

#[tokio::test]
async fn cancels_the_answer_when_the_client_disconnects() {
    for wanted in ["wait", "stream"] {
        for way in ["close", "half", "reset"] {
            let mut server = TestFront::start().await;
            let mut client = server.connect().await;
            client.send(&post(&format!("do: {wanted}\r\n"), "hello")).await;
            assert_eq!(server.event().await, FakeMcpEvent::Came("alice".into(), 5));
            if wanted == "stream" {
                let mut first = [0; 15];
                client.0.read_exact(&mut first).await.unwrap();
                assert_eq!(&first, b"HTTP/1.1 200 OK");
            }
            match way {
                "half" => client.0.shutdown().await.unwrap(),
                "reset" => client.0.set_zero_linger().unwrap(),
                _ => {}
            }
            let kept = (way == "half").then_some(client);
            assert_eq!(server.event().await, FakeMcpEvent::Dropped, "{wanted} {way}");
            drop(kept);
            server.stop().await;
        }
    }
}

#[tokio::test]
async fn cleans_up_when_a_client_disconnects_while_sending() {
    let mut server = TestFront::start().await;
    let mut client = server.connect().await;
    client.send(&post("", "").replace("Content-Length: 0", "Content-Length: 100")).await;
    client.send("half of it").await;
    drop(client);
    let gone = async {
        while server.count("cove_http_connections") > 0
            || server.count("cove_http_refused_total{reason=\"body_broken\"}") < 1
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the connection still counts");
    assert!(server.events.try_recv().is_err());
    server.stop().await;
}

#[tokio::test]
async fn stop_closes_idle_connections_and_finishes_answers() {
    let mut server = TestFront::start_with(config(), HttpBounds { drain: PATIENCE, ..HttpBounds::default() }).await;
    let mut fresh = server.connect().await;
    let mut idle = server.connect().await;
    idle.send(&post("", "")).await;
    assert_eq!(idle.reply().await.status, 200);
    server.event().await;
    let mut busy = server.connect().await;
    busy.send(&post("do: wait\r\n", "")).await;
    server.event().await;
    server.stop.cancel();
    assert_eq!(idle.read_to_end().await, "");
    assert_eq!(fresh.read_to_end().await, "");
    assert!(!server.task.is_finished());
    let refused = async { while TcpStream::connect(server.address).await.is_ok() {} };
    timeout(PATIENCE, refused).await.expect("still accepting");
    server.release.notify_one();
    let reply = busy.reply().await;
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    assert_eq!(busy.read_to_end().await, "");
    server.stop().await;
}

#[tokio::test]
async fn stop_closes_connections_after_the_drain_timeout() {
    let mut server =
        TestFront::start_with(config(), HttpBounds { drain: Duration::from_millis(200), ..HttpBounds::default() })
            .await;
    let mut clients = Vec::new();
    for wanted in ["wait", "stream"] {
        let mut client = server.connect().await;
        client.send(&post(&format!("do: {wanted}\r\n"), "")).await;
        server.event().await;
        clients.push(client);
    }
    let mut half = server.connect().await;
    half.send("POST /mcp HTTP/1.1\r\nHost: loc").await;
    clients.push(half);
    let metrics = Arc::clone(&server.metrics);
    server.stop.cancel();
    timeout(PATIENCE, &mut server.task).await.expect("the server did not end").unwrap();
    // Nothing is left: both answers were dropped before the server ended.
    assert_eq!(
        (server.events.try_recv(), server.events.try_recv()),
        (Ok(FakeMcpEvent::Dropped), Ok(FakeMcpEvent::Dropped))
    );
    assert!(metrics.render(&RegistryFigures::default()).contains("\ncove_http_connections 0\n"));
    for mut client in clients {
        client.read_to_end().await;
    }
}

#[tokio::test]
async fn a_panic_ends_only_its_own_connection() {
    let mut server = TestFront::start().await;
    let mut client = server.connect().await;
    client.send(&post("do: panic\r\n", "")).await;
    server.event().await;
    assert_eq!(client.read_to_end().await, "");
    assert_eq!(server.request(&post("", "")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn streams_end_when_their_token_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let write = |text: String| {
        write_private_file(&path, text, ExistingFile::Replace).unwrap();
    };
    write(format!("alice {ALICE}\nbob {BOB}\n"));
    let mut server = TestFront::start_with_file(config(), &path).await;
    let mut streams = Vec::new();
    for token in [ALICE, BOB] {
        for wanted in ["stream", "wait"] {
            let mut client = server.connect().await;
            client.send(&post(&format!("do: {wanted}\r\n"), "").replace(ALICE, token)).await;
            server.event().await;
            streams.push(client);
        }
    }
    // Bob gets another token: his streams end, but nothing else of his.
    let other = "bob-fedcba9876543210";
    write(format!("alice {ALICE}\nbob {other}\n"));
    assert_eq!((server.event().await, server.event().await), (FakeMcpEvent::Dropped, FakeMcpEvent::Dropped));
    assert_eq!(server.request(&post("", "").replace(ALICE, BOB)).await.status, 401);
    assert_eq!(server.request(&post("", "").replace(ALICE, other)).await.status, 200);
    assert_eq!(server.event().await, FakeMcpEvent::Came("bob".into(), 0));
    // Alice has no token any more: everything of hers ends.
    write(format!("bob {other}\n"));
    assert_eq!(server.request(&post("", "")).await.status, 401);
    let mut seen = [server.event().await, server.event().await, server.event().await];
    seen.sort_by_key(|event| *event != FakeMcpEvent::Dropped);
    assert_eq!(seen, [FakeMcpEvent::Dropped, FakeMcpEvent::Dropped, FakeMcpEvent::Ended("alice".into())]);
    for mut client in streams {
        client.read_to_end().await;
    }
    // Without its file the server accepts no token, and again when the file is back.
    std::fs::remove_file(&path).unwrap();
    let reply = server.request(&post("", "").replace(ALICE, other)).await;
    assert_eq!(reply.status, 401);
    assert!(reply.body.contains("token file cannot be used"), "{}", reply.body);
    write(format!("bob {other}\n"));
    assert_eq!(server.request(&post("", "").replace(ALICE, other)).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_token_file_that_cannot_be_used_ends_no_session() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let write = |text: String| {
        write_private_file(&path, text, ExistingFile::Replace).unwrap();
    };
    write(format!("alice {ALICE}\nbob {BOB}\n"));
    let mut server = TestFront::start_with_file(config(), &path).await;
    let mut stream = server.connect().await;
    stream.send(&post("do: wait\r\n", "")).await;
    server.event().await;
    // A line is mistyped: no token works and no stream stays, but nothing that cannot be had back is ended.
    write(format!("alice {ALICE}\nbob {BOB}\ncarol short\n"));
    assert_eq!(server.request(&post("", "")).await.status, 401);
    assert_eq!(server.event().await, FakeMcpEvent::Dropped);
    // Longer than the server needs to look at the file again.
    assert!(timeout(Duration::from_secs(1), server.events.recv()).await.is_err());
    // Then the file says who is gone.
    write(format!("bob {BOB}\n"));
    assert_eq!(server.event().await, FakeMcpEvent::Ended("alice".into()));
    server.stop().await;
}
