//! The committed corpus of a fuzz target: the inputs that a person named, and of all that the fuzzer found the fewest that
//! reach the same code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::attempts::{self, ErrorContext};

/// Most bytes and most files that the fuzzer adds to the corpus of a target, so that the repository stays light.
const MAX_BYTES: u64 = 256 * 1024;
const MAX_FILES: usize = 600;
/// Chooses the fewest inputs that cover each edge, however often they pass it.
const MERGE: [&str; 4] = ["-set_cover_merge=1", "-use_counters=0", "-rss_limit_mb=1500", "-timeout=120"];

/// Replaces the found inputs of the corpus by the best of those and of `found`.
pub(super) fn renew(program: &Path, found: &Path, corpus: &Path) -> Result<(), String> {
    let merged = found.with_extension("merged");
    if merged.exists() {
        fs::remove_dir_all(&merged).could_not(format_args!("empty `{}`", merged.display()))?;
    }
    attempts::create_folder(&merged)?;
    attempts::create_folder(corpus)?;
    let mut merge = Command::new(program);
    merge.args(MERGE).args([merged.as_path(), corpus, found]).stdin(Stdio::null()).stderr(Stdio::null());
    attempts::run(&mut merge, &format!("{} {}", program.display(), MERGE.join(" ")))?;
    let kept = choose(files(&merged)?);
    for (path, _) in files(corpus)?.iter().filter(|(path, _)| is_found(path)) {
        fs::remove_file(path).could_not(format_args!("remove `{}`", path.display()))?;
    }
    for path in kept.iter().filter(|path| is_found(path)) {
        let name = path.file_name().unwrap_or_default();
        fs::copy(path, corpus.join(name)).could_not(format_args!("copy `{}`", path.display()))?;
    }
    Ok(())
}

/// True for an input that the fuzzer named, by its digest. A person's name has a word.
fn is_found(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The files of a folder with their sizes.
fn files(folder: &Path) -> Result<Vec<(PathBuf, u64)>, String> {
    let could_not = || format!("read `{}`", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).could_not(could_not())? {
        let entry = entry.could_not(could_not())?;
        files.push((entry.path(), entry.metadata().could_not(could_not())?.len()));
    }
    Ok(files)
}

/// Returns the smallest files within the limits: most edges are reached by small inputs.
fn choose(mut files: Vec<(PathBuf, u64)>) -> Vec<PathBuf> {
    files.sort_by(|(a, a_size), (b, b_size)| (a_size, a).cmp(&(b_size, b)));
    let mut total = 0;
    let is_within = |(_, size): &(PathBuf, u64)| {
        total += size;
        total <= MAX_BYTES
    };
    files.into_iter().take(MAX_FILES).take_while(is_within).map(|(path, _)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_keeps_names_and_limits() {
        assert!(is_found(Path::new("a/da39a3ee5e6b4b0d3255bfef95601890afd80709")));
        assert!(!is_found(Path::new("a/seed-plain")) && !is_found(Path::new("a/bug-long-line")));
        let file = |name: &str, size| (PathBuf::from(name), size);
        let chosen = choose(vec![file("c", MAX_BYTES), file("b", 2), file("a", 1)]);
        assert_eq!(chosen, [PathBuf::from("a"), PathBuf::from("b")]);
        let many = (0..2 * MAX_FILES).map(|number| file(&number.to_string(), 1)).collect();
        assert_eq!(choose(many).len(), MAX_FILES);
    }
}
