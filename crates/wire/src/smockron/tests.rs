//! What the protocol's frames mean, and that no frames at all do harm.

use proptest::prelude::*;

use super::*;

fn accounting(frames: &[&[u8]]) -> Result<(Vec<u8>, Status, Vec<u8>, u64), AccountingFault> {
    match parse(frames)? {
        AccountingMessage::Accounting(it) => {
            Ok((it.domain.to_vec(), it.status, it.identifier.to_vec(), it.received_ns))
        }
        AccountingMessage::Resync { .. } => panic!("a question"),
    }
}

const T: u64 = 1_700_000_000_000 * MILLISECOND_NS;
const TIME: &[u8] = b"1700000000000";

#[test]
fn six_frames_are_read() {
    let check = |status: &[u8], delayed: &[u8], expected: Status| {
        let frames = [b"web\0", status, b"1.2.3.4", TIME, delayed, b"curl"];
        let Ok(AccountingMessage::Accounting(it)) = parse(&frames) else { panic!("{status:?}") };
        let log_info = Some(&b"curl"[..]);
        let (domain, identifier) = (&b"web"[..], &b"1.2.3.4"[..]);
        let whole = Accounting { domain, status: expected, identifier, received_ns: T, log_info };
        assert_eq!(it, whole);
    };
    check(b"ACCEPTED", b"", Status::Accepted);
    check(b"REJECTED", b"", Status::Rejected);
    check(b"DELAYED", b"1700000000250", Status::Delayed { until_ns: T + 250 * MILLISECOND_NS });
    // A time where none belongs is left alone.
    check(b"ACCEPTED", b"soon", Status::Accepted);
}

#[test]
fn five_frames_or_seven_are_enough() {
    let five: [&[u8]; 5] = [b"web", b"ACCEPTED", b"me", TIME, b""];
    let expected = Ok((b"web".to_vec(), Status::Accepted, b"me".to_vec(), T));
    assert_eq!(accounting(&five), expected);
    let seven: [&[u8]; 7] = [b"web\0", b"ACCEPTED", b"me", TIME, b"", b"", b"more"];
    assert_eq!(accounting(&seven), expected);
    for count in 0..5 {
        assert_eq!(accounting(&five[..count]), Err(AccountingFault::FewFrames), "{count}");
    }
}

#[test]
fn domains_end_with_one_nul() {
    let check = |frame: &[u8], expected: Result<&[u8], AccountingFault>| {
        let found = accounting(&[frame, b"ACCEPTED", b"me", TIME, b""]).map(|it| it.0);
        assert_eq!(found.as_deref(), expected.as_deref(), "{frame:?}");
        let asked = parse(&[frame, b"RESYNC"]);
        assert_eq!(asked, expected.map(|domain| AccountingMessage::Resync { domain }));
    };
    check(b"web\0", Ok(b"web"));
    check(b"web", Ok(b"web"));
    check(b"web\0\0", Err(AccountingFault::Domain));
    check(b"we\0b\0", Err(AccountingFault::Domain));
    check(b"\0", Err(AccountingFault::Domain));
    check(b"", Err(AccountingFault::Domain));
}

#[test]
fn unknown_words_and_garbled_times_are_faults() {
    let check = |status: &[u8], received: &[u8], delayed: &[u8], expected: AccountingFault| {
        let frames = [&b"web\0"[..], status, b"me", received, delayed, b""];
        assert_eq!(accounting(&frames), Err(expected), "{status:?} {received:?} {delayed:?}");
    };
    check(b"accepted", TIME, b"", AccountingFault::Status);
    check(b"ACCEPTED\0", TIME, b"", AccountingFault::Status);
    check(b"", TIME, b"", AccountingFault::Status);
    check(b"DELAYED", TIME, b"", AccountingFault::Timestamp);
    check(b"DELAYED", TIME, b"x", AccountingFault::Timestamp);
    check(b"REJECTED", b"", b"", AccountingFault::Timestamp);
    let wrong: [&[u8]; 12] =
        [b"", b"-1", b"+1", b" 1", b"1 ", b"1e3", b"0x10", b".5", b"nan", b"1.2.3", b"1,5", b"1\0"];
    for received in wrong {
        check(b"ACCEPTED", received, b"", AccountingFault::Timestamp);
    }
    check(b"ACCEPTED", &[b'1'; 21], b"", AccountingFault::Timestamp);
}

#[test]
fn times_keep_their_fraction() {
    let check = |text: &[u8], expected: u64| {
        let found = accounting(&[b"web\0", b"ACCEPTED", b"me", text, b""]);
        assert_eq!(found.map(|it| it.3), Ok(expected), "{text:?}");
    };
    check(b"0", 0);
    check(b"1", MILLISECOND_NS);
    check(b"1.", MILLISECOND_NS);
    check(b"1.5", MILLISECOND_NS + 500_000);
    check(b"1700000000000.123", T + 123_000);
    check(b"1.000001", MILLISECOND_NS + 1);
    check(b"1.0000009999", MILLISECOND_NS);
    check(b"99999999999999999999", u64::MAX);
    check(b"18446744073709.551615", u64::MAX);
    check(b"18446744073709.551614", u64::MAX - 1);
}

