//! The product code of the workspace, which several rules count: `crates/*/src`, `crates/*/shims` and `xtask/src`,
//! without test files and without items behind `#[cfg(test)]`.

use super::source::{PartKind, SourceParts, rust_parts};
use super::tree::has_part;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceLanguage {
    Rust,
    Python,
    JavaScript,
    Shell,
}

/// One file of product code, split into code, comments and literals.
#[derive(Debug)]
pub(super) struct ProductFile {
    pub(super) path: String,
    /// The folder's name below `crates`, or `xtask`.
    pub(super) package: String,
    pub(super) language: SourceLanguage,
    pub(super) parts: SourceParts,
}

pub(super) fn product_files<'a>(texts: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<ProductFile> {
    let mut files = Vec::new();
    let mut test_modules = Vec::new();
    for (path, text) in texts.filter(|(path, _)| !has_part(path, "tests")) {
        let (Some(package), Some(language)) = (package_of(path), language_of(path)) else { continue };
        let mut parts = match language {
            SourceLanguage::Rust => rust_parts(text),
            _ => script_parts(text, language),
        };
        if language == SourceLanguage::Rust {
            test_modules.extend(remove_tests(path, &mut parts));
        }
        files.push(ProductFile { path: path.to_owned(), package: package.to_owned(), language, parts });
    }
    files.retain(|file| !test_modules.iter().any(|module| is_in_module(&file.path, module)));
    files
}

/// The end of the item that begins at `from`, attributes included: after its `;` or its last `}`.
pub(super) fn item_end(code: &[char], from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, letter) in code.iter().enumerate().skip(from) {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && matches!(letter, ';' | '}') {
            return at + 1;
        }
    }
    code.len()
}

fn package_of(path: &str) -> Option<&str> {
    if path.starts_with("xtask/src/") {
        return Some("xtask");
    }
    let (package, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    (rest.starts_with("src/") || rest.starts_with("shims/")).then_some(package)
}

fn language_of(path: &str) -> Option<SourceLanguage> {
    match path.rsplit_once('.')?.1 {
        "rs" => Some(SourceLanguage::Rust),
        "py" => Some(SourceLanguage::Python),
        "js" | "mjs" => Some(SourceLanguage::JavaScript),
        "sh" | "bash" => Some(SourceLanguage::Shell),
        _ => None,
    }
}

/// Blanks every item behind `#[cfg(test)]`. Returns the paths, without `.rs`, of test modules with their own files.
fn remove_tests(path: &str, parts: &mut SourceParts) -> Vec<String> {
    let code: Vec<char> = parts.code.chars().collect();
    let attribute: Vec<char> = "#[cfg(test)]".chars().collect();
    let mut test_modules = Vec::new();
    let mut is_test = vec![false; code.len()];
    for start in 0..code.len() {
        if is_test[start] || !code[start..].starts_with(&attribute) {
            continue;
        }
        let end = item_end(&code, start);
        is_test[start..end].fill(true);
        let item: String = code[start..end].iter().collect();
        if let Some((_, name)) = item.strip_suffix(';').and_then(|item| item.rsplit_once("mod ")) {
            test_modules.push(format!("{}{name}", module_folder(path)));
        }
    }
    for part in [&mut parts.code, &mut parts.comments, &mut parts.literals] {
        let kept = part.chars().zip(&is_test).map(|(letter, is_test)| match letter {
            '\n' => '\n',
            _ if *is_test => ' ',
            _ => letter,
        });
        *part = kept.collect();
    }
    test_modules
}

/// The folder that holds the modules of a file, with a `/` at the end.
fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" => format!("{folder}/"),
        _ => format!("{}/", path.trim_end_matches(".rs")),
    }
}

