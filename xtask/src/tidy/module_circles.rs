//! The rule about modules of one crate: imports between its top-level modules (`crate::a`, `super::a` and names that
//! the crate's root imports from `a`) form no circle, so that each module can be read after those that it uses.

use std::collections::{BTreeMap, BTreeSet};

use super::product::{ProductFile, SourceLanguage};
use super::tree::SourceTree;
use super::type_names::tokens;
use super::{TidyFinding, TidyMeasure};

/// Which top-level modules import which, with one place for each.
#[derive(Debug, Default)]
struct ModuleGraph<'a> {
    arrows: BTreeMap<(String, String), (&'a str, usize)>,
}

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for files in packages(tree).into_values() {
        let graph = ModuleGraph::new(&files);
        for circle in graph.circles() {
            let inside = graph.arrows.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
            for ((from, to), (path, line)) in inside {
                let names: Vec<_> = circle.iter().map(String::as_str).collect();
                let what = format!("`{from}` uses `{to}` in a circle: {}", names.join(", "));
                findings.push(TidyFinding::on_line(path, *line, what));
            }
        }
    }
    findings
}

pub(super) fn measures(tree: &SourceTree) -> Vec<TidyMeasure> {
    let circles = packages(tree).into_values().flat_map(|files| ModuleGraph::new(&files).circles());
    vec![TidyMeasure::new("modules in import circles", circles.map(|circle| circle.len()).sum(), 0)]
}

fn packages(tree: &SourceTree) -> BTreeMap<&str, Vec<&ProductFile>> {
    let mut packages: BTreeMap<&str, Vec<&ProductFile>> = BTreeMap::new();
    for file in tree.product().iter().filter(|file| file.language == SourceLanguage::Rust) {
        packages.entry(&file.package).or_default().push(file);
    }
    packages
}

/// The path of a file's module from the crate's root; empty for `lib.rs` and `main.rs`.
fn module_of(path: &str) -> Vec<&str> {
    let (_, inside) = path.split_once("/src/").unwrap_or(("", path));
    match inside.trim_end_matches(".rs") {
        "lib" | "main" => Vec::new(),
        name => name.split('/').collect(),
    }
}

impl<'a> ModuleGraph<'a> {
    fn new(files: &[&'a ProductFile]) -> Self {
        let modules: BTreeSet<&str> = files.iter().filter_map(|file| module_of(&file.path).first().copied()).collect();
        let mut at_root: BTreeMap<String, String> = BTreeMap::new();
        for file in files.iter().filter(|file| module_of(&file.path).is_empty()) {
            for (_, way) in ImportPaths::of(&file.parts.code).imports() {
                if let [first, .., last] = way.as_slice() {
                    at_root.insert(last.clone(), first.clone());
                }
            }
        }
        let mut graph = ModuleGraph::default();
        for file in files {
            let module = module_of(&file.path);
            let Some(from) = module.first() else { continue };
            for (line, first) in ImportPaths::of(&file.parts.code).starting_at_root(module.len()) {
                let to = if modules.contains(first.as_str()) { Some(&first) } else { at_root.get(&first) };
                if let Some(to) = to.filter(|to| to != from && modules.contains(to.as_str())) {
                    let arrow = ((*from).to_owned(), to.clone());
                    graph.arrows.entry(arrow).or_insert((&file.path, line));
                }
            }
        }
        graph
    }

    /// Sets of modules that all reach each other.
    fn circles(&self) -> Vec<BTreeSet<String>> {
        let names: BTreeSet<&String> = self.arrows.keys().map(|(from, _)| from).collect();
        let reached: BTreeMap<_, _> = names.iter().map(|name| (*name, self.reached_from(name))).collect();
        let mut circles = BTreeSet::new();
        for (name, targets) in &reached {
            if targets.contains(*name) {
                let is_mutual = |other: &&&String| reached.get(**other).is_some_and(|back| back.contains(*name));
                circles.insert(targets.iter().filter(is_mutual).map(|other| (*other).clone()).collect());
            }
        }
        circles.into_iter().collect()
    }

    fn reached_from(&self, name: &str) -> BTreeSet<&String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![name];
        while let Some(from) = open.pop() {
            for (_, to) in self.arrows.keys().filter(|(own, _)| own == from) {
                if reached.insert(to) {
                    open.push(to);
                }
            }
        }
        reached
    }
}

