//! Random requests through the corridor, against a plain map with a clock that is moved by hand.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate::clock::Clock;
use tidegate::doors::throttr::{Conversation, ThrottrState};
use tidegate::metrics::Metrics;
use tidegate::records::{Records, Settings};
use tidegate_wire::throttr::{Attribute, Request, Ttl, Unit, UpdateChange, ValueSize};

use crate::golden::START;

/// A request with its key and value as small numbers, which a size turns into bytes.
#[derive(Clone, Debug)]
enum Step {
    Insert { key: u8, quota: u64, ttl: Option<(Unit, u64)> },
    Query { key: u8 },
    Update { key: u8, attribute: Option<Attribute>, change: Option<UpdateChange>, value: u64 },
    Purge { key: u8 },
    Set { key: u8, length: u8, ttl: Option<(Unit, u64)> },
    Get { key: u8 },
    Consume { key: u8, cost: u64, quota: u64, ttl: Option<(Unit, u64)> },
    Pass { nanos: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..6u8;
    // Small ones meet each other; large ones meet the ends of every size.
    let number = || {
        prop_oneof![
            4 => 0..12u64,
            1 => 250..260u64,
            1 => 65_530..65_540u64,
            1 => (u64::from(u32::MAX) - 3)..(u64::from(u32::MAX) + 3),
            1 => (u64::MAX - 3)..=u64::MAX,
        ]
    };
    let ttl = || prop::option::weighted(0.9, (prop::sample::select(&Unit::ALL), number()));
    let attribute =
        prop::option::weighted(0.9, prop_oneof![Just(Attribute::Quota), Just(Attribute::Ttl)]);
    let change = prop::option::weighted(
        0.9,
        prop_oneof![
            Just(UpdateChange::Patch),
            Just(UpdateChange::Increase),
            Just(UpdateChange::Decrease)
        ],
    );
    let step = prop_oneof![
        3 => (key.clone(), number(), ttl())
            .prop_map(|(key, quota, ttl)| Step::Insert { key, quota, ttl }),
        4 => key.clone().prop_map(|key| Step::Query { key }),
        4 => (key.clone(), attribute, change, number())
            .prop_map(|(key, attribute, change, value)| {
                Step::Update { key, attribute, change, value }
            }),
        1 => key.clone().prop_map(|key| Step::Purge { key }),
        2 => (key.clone(), any::<u8>(), ttl())
            .prop_map(|(key, length, ttl)| Step::Set { key, length, ttl }),
        2 => key.clone().prop_map(|key| Step::Get { key }),
        3 => (key, number(), number(), ttl())
            .prop_map(|(key, cost, quota, ttl)| Step::Consume { key, cost, quota, ttl }),
        2 => prop::sample::select(&Unit::ALL[..]).prop_flat_map(|unit| {
            (0..8 * unit.nanos()).prop_map(|nanos| Step::Pass { nanos })
        }),
    ];
    prop::collection::vec(step, 1..120)
}

#[derive(Clone)]
enum Content {
    Counter(u64),
    Buffer(Vec<u8>),
}

struct Record {
    content: Content,
    unit: Unit,
    /// In nanoseconds, where nothing overflows.
    expiry: u128,
}

/// The protocol's rulings, as plainly as they can be written.
struct Model {
    size: ValueSize,
    now: u128,
    records: HashMap<u8, Record>,
}

/// Time in the server ends here.
const END: u128 = u64::MAX as u128;

impl Model {
    fn number(&self, number: u128) -> Vec<u8> {
        let number = u64::try_from(number).unwrap_or(u64::MAX).min(self.size.max());
        number.to_le_bytes()[..self.size.bytes()].to_vec()
    }

    fn left(&self, expiry: u128, unit: Unit) -> Vec<u8> {
        self.number((expiry - self.now - 1) / u128::from(unit.nanos()))
    }

    fn expiry(&self, unit: Unit, amount: u64) -> u128 {
        // A span, and then a moment, saturate.
        let span = (u128::from(amount) * u128::from(unit.nanos())).min(END);
        (self.now + span).min(END)
    }

