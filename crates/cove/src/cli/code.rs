//! Loads and checks the code of `cove run` before anything starts.

use std::io::Read;
use std::path::{Path, PathBuf};

use cove_protocol::Language;
use cove_protocol::limits::{MAX_CODE, MAX_META};

use super::{call_settings, json_flag};
use cove_core::error::{Failure, display_value};
use cove_core::keyword::alternatives;
use cove_core::process_env::ProcessEnv;
use cove_server::code_text::is_typescript;

/// The work of `cove run`: cells of one session, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunArgs {
    /// At least one, unless the code comes from standard input.
    pub cells: Vec<CellSource>,
    pub language: Language,
    /// The name and the arguments of a cell that is read from standard input, if there is one to read.
    pub stdin: Option<(String, Vec<String>)>,
    /// The script whose folder is shown.
    pub script: Option<PathBuf>,
    /// Where files that the code writes are kept.
    pub out: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellSource {
    /// The name in tracebacks: the file as the user wrote it, or `<cell 1>`.
    pub name: String,
    /// No NUL byte, at most `MAX_CODE` bytes.
    pub code: String,
    /// The arguments that the code sees after its name.
    pub args: Vec<String>,
}

/// Run code in the sandbox that agents get
#[derive(clap::Args)]
#[command(arg = json_flag("Print one JSON object for each cell"), args = call_settings())]
pub(super) struct CodeArgs {
    /// File with the code of one cell; `-` or nothing reads standard input
    file: Option<PathBuf>,
    /// Arguments that the code sees; put `--` before those that begin with a dash
    #[arg(value_name = "ARG", num_args = 0..)]
    plain_args: Vec<String>,
    /// Code of one cell; several share one session
    #[arg(short, allow_hyphen_values = true)]
    code: Vec<String>,
    /// Language of the code
    /// [env: COVE_LANGUAGE] [default: by FILE's extension, else python]
    #[arg(short, long, overrides_with = "language", verbatim_doc_comment)]
    language: Option<String>,
    /// Do not show the code the folder of FILE
    #[arg(long)]
    no_folder: bool,
    /// Keep files that the code writes to its working directory in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Arguments that the code sees
    #[arg(last = true, num_args = 0.., hide = true)]
    args: Vec<String>,
}

/// Arguments and name travel escaped in the metadata of one message; half of its limit leaves room for both.
const MAX_ARGS: usize = MAX_META / 2;

const EXTENSIONS: [(&str, Language); 7] = [
    ("py", Language::Python),
    ("js", Language::Node),
    ("mjs", Language::Node),
    ("cjs", Language::Node),
    // The shim removes the types, by the name of the cell.
    ("ts", Language::Node),
    ("bash", Language::Bash),
    ("sh", Language::Sh),
];

pub(super) fn load_code(given: CodeArgs, env: &ProcessEnv) -> Result<RunArgs, Failure> {
    let reads_stdin = match &given.file {
        Some(file) => file == Path::new("-"),
        None => given.code.is_empty() && !env.stdin_is_terminal,
    };
    let file = given.file.filter(|_| !reads_stdin);
    let sources = match (&file, given.code.as_slice()) {
        (None, []) if reads_stdin => Vec::new(),
        (Some(file), []) => vec![(file.to_string_lossy().into_owned(), read_file(file, env)?)],
        (None, [_, ..]) if !reads_stdin => inline_cells(given.code)?,
        (_, [_, ..]) => {
            let file = file.map_or_else(|| "-".into(), |file| display_value(&file.to_string_lossy()));
            return Err(Failure::usage(format!("could not choose between `{file}` and `-c`"))
                .with_hint("name a file, or pass code with `-c`, not both; put `--` before arguments of the code"));
        }
        (None, []) => return Err(no_code_error()),
    };
    let shebang = file.as_ref().and_then(|_| shebang_language(&sources));
    let is_typescript = wants_typescript(given.language.as_deref(), env)?;
    let language = match is_typescript {
        true => Language::Node,
        false => choose_language(given.language, file.as_deref(), shebang, env)?,
    };
    let named = |name: String| if is_typescript { typescript_name(name) } else { name };
    let args = [given.plain_args, given.args].concat();
    check_args(&args)?;
    let stdin = reads_stdin.then(|| (named("<stdin>".to_owned()), args.clone()));
    let cell = |(name, code)| CellSource { name: named(name), code, args: args.clone() };
    let cells = sources.into_iter().map(cell).collect();
    let script = file.filter(|_| !given.no_folder).map(|file| env.cwd.join(file));
    Ok(RunArgs { cells, language, stdin, script, out: given.out.map(|out| env.cwd.join(out)) })
}

fn no_code_error() -> Failure {
    Failure::usage("could not find code to run")
        .with_hint("name a file as in `cove run hello.py`, or pass code as in `cove run -c 'print(1)'`")
}

/// Reads the code of one cell from standard input. Fails if there is none.
pub(super) fn read_stdin(name: String, args: Vec<String>) -> Result<CellSource, Failure> {
    let refused = || Failure::usage("could not read code from standard input");
    let mut code = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_CODE as u64 + 1)
        .read_to_end(&mut code)
        .map_err(|error| refused().because(error))?;
    if code.is_empty() {
        return Err(no_code_error());
    }
    Ok(CellSource { name, code: check_code(code, refused)?, args })
}

