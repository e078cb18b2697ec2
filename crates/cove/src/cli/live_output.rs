//! Passes a cell's output on as it arrives. A pipe gets the bytes unchanged; a terminal would obey escape sequences
//! in them, so it gets neutralised text.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cove_protocol::OutputStream;

use crate::cli::kept_files::save_image;
use crate::cli::progress_line::ProgressLine;
use crate::cli::tables::{output_failure, print_remark};
use cove_core::error::display_path;
use cove_core::output::CellOutput;
use cove_core::output::TextNeutraliser;

/// The exit code of a program that SIGPIPE ended.
const BROKEN_PIPE: i32 = 128 + 13;

/// The output of one cell.
pub(super) struct LiveOutput {
    /// One neutraliser for each stream that is a terminal.
    screens: [Option<TextNeutraliser>; 2],
    at_line_start: bool,
    /// Where images are saved; None if they are only mentioned.
    image_folder: Option<PathBuf>,
    /// Gives way to the output.
    progress: Arc<ProgressLine>,
}

impl LiveOutput {
    /// Saves images in a folder.
    pub(super) fn with_image_folder(self, folder: &Path) -> Self {
        Self { image_folder: Some(folder.to_owned()), ..self }
    }

    pub(super) fn new(progress: Arc<ProgressLine>) -> Self {
        let screens = [std::io::stdout().is_terminal(), std::io::stderr().is_terminal()];
        let screens = screens.map(|is_terminal| is_terminal.then(TextNeutraliser::default));
        Self { screens, at_line_start: true, image_folder: None, progress }
    }

    pub(super) fn show(&mut self, shown: CellOutput<'_>) {
        self.progress.clear();
        match shown {
            CellOutput::Text(stream, bytes) => match &mut self.screens[stream as usize] {
                Some(neutral) => {
                    let text = neutral.push(bytes);
                    self.write_to_terminal(stream, &text);
                }
                None => write_stream(stream, bytes),
            },
            CellOutput::Image(format, bytes) => {
                let saved = self.image_folder.as_ref().map(|folder| save_image(folder, format, bytes));
                let place = match saved {
                    Some(Ok(path)) => format!(", saved as {}", display_path(&path)),
                    Some(Err(error)) => format!(", not saved: {error}"),
                    None => String::new(),
                };
                let note = format!("[an image was shown: {}, {} bytes{place}]\n", format.mime(), bytes.len());
                write_stream(OutputStream::Stderr, note.as_bytes());
            }
        }
        self.progress.hold(!self.at_line_start);
    }

    /// Writes what is left. Returns true if the terminal's cursor is at the start of a line.
    pub(super) fn finish(mut self) -> bool {
        self.progress.clear();
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let rest = self.screens[stream as usize].as_mut().map(TextNeutraliser::finish);
            self.write_to_terminal(stream, rest.as_deref().unwrap_or_default());
        }
        self.progress.hold(false);
        self.at_line_start
    }

    fn write_to_terminal(&mut self, stream: OutputStream, text: &str) {
        write_stream(stream, text.as_bytes());
        if let Some(last) = text.bytes().last() {
            self.at_line_start = last == b'\n';
        }
    }
}

pub(super) fn write_stream(stream: OutputStream, bytes: &[u8]) {
    let written = match stream {
        OutputStream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        OutputStream::Stderr => std::io::stderr().lock().write_all(bytes),
    };
    // The sandbox ends when this process exits.
    match written {
        Ok(()) => {}
        // The reader closed its end.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(BROKEN_PIPE),
        Err(error) => {
            let failure = output_failure(error);
            print_remark(failure.report());
            std::process::exit(failure.kind().exit_code().into());
        }
    }
}
