//! The index of one server's tools. What it holds depends on nothing but that server, so that a change of one server
//! costs nothing for the others. Flat vectors: a few bytes for each word of a tool.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::{Listing, names};
use super::words;

/// A field's weight, how much its length counts against it, and the length that is usual. The usual length is fixed, for
/// an average would change with every other server.
struct Field {
    weight: f32,
    by_length: f32,
    usual: f32,
}

const NAME: Field = Field { weight: 3.0, by_length: 0.4, usual: 3.0 };
const DESCRIPTION: Field = Field { weight: 1.0, by_length: 0.5, usual: 8.0 };
const PARAMETERS: Field = Field { weight: 0.4, by_length: 0.6, usual: 5.0 };
/// How fast more of the same word counts less.
const SATURATION: f32 = 1.2;
/// Words of a description that are looked at: an essay must not drown the rest, nor fill memory.
const MAX_WORDS: usize = 200;

#[derive(Debug, Default)]
pub(crate) struct Part {
    /// All words, one after the other in their order.
    letters: String,
    /// Where each word begins, and where the last ends.
    begins: Vec<u32>,
    /// Where the tools of each word begin, and where the last end.
    uses: Vec<u32>,
    tools: Vec<Use>,
    /// Three letters and a word that has them, in order.
    trigrams: Vec<(u32, u32)>,
    /// The letters of each name alone, and its tool, in order.
    names: Vec<(Box<str>, u32)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) tool: u32,
    /// From 0 to 1: how much the tool is about the word.
    pub(super) weight: f32,
}

#[derive(Deserialize)]
struct Indexed<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    title: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
    #[serde(borrow)]
    input_schema: Input<'a>,
}

#[derive(Deserialize, Default)]
struct Input<'a> {
    #[serde(borrow, default)]
    properties: BTreeMap<Cow<'a, str>, IgnoredAny>,
}

impl Part {
    pub(in super::super) fn build(listing: &Listing) -> Self {
        let mut index = Building::default();
        for at in 0..listing.len() {
            let text = listing.document_text(at).unwrap_or_default();
            // Properties that are no object: the tool is still found by its name.
            let tool = serde_json::from_str(text).unwrap_or_else(|_| Indexed {
                name: Cow::Borrowed(listing.name(at)),
                title: None,
                description: Cow::Borrowed(""),
                input_schema: Input::default(),
            });
            index.add(at as u32, &tool);
        }
        index.finish()
    }

    pub(super) fn word_count(&self) -> usize {
        self.begins.len().saturating_sub(1)
    }

    fn word(&self, at: usize) -> &str {
        &self.letters[self.begins[at] as usize..self.begins[at + 1] as usize]
    }

    pub(super) fn uses(&self, word: usize) -> &[Use] {
        &self.tools[self.uses[word] as usize..self.uses[word + 1] as usize]
    }

    pub(super) fn exact(&self, word: &str) -> Option<usize> {
        let at = self.first_from(word);
        (at < self.word_count() && self.word(at) == word).then_some(at)
    }

    /// Words that go on from this one, with the part of them that was given.
    pub(super) fn longer<'a>(&'a self, start: &'a str) -> impl Iterator<Item = (usize, f32)> + 'a {
        (self.first_from(start)..self.word_count())
            .map(|at| (at, self.word(at)))
            .take_while(move |(_, word)| word.starts_with(start))
            .filter(move |(_, word)| word.len() > start.len())
            .map(move |(at, word)| (at, start.len() as f32 / word.len() as f32))
    }

    /// Words spelled nearly so, with how near they are.
    pub(super) fn alike(&self, word: &str) -> Vec<(usize, f32)> {
        let wrong: Vec<char> = word.chars().collect();
        if wrong.len() < 4 {
            return Vec::new();
        }
        let grams = trigrams(word);
        let mut shared: HashMap<u32, usize> = HashMap::new();
        for gram in &grams {
            let from = self.trigrams.partition_point(|(other, _)| other < gram);
            for (_, at) in self.trigrams[from..].iter().take_while(|(other, _)| other == gram) {
                *shared.entry(*at).or_default() += 1;
            }
        }
        let allowed = if wrong.len() < 7 { 1 } else { 2 };
        let mut alike: Vec<(usize, f32)> = shared
            .into_iter()
            // A mistake spoils at most three of them, and a swap of neighbours four.
            .filter(|(_, count)| count + 4 * allowed >= grams.len())
            .filter_map(|(at, _)| {
                let right: Vec<char> = self.word(at as usize).chars().collect();
                let differs = right.len().abs_diff(wrong.len()) > allowed;
                let far = if differs { usize::MAX } else { names::distance(&wrong, &right) };
                (far <= allowed).then(|| (at as usize, 1.0 - far as f32 / wrong.len() as f32))
            })
            .collect();
        // A map has no order, and sums of floats have one.
        alike.sort_unstable_by_key(|(at, _)| *at);
        alike
    }

