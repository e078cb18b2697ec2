//! Search over the tools of all servers: BM25 over names, descriptions and parameters, and the similarity of meaning.
//! It tolerates word endings, typing mistakes and incomplete words. An exact name comes first, a deprecated tool last.
//! The same query gives the same results in the same order.

mod embedding;
mod server_index;
mod synonyms;
mod words;

use std::cmp::Ordering;

use cove_core::keywords;

pub(super) use embedding::{BUILT_IN, LazyEmbedding, WordEmbedding};
pub(super) use server_index::ServerIndex;

use super::{CatalogServer, CatalogView, ToolListing, names};

keywords!(
    /// How tools are ranked: by words and meaning, or by words alone.
    #[derive(Default)]
    pub SearchMode, "MODE", "a search mode": #[default] Hybrid = "hybrid", Bm25 = "bm25"
);

/// A query is a question. A longer text was probably pasted.
const MAX_QUERY: usize = 1000;
const MAX_WORDS: usize = 64;
/// In a longer query, an unknown word is not taken for a typing mistake: the other words and the meaning decide, and
/// comparing every unknown word with every known one would take most of the time.
const MAX_WORDS_WITH_TYPOS: usize = 8;
/// The weight of meaning beside words, where the tool that matches the words best has 1.
const MEANING_WEIGHT: f32 = 1.25;
/// A tool without a word of the query must be this similar in meaning. Unrelated words reach 0.47.
const MIN_SIMILARITY: f32 = 0.5;
/// Weights of matches other than the word itself.
const PREFIX_WEIGHT: f32 = 0.8;
const TYPO_WEIGHT: f32 = 0.7;
const SYNONYM_WEIGHT: f32 = 0.5;
/// A word that is the beginning of many others says little about each.
const MAX_PREFIX_MATCHES: usize = 40;
/// Weights of the server's name and description for all of its tools.
const SERVER_NAME: f32 = 0.7;
const SERVER_DESCRIPTION: f32 = 0.2;

/// The results of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHits {
    /// Best hit first.
    pub hits: Vec<SearchHit>,
    /// The number of all matches, including those beyond the limit.
    pub total: usize,
}

/// One tool that matches, with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    /// Names as configured and in the server's spelling.
    pub server: String,
    pub tool: String,
    /// The tool's position in its server's list.
    pub at: usize,
    pub score: f32,
}

/// A word of the query, with the words that it matches in each server's index.
struct QueryTerm {
    /// For each server: pairs of a word and its weight.
    matches: Vec<Vec<(usize, f32)>>,
    /// For each server: the score that its own name and description give to all its tools.
    servers: Vec<f32>,
    rarity: f32,
}

/// A server whose tools are searched.
struct SearchedServer<'a> {
    server: &'a CatalogServer,
    listing: &'a ToolListing,
    index: &'a ServerIndex,
}

/// Comes before the score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MatchRank {
    ExactName,
    Usual,
    Deprecated,
}

/// A tool that matches, by the positions of its server and of itself.
struct MatchedTool {
    rank: MatchRank,
    score: f32,
    similarity: f32,
    server: usize,
    tool: usize,
}

