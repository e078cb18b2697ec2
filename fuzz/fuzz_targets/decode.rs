//! Any bytes as the stream of a hostile guest. What must hold is in the function that the tests of `cove-protocol` call
//! too; here is only the glue.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cove-protocol/tests/exercise/decode.rs"]
mod decode;

fuzz_target!(|bytes: &[u8]| {
    decode::exercise(bytes);
});