    /// Tools whose names have exactly these letters.
    pub(super) fn named<'a>(&'a self, plain: &'a str) -> impl Iterator<Item = u32> + 'a {
        let from = self.names.partition_point(|(name, _)| &**name < plain);
        self.names[from..].iter().take_while(move |(name, _)| &**name == plain).map(|(_, tool)| *tool)
    }

    fn first_from(&self, word: &str) -> usize {
        let (mut low, mut high) = (0, self.word_count());
        while low < high {
            let middle = low.midpoint(high);
            if self.word(middle) < word {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[derive(Default)]
struct Building {
    numbers: HashMap<Box<str>, u32>,
    uses: Vec<Vec<Use>>,
    names: Vec<(Box<str>, u32)>,
    /// Of the tool that is being added: how often each word is in each field.
    counts: HashMap<u32, [f32; 3]>,
    lengths: [f32; 3],
}

impl Building {
    fn add(&mut self, tool: u32, document: &Indexed<'_>) {
        self.counts.clear();
        self.lengths = [0.0; 3];
        self.count(0, &document.name);
        self.count(1, document.title.as_deref().unwrap_or_default());
        self.count(1, &document.description);
        for parameter in document.input_schema.properties.keys() {
            self.count(2, parameter);
        }
        for (word, counts) in &self.counts {
            let fields = [NAME, DESCRIPTION, PARAMETERS].into_iter().zip(counts).zip(self.lengths);
            let sum: f32 = fields
                .map(|((field, count), length)| {
                    field.weight * count / (1.0 - field.by_length + field.by_length * length / field.usual)
                })
                .sum();
            self.uses[*word as usize].push(Use { tool, weight: sum / (SATURATION + sum) });
        }
        self.names.push((names::plain(&document.name).into(), tool));
    }

    fn count(&mut self, field: usize, text: &str) {
        let Self { numbers, uses, counts, lengths, .. } = self;
        words::split(text, |word| {
            if words::is_empty(word) || lengths[field] >= MAX_WORDS as f32 {
                return;
            }
            let word = words::stem(word);
            let number = match numbers.get(word) {
                Some(number) => *number,
                None => {
                    let number = uses.len() as u32;
                    numbers.insert(word.into(), number);
                    uses.push(Vec::new());
                    number
                }
            };
            counts.entry(number).or_default()[field] += 1.0;
            lengths[field] += 1.0;
        });
    }

    fn finish(mut self) -> Part {
        let mut sorted: Vec<(Box<str>, u32)> = self.numbers.into_iter().collect();
        sorted.sort_unstable();
        let mut part = Part::default();
        for (at, (word, number)) in sorted.iter().enumerate() {
            part.begins.push(part.letters.len() as u32);
            part.uses.push(part.tools.len() as u32);
            part.letters += word;
            part.tools.append(&mut self.uses[*number as usize]);
            part.trigrams.extend(trigrams(word).into_iter().map(|gram| (gram, at as u32)));
        }
        part.begins.push(part.letters.len() as u32);
        part.uses.push(part.tools.len() as u32);
        part.trigrams.sort_unstable();
        part.names = self.names;
        part.names.sort_unstable();
        part.letters.shrink_to_fit();
        part.tools.shrink_to_fit();
        part.trigrams.shrink_to_fit();
        part
    }
}

/// Every three letters of a word, its edges counted as letters. Letters beyond a byte share their numbers, which costs a
/// comparison and no result.
fn trigrams(word: &str) -> Vec<u32> {
    let letters: Vec<u32> =
        std::iter::once(1).chain(word.chars().map(|c| c as u32 & 0xff)).chain([2]).collect();
    let mut grams: Vec<u32> = letters.windows(3).map(|gram| gram[0] << 16 | gram[1] << 8 | gram[2]).collect();
    grams.sort_unstable();
    grams.dedup();
    grams
}
