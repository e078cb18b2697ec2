//! Replays the corpus of a fuzz target in the tests of the crate that it checks, which include this file. What the fuzzer
//! found once is thereby checked at every test run, without a fuzzer.

use std::fs;
use std::path::Path;

/// Calls the function for every input that the corpus of `target` has. Fails if there is none.
pub(crate) fn replay(target: &str, exercise: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("the corpus is there") {
        let path = entry.expect("the corpus can be listed").path();
        // A failed test shows the last line, which names its input.
        println!("{}", path.display());
        exercise(&fs::read(&path).expect("an input can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus of `{target}` is empty");
}
