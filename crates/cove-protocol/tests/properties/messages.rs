//! Any message with any payload that it may carry.

use cove_protocol::{
    CallId, CellId, Entry, FileKind, FromRunner, Hello, ImageFormat, Interpreter, Language, Outcome, Problem,
    Ready, RequestId, Resume, Run, Start, Stdin, Stream, ToRunner,
};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Every kind of character that JSON must escape, and none of the cost of a regular expression.
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

fn file_kind() -> impl Strategy<Value = FileKind> {
    use FileKind::*;
    select(&[File, Folder, Link, Fifo, Socket, Device][..])
}

fn problem() -> impl Strategy<Value = Problem> {
    prop_oneof![
        select(&[Problem::NotFound {}, Problem::NotAFolder {}, Problem::Outside {}][..]),
        select(&[Problem::NoSpace {}, Problem::Denied {}][..]),
        file_kind().prop_map(|kind| Problem::NotAFile { kind }),
        text().prop_map(|reason| Problem::BadPath { reason }),
        any::<(u64, u64)>().prop_map(|(size, most)| Problem::TooLarge { size, most }),
        text().prop_map(|message| Problem::Other { message }),
    ]
}

fn language() -> impl Strategy<Value = Language> {
    select(&Language::ALL[..])
}

fn interpreter() -> impl Strategy<Value = Interpreter> {
    (language(), text()).prop_map(|(language, program)| Interpreter { language, program })
}

fn without<M>(message: M) -> (M, Vec<u8>) {
    (message, Vec::new())
}

/// A message like any other, told apart by its number.
pub(crate) fn output(offset: u64) -> (FromRunner, Vec<u8>) {
    without(FromRunner::Output { cell: CellId(1), stream: Stream::Stdout, offset })
}

pub(crate) fn to_runner() -> impl Strategy<Value = (ToRunner, Vec<u8>)> {
    let hello = (
        any::<u32>(),
        select(&[Stdin::Empty, Stdin::Host][..]),
        prop::collection::vec(interpreter(), 0..3),
        option::of(language()),
        option::of(any::<u64>().prop_map(|received| Resume { received })),
    )
        .prop_map(|(version, stdin, interpreters, warm, resume)| {
            without(ToRunner::Hello(Hello { version, stdin, interpreters, warm, resume }))
        });
    let run = (cell(), language(), text(), prop::collection::vec(text(), 0..3), payload()).prop_map(
        |(cell, language, name, args, code)| (ToRunner::Run(Run { cell, language, name, args }), code),
    );
    let start = (cell(), prop::collection::vec(text(), 0..4), option::of(text()))
        .prop_map(|(cell, command, directory)| without(ToRunner::Start(Start { cell, command, directory })));
    prop_oneof![
        hello,
        run,
        start,
        cell().prop_map(|cell| without(ToRunner::Interrupt { cell })),
        cell().prop_map(|cell| without(ToRunner::Kill { cell })),
        (any::<bool>(), payload()).prop_map(|(end, payload)| (ToRunner::Input { end }, payload)),
        any::<(u64, u64)>().prop_map(|(nonce, received)| without(ToRunner::Ping { nonce, received })),
        (request(), text(), payload())
            .prop_map(|(request, path, bytes)| (ToRunner::Put { request, path }, bytes)),
        (request(), text(), any::<u64>()).prop_map(|(request, path, most)| without(ToRunner::Get {
            request,
            path,
            most
        })),
        (request(), text()).prop_map(|(request, path)| without(ToRunner::List { request, path })),
        (call(), payload()).prop_map(|(call, bytes)| (ToRunner::Reply { call }, bytes)),
        Just(without(ToRunner::Bye {})),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Completed {}),
        (text(), text()).prop_map(|(exception, message)| Outcome::Raised { exception, message }),
        any::<i32>().prop_map(|code| Outcome::Exited { code }),
        Just(Outcome::Interrupted {}),
        any::<i32>().prop_map(|code| Outcome::InterpreterExited { code }),
        (any::<i32>(), option::of(any::<bool>()))
            .prop_map(|(signal, out_of_memory)| Outcome::InterpreterKilled { signal, out_of_memory }),
        text().prop_map(|reason| Outcome::Unavailable { reason }),
    ]
}

pub(crate) fn from_runner() -> impl Strategy<Value = (FromRunner, Vec<u8>)> {
    let ready = (any::<u32>(), prop::collection::vec(interpreter(), 0..3), any::<u64>()).prop_map(
        |(version, interpreters, received)| {
            without(FromRunner::Ready(Ready { version, interpreters, received }))
        },
    );
    let stream = select(&[Stream::Stdout, Stream::Stderr][..]);
    let output = (cell(), stream, any::<u64>(), payload())
        .prop_map(|(cell, stream, offset, payload)| (FromRunner::Output { cell, stream, offset }, payload));
    let done = (cell(), outcome(), any::<bool>())
        .prop_map(|(cell, outcome, fresh)| without(FromRunner::Done { cell, outcome, fresh }));
    let format = select(&[ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::Webp][..]);
    let image = (cell(), format, payload())
        .prop_map(|(cell, format, payload)| (FromRunner::Image { cell, format }, payload));
    let entry = (text(), file_kind(), any::<u64>()).prop_map(|(name, kind, size)| Entry { name, kind, size });
    let listing = (request(), prop::collection::vec(entry, 0..4), any::<u64>())
        .prop_map(|(request, entries, left_out)| without(FromRunner::Listing { request, entries, left_out }));
    prop_oneof![
        ready,
        output,
        Just(without(FromRunner::NeedInput {})),
        done,
        any::<(u64, u64)>().prop_map(|(nonce, received)| without(FromRunner::Pong { nonce, received })),
        text().prop_map(|message| without(FromRunner::Fault { message })),
        image,
        any::<(u64, u64)>()
            .prop_map(|(request, bytes)| without(FromRunner::Stored { request: RequestId(request), bytes })),
        (request(), payload()).prop_map(|(request, bytes)| (FromRunner::File { request }, bytes)),
        listing,
        (request(), problem())
            .prop_map(|(request, problem)| without(FromRunner::Refused { request, problem })),
        (cell(), call(), payload()).prop_map(|(cell, call, bytes)| (FromRunner::Call { cell, call }, bytes)),
        call().prop_map(|call| without(FromRunner::Forget { call })),
        call().prop_map(|call| without(FromRunner::Taken { call })),
    ]
}