/// The paths that code mentions.
struct ImportPaths<'a> {
    /// With lines, counted from 0. A `::` is two tokens.
    tokens: Vec<(usize, &'a str)>,
}

impl<'a> ImportPaths<'a> {
    fn of(code: &'a str) -> Self {
        let lines = code.lines().enumerate();
        ImportPaths { tokens: lines.flat_map(|(index, line)| tokens(line).map(move |token| (index, token))).collect() }
    }

    fn token(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |(_, token)| token)
    }

    fn has_colons(&self, at: usize) -> bool {
        self.token(at) == ":" && self.token(at + 1) == ":"
    }

    /// The whole paths that every `use` imports.
    fn imports(&self) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        for at in (0..self.tokens.len()).filter(|at| self.token(*at) == "use") {
            let skip_root = if matches!(self.token(at + 1), "crate" | "self") { 4 } else { 1 };
            self.read_tree(at + skip_root, &[], &mut found);
        }
        found
    }

    /// The first name of each path that starts at the crate's root, in a file at this module depth.
    fn starting_at_root(&self, depth: usize) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let start = at;
            if self.token(at) == "crate" && self.has_colons(at + 1) {
                at += 3;
            } else {
                while self.token(at) == "super" && self.has_colons(at + 1) {
                    at += 3;
                }
                if at == start || (at - start) / 3 != depth {
                    at += usize::from(at == start);
                    continue;
                }
            }
            at = self.read_tree(at, &[], &mut found);
        }
        found.into_iter().filter_map(|(line, way)| Some((line, way.into_iter().next()?))).collect()
    }

    /// Reads `a::{b, c::*}` and similar trees, and returns the position after it.
    fn read_tree(&self, at: usize, way: &[String], found: &mut Vec<(usize, Vec<String>)>) -> usize {
        if self.token(at) == "{" {
            let mut at = at + 1;
            while !matches!(self.token(at), "}" | "") {
                at = if self.token(at) == "," { at + 1 } else { self.read_tree(at, way, found) };
            }
            return at + 1;
        }
        let Some((line, token)) = self.tokens.get(at) else { return at };
        let mut longer = way.to_vec();
        longer.push((*token).to_owned());
        if self.has_colons(at + 1) {
            return self.read_tree(at + 3, &longer, found);
        }
        let mut end = at + 1;
        if self.token(end) == "as" {
            longer.push(self.token(end + 1).to_owned());
            end += 2;
        }
        found.push((*line, longer));
        end
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{findings, tree};
    use super::*;

    #[test]
    fn paths_from_the_root_are_read() {
        let code = "use crate::{a::{b, c as d}, e};\nuse super::f;\nfn g() { crate::h::<T>(); super::super::i::j(); }";
        let first = |depth| -> Vec<String> {
            ImportPaths::of(code).starting_at_root(depth).into_iter().map(|(_, first)| first).collect()
        };
        assert_eq!(first(1), ["a", "a", "e", "f", "h"]);
        assert_eq!(first(2), ["a", "a", "e", "h", "i"]);
    }

    #[test]
    fn a_circle_is_found() {
        let files = [
            ("crates/x/src/lib.rs", "mod a; mod b; mod c;\npub use b::{B, inner::Deep as D};"),
            ("crates/x/src/a.rs", "use crate::{D, c::C};"),
            ("crates/x/src/b/inner.rs", "//! x\nuse super::super::a::A;"),
            ("crates/x/src/c.rs", "mod tests { }\n#[cfg(test)]\nmod tests { use crate::a; }"),
        ];
        let expected = [
            "crates/x/src/a.rs:1: `a` uses `b` in a circle: a, b",
            "crates/x/src/b/inner.rs:2: `b` uses `a` in a circle: a, b",
        ];
        assert_eq!(findings(check, &files), expected);
        assert_eq!(measures(&tree(&files))[0].number, "2");
    }

    #[test]
    fn downward_imports_are_no_circle() {
        let files = [
            ("crates/x/src/main.rs", "mod a;\nuse a::A;"),
            ("crates/x/src/a.rs", "use crate::b::B;\nuse crate::a::inner;"),
            ("crates/x/src/a/inner.rs", "use super::A;\nuse crate::c::C;"),
            ("crates/x/src/b.rs", "use crate::c::C;"),
            ("crates/x/src/c.rs", "use std::a;"),
        ];
        assert_eq!(findings(check, &files), Vec::<String>::new());
    }
}
