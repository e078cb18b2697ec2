//! The search index of one server's tools. It depends on that server alone, so a change of one server does not affect
//! the others. Flat vectors keep it small: a few bytes for each word of a tool.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::tool_document::says_deprecated;
use super::super::{ToolListing, names};
use super::embedding::{MeaningVector, TextEmbedder, WordEmbedding, similarity};
use super::words;
use cove_core::spelling::distance;

/// A field's weight, how much its length counts against it, and its usual length. The usual length is fixed, because
/// an average would change with every other server.
struct FieldWeight {
    weight: f32,
    by_length: f32,
    usual: f32,
}

const NAME: FieldWeight = FieldWeight { weight: 3.0, by_length: 0.4, usual: 3.0 };
const DESCRIPTION: FieldWeight = FieldWeight { weight: 1.0, by_length: 0.5, usual: 8.0 };
const PARAMETERS: FieldWeight = FieldWeight { weight: 0.4, by_length: 0.6, usual: 5.0 };
/// How fast repetitions of a word count less.
const SATURATION: f32 = 1.2;
/// Most words of a description that are indexed: a long text must not dominate the score or fill memory.
const MAX_WORDS: usize = 200;

/// The words of one server's tools, and which tools use each word.
#[derive(Debug, Default)]
pub(crate) struct ServerIndex {
    /// All words in sorted order, without separators.
    letters: String,
    /// Where each word begins, and where the last one ends.
    begins: Vec<u32>,
    /// Where the uses of each word begin in `tools`, and where the last ones end.
    uses: Vec<u32>,
    tools: Vec<WordUse>,
    /// The outline of each word, the shortest first, for a cheap comparison with a mistyped one.
    outlines: Vec<WordOutline>,
    /// Sorted pairs of a name's letters and digits and its tool.
    names: Vec<(Box<str>, u32)>,
    /// Deprecated tools, in sorted order.
    deprecated: Vec<u32>,
    /// The meaning of each tool. Empty if search compares words only.
    meanings: Vec<MeaningVector>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct WordUse {
    pub(super) tool: u32,
    /// From 0 to 1: how much the tool is about the word.
    pub(super) weight: f32,
}

#[derive(Deserialize)]
struct IndexedTool<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    title: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
    #[serde(default)]
    deprecated: bool,
    #[serde(borrow)]
    input_schema: IndexedInput<'a>,
}

#[derive(Deserialize, Default)]
struct IndexedInput<'a> {
    #[serde(borrow, default)]
    properties: BTreeMap<Cow<'a, str>, IgnoredAny>,
}

impl ServerIndex {
    pub(in super::super) fn build(listing: &ToolListing, table: Option<&WordEmbedding>) -> Self {
        let mut index = IndexBuilder::default();
        let mut embedder = table.map(TextEmbedder::new);
        let (mut deprecated, mut meanings) = (Vec::new(), Vec::new());
        for at in 0..listing.len() {
            let text = listing.document_text(at).unwrap_or_default();
            // If the properties are not an object, the tool is still found by its name.
            let tool = serde_json::from_str(text).unwrap_or_else(|_| IndexedTool {
                name: Cow::Borrowed(listing.name(at)),
                title: None,
                description: Cow::Borrowed(""),
                deprecated: false,
                input_schema: IndexedInput::default(),
            });
            index.add(at as u32, &tool);
            if tool.deprecated || says_deprecated(&tool.description) {
                deprecated.push(at as u32);
            }
            let texts = [&tool.name, tool.title.as_deref().unwrap_or_default(), &tool.description];
            meanings.extend(embedder.as_mut().map(|embedder| embedder.embed(&texts)));
        }
        meanings.shrink_to_fit();
        Self { deprecated, meanings, ..index.finish() }
    }

    pub(super) fn is_deprecated(&self, tool: u32) -> bool {
        self.deprecated.binary_search(&tool).is_ok()
    }

    /// Returns how similar a tool is to a query in meaning: from -1 to 1, and 0 if search compares words only.
    pub(super) fn similarity(&self, tool: usize, query: &MeaningVector) -> f32 {
        self.meanings.get(tool).map_or(0.0, |meaning| similarity(meaning, query))
    }

    pub(super) fn word_count(&self) -> usize {
        self.begins.len().saturating_sub(1)
    }

    fn word(&self, at: usize) -> &str {
        &self.letters[self.begins[at] as usize..self.begins[at + 1] as usize]
    }

    pub(super) fn uses(&self, word: usize) -> &[WordUse] {
        &self.tools[self.uses[word] as usize..self.uses[word + 1] as usize]
    }

    pub(super) fn find_word(&self, word: &str) -> Option<usize> {
        let at = self.lower_bound(word);
        (at < self.word_count() && self.word(at) == word).then_some(at)
    }

