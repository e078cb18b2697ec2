//! Search over the tools of all servers, by BM25 over names, descriptions and parameters, forgiving about endings, typing
//! mistakes and words that begin alike. A name given exactly comes first. The same query finds the same in the same order.

mod part;
mod synonyms;
mod words;

use std::cmp::Ordering;

pub(super) use part::Part;

use super::{Listing, Server, View, names};

/// A question is a few words; more is a text that somebody pasted.
const MAX_QUERY: usize = 1000;
const MAX_WORDS: usize = 16;
/// What a word counts that is not the word itself.
const LONGER: f32 = 0.8;
const ALIKE: f32 = 0.7;
const SYNONYM: f32 = 0.5;
/// A word that begins as many others says little about each.
const MAX_LONGER: usize = 40;
/// What a server's own words count, for all its tools.
const SERVER_NAME: f32 = 0.7;
const SERVER_DESCRIPTION: f32 = 0.2;
/// Above every sum of words.
const EXACT: f32 = 1000.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The best first.
    pub hits: Vec<Hit>,
    /// All that match, also beyond the limit.
    pub total: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// Names as configured and as the server spells them.
    pub server: String,
    pub tool: String,
    /// The tool's place in its server's list.
    pub at: usize,
    pub score: f32,
}

/// A word of the query, and in which words of each part it is found.
struct Term {
    /// By part: word and what it counts.
    matches: Vec<Vec<(usize, f32)>>,
    /// By part: what the server's own words give to all its tools.
    servers: Vec<f32>,
    rarity: f32,
}

type Place<'a> = (&'a Server, &'a Listing);

pub(super) fn find(view: &View, query: &str, limit: usize, allowed: &dyn Fn(&str, &str) -> bool) -> Found {
    let query = match query.char_indices().nth(MAX_QUERY) {
        Some((end, _)) => &query[..end],
        None => query,
    };
    let places: Vec<Place> = view.listings().map(|(server, listing)| (&**server, &**listing)).collect();
    let terms = terms(&places, query);
    let whole: f32 = terms.iter().map(|term| term.rarity).sum();
    let mut all: Vec<(f32, usize, u32)> = Vec::new();
    let (mut scores, mut covered, mut best) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (server, listing)) in places.iter().enumerate() {
        scores.clear();
        scores.resize(listing.len(), 0.0_f32);
        covered.clear();
        covered.resize(listing.len(), 0.0_f32);
        best.clear();
        best.resize(listing.len(), 0.0_f32);
        for term in &terms {
            score(term, number, listing.part(), &mut best, &mut scores, &mut covered);
        }
        for exact in named(server, listing, query) {
            scores[exact as usize] += EXACT;
            covered[exact as usize] = whole;
        }
        for (tool, score) in scores.iter().enumerate().filter(|(_, score)| **score > 0.0) {
            // Half of the question, answered well, is worth less than all of it.
            let covers = if whole > 0.0 { (covered[tool] / whole).min(1.0) } else { 1.0 };
            if allowed(&server.name, listing.name(tool)) {
                all.push((score * covers, number, tool as u32));
            }
        }
    }
    let total = all.len();
    let order = |a: &(f32, usize, u32), b: &(f32, usize, u32)| -> Ordering {
        // Of equals the one with the shorter name says more, then the names decide.
        let name = |hit: &(f32, usize, u32)| places[hit.1].1.name(hit.2 as usize);
        let by_name = || (name(a).len(), name(a), a.1).cmp(&(name(b).len(), name(b), b.1));
        b.0.total_cmp(&a.0).then_with(by_name)
    };
    if limit < all.len() {
        all.select_nth_unstable_by(limit, order);
        all.truncate(limit);
    }
    all.sort_unstable_by(order);
    let hits = all.into_iter().map(|(score, number, tool)| {
        let (server, listing) = places[number];
        let at = tool as usize;
        Hit { server: server.name.clone(), tool: listing.name(at).to_owned(), at, score }
    });
    Found { hits: hits.collect(), total }
}

