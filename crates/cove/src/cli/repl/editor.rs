//! Cells written on a terminal, with `rustyline`: editing, history, search, undo and completion. Each line of a cell is
//! read by itself, so that each has a prompt; the lines before come back as one text when the person goes up to them.
//! Reading blocks, so it runs on a thread of its own, and asks the interpreter through the runtime of the program.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustyline::completion::Completer;
use rustyline::config::{Behavior, BellStyle, ColorMode};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext, EventHandler, Helper,
    KeyCode, KeyEvent, Modifiers, RepeatCount,
};
use tokio::runtime::Handle;

use super::history::{self, HistoryFile};
use super::live_interpreter::{CellCompleteness, LiveInterpreter};
use super::{FURTHER_PROMPT, PromptInput, command};
use cove_core::error::Failure;
use cove_core::sync::lock;

const INDENT: usize = 4;

pub(super) struct LineEditor {
    editor: Editor<CellDraft, DefaultHistory>,
    history: HistoryFile,
    keys: Arc<Mutex<KeyState>>,
}

impl LineEditor {
    /// An editor with what the history file holds, and why nothing will be added to the file, if that is so.
    pub(super) fn open(history: Option<&Path>) -> Result<(Self, Option<Failure>), Failure> {
        let (history, entries, error) = HistoryFile::open(history);
        // To the screen, also when what cells print goes elsewhere.
        let behavior = if io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder()
            .behavior(behavior)
            .completion_type(CompletionType::List)
            .bell_style(BellStyle::None)
            // There are no colours; this lets `CellDraft::highlight` see everything that is drawn.
            .color_mode(ColorMode::Forced)
            .history_ignore_space(true)
            .max_history_size(history::MAX_ENTRIES)
            .map_err(terminal_error)?
            .build();
        let mut editor = Editor::with_config(config).map_err(terminal_error)?;
        for entry in entries {
            editor.add_history_entry(entry).map_err(terminal_error)?;
        }
        let keys = Arc::<Mutex<KeyState>>::default();
        let watched = [
            KeyEvent(KeyCode::Up, Modifiers::NONE),
            KeyEvent::ctrl('p'),
            KeyEvent(KeyCode::Backspace, Modifiers::NONE),
            KeyEvent(KeyCode::BracketedPasteStart, Modifiers::NONE),
        ];
        for key in watched {
            editor.bind_sequence(key, EventHandler::Conditional(Box::new(KeyWatcher(Arc::clone(&keys)))));
        }
        editor.bind_sequence(KeyEvent::ctrl('n'), Cmd::LineDownOrNextHistory(1));
        editor.bind_sequence(KeyEvent::alt('\r'), Cmd::Newline);
        Ok((Self { editor, history, keys }, error))
    }

    /// Reads one cell or command.
    pub(super) fn read(
        &mut self,
        prompt: &str,
        interpreter: LiveInterpreter,
        runtime: Handle,
    ) -> Result<PromptInput, Failure> {
        let judged = Cell::new(CellCompleteness::Complete);
        self.editor.set_helper(Some(CellDraft {
            interpreter,
            runtime,
            before: String::new(),
            judged,
            keys: Arc::clone(&self.keys),
        }));
        let mut initial = (String::new(), String::new());
        loop {
            let before = self.editor.helper().map_or("", |helper| helper.before.as_str()).to_owned();
            *lock(&self.keys) = KeyState { is_further_line: !before.is_empty(), ..KeyState::default() };
            let prompt = if before.is_empty() { prompt } else { FURTHER_PROMPT };
            let read = self.editor.readline_with_initial(prompt, (&initial.0, &initial.1));
            let line = match read {
                Ok(line) => visible(&line).into_owned(),
                Err(ReadlineError::Interrupted) => {
                    let _ = writeln!(io::stderr(), "^C");
                    return Ok(PromptInput::Cleared);
                }
                Err(error) if is_end(&error) && before.is_empty() => return Ok(PromptInput::End),
                Err(error) if is_end(&error) || is_not_text(&error) => return Ok(PromptInput::Cleared),
                Err(error) => return Err(terminal_error(error)),
            };
            let keys = std::mem::take(&mut *lock(&self.keys));
            let Some(helper) = self.editor.helper_mut() else { return Ok(PromptInput::End) };
            if let Some(step) = keys.step_back {
                let above = std::mem::take(&mut helper.before);
                let above = above.strip_suffix('\n').unwrap_or(&above).to_owned();
                initial = match step {
                    StepBack::ToLineAbove => (above, format!("\n{line}")),
                    StepBack::Join => (above, line),
                };
                continue;
            }
            initial = Default::default();
            helper.before.push_str(&line);
            let runs = match helper.judged.get() {
                CellCompleteness::Complete => true,
                CellCompleteness::Block => keys.has_paste && line.contains('\n'),
                CellCompleteness::Open => false,
            };
            if runs {
                return Ok(PromptInput::Text(std::mem::take(&mut helper.before)));
            }
            helper.before.push('\n');
        }
    }

