//! What answers of the script mean, and what is made of those that mean nothing.

use redis::Value;
use tidegate_core::time::{MICROSECOND, SECOND};

use super::super::super::engine::{CellChange, EngineFault, StoredValue, Swapped, Timed, Write};
use super::super::script::{self, Versions};
use super::super::{all, pattern};

fn bulk(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

fn stored(version: u64, value: &[u8]) -> Value {
    bulk(&[&version.to_be_bytes(), value].concat())
}

#[test]
fn answers_are_read() {
    let sent = || vec![vec![1], vec![2, 3], vec![4]];
    let done = |versions: &[u64]| Swapped::Done(versions.to_vec());
    let all_done = [done(&[1]), done(&[2, 3]), done(&[4])];
    let check = |answer: Value, time: Option<u64>, expected: &[Swapped]| {
        let read: Vec<_> = script::read(answer, sent());
        let expected = expected.iter().map(|what| Ok(Timed { what: what.clone(), time }));
        assert_eq!(read, expected.collect::<Vec<_>>());
    };
    check(Value::Int(0), None, &all_done);
    let time = Some(7 * SECOND + 5 * MICROSECOND);
    check(Value::Array(vec![bulk(b"7"), bulk(b"5")]), time, &all_done);

    let mut answer = vec![bulk(b""), bulk(b""), Value::Int(2), stored(9, b"x"), Value::Nil];
    let found = vec![StoredValue { version: 9, value: b"x".to_vec() }, StoredValue::default()];
    let mut expected = [done(&[1]), Swapped::Stale(found), done(&[4])];
    check(Value::Array(answer.clone()), None, &expected);
    answer.extend([Value::Int(3), stored(8, b"")]);
    expected[2] = Swapped::Stale(vec![StoredValue { version: 8, value: Vec::new() }]);
    check(Value::Array(answer), None, &expected);
}

#[test]
fn nonsense_is_garbage() {
    let none = || [bulk(b""), bulk(b"")].to_vec();
    let with = |more: &[Value]| Value::Array([none(), more.to_vec()].concat());
    let two = || stored(9, b"x");
    for answer in [
        Value::Nil,
        Value::Okay,
        Value::Int(1),
        Value::Array(Vec::new()),
        Value::Array(vec![Value::Int(1)]),
        with(&[Value::Int(2)]),
        with(&[Value::Int(2), two()]),
        with(&[Value::Int(2), two(), bulk(b"short")]),
        with(&[Value::Int(2), two(), stored(0, b"")]),
        with(&[Value::Int(2), two(), Value::Int(5)]),
        with(&[Value::Int(2), two(), two(), Value::Int(1), two()]),
        with(&[Value::Int(0), two(), two()]),
        with(&[Value::Int(9), two(), two()]),
        with(&[bulk(b"2"), two(), two()]),
    ] {
        let read = script::read(answer.clone(), vec![vec![1], vec![2, 3]]);
        assert_eq!(read.len(), 2);
        assert!(matches!(read[1], Err(EngineFault::Garbage(_))), "{answer:?}: {read:?}");
    }
}

#[test]
fn versions_are_never_absent_and_never_the_same() {
    let versions = Versions::new().expect("random numbers");
    let write = Write { value: vec![1], lives: 1, keeps: false, frees: false };
    let change = CellChange { name: b"x".as_slice().into(), seen: 7, write: Some(write) };
    let mut made: Vec<u64> =
        (0..10_000).flat_map(|_| versions.after(std::slice::from_ref(&change))).collect();
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), 10_000);
    assert!(!made.contains(&0));
}

#[test]
fn time_is_rounded_up() {
    let check = |nanos, expected| assert_eq!(script::milliseconds(nanos), expected, "{nanos}");
    check(0, 1);
    check(1, 1);
    check(1_000_000, 1);
    check(1_000_001, 2);
    check(u64::MAX, 18_446_744_073_710);
}

#[test]
fn a_prefix_is_no_pattern() {
    assert_eq!(pattern(b"a*b?[c]\\^"), b"a\\*b\\?\\[c\\]\\\\\\^*");
}

#[tokio::test]
async fn all_are_polled_until_all_are_ready() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sender = std::sync::Mutex::new(Some(sender));
    let receiver = tokio::sync::Mutex::new(receiver);
    // The first waits for the last.
    let run = async |number: usize| {
        if number == 0 {
            return (&mut *receiver.lock().await).await.expect("a number");
        }
        tokio::task::yield_now().await;
        if number == 9 {
            let sender = sender.lock().expect("a lock").take().expect("a sender");
            sender.send(100).expect("a receiver");
        }
        number
    };
    let told = all((0..10).map(|number| Box::pin(run(number))).collect()).await;
    assert_eq!(told, [100, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}
