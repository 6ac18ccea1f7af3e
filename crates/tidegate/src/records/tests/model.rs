//! Random requests on few keys, against a plain map that forgets nothing and adds up slowly.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use tidegate_core::time::{DAY, HOUR, MINUTE, SECOND};

use super::super::capacity::SLOT_BYTES;
use super::*;

const KEYS: usize = 7;
const NANOS: [u128; 6] = [1, 1_000, 1_000_000, 1_000_000_000, 60_000_000_000, 3_600_000_000_000];

/// From the empty key to the longest, on both sides of what fits into a record.
fn key(number: usize) -> Vec<u8> {
    let len = [0, 1, 12, 22, 23, 100, 255][number];
    vec![b'k'; len]
}

#[derive(Clone, Debug)]
enum Op {
    Insert { key: usize, quota: u64, life: Life },
    Query(usize),
    Quota { key: usize, change: UpdateChange, value: u64, max: u64 },
    Ttl { key: usize, change: UpdateChange, value: u64 },
    Purge(usize),
    Set { key: usize, bytes: usize, life: Life },
    Get(usize),
    Consume { key: usize, cost: u64, quota: u64, life: Life },
    Add { key: usize, number: i64 },
    Put { key: usize, content: Result<u64, usize>, life: Option<Life> },
    Expire { key: usize, life: Life },
    Read(usize),
    Stat(usize),
    List,
    Sweep(usize),
    Pass(Nanos),
    StepWall(Nanos),
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..6u64,
        1 => Just(255),
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 1),
        1 => Just(u64::MAX / 3_600),
        1 => any::<u64>(),
    ]
}

fn life() -> impl Strategy<Value = Life> {
    (prop::sample::select(&Unit::ALL[..]), amount())
        .prop_map(|(unit, amount)| Life { unit, amount })
}

fn change() -> impl Strategy<Value = UpdateChange> {
    prop::sample::select(&[UpdateChange::Patch, UpdateChange::Increase, UpdateChange::Decrease][..])
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS;
    let max = prop_oneof![Just(255), Just(u64::from(u16::MAX)), Just(u64::MAX)];
    let pass = prop_oneof![
        Just(0),
        Just(1),
        0..10u64,
        Just(SECOND - 1),
        Just(SECOND),
        Just(MINUTE),
        0..3 * MINUTE,
        Just(5 * HOUR),
        Just(400 * DAY),
    ];
    prop_oneof![
        4 => (key(), amount(), life())
            .prop_map(|(key, quota, life)| Op::Insert { key, quota, life }),
        3 => key().prop_map(Op::Query),
        4 => (key(), change(), amount(), max)
            .prop_map(|(key, change, value, max)| Op::Quota { key, change, value, max }),
        2 => (key(), change(), amount())
            .prop_map(|(key, change, value)| Op::Ttl { key, change, value }),
        1 => key().prop_map(Op::Purge),
        3 => (key(), prop_oneof![Just(0), 0..300usize], life())
            .prop_map(|(key, bytes, life)| Op::Set { key, bytes, life }),
        2 => key().prop_map(Op::Get),
        3 => (key(), amount(), amount(), life())
            .prop_map(|(key, cost, quota, life)| Op::Consume { key, cost, quota, life }),
        3 => (key(), prop_oneof![-5..9i64, Just(i64::MAX), Just(i64::MIN), any::<i64>()])
            .prop_map(|(key, number)| Op::Add { key, number }),
        3 => (key(), prop::result::maybe_ok(amount(), 0..300usize), prop::option::of(life()))
            .prop_map(|(key, content, life)| Op::Put { key, content, life }),
        2 => (key(), life()).prop_map(|(key, life)| Op::Expire { key, life }),
        2 => key().prop_map(Op::Read),
        1 => key().prop_map(Op::Stat),
        1 => Just(Op::List),
        1 => (0..200usize).prop_map(Op::Sweep),
        4 => pass.prop_map(Op::Pass),
        1 => any::<u64>().prop_map(Op::StepWall),
    ]
}

