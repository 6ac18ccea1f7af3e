//! Any bytes as a stored state: refused, or a state that is stored and read as itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::State;

fuzz_target!(|bytes: &[u8]| {
    let _ = State::decode(bytes);
});