fn is_in_module(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Splits a script line by line, which is enough to count: a string over several lines is code, and a Python string
/// that opens a line is a comment.
fn script_parts(text: &str, language: SourceLanguage) -> SourceParts {
    let marker = if language == SourceLanguage::JavaScript { "//" } else { "#" };
    let mut parts = SourceParts::default();
    let mut block: Option<&str> = None;
    let mut in_long_text = false;
    for line in text.split_inclusive('\n') {
        let start = line.trim_start();
        let mut is_comment = start.starts_with(marker) && !in_long_text;
        if let Some(end) = block {
            is_comment = true;
            block = block.filter(|_| !line.contains(end));
        } else if language == SourceLanguage::JavaScript && start.starts_with("/*") {
            is_comment = true;
            block = (!line.contains("*/")).then_some("*/");
        } else if language == SourceLanguage::Python && !is_comment {
            let count = line.matches("\"\"\"").count();
            if start.starts_with("\"\"\"") && !in_long_text {
                is_comment = true;
                block = (count == 1).then_some("\"\"\"");
            } else if count % 2 == 1 {
                in_long_text = !in_long_text;
            }
        }
        if is_comment {
            line.chars().for_each(|letter| parts.push(PartKind::Comment, letter));
        } else {
            push_script_line(&mut parts, line, marker);
        }
    }
    parts
}

fn push_script_line(parts: &mut SourceParts, line: &str, marker: &str) {
    let mut quote = None;
    let mut in_comment = false;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        in_comment |= quote.is_none() && before.is_whitespace() && line[at..].starts_with(marker);
        let kind = match quote {
            _ if in_comment => PartKind::Comment,
            Some(open) => {
                quote = quote.filter(|_| letter != open || before == '\\');
                PartKind::Literal
            }
            None if matches!(letter, '"' | '\'' | '`') => {
                quote = Some(letter);
                PartKind::Literal
            }
            None => PartKind::Code,
        };
        parts.push(kind, letter);
        before = letter;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(files: &[(&str, &str)]) -> Vec<String> {
        product_files(files.iter().copied()).into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn test_files_are_no_product() {
        let found = paths(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod proofs;\n"),
            ("crates/a/src/proofs.rs", ""),
            ("crates/a/src/proofs/deep.rs", ""),
            ("crates/a/src/b.rs", "#[cfg(test)]\npub(super) mod proofs;"),
            ("crates/a/src/b/proofs.rs", ""),
            ("crates/a/src/c/proofs.rs", ""),
            ("crates/a/src/b/tests.rs", ""),
            ("crates/a/tests/it.rs", ""),
            ("crates/a/shims/python/x.py", ""),
            ("crates/a/shims/python/tests/x.py", ""),
            ("xtask/src/main.rs", ""),
            ("docs/a.md", ""),
        ]);
        let expected = [
            "crates/a/src/lib.rs",
            "crates/a/src/b.rs",
            "crates/a/src/c/proofs.rs",
            "crates/a/shims/python/x.py",
            "xtask/src/main.rs",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn test_items_are_blanked_in_every_part() {
        let text = "fn a() {}\n#[cfg(test)]\n#[rustfmt::skip]\nmod tests {\n fn b() { \"c\"; } // d\n}\nfn e() {}";
        let files = product_files([("crates/a/src/b.rs", text)].into_iter());
        let parts = &files[0].parts;
        assert_eq!(parts.code.split_whitespace().collect::<Vec<_>>(), ["fn", "a()", "{}", "fn", "e()", "{}"]);
        assert!(parts.comments.trim().is_empty() && parts.literals.trim().is_empty());
        assert_eq!(parts.code.lines().count(), 7);
    }

    #[test]
    fn scripts_are_split_by_lines() {
        let cases = [
            (SourceLanguage::Shell, "a '#' # b", "a", "# b", "'#'"),
            (SourceLanguage::Shell, "echo $#", "echo $#", "", ""),
            (SourceLanguage::Python, "\"\"\"a\nb\"\"\"\nc", "c", "\"\"\"a\nb\"\"\"", ""),
            (SourceLanguage::JavaScript, "/* a\n * b */\nc // d", "c", "/* a\n * b */\n  // d", ""),
        ];
        for (language, text, code, comments, literals) in cases {
            let parts = script_parts(text, language);
            let found = [parts.code.trim(), parts.comments.trim(), parts.literals.trim()];
            assert_eq!(found, [code, comments, literals], "{text}");
        }
    }
}