/// Returns the best `limit` tools that `allowed` accepts, and the number of all matches.
pub(super) fn search(
    view: &CatalogView,
    query: &str,
    limit: usize,
    allowed: &dyn Fn(&str, &str) -> bool,
) -> SearchHits {
    let query = match query.char_indices().nth(MAX_QUERY) {
        Some((end, _)) => &query[..end],
        None => query,
    };
    let table = view.embedding().and_then(LazyEmbedding::get);
    let meaning = table.and_then(|table| table.embed_query(query));
    let places: Vec<SearchedServer> = view
        .listings()
        .map(|(server, listing)| SearchedServer { server, listing, index: listing.search_index(table) })
        .collect();
    let terms = query_terms(&places, query);
    let whole: f32 = terms.iter().map(|term| term.rarity).sum();
    // A deprecated tool comes first only if the query is its name, not words that happen to be in it.
    let is_name = !query.trim().contains(char::is_whitespace);
    let mut all: Vec<MatchedTool> = Vec::new();
    for (number, SearchedServer { server, listing, index }) in places.iter().enumerate() {
        let zeros = vec![0.0_f32; listing.len()];
        let (mut scores, mut covered, mut best) = (zeros.clone(), zeros.clone(), zeros);
        for term in &terms {
            add_scores(term, number, index, &mut best, &mut scores, &mut covered);
        }
        let exact = exact_matches(server, index, query);
        for (tool, (score, covered)) in scores.into_iter().zip(covered).enumerate() {
            let similarity = meaning.as_ref().map_or(0.0, |meaning| index.similarity(tool, meaning));
            let rank = match tool as u32 {
                named if exact.contains(&named) && (is_name || !index.is_deprecated(named)) => MatchRank::ExactName,
                _ if score <= 0.0 && similarity < MIN_SIMILARITY => continue,
                old if index.is_deprecated(old) => MatchRank::Deprecated,
                _ => MatchRank::Usual,
            };
            // A tool that matches only some words of the query scores less. The root is kind to long questions, which
            // no tool covers.
            let covers = if whole > 0.0 { (covered / whole).min(1.0).sqrt() } else { 1.0 };
            if allowed(&server.name, listing.name(tool)) {
                all.push(MatchedTool { rank, score: score * covers, similarity, server: number, tool });
            }
        }
    }
    if meaning.is_some() {
        add_similarities(&mut all);
    }
    let total = all.len();
    let order = |a: &MatchedTool, b: &MatchedTool| -> Ordering {
        // Of equal scores, the shorter name comes first, then sorted order decides.
        let name = |hit: &MatchedTool| places[hit.server].listing.name(hit.tool);
        let by_name = || (name(a).len(), name(a), a.server).cmp(&(name(b).len(), name(b), b.server));
        a.rank.cmp(&b.rank).then_with(|| b.score.total_cmp(&a.score)).then_with(by_name)
    };
    if limit < all.len() {
        all.select_nth_unstable_by(limit, order);
        all.truncate(limit);
    }
    all.sort_unstable_by(order);
    let hits = all.into_iter().map(|MatchedTool { server, tool, score, .. }| {
        let SearchedServer { server, listing, .. } = places[server];
        SearchHit { server: server.name.clone(), tool: listing.name(tool).to_owned(), at: tool, score }
    });
    SearchHits { hits: hits.collect(), total }
}

/// Makes scores relative to the best one, because a long question covers every tool badly, and adds the similarities.
fn add_similarities(all: &mut [MatchedTool]) {
    let best = all.iter().map(|hit| hit.score).fold(0.0, f32::max);
    for hit in all {
        let words = if best > 0.0 { hit.score / best } else { 0.0 };
        hit.score = words + MEANING_WEIGHT * hit.similarity.max(0.0);
    }
}

/// Adds the score of one query word to the tools of one server. If a tool matches in several ways, the best counts.
fn add_scores(
    term: &QueryTerm,
    number: usize,
    part: &ServerIndex,
    best: &mut [f32],
    scores: &mut [f32],
    covered: &mut [f32],
) {
    let mut seen: Vec<u32> = Vec::new();
    for (word, counts) in &term.matches[number] {
        for used in part.uses(*word) {
            let tool = used.tool as usize;
            if best[tool] == 0.0 {
                seen.push(used.tool);
            }
            best[tool] = best[tool].max(counts * used.weight);
        }
    }
    // A server's name that repeats in the names of its tools must not count twice.
    let of_server = term.servers[number];
    if of_server > 0.0 {
        for ((best, score), covered) in best.iter_mut().zip(scores).zip(covered) {
            *score += term.rarity * best.max(of_server);
            *covered += term.rarity * if *best > 0.0 { 1.0 } else { of_server };
            *best = 0.0;
        }
        return;
    }
    for tool in seen {
        let tool = tool as usize;
        scores[tool] += term.rarity * best[tool];
        covered[tool] += term.rarity;
        best[tool] = 0.0;
    }
}

