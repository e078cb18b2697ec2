//! `cove repl`: talking to a session by hand, or from a pipe. Cells run one after another in the sandbox that agents
//! get; what a cell does to the session, and how it ended, is told as `cove run` tells it.

mod buffer;
mod command;
mod edit;
pub(super) mod history;
mod keys;
mod lines;
mod screen;
mod terminal;
mod whole;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_protocol::{Language, Stream};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::backend::{Backend, Form};
use crate::cli::code;
use crate::cli::live::{Live, pass_on};
use crate::cli::on_demand::OnDemand;
use crate::cli::run::backend;
use crate::cli::shelf::{prepare, settled};
use crate::config::value::show_duration;
use crate::config::{Config, SETTINGS, Surroundings};
use crate::ending::{self, Audience};
use crate::error::{Error, Kind};
use crate::session::{Cell, CellEnd, Options, Session, Stop, Survived};

use command::Command;
use history::History;
use lines::Lines;
use screen::Prompts;
use terminal::Terminal;

/// The exit code of a program that ended because of Ctrl-C.
const INTERRUPTED: u8 = 128 + 2;
/// What `:limits` shows of the settings.
const LIMITS: [&str; 8] =
    ["memory", "cpus", "pids-limit", "workspace-size", "tmp-size", "network", "timeout", "max-timeout"];

/// What `cove repl` was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplArgs {
    pub language: Language,
    pub input: InputKind,
    /// Where to keep what was written, when there is such a place.
    pub history: Option<PathBuf>,
}

/// Where cells come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// With editing and history.
    Terminal,
    /// One that cannot be drawn on: prompts, and nothing else.
    PlainTerminal,
    Pipe,
}

/// What was read at the prompt.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Text(String),
    /// The person threw it away.
    Cleared,
    End,
}

/// What happens after a cell or a command.
enum Next {
    GoOn,
    End,
}

pub fn run(args: ReplArgs, config: Config, around: Surroundings) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let code = runtime.block_on(talk(args, &config, around));
    // A thread may still wait for standard input that never comes.
    runtime.shutdown_background();
    code.map(ExitCode::from)
}

async fn talk(args: ReplArgs, config: &Config, around: Surroundings) -> Result<u8, Error> {
    let config = &settled(config, &around).await?;
    let backend = backend(config, &around)?;
    prepare(&*backend, &config.policy).await?;
    let mut source = Source::open(&args);
    let mut repl = Repl {
        backend: &*backend,
        config,
        input: args.input,
        language: args.language,
        calls: OnDemand::new(config, around),
        session: None,
        cells: 0,
        exit_code: 0,
        took: None,
        at_line_start: true,
    };
    repl.start().await?;
    let mut interrupts = Interrupts::listen()?;
    if args.input != InputKind::Pipe {
        let (version, language) = (env!("CARGO_PKG_VERSION"), args.language);
        say(&format!("cove {version}: {language} in a sandbox; `:help` tells what else there is"));
    }
    let outcome = loop {
        repl.fresh_line();
        // On a terminal the person sees a prompt and presses again; in a pipe the wish holds until it is seen.
        if args.input != InputKind::Pipe {
            interrupts.forget().await;
        }
        let text = match source.read(repl.language, &mut interrupts).await {
            Ok(Read::Text(text)) => text,
            Ok(Read::Cleared) if args.input == InputKind::Pipe => break Ok(INTERRUPTED),
            Ok(Read::Cleared) => continue,
            Ok(Read::End) => break Ok(repl.exit_code),
            Err(error) => break Err(error),
        };
        if let Next::End = repl.take(text, &mut interrupts).await {
            break Ok(repl.exit_code);
        }
    };
    let calls = Arc::clone(&repl.calls);
    tokio::join!(repl.stop(), calls.close());
    outcome
}

struct Repl<'a> {
    backend: &'a dyn Backend,
    config: &'a Config,
    input: InputKind,
    language: Language,
    calls: Arc<OnDemand>,
    /// Not set when the last one ended and no other could be started.
    session: Option<Session>,
    /// How many have been given a name.
    cells: u64,
    /// Of the last cell or command.
    exit_code: u8,
    took: Option<Duration>,
    /// Whether the terminal's cursor is where a prompt can be drawn without covering output.
    at_line_start: bool,
}