    fn put(&mut self, key: u8, content: Content, unit: Unit, amount: u64) {
        let expiry = self.expiry(unit, amount);
        self.records.insert(key, Record { content, unit, expiry });
        self.forget();
    }

    fn forget(&mut self) {
        let now = self.now;
        self.records.retain(|_, record| now < record.expiry);
    }

    /// The reply to a step.
    fn reply(&mut self, step: &Step) -> Vec<u8> {
        self.forget();
        match *step {
            Step::Pass { nanos } => {
                self.now += u128::from(nanos);
                Vec::new()
            }
            Step::Insert { key, quota, ttl } => match ttl {
                Some((unit, amount)) if !self.records.contains_key(&key) => {
                    self.put(key, Content::Counter(quota), unit, amount);
                    vec![1]
                }
                _ => vec![0],
            },
            Step::Query { key } => match self.records.get(&key) {
                Some(Record { content: Content::Counter(quota), unit, expiry }) => {
                    let (quota, left) = (self.number((*quota).into()), self.left(*expiry, *unit));
                    [&[1], &quota[..], &[unit.byte()], &left].concat()
                }
                _ => vec![0],
            },
            Step::Purge { key } => vec![u8::from(self.records.remove(&key).is_some())],
            Step::Set { key, length, ttl } => {
                let counter = self.records.get(&key);
                let counter =
                    counter.is_some_and(|record| matches!(record.content, Content::Counter(_)));
                match ttl {
                    Some((unit, amount)) if !counter => {
                        self.put(key, Content::Buffer(value(length)), unit, amount);
                        vec![1]
                    }
                    _ => vec![0],
                }
            }
            Step::Get { key } => match self.records.get(&key) {
                Some(Record { content: Content::Buffer(value), unit, expiry }) => {
                    let (left, length) =
                        (self.left(*expiry, *unit), self.number(value.len() as u128));
                    [&[1, unit.byte()], &left[..], &length, value].concat()
                }
                _ => vec![0],
            },
            Step::Update { key, attribute, change, value } => {
                vec![u8::from(self.update(key, attribute, change, value).is_some())]
            }
            Step::Consume { key, cost, quota, ttl } => self.consume(key, cost, quota, ttl),
        }
    }

    fn update(
        &mut self,
        key: u8,
        attribute: Option<Attribute>,
        change: Option<UpdateChange>,
        value: u64,
    ) -> Option<()> {
        let (max, now) = (self.size.max(), self.now);
        let (attribute, change) = (attribute?, change?);
        let unit = self.records.get(&key)?.unit;
        let patched = self.expiry(unit, value);
        let record = self.records.get_mut(&key)?;
        match attribute {
            Attribute::Quota => {
                let Content::Counter(quota) = &mut record.content else { return None };
                *quota = match change {
                    UpdateChange::Patch => value,
                    UpdateChange::Increase => quota.checked_add(value).filter(|sum| *sum <= max)?,
                    UpdateChange::Decrease => quota.checked_sub(value)?,
                };
            }
            Attribute::Ttl => {
                let span = (u128::from(value) * u128::from(unit.nanos())).min(END);
                record.expiry = match change {
                    UpdateChange::Patch => patched,
                    UpdateChange::Increase => (record.expiry + span).min(END),
                    UpdateChange::Decrease => record.expiry.saturating_sub(span).max(now),
                };
            }
        }
        Some(())
    }

