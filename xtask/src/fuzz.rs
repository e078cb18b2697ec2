//! `cargo xtask fuzz`: runs every target in `fuzz/` for some seconds, to find new inputs. The tests replay the known
//! corpus without it.

use std::fs;

use crate::attempts::{self, ErrorContext};
use crate::cargo;

const MISSING: &str = "\
could not find cargo-fuzz
hint: `cargo install --locked cargo-fuzz`";

pub(crate) fn run(seconds: &str) -> Result<(), String> {
    if !cargo::has("fuzz") {
        return Err(MISSING.to_owned());
    }
    let folder = cargo::root().join("fuzz");
    let mut targets = Vec::new();
    for entry in fs::read_dir(folder.join("fuzz_targets")).could_not("read `fuzz/`")? {
        if let Some(name) = entry.could_not("read `fuzz/`")?.path().file_stem() {
            targets.push(name.to_string_lossy().into_owned());
        }
    }
    targets.sort();
    let mut failed = Vec::new();
    for target in targets {
        // The fuzzer writes new inputs to the first folder named. That one is ignored by git, so the tree keeps only
        // inputs that a person chose.
        let found = format!("target/found/{target}");
        attempts::create_folder(&folder.join(&found))?;
        let corpus = format!("corpus/{target}");
        let limit = format!("-max_total_time={seconds}");
        let status = cargo::command(&["fuzz", "run", &target, &found, &corpus, "--", &limit])
            .current_dir(&folder)
            // Lets a stable compiler instrument the code. It has no effect on nightly.
            .env("RUSTC_BOOTSTRAP", "1")
            .status()
            .could_not("start cargo")?;
        if !status.success() {
            failed.push(target);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("fuzzing failed: {}", failed.join(", "))) }
}