impl Repl<'_> {
    async fn take(&mut self, text: String, interrupts: &mut Interrupts) -> Next {
        if text.trim().is_empty() {
            return Next::GoOn;
        }
        if !command::is_command(&text) {
            return self.run(text, interrupts).await;
        }
        match command::parse(&text) {
            Ok(Command::Quit) => return Next::End,
            Ok(Command::Help) => self.show(&command::help()),
            Ok(Command::Limits) => match self.limits().await {
                Ok(text) => self.show(&text),
                Err(error) => self.refuse(&error),
            },
            Ok(Command::Time) => match self.took {
                Some(took) => self.show(&format!("{:.3} s\n", took.as_secs_f64())),
                None => self.show("no cell has run yet\n"),
            },
            Ok(Command::Restart) => {
                self.stop().await;
                self.restart().await;
            }
            Ok(Command::Speak(language)) => self.speak(language),
            Err(error) => self.refuse(&error),
        }
        Next::GoOn
    }

    async fn run(&mut self, code: String, interrupts: &mut Interrupts) -> Next {
        let number = self.cells + 1;
        let refused = || Error::usage(format!("could not read cell {number}"));
        let code = match code::check(code.into_bytes(), refused) {
            Ok(code) => code,
            Err(error) => {
                self.refuse(&error);
                return Next::GoOn;
            }
        };
        if self.session.is_none() {
            self.restart().await;
        }
        let Some(session) = &self.session else { return Next::GoOn };
        self.cells = number;
        let cell = Cell {
            language: self.language,
            name: format!("<cell {number}>"),
            code,
            args: Vec::new(),
            timeout: self.config.cell.timeout,
            grace: self.config.cell.grace,
        };
        let mut live = Live::new();
        let echoes = self.input != InputKind::Pipe;
        let stop = async {
            interrupts.next().await;
            // The terminal has shown `^C`, in the middle of a line.
            if echoes {
                say("");
            }
        };
        let start = Instant::now();
        let end = session.run_with(cell, |shown| live.show(shown), stop, self.calls.clone()).await;
        self.at_line_start = live.finish();
        self.took = Some(start.elapsed());
        self.exit_code = end.exit_code();
        if let Some(told) = ending::tell(&end, self.config.bounds(), Audience::Person) {
            self.fresh_line();
            say(&told.to_string());
        }
        if end.survived() == Survived::Nothing {
            self.stop().await;
            let code = self.exit_code;
            self.restart().await;
            // What the cell left counts, not that its session was replaced.
            self.exit_code = code;
        }
        match end {
            // Whoever stops a script does not want the rest of it.
            CellEnd::Stopped { why: Stop::Cancelled, .. } if self.input == InputKind::Pipe => Next::End,
            _ => Next::GoOn,
        }
    }

    async fn start(&mut self) -> Result<(), Error> {
        // Also what a session left that was lost just now.
        self.backend.sweep().await;
        // Cells share their terminal or pipe with the repl, so none of it is theirs.
        let options = Options { input: None, warm: Some(self.language), ..Options::default() };
        let session = Session::start(self.backend, &self.config.policy, options).await;
        self.session = Some(session.map_err(|error| Error::of(Kind::Operator, error))?);
        Ok(())
    }

    /// A fresh session, and what that means. If there is none to be had, the next cell tries again.
    async fn restart(&mut self) {
        match self.start().await {
            Ok(()) => {
                self.exit_code = 0;
                say("started a fresh session: it has no variables and no files yet");
            }
            Err(error) => {
                self.exit_code = error.kind().exit_code();
                say(&error.report().to_string());
            }
        }
    }

    async fn stop(&mut self) {
        if let Some(session) = self.session.take() {
            session.stop().await;
        }
    }

    fn speak(&mut self, language: Language) {
        let session = self.session.as_ref().filter(|session| !session.languages().contains(&language));
        if let Some(session) = session {
            let error = Error::operator(format!("could not switch to {language}"))
                .because(session.why_not(language))
                .with_hint("`cove explain` shows what the sandbox sees");
            return self.refuse(&error);
        }
        self.language = language;
        self.exit_code = 0;
    }

    async fn limits(&self) -> Result<String, Error> {
        let mut rows: Vec<(&str, String)> = Vec::new();
        for setting in SETTINGS.iter().filter(|setting| LIMITS.contains(&setting.key)) {
            rows.push((setting.key, setting.show(self.config).join(" ")));
        }
        rows.push(("grace", format!("{} between interrupt and kill", show_duration(self.config.cell.grace))));
        let plan = self.backend.explain(&self.config.policy, Form::Text).await;
        let plan = plan.map_err(|error| Error::of(Kind::Operator, error))?;
        let held = plan.lines().find_map(|line| line.strip_prefix("limits")?.split_once("held by "));
        if let Some((_, held)) = held {
            rows.push(("held by", held.to_owned()));
        }
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        Ok(rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect())
    }

    /// What was asked for, as opposed to what we have to say.
    fn show(&mut self, text: &str) {
        pass_on(Stream::Stdout, text.as_bytes());
        self.exit_code = 0;
    }

    fn refuse(&mut self, error: &Error) {
        self.exit_code = error.kind().exit_code();
        say(&error.report().to_string());
    }

    fn fresh_line(&mut self) {
        if self.input != InputKind::Pipe && !self.at_line_start {
            say("");
            self.at_line_start = true;
        }
    }
}

