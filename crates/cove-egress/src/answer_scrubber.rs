//! Takes secrets out of what a server answers: the bytes of each of their forms become those of the placeholder. Lengths stay as
//! they are.
//!
//! Code must not learn how much of a form it has guessed. Which bytes wait, when they are passed on and how much work each one
//! makes follows from the length of the secret and from the answer itself, never from how alike they are: the search compares
//! digests of whole forms, and bytes wait until no form can still begin before them. That is
//! - behind the next control character, which no form has: the end of a line, as in a stream of events, passes at once;
//! - when as many characters follow as the longest form has;
//! - at the end of the answer, or of a message of a WebSocket.

use zeroize::Zeroizing;

use crate::answer_escapes::{EscapeNotation, EscapeReading};
use crate::answer_forms::{AnswerForms, TextDigest};

/// How much is read before what is no longer needed is dropped.
const BLOCK: usize = 256;

/// What some bytes of an answer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    Content,
    /// Bytes between two pieces of content that belong together.
    Framing,
}

/// A character of an answer, and the bytes that it takes there.
#[derive(Clone, Copy)]
struct CharPlace {
    start: u64,
    end: u64,
}

/// An answer since the last control character, as one notation reads it.
#[derive(Clone)]
struct AnswerReading {
    /// None if no escapes are undone.
    notation: Option<EscapeNotation>,
    chars: Vec<CharPlace>,
    /// The digest of what is before each character, and of everything.
    digests: Vec<TextDigest>,
    /// At how many characters the search for forms that end there is done.
    searched: usize,
    /// Bytes that could be the beginning of an escape, and where they are.
    undecided: Zeroizing<Vec<u8>>,
    undecided_at: Vec<u64>,
    /// How many characters ago this reading differed from the plain one.
    since_difference: usize,
}

impl AnswerReading {
    fn new() -> Self {
        let (chars, undecided, undecided_at) = Default::default();
        Self {
            notation: None,
            chars,
            digests: vec![TextDigest::default()],
            searched: 0,
            undecided,
            undecided_at,
            since_difference: 0,
        }
    }

    /// Returns a reading that was the same until now.
    fn with_notation(&self, notation: EscapeNotation) -> Self {
        Self { notation: Some(notation), since_difference: 0, ..self.clone() }
    }

    fn read(&mut self, byte: u8, at: u64, search: &mut FormSearch<'_>) {
        if self.undecided.is_empty() && self.notation.is_none_or(|notation| notation.start() != byte) {
            self.add_literal(byte, at, search);
        } else {
            self.undecided.push(byte);
            self.undecided_at.push(at);
            self.decide(false, search);
        }
    }

    /// Reads bytes that could be the beginning of an escape, unless that depends on bytes to come.
    fn decide(&mut self, is_end: bool, search: &mut FormSearch<'_>) {
        while let (Some(notation), Some(&first)) = (self.notation, self.undecided.first()) {
            let is_start = first == notation.start();
            let reading = if is_start { notation.read(&self.undecided) } else { EscapeReading::Literal };
            let (length, text) = match reading {
                EscapeReading::Partial if !is_end => return,
                EscapeReading::Partial | EscapeReading::Literal => (1, None),
                EscapeReading::Escape { length, text } => (length, Some(text)),
            };
            let place = CharPlace { start: self.undecided_at[0], end: self.undecided_at[length - 1] + 1 };
            self.undecided.drain(..length);
            self.undecided_at.drain(..length);
            match text {
                None => self.add_literal(first, place.start, search),
                Some(text) => {
                    self.since_difference = 0;
                    text.iter().for_each(|byte| self.add(*byte, place));
                }
            }
        }
    }

    fn add_literal(&mut self, byte: u8, at: u64, search: &mut FormSearch<'_>) {
        if byte < b' ' {
            search.find(self);
            self.chars.clear();
            self.digests.truncate(1);
            self.searched = 0;
        } else {
            self.add(byte, CharPlace { start: at, end: at + 1 });
        }
    }

    fn add(&mut self, byte: u8, place: CharPlace) {
        self.digests.push(self.digests[self.chars.len()].followed_by(byte));
        self.chars.push(place);
        self.since_difference += 1;
    }

    /// Searches what is new, and drops what no form can still reach.
    fn search_and_trim(&mut self, search: &mut FormSearch<'_>) {
        search.find(self);
        let count = self.chars.len().saturating_sub(search.longest);
        self.chars.drain(..count);
        self.digests.drain(..count);
        self.searched -= count;
    }

    /// Returns where the first byte is that must wait, if any must.
    fn wait_from(&self, longest: usize) -> Option<u64> {
        let first = self.chars.get(self.chars.len().saturating_sub(longest - 1)).map(|place| place.start);
        first.or(self.undecided_at.first().copied())
    }
}

/// A search for the forms of secrets among bytes that wait.
struct FormSearch<'a> {
    forms: &'a AnswerForms,
    longest: usize,
    /// Whether each byte that waits is part of a secret.
    is_secret: &'a mut [bool],
    /// Where the first byte is that waits.
    waiting_from: u64,
}

