//! The frames between the runner and a shim, over descriptor 3: `length:u32be tag:u8 body`. They are simple enough for
//! an interpreter that has loaded none of its library yet. The shim is hostile, like all code inside.
//!
//! | tag | direction | body |
//! |-----|-----------|------|
//! | `R` | to the shim | a cell: name, code, number of arguments, arguments |
//! | `Q` | to the shim | a question about code: one byte for its kind, then the code |
//! | `A` | from the shim | the answer to that question |
//! | `L` | from the shim | asks for a part of the shim, by name |
//! | `L` | to the shim | the text of that part; answers come in the order of requests |
//! | `P` | from the shim | a shell has moved to this process |
//! | `S` | from the shim | the state that an `sh` leaves for the next one, before it ends |
//! | `I` | from the shim | an image: one byte for its format, then its bytes |
//! | `D` | from the shim | the cell has ended: `c` completed, `r` raised, `x` exited, `i` interrupted |
//!
//! A text is its length as `u32be` and its bytes. Shells cannot read binary frames, and get cells and questions as lines instead.
//! Nor can they count the bytes of `S`, so its length is 0 and it ends at the first NUL byte, which is in no variable.

use cove_protocol::limits::{MAX_EXCEPTION, MAX_IMAGE};
use cove_protocol::{CodeQuestion, ImageFormat};

/// The longest message of a shim, which is an image.
const MAX_FROM_SHIM: usize = MAX_IMAGE + 64;

/// Returns the frame of a cell.
pub(crate) fn encode_cell(name: &str, code: &[u8], args: &[String]) -> Vec<u8> {
    let mut body = Vec::with_capacity(code.len() + 64);
    push_text(&mut body, name.as_bytes());
    push_text(&mut body, code);
    body.extend((args.len() as u32).to_be_bytes());
    for arg in args {
        push_text(&mut body, arg.as_bytes());
    }
    frame(b'R', &body)
}

/// Returns a cell for a shim in a shell: name, code and arguments. Returns `None` if they use every control character.
pub(crate) fn encode_shell_cell(name: &str, code: &[u8], args: &[String]) -> Option<Vec<u8>> {
    let args = args.iter().map(|arg| arg.as_bytes());
    encode_shell_words([name.as_bytes(), code].into_iter().chain(args).collect(), "")
}

/// Returns a question for a shim: its letter, and the code that it is about.
pub(crate) fn encode_question(question: CodeQuestion, code: &[u8]) -> Vec<u8> {
    frame(b'Q', &[&[question_letter(question)], code].concat())
}

/// Returns a question for a shim in a shell: the script that finds the answer, the question's letter, the shell's
/// program and the code. Its first line ends in `?`. Returns `None` if they use every control character.
pub(crate) fn encode_shell_question(
    script: &str,
    question: CodeQuestion,
    program: &str,
    code: &[u8],
) -> Option<Vec<u8>> {
    encode_shell_words(vec![script.as_bytes(), &[question_letter(question)], program.as_bytes(), code], " ?")
}

fn question_letter(question: CodeQuestion) -> u8 {
    match question {
        CodeQuestion::Completeness => b'c',
        CodeQuestion::Completions => b'n',
    }
}

/// Returns the state that the `sh` before has left, as the first request to the shim of the next one. Its first line
/// is `<bytes> <lines> =`.
pub(crate) fn encode_shell_state(state: &[u8]) -> Vec<u8> {
    let lines = state.iter().filter(|&&byte| byte == b'\n').count();
    let mut out = format!("{} {lines} =\n", state.len()).into_bytes();
    out.extend(state);
    out
}

/// Returns a request to a shim in a shell, which cannot read binary frames but can read lines and count bytes.
///
/// A request is two lines: `<bytes> <mark>` and `ending`, and then that many bytes. They are the words, single-quoted,
/// with the mark in place of every newline inside, and a newline at the end. The mark is a control character that
/// occurs in none of them. Returns `None` if every control character occurs.
fn encode_shell_words(words: Vec<&[u8]>, ending: &str) -> Option<Vec<u8>> {
    let is_free = |mark: &u8| !b"\t\n\r\x01".contains(mark) && !words.iter().any(|word| word.contains(mark));
    let mark = (1..0x1f).rev().find(is_free)?;
    let mut body = Vec::with_capacity(words.iter().map(|word| word.len() + 8).sum());
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            body.push(b' ');
        }
        body.push(b'\'');
        for &byte in *word {
            match byte {
                b'\'' => body.extend(b"'\\''"),
                b'\n' => body.push(mark),
                other => body.push(other),
            }
        }
        body.push(b'\'');
    }
    body.push(b'\n');
    let mut out = format!("{} ", body.len()).into_bytes();
    out.push(mark);
    out.extend(ending.as_bytes());
    out.push(b'\n');
    out.extend(body);
    Some(out)
}