/// What one word of the query adds to the tools of one part. A tool that has it in several ways counts the best of them.
fn score(term: &Term, number: usize, part: &Part, best: &mut [f32], scores: &mut [f32], covered: &mut [f32]) {
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
    // A server's name in the names of all its tools must not count twice.
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

fn terms(places: &[Place], query: &str) -> Vec<Term> {
    let mut wanted: Vec<String> = Vec::new();
    let mut empty: Vec<String> = Vec::new();
    words::split(query, |word| {
        let kept = if words::is_empty(word) { &mut empty } else { &mut wanted };
        let stem = words::stem(word).to_owned();
        if kept.len() < MAX_WORDS && !kept.contains(&stem) {
            kept.push(stem);
        }
    });
    let count: usize = places.iter().map(|(_, listing)| listing.len()).sum();
    let own: Vec<[Vec<String>; 2]> = places.iter().map(|(server, _)| own_words(server)).collect();
    wanted.iter().map(|word| term(places, &own, word, count as f32)).collect()
}

/// A server's words: of its names, and of its description.
fn own_words(server: &Server) -> [Vec<String>; 2] {
    let stems = |texts: &[&str]| {
        let mut stems = Vec::new();
        for text in texts {
            words::split(text, |word| {
                if !words::is_empty(word) && stems.len() < 50 {
                    stems.push(words::stem(word).to_owned());
                }
            });
        }
        stems
    };
    [stems(&[&server.name, &server.alias]), stems(&[&server.description])]
}

fn term(places: &[Place], own: &[[Vec<String>; 2]], word: &str, count: f32) -> Term {
    let parts = || places.iter().map(|(_, listing)| listing.part());
    let others = synonyms::of(word);
    let mut matches: Vec<Vec<(usize, f32)>> = parts()
        .map(|part| {
            let mut found: Vec<(usize, f32)> = part.exact(word).map(|at| (at, 1.0)).into_iter().collect();
            if word.len() >= 3 {
                found.extend(part.longer(word).take(MAX_LONGER).map(|(at, given)| (at, LONGER * given)));
            }
            for other in others {
                found.extend(part.exact(other).map(|at| (at, SYNONYM)));
            }
            found
        })
        .collect();
    let nowhere = matches.iter().all(Vec::is_empty);
    let servers: Vec<f32> = own
        .iter()
        .map(|[names, description]| {
            let has = |words: &[String]| words.iter().any(|own| own == word || others.contains(own));
            let begins = |words: &[String]| {
                nowhere && word.len() >= 3 && words.iter().any(|own| own.starts_with(word))
            };
            match (has(names) || begins(names), has(description)) {
                (true, _) => SERVER_NAME,
                (false, true) => SERVER_DESCRIPTION,
                (false, false) => 0.0,
            }
        })
        .collect();
    // A mistake is supposed only where the word as it stands is nobody's.
    if matches.iter().all(Vec::is_empty) && servers.iter().all(|server| *server == 0.0) {
        matches = parts()
            .map(|part| part.alike(word).into_iter().map(|(at, near)| (at, ALIKE * near)).collect())
            .collect();
    }
    let uses: usize = places
        .iter()
        .zip(&matches)
        .zip(&servers)
        .map(|(((_, listing), found), server)| {
            let uses: usize = found.iter().map(|(word, _)| listing.part().uses(*word).len()).sum();
            if *server == SERVER_NAME { listing.len() } else { uses.min(listing.len()) }
        })
        .sum();
    let uses = uses as f32;
    Term { matches, servers, rarity: (1.0 + (count - uses + 0.5).max(0.0) / (uses + 0.5)).ln().max(0.05) }
}

/// Tools that the query names: `tool`, `server.tool`, or either in other words.
fn named<'a>(server: &'a Server, listing: &'a Listing, query: &str) -> Vec<u32> {
    let plain = names::plain(query);
    let part = listing.part();
    let mut exact: Vec<u32> = part.named(&plain).collect();
    for own in [names::plain(&server.name), names::plain(&server.alias)] {
        if let Some(tool) = plain.strip_prefix(&own).filter(|tool| !own.is_empty() && !tool.is_empty()) {
            exact.extend(part.named(tool));
        }
    }
    exact.sort_unstable();
    exact.dedup();
    exact
}