/// What a map remembers of one record.
#[derive(Clone, Debug)]
struct Known {
    content: Result<u64, Vec<u8>>,
    unit: Unit,
    expiry: u128,
    number: usize,
    uses: [u64; 2],
    by_minute: BTreeMap<u64, [u64; 2]>,
}

struct Model {
    known: HashMap<usize, Known>,
    now: Now,
    made: usize,
    max_records: usize,
    max_bytes: usize,
}

/// A point in time beyond the clock's last is that last one.
fn clock(nanos: u128) -> u128 {
    nanos.min(u64::MAX.into())
}

fn span(unit: Unit, amount: u64) -> u128 {
    clock(u128::from(amount) * NANOS[unit as usize - 1])
}

fn footprint(key_number: usize, content: &Result<u64, Vec<u8>>) -> usize {
    let long_key = Some(key(key_number).len()).filter(|len| *len > 22).unwrap_or(0);
    SLOT_BYTES + long_key + content.as_ref().err().map_or(0, Vec::len)
}

impl Model {
    fn mono(&self) -> u128 {
        self.now.mono.into()
    }

    fn live(&mut self, key: usize) -> Option<&mut Known> {
        let now = self.mono();
        self.known.get_mut(&key).filter(|known| now < known.expiry)
    }

    fn used(&mut self, key: usize, what: usize) {
        let minute = self.now.mono / MINUTE;
        if let Some(known) = self.live(key) {
            known.uses[what] += 1;
            known.by_minute.entry(minute).or_default()[what] += 1;
        }
    }

    fn left(&self, expiry: u128, unit: Unit) -> u64 {
        // A life of nothing has not one nanosecond to give away.
        let left = expiry.saturating_sub(self.mono()).saturating_sub(1);
        (left / NANOS[unit as usize - 1]) as u64
    }

    fn has_room(&self, key: usize, content: &Result<u64, Vec<u8>>) -> bool {
        let others: Vec<_> = self
            .known
            .iter()
            .filter(|(other, known)| **other != key && self.mono() < known.expiry)
            .collect();
        let bytes: usize = others.iter().map(|(key, known)| footprint(**key, &known.content)).sum();
        others.len() < self.max_records && bytes + footprint(key, content) <= self.max_bytes
    }

    /// Makes a record where there is no live one.
    fn make(&mut self, key: usize, content: Result<u64, Vec<u8>>, life: Life) -> bool {
        if life.amount == 0 {
            return true;
        }
        if !self.has_room(key, &content) {
            return false;
        }
        let expiry = clock(self.mono() + span(life.unit, life.amount));
        self.made += 1;
        let (number, unit) = (self.made, life.unit);
        let by_minute = BTreeMap::new();
        let known = Known { content, unit, expiry, number, uses: [0; 2], by_minute };
        self.known.insert(key, known);
        true
    }

    fn set(&mut self, key: usize, value: Vec<u8>, life: Life) -> bool {
        let now = self.mono();
        match self.live(key) {
            None => return self.make(key, Err(value), life),
            Some(Known { content: Ok(_), .. }) => return false,
            Some(_) => {}
        }
        if life.amount == 0 {
            self.known.remove(&key);
            return true;
        }
        if !self.has_room(key, &Err(value.clone())) {
            return false;
        }
        let known = self.known.get_mut(&key).expect("it lives");
        known.content = Err(value);
        known.expiry = clock(now + span(life.unit, life.amount));
        known.unit = life.unit;
        self.used(key, 1);
        true
    }

    fn quota(&mut self, key: usize, change: UpdateChange, value: u64, max: u64) -> bool {
        let Some(Known { content: Ok(quota), .. }) = self.live(key) else { return false };
        let (before, value) = (i128::from(*quota), i128::from(value));
        let after = match change {
            UpdateChange::Patch => value,
            UpdateChange::Increase => before + value,
            UpdateChange::Decrease => before - value,
        };
        let over = change == UpdateChange::Increase && after > max.into();
        if over || after < 0 {
            return false;
        }
        *quota = u64::try_from(after).expect("within 64 bits");
        self.used(key, 1);
        true
    }

