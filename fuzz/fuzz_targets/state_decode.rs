//! Any bytes as a stored state: refused, or a state whose stored form is these very bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::State;

fuzz_target!(|bytes: &[u8]| {
    let Ok(state) = State::decode(bytes) else { return };
    let mut stored = Vec::new();
    state.encode(&mut stored);
    assert_eq!(stored, bytes);
});
