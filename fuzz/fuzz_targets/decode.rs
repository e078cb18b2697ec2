//! Feeds any bytes to the codec, as a hostile guest would. The checks are in the function that the tests of
//! `cove-protocol` call too; this file only connects it to the fuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cove-protocol/tests/exercise/decode.rs"]
mod decode;

fuzz_target!(|bytes: &[u8]| {
    decode::exercise(bytes);
});
