//! The rule about plain English: words that hide the actor of a sentence, in messages, documents and comments. Code
//! spans and test names are exempt, and so is the user `nobody`.

use super::product::item_end;
use super::source::is_word;
use super::tree::SourceTree;
use super::{TidyFinding, TidyMeasure};

const WORDS: &[&str] = &["whoever", "somebody", "nobody", "anew", "told", "in words"];
/// Also the name of a user: exempt where it is quoted or part of an account.
const USER: &str = "nobody";
const HELP_DERIVES: &[&str] = &["Parser", "Args", "Subcommand", "ValueEnum"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Message,
    /// Markdown files and help texts. Help texts are doc comments in types that clap reads.
    Document,
    Comment,
}

struct WordLimit {
    kind: TextKind,
    name: &'static str,
    /// May only fall.
    limit: usize,
}

const LIMITS: [WordLimit; 3] = [
    WordLimit { kind: TextKind::Message, name: "messages", limit: 0 },
    WordLimit { kind: TextKind::Document, name: "documents and help", limit: 0 },
    WordLimit { kind: TextKind::Comment, name: "comments", limit: 59 },
];

struct FoundWord<'a> {
    kind: TextKind,
    word: &'static str,
    path: &'a str,
    /// Counted from 0.
    line: usize,
}

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    check_against(tree, &LIMITS)
}

pub(super) fn measures(tree: &SourceTree) -> Vec<TidyMeasure> {
    let found = found_words(tree);
    let count = |kind| found.iter().filter(|one| one.kind == kind).count();
    let measure =
        |one: &WordLimit| TidyMeasure::new(format!("vague words in {}", one.name), count(one.kind), one.limit);
    LIMITS.iter().map(measure).collect()
}

fn check_against(tree: &SourceTree, limits: &[WordLimit]) -> Vec<TidyFinding> {
    let all = found_words(tree);
    let mut findings = Vec::new();
    for WordLimit { kind, name, limit } in limits {
        let found: Vec<_> = all.iter().filter(|one| one.kind == *kind).collect();
        if found.len() <= *limit {
            continue;
        }
        for FoundWord { word, path, line, .. } in &found {
            findings.push(TidyFinding::on_line(path, *line, format!("`{word}` in {name}")));
        }
        let count = found.len();
        let what = format!("vague words in {name}: {count}, more than {limit}");
        findings.push(TidyFinding::in_file("crates", what));
    }
    findings
}

fn found_words(tree: &SourceTree) -> Vec<FoundWord<'_>> {
    let mut found = Vec::new();
    for (path, text) in tree.with_extension("md") {
        add_words(&mut found, TextKind::Document, path, text);
    }
    for file in tree.product() {
        let (help, comments) = split_help(&file.parts.code, &file.parts.comments);
        add_words(&mut found, TextKind::Message, &file.path, &file.parts.literals);
        add_words(&mut found, TextKind::Document, &file.path, &help);
        add_words(&mut found, TextKind::Comment, &file.path, &comments);
    }
    found
}

fn add_words<'a>(found: &mut Vec<FoundWord<'a>>, kind: TextKind, path: &'a str, text: &str) {
    for (line, text) in text.lines().enumerate() {
        let words = words_of_line(text).into_iter();
        found.extend(words.map(|word| FoundWord { kind, word, path, line }));
    }
}

fn words_of_line(line: &str) -> Vec<&'static str> {
    let line = without_exempt(&line.to_ascii_lowercase());
    let mut found = Vec::new();
    for word in WORDS {
        for (at, _) in line.match_indices(word) {
            let (before, after) = (&line[..at], &line[at + word.len()..]);
            let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
            // A literal that is this word alone is a value.
            let is_value = before.ends_with(['"', '\'']) && after.starts_with(['"', '\'']);
            let is_account = *word == USER && (after.starts_with(':') || before.ends_with(['=', ':']));
            if is_whole && !is_value && !is_account {
                found.push(*word);
            }
        }
    }
    found
}

/// The line without code spans and the names of tests.
fn without_exempt(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some((at, open, close)) = [("`", "`"), ("[test:", "]"), ("<!-- test:", "-->")]
        .into_iter()
        .filter_map(|(open, close)| Some((rest.find(open)?, open, close)))
        .min()
    {
        let inside = at + open.len();
        let Some(length) = rest[inside..].find(close) else { break };
        kept += &rest[..at];
        kept.push(' ');
        rest = &rest[inside + length + close.len()..];
    }
    kept + rest
}

