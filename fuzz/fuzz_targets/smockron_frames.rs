//! Any frames at a Smockron master and at a gatekeeper: a byte of length, then the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::smockron::{
    AccountingMessage, ControlMessage, Frames, MILLISECOND_NS, Status, parse,
};

fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let (frame, rest) = rest.split_at(usize::from(length).min(rest.len()));
        frames.push(frame);
        bytes = rest;
    }
    frames
}

fn whole_ms(ns: u64) -> u64 {
    ns / MILLISECOND_NS * MILLISECOND_NS
}

fuzz_target!(|bytes: &[u8]| {
    let frames = frames(bytes);
    let mut written = Frames::new();
    if let Ok(AccountingMessage::Accounting(mut read)) = parse(&frames) {
        assert!(!read.domain.is_empty() && !read.domain.contains(&0));
        read.write(&mut written);
        // What is written again is the same but for times below a millisecond.
        read.received_ns = whole_ms(read.received_ns);
        read.log_info = Some(read.log_info.unwrap_or_default());
        if let Status::Delayed { until_ns } = &mut read.status {
            *until_ns = whole_ms(*until_ns);
        }
        let again: Vec<&[u8]> = written.iter().collect();
        assert_eq!(parse(&again), Ok(AccountingMessage::Accounting(read)));
    }
    if let Some(control) = ControlMessage::parse(&frames) {
        control.write(&mut written);
        let again: Vec<&[u8]> = written.iter().collect();
        assert_eq!(ControlMessage::parse(&again), Some(control));
        let atol = |frame: &&[u8]| !frame.is_empty() && frame.iter().all(u8::is_ascii_digit);
        assert!(again.get(3).is_none_or(atol), "a reader in C would not understand");
    }
});
