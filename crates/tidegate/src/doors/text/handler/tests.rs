//! Requests of the text protocol without a socket, with counts in memory and in a remote store.

use proptest::prelude::*;

use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::limiter::Limiter;
use crate::metrics::Metrics;

/// Limits whose lines are as long as lines can be.
const LONG_LINES: &str = "
    [text]
    listen = '127.0.0.1:0'
    [[rule]]
    match = 'long*'
    limit = '1000000000 per 365d'
    algorithm = 'fixed-window'
    [default]
    limit = '1/h'
";

/// A store that nobody has started.
const NO_STORE: &str = "
    [text]
    listen = '127.0.0.1:0'
    [store]
    kind = 'redis'
    url = 'redis://127.0.0.1:1'
    [[rule]]
    match = 'ws ip=*'
    limit = '1/h'
    on_store_error = 'deny'
    [[rule]]
    match = 'local *'
    limit = '1/h'
    on_store_error = 'local'
    [[rule]]
    match = 'allow *'
    limit = '1/h'
    [[rule]]
    match = 'jobs *'
    limit = '1 in flight'
";

/// A handler whose peers are numbers.
fn handler(file: &str) -> TextHandler<usize> {
    let config = Config::parse("t", file).expect("a sound file");
    let memory = config.file.memory.settings();
    let metrics = Metrics::new().into();
    let limiter = Limiter::new(Clock::system(), metrics, config.rules, memory);
    if file.contains("[store]") {
        limiter.use_store(&config.file.store).expect("sound settings");
    }
    TextHandler::new(limiter.handle(Door::Text)).expect("a notifier")
}

/// How many replies were left out for their length.
fn left_out(handler: &TextHandler<usize>) -> u64 {
    let page = handler.handle.limiter().metrics().encode(Default::default());
    let series = "tidegate_bad_input_total{door=\"text\",reason=\"amplifies\"} ";
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |count| count.parse().expect("a count"))
}

/// The reply to one datagram.
fn reply(handler: &mut TextHandler<usize>, datagram: &str, trusted: bool) -> Option<String> {
    let replies = handler.on_datagrams(&[datagram.as_bytes()], |at| at, |_| trusted);
    replies.iter().next().map(|(_, reply)| String::from_utf8_lossy(reply).into_owned())
}

#[test]
fn check_limit_is_for_trusted_sources() {
    let mut handler = handler(LONG_LINES);
    let request = "7 check_limit {\"origin\":\"ws\"}";
    assert_eq!(reply(&mut handler, request, false), None);
    assert_eq!(reply(&mut handler, "check_limit []", false), None, "and says no more of it");
    assert_eq!(left_out(&handler), 2);
    let unused = "n_req=0 n_over=0 last_max_rate=0 key=ws ua=";
    let stats = reply(&mut handler, "get_stats ws ua=", false);
    assert_eq!(stats.as_deref(), Some(unused), "no use");
    let answer = reply(&mut handler, request, true);
    assert!(answer.is_some_and(|reply| reply.starts_with("7 ok N ")));
    assert_eq!(left_out(&handler), 2);
}

/// Counts of so many digits take longer than a test; the replies are made by hand.
#[test]
fn a_reply_that_is_too_long_is_not_added() {
    let mut replies = Replies::new();
    let write = |bytes: &'static [u8]| {
        move |out: &mut [u8]| -> Result<usize, ()> {
            out[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        }
    };
    assert!(replies.add_within(0, 5, write(b"first")));
    assert!(!replies.add_within(1, 4, write(b"other")));
    replies.add_long(2, b"next");
    replies.add(3, write(b"last"));
    let list: Vec<_> = replies.iter().collect();
    assert_eq!(list, [(0, &b"first"[..]), (2, b"next"), (3, b"last")]);
}