    /// Returns words that begin with `start`, the word itself first, with the share of the word that `start` covers.
    pub(super) fn find_prefixed<'a>(&'a self, start: &'a str) -> impl Iterator<Item = (usize, f32)> + 'a {
        (self.lower_bound(start)..self.word_count())
            .map(|at| (at, self.word(at)))
            .take_while(move |(_, word)| word.starts_with(start))
            .map(move |(at, word)| (at, start.len() as f32 / word.len() as f32))
    }

    /// Returns words with a similar spelling, with their similarity.
    pub(super) fn find_similar(&self, word: &str) -> Vec<(usize, f32)> {
        let length = word.chars().count();
        if length < 4 {
            return Vec::new();
        }
        let allowed = if length < 7 { 1 } else { 2 };
        let outline = WordOutline::new(word, 0);
        let longer = self.outlines.partition_point(|other| other.length + allowed < outline.length);
        let alike = self.outlines[longer..].iter().take_while(|other| other.length <= outline.length + allowed);
        let near = alike.filter(|other| outline.may_be_within(allowed, other)).map(|other| other.word as usize);
        near.filter_map(|at| {
            let steps = distance(word, self.word(at));
            (steps <= allowed as usize).then(|| (at, 1.0 - steps as f32 / length as f32))
        })
        .collect()
    }

    /// Returns tools whose names have exactly these letters and digits.
    pub(super) fn tools_named<'a>(&'a self, plain: &'a str) -> impl Iterator<Item = u32> + 'a {
        let from = self.names.partition_point(|(name, _)| &**name < plain);
        self.names[from..].iter().take_while(move |(name, _)| &**name == plain).map(|(_, tool)| *tool)
    }

    fn lower_bound(&self, word: &str) -> usize {
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
struct IndexBuilder {
    numbers: HashMap<Box<str>, u32>,
    uses: Vec<Vec<WordUse>>,
    names: Vec<(Box<str>, u32)>,
    /// For the tool that is being added: how often each word occurs in each field.
    counts: HashMap<u32, [f32; 3]>,
    lengths: [f32; 3],
}

impl IndexBuilder {
    fn add(&mut self, tool: u32, document: &IndexedTool<'_>) {
        self.counts.clear();
        self.lengths = [0.0; 3];
        self.count_words(0, &document.name);
        self.count_words(1, document.title.as_deref().unwrap_or_default());
        self.count_words(1, &document.description);
        for parameter in document.input_schema.properties.keys() {
            self.count_words(2, parameter);
        }
        for (word, counts) in &self.counts {
            let fields = [NAME, DESCRIPTION, PARAMETERS].into_iter().zip(counts).zip(self.lengths);
            let sum: f32 = fields
                .map(|((field, count), length)| {
                    field.weight * count / (1.0 - field.by_length + field.by_length * length / field.usual)
                })
                .sum();
            self.uses[*word as usize].push(WordUse { tool, weight: sum / (SATURATION + sum) });
        }
        self.names.push((names::plain(&document.name).into(), tool));
    }

    fn count_words(&mut self, field: usize, text: &str) {
        let Self { numbers, uses, counts, lengths, .. } = self;
        words::split_words(text, |word| {
            if words::is_stop_word(word) || lengths[field] >= MAX_WORDS as f32 {
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

    fn finish(mut self) -> ServerIndex {
        let mut sorted: Vec<(Box<str>, u32)> = self.numbers.into_iter().collect();
        sorted.sort_unstable();
        let mut part = ServerIndex::default();
        for (at, (word, number)) in sorted.iter().enumerate() {
            part.begins.push(part.letters.len() as u32);
            part.uses.push(part.tools.len() as u32);
            part.letters += word;
            part.tools.append(&mut self.uses[*number as usize]);
            part.outlines.push(WordOutline::new(word, at as u32));
        }
        part.begins.push(part.letters.len() as u32);
        part.uses.push(part.tools.len() as u32);
        part.outlines.sort_by_key(|outline| outline.length);
        part.names = self.names;
        part.names.sort_unstable();
        part.letters.shrink_to_fit();
        part.tools.shrink_to_fit();
        part.outlines.shrink_to_fit();
        part
    }
}

/// A word's place, the set of its letters, as bits, and their number. Letters that share a bit may cost an extra
/// comparison but never change a result.
#[derive(Debug, Clone, Copy)]
struct WordOutline {
    word: u32,
    letters: u32,
    length: u32,
}

impl WordOutline {
    fn new(text: &str, word: u32) -> Self {
        let letters = text.chars().fold(0, |letters, c| letters | 1 << (c as u32 & 31));
        Self { word, letters, length: text.chars().count() as u32 }
    }

    /// Returns false if more than `allowed` mistakes lie between words of about the same length: each adds at most one
    /// letter to the set, and removes at most one.
    fn may_be_within(self, allowed: u32, other: &Self) -> bool {
        has_at_most(allowed, self.letters & !other.letters) && has_at_most(allowed, other.letters & !self.letters)
    }
}

/// Returns true if at most `count` bits are set. For one or two this is faster than to count them.
fn has_at_most(count: u32, bits: u32) -> bool {
    (0..count).fold(bits, |left, _| left & left.wrapping_sub(1)) == 0
}
