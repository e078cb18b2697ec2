//! The meaning of a text as a vector, so that search finds tools that say the same in other words. A text is the mean
//! of its words, which a table gives: nothing is computed but sums. The table is built into the program;
//! `weights/README.md` describes its origin and layout.

use std::collections::HashMap;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use super::words::split_words;

const DIMENSIONS: usize = 64;
/// The length of a vector, as signed bytes allow it.
const UNIT: f32 = 127.0;
/// Values in the table are multiples of a word's scale, from -7 to 7; four bits hold them with this offset.
const OFFSET: i8 = 8;
/// Scales in the table have 13 binary places.
const SCALE_UNIT: f32 = 8192.0;
const DIGEST: usize = 32;
/// Most words of one text that count.
const MAX_WORDS: usize = 300;

/// A direction; the length is always the same.
pub(super) type MeaningVector = [i8; DIMENSIONS];

/// The table of the program, read at the first search.
pub(in super::super) static BUILT_IN: LazyEmbedding =
    LazyEmbedding::new(include_bytes!("../../../weights/potion-base-2m.bin"));

/// A table that is read when it is first needed.
#[derive(Debug)]
pub(in super::super) struct LazyEmbedding {
    bytes: &'static [u8],
    read: OnceLock<Option<WordEmbedding>>,
}

impl LazyEmbedding {
    pub(in super::super) const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes, read: OnceLock::new() }
    }

    /// Returns `None` if the table is damaged, and logs that once.
    pub(super) fn get(&self) -> Option<&WordEmbedding> {
        let read = || {
            WordEmbedding::from_bytes(self.bytes)
                .inspect_err(|problem| {
                    tracing::warn!("could not read the weights for search, so it compares words only: {problem}");
                })
                .ok()
        };
        self.read.get_or_init(read).as_ref()
    }
}

/// A vector for each word and each piece of a word.
#[derive(Debug)]
pub(in super::super) struct WordEmbedding {
    /// Sorted, one a line. `#` begins a piece that continues a word.
    words: &'static str,
    /// Where each line begins, and where the last one ends.
    begins: Vec<u32>,
    /// For each word: two bytes of scale.
    scales: &'static [u8],
    /// For each word: two values in each byte, the first in the low bits.
    values: &'static [u8],
}