/// The replies to these datagrams, sorted. A peer is the number of its datagram.
fn all_replies(datagrams: &[&str], trusted: bool) -> Vec<String> {
    let mut handler = handler(NO_STORE);
    let bytes: Vec<&[u8]> = datagrams.iter().map(|datagram| datagram.as_bytes()).collect();
    let text = |peer: usize, bytes: &[u8]| {
        let reply = String::from_utf8(bytes.to_vec()).expect("text");
        assert_eq!(reply.split(' ').next(), datagrams[peer].split(' ').next(), "its own id");
        reply
    };
    let at_once = handler.on_datagrams(&bytes, |at| at, |_| trusted);
    let mut replies: Vec<_> = at_once.iter().map(|(at, reply)| text(at, reply)).collect();
    while handler.has_pending() {
        handler.on_answers(|peers, answers| {
            assert!(peers.len() <= BATCH && answers.iter().len() == peers.len());
            replies.extend(answers.iter().map(|(at, reply)| text(peers[at], reply)));
        });
    }
    replies.sort_unstable();
    replies
}

/// The rules decide on what the store does not answer. Each key of a `check_limit` is asked
/// when the answer for the one before has come.
#[test]
fn requests_that_wait_for_a_store_are_answered_when_it_has_failed() {
    let datagrams = [
        "1 over_limit ws ip=a",
        "2 over_limit local a",
        "3 over_limit local a",
        "4 over_limit allow a",
        "5 over_limit allow a",
        "6 over_limit jobs a",
        "7 ping",
        "8 check_limit {\"origin\":\"ws\",\"ip\":\"a\"}",
        "9 check_limit []",
        "over_limit",
    ];
    let expected = [
        "1 ok Y 0.0 1.0 3600",
        "2 ok N 1.0 1.0 3600",
        "3 ok Y 1.0 1.0 3600",
        "4 ok N 0.0 1.0 3600",
        "5 ok N 0.0 1.0 3600",
        "7 pong",
        "8 ok Y 0.0 1.0 3600, [\"ws ua=\",\"ws ip=a\"], \
         [{\"key\":\"ws ua=\",\"over_limit\":\"ok N 0.0 1.0 1\"},\
         {\"key\":\"ws ip=a\",\"over_limit\":\"ok Y 0.0 1.0 3600\"}]",
    ];
    assert_eq!(all_replies(&datagrams, true), expected);
    // A source that is not trusted: all but the long reply of `check_limit`.
    assert_eq!(all_replies(&datagrams, false), expected[..6]);
    // More than one send takes.
    let many = vec!["4 over_limit allow a"; 3 * BATCH + 1];
    assert_eq!(all_replies(&many, true), vec![expected[3]; many.len()]);
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let command = prop_oneof![
        Just("ping".to_owned()),
        Just("get_size".to_owned()),
        "over_limit (long)?[ -~]{0,3}\n?",
        "get_stats (long)?[ -~]{0,3}\n?",
        "check_limit [{]\"(origin|ua|ip)\":\"[ -~&&[^\"\\\\]]{0,9}\"[}]\n?",
        "[ -~]{0,12}",
    ];
    ("([0-9]{1,22} )?", command).prop_map(|(id, command)| (id + &command).into_bytes())
}

proptest! {
    /// A client that forges a victim's address sends the victim at most five times what it
    /// spends.
    #[test]
    fn no_reply_to_a_forged_source_is_more_than_five_times_its_request(
        datagrams in prop::collection::vec(request(), 1..40)
    ) {
        let mut handler = handler(LONG_LINES);
        let datagrams: Vec<&[u8]> = datagrams.iter().map(Vec::as_slice).collect();
        let replies = handler.on_datagrams(&datagrams, |at| at, |_| false);
        for (at, reply) in replies.iter() {
            prop_assert!(
                reply.len() <= 5 * datagrams[at].len(),
                "{} -> {}", datagrams[at].escape_ascii(), reply.escape_ascii(),
            );
        }
        let expected = datagrams.iter().filter(|datagram| {
            text::parse(datagram).is_ok_and(|request| {
                !matches!(request.command, TextCommand::CheckLimit(_))
            })
        });
        prop_assert_eq!(replies.iter().len(), expected.count(), "and all others are answered");
    }
}
