//! Search over 10,000 tools, by words and meaning and by words alone: the time to read them from the cache, to build the
//! index and to answer, beside a plain scan of the same text; and the memory that each step adds. Interleaved in one
//! process. The first index also pays for reading the weights.
//!
//! `cargo xtask bench search [TOOLS]`

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_core::policy::grants::Grants;
use cove_testkit::measure::{self, interleave, peak_kilobytes, percentile, ratio, reset_peak};
use cove_upstream::catalog::{Catalog, SearchMode, ServerDeclaration, ToolDocument};
use serde_json::{Value, json};

const SERVERS: usize = 40;
const ROUNDS: usize = 200;
/// Kinds of queries, by what they cost: `{}` becomes a word of the vocabulary, a different one in each round.
const QUERIES: [(&str, &str); 6] = [
    ("name of a tool", "server7.create_{}"),
    ("two words", "create {}"),
    ("common words", "list get update user"),
    ("a question", "how can i find the {} of a user and send it by email to {}"),
    (
        "a long question",
        "i am preparing the release of tomorrow with my team and need the {} of every user who wrote to us this morning, \
         so please list the open invoices, send each customer a short message about the {}, and tell me which payments \
         failed last week and why the {} report of the second warehouse could not be created",
    ),
    ("mistyped", "craete {}x"),
];

fn main() {
    let count: usize = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(10_000);
    println!("load average before: {}", measure::load());
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = SeededRandom(7);
    let words: Vec<String> = (0..3000).map(|_| random.word()).collect();

    let first = Catalog::open(folder.path());
    let took = time(|| {
        for server in 0..SERVERS {
            let name = format!("server{server}");
            first.declare(declaration(&name));
            let tools = (0..count / SERVERS).map(|at| tool(&mut random, &words, at)).collect();
            assert!(first.set_tools(&name, &name, "", tools).is_empty());
        }
    });
    report("made, cleaned and written", took, "");
    drop(first);
    let bytes: u64 = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.and_then(|entry| entry.metadata()).map_or(0, |meta| meta.len()))
        .sum();

    let catalogs = SearchMode::ALL.map(|mode| (mode, open_catalog(folder.path(), mode, bytes)));
    let (_, catalog) = &catalogs[0];
    let texts: Vec<String> = catalog
        .servers()
        .iter()
        .flat_map(|server| server.listing.clone().expect("listed").documents().collect::<Vec<_>>())
        .map(|tool| format!("{} {}", tool.name, tool.description).to_lowercase())
        .collect();
    println!("\n{:<32} {:>10} {:>10} {:>12}", "query, best 5", "p50 µs", "p99 µs", "x plain look");
    let mut round = 0;
    let times = interleave(QUERIES.len() * catalogs.len() + 1, ROUNDS, |peer| {
        round += 1;
        let word = &words[round * 7 % words.len()];
        let query = QUERIES.get(peer / catalogs.len()).map(|(_, query)| query.replace("{}", word));
        let start = Instant::now();
        match query {
            Some(query) => drop(black_box(catalogs[peer % catalogs.len()].1.search(&query, 5))),
            None => drop(black_box(texts.iter().filter(|text| text.contains(word.as_str())).count())),
        }
        start.elapsed()
    });
    let plain = times.last().expect("the plain look");
    let names =
        QUERIES.iter().flat_map(|(name, _)| catalogs.iter().map(move |(mode, _)| format!("{name}, {}", mode.as_str())));
    for (name, times) in names.chain(["plain look for a word".to_owned()]).zip(&times) {
        let micros = |part| percentile(times, part) * 1000.0;
        println!("{name:<32} {:>10.0} {:>10.0} {:>12.2}", micros(0.5), micros(0.99), ratio(times, plain));
    }
    println!("load average after: {}", measure::load());
}

/// Reads the tools from the cache and builds their index. Reports what each step takes.
fn open_catalog(folder: &Path, mode: SearchMode, bytes: u64) -> Catalog {
    println!("\n{}", mode.as_str());
    let before = resident();
    let catalog = Catalog::open(folder).with_search(mode);
    let took = time(|| {
        for server in 0..SERVERS {
            assert_eq!(catalog.declare(declaration(&format!("server{server}"))), None);
        }
    });
    let documents = resident().saturating_sub(before);
    report("read from the cache", took, &format!("{documents} kB for {} kB on disk", bytes / 1024));
    let took = time(|| drop(black_box(catalog.search("build the index", 5))));
    report("index built by the first search", took, &format!("{} kB", resident().saturating_sub(before + documents)));
    let again = catalog.tools("server7").expect("listed").documents().collect();
    let took = time(|| {
        catalog.set_tools("server7", "server7", "changed", again);
        black_box(catalog.search("one changed", 5));
    });
    report(&format!("one server of {SERVERS} listed again"), took, "");
    catalog
}

fn report(what: &str, took: Duration, memory: &str) {
    println!("{what:<36} {:>8.1} ms   {memory}", took.as_secs_f64() * 1000.0);
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn resident() -> u64 {
    reset_peak();
    peak_kilobytes()
}

fn declaration(name: &str) -> ServerDeclaration {
    ServerDeclaration {
        name: name.into(),
        alias: name.into(),
        description: String::new(),
        definition: "d".into(),
        filter: Grants::default(),
    }
}

/// A tool as servers define them: a verb and a thing or two, a sentence, and a few parameters.
fn tool(random: &mut SeededRandom, words: &[String], at: usize) -> ToolDocument {
    const VERBS: [&str; 8] = ["create", "list", "get", "update", "delete", "search", "send", "run"];
    let word = |random: &mut SeededRandom| words[random.next() as usize % words.len()].as_str();
    let verb = VERBS[random.next() as usize % VERBS.len()];
    let name = format!("{verb}_{}_{}_{at}", word(random), word(random));
    let sentence: Vec<&str> = (0..14).map(|_| word(random)).collect();
    let properties: serde_json::Map<String, Value> = (0..5)
        .map(|_| {
            let about = format!("The {} of the {}.", word(random), word(random));
            (format!("{}_{}", word(random), word(random)), json!({"type": "string", "description": about}))
        })
        .collect();
    let required: Vec<&String> = properties.keys().take(2).collect();
    let Value::Object(input_schema) = json!({"type": "object", "required": required, "properties": properties}) else {
        unreachable!("an object was written")
    };
    ToolDocument {
        name,
        description: format!("{verb} a user {}.", sentence.join(" ")),
        input_schema,
        ..Default::default()
    }
}

/// A generator with the same numbers in every run.
struct SeededRandom(u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn word(&mut self) -> String {
        let syllables = ["ba", "co", "di", "fe", "gu", "la", "mi", "no", "re", "sa", "ti", "vu", "ter", "lon"];
        (0..2 + self.next() % 3).map(|_| syllables[self.next() as usize % syllables.len()]).collect()
    }
}