/// Returns the frame with the text of a part that the shim has asked for.
pub(crate) fn encode_part(text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    push_text(&mut body, text.as_bytes());
    frame(b'L', &body)
}

fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 5);
    out.extend((body.len() as u32 + 1).to_be_bytes());
    out.push(tag);
    out.extend(body);
    out
}

fn push_text(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as u32).to_be_bytes());
    body.extend(bytes);
}

/// A message of a shim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromShim {
    /// The shim asks for a part of itself by name.
    Load(String),
    /// A shell that had to exit lives on in another process, with all its state.
    Moved { process: i32 },
    /// An `sh` that ends after one cell leaves its state: commands for the next one.
    State(Vec<u8>),
    /// The same, of more than a message may have. What follows on the channel is the rest of it.
    LongState,
    /// The cell shows an image.
    Image { format: ImageFormat, bytes: Vec<u8> },
    /// Answers the open question.
    Answer(Vec<u8>),
    /// The cell ran to its end.
    Completed,
    /// The cell raised an exception.
    Raised { exception: String, message: String },
    /// The cell asked to exit with this status.
    Exited(i32),
    /// The cell was interrupted.
    Interrupted,
}

/// Why the bytes of a shim are no message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShimError {
    #[error("the shim sent a message of {0} bytes, at most {MAX_FROM_SHIM} are allowed")]
    TooLong(usize),
    #[error("the shim sent a message with an unknown tag or a malformed body")]
    Malformed,
}

/// Removes the next whole message from the front of `buffer` and returns it, or `None` if it is not whole yet. Fails if
/// the bytes are no message.
pub(crate) fn take(buffer: &mut Vec<u8>) -> Result<Option<FromShim>, ShimError> {
    let Some(length) = take_number(&mut buffer.as_slice()) else { return Ok(None) };
    let length = length as usize;
    if length == 0 {
        return take_state(buffer);
    }
    if length > MAX_FROM_SHIM {
        return Err(ShimError::TooLong(length));
    }
    if buffer.len() < 4 + length {
        return Ok(None);
    }
    let parsed = parse(&buffer[4..4 + length]).ok_or(ShimError::Malformed)?;
    buffer.drain(..4 + length);
    Ok(Some(parsed))
}

/// Removes the state of an `sh` from the front of `buffer` and returns it: a length of 0, the tag, and text that ends with
/// a NUL byte.
fn take_state(buffer: &mut Vec<u8>) -> Result<Option<FromShim>, ShimError> {
    match buffer.get(4) {
        None => return Ok(None),
        Some(b'S') => {}
        Some(_) => return Err(ShimError::Malformed),
    }
    match buffer[5..].iter().position(|&byte| byte == 0) {
        Some(length) if length <= MAX_FROM_SHIM => {
            let state = buffer[5..5 + length].to_vec();
            buffer.drain(..5 + length + 1);
            Ok(Some(FromShim::State(state)))
        }
        None if buffer.len() - 5 <= MAX_FROM_SHIM => Ok(None),
        Some(_) | None => {
            buffer.clear();
            Ok(Some(FromShim::LongState))
        }
    }
}

fn parse(message: &[u8]) -> Option<FromShim> {
    let mut body = message;
    let parsed = match take_letter(&mut body)? {
        b'L' => FromShim::Load(take_text(&mut body)?),
        b'P' => FromShim::Moved { process: i32::try_from(take_number(&mut body)?).ok()? },
        b'I' => {
            let format = match take_letter(&mut body)? {
                b'p' => ImageFormat::Png,
                b'j' => ImageFormat::Jpeg,
                b'g' => ImageFormat::Gif,
                b'w' => ImageFormat::Webp,
                _ => return None,
            };
            FromShim::Image { format, bytes: std::mem::take(&mut body).to_vec() }
        }
        b'A' => FromShim::Answer(std::mem::take(&mut body).to_vec()),
        b'D' => match take_letter(&mut body)? {
            b'c' => FromShim::Completed,
            b'i' => FromShim::Interrupted,
            b'r' => FromShim::Raised { exception: take_text(&mut body)?, message: take_text(&mut body)? },
            b'x' => FromShim::Exited(take_number(&mut body)? as i32),
            _ => return None,
        },
        _ => return None,
    };
    body.is_empty().then_some(parsed)
}

/// Removes one byte from the front of `body` and returns it.
fn take_letter(body: &mut &[u8]) -> Option<u8> {
    body.split_off_first().copied()
}