#[test]
fn questions_need_a_domain_alone() {
    let expected = Ok(AccountingMessage::Resync { domain: b"web" });
    assert_eq!(parse(&[b"web\0", b"RESYNC"]), expected);
    assert_eq!(parse(&[b"web\0", b"RESYNC", b"", b"", b"", b""]), expected);
    assert_eq!(parse(&[b"RESYNC"]), Err(AccountingFault::FewFrames));
    let mut frames = Frames::new();
    write_resync(b"web", &mut frames);
    assert_eq!(parse(&frames.iter().collect::<Vec<_>>()), expected);
}

#[test]
fn control_is_written_for_the_plainest_reader() {
    let written = |control: ControlMessage<'_>| {
        let mut frames = Frames::new();
        control.write(&mut frames);
        let found: Vec<Vec<u8>> = frames.iter().map(<[u8]>::to_vec).collect();
        let slices: Vec<&[u8]> = found.iter().map(Vec::as_slice).collect();
        assert_eq!(ControlMessage::parse(&slices), Some(control));
        found.iter().map(|frame| frame.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
    };
    let (domain, identifier) = (&b"web"[..], &b"1.2.3.4"[..]);
    let delay = ControlMessage::DelayUntil { domain, identifier, at_ms: 1_700_000_000_250 };
    assert_eq!(written(delay), r"web\x00 DELAY_UNTIL 1.2.3.4 1700000000250");
    assert_eq!(written(ControlMessage::ResyncStart { domain }), r"web\x00 RESYNCSTART");
    assert_eq!(written(ControlMessage::ResyncDone { domain }), r"web\x00 RESYNCDONE");
    let latest = ControlMessage::DelayUntil { domain, identifier, at_ms: ms_up(u64::MAX) };
    assert_eq!(written(latest), r"web\x00 DELAY_UNTIL 1.2.3.4 18446744073710");
}

#[test]
fn control_that_is_not_understood_is_left_alone() {
    let check = |frames: &[&[u8]], expected: Option<u64>| {
        let found = match ControlMessage::parse(frames) {
            Some(ControlMessage::DelayUntil { at_ms, .. }) => Some(at_ms),
            _ => None,
        };
        assert_eq!(found, expected, "{frames:?}");
    };
    check(&[b"web\0", b"DELAY_UNTIL", b"me", b"250"], Some(250));
    check(&[b"web\0", b"DELAY_UNTIL", b"me", b"250.1"], Some(251));
    check(&[b"web\0", b"DELAY_UNTIL", b"me", b"250", b"more"], Some(250));
    check(&[b"web\0", b"DELAY_UNTIL", b"me", b""], None);
    check(&[b"web\0", b"DELAY_UNTIL", b"me"], None);
    check(&[b"web\0", b"FORGET", b"me", b"250"], None);
    check(&[b"web\0"], None);
    check(&[], None);
}

fn any_status() -> impl Strategy<Value = Status> {
    prop_oneof![
        Just(Status::Accepted),
        Just(Status::Rejected),
        any::<u64>().prop_map(|until_ns| Status::Delayed { until_ns }),
    ]
}

proptest! {
    #[test]
    fn whatever_a_gatekeeper_writes_a_master_reads(
        domain in "[^\0]{1,40}",
        identifier in prop::collection::vec(any::<u8>(), 0..80),
        status in any_status(),
        received_ns: u64,
        log in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let ms = |ns: u64| ns / MILLISECOND_NS * MILLISECOND_NS;
        let log_info = Some(&log[..]);
        let (domain, identifier) = (domain.as_bytes(), &identifier[..]);
        let mut frames = Frames::new();
        // The buffer is used again, whatever was in it.
        write_resync(b"before", &mut frames);
        Accounting { domain, status, identifier, received_ns, log_info }.write(&mut frames);
        let status = match status {
            Status::Delayed { until_ns } => Status::Delayed { until_ns: ms(until_ns) },
            other => other,
        };
        let received_ns = ms(received_ns);
        let expected = Accounting { domain, status, identifier, received_ns, log_info };
        let slices: Vec<&[u8]> = frames.iter().collect();
        prop_assert_eq!(slices.len(), FRAMES_MAX);
        prop_assert_eq!(parse(&slices), Ok(AccountingMessage::Accounting(expected)));
    }

    #[test]
    fn any_time_is_read_as_the_library_reads_it(
        ms in 0..=u64::MAX / MILLISECOND_NS,
        rest in 0..1_000_000_u64,
    ) {
        let text = format!("{ms}.{rest:06}");
        let found = stamp::parse(text.as_bytes());
        prop_assert_eq!(found, Some((ms * MILLISECOND_NS).saturating_add(rest)));
        prop_assert_eq!(stamp::parse(ms.to_string().as_bytes()), Some(ms * MILLISECOND_NS));
    }

    #[test]
    fn no_frames_make_a_reader_panic(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..9),
    ) {
        let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let _ = parse(&slices);
        let _ = ControlMessage::parse(&slices);
    }
}
