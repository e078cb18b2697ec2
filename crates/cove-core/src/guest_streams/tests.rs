//! What the table accepts of a runner, and what it sends in which order.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const ID: StreamId = StreamId(1);
const PROXY: StreamDoor = StreamDoor::Proxy {};

fn table_with_door() -> Arc<StreamTable> {
    let table = Arc::new(StreamTable::new(None));
    table.allow_proxy_door();
    table
}

fn opened() -> (Arc<StreamTable>, GuestStream) {
    let table = table_with_door();
    assert_eq!(table.open(ID, &PROXY), Ok(true));
    let stream = table.take(ID).unwrap();
    (table, stream)
}

/// Returns all frames that wait, in short.
fn frames(table: &StreamTable) -> Vec<String> {
    let mut state = lock(&table.state);
    let mut all = Vec::new();
    while let Some((message, payload)) = state.next_frame() {
        all.push(match message {
            ToRunner::StreamData { stream } => format!("{} data {}", stream.0, payload.len()),
            ToRunner::StreamCredit { stream, bytes } => format!("{} credit {bytes}", stream.0),
            ToRunner::EndStream { stream } => format!("{} end", stream.0),
            ToRunner::ResetStream { stream } => format!("{} reset", stream.0),
            other => panic!("{other:?}"),
        });
    }
    all
}

#[tokio::test]
async fn gives_credit_for_what_was_read_and_no_more() {
    let (table, mut stream) = opened();
    table.receive(ID, &vec![1; STREAM_WINDOW]).unwrap();
    assert!(table.receive(ID, &[1]).is_err(), "beyond its credit");
    let mut buffer = vec![0; STREAM_WINDOW / 2];
    stream.read_exact(&mut buffer[1..]).await.unwrap();
    assert_eq!(frames(&table), [] as [&str; 0]);
    stream.read_exact(&mut buffer[..1]).await.unwrap();
    assert_eq!(frames(&table), [format!("1 credit {}", STREAM_WINDOW / 2)]);
    table.receive(ID, &vec![1; STREAM_WINDOW / 2]).unwrap();
    assert!(table.receive(ID, &[1]).is_err());
    assert!(table.receive(ID, &[]).is_err(), "bytes that are none");
}

#[tokio::test]
async fn writes_no_more_than_the_runner_has_room_for() {
    let (table, mut stream) = opened();
    stream.write_all(&vec![7; STREAM_WINDOW]).await.unwrap();
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(1), stream.write_all(b"x")).await;
    assert!(waiting.is_err(), "the window is full");
    assert!(table.add_credit(ID, 1).is_err(), "nothing was sent yet");
    assert_eq!(frames(&table), [format!("1 data {PIECE}"), format!("1 data {PIECE}")]);
    table.add_credit(ID, 1).unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(frames(&table), ["1 data 1"]);
    assert!(table.add_credit(ID, STREAM_WINDOW as u32 + 1).is_err(), "more than was sent");
    assert!(table.add_credit(ID, 0).is_err());
}

#[tokio::test]
async fn streams_take_turns() {
    let (table, mut first) = opened();
    assert_eq!(table.open(StreamId(2), &PROXY), Ok(true));
    let mut second = table.take(StreamId(2)).unwrap();
    first.write_all(&vec![0; STREAM_WINDOW]).await.unwrap();
    second.write_all(b"short").await.unwrap();
    let expected = [format!("1 data {PIECE}"), "2 data 5".to_owned(), format!("1 data {PIECE}")];
    assert_eq!(frames(&table), expected);
}

#[tokio::test]
async fn ends_and_resets_follow_the_bytes_before_them() {
    let (table, mut stream) = opened();
    stream.write_all(b"refused").await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(stream.write_all(b"more").await.is_err());
    drop(stream);
    assert_eq!(frames(&table), ["1 data 7", "1 end", "1 reset"]);

    let (table, mut stream) = opened();
    stream.write_all(b"half").await.unwrap();
    drop(stream);
    assert_eq!(frames(&table), ["1 reset"], "without an end, what came before is not the whole");

    let (table, mut stream) = opened();
    table.receive(ID, b"bye").unwrap();
    table.end(ID).unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(frames(&table), ["1 end"]);
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "bye");
    drop(stream);
    assert_eq!(frames(&table), [] as [&str; 0]);
    assert!(lock(&table.state).streams.is_empty());
}