    fn ttl(&mut self, key: usize, change: UpdateChange, value: u64) -> bool {
        let now = self.mono();
        let Some(known) = self.live(key) else { return false };
        let span = span(known.unit, value);
        known.expiry = match change {
            UpdateChange::Patch => clock(now + span),
            UpdateChange::Increase => clock(known.expiry + span),
            UpdateChange::Decrease => known.expiry.saturating_sub(span),
        };
        // It has been written, although it may be over now.
        known.uses[1] += 1;
        known.by_minute.entry((now / u128::from(MINUTE)) as u64).or_default()[1] += 1;
        true
    }

    fn consume(&mut self, key: usize, cost: u64, quota: u64, life: Life) -> (bool, u64, u64) {
        if self.live(key).is_none() {
            let fits = cost <= quota;
            let rest = if fits { quota - cost } else { quota };
            if !self.make(key, Ok(rest), life) {
                return (false, 0, 0);
            }
            let expiry = clock(self.mono() + span(life.unit, life.amount));
            return (fits, rest, self.left(expiry, life.unit));
        }
        let known = self.live(key).expect("just seen");
        let (taken, rest) = match &mut known.content {
            Ok(there) if *there >= cost => {
                *there -= cost;
                (true, *there)
            }
            Ok(there) => (false, *there),
            Err(_) => (false, 0),
        };
        let expiry = known.expiry;
        self.used(key, usize::from(taken));
        (taken, rest, self.left(expiry, life.unit))
    }

    fn add(&mut self, key: usize, number: i64) -> Result<u64, AddRefusal> {
        let before = match self.live(key).map(|known| known.content.clone()) {
            Some(Err(_)) => return Err(AddRefusal::Buffer),
            Some(Ok(quota)) => Some(quota),
            None => None,
        };
        let sum = i128::from(before.unwrap_or(0)) + i128::from(number);
        if sum < 0 {
            return Err(AddRefusal::Below);
        }
        if sum > i64::MAX.into() {
            return Err(AddRefusal::Above);
        }
        let sum = u64::try_from(sum).expect("a signed number");
        if before.is_none() {
            let made = self.make(key, Ok(sum), Life::FOREVER);
            return if made { Ok(sum) } else { Err(AddRefusal::Full) };
        }
        self.live(key).expect("just seen").content = Ok(sum);
        self.used(key, 1);
        Ok(sum)
    }

    fn put(&mut self, key: usize, content: Result<u64, Vec<u8>>, life: Option<Life>) -> bool {
        if self.live(key).is_none() {
            return self.make(key, content, life.unwrap_or(Life::FOREVER));
        }
        if !self.has_room(key, &content) {
            return false;
        }
        self.used(key, 1);
        self.live(key).expect("just seen").content = content;
        if let Some(life) = life {
            self.begin(key, life);
        }
        true
    }

    fn expire(&mut self, key: usize, life: Life) {
        self.used(key, 1);
        self.begin(key, life);
    }

    fn begin(&mut self, key: usize, life: Life) {
        let expiry = clock(self.mono() + span(life.unit, life.amount));
        if let Some(known) = self.live(key) {
            (known.expiry, known.unit) = (expiry, life.unit);
        }
    }

    fn left_nanos(&self, expiry: u128) -> Nanos {
        let never = expiry == u64::MAX.into();
        if never { Nanos::MAX } else { (expiry - self.mono()) as Nanos }
    }

    fn stat(&mut self, key: usize) -> Option<Stat> {
        let last = (self.now.mono / MINUTE).checked_sub(1);
        let known = self.live(key)?;
        let by_minute = last.and_then(|last| known.by_minute.get(&last));
        let [reads_per_minute, writes_per_minute] = by_minute.copied().unwrap_or_default();
        let [reads, writes] = known.uses;
        Some(Stat { reads_per_minute, writes_per_minute, reads, writes })
    }

