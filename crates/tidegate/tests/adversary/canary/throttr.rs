//! Canaries of the Throttr door: pipelines over records of their own, checked byte by byte against
//! a model of those records, and events on a channel of their own.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};

use tidegate_wire::throttr::{Attribute, Request, Ttl, Unit, UpdateChange, ValueSize};

use super::{Canary, Named, PER_LISTENER, Wrong, failed, same};
use crate::net::Stream;
use crate::seed::Random;
use crate::server::{Doors, Throttr};

/// A life that reads 99 hours as long as the run is shorter than an hour.
const LIFE: Ttl = Ttl { unit: Some(Unit::Hours), amount: 100 };
const LEFT: u64 = 99;
const HOURS: u8 = 6;
/// The most requests in one pipeline.
const PIPELINE_MAX: usize = 24;
/// Records of one canary.
const KEYS: usize = 6;
/// Every so many questions it connects anew.
const CONNECT_EVERY: usize = 20;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    for (at, listener) in doors.throttr.iter().enumerate() {
        for number in 0..PER_LISTENER {
            let name = format!("throttr-{at}-{number}");
            let canary = Pipeline {
                listener: listener.clone(),
                name: name.clone(),
                connection: None,
                records: HashMap::new(),
                asked: 0,
            };
            canaries.push((name, Box::new(canary)));
        }
    }
}

/// What a canary knows of one of its records.
enum Record {
    Counter(u64),
    Buffer(Vec<u8>),
}

struct Pipeline {
    listener: Throttr,
    name: String,
    connection: Option<Connection>,
    records: HashMap<Vec<u8>, Record>,
    asked: usize,
}

struct Connection {
    stream: Stream,
    id: [u8; 16],
    channel: Vec<u8>,
}

/// Requests, and what must come back for them.
struct Batch {
    size: ValueSize,
    sent: Vec<u8>,
    expected: Vec<u8>,
}

impl Batch {
    fn new(size: ValueSize) -> Self {
        Self { size, sent: Vec::new(), expected: Vec::new() }
    }

    fn ask(&mut self, request: &Request<'_>) {
        request.encode(self.size, &mut self.sent).expect("a request that can be written");
    }

    fn expect(&mut self, bytes: &[u8]) {
        self.expected.extend_from_slice(bytes);
    }

    fn expect_number(&mut self, number: u64) {
        self.expected.extend_from_slice(&number.to_le_bytes()[..bytes_of(self.size)]);
    }
}

fn bytes_of(size: ValueSize) -> usize {
    match size {
        ValueSize::Bits8 => 1,
        ValueSize::Bits16 => 2,
        ValueSize::Bits32 => 4,
        ValueSize::Bits64 => 8,
    }
}

impl Connection {
    fn open(canary: &Pipeline) -> Result<Self, Wrong> {
        let mut stream = Stream::connect(&canary.listener.address).map_err(failed("connect"))?;
        let mut answer = [0; 17];
        stream.write_all(b"\x18").map_err(failed("send WHOAMI"))?;
        stream.read_exact(&mut answer).map_err(failed("WHOAMI"))?;
        if answer[0] != 1 {
            return Err(format!("WHOAMI was answered with {answer:02x?}"));
        }
        let id = answer[1..].try_into().expect("16 bytes");
        let channel = format!("{} {id:02x?}", canary.name).into_bytes();
        let mut connection = Self { stream, id, channel };
        let mut batch = Batch::new(canary.listener.size);
        batch.ask(&Request::Subscribe { channel: &connection.channel });
        batch.expect(&[1]);
        connection.exchange(&batch, 1)?;
        Ok(connection)
    }

    /// Sends a batch in so many pieces and compares all that comes back.
    fn exchange(&mut self, batch: &Batch, pieces: usize) -> Result<(), Wrong> {
        for piece in batch.sent.chunks(batch.sent.len().div_ceil(pieces)) {
            self.stream.write_all(piece).map_err(failed("send a pipeline"))?;
        }
        let mut found = vec![0; batch.expected.len()];
        let mut read = 0;
        while read < found.len() {
            let ended = match self.stream.read(&mut found[read..]) {
                Ok(0) => "closed".to_owned(),
                Ok(bytes) => {
                    read += bytes;
                    String::new()
                }
                Err(error) => error.to_string(),
            };
            if !ended.is_empty() {
                let (got, of) = (&found[..read.min(64)], found.len());
                return Err(format!("{ended} after {read} bytes of {of}: {got:02x?}"));
            }
            if found[..read] != batch.expected[..read] {
                let both = found.iter().zip(&batch.expected);
                let at = both.take_while(|(one, other)| one == other).count();
                let found = &found[at..read.min(at + 40)];
                let expected = &batch.expected[at..batch.expected.len().min(at + 40)];
                return Err(format!(
                    "foreign bytes in the answer at {at}: {found:02x?} in place of {expected:02x?}"
                ));
            }
        }
        Ok(())
    }
}

impl Pipeline {
    fn key(&self, random: &mut Random) -> Vec<u8> {
        format!("{} {}", self.name, random.below(KEYS)).into_bytes()
    }