#[tokio::test]
async fn a_stream_that_has_ended_fails_and_its_late_messages_are_dropped() {
    let (table, mut stream) = opened();
    table.receive(ID, b"x").unwrap();
    table.reset(ID).unwrap();
    assert!(stream.read_u8().await.is_err() && stream.write_all(b"x").await.is_err());
    assert_eq!((table.receive(ID, b"x"), table.add_credit(ID, 1), table.end(ID)), (Ok(()), Ok(()), Ok(())));
    assert!(table.receive(StreamId(2), b"x").is_err(), "one that was never opened");

    let (table, mut stream) = opened();
    let reading = tokio::spawn(async move { stream.read_u8().await });
    tokio::task::yield_now().await;
    table.clear();
    assert!(reading.await.unwrap().is_err(), "the end of the cell wakes who waits");
    assert!(table.open(ID, &PROXY).is_err(), "an id is used once");
}

#[tokio::test]
async fn too_many_streams_are_refused_and_far_too_many_break_the_protocol() {
    let table = table_with_door();
    let mut opened = (1..).map(|id| table.open(StreamId(id), &PROXY));
    assert!(opened.by_ref().take(MAX_STREAMS).all(|one| one == Ok(true)));
    assert!(opened.by_ref().take(MAX_STREAMS).all(|one| one == Ok(false)));
    assert!(opened.next().unwrap().is_err());
    assert_eq!(frames(&table).len(), MAX_STREAMS);
    assert!(StreamTable::new(None).open(ID, &PROXY).is_err(), "a door that was not asked for");
}

#[tokio::test]
async fn a_reset_stream_keeps_its_place_while_it_is_served() {
    let table = table_with_door();
    let served: Vec<GuestStream> = (1..=MAX_STREAMS as u64)
        .map(|id| {
            assert_eq!(table.open(StreamId(id), &PROXY), Ok(true));
            let stream = table.take(StreamId(id)).unwrap();
            table.reset(StreamId(id)).unwrap();
            stream
        })
        .collect();
    // Code that goes on opening and resetting them gets no more, and breaks no protocol.
    let further = MAX_STREAMS as u64 + 1..;
    for id in further.clone().take(3 * MAX_STREAMS) {
        assert_eq!(table.open(StreamId(id), &PROXY), Ok(false));
        table.reset(StreamId(id)).unwrap();
    }
    assert_eq!(frames(&table), [] as [&str; 0]);
    drop(served);
    let opened = further.skip(3 * MAX_STREAMS).take(MAX_STREAMS).map(|id| table.open(StreamId(id), &PROXY));
    assert!(opened.into_iter().all(|one| one == Ok(true)));
    table.clear();
    assert_eq!(table.places.available_permits(), MAX_STREAMS, "streams that no task has taken");
}

#[tokio::test]
async fn the_end_of_a_stream_ends_what_waits_for_another_thing() {
    let ends: [fn(&StreamTable); 2] = [|table| table.reset(ID).unwrap(), StreamTable::clear];
    for end in ends {
        let (table, mut stream) = opened();
        let ended = stream.take_end();
        let serving = tokio::spawn(async move {
            ended.await;
            drop(stream);
        });
        tokio::task::yield_now().await;
        assert!(!serving.is_finished());
        end(&table);
        serving.await.unwrap();
        assert_eq!(table.places.available_permits(), MAX_STREAMS);
    }
    // An end of both directions is none of the work: the task still has bytes to read.
    let (table, mut stream) = opened();
    let ended = stream.take_end();
    table.end(ID).unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(frames(&table), ["1 end"]);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(1), ended).await.is_err());
}

#[test]
fn streams_to_names_need_the_name_door_and_a_name() {
    let named = |host: &str| StreamDoor::Name { host: host.to_owned(), port: 443 };
    let table = table_with_door();
    assert!(table.open(ID, &named("a.test")).is_err(), "the runner has no such door");
    table.allow_name_door();
    for host in ["", "A.test", "a.test.", "a b", "evil\0.test", &"a.".repeat(150), &"a".repeat(300)] {
        assert!(table.open(ID, &named(host)).is_err(), "{host:?}");
    }
    assert!(table.open(ID, &StreamDoor::Name { host: "a.test".into(), port: 0 }).is_err());
    assert_eq!(table.open(ID, &named("a.test")), Ok(true));
    assert_eq!(table.take(ID).unwrap().door(), &named("a.test"));
}