impl WordEmbedding {
    /// Fails with what is wrong with the bytes.
    fn from_bytes(bytes: &'static [u8]) -> Result<Self, &'static str> {
        let (digest, body) = bytes.split_at_checked(DIGEST).ok_or("they are too short")?;
        if Sha256::digest(body)[..] != *digest {
            return Err("their checksum is wrong");
        }
        Self::from_body(body).ok_or("their layout is wrong")
    }

    fn from_body(body: &'static [u8]) -> Option<Self> {
        let (count, body) = body.split_first_chunk()?;
        let (length, body) = body.split_first_chunk()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (words, body) = body.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (scales, values) = body.split_at_checked(count.checked_mul(2)?)?;
        let words = std::str::from_utf8(words).ok()?;
        let mut begins = vec![0];
        begins.extend(words.match_indices('\n').map(|(at, _)| at as u32 + 1));
        let fits = begins.len() == count + 1 && values.len() == count * DIMENSIONS / 2;
        fits.then_some(Self { words, begins, scales, values })
    }

    /// Returns the meaning of a query, or `None` if it has no word of the table: then only pieces would match, and
    /// pieces of gibberish mean nothing.
    pub(super) fn embed_query(&self, query: &str) -> Option<MeaningVector> {
        let mut is_known = false;
        split_words(query, |word| is_known |= self.find_row(word).is_some());
        is_known.then(|| TextEmbedder::new(self).embed(&[query]))
    }

    /// Splits a word into rows of the table, always the longest that fits. Empty if a part is not there.
    fn find_rows(&self, word: &str) -> Vec<u32> {
        let mut rows = Vec::new();
        let mut rest = word.to_owned();
        // The table is ASCII, and a slice must not end within a letter.
        while word.is_ascii() && !rest.is_empty() {
            let begin = usize::from(!rows.is_empty());
            let longest = (begin + 1..=rest.len()).rev().find_map(|end| Some((end, self.find_row(&rest[..end])?)));
            let Some((end, row)) = longest else { return Vec::new() };
            rows.push(row);
            rest.replace_range(..end, if end < rest.len() { "#" } else { "" });
        }
        rows
    }

    fn find_row(&self, word: &str) -> Option<u32> {
        let line = |at: usize| &self.words[self.begins[at] as usize..self.begins[at + 1] as usize - 1];
        let (mut low, mut high) = (0, self.begins.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            match line(middle).cmp(word) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(middle as u32),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    fn add_row(&self, row: u32, sum: &mut [f32; DIMENSIONS]) {
        let row = row as usize;
        let scale = f32::from(u16::from_le_bytes([self.scales[row * 2], self.scales[row * 2 + 1]])) / SCALE_UNIT;
        let values = &self.values[row * DIMENSIONS / 2..(row + 1) * DIMENSIONS / 2];
        for (pair, packed) in sum.chunks_exact_mut(2).zip(values) {
            pair[0] += scale * f32::from((packed & 15) as i8 - OFFSET);
            pair[1] += scale * f32::from((packed >> 4) as i8 - OFFSET);
        }
    }
}

/// Embeds many texts. It remembers the rows of words, because tools of one server repeat them.
pub(super) struct TextEmbedder<'a> {
    table: &'a WordEmbedding,
    rows: HashMap<Box<str>, Vec<u32>>,
}

impl<'a> TextEmbedder<'a> {
    pub(super) fn new(table: &'a WordEmbedding) -> Self {
        Self { table, rows: HashMap::new() }
    }

    /// Returns the meaning of some texts together. It is zero if they have no known word.
    pub(super) fn embed(&mut self, texts: &[&str]) -> MeaningVector {
        let Self { table, rows } = self;
        let mut sum = [0.0_f32; DIMENSIONS];
        let mut count = 0;
        for text in texts {
            split_words(text, |word| {
                count += 1;
                if count > MAX_WORDS {
                    return;
                }
                if !rows.contains_key(word) {
                    rows.insert(word.into(), table.find_rows(word));
                }
                for row in &rows[word] {
                    table.add_row(*row, &mut sum);
                }
            });
        }
        let length = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
        let factor = if length > 0.0 { UNIT / length } else { 0.0 };
        sum.map(|value| (value * factor).round() as i8)
    }
}

/// Returns the cosine of the angle between two meanings: 1 for the same, about 0 for unrelated ones.
pub(super) fn similarity(one: &MeaningVector, other: &MeaningVector) -> f32 {
    let sum: i32 = one.iter().zip(other).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
    sum as f32 / (UNIT * UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embed(text: &str) -> MeaningVector {
        let table = BUILT_IN.get().expect("the built-in table is sound");
        table.embed_query(text).expect("a known word")
    }

    #[test]
    fn words_of_one_meaning_are_near() {
        let query = embed("erase a picture");
        let (near, far) = (embed("delete an image"), embed("list open invoices"));
        assert!(similarity(&query, &near) > 0.5, "{}", similarity(&query, &near));
        assert!(similarity(&query, &far) < 0.3, "{}", similarity(&query, &far));
        assert!((similarity(&query, &query) - 1.0).abs() < 0.05);
    }

    #[test]
    fn words_are_split_into_the_longest_pieces() {
        let table = BUILT_IN.get().expect("the built-in table is sound");
        let line = |row: u32| table.words.lines().nth(row as usize).expect("a row");
        let pieces = |word: &str| table.find_rows(word).into_iter().map(line).collect::<Vec<_>>();
        assert_eq!(pieces("weather"), ["weather"]);
        assert_eq!(pieces("unfriended"), ["un", "#fr", "#ien", "#ded"]);
        for unknown in ["", "größe", "7", "日本"] {
            assert_eq!(pieces(unknown), Vec::<&str>::new(), "{unknown}");
        }
    }

    #[test]
    fn gibberish_has_no_meaning() {
        let table = BUILT_IN.get().expect("the built-in table is sound");
        for text in ["", "zzzzzz", "sdfsdf hgfdsa", "7 8 9", "💥 \u{0}", "日本"] {
            assert_eq!(table.embed_query(text), None, "{text}");
        }
    }

    #[test]
    fn damaged_tables_are_refused() {
        let sealed = |body: &[u8]| -> &'static [u8] { [&Sha256::digest(body)[..], body].concat().leak() };
        let body = |count: u32, words: &str, rest: usize| {
            let words_length = words.len() as u32;
            [&count.to_le_bytes()[..], &words_length.to_le_bytes(), words.as_bytes(), &vec![0; rest]].concat()
        };
        let row = 2 + DIMENSIONS / 2;
        assert!(WordEmbedding::from_bytes(sealed(&body(2, "a\nb\n", 2 * row))).is_ok());
        for body in [
            body(2, "a\nb\n", 2 * row - 1),
            body(2, "a\nb\n", 2 * row + 1),
            body(3, "a\nb\n", 3 * row),
            body(u32::MAX, "a\nb\n", 2 * row),
            vec![255; 20],
            vec![0; 7],
            vec![],
        ] {
            assert_eq!(WordEmbedding::from_bytes(sealed(&body)).err(), Some("their layout is wrong"));
        }
        let mut flipped = BUILT_IN.bytes.to_vec();
        flipped[BUILT_IN.bytes.len() / 2] ^= 1;
        let flipped: &'static [u8] = flipped.leak();
        for bytes in [flipped, &flipped[..flipped.len() - 1], &[0; DIGEST]] {
            assert_eq!(WordEmbedding::from_bytes(bytes).err(), Some("their checksum is wrong"));
        }
        assert_eq!(WordEmbedding::from_bytes(&[]).err(), Some("they are too short"));
    }
}
