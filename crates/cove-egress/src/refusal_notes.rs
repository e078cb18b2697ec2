//! Notes of refusals for the result of a cell, because many clients hide why a proxy refused them.

use std::sync::Mutex;

use cove_core::sync::lock;

use crate::refusal::EgressRefusal;
use crate::refusal_lines::RefusalLines;

/// Notes in one result.
const MAX_NOTES: usize = 5;

/// The refusals of one cell.
#[derive(Default)]
pub(crate) struct RefusalNotes {
    /// The first ones, and how many there are besides.
    texts: Mutex<(Vec<String>, usize)>,
    pub(crate) lines: RefusalLines,
}

impl RefusalNotes {
    /// Adds a refusal, unless the same one is there.
    pub(crate) fn add(&self, refusal: &EgressRefusal) {
        let mut notes = lock(&self.texts);
        let (texts, more) = &mut *notes;
        let text = refusal.to_string();
        if texts.contains(&text) {
        } else if texts.len() < MAX_NOTES {
            texts.push(text);
        } else {
            *more = more.saturating_add(1);
        }
    }

    /// Counts further refusals, of which the guest told the number only.
    pub(crate) fn add_further(&self, count: u64) {
        let (_, more) = &mut *lock(&self.texts);
        *more = more.saturating_add(usize::try_from(count).unwrap_or(usize::MAX));
    }

    /// Returns the notes and forgets them. The lines of the cell end too.
    pub(crate) fn take(&self) -> Vec<String> {
        self.lines.end();
        let (mut texts, more) = std::mem::take(&mut *lock(&self.texts));
        if more > 0 {
            texts.push(format!("network: {more} further requests were refused"));
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::RefusalReason;

    #[test]
    fn notes_are_few_and_each_is_there_once() {
        let notes = RefusalNotes::default();
        for number in [1, 1, 2, 3, 4, 5, 6, 7] {
            notes.add(&EgressRefusal {
                reason: RefusalReason::HostNotAllowed,
                target: format!("h{number}.test:443"),
                cause: "no rule".into(),
                hint: "add one".into(),
            });
        }
        let taken = notes.take();
        assert_eq!((taken.len(), taken[5].as_str()), (6, "network: 2 further requests were refused"));
        assert_eq!(taken[1], "network: refused h2.test:443 (no rule; add one)");
        assert!(notes.take().is_empty());
    }
}
