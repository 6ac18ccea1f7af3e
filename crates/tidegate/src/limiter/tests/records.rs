//! Uses that have already happened, in batches, against what each key would say alone; and who is
//! found to be delayed.

use std::collections::BTreeMap;

use super::*;

/// One use: of which key, how far from now, and how late it is told, in sixteenths of the period.
fn uses() -> impl Strategy<Value = Vec<(u8, i8, u8)>> {
    let (when, late) =
        (prop_oneof![4 => Just(0), 1 => -8..24_i8], prop_oneof![4 => Just(0), 1 => 0..9_u8]);
    prop::collection::vec((0..12_u8, when, late), 0..80)
}

fn moment(sixteenths: i8, now: Now) -> Nanos {
    let span = PERIOD / 16 * u64::from(sixteenths.unsigned_abs());
    if sixteenths < 0 { now.mono - span } else { now.mono + span }
}

/// Identifiers of which some are too long for a slot and some are written otherwise in a key.
fn identifier(key: u8) -> Vec<u8> {
    match key % 3 {
        0 => format!("{key} with a name that is far too long").into_bytes(),
        1 => format!("{key}%").into_bytes(),
        _ => vec![b'a' + key],
    }
}

fn key(identifier: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    let builder = tidegate_core::key::KeyBuilder::new(&mut key, b"k").word(identifier);
    builder.finish().expect("short").to_vec()
}

/// Everybody who is found to be delayed.
fn delayed(limiter: &Limiter, domain: &[u8], now: Now) -> BTreeMap<Vec<u8>, Nanos> {
    let mut search = Search::new();
    let mut found = BTreeMap::new();
    let wanted = |key: &[u8]| key.starts_with(domain);
    let tell = |key: &[u8], span: Nanos| {
        found.insert(key.to_vec(), span);
    };
    let mut tell = tell;
    while !limiter.find_delayed(&mut search, 3, now, wanted, &mut tell) {}
    found
}

proptest! {
    #![proptest_config(many_cases())]

    #[test]
    fn records_are_what_each_key_would_say_alone(
        limits in prop::collection::vec(any_limit(), 1..4),
        batches in prop::collection::vec((wait(), uses()), 1..8),
    ) {
        let clock = Clock::manual(START);
        let rules = RuleSet::new(vec![rule("k", limits.clone())], None);
        let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, ROOMY);
        let desk = limiter.desk(Door::Smockron);
        let mut model: HashMap<u8, Vec<State>> = HashMap::new();
        let mut recording = Recording::new();
        for (wait, uses) in batches {
            clock.advance(wait);
            let now = clock.now();
            recording.begin();
            let mut expected = Vec::new();
            for &(key, sixteenths, late) in &uses {
                let at = moment(sixteenths, now);
                let late = PERIOD / 16 * u64::from(late);
                let when = When { at, late };
                prop_assert_eq!(recording.add(b"k", &identifier(key), when), Ok(()));
                let states = model.entry(key).or_insert_with(|| vec![State::None; limits.len()]);
                let mut next = 0;
                for (limit, state) in limits.iter().zip(states) {
                    let recorded = algorithms::record(limit, state, at, now.before(late));
                    next = next.max(recorded.next.saturating_sub(late));
                }
                expected.push(Told::Next(next));
            }
            desk.record(&mut recording, now);
            prop_assert_eq!(recording.told(), &expected[..]);
            let mut waiting = BTreeMap::new();
            for (number, states) in &model {
                let delay = limits.iter().zip(states).map(|(limit, state)| {
                    let judgement = algorithms::judge(limit, state, Op::Peek(1), now);
                    algorithms::explain(limit, state, Op::Peek(1), &judgement, now).delay
                });
                let delay = delay.max().unwrap_or(0);
                if delay > 0 {
                    waiting.insert(key(&identifier(*number)), delay);
                }
            }
            prop_assert_eq!(delayed(&limiter, b"k ", now), waiting);
        }
    }
}

#[test]
fn what_cannot_be_recorded_is_told_apart() {
    let held = limit(1, 0, Algorithm::InFlight { per_window: false });
    let shadow = Rule { shadow: true, ..rule("ghost", vec![fixed(1)]) };
    let rules =
        vec![rule("k", vec![fixed(1)]), rule("held", vec![held]), rule("free", vec![]), shadow];
    let limiter = limiter(rules, ROOMY);
    let desk = limiter.desk(Door::Smockron);
    let now = desk.now();
    let mut recording = Recording::new();
    let when = When { at: now.mono, late: 0 };
    assert!(recording.add(b"k", &[b' '; 400], when).is_err(), "three bytes for each");
    for domain in ["k", "nobody", "held", "free", "ghost", "ghost", "k"] {
        recording.add(domain.as_bytes(), b"me", when).unwrap();
    }
    desk.record(&mut recording, now);
    let day = DAY - now.unix % DAY;
    let expected = [
        Told::Next(day),
        Told::Unknown,
        Told::Unfit(Unfit::NeedsEnd),
        Told::Next(0),
        Told::Next(0),
        Told::Next(0),
        Told::Next(day),
    ];
    assert_eq!(recording.told(), expected);
    assert_eq!(delayed(&limiter, b"", now).into_keys().collect::<Vec<_>>(), [b"k me"]);
    recording.begin();
    desk.record(&mut recording, now);
    assert!(recording.told().is_empty());
}

#[test]
fn a_full_table_shares_or_lets_pass() {
    let full = memory::Settings { max_keys: 1, max_bytes: 1 << 28 };
    for (on_full, expected) in [(OnFull::Share, DAY), (OnFull::Deny, 0), (OnFull::Allow, 0)] {
        let rule = Rule { on_full, ..rule("k", vec![fixed(2)]) };
        let limiter = limiter(vec![rule], full);
        let desk = limiter.desk(Door::Smockron);
        let mut recording = Recording::new();
        for identifier in ["first", "second", "third"] {
            let when = When { at: START.mono, late: 0 };
            recording.add(b"k", identifier.as_bytes(), when).unwrap();
        }
        desk.record(&mut recording, desk.now());
        assert_eq!(recording.told().last(), Some(&Told::Next(expected)), "{on_full:?}");
    }
}
