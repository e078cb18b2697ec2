//! Collects a build's output line by line, and selects the part that explains a failure.

use std::collections::VecDeque;

use cove_core::backend::ProgressCallback;
use cove_core::output::TextNeutraliser;

/// How many output lines of a failed step are shown. Docker sends standard error before the last lines of standard
/// output; this is enough for both.
const MAX_TAIL_LINES: usize = 40;
/// The longest line, in characters.
const MAX_LINE: usize = 500;

#[derive(Default)]
pub(super) struct BuildOutput {
    neutral: TextNeutraliser,
    /// The beginning of a line that has not ended yet.
    partial_line: String,
    /// The current step, such as `Step 3/5 : RUN …`, in the engine's spelling.
    step: Option<String>,
    /// The last output lines of that step.
    tail: VecDeque<String>,
}

impl BuildOutput {
    /// Adds a piece of output and passes each complete line to `tell`.
    pub(super) fn push(&mut self, text: &str, tell: ProgressCallback<'_>) {
        let text = self.neutral.push(text.as_bytes());
        for piece in text.split_inclusive('\n') {
            if self.partial_line.len() < 4 * MAX_LINE {
                self.partial_line.push_str(piece.trim_end_matches('\n'));
            }
            if piece.ends_with('\n') {
                self.end_line(tell);
            }
        }
    }

    /// Passes the last, incomplete line to `tell`.
    pub(super) fn finish(&mut self, tell: ProgressCallback<'_>) {
        let rest = self.neutral.finish();
        self.partial_line.push_str(rest.trim_end_matches('\n'));
        self.end_line(tell);
    }

    fn end_line(&mut self, tell: ProgressCallback<'_>) {
        let line: String = std::mem::take(&mut self.partial_line).chars().take(MAX_LINE).collect();
        let line = line.trim_end();
        if line.is_empty() {
            return;
        }
        tell(line);
        if is_step_line(line) {
            self.step = Some(line.to_owned());
            self.tail.clear();
        } else if !is_builder_notice(line) {
            if self.tail.len() == MAX_TAIL_LINES {
                self.tail.pop_front();
            }
            self.tail.push_back(line.to_owned());
        }
    }

    /// Returns the failed step, its last output lines and the builder's message.
    pub(super) fn failure_text(&self, words: &str) -> String {
        let mut lines: Vec<String> = self.step.iter().cloned().collect();
        lines.extend(self.tail.iter().map(|line| format!("  {line}")));
        let words = cove_core::output::neutralise(words);
        // Some builders repeat the message as their last line of output.
        if !self.tail.back().is_some_and(|last| last.contains(words.trim())) {
            lines.push(words.trim().chars().take(4 * MAX_LINE).collect());
        }
        lines.retain(|line| !line.trim().is_empty());
        lines.join("\n")
    }
}

/// Recognises `Step 3/5 : RUN …` from Docker and `STEP 3/5: RUN …` from Podman.
fn is_step_line(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("Step ").or_else(|| line.strip_prefix("STEP ")) else { return false };
    rest.starts_with(|c: char| c.is_ascii_digit()) && rest.contains(':')
}

fn is_builder_notice(line: &str) -> bool {
    ["--->", "-->"].iter().any(|arrow| line.trim_start().starts_with(arrow))
        || line.starts_with("Removing intermediate container")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn feed(pieces: &[&str]) -> (BuildOutput, Vec<String>) {
        let reported = Mutex::new(Vec::new());
        let mut output = BuildOutput::default();
        let tell = |line: &str| reported.lock().unwrap().push(line.to_owned());
        pieces.iter().for_each(|piece| output.push(piece, &tell));
        output.finish(&tell);
        (output, reported.into_inner().unwrap())
    }

    #[test]
    fn build_failure_shows_the_failed_step_and_its_tail() {
        let (output, reported) = feed(&[
            "Step 1/2 : FROM a\n",
            " ---> 12ab\n",
            "Step 2/2 : RUN make\n ---> Running in 12\n",
            "one\ntw",
            "o\n\x1b[91mthree\x1b[0m",
        ]);
        assert_eq!(reported.len(), 7, "{reported:?}");
        assert_eq!(reported[6], "three", "harmless");
        assert_eq!(output.failure_text("it returned 2"), "Step 2/2 : RUN make\n  one\n  two\n  three\nit returned 2");
        let (output, _) = feed(&["STEP 1/1: RUN x\n", "error: it failed\n"]);
        assert_eq!(output.failure_text("it failed"), "STEP 1/1: RUN x\n  error: it failed");
        assert_eq!(BuildOutput::default().failure_text("no such file"), "no such file");
    }

    #[test]
    fn build_output_keeps_a_bounded_tail() {
        let many: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        let long = "x".repeat(100_000);
        let (output, _) = feed(&["STEP 1/1: RUN x\n", &long, &long, "\n", &many]);
        let failure = output.failure_text("end");
        assert_eq!(failure.lines().count(), 2 + MAX_TAIL_LINES);
        assert!(failure.contains("  line 960\n") && !failure.contains("line 959\n"), "{failure}");
        let (output, reported) = feed(&[&long, &long]);
        assert_eq!(reported[0].len(), MAX_LINE);
        assert!(output.partial_line.is_empty());
    }
}
