//! The tools of one server. They stay in memory as the text of the cache file, about a kilobyte each, because there
//! may be ten thousand. A tool is parsed when it is asked for, and the search index is built at the first search.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::search::{ServerIndex, WordEmbedding};
use super::{ToolDocument, names, sanitize};

/// Most bytes of one server's list, as text.
pub(super) const MAX_TEXT: usize = 31 << 20;
/// Most dropped tools that are reported one by one.
const MAX_WORDS: usize = 5;

/// The tools of one server, in the server's order.
#[derive(Debug)]
pub struct ToolListing {
    /// One document per line; each line but the last ends with a comma. This is the inside of a JSON array.
    text: String,
    tools: Vec<ListedTool>,
    spellings: OnceLock<ToolSpellings>,
    search_index: OnceLock<ServerIndex>,
}

#[derive(Debug)]
struct ListedTool {
    name: Box<str>,
    document: Range<u32>,
}

#[derive(Debug)]
struct ToolSpellings {
    aliases: Vec<String>,
    /// Positions by alias, and by letters and digits alone.
    by_alias: HashMap<String, u32>,
    by_plain: HashMap<String, u32>,
}

/// The fields that must be read to index a list. The others only have to be JSON of the right kind.
#[derive(Deserialize)]
struct DocumentHead<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, rename = "input_schema")]
    _input: BTreeMap<Cow<'a, str>, IgnoredAny>,
    #[serde(borrow, default, rename = "output_schema")]
    _output: Option<BTreeMap<Cow<'a, str>, IgnoredAny>>,
}

impl ToolListing {
    /// Builds a list from sanitized tools, without duplicates and within bounds. Returns the list and a warning for
    /// each dropped tool.
    pub(super) fn from_tools(tools: Vec<ToolDocument>) -> (Self, Vec<String>) {
        let mut listing = Self::empty(String::new());
        let (mut seen, mut words, mut left_out) = (HashSet::new(), Vec::new(), 0);
        for tool in tools {
            if let Err(word) = listing.add(tool, &mut seen) {
                left_out += 1;
                if words.len() < MAX_WORDS {
                    words.push(format!("left out {word}"));
                }
            }
        }
        if left_out > words.len() {
            words.push(format!("left out {} more", left_out - words.len()));
        }
        listing.text.shrink_to_fit();
        (listing, words)
    }

    /// Appends a tool. Fails with what is wrong with it.
    fn add(&mut self, tool: ToolDocument, seen: &mut HashSet<String>) -> Result<(), String> {
        let tool = sanitize::sanitize_tool(tool)?;
        if !seen.insert(tool.name.clone()) {
            return Err(format!("a second tool `{}`", tool.name));
        }
        let document = serde_json::to_string(&tool).unwrap_or_default();
        if self.text.len() + document.len() + 2 > MAX_TEXT {
            return Err(format!("`{}`: a server's tools may have {} MiB", tool.name, MAX_TEXT >> 20));
        }
        if !self.text.is_empty() {
            self.text += ",\n";
        }
        let start = self.text.len() as u32;
        self.text += &document;
        self.tools.push(ListedTool { name: tool.name.into(), document: start..self.text.len() as u32 });
        Ok(())
    }

    /// Parses text in the form of [`ToolListing::text`]. Fails with the first line that is not a tool.
    pub(super) fn parse(text: String) -> Result<Self, String> {
        let mut listing = Self::empty(text);
        let mut start = 0;
        for (number, line) in listing.text.split_inclusive('\n').enumerate() {
            let document = line.trim_end_matches('\n').trim_end_matches(',');
            let head: DocumentHead =
                serde_json::from_str(document).map_err(|error| format!("tool {number}: {error}"))?;
            let place = start as u32..(start + document.len()) as u32;
            listing.tools.push(ListedTool { name: head.name.into(), document: place });
            start += line.len();
        }
        Ok(listing)
    }

    fn empty(text: String) -> Self {
        Self { text, tools: Vec::new(), spellings: OnceLock::new(), search_index: OnceLock::new() }
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

    /// Returns the names in the server's spelling and order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| &*tool.name)
    }

    /// Returns how code calls the tool at a position.
    pub fn alias(&self, at: usize) -> &str {
        self.spellings().aliases.get(at).map_or("", String::as_str)
    }

    /// Parses the tool at a position.
    pub fn document(&self, at: usize) -> Option<ToolDocument> {
        serde_json::from_str(self.document_text(at)?).ok()
    }

    /// Returns the name of the tool at a position, in the server's spelling.
    pub fn name(&self, at: usize) -> &str {
        self.tools.get(at).map_or("", |tool| &tool.name)
    }

    pub(super) fn document_text(&self, at: usize) -> Option<&str> {
        let Range { start, end } = self.tools.get(at)?.document;
        self.text.get(start as usize..end as usize)
    }

    pub fn documents(&self) -> impl Iterator<Item = ToolDocument> {
        (0..self.len()).filter_map(|at| self.document(at))
    }

    /// Returns the position of a tool. An exact name wins over an alias, an alias over any other spelling.
    pub fn position(&self, name: &str) -> Option<usize> {
        let exact = self.tools.iter().position(|tool| *tool.name == *name);
        exact.or_else(|| {
            let spellings = self.spellings();
            let found = spellings.by_alias.get(name).or_else(|| spellings.by_plain.get(&names::plain(name)));
            found.map(|at| *at as usize)
        })
    }

    /// Returns the search index and builds it on first use. A catalog always passes the same table.
    pub(super) fn search_index(&self, table: Option<&WordEmbedding>) -> &ServerIndex {
        self.search_index.get_or_init(|| ServerIndex::build(self, table))
    }

    fn spellings(&self) -> &ToolSpellings {
        self.spellings.get_or_init(|| {
            let all: Vec<&str> = self.names().collect();
            let aliases = names::tool_aliases(&all);
            let by_alias = aliases.iter().cloned().zip(0..).collect();
            // The first in sorted order wins, so the result does not depend on the order of the list.
            let mut sorted: Vec<(&str, u32)> = all.into_iter().zip(0..).collect();
            sorted.sort_unstable();
            let mut by_plain = HashMap::with_capacity(sorted.len());
            for (name, at) in sorted {
                let plain = names::plain(name);
                // A name without letters or digits would match every other such name.
                if !plain.is_empty() {
                    by_plain.entry(plain).or_insert(at);
                }
            }
            ToolSpellings { aliases, by_alias, by_plain }
        })
    }
}
