//! The code that `cove run` was given, loaded and checked before anything is started.

use std::io::Read;
use std::path::{Path, PathBuf};

use cove_protocol::Language;
use cove_protocol::limits::{MAX_CODE, MAX_META};

use crate::config::Surroundings;
use crate::error::{Error, shown};

/// What `cove run` runs: cells of one session, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunArgs {
    /// At least one.
    pub cells: Vec<CellSource>,
    pub language: Language,
    pub json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellSource {
    /// What tracebacks call it: the file as it was named, or `<cell 1>`.
    pub name: String,
    /// No NUL byte, at most `MAX_CODE` bytes.
    pub code: String,
    /// The arguments that the code sees after its name.
    pub args: Vec<String>,
}

/// What the command line says about code.
pub(super) struct Asked {
    pub(super) file: Option<PathBuf>,
    pub(super) codes: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) language: Option<String>,
}

/// They travel with the name in the small part of a message, escaped; half of it leaves room for both.
const MAX_ARGS: usize = MAX_META / 2;

const EXTENSIONS: [(&str, Language); 6] = [
    ("py", Language::Python),
    ("js", Language::Node),
    ("mjs", Language::Node),
    ("cjs", Language::Node),
    ("bash", Language::Bash),
    ("sh", Language::Sh),
];

pub(super) fn load(asked: Asked, json: bool, around: &Surroundings) -> Result<RunArgs, Error> {
    let sources = match (&asked.file, asked.codes.as_slice()) {
        (Some(file), []) => vec![(file.to_string_lossy().into_owned(), read(file, around)?)],
        (None, [_, ..]) => cells(asked.codes)?,
        (Some(file), _) => {
            let file = shown(&file.to_string_lossy());
            return Err(Error::usage(format!("could not choose between `{file}` and `-c`"))
                .with_hint("name a file, or pass code with `-c`, not both"));
        }
        (None, []) => {
            return Err(Error::usage("could not find code to run").with_hint(
                "name a file as in `cove run hello.py`, or pass code as in `cove run -c 'print(1)'`",
            ));
        }
    };
    let language = language(asked.language, asked.file.as_deref(), around)?;
    check_args(&asked.args)?;
    let args = asked.args;
    let cells =
        sources.into_iter().map(|(name, code)| CellSource { name, code, args: args.clone() }).collect();
    Ok(RunArgs { cells, language, json })
}

fn cells(codes: Vec<String>) -> Result<Vec<(String, String)>, Error> {
    let cell = |(index, code): (usize, String)| {
        let refused = || Error::usage(format!("could not read the code of `-c` number {}", index + 1));
        check(code.into_bytes(), refused).map(|code| (format!("<cell {}>", index + 1), code))
    };
    codes.into_iter().enumerate().map(cell).collect()
}

fn read(file: &Path, around: &Surroundings) -> Result<String, Error> {
    let refused = || Error::usage(format!("could not read code from `{}`", shown(&file.to_string_lossy())));
    if file == Path::new("-") {
        return Err(refused()
            .because("standard input belongs to the code")
            .with_hint("name a file (`./-` if that is its name), or pass code with `-c`"));
    }
    let unreadable =
        |error| refused().because(error).with_hint("name a file that can be read, or pass code with `-c`");
    let mut code = Vec::new();
    // One byte more than is allowed tells that there is too much, however large the file is.
    let limit = MAX_CODE as u64 + 1;
    std::fs::File::open(around.cwd.join(file))
        .and_then(|opened| opened.take(limit).read_to_end(&mut code))
        .map_err(unreadable)?;
    // Some editors begin a file with a mark that python skips in files, but not in text.
    if code.starts_with("\u{feff}".as_bytes()) {
        code.drain(.."\u{feff}".len());
    }
    check(code, refused)
}

pub(super) fn check(code: Vec<u8>, refused: impl Fn() -> Error) -> Result<String, Error> {
    if code.len() > MAX_CODE {
        return Err(refused().because(format!("it has more than {MAX_CODE} bytes")).with_hint(
            "code may have at most 1 MiB; keep data in a file of its own and show it with `--mount`",
        ));
    }
    let hint = "code is UTF-8 text without NUL bytes";
    let code = String::from_utf8(code).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        refused().because(format!("the byte at offset {offset} is not UTF-8")).with_hint(hint)
    })?;
    match code.find('\0') {
        Some(offset) => {
            Err(refused().because(format!("there is a NUL byte at offset {offset}")).with_hint(hint))
        }
        None => Ok(code),
    }
}

fn check_args(args: &[String]) -> Result<(), Error> {
    let size = serde_json::to_vec(args).map_or(usize::MAX, |text| text.len());
    if size <= MAX_ARGS {
        return Ok(());
    }
    Err(Error::usage("could not pass the arguments to the code")
        .because(format!("they have {size} bytes as JSON"))
        .with_hint(format!(
            "at most {MAX_ARGS} are allowed; pass data on standard input, or show a file with `--mount`"
        )))
}

/// As asked; else as the file's extension says; else python.
pub(super) fn language(
    flag: Option<String>,
    file: Option<&Path>,
    around: &Surroundings,
) -> Result<Language, Error> {
    let (text, written) = match (flag, around.var("COVE_LANGUAGE")?) {
        (Some(text), _) => (text.clone(), format!("--language {}", shown(&text))),
        (None, Some(text)) => (text.to_owned(), format!("COVE_LANGUAGE={}", shown(text))),
        (None, None) => {
            let extension = file.and_then(Path::extension);
            let known = EXTENSIONS.iter().find(|(name, _)| extension.is_some_and(|found| found == *name));
            return Ok(known.map_or(Language::Python, |(_, language)| *language));
        }
    };
    text.parse().map_err(|_| {
        let allowed: Vec<String> = Language::ALL.iter().map(|language| format!("`{language}`")).collect();
        Error::usage(format!("could not read `{written}`"))
            .because(format!("`{}` is not a language that cells can have", shown(&text)))
            .with_hint(format!("write {}", allowed.join(" or ")))
    })
}