/// Removes a `u32be` from the front of `body` and returns it.
fn take_number(body: &mut &[u8]) -> Option<u32> {
    let (number, rest) = body.split_first_chunk::<4>()?;
    *body = rest;
    Some(u32::from_be_bytes(*number))
}

/// Removes a text from the front of `body` and returns it as valid UTF-8, cut to what the protocol allows.
fn take_text(body: &mut &[u8]) -> Option<String> {
    let length = take_number(body)? as usize;
    let text = body.split_off(..length)?;
    let mut text = String::from_utf8_lossy(text).into_owned();
    text.truncate(text.floor_char_boundary(MAX_EXCEPTION));
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: Result<Option<FromShim>, ShimError>) {
        assert_eq!(take(&mut bytes.to_vec()), expected, "{bytes:?}");
    }

    #[test]
    fn reads_messages_of_a_shim() {
        check(b"", Ok(None));
        check(b"\0\0\0\x02D", Ok(None));
        check(b"\0\0\0\x02Dc", Ok(Some(FromShim::Completed)));
        check(b"\0\0\0\x02Di\0\0", Ok(Some(FromShim::Interrupted)));
        check(b"\0\0\0\x06Dx\0\0\0\x03", Ok(Some(FromShim::Exited(3))));
        check(b"\0\0\0\x05Aopen", Ok(Some(FromShim::Answer(b"open".into()))));
        check(b"\0\0\0\x05P\0\0\x01\0", Ok(Some(FromShim::Moved { process: 256 })));
        check(b"\0\0\0\0", Ok(None));
        check(b"\0\0\0\0Sx='1", Ok(None));
        check(b"\0\0\0\0Sx='1'\n\0", Ok(Some(FromShim::State(b"x='1'\n".into()))));
        check(b"\0\0\0\x09L\0\0\0\x04cell", Ok(Some(FromShim::Load("cell".into()))));
        let raised = FromShim::Raised { exception: "E".into(), message: "m\u{fffd}".into() };
        check(b"\0\0\0\x0dDr\0\0\0\x01E\0\0\0\x02m\xff", Ok(Some(raised)));
    }

    #[test]
    fn refuses_malformed_messages_of_a_shim() {
        check(b"\xff\xff\xff\xff", Err(ShimError::TooLong(0xffff_ffff)));
        check(b"\0\0\0\0Dc", Err(ShimError::Malformed));
        let endless = [&b"\0\0\0\0S"[..], &vec![b'x'; MAX_FROM_SHIM + 1]].concat();
        check(&endless, Ok(Some(FromShim::LongState)));
        check(b"\0\0\0\x05P\xff\0\0\0", Err(ShimError::Malformed));
        check(b"\0\0\0\x01Z", Err(ShimError::Malformed));
        check(b"\0\0\0\x02Dq", Err(ShimError::Malformed));
        check(b"\0\0\0\x03Dc!", Err(ShimError::Malformed));
        check(b"\0\0\0\x05L\xff\xff\xff\xff", Err(ShimError::Malformed));
        check(b"\0\0\0\x04Dx\0\0", Err(ShimError::Malformed));
    }

    #[test]
    fn encodes_cells_for_a_shell_as_lines() {
        let sent = encode_shell_cell("<cell>", b"echo 'a'\necho b", &["x y".into()]).unwrap();
        assert_eq!(sent, b"39 \x1e\n'<cell>' 'echo '\\''a'\\''\x1eecho b' 'x y'\n");
        let asked = encode_shell_question("say", CodeQuestion::Completeness, "/bin/sh", b"if\n").unwrap();
        assert_eq!(asked, b"26 \x1e ?\n'say' 'c' '/bin/sh' 'if\x1e'\n");
        assert_eq!(encode_shell_state(b"x='\x1e\n'\n"), b"7 2 =\nx='\x1e\n'\n");
        let taken = encode_shell_cell("n", b"\x1e\n", &[]).unwrap();
        assert_eq!(taken, b"9 \x1d\n'n' '\x1e\x1d'\n");
        let all: Vec<u8> = (1..0x20).collect();
        assert_eq!(encode_shell_cell("n", &all, &[]), None);
    }

    #[test]
    fn cuts_long_text_between_characters() {
        let text = "é".repeat(MAX_EXCEPTION);
        let mut bytes = frame(b'L', &[]);
        bytes.truncate(0);
        let mut body = Vec::new();
        push_text(&mut body, text.as_bytes());
        bytes.extend(frame(b'L', &body));
        let Ok(Some(FromShim::Load(cut))) = take(&mut bytes) else { panic!("not a load") };
        assert_eq!(cut.len(), MAX_EXCEPTION);
    }
}
