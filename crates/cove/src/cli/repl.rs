//! `cove repl`: talking to a session by hand, or from a pipe. Cells run one after another in the sandbox that agents
//! get; what a cell does to the session, and how it ended, is reported as `cove run` reports it.

mod command;
mod editor;
pub(super) mod history;
mod lines;
mod live_interpreter;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_protocol::{Language, OutputStream};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::image_library::{prepare_image, resolve_default_image};
use crate::cli::lazy_broker::LazyBroker;
use crate::cli::live_output::{LiveOutput, write_stream};
use crate::cli::network_checks::{RuleReader, check_network};
use crate::cli::run::{self, choose_backend};
use crate::cli::tables::{print_remark, render_table};
use crate::cli::{CommandContext, INTERRUPTED, code, runtime};
use crate::config::{Config, SETTINGS};
use cove_core::advice::{self, Audience};
use cove_core::backend::{Backend, PlanFormat};
use cove_core::error::Failure;
use cove_core::session::{Cell, CellEnd, Session, SessionOptions, StopReason, SurvivingState};
use cove_core::units::show_duration;

use command::{ExitRequest, ReplCommand};
use editor::LineEditor;
use lines::PlainLines;
use live_interpreter::LiveInterpreter;

/// Before the further lines of a cell.
const FURTHER_PROMPT: &str = "...> ";
/// How long an interpreter may take to answer a question about code. A person waits for it at the prompt; the cells
/// of a pipe must be the same on a machine that is busy.
const DEADLINE_AT_PROMPT: Duration = Duration::from_secs(3);
const DEADLINE_IN_PIPE: Duration = Duration::from_secs(30);
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
enum PromptInput {
    Text(String),
    /// The person threw it away.
    Cleared,
    End,
}

pub fn run(args: ReplArgs, context: CommandContext) -> Result<ExitCode, Failure> {
    let runtime = runtime::single_threaded()?;
    let code = runtime.block_on(talk(args, context));
    // A thread may still wait for standard input that never comes.
    runtime.shutdown_background();
    code.map(ExitCode::from)
}