    fn listed(&mut self) -> Vec<(Vec<u8>, RecordKind, Unit, u64, u64, Stat)> {
        let mut keys: Vec<usize> = (0..KEYS).filter(|key| self.live(*key).is_some()).collect();
        keys.sort_by_key(|key| self.known[key].number);
        let listed = keys.into_iter().map(|number| {
            let stat = self.stat(number).expect("it lives");
            let known = &self.known[&number];
            let kind = if known.content.is_ok() { RecordKind::Counter } else { RecordKind::Buffer };
            let never = known.expiry == u64::MAX.into();
            let left = if never { u64::MAX.into() } else { known.expiry - self.mono() };
            let expires_at = clock(u128::from(self.now.unix) + left) as u64;
            let quota = known.content.as_ref().copied().unwrap_or(0);
            (key(number), kind, known.unit, expires_at, quota, stat)
        });
        listed.collect()
    }
}

/// Does the same to both and sees that they answer the same.
fn check(records: &Records, model: &mut Model, op: Op) -> Result<(), TestCaseError> {
    let now = model.now;
    let with = |number: usize| (key(number), records.probe(&key(number)));
    match op {
        Op::Insert { key, quota, life } => {
            let (name, probe) = with(key);
            let expected = model.live(key).is_none() && model.make(key, Ok(quota), life);
            prop_assert_eq!(records.insert(&name, probe, quota, life, now), expected);
        }
        Op::Quota { key, change, value, max } => {
            let (name, probe) = with(key);
            // A protocol's number is never larger than its own maximum.
            let value = value.min(max);
            let changed = records.update_quota(&name, probe, change, value, max, now);
            prop_assert_eq!(changed, model.quota(key, change, value, max));
        }
        Op::Ttl { key, change, value } => {
            let (name, probe) = with(key);
            let changed = records.update_ttl(&name, probe, change, value, now);
            prop_assert_eq!(changed, model.ttl(key, change, value));
        }
        Op::Purge(key) => {
            let (name, probe) = with(key);
            let lived = model.live(key).is_some();
            model.known.remove(&key);
            prop_assert_eq!(records.purge(&name, probe, now), lived);
        }
        Op::Set { key, bytes, life } => {
            let (name, probe) = with(key);
            let value = vec![b'v'; bytes];
            prop_assert_eq!(
                records.set(&name, probe, &value, life, now),
                model.set(key, value, life)
            );
        }
        Op::Consume { key, cost, quota, life } => {
            let (name, probe) = with(key);
            let consumed = records.consume(&name, probe, cost, quota, life, now);
            let found = (consumed.taken, consumed.remaining, consumed.left);
            prop_assert_eq!(found, model.consume(key, cost, quota, life));
            prop_assert_eq!(consumed.refusal.is_none(), consumed.taken);
        }
        Op::Add { key, number } => {
            let (name, probe) = with(key);
            let sum = records.add_or_insert(&name, probe, number, now);
            prop_assert_eq!(sum, model.add(key, number));
        }
        Op::Put { key, content, life } => {
            let (name, probe) = with(key);
            let lived = model.live(key).is_some();
            let content = content.map_err(|bytes| vec![b'p'; bytes]);
            let shown =
                content.as_ref().map_or_else(|b| Content::Bytes(b), |n| Content::Number(*n));
            let put = |seen: Option<SeenRecord<'_>>| (RecordEdit::Put(shown, life), seen.is_some());
            let seen = records.edit(&name, probe, now, put);
            prop_assert_eq!(seen, model.put(key, content, life).then_some(lived));
        }
        Op::Expire { key, life } => {
            let (name, probe) = with(key);
            let lived = model.live(key).is_some();
            model.expire(key, life);
            let expire = |seen: Option<SeenRecord<'_>>| (RecordEdit::Expire(life), seen.is_some());
            prop_assert_eq!(records.edit(&name, probe, now, expire), Some(lived));
        }
        Op::Sweep(budget) => assert!(records.sweep(budget, now) <= KEYS),
        Op::Pass(span) => model.now.mono = now.mono.saturating_add(span),
        Op::StepWall(unix) => model.now.unix = unix,
        look => return check_look(records, model, look),
    }
    Ok(())
}

