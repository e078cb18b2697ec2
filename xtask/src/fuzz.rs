//! `cargo xtask fuzz`: every target in `fuzz/` for some seconds. The tests replay the corpus without it; this looks for
//! new inputs.

use std::fs;

use crate::cargo;

const MISSING: &str = "\
could not find cargo-fuzz
hint: `cargo install --locked cargo-fuzz`";

pub(crate) fn run(seconds: &str) -> Result<(), String> {
    if !cargo::has("fuzz") {
        return Err(MISSING.to_owned());
    }
    let folder = cargo::root().join("fuzz");
    let could_not = |error| format!("could not read `fuzz/`\ncaused by: {error}");
    let mut targets = Vec::new();
    for entry in fs::read_dir(folder.join("fuzz_targets")).map_err(could_not)? {
        if let Some(name) = entry.map_err(could_not)?.path().file_stem() {
            targets.push(name.to_string_lossy().into_owned());
        }
    }
    targets.sort();
    let mut failed = Vec::new();
    for target in targets {
        // New inputs go to the first folder named: into the ignored one, so that only what a person chose is kept.
        let found = format!("target/found/{target}");
        fs::create_dir_all(folder.join(&found)).map_err(could_not)?;
        let corpus = format!("corpus/{target}");
        let limit = format!("-max_total_time={seconds}");
        let status = cargo::command(&["fuzz", "run", &target, &found, &corpus, "--", &limit])
            .current_dir(&folder)
            // Lets a stable compiler instrument the code; nightly does not mind.
            .env("RUSTC_BOOTSTRAP", "1")
            .status()
            .map_err(|error| format!("could not start cargo\ncaused by: {error}"))?;
        if !status.success() {
            failed.push(target);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("fuzzing failed: {}", failed.join(", "))) }
}