    fn consume(&mut self, key: u8, cost: u64, quota: u64, ttl: Option<(Unit, u64)>) -> Vec<u8> {
        let Some((unit, amount)) = ttl else {
            return [&[0][..], &self.number(0), &self.number(0)].concat();
        };
        let made = !self.records.contains_key(&key);
        let expiry = self.records.get(&key).map(|record| record.expiry);
        let expiry = expiry.unwrap_or_else(|| self.expiry(unit, amount));
        // A life of nothing is over before anything is left of it.
        let left = if expiry > self.now { self.left(expiry, unit) } else { self.number(0) };
        let content = self.records.get(&key).map(|record| record.content.clone());
        let (taken, rest) = match content.unwrap_or(Content::Counter(quota)) {
            Content::Buffer(_) => return [&[0][..], &self.number(0), &left].concat(),
            Content::Counter(quota) => match quota.checked_sub(cost) {
                Some(rest) => (1, rest),
                None => (0, quota),
            },
        };
        if made {
            self.put(key, Content::Counter(rest), unit, amount);
        } else if let Some(record) = self.records.get_mut(&key) {
            record.content = Content::Counter(rest);
        }
        [&[taken][..], &self.number(rest.into()), &left].concat()
    }
}

fn value(length: u8) -> Vec<u8> {
    (0..length).collect()
}

/// The step as a request of this size, with what does not fit cut to what does.
fn fit(step: &Step, size: ValueSize) -> Step {
    let most = size.max();
    let cut = |ttl: Option<(Unit, u64)>| ttl.map(|(unit, amount)| (unit, amount.min(most)));
    let mut step = step.clone();
    match &mut step {
        Step::Insert { quota, ttl, .. } => (*quota, *ttl) = ((*quota).min(most), cut(*ttl)),
        Step::Update { value, .. } => *value = (*value).min(most),
        Step::Set { ttl, .. } => *ttl = cut(*ttl),
        Step::Consume { cost, quota, ttl, .. } => {
            (*cost, *quota, *ttl) = ((*cost).min(most), (*quota).min(most), cut(*ttl));
        }
        Step::Query { .. } | Step::Purge { .. } | Step::Get { .. } | Step::Pass { .. } => {}
    }
    step
}

fn write(step: &Step, size: ValueSize, out: &mut Vec<u8>) {
    let ttl = |ttl: Option<(Unit, u64)>| Ttl {
        unit: ttl.map(|(unit, _)| unit),
        amount: ttl.map_or(9, |(_, amount)| amount),
    };
    // Keys of several lengths, the empty one among them.
    let keys: Vec<Vec<u8>> = (0..6).map(|key| vec![b'k'; key * 51]).collect();
    let name = |key: u8| keys[usize::from(key)].as_slice();
    let bytes;
    let request = match *step {
        Step::Insert { key, quota, ttl: life } => {
            Request::Insert { quota, ttl: ttl(life), key: name(key) }
        }
        Step::Query { key } => Request::Query { key: name(key) },
        Step::Update { key, attribute, change, value } => {
            Request::Update { attribute, change, value, key: name(key) }
        }
        Step::Purge { key } => Request::Purge { key: name(key) },
        Step::Set { key, length, ttl: life } => {
            bytes = value(length);
            Request::Set { ttl: ttl(life), key: name(key), value: &bytes }
        }
        Step::Get { key } => Request::Get { key: name(key) },
        Step::Consume { key, cost, quota, ttl: life } => {
            Request::Consume { cost, quota, ttl: ttl(life), key: name(key) }
        }
        Step::Pass { .. } => return,
    };
    request.encode(size, out).expect("it was cut to fit");
}

proptest! {
    #[test]
    fn the_corridor_does_what_the_page_says(
        steps in steps(),
        size in prop::sample::select(&ValueSize::ALL[..]),
        batch in 1..70usize,
    ) {
        let clock = Clock::manual(START);
        let records = Records::new(Settings { max_records: 1000, max_bytes: 1 << 24 });
        let state = ThrottrState::new(clock.clone());
        let metrics = Arc::new(Metrics::new());
        let open = Conversation::open(records, state, metrics, size, 1000, clock.now());
        let mut client = open.expect("a client");
        let now = START.mono.into();
        let mut model = Model { size, now, records: HashMap::new() };
        let steps: Vec<Step> = steps.iter().map(|step| fit(step, size)).collect();
        // Requests between two moments go in batches: a later one sees what an earlier one did.
        for steps in steps.chunk_by(|one, _| !matches!(one, Step::Pass { .. })) {
            for steps in steps.chunks(batch) {
                let (mut sent, mut expected) = (Vec::new(), Vec::new());
                let moment = clock.now();
                for step in steps {
                    write(step, size, &mut sent);
                    expected.extend(model.reply(step));
                    if let Step::Pass { nanos } = step {
                        clock.advance(*nanos);
                    }
                }
                let mut replies = Vec::new();
                prop_assert!(client.say(&sent, moment, &mut replies));
                prop_assert_eq!(&replies, &expected, "{:?}", steps);
            }
        }
    }
}