impl FormSearch<'_> {
    /// Finds the forms that end where the reading was not searched yet.
    fn find(&mut self, reading: &mut AnswerReading) {
        for forms in self.forms.lengths() {
            let first = (reading.searched + 1).saturating_sub(forms.length);
            let Some(ends) = reading.digests.get(first + forms.length..) else { continue };
            for (start, (before, end)) in (first..).zip(reading.digests[first..].iter().zip(ends)) {
                if forms.digests.contains(&end.without(*before, forms.power)) {
                    let chars = &reading.chars[start..start + forms.length];
                    chars.iter().for_each(|place| self.mark(*place));
                }
            }
        }
        reading.searched = reading.chars.len();
    }

    fn mark(&mut self, place: CharPlace) {
        let [start, end] = [place.start, place.end].map(|at| at.saturating_sub(self.waiting_from) as usize);
        self.is_secret[start..end].fill(true);
    }
}

/// The state of one answer.
pub(crate) struct AnswerScrubber {
    plain: AnswerReading,
    /// Readings that differ from the plain one so near that a form could reach there.
    escaped: Vec<AnswerReading>,
    /// Bytes that wait, and whether each is part of a secret.
    waiting: Zeroizing<Vec<u8>>,
    is_secret: Vec<bool>,
    /// How many bytes were passed on.
    passed: u64,
    /// How many bytes of the present secret were written.
    written: usize,
}

impl AnswerScrubber {
    pub(crate) fn new() -> Self {
        let (waiting, is_secret, escaped) = Default::default();
        Self { plain: AnswerReading::new(), escaped, waiting, is_secret, passed: 0, written: 0 }
    }

    /// Returns a whole text without the secrets, or None if it has none.
    pub(crate) fn scrub_whole(forms: &AnswerForms, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut scrubber = Self::new();
        scrubber.read(forms, bytes, AnswerPart::Content);
        let clean = scrubber.pass_all(forms);
        (clean != bytes).then_some(clean)
    }

    /// Takes the next bytes.
    pub(crate) fn read(&mut self, forms: &AnswerForms, bytes: &[u8], part: AnswerPart) {
        let longest = forms.longest();
        for block in bytes.chunks(BLOCK) {
            let from = self.passed + self.waiting.len() as u64;
            self.waiting.extend_from_slice(block);
            self.is_secret.resize(self.waiting.len(), false);
            let Self { plain, escaped, is_secret, passed, .. } = self;
            let mut search = FormSearch { forms, longest, is_secret, waiting_from: *passed };
            for (&byte, at) in block.iter().zip(from..) {
                let differs = |notation: &EscapeNotation| part == AnswerPart::Framing || notation.start() == byte;
                for notation in EscapeNotation::ALL.into_iter().filter(differs) {
                    match escaped.iter_mut().find(|reading| reading.notation == Some(notation)) {
                        Some(reading) => reading.since_difference = 0,
                        None => escaped.push(plain.with_notation(notation)),
                    }
                }
                plain.read(byte, at, &mut search);
                if part == AnswerPart::Content {
                    escaped.iter_mut().for_each(|reading| reading.read(byte, at, &mut search));
                }
            }
            plain.search_and_trim(&mut search);
            escaped.iter_mut().for_each(|reading| reading.search_and_trim(&mut search));
            escaped.retain(|reading| reading.since_difference <= longest || !reading.undecided.is_empty());
        }
    }

    /// Returns the bytes that need not wait.
    pub(crate) fn pass(&mut self, forms: &AnswerForms) -> Vec<u8> {
        let readings = self.escaped.iter().chain([&self.plain]);
        let wait_from = readings.filter_map(|reading| reading.wait_from(forms.longest())).min();
        let count = wait_from.map_or(self.waiting.len(), |at| at.saturating_sub(self.passed) as usize);
        self.take(forms, count)
    }

    /// Returns all bytes, at the end of an answer or of one of its messages. The rest of a form that goes on there is still
    /// found.
    pub(crate) fn pass_all(&mut self, forms: &AnswerForms) -> Vec<u8> {
        let Self { escaped, is_secret, passed, .. } = self;
        let mut search = FormSearch { forms, longest: forms.longest(), is_secret, waiting_from: *passed };
        for reading in escaped {
            reading.decide(true, &mut search);
            reading.search_and_trim(&mut search);
        }
        self.take(forms, self.waiting.len())
    }

    fn take(&mut self, forms: &AnswerForms, count: usize) -> Vec<u8> {
        let taken = Zeroizing::new(self.waiting.drain(..count).collect::<Vec<u8>>());
        self.passed += count as u64;
        let passed = taken.iter().zip(self.is_secret.drain(..count)).map(|(&byte, is_secret)| {
            self.written = if is_secret { self.written + 1 } else { 0 };
            if is_secret { forms.placeholder_byte(self.written - 1) } else { byte }
        });
        passed.collect()
    }
}

#[cfg(test)]
mod tests;
