//! What the runner and a shim say to each other over descriptor 3: `length:u32be tag:u8 body`, compact enough to be
//! spoken by an interpreter that has loaded none of its library yet. The shim is hostile, as is all code inside.

use cove_protocol::ImageFormat;
use cove_protocol::limits::{MAX_EXCEPTION, MAX_IMAGE};

/// Longer than anything a shim has to say; an image is the longest.
const MAX_FROM_SHIM: usize = MAX_IMAGE + 64;

/// A cell for the shim to run.
pub(crate) fn run(name: &str, code: &[u8], args: &[String]) -> Vec<u8> {
    let mut body = Vec::with_capacity(code.len() + 64);
    string(&mut body, name.as_bytes());
    string(&mut body, code);
    body.extend((args.len() as u32).to_be_bytes());
    for arg in args {
        string(&mut body, arg.as_bytes());
    }
    message(b'R', &body)
}

/// A cell for a shim in a shell, which cannot read binary frames but can read lines and count bytes: two lines, `<bytes>
/// <mark>` and then that many bytes. They are name, code and arguments as single-quoted words, with the mark for every
/// newline inside, and a newline at the end. The mark is a control character that occurs in none of them; nothing if
/// every one of them occurs, which no text has a reason for.
pub(crate) fn run_in_shell(name: &str, code: &[u8], args: &[String]) -> Option<Vec<u8>> {
    let words: Vec<&[u8]> =
        [name.as_bytes(), code].into_iter().chain(args.iter().map(|arg| arg.as_bytes())).collect();
    let is_free = |mark: &u8| !b"\t\n\r\x01".contains(mark) && !words.iter().any(|word| word.contains(mark));
    let mark = (1..0x1f).rev().find(is_free)?;
    let mut body = Vec::with_capacity(code.len() + 64);
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
    out.extend([mark, b'\n']);
    out.extend(body);
    Some(out)
}

/// The text of a part of the shim that it asked for.
pub(crate) fn part(text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    string(&mut body, text.as_bytes());
    message(b'L', &body)
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 5);
    out.extend((body.len() as u32 + 1).to_be_bytes());
    out.push(tag);
    out.extend(body);
    out
}

fn string(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as u32).to_be_bytes());
    body.extend(bytes);
}

/// What a shim said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromShim {
    /// It needs a part of itself by name.
    Load(String),
    /// A shell that had to end lives on in another process, with all its state.
    Moved {
        process: i32,
    },
    Image {
        format: ImageFormat,
        bytes: Vec<u8>,
    },
    Completed,
    Raised {
        exception: String,
        message: String,
    },
    Exited(i32),
    Interrupted,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShimError {
    #[error("the interpreter sent a message of {0} bytes, more than it may")]
    TooLong(usize),
    #[error("the interpreter sent a message that makes no sense")]
    Nonsense,
}

/// Takes the next whole message off the front of `buffer`, if there is one.
pub(crate) fn take(buffer: &mut Vec<u8>) -> Result<Option<FromShim>, ShimError> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_FROM_SHIM {
        return Err(ShimError::TooLong(length));
    }
    if buffer.len() < 4 + length {
        return Ok(None);
    }
    let parsed = parse(&buffer[4..4 + length]).ok_or(ShimError::Nonsense)?;
    buffer.drain(..4 + length);
    Ok(Some(parsed))
}

fn parse(message: &[u8]) -> Option<FromShim> {
    let (&tag, mut body) = message.split_first()?;
    let said = match tag {
        b'L' => FromShim::Load(take_string(&mut body)?),
        b'P' => {
            let (process, rest) = body.split_first_chunk::<4>()?;
            body = rest;
            FromShim::Moved { process: i32::try_from(u32::from_be_bytes(*process)).ok()? }
        }
        b'I' => {
            let (&format, bytes) = body.split_first()?;
            body = &[];
            let format = match format {
                b'p' => ImageFormat::Png,
                b'j' => ImageFormat::Jpeg,
                b'g' => ImageFormat::Gif,
                b'w' => ImageFormat::Webp,
                _ => return None,
            };
            FromShim::Image { format, bytes: bytes.to_vec() }
        }
        b'D' => {
            let (&kind, rest) = body.split_first()?;
            body = rest;
            match kind {
                b'c' => FromShim::Completed,
                b'i' => FromShim::Interrupted,
                b'r' => {
                    FromShim::Raised { exception: take_string(&mut body)?, message: take_string(&mut body)? }
                }
                b'x' => {
                    let (code, rest) = body.split_first_chunk::<4>()?;
                    body = rest;
                    FromShim::Exited(i32::from_be_bytes(*code))
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    body.is_empty().then_some(said)
}

/// Text from the guest: made valid and cut to what the protocol allows.
fn take_string(body: &mut &[u8]) -> Option<String> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *body = rest;
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
    fn messages_of_a_shim() {
        check(b"", Ok(None));
        check(b"\0\0\0\x02D", Ok(None));
        check(b"\0\0\0\x02Dc", Ok(Some(FromShim::Completed)));
        check(b"\0\0\0\x02Di\0\0", Ok(Some(FromShim::Interrupted)));
        check(b"\0\0\0\x06Dx\0\0\0\x03", Ok(Some(FromShim::Exited(3))));
        check(b"\0\0\0\x05P\0\0\x01\0", Ok(Some(FromShim::Moved { process: 256 })));
        check(b"\0\0\0\x09L\0\0\0\x04late", Ok(Some(FromShim::Load("late".into()))));
        let raised = FromShim::Raised { exception: "E".into(), message: "m\u{fffd}".into() };
        check(b"\0\0\0\x0dDr\0\0\0\x01E\0\0\0\x02m\xff", Ok(Some(raised)));
    }

    #[test]
    fn nonsense_of_a_shim() {
        check(b"\xff\xff\xff\xff", Err(ShimError::TooLong(0xffff_ffff)));
        check(b"\0\0\0\0", Err(ShimError::Nonsense));
        check(b"\0\0\0\x05P\xff\0\0\0", Err(ShimError::Nonsense));
        check(b"\0\0\0\x01Z", Err(ShimError::Nonsense));
        check(b"\0\0\0\x02Dq", Err(ShimError::Nonsense));
        check(b"\0\0\0\x03Dc!", Err(ShimError::Nonsense));
        check(b"\0\0\0\x05L\xff\xff\xff\xff", Err(ShimError::Nonsense));
        check(b"\0\0\0\x04Dx\0\0", Err(ShimError::Nonsense));
    }

    #[test]
    fn a_shell_gets_lines_that_it_can_take_apart() {
        let sent = run_in_shell("<cell>", b"echo 'a'\necho b", &["x y".into()]).unwrap();
        assert_eq!(sent, b"39 \x1e\n'<cell>' 'echo '\\''a'\\''\x1eecho b' 'x y'\n");
        let taken = run_in_shell("n", b"\x1e\n", &[]).unwrap();
        assert_eq!(taken, b"9 \x1d\n'n' '\x1e\x1d'\n");
        let all: Vec<u8> = (1..0x20).collect();
        assert_eq!(run_in_shell("n", &all, &[]), None);
    }

    #[test]
    fn long_text_is_cut_on_a_character() {
        let text = "é".repeat(MAX_EXCEPTION);
        let mut bytes = message(b'L', &[]);
        bytes.truncate(0);
        let mut body = Vec::new();
        string(&mut body, text.as_bytes());
        bytes.extend(message(b'L', &body));
        let Ok(Some(FromShim::Load(cut))) = take(&mut bytes) else { panic!("not a load") };
        assert_eq!(cut.len(), MAX_EXCEPTION);
    }
}