fn say(text: &str) {
    // Standard error may be closed; there is nowhere else to say so.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Ctrl-C, and whoever else sends that signal. Listened to throughout, so that none is lost between two cells.
struct Interrupts(Signal);

impl Interrupts {
    fn listen() -> Result<Self, Error> {
        let listening = signal(SignalKind::interrupt());
        listening.map(Self).map_err(|error| Error::internal("could not listen to interrupts").because(error))
    }

    async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Those that have come so far.
    async fn forget(&mut self) {
        tokio::select! {
            biased;
            () = self.next() => {}
            () = std::future::ready(()) => {}
        }
    }
}

/// Where cells are read from.
enum Source {
    /// Not set while it is on the thread where it waits.
    Terminal(Option<Terminal>),
    Lines {
        lines: Lines<tokio::io::Stdin>,
        prompts: bool,
    },
}

impl Source {
    fn open(args: &ReplArgs) -> Self {
        if args.input != InputKind::Terminal {
            let prompts = args.input == InputKind::PlainTerminal;
            return Self::Lines { lines: Lines::new(tokio::io::stdin()), prompts };
        }
        let (history, error) = History::open(args.history.as_deref());
        if let Some(error) = error {
            say(&error.report().to_string());
        }
        Self::Terminal(Some(Terminal::new(history)))
    }

    async fn read(&mut self, language: Language, interrupts: &mut Interrupts) -> Result<Read, Error> {
        let first = format!("{language}> ");
        match self {
            Self::Terminal(terminal) => {
                let failed = || Error::internal("could not read the terminal");
                let mut taken = terminal.take().ok_or_else(failed)?;
                let reading = tokio::task::spawn_blocking(move || {
                    let read = taken.read(Prompts { first: &first, more: "...> " }, language);
                    (taken, read)
                });
                let (mut taken, read) = reading.await.map_err(|error| failed().because(error))?;
                let read = read.map_err(|error| failed().because(error))?;
                if let Read::Text(text) = &read
                    && let Some(error) = taken.history().add(text)
                {
                    say(&error.report().to_string());
                }
                *terminal = Some(taken);
                Ok(read)
            }
            Self::Lines { lines, prompts } => {
                let prompts = prompts.then_some(Prompts { first: &first, more: "...> " });
                tokio::select! {
                    biased;
                    () = interrupts.next() => Ok(Read::Cleared),
                    read = lines.read(prompts, language) => read,
                }
            }
        }
    }
}
