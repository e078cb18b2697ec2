//! What a build says while it goes on, line by line, and what of it is worth telling when it fails.

use std::collections::VecDeque;

use crate::backend::Tell;
use crate::output::Neutral;

/// Lines of a failed step that are told.
/// Docker gives what was written to standard error before the last lines of the other: enough for both.
const TAIL: usize = 40;
/// Characters of one line.
const MAX_LINE: usize = 500;

#[derive(Default)]
pub(super) struct Output {
    neutral: Neutral,
    /// Of a line that has not ended.
    begun: String,
    /// As in `Step 3/5 : RUN …`, whoever spells it how.
    step: Option<String>,
    /// Since that step began.
    tail: VecDeque<String>,
}

impl Output {
    pub(super) fn push(&mut self, text: &str, tell: Tell<'_>) {
        let text = self.neutral.push(text.as_bytes());
        for piece in text.split_inclusive('\n') {
            if self.begun.len() < 4 * MAX_LINE {
                self.begun.push_str(piece.trim_end_matches('\n'));
            }
            if piece.ends_with('\n') {
                self.end_line(tell);
            }
        }
    }

    pub(super) fn finish(&mut self, tell: Tell<'_>) {
        let rest = self.neutral.finish();
        self.begun.push_str(rest.trim_end_matches('\n'));
        self.end_line(tell);
    }

    fn end_line(&mut self, tell: Tell<'_>) {
        let line: String = std::mem::take(&mut self.begun).chars().take(MAX_LINE).collect();
        let line = line.trim_end();
        if line.is_empty() {
            return;
        }
        tell(line);
        if is_step(line) {
            self.step = Some(line.to_owned());
            self.tail.clear();
        } else if !is_about_the_builder(line) {
            if self.tail.len() == TAIL {
                self.tail.pop_front();
            }
            self.tail.push_back(line.to_owned());
        }
    }

    /// The step that failed, the last that it said, and the builder's own words.
    pub(super) fn failure(&self, words: &str) -> String {
        let mut lines: Vec<String> = self.step.iter().cloned().collect();
        lines.extend(self.tail.iter().map(|line| format!("  {line}")));
        let words = crate::output::harmless(words);
        // Some builders end what they say with it.
        if !self.tail.back().is_some_and(|last| last.contains(words.trim())) {
            lines.push(words.trim().chars().take(4 * MAX_LINE).collect());
        }
        lines.retain(|line| !line.trim().is_empty());
        lines.join("\n")
    }
}

/// `Step 3/5 : RUN …` by Docker, `STEP 3/5: RUN …` by Podman.
fn is_step(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("Step ").or_else(|| line.strip_prefix("STEP ")) else { return false };
    rest.starts_with(|c: char| c.is_ascii_digit()) && rest.contains(':')
}

fn is_about_the_builder(line: &str) -> bool {
    ["--->", "-->"].iter().any(|arrow| line.trim_start().starts_with(arrow))
        || line.starts_with("Removing intermediate container")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn fed(pieces: &[&str]) -> (Output, Vec<String>) {
        let told = Mutex::new(Vec::new());
        let mut output = Output::default();
        let tell = |line: &str| told.lock().unwrap().push(line.to_owned());
        pieces.iter().for_each(|piece| output.push(piece, &tell));
        output.finish(&tell);
        (output, told.into_inner().unwrap())
    }

    #[test]
    fn the_step_that_failed_is_told_with_its_last_words() {
        let (output, told) = fed(&[
            "Step 1/2 : FROM a\n",
            " ---> 12ab\n",
            "Step 2/2 : RUN make\n ---> Running in 12\n",
            "one\ntw",
            "o\n\x1b[91mthree\x1b[0m",
        ]);
        assert_eq!(told.len(), 7, "{told:?}");
        assert_eq!(told[6], "three", "harmless");
        assert_eq!(
            output.failure("it returned 2"),
            "Step 2/2 : RUN make\n  one\n  two\n  three\nit returned 2"
        );
        let (output, _) = fed(&["STEP 1/1: RUN x\n", "error: it failed\n"]);
        assert_eq!(output.failure("it failed"), "STEP 1/1: RUN x\n  error: it failed");
        assert_eq!(Output::default().failure("no such file"), "no such file");
    }

    #[test]
    fn only_the_end_is_kept_however_much_comes() {
        let many: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        let long = "x".repeat(100_000);
        let (output, _) = fed(&["STEP 1/1: RUN x\n", &long, &long, "\n", &many]);
        let failure = output.failure("end");
        assert_eq!(failure.lines().count(), 2 + TAIL);
        assert!(failure.contains("  line 960\n") && !failure.contains("line 959\n"), "{failure}");
        let (output, told) = fed(&[&long, &long]);
        assert_eq!(told[0].len(), MAX_LINE);
        assert!(output.begun.is_empty());
    }
}
