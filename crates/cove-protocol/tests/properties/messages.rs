//! Strategies for any message, with any payload that it may carry.

use cove_protocol::{
    CallId, CellId, CellOutcome, CodeCell, CodeQuestion, FileEntry, FileKind, FileProblem, FromRunner, HostHello,
    ImageFormat, InterpreterPath, Language, NetworkSetup, OutputStream, ProgramCell, ReachableName, RequestId,
    ResumePoint, RunnerReady, StdinSource, StreamDoor, StreamId, ToRunner,
};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Text with every kind of character that JSON must escape. Cheaper than a strategy from a regular expression.
fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..12).prop_map(String::from_iter)
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn cell() -> impl Strategy<Value = CellId> {
    any::<u64>().prop_map(CellId)
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn call() -> impl Strategy<Value = CallId> {
    any::<u64>().prop_map(CallId)
}

fn stream_id() -> impl Strategy<Value = StreamId> {
    any::<u64>().prop_map(StreamId)
}

fn file_kind() -> impl Strategy<Value = FileKind> {
    use FileKind::*;
    select(&[File, Folder, Link, Fifo, Socket, Device][..])
}

fn problem() -> impl Strategy<Value = FileProblem> {
    prop_oneof![
        select(&[FileProblem::NotFound {}, FileProblem::NotAFolder {}, FileProblem::Outside {}][..]),
        select(&[FileProblem::NoSpace {}, FileProblem::Denied {}][..]),
        file_kind().prop_map(|kind| FileProblem::NotAFile { kind }),
        text().prop_map(|reason| FileProblem::BadPath { reason }),
        any::<(u64, u64)>().prop_map(|(size, most)| FileProblem::TooLarge { size, most }),
        text().prop_map(|message| FileProblem::Other { message }),
    ]
}

fn language() -> impl Strategy<Value = Language> {
    select(&Language::ALL[..])
}

fn interpreter() -> impl Strategy<Value = InterpreterPath> {
    (language(), text()).prop_map(|(language, program)| InterpreterPath { language, program })
}

fn without<M>(message: M) -> (M, Vec<u8>) {
    (message, Vec::new())
}

fn network() -> impl Strategy<Value = NetworkSetup> {
    let name = (text(), prop::collection::vec(any::<u16>(), 0..3))
        .prop_map(|(pattern, ports)| ReachableName { pattern, ports });
    let variables = prop::collection::vec((text(), text()), 0..3);
    (prop::collection::vec(name, 0..3), option::of(text()), variables)
        .prop_map(|(names, authority, variables)| NetworkSetup { names, authority, variables })
}

fn door() -> impl Strategy<Value = StreamDoor> {
    prop_oneof![
        Just(StreamDoor::Proxy {}),
        (text(), any::<u16>()).prop_map(|(host, port)| StreamDoor::Name { host, port }),
    ]
}

/// An `Output` message that its number tells apart from others.
pub(crate) fn output(offset: u64) -> (FromRunner, Vec<u8>) {
    without(FromRunner::Output { cell: CellId(1), stream: OutputStream::Stdout, offset })
}

pub(crate) fn to_runner() -> impl Strategy<Value = (ToRunner, Vec<u8>)> {
    let hello = (
        any::<u32>(),
        select(&[StdinSource::Empty, StdinSource::Host][..]),
        prop::collection::vec(interpreter(), 0..3),
        option::of(language()),
        option::of(network()),
        option::of(any::<u64>().prop_map(|received| ResumePoint { received })),
    )
        .prop_map(|(version, stdin, interpreters, warm, network, resume)| {
            without(ToRunner::Hello(HostHello { version, stdin, interpreters, warm, network, resume }))
        });
    let run = (cell(), language(), text(), prop::collection::vec(text(), 0..3), payload())
        .prop_map(|(cell, language, name, args, code)| (ToRunner::Run(CodeCell { cell, language, name, args }), code));
    let start = (cell(), prop::collection::vec(text(), 0..4), option::of(text()))
        .prop_map(|(cell, command, directory)| without(ToRunner::Start(ProgramCell { cell, command, directory })));
    let question = select(&[CodeQuestion::Completeness, CodeQuestion::Completions][..]);
    let ask = (request(), language(), question, payload())
        .prop_map(|(request, language, question, code)| (ToRunner::Ask { request, language, question }, code));
    prop_oneof![
        hello,
        run,
        ask,
        start,
        cell().prop_map(|cell| without(ToRunner::Interrupt { cell })),
        cell().prop_map(|cell| without(ToRunner::Kill { cell })),
        (any::<bool>(), payload()).prop_map(|(end, payload)| (ToRunner::Input { end }, payload)),
        any::<(u64, u64)>().prop_map(|(nonce, received)| without(ToRunner::Ping { nonce, received })),
        (request(), text(), payload()).prop_map(|(request, path, bytes)| (ToRunner::Put { request, path }, bytes)),
        (request(), text(), any::<u64>()).prop_map(|(request, path, most)| without(ToRunner::Get {
            request,
            path,
            most
        })),
        (request(), text()).prop_map(|(request, path)| without(ToRunner::List { request, path })),
        (call(), payload()).prop_map(|(call, bytes)| (ToRunner::Reply { call }, bytes)),
        (stream_id(), payload()).prop_map(|(stream, bytes)| (ToRunner::StreamData { stream }, bytes)),
        (stream_id(), any::<u32>()).prop_map(|(stream, bytes)| without(ToRunner::StreamCredit { stream, bytes })),
        stream_id().prop_map(|stream| without(ToRunner::EndStream { stream })),
        stream_id().prop_map(|stream| without(ToRunner::ResetStream { stream })),
        Just(without(ToRunner::Bye {})),
    ]
}

fn outcome() -> impl Strategy<Value = CellOutcome> {
    prop_oneof![
        Just(CellOutcome::Completed {}),
        (text(), text()).prop_map(|(exception, message)| CellOutcome::Raised { exception, message }),
        any::<i32>().prop_map(|code| CellOutcome::Exited { code }),
        Just(CellOutcome::Interrupted {}),
        any::<i32>().prop_map(|code| CellOutcome::InterpreterExited { code }),
        (any::<i32>(), option::of(any::<bool>()))
            .prop_map(|(signal, out_of_memory)| CellOutcome::InterpreterKilled { signal, out_of_memory }),
        text().prop_map(|reason| CellOutcome::Unavailable { reason }),
    ]
}

pub(crate) fn from_runner() -> impl Strategy<Value = (FromRunner, Vec<u8>)> {
    let port = option::of(any::<u16>());
    let ready = (any::<u32>(), prop::collection::vec(interpreter(), 0..3), any::<u64>(), port, any::<bool>()).prop_map(
        |(version, interpreters, received, proxy_port, name_door)| {
            without(FromRunner::Ready(RunnerReady { version, interpreters, received, proxy_port, name_door }))
        },
    );
    let stream = select(&[OutputStream::Stdout, OutputStream::Stderr][..]);
    let output = (cell(), stream, any::<u64>(), payload())
        .prop_map(|(cell, stream, offset, payload)| (FromRunner::Output { cell, stream, offset }, payload));
    let memory_kill = cell().prop_map(|cell| without(FromRunner::MemoryKill { cell }));
    let done = (cell(), outcome(), any::<bool>())
        .prop_map(|(cell, outcome, fresh)| without(FromRunner::Done { cell, outcome, fresh }));
    let format = select(&[ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::Webp][..]);
    let image =
        (cell(), format, payload()).prop_map(|(cell, format, payload)| (FromRunner::Image { cell, format }, payload));
    let entry = (text(), file_kind(), any::<u64>()).prop_map(|(name, kind, size)| FileEntry { name, kind, size });
    let listing = (request(), prop::collection::vec(entry, 0..4), any::<u64>())
        .prop_map(|(request, entries, left_out)| without(FromRunner::Listing { request, entries, left_out }));
    prop_oneof![
        ready,
        output,
        Just(without(FromRunner::NeedInput {})),
        memory_kill,
        done,
        (request(), payload()).prop_map(|(request, bytes)| (FromRunner::Answer { request }, bytes)),
        any::<(u64, u64)>().prop_map(|(nonce, received)| without(FromRunner::Pong { nonce, received })),
        text().prop_map(|message| without(FromRunner::Fault { message })),
        (any::<u64>(), text()).prop_map(|(bytes, message)| without(FromRunner::NoCertificates { bytes, message })),
        image,
        any::<(u64, u64)>()
            .prop_map(|(request, bytes)| without(FromRunner::Stored { request: RequestId(request), bytes })),
        (request(), payload()).prop_map(|(request, bytes)| (FromRunner::File { request }, bytes)),
        listing,
        (request(), problem()).prop_map(|(request, problem)| without(FromRunner::Refused { request, problem })),
        (cell(), call(), payload()).prop_map(|(cell, call, bytes)| (FromRunner::Call { cell, call }, bytes)),
        call().prop_map(|call| without(FromRunner::Forget { call })),
        call().prop_map(|call| without(FromRunner::Taken { call })),
        (cell(), stream_id(), door()).prop_map(|(cell, stream, door)| without(FromRunner::OpenStream {
            cell,
            stream,
            door
        })),
        (cell(), text()).prop_map(|(cell, name)| without(FromRunner::UnknownName { cell, name })),
        (cell(), any::<u64>()).prop_map(|(cell, count)| without(FromRunner::MoreUnknownNames { cell, count })),
        (stream_id(), payload()).prop_map(|(stream, bytes)| (FromRunner::StreamData { stream }, bytes)),
        (stream_id(), any::<u32>()).prop_map(|(stream, bytes)| without(FromRunner::StreamCredit { stream, bytes })),
        stream_id().prop_map(|stream| without(FromRunner::EndStream { stream })),
        stream_id().prop_map(|stream| without(FromRunner::ResetStream { stream })),
    ]
}