fn query_terms(places: &[SearchedServer], query: &str) -> Vec<QueryTerm> {
    let mut wanted: Vec<String> = Vec::new();
    words::split_words(query, |word| {
        let stem = words::stem(word).to_owned();
        if !words::is_stop_word(word) && wanted.len() < MAX_WORDS && !wanted.contains(&stem) {
            wanted.push(stem);
        }
    });
    let count: usize = places.iter().map(|place| place.listing.len()).sum();
    let builder = TermBuilder {
        places,
        own: places.iter().map(|place| server_words(place.server)).collect(),
        count: count as f32,
        corrects_typos: wanted.len() <= MAX_WORDS_WITH_TYPOS,
    };
    wanted.iter().map(|word| build_term(&builder, word)).collect()
}

/// What the terms of one query have in common.
struct TermBuilder<'a> {
    places: &'a [SearchedServer<'a>],
    /// For each server: the words of its names, and of its description.
    own: Vec<[Vec<String>; 2]>,
    /// The number of all tools.
    count: f32,
    corrects_typos: bool,
}

/// Returns the words of a server's names, and the words of its description.
fn server_words(server: &CatalogServer) -> [Vec<String>; 2] {
    let stems = |texts: &[&str]| {
        let mut stems = Vec::new();
        for text in texts {
            words::split_words(text, |word| {
                if !words::is_stop_word(word) && stems.len() < 50 {
                    stems.push(words::stem(word).to_owned());
                }
            });
        }
        stems
    };
    [stems(&[&server.name, &server.alias]), stems(&[&server.description])]
}

fn build_term(builder: &TermBuilder, word: &str) -> QueryTerm {
    let TermBuilder { places, own, count, corrects_typos } = builder;
    let parts = || places.iter().map(|place| place.index);
    let others = synonyms::find_synonyms(word);
    let mut matches: Vec<Vec<(usize, f32)>> = parts()
        .map(|part| {
            let begun = part.find_prefixed(word).take(MAX_PREFIX_MATCHES).filter_map(|(at, share)| match share {
                1.0 => Some((at, 1.0)),
                _ => (word.len() >= 3).then_some((at, PREFIX_WEIGHT * share)),
            });
            let mut found: Vec<(usize, f32)> = begun.collect();
            for other in others {
                found.extend(part.find_word(other).map(|at| (at, SYNONYM_WEIGHT)));
            }
            found
        })
        .collect();
    let nowhere = matches.iter().all(Vec::is_empty);
    let servers: Vec<f32> = own
        .iter()
        .map(|[names, description]| {
            let has = |words: &[String]| words.iter().any(|own| own == word || others.contains(own));
            let begins = |words: &[String]| nowhere && word.len() >= 3 && words.iter().any(|own| own.starts_with(word));
            match (has(names) || begins(names), has(description)) {
                (true, _) => SERVER_NAME,
                (false, true) => SERVER_DESCRIPTION,
                (false, false) => 0.0,
            }
        })
        .collect();
    // Assumes a typing mistake only if no server has the word as it is written.
    if *corrects_typos && matches.iter().all(Vec::is_empty) && servers.iter().all(|server| *server == 0.0) {
        matches = parts()
            .map(|part| part.find_similar(word).into_iter().map(|(at, near)| (at, TYPO_WEIGHT * near)).collect())
            .collect();
    }
    let uses: usize = places
        .iter()
        .zip(&matches)
        .zip(&servers)
        .map(|((SearchedServer { listing, index, .. }, found), server)| {
            let uses: usize = found.iter().map(|(word, _)| index.uses(*word).len()).sum();
            if *server == SERVER_NAME { listing.len() } else { uses.min(listing.len()) }
        })
        .sum();
    let uses = uses as f32;
    QueryTerm { matches, servers, rarity: (1.0 + (count - uses + 0.5).max(0.0) / (uses + 0.5)).ln().max(0.05) }
}

/// Returns tools that the query names exactly: `tool` or `server.tool`, in any spelling.
fn exact_matches(server: &CatalogServer, part: &ServerIndex, query: &str) -> Vec<u32> {
    let plain = names::plain(query);
    let mut exact: Vec<u32> = part.tools_named(&plain).collect();
    for own in [names::plain(&server.name), names::plain(&server.alias)] {
        if let Some(tool) = plain.strip_prefix(&own).filter(|tool| !own.is_empty() && !tool.is_empty()) {
            exact.extend(part.tools_named(tool));
        }
    }
    exact
}