async fn talk(args: ReplArgs, context: CommandContext) -> Result<u8, Failure> {
    let CommandContext { config, env, .. } = context;
    let config = &resolve_default_image(config, &env).await?;
    check_network(config, &config.policy, &env, RuleReader::OtherCommand).await?;
    let backend = choose_backend(config, &env)?;
    prepare_image(&*backend, &config.policy).await?;
    let mut source = InputSource::open(&args)?;
    let mut repl = Repl {
        backend: &*backend,
        config,
        input: args.input,
        language: args.language,
        calls: LazyBroker::new(config, env),
        session: None,
        cells: 0,
        exit_code: 0,
        took: None,
        at_line_start: true,
    };
    let mut interrupts = Interrupts::listen()?;
    repl.start().await?;
    if repl.session.is_none() {
        return Ok(INTERRUPTED);
    }
    if args.input != InputKind::Pipe {
        let (version, language) = (env!("CARGO_PKG_VERSION"), args.language);
        print_remark(format!("cove {version}: {language} in a sandbox; type `:help` for more"));
    }
    let outcome = loop {
        repl.fresh_line();
        // On a terminal the person sees a prompt and presses again; in a pipe the wish holds until it is seen.
        if args.input != InputKind::Pipe {
            interrupts.forget().await;
        }
        let text = match source.read(repl.interpreter(), &mut interrupts).await {
            Ok(PromptInput::Text(text)) => text,
            Ok(PromptInput::Cleared) if args.input == InputKind::Pipe => break Ok(INTERRUPTED),
            Ok(PromptInput::Cleared) => continue,
            Ok(PromptInput::End) => break Ok(repl.exit_code),
            Err(error) => break Err(error),
        };
        if repl.take(text, &mut interrupts).await.is_break() {
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
    calls: Arc<LazyBroker>,
    /// Not set when the last one ended and no other could be started.
    session: Option<Arc<Session>>,
    /// How many have been given a name.
    cells: u64,
    /// Of the last cell or command.
    exit_code: u8,
    took: Option<Duration>,
    /// Whether the terminal's cursor is where a prompt can be drawn without covering output.
    at_line_start: bool,
}

impl Repl<'_> {
    async fn take(&mut self, text: String, interrupts: &mut Interrupts) -> ControlFlow<()> {
        if text.trim().is_empty() {
            return ControlFlow::Continue(());
        }
        if !command::is_command(&text) {
            let exit_request = command::exit_request(self.language, &text);
            if let Some(ExitRequest::AtOnce(code)) = exit_request {
                self.exit_code = code.unwrap_or(self.exit_code);
                return ControlFlow::Break(());
            }
            let after = self.run(text, interrupts).await;
            return if exit_request.is_some() { ControlFlow::Break(()) } else { after };
        }
        match command::parse(&text) {
            Ok(ReplCommand::Quit) => return ControlFlow::Break(()),
            Ok(ReplCommand::Help) => self.show(&command::help()),
            Ok(ReplCommand::Limits) => match self.limits().await {
                Ok(text) => self.show(&text),
                Err(error) => self.refuse(&error),
            },
            Ok(ReplCommand::Time) => match self.took {
                Some(took) => self.show(&format!("{:.3} s\n", took.as_secs_f64())),
                None => self.show("no cell has run yet\n"),
            },
            Ok(ReplCommand::Restart) => {
                self.stop().await;
                self.restart().await;
            }
            Ok(ReplCommand::Speak(language)) => self.speak(language),
            Err(error) => self.refuse(&error),
        }
        ControlFlow::Continue(())
    }

    async fn run(&mut self, code: String, interrupts: &mut Interrupts) -> ControlFlow<()> {
        let number = self.cells + 1;
        let refused = || Failure::usage(format!("could not read cell {number}"));
        let code = match code::check_code(code.into_bytes(), refused) {
            Ok(code) => code,
            Err(error) => {
                self.refuse(&error);
                return ControlFlow::Continue(());
            }
        };
        if self.session.is_none() {
            self.restart().await;
        }
        let Some(session) = &self.session else { return ControlFlow::Continue(()) };
        self.cells = number;
        let cell = Cell {
            language: self.language,
            name: format!("<cell {number}>"),
            code,
            args: Vec::new(),
            timeout: self.config.cell.timeout,
            grace: self.config.cell.grace,
        };
        let mut live = LiveOutput::new(self.calls.progress());
        let echoes = self.input != InputKind::Pipe;
        let stop = async {
            interrupts.next().await;
            // The terminal has shown `^C`, in the middle of a line.
            if echoes {
                print_remark("");
            }
        };
        let start = Instant::now();
        let end = session.run_with_calls(cell, |shown| live.show(shown), stop, self.calls.clone()).await;
        self.at_line_start = live.finish();
        self.took = Some(start.elapsed());
        self.exit_code = end.exit_code();
        for note in self.calls.take_network_notes() {
            self.fresh_line();
            print_remark(note);
        }
        if let Some(text) = advice::advise(&end, self.config.bounds(), Audience::Person) {
            self.fresh_line();
            print_remark(text);
        }
        if end.survived() == SurvivingState::Nothing {
            self.stop().await;
            let code = self.exit_code;
            self.restart().await;
            // What the cell left counts, not that its session was replaced.
            self.exit_code = code;
        }
        match end.end_of_code() {
            // An interrupt of a script is for the rest of it too.
            CellEnd::Stopped { reason: StopReason::Cancelled, .. } if self.input == InputKind::Pipe => {
                ControlFlow::Break(())
            }
            // `exit()` ends the repl, as it ends the language's own prompt. A shell says so of every command that
            // fails.
            CellEnd::Exited { .. } if matches!(self.language, Language::Python | Language::Node) => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// Starts a session; there is none after an interrupt while it starts.
    async fn start(&mut self) -> Result<(), Failure> {
        // Also what a session left that was lost just now.
        self.backend.sweep().await;
        // Cells share their terminal or pipe with the repl, so none of it is theirs.
        let (warm_language, network) = (Some(self.language), self.calls.create_network()?);
        let options = SessionOptions { input: None, warm_language, network, ..SessionOptions::default() };
        self.session = run::start_interruptibly(self.backend, &self.config.policy, options).await?.map(Arc::new);
        Ok(())
    }

    /// Starts a fresh session and says what that means. If that fails, the next cell tries again.
    async fn restart(&mut self) {
        match self.start().await {
            Ok(()) if self.session.is_none() => self.exit_code = INTERRUPTED,
            Ok(()) => {
                self.exit_code = 0;
                print_remark("started a fresh session: it has no variables and no files yet");
            }
            Err(error) => self.refuse(&error),
        }
    }

    async fn stop(&mut self) {
        if let Some(session) = self.session.take() {
            session.stop().await;
        }
    }

    fn interpreter(&self) -> LiveInterpreter {
        let deadline = if self.input == InputKind::Pipe { DEADLINE_IN_PIPE } else { DEADLINE_AT_PROMPT };
        LiveInterpreter { session: self.session.clone(), language: self.language, deadline }
    }

    fn speak(&mut self, language: Language) {
        let session = self.session.as_ref().filter(|session| !session.languages().contains(&language));
        if let Some(session) = session {
            let error = Failure::operator(format!("could not switch to {language}"))
                .because(session.unavailable_reason(language))
                .with_hint("`cove explain` shows what the sandbox sees");
            return self.refuse(&error);
        }
        self.language = language;
        self.exit_code = 0;
    }

    async fn limits(&self) -> Result<String, Failure> {
        let settings = SETTINGS.iter().filter(|setting| LIMITS.contains(&setting.key));
        let mut rows: Vec<[String; 2]> =
            settings.map(|setting| [setting.key.to_owned(), setting.show(self.config).join(" ")]).collect();
        let grace = show_duration(self.config.cell.grace);
        rows.push(["grace".to_owned(), format!("{grace} between interrupt and kill")]);
        let plan = self.backend.explain(&self.config.policy, PlanFormat::Text).await?;
        let mechanism = plan.lines().find_map(|line| line.strip_prefix("limits")?.split_once("held by "));
        rows.extend(mechanism.map(|(_, mechanism)| ["held by".to_owned(), mechanism.to_owned()]));
        Ok(render_table(rows))
    }

    /// Prints what the user asked for, as opposed to remarks.
    fn show(&mut self, text: &str) {
        write_stream(OutputStream::Stdout, text.as_bytes());
        self.exit_code = 0;
    }

    fn refuse(&mut self, error: &Failure) {
        self.exit_code = error.kind().exit_code();
        print_remark(error.report());
    }

    fn fresh_line(&mut self) {
        if self.input != InputKind::Pipe && !self.at_line_start {
            print_remark("");
            self.at_line_start = true;
        }
    }
}

/// Ctrl-C, or the same signal from elsewhere. Listened to throughout, so that none is lost between two cells.
struct Interrupts(Signal);

impl Interrupts {
    fn listen() -> Result<Self, Failure> {
        let listening = signal(SignalKind::interrupt());
        listening.map(Self).map_err(|error| Failure::internal("could not listen to interrupts").because(error))
    }

    async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Discards the interrupts that have arrived so far.
    async fn forget(&mut self) {
        tokio::select! {
            biased;
            () = self.next() => {}
            () = std::future::ready(()) => {}
        }
    }
}

/// Where cells are read from.
enum InputSource {
    /// Not set while it is on the thread where it waits.
    Editor(Option<Box<LineEditor>>),
    Lines {
        lines: PlainLines<tokio::io::Stdin>,
        prompts: bool,
    },
}

impl InputSource {
    fn open(args: &ReplArgs) -> Result<Self, Failure> {
        if args.input != InputKind::Terminal {
            let prompts = args.input == InputKind::PlainTerminal;
            return Ok(Self::Lines { lines: PlainLines::new(tokio::io::stdin()), prompts });
        }
        let (editor, error) = LineEditor::open(args.history.as_deref())?;
        if let Some(error) = error {
            print_remark(error.report());
        }
        Ok(Self::Editor(Some(Box::new(editor))))
    }

    async fn read(
        &mut self,
        interpreter: LiveInterpreter,
        interrupts: &mut Interrupts,
    ) -> Result<PromptInput, Failure> {
        let prompt = format!("{}> ", interpreter.language);
        match self {
            Self::Editor(editor) => {
                let failed = || Failure::internal("could not read the terminal");
                let mut taken = editor.take().ok_or_else(failed)?;
                let runtime = tokio::runtime::Handle::current();
                let reading = tokio::task::spawn_blocking(move || {
                    let read = taken.read(&prompt, interpreter, runtime);
                    (taken, read)
                });
                let (mut taken, read) = reading.await.map_err(|error| failed().because(error))?;
                if let Ok(PromptInput::Text(text)) = &read
                    && let Some(error) = taken.remember(text)
                {
                    print_remark(error.report());
                }
                *editor = Some(taken);
                read
            }
            Self::Lines { lines, prompts } => {
                let prompt = prompts.then_some(prompt.as_str());
                tokio::select! {
                    biased;
                    () = interrupts.next() => Ok(PromptInput::Cleared),
                    read = lines.read(prompt, &interpreter) => read,
                }
            }
        }
    }
}
