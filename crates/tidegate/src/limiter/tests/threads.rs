//! Several threads at once lose no update and admit exactly what one would have been admitted.

use std::thread;

use super::*;

const AMOUNT: u64 = 500;
const THREADS: u64 = 4;

/// Runs `ask` on every thread, each with its own handle, and sums what it returns.
fn on_all_threads(limiter: &Arc<Limiter>, ask: impl Fn(&LimiterHandle, u64) -> u64 + Sync) -> u64 {
    thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let handle = limiter.handle(Door::Text);
                scope.spawn(move || ask(&handle, number))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

#[test]
fn one_key_admits_exactly_its_amount() {
    let limiter = limiter(vec![rule("k", vec![fixed(AMOUNT)])], ROOMY);
    let admitted = on_all_threads(&limiter, |handle, _| {
        let one = || decide_one(handle, b"k same", Op::Take(1), START).expect("a valid request");
        (0..AMOUNT).map(|_| u64::from(one().is_allowed())).sum()
    });
    assert_eq!(admitted, AMOUNT);
    let stats = limiter.stats(b"k same", START);
    assert_eq!((stats.requests, stats.over), (THREADS * AMOUNT, (THREADS - 1) * AMOUNT));
    let page = limiter.metrics().encode(Default::default());
    assert!(page.contains(&format!("verdict=\"allow\"}} {AMOUNT}\n")), "{page}");
}

#[test]
fn different_keys_do_not_disturb_each_other() {
    let limiter = limiter(vec![rule("k", vec![fixed(3)])], ROOMY);
    let admitted = on_all_threads(&limiter, |handle, number| {
        let mut admitted = 0;
        for n in 0..AMOUNT {
            let names = [format!("k {n}"), format!("k {number} {n}")];
            let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
            for _ in 0..4 {
                let each = decide_each(handle, &keys, Op::Take(1), START);
                admitted += each.iter().flatten().filter(|v| v.is_allowed()).count() as u64;
            }
        }
        admitted
    });
    assert_eq!(admitted, 3 * (AMOUNT + THREADS * AMOUNT));
}

#[test]
fn requests_over_keys_in_any_order_are_one_step() {
    let limiter = limiter(vec![rule("k", vec![fixed(AMOUNT)])], ROOMY);
    let admitted = on_all_threads(&limiter, |handle, number| {
        // Each pair holds `k hub`, and each order would block another if locks were not ordered.
        let other = format!("k {number}");
        let mut keys: [&[u8]; 3] = [b"k hub", other.as_bytes(), b"k rim"];
        let mut admitted = 0;
        for _ in 0..AMOUNT {
            keys.rotate_left(1);
            let answer = decide_all(handle, &keys, Op::Take(1), START).expect("a valid request");
            admitted += u64::from(answer.is_allowed());
        }
        admitted
    });
    assert_eq!(admitted, AMOUNT);
    let handle = limiter.handle(Door::Http);
    let others: u64 = (0..THREADS).map(|n| AMOUNT - remaining(&handle, &format!("k {n}"))).sum();
    assert_eq!(others, AMOUNT, "what was refused took nothing");
    assert_eq!(remaining(&handle, "k hub") + remaining(&handle, "k rim"), 0);
}

#[test]
fn a_full_table_admits_no_more_than_one_count_for_those_without_a_slot() {
    let rules = vec![rule("k", vec![fixed(AMOUNT)])];
    let limiter = limiter(rules, memory::Settings { max_keys: 1, max_bytes: 1 << 20 });
    assert!(take(&limiter.handle(Door::Http), &["k slot"]).is_allowed());
    let admitted = on_all_threads(&limiter, |handle, number| {
        let key = format!("k {number}");
        let one =
            || decide_one(handle, key.as_bytes(), Op::Take(1), START).expect("a valid request");
        (0..AMOUNT).map(|_| u64::from(one().is_allowed())).sum()
    });
    assert_eq!(admitted, AMOUNT);
}