    /// One random request on one of its records, and its answer.
    fn request(&mut self, id: &[u8; 16], batch: &mut Batch, random: &mut Random) {
        let key = self.key(random);
        match random.below(8) {
            0 => {
                batch.ask(&Request::Whoami);
                batch.expect(&[1]);
                batch.expect(id);
            }
            1 => self.insert(&key, batch, random),
            2 => self.set(&key, batch, random),
            3 => {
                batch.ask(&Request::Purge { key: &key });
                batch.expect(&[u8::from(self.records.remove(&key).is_some())]);
            }
            4 => self.decrease(&key, batch, random),
            5 => self.consume(&key, batch, random),
            6 => self.query(&key, batch),
            _ => self.read(&key, batch),
        }
    }

    fn insert(&mut self, key: &[u8], batch: &mut Batch, random: &mut Random) {
        let quota = random.next() & 0x7f;
        batch.ask(&Request::Insert { quota, ttl: LIFE, key });
        batch.expect(&[u8::from(!self.records.contains_key(key))]);
        self.records.entry(key.to_vec()).or_insert(Record::Counter(quota));
    }

    fn set(&mut self, key: &[u8], batch: &mut Batch, random: &mut Random) {
        // An 8-bit listener reads no buffer that is longer than 255 bytes.
        let most = if batch.size == ValueSize::Bits8 { 255 } else { 3_000 };
        let count = random.below(most);
        let value = random.bytes(count);
        batch.ask(&Request::Set { ttl: LIFE, key, value: &value });
        let is_counter = matches!(self.records.get(key), Some(Record::Counter(_)));
        batch.expect(&[u8::from(!is_counter)]);
        if !is_counter {
            self.records.insert(key.to_vec(), Record::Buffer(value));
        }
    }

    fn decrease(&mut self, key: &[u8], batch: &mut Batch, random: &mut Random) {
        let value = random.next() & 0x1f;
        let (attribute, change) = (Some(Attribute::Quota), Some(UpdateChange::Decrease));
        batch.ask(&Request::Update { attribute, change, value, key });
        let taken = self.take(key, value);
        batch.expect(&[u8::from(taken)]);
    }

    fn take(&mut self, key: &[u8], cost: u64) -> bool {
        match self.records.get_mut(key) {
            Some(Record::Counter(quota)) if *quota >= cost => {
                *quota -= cost;
                true
            }
            _ => false,
        }
    }

    fn consume(&mut self, key: &[u8], batch: &mut Batch, random: &mut Random) {
        if matches!(self.records.get(key), Some(Record::Buffer(_))) {
            return self.read(key, batch);
        }
        let (cost, quota) = (random.next() & 0x0f, 100);
        batch.ask(&Request::Consume { cost, quota, ttl: LIFE, key });
        self.records.entry(key.to_vec()).or_insert(Record::Counter(quota));
        let taken = self.take(key, cost);
        let Some(Record::Counter(left)) = self.records.get(key) else { return };
        batch.expect(&[u8::from(taken)]);
        batch.expect_number(*left);
        batch.expect_number(LEFT);
    }

    fn query(&self, key: &[u8], batch: &mut Batch) {
        batch.ask(&Request::Query { key });
        let Some(Record::Counter(quota)) = self.records.get(key) else { return batch.expect(&[0]) };
        batch.expect(&[1]);
        batch.expect_number(*quota);
        batch.expect(&[HOURS]);
        batch.expect_number(LEFT);
    }

    fn read(&self, key: &[u8], batch: &mut Batch) {
        batch.ask(&Request::Get { key });
        let Some(Record::Buffer(value)) = self.records.get(key) else { return batch.expect(&[0]) };
        batch.expect(&[1, HOURS]);
        batch.expect_number(LEFT);
        batch.expect_number(value.len() as u64);
        batch.expect(value);
    }

    /// Publishes to itself: the event comes before the status.
    fn publish(&self, connection: &mut Connection, random: &mut Random) -> Result<(), Wrong> {
        let count = random.below(200);
        let (channel, payload) = (connection.channel.clone(), random.bytes(count));
        let mut batch = Batch::new(self.listener.size);
        batch.ask(&Request::Publish { channel: &channel, payload: &payload });
        batch.expect(&[0x19, channel.len() as u8]);
        batch.expect_number(payload.len() as u64);
        batch.expect(&channel);
        batch.expect(&payload);
        batch.expect(&[1]);
        connection.exchange(&batch, 1)
    }
}

impl Canary for Pipeline {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        self.asked += 1;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self)?,
        };
        if random.one_in(8) {
            self.publish(&mut connection, random)?;
        }
        let mut batch = Batch::new(self.listener.size);
        for _ in 0..=random.below(PIPELINE_MAX) {
            self.request(&connection.id, &mut batch, random);
        }
        connection.exchange(&batch, 1 + random.below(3))?;
        if self.asked.is_multiple_of(CONNECT_EVERY) {
            self.part(connection, random)?;
            connection = Connection::open(self)?;
        }
        self.connection = Some(connection);
        Ok(())
    }
}

impl Pipeline {
    /// Ends a connection with a last pipeline: all of it is answered, then nothing more comes.
    fn part(&mut self, mut connection: Connection, random: &mut Random) -> Result<(), Wrong> {
        let mut batch = Batch::new(self.listener.size);
        for _ in 0..=random.below(PIPELINE_MAX) {
            self.request(&connection.id, &mut batch, random);
        }
        connection.stream.write_all(&batch.sent).map_err(failed("send a last pipeline"))?;
        connection.stream.half_close();
        let mut found = Vec::new();
        connection.stream.read_to_end(&mut found).map_err(failed("read to the end"))?;
        let (count, expected) = (found.len(), batch.expected.len());
        same(&format!("{count} last bytes of {expected}"), found, batch.expected)
    }
}
