//! A file that a person opens as a bundle. The tests of the crate call the same function for the corpus; this file only connects it to the fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cove::cli::install::exercise_bundle(bytes));