    /// Adds what was written to the history. Returns why the file is not written to any more, once.
    pub(super) fn remember(&mut self, text: &str) -> Option<Failure> {
        let text = text.trim_end();
        if text.len() > history::MAX_ENTRY || !self.editor.add_history_entry(text).unwrap_or(false) {
            return None;
        }
        self.history.append(text)
    }
}

fn terminal_error(error: ReadlineError) -> Failure {
    Failure::internal("could not use the terminal").because(error)
}

/// True for Ctrl-D on an empty line, and if the terminal is gone.
fn is_end(error: &ReadlineError) -> bool {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    match error {
        ReadlineError::Eof => true,
        ReadlineError::Io(error) => error.raw_os_error() == Some(EIO),
        ReadlineError::Errno(error) => *error as i32 == EIO,
        _ => false,
    }
}

/// True for bytes that are no UTF-8.
fn is_not_text(error: &ReadlineError) -> bool {
    matches!(error, ReadlineError::Io(error) if error.kind() == io::ErrorKind::InvalidData)
}

/// Text without control characters, which would command the terminal. Pasted text may have them.
fn visible(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().filter(|c| is_harmless(*c)).collect())
}

/// What keys did to the line that is being read. `LineEditor::read` resets it before each line and looks at it after;
/// `KeyWatcher` sets it in between, on the same thread.
#[derive(Default)]
struct KeyState {
    /// There are lines of the cell before this one.
    is_further_line: bool,
    has_paste: bool,
    step_back: Option<StepBack>,
}

/// A way from the first row of a further line to the lines before it.
#[derive(Clone, Copy)]
enum StepBack {
    ToLineAbove,
    /// The line is joined to the one above.
    Join,
}

struct KeyWatcher(Arc<Mutex<KeyState>>);

impl ConditionalEventHandler for KeyWatcher {
    /// Ends the line when a key leads to the lines before it; `None` leaves the key to `rustyline`.
    fn handle(&self, event: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let mut keys = lock(&self.0);
        let is_first_row = !context.line()[..context.pos()].contains('\n');
        let (step, otherwise) = match event.get(0)?.0 {
            KeyCode::BracketedPasteStart => {
                keys.has_paste = true;
                return None;
            }
            KeyCode::Backspace if context.pos() > 0 => return None,
            KeyCode::Backspace => (StepBack::Join, None),
            _ => (StepBack::ToLineAbove, Some(Cmd::LineUpOrPreviousHistory(1))),
        };
        if !(keys.is_further_line && is_first_row) {
            return otherwise;
        }
        keys.step_back = Some(step);
        Some(Cmd::AcceptLine)
    }
}

/// What `rustyline` asks while a cell is written.
struct CellDraft {
    interpreter: LiveInterpreter,
    runtime: Handle,
    /// The lines of the cell before the one that is being read, each with its line end.
    before: String,
    /// Of the line that was entered last.
    judged: Cell<CellCompleteness>,
    keys: Arc<Mutex<KeyState>>,
}

impl Helper for CellDraft {}

impl Validator for CellDraft {
    /// Judges the cell while the terminal is still raw. Every line is taken: `LineEditor::read` reads the next one.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        if lock(&self.keys).step_back.is_none() {
            let text = format!("{}{}", self.before, visible(context.input()));
            let completeness = if command::is_command(&text) {
                CellCompleteness::Complete
            } else {
                self.runtime.block_on(self.interpreter.completeness(&text))
            };
            self.judged.set(completeness);
        }
        Ok(ValidationResult::Valid(None))
    }
}

impl Completer for CellDraft {
    type Candidate = String;

    /// Commands after a colon, indentation at the start of a line, and else what the interpreter knows.
    fn complete(&self, line: &str, cursor: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let line = &line[..cursor];
        if self.before.is_empty() && line.starts_with(':') {
            return Ok((0, command::completions(line)));
        }
        let row = line.rsplit('\n').next().unwrap_or_default();
        if row.trim().is_empty() {
            let count = INDENT - row.chars().count() % INDENT;
            return Ok((cursor, vec![" ".repeat(count)]));
        }
        let text = format!("{}{line}", self.before);
        let (start, candidates) = self.runtime.block_on(self.interpreter.completions(&text));
        Ok((start.saturating_sub(self.before.len()), candidates))
    }
}

impl Hinter for CellDraft {
    type Hint = String;
}

impl Highlighter for CellDraft {
    fn highlight<'l>(&self, line: &'l str, _cursor: usize) -> Cow<'l, str> {
        visible(line)
    }
}
