//! Any answer at a client of the JARL protocol, and any delay at its server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::jarl::{ANSWER_BYTES_MAX, Rounding, encode, parse};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(delay) = parse(bytes) {
        // What is read is a number that the library reads as well, and the same one.
        let text = std::str::from_utf8(bytes).unwrap();
        let seconds: f64 = text.parse().unwrap();
        assert!((seconds - delay.as_secs_f64()).abs() <= seconds * 1e-12 + 1e-12, "{text}");
    }
    let Some(first) = bytes.first_chunk() else { return };
    let delay_ns = u64::from_le_bytes(*first);
    let bounds = [(Rounding::Nearest, 500_000, 500_000), (Rounding::Up, 0, 999_999)];
    for (rounding, less, more) in bounds {
        let mut out = [0; ANSWER_BYTES_MAX];
        let answer = encode(&mut out, delay_ns, rounding);
        let told = parse(answer).unwrap().as_nanos();
        let delay_ns = u128::from(delay_ns);
        assert!(told + less >= delay_ns && told <= delay_ns + more);
    }
});
