//! `cove run`: cells from the shell, in the sandbox that agents get. What the code writes is passed on as it comes; how
//! it ended is told on standard error and by the exit code.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use cove_protocol::Stream;
use serde::Serialize;

use crate::backend::Backend;
use crate::backend::jail::Jail;
use crate::cli::code::RunArgs;
use crate::cli::ending::{self, Told};
use crate::config::{BackendChoice, Config};
use crate::error::{Error, Kind};
use crate::output::{Collected, Collector, Neutral};
use crate::policy::CellLimits;
use crate::session::{Cell, CellEnd, Options, Session, Shown};

/// The exit code of a program that was cut off by a reader that had seen enough.
const BROKEN_PIPE: i32 = 128 + 13;

pub fn run(args: RunArgs, config: Config) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let code = runtime.block_on(run_cells(args, &config));
    // A thread may still wait for standard input that never comes.
    runtime.shutdown_background();
    code.map(ExitCode::from)
}

pub fn backend(choice: BackendChoice) -> Result<Box<dyn Backend>, Error> {
    match choice {
        BackendChoice::Auto | BackendChoice::Jail => {
            let jail = Jail::new().map_err(|error| Error::of(Kind::Operator, error))?;
            Ok(Box::new(jail))
        }
    }
}

async fn run_cells(args: RunArgs, config: &Config) -> Result<u8, Error> {
    let backend = backend(config.backend)?;
    backend.sweep();
    let options = Options { input: Some(Box::new(tokio::io::stdin())), warm: Some(args.language) };
    let session = Session::start(&*backend, &config.policy, options)
        .await
        .map_err(|error| Error::of(Kind::Operator, error))?;
    let mut exit_code = 0;
    for source in args.cells {
        let name = source.name.clone();
        let cell = Cell {
            language: args.language,
            name: source.name,
            code: source.code,
            args: source.args,
            timeout: config.cell.timeout,
            grace: config.cell.grace,
        };
        let end = if args.json {
            run_for_program(&session, cell, &name, config).await
        } else {
            run_for_person(&session, cell, config).await
        };
        exit_code = end.exit_code();
        // As in a script that stops at its first error: later cells count on earlier ones.
        if !end.is_success() {
            break;
        }
    }
    session.stop().await;
    Ok(exit_code)
}

async fn run_for_person(session: &Session, cell: Cell, config: &Config) -> CellEnd {
    // A program that reads gets the bytes as they are; a terminal would obey them.
    let mut screens = [std::io::stdout().is_terminal(), std::io::stderr().is_terminal()]
        .map(|is_terminal| is_terminal.then(Neutral::default));
    let show = |shown: Shown<'_>| match shown {
        Shown::Text(stream, bytes) => match &mut screens[stream as usize] {
            Some(neutral) => pass_on(stream, neutral.push(bytes).as_bytes()),
            None => pass_on(stream, bytes),
        },
        Shown::Image(format, bytes) => {
            let note = format!("[an image was shown: {}, {} bytes]\n", format.mime(), bytes.len());
            pass_on(Stream::Stderr, note.as_bytes());
        }
    };
    let end = session.run(cell, show, interrupted()).await;
    for (stream, screen) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&mut screens) {
        if let Some(neutral) = screen {
            pass_on(stream, neutral.finish().as_bytes());
        }
    }
    if let Some(told) = ending::tell(&end, config) {
        let _ = writeln!(std::io::stderr(), "{told}");
    }
    end
}

fn pass_on(stream: Stream, bytes: &[u8]) {
    let written = match stream {
        Stream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Stream::Stderr => std::io::stderr().lock().write_all(bytes),
    };
    if written.is_err() {
        // Nobody reads any more. The sandbox ends when this process does.
        std::process::exit(BROKEN_PIPE);
    }
}

async fn run_for_program(session: &Session, cell: Cell, name: &str, config: &Config) -> CellEnd {
    let CellLimits { max_output, .. } = config.cell;
    let mut collector = Collector::new(max_output, None);
    let end = session.run(cell, |shown| collector.show(shown), interrupted()).await;
    let Collected { stdout, stderr, neutralised, images, spool: _ } = collector.finish();
    let result = CellResult {
        cell: name,
        ok: end.is_success(),
        outcome: end.kind(),
        exit_code: end.exit_code(),
        exception: match &end {
            CellEnd::Raised { exception, message, .. } => Some(Exception { exception, message }),
            _ => None,
        },
        stdout: stdout.text,
        stdout_left_out: stdout.left_out,
        stderr: stderr.text,
        stderr_left_out: stderr.left_out,
        neutralised,
        images: images
            .iter()
            .map(|image| ImageShown { format: image.format.mime(), bytes: image.bytes.len() })
            .collect(),
        told: ending::tell(&end, config),
        survived: end.survived(),
    };
    if let Ok(line) = serde_json::to_string(&result) {
        pass_on(Stream::Stdout, format!("{line}\n").as_bytes());
    }
    end
}

#[derive(Serialize)]
struct CellResult<'a> {
    cell: &'a str,
    ok: bool,
    outcome: &'static str,
    exit_code: u8,
    #[serde(flatten)]
    exception: Option<Exception<'a>>,
    stdout: String,
    stdout_left_out: u64,
    stderr: String,
    stderr_left_out: u64,
    neutralised: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<ImageShown>,
    #[serde(flatten)]
    told: Option<Told>,
    survived: crate::session::Survived,
}

#[derive(Serialize)]
struct Exception<'a> {
    exception: &'a str,
    message: &'a str,
}

#[derive(Serialize)]
struct ImageShown {
    format: &'static str,
    bytes: usize,
}

/// When the person presses Ctrl-C.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
