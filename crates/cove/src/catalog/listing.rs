//! The tools of one server. Ten thousand of them are kept as the text that is on disk, about a kilobyte each, and become
//! documents one at a time when they are asked for; what a search needs is made when somebody first searches.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::search::Part;
use super::{ToolDocument, clean, names};

/// Of one server, as text.
pub(super) const MAX_TEXT: usize = 31 << 20;
/// As many reasons for leaving tools out are told one by one.
const MAX_WORDS: usize = 5;

#[derive(Debug)]
pub struct Listing {
    /// One document a line, each line but the last ending with a comma: the inside of a JSON array.
    text: String,
    tools: Vec<Place>,
    spellings: OnceLock<Spellings>,
    part: OnceLock<Part>,
}

#[derive(Debug)]
struct Place {
    name: Box<str>,
    document: Range<u32>,
}

#[derive(Debug)]
struct Spellings {
    aliases: Vec<String>,
    /// By alias, and by the letters alone.
    by_alias: HashMap<String, u32>,
    by_plain: HashMap<String, u32>,
}

/// Only what must be looked at when a listing is read: the rest must be JSON of the right kind.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, rename = "input_schema")]
    _input: BTreeMap<Cow<'a, str>, IgnoredAny>,
    #[serde(borrow, default, rename = "output_schema")]
    _output: Option<BTreeMap<Cow<'a, str>, IgnoredAny>>,
}

impl Listing {
    /// Cleaned, without doubles, within bounds; and what was left out.
    pub(super) fn of(tools: Vec<ToolDocument>) -> (Self, Vec<String>) {
        let mut seen = HashSet::new();
        let mut listing = Self::empty(String::new());
        let (mut words, mut left_out) = (Vec::new(), 0);
        let mut refuse = |word: String| {
            left_out += 1;
            if words.len() < MAX_WORDS {
                words.push(format!("left out {word}"));
            }
        };
        for tool in tools {
            let tool = match clean::document(tool) {
                Ok(tool) => tool,
                Err(word) => {
                    refuse(word);
                    continue;
                }
            };
            if !seen.insert(tool.name.clone()) {
                refuse(format!("a second tool `{}`", tool.name));
                continue;
            }
            let document = serde_json::to_string(&tool).unwrap_or_default();
            if listing.text.len() + document.len() + 2 > MAX_TEXT {
                refuse(format!("`{}`: a server's tools may have {} MiB", tool.name, MAX_TEXT >> 20));
                continue;
            }
            if !listing.text.is_empty() {
                listing.text += ",\n";
            }
            let start = listing.text.len() as u32;
            listing.text += &document;
            let document = start..listing.text.len() as u32;
            listing.tools.push(Place { name: tool.name.into(), document });
        }
        if left_out > words.len() {
            words.push(format!("left out {} more", left_out - words.len()));
        }
        listing.text.shrink_to_fit();
        (listing, words)
    }

    /// From lines as [`Listing::text`] has them.
    pub(super) fn read(text: String) -> Result<Self, String> {
        let mut listing = Self::empty(text);
        let mut start = 0;
        for (number, line) in listing.text.split_inclusive('\n').enumerate() {
            let document = line.trim_end_matches('\n').trim_end_matches(',');
            let head: Head =
                serde_json::from_str(document).map_err(|error| format!("tool {number}: {error}"))?;
            let place = start as u32..(start + document.len()) as u32;
            listing.tools.push(Place { name: head.name.into(), document: place });
            start += line.len();
        }
        Ok(listing)
    }

    fn empty(text: String) -> Self {
        Self { text, tools: Vec::new(), spellings: OnceLock::new(), part: OnceLock::new() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub fn len(&self) -> usize {
        self.tools.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// As the server spells them, in its order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| &*tool.name)
    }

    /// How code calls a tool, by its place in the list.
    pub fn alias(&self, at: usize) -> &str {
        self.spellings().aliases.get(at).map_or("", String::as_str)
    }

    /// A tool by its place in the list.
    pub fn document(&self, at: usize) -> Option<ToolDocument> {
        serde_json::from_str(self.document_text(at)?).ok()
    }

    pub(super) fn name(&self, at: usize) -> &str {
        self.tools.get(at).map_or("", |tool| &tool.name)
    }

    pub(super) fn document_text(&self, at: usize) -> Option<&str> {
        let Range { start, end } = self.tools.get(at)?.document;
        self.text.get(start as usize..end as usize)
    }

    pub fn documents(&self) -> impl Iterator<Item = ToolDocument> {
        (0..self.len()).filter_map(|at| self.document(at))
    }

    /// The place of a tool: its exact name before its alias before any other spelling.
    pub fn position(&self, name: &str) -> Option<usize> {
        let exact = self.tools.iter().position(|tool| *tool.name == *name);
        exact.or_else(|| {
            let spellings = self.spellings();
            let found = spellings.by_alias.get(name).or_else(|| spellings.by_plain.get(&names::plain(name)));
            found.map(|at| *at as usize)
        })
    }

    pub(super) fn part(&self) -> &Part {
        self.part.get_or_init(|| Part::build(self))
    }

    fn spellings(&self) -> &Spellings {
        self.spellings.get_or_init(|| {
            let all: Vec<&str> = self.names().collect();
            let aliases = names::tool_aliases(&all);
            let by_alias = aliases.iter().cloned().zip(0..).collect();
            // The first by its sorted name, whatever the order of the list.
            let mut sorted: Vec<(&str, u32)> = all.into_iter().zip(0..).collect();
            sorted.sort_unstable();
            let mut by_plain = HashMap::with_capacity(sorted.len());
            for (name, at) in sorted {
                let plain = names::plain(name);
                // Nothing but signs: that would match every other such name.
                if !plain.is_empty() {
                    by_plain.entry(plain).or_insert(at);
                }
            }
            Spellings { aliases, by_alias, by_plain }
        })
    }
}
