//! First bytes of a connection of code. The tests of the crate call the same function for the corpus; this file only connects it to the fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cove_egress::exercise_proxy_request(bytes));