fn inline_cells(codes: Vec<String>) -> Result<Vec<(String, String)>, Failure> {
    let cell = |(index, code): (usize, String)| {
        let refused = || Failure::usage(format!("could not read the code of `-c` number {}", index + 1));
        check_code(code.into_bytes(), refused).map(|code| (format!("<cell {}>", index + 1), code))
    };
    codes.into_iter().enumerate().map(cell).collect()
}

fn read_file(file: &Path, env: &ProcessEnv) -> Result<String, Failure> {
    let refused = || Failure::usage(format!("could not read code from `{}`", display_value(&file.to_string_lossy())));
    let unreadable = |error| refused().because(error).with_hint("name a file that can be read, or pass code with `-c`");
    let mut code = Vec::new();
    // One byte more than the limit shows that a file is too large, whatever its size.
    let limit = MAX_CODE as u64 + 1;
    std::fs::File::open(env.cwd.join(file))
        .and_then(|opened| opened.take(limit).read_to_end(&mut code))
        .map_err(unreadable)?;
    // Some editors begin a file with a byte order mark. Python skips it in files, but not in text.
    if code.starts_with("\u{feff}".as_bytes()) {
        code.drain(.."\u{feff}".len());
    }
    check_code(code, refused)
}

pub(super) fn check_code(code: Vec<u8>, refused: impl Fn() -> Failure) -> Result<String, Failure> {
    if code.len() > MAX_CODE {
        return Err(refused()
            .because(format!("it has more than {MAX_CODE} bytes"))
            .with_hint("code may have at most 1 MiB; keep data in a file of its own and show it with `--mount`"));
    }
    let hint = "code is UTF-8 text without NUL bytes";
    let code = String::from_utf8(code).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        refused().because(format!("the byte at offset {offset} is not UTF-8")).with_hint(hint)
    })?;
    match code.find('\0') {
        Some(offset) => Err(refused().because(format!("there is a NUL byte at offset {offset}")).with_hint(hint)),
        None => Ok(code),
    }
}

fn check_args(args: &[String]) -> Result<(), Failure> {
    let size = serde_json::to_vec(args).map_or(usize::MAX, |text| text.len());
    if size <= MAX_ARGS {
        return Ok(());
    }
    Err(Failure::usage("could not pass the arguments to the code")
        .because(format!("they have {size} bytes as JSON"))
        .with_hint(format!(
            "at most {MAX_ARGS} are allowed; pass data on standard input, or show a file with `--mount`"
        )))
}

/// True if the flag or the environment names TypeScript: Node runs it, without its types.
fn wants_typescript(flag: Option<&str>, env: &ProcessEnv) -> Result<bool, Failure> {
    let text = flag.map_or_else(|| env.var("COVE_LANGUAGE"), |text| Ok(Some(text)))?;
    Ok(text.is_some_and(is_typescript))
}

/// The shim removes types from a cell whose name ends in `.ts`.
fn typescript_name(name: String) -> String {
    match name.strip_suffix('>') {
        Some(inner) => format!("{inner}.ts>"),
        None if name.ends_with(".ts") => name,
        None => name + ".ts",
    }
}

/// The language whose interpreter the first line names, as in `#!/usr/bin/env bash`.
fn shebang_language(sources: &[(String, String)]) -> Option<Language> {
    let line = sources.first()?.1.lines().next()?.strip_prefix("#!")?;
    let is_no_option = |word: &&str| !word.starts_with('-');
    let mut names = line.split_whitespace().filter(is_no_option).map(|word| word.rsplit('/').next().unwrap_or(word));
    let name = names.find(|name| *name != "env")?;
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').parse().ok()
}

/// The language of the flag or the environment; or else that of the file's extension; or else, without one, that of its
/// first line; or else Python.
pub(super) fn choose_language(
    flag: Option<String>,
    file: Option<&Path>,
    shebang: Option<Language>,
    env: &ProcessEnv,
) -> Result<Language, Failure> {
    let (text, written) = match (flag, env.var("COVE_LANGUAGE")?) {
        (Some(text), _) => (text.clone(), format!("--language {}", display_value(&text))),
        (None, Some(text)) => (text.to_owned(), format!("COVE_LANGUAGE={}", display_value(text))),
        (None, None) => {
            let extension = file.and_then(Path::extension);
            let known = EXTENSIONS.iter().find(|(name, _)| extension.is_some_and(|extension| extension == *name));
            return match (known, extension) {
                (Some((_, language)), _) => Ok(*language),
                (None, None) => Ok(shebang.unwrap_or(Language::Python)),
                (None, Some(extension)) => {
                    let (file, ending) = (file.unwrap_or(Path::new("")).to_string_lossy(), extension.to_string_lossy());
                    let file = display_value(&file);
                    let known = alternatives(&Language::ALL.map(Language::as_str));
                    Err(Failure::usage(format!("could not tell the language of `{file}`"))
                        .because(format!("`.{}` is not the ending of a language", display_value(&ending)))
                        .with_hint(format!("name its language: `cove run -l LANGUAGE {file}` with {known}")))
                }
            };
        }
    };
    text.parse().map_err(|_| {
        Failure::usage(format!("could not read `{written}`"))
            .because(format!("`{}` is not supported here", display_value(&text)))
            .with_hint(format!("write {}", alternatives(&Language::ALL.map(Language::as_str))))
    })
}