/// The same for what only looks.
fn check_look(records: &Records, model: &mut Model, op: Op) -> Result<(), TestCaseError> {
    let now = model.now;
    let with = |number: usize| (key(number), records.probe(&key(number)));
    match op {
        Op::Query(key) => {
            let (name, probe) = with(key);
            let known = model.live(key).map(|known| known.clone());
            let expected = known.and_then(|known| {
                let (quota, unit) = (known.content.ok()?, known.unit);
                model.used(key, 0);
                Some(CounterReading { quota, unit, left: model.left(known.expiry, unit) })
            });
            prop_assert_eq!(records.query(&name, probe, now), expected);
        }
        Op::Get(key) => {
            let (name, probe) = with(key);
            let known = model.live(key).map(|known| known.clone());
            let expected = known.and_then(|known| {
                let (value, unit) = (known.content.err()?, known.unit);
                model.used(key, 0);
                Some((value, unit, model.left(known.expiry, unit)))
            });
            let found =
                records.get(&name, probe, now, |value, unit, left| (value.to_vec(), unit, left));
            prop_assert_eq!(found, expected);
        }
        Op::Read(key) => {
            let (name, probe) = with(key);
            let known = model.live(key).map(|known| known.clone());
            model.used(key, 0);
            let left = known.as_ref().map(|known| model.left_nanos(known.expiry));
            let expected = known.map(|known| known.content).zip(left);
            prop_assert_eq!(records.left(&name, probe, now), left);
            let found = records.read(&name, probe, now, |seen| match seen.content {
                Content::Number(number) => (Ok(number), seen.left),
                Content::Bytes(bytes) => (Err(bytes.to_vec()), seen.left),
            });
            prop_assert_eq!(found, expected);
        }
        Op::Stat(key) => {
            let (name, probe) = with(key);
            prop_assert_eq!(records.stat(&name, probe, now), model.stat(key));
        }
        Op::List => {
            let listed: Vec<_> = records
                .list(now)
                .into_iter()
                .map(|r| (r.key().to_vec(), r.kind, r.unit, r.expires_at, r.quota, r.stat))
                .collect();
            prop_assert_eq!(listed, model.listed());
        }
        _ => unreachable!("it does more than look"),
    }
    Ok(())
}

proptest! {
    #[test]
    fn records_do_what_a_map_does(
        start in prop_oneof![Just(0), Just(500 * DAY), Just(u64::MAX - 90 * SECOND)],
        max_records in 1..9usize,
        max_bytes in prop_oneof![Just(1usize << 20), 100..1_500usize],
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let records = Records::new(Settings { max_records, max_bytes });
        let now = Now { mono: start, unix: 20_000 * DAY };
        let mut model = Model { known: HashMap::new(), now, made: 0, max_records, max_bytes };
        for op in ops {
            let told = format!("{op:?} at {:?}", model.now);
            check(&records, &mut model, op)
                .map_err(|error| TestCaseError::fail(format!("{told}: {error}")))?;
            let size = records.size();
            prop_assert!(size.records() <= max_records && size.bytes <= max_bytes, "{}", told);
        }
        check(&records, &mut model, Op::List)?;
        // All that was booked is given back once all have gone.
        for n in 0..KEYS {
            records.purge(&key(n), records.probe(&key(n)), model.now);
        }
        records.sweep(1_000, model.now);
        prop_assert_eq!((records.size().records(), records.size().bytes), (0, 0));
    }
}