/// Separates help texts, the doc comments on and in types that clap reads, from other comments. Both results keep the
/// line structure of the comments.
fn split_help(code: &str, comments: &str) -> (String, String) {
    let letters: Vec<char> = code.chars().collect();
    let mut is_help = vec![false; code.lines().count()];
    let mut start = 0;
    for (index, line) in code.split_inclusive('\n').enumerate() {
        let derives = line.trim_start().starts_with("#[derive(")
            && line.split(|letter| !is_word(letter)).any(|word| HELP_DERIVES.contains(&word));
        if derives {
            let lines = letters[start..item_end(&letters, start)].iter().filter(|one| **one == '\n').count();
            let above = comments.lines().take(index).collect::<Vec<_>>();
            let doc = above.iter().rev().take_while(|line| line.trim_start().starts_with("///")).count();
            is_help[index - doc..=index + lines].fill(true);
        }
        start += line.chars().count();
    }
    let (mut help, mut others) = (String::new(), String::new());
    for (index, line) in comments.lines().enumerate() {
        let is_help = is_help.get(index) == Some(&true) && line.trim_start().starts_with("///");
        help += if is_help { line } else { "" };
        others += if is_help { "" } else { line };
        help.push('\n');
        others.push('\n');
    }
    (help, others)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{findings, tree};
    use super::*;

    fn strict(tree: &SourceTree) -> Vec<TidyFinding> {
        check_against(tree, &LIMITS.map(|one| WordLimit { limit: 0, ..one }))
    }

    #[test]
    fn words_are_found_whole_and_outside_of_code() {
        let cases: [(&str, &[&str]); 12] = [
            ("Nobody told whoever came", &["whoever", "nobody", "told"]),
            ("says it in words", &["in words"]),
            ("untold, a nobodyish manewer", &[]),
            ("runs as `nobody`", &[]),
            ("runs as `a` for nobody, not `b`", &["nobody"]),
            ("nobody:x:65534", &[]),
            ("user=nobody", &[]),
            ("\"nobody\"", &[]),
            ("[\"whoever\", \"told\"]", &[]),
            ("a claim [test: nobody_is_told] anew", &["anew"]),
            ("a claim <!-- test: somebody told -->", &[]),
            ("an open ` somebody", &["somebody"]),
        ];
        for (line, expected) in cases {
            assert_eq!(words_of_line(line), expected, "{line}");
        }
    }

    #[test]
    fn words_are_counted_by_where_they_are() {
        let code = "//! told\nfn nobody() { \"somebody came\"; }\n#[cfg(test)]\nmod tests { // told\n}";
        let files = [("docs/a.md", "anew\n"), ("crates/a/src/b.rs", code), ("crates/a/tests/c.rs", "// told")];
        let found = strict(&tree(&files));
        let found: Vec<_> = found.iter().filter(|one| one.line.is_some()).map(|one| one.what.as_str()).collect();
        assert_eq!(found, ["`somebody` in messages", "`anew` in documents and help", "`told` in comments"]);
    }

    #[test]
    fn help_is_a_document() {
        let code =
            "/// told\n#[derive(Debug, Args)]\nstruct A {\n    /// anew\n    b: u8, // told\n}\n/// told\nfn f() {}";
        let tree = tree(&[("crates/a/src/b.rs", code)]);
        let found = found_words(&tree);
        let found: Vec<_> = found.iter().map(|one| (one.kind, one.line)).collect();
        let [help, comment] = [TextKind::Document, TextKind::Comment];
        assert_eq!(found, [(help, 0), (help, 3), (comment, 4), (comment, 6)]);
    }

    #[test]
    fn comments_of_shims_count() {
        let files = [("crates/a/shims/x.py", "# told\n"), ("crates/a/shims/x.js", "f('told you') // anew\n")];
        let tree = tree(&files);
        let words = found_words(&tree);
        let found: Vec<_> = words.iter().map(|one| (one.path, one.kind, one.word)).collect();
        let expected = [
            ("crates/a/shims/x.js", TextKind::Message, "told"),
            ("crates/a/shims/x.js", TextKind::Comment, "anew"),
            ("crates/a/shims/x.py", TextKind::Comment, "told"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn one_word_too_many_is_found() {
        let message = "crates: vague words in messages: 1, more than 0";
        let files = [("crates/a/src/b.rs", "\"anew it is\"")];
        assert_eq!(findings(strict, &files), ["crates/a/src/b.rs:1: `anew` in messages", message]);
    }
}
