//! The requests of the protocol, and how a client writes them.

use super::kind::RequestKind;
use super::parse::take;
use super::value::{Attribute, Ttl, UpdateChange, ValueSize, put};
use super::{ID_BYTES, KEY_BYTES_MAX, TAKES_MAX};

/// One request. Keys, values, channels and payloads are borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `01`: makes a counter, unless the key is alive.
    Insert {
        /// What it starts with.
        quota: u64,
        /// How long it lives.
        ttl: Ttl,
        /// Its key.
        key: &'a [u8],
    },
    /// `02`: reads a counter.
    Query {
        /// Its key.
        key: &'a [u8],
    },
    /// `03`: changes a record.
    Update {
        /// What is changed; `None` where the byte is unknown: such a request is answered `00`.
        attribute: Option<Attribute>,
        /// How; `None` where the byte is unknown: such a request is answered `00`.
        change: Option<UpdateChange>,
        /// By how much, or to what.
        value: u64,
        /// The record's key.
        key: &'a [u8],
    },
    /// `04`: removes a record.
    Purge {
        /// Its key.
        key: &'a [u8],
    },
    /// `05`: makes a buffer or overwrites one, unless the key is a counter.
    Set {
        /// How long it lives.
        ttl: Ttl,
        /// Its key.
        key: &'a [u8],
        /// What it holds.
        value: &'a [u8],
    },
    /// `06`: reads a buffer.
    Get {
        /// Its key.
        key: &'a [u8],
    },
    /// `07`: every record.
    List,
    /// `08`: the server's figures.
    Info,
    /// `09`: how often a record was read and written.
    Stat {
        /// Its key.
        key: &'a [u8],
    },
    /// `10`: the same for every record.
    Stats,
    /// `11`: from now on, what is published to a channel comes to this connection.
    Subscribe {
        /// The channel's name.
        channel: &'a [u8],
    },
    /// `12`: no more.
    Unsubscribe {
        /// The channel's name.
        channel: &'a [u8],
    },
    /// `13`: sends a payload to the subscribers of a channel.
    Publish {
        /// The channel's name.
        channel: &'a [u8],
        /// What they get.
        payload: &'a [u8],
    },
    /// `14`: every connection.
    Connections,
    /// `15`: one connection.
    Connection {
        /// Its id.
        id: [u8; ID_BYTES],
    },
    /// `16`: every channel.
    Channels,
    /// `17`: the subscribers of a channel.
    Channel {
        /// The channel's name.
        channel: &'a [u8],
    },
    /// `18`: the id of this connection.
    Whoami,
    /// `19`: what a server pushes to subscribers. From a client the payload is one request, which
    /// is executed.
    Event {
        /// The channel's name.
        channel: &'a [u8],
        /// What was published; from a client one whole request that is no EVENT.
        payload: &'a [u8],
    },
    /// `40`: takes from a counter if it holds enough, and makes the counter first if there is
    /// none. Tidegate's own.
    Consume {
        /// How much is taken.
        cost: u64,
        /// What a new counter starts with.
        quota: u64,
        /// How long a new counter lives.
        ttl: Ttl,
        /// The counter's key.
        key: &'a [u8],
    },
    /// `41`: several CONSUME in one: all of them take, or none does. Tidegate's own.
    ConsumeMany {
        /// At most [`TAKES_MAX`].
        takes: Takes<'a>,
    },
}

/// One of the takes of a CONSUME MANY; the fields are those of CONSUME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take<'a> {
    /// How much is taken.
    pub cost: u64,
    /// What a new counter starts with.
    pub quota: u64,
    /// How long a new counter lives.
    pub ttl: Ttl,
    /// The counter's key.
    pub key: &'a [u8],
}

/// The takes of a CONSUME MANY: those of a request that was read, or those to be written.
#[derive(Clone, Copy, Debug)]
pub struct Takes<'a>(TakesFrom<'a>);

#[derive(Clone, Copy, Debug)]
enum TakesFrom<'a> {
    /// Heads of `each` bytes, and the keys one behind the other.
    Read {
        heads: &'a [u8],
        keys: &'a [u8],
        each: usize,
    },
    Given(&'a [Take<'a>]),
}

impl<'a> Takes<'a> {
    /// Takes to be written.
    #[must_use]
    pub const fn new(takes: &'a [Take<'a>]) -> Self {
        Self(TakesFrom::Given(takes))
    }

    pub(super) const fn read(heads: &'a [u8], keys: &'a [u8], each: usize) -> Self {
        Self(TakesFrom::Read { heads, keys, each })
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            TakesFrom::Read { heads, each, .. } => heads.len() / each,
            TakesFrom::Given(takes) => takes.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each take, in order.
    pub fn iter(&self) -> impl Iterator<Item = Take<'a>> + use<'a> {
        let mut rest = *self;
        std::iter::from_fn(move || rest.pop())
    }

    fn pop(&mut self) -> Option<Take<'a>> {
        match &mut self.0 {
            TakesFrom::Given(takes) => {
                let (first, rest) = takes.split_first()?;
                *takes = rest;
                Some(*first)
            }
            TakesFrom::Read { heads, keys, each } => {
                let (head, rest) = heads.split_at_checked(*each)?;
                let (found, left) = match *each {
                    5 => take::<1>(head, keys),
                    8 => take::<2>(head, keys),
                    14 => take::<4>(head, keys),
                    _ => take::<8>(head, keys),
                }?;
                (*heads, *keys) = (rest, left);
                Some(found)
            }
        }
    }
}

impl PartialEq for Takes<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Takes<'_> {}

/// A request cannot be written at this value size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// The key, or the channel's name, is longer than [`KEY_BYTES_MAX`].
    KeyTooLong,
    /// A quota, a cost, a value or a time to live is more than N bytes can say.
    NumberTooLarge,
    /// A value or a payload is longer than N bytes can say.
    ValueTooLong,
    /// There are more takes than [`TAKES_MAX`].
    TooManyTakes,
}

impl std::fmt::Display for Unwritable {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Unwritable::KeyTooLong => "the key or the channel is longer than 255 bytes",
            Unwritable::NumberTooLarge => "the number does not fit the connection's value size",
            Unwritable::ValueTooLong => {
                "the length of the value does not fit the connection's value size"
            }
            Unwritable::TooManyTakes => "one request may take from at most 32 counters",
        })
    }
}

impl std::error::Error for Unwritable {}

impl<'a> Request<'a> {
    /// What kind of request it is.
    #[must_use]
    pub const fn kind(&self) -> RequestKind {
        match self {
            Self::Insert { .. } => RequestKind::Insert,
            Self::Query { .. } => RequestKind::Query,
            Self::Update { .. } => RequestKind::Update,
            Self::Purge { .. } => RequestKind::Purge,
            Self::Set { .. } => RequestKind::Set,
            Self::Get { .. } => RequestKind::Get,
            Self::List => RequestKind::List,
            Self::Info => RequestKind::Info,
            Self::Stat { .. } => RequestKind::Stat,
            Self::Stats => RequestKind::Stats,
            Self::Subscribe { .. } => RequestKind::Subscribe,
            Self::Unsubscribe { .. } => RequestKind::Unsubscribe,
            Self::Publish { .. } => RequestKind::Publish,
            Self::Connections => RequestKind::Connections,
            Self::Connection { .. } => RequestKind::Connection,
            Self::Channels => RequestKind::Channels,
            Self::Channel { .. } => RequestKind::Channel,
            Self::Whoami => RequestKind::Whoami,
            Self::Event { .. } => RequestKind::Event,
            Self::Consume { .. } => RequestKind::Consume,
            Self::ConsumeMany { .. } => RequestKind::ConsumeMany,
        }
    }

    /// Appends the request as a listener of this value size reads it.
    ///
    /// Of what is unknown (a `None`) it writes a byte that no server knows.
    ///
    /// # Errors
    /// [`Unwritable`] if the request cannot be written so; then nothing was appended.
    pub fn encode(&self, size: ValueSize, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let start = out.len();
        let written = self.append(&mut Writing { size, out });
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    fn append(&self, to: &mut Writing<'_>) -> Result<(), Unwritable> {
        to.out.push(self.kind().type_byte());
        match *self {
            Self::Insert { quota, ttl, key } => {
                to.number(quota)?;
                to.ttl(ttl)?;
                to.key(key)
            }
            Self::Update { attribute, change, value, key } => {
                to.out.push(attribute.map_or(0xff, |attribute| attribute as u8));
                to.out.push(change.map_or(0xff, |change| change as u8));
                to.number(value)?;
                to.key(key)
            }
            Self::Set { ttl, key, value } => {
                to.ttl(ttl)?;
                to.key_len(key)?;
                to.value_len(value)?;
                to.out.extend_from_slice(key);
                to.out.extend_from_slice(value);
                Ok(())
            }
            Self::Query { key } | Self::Purge { key } | Self::Get { key } | Self::Stat { key } => {
                to.key(key)
            }
            Self::Subscribe { channel }
            | Self::Unsubscribe { channel }
            | Self::Channel { channel } => to.key(channel),
            Self::Publish { channel, payload } | Self::Event { channel, payload } => {
                to.key_len(channel)?;
                to.value_len(payload)?;
                to.out.extend_from_slice(channel);
                to.out.extend_from_slice(payload);
                Ok(())
            }
            Self::Connection { id } => {
                to.out.extend_from_slice(&id);
                Ok(())
            }
            Self::Consume { cost, quota, ttl, key } => {
                to.take(&Take { cost, quota, ttl, key })?;
                to.out.extend_from_slice(key);
                Ok(())
            }
            Self::ConsumeMany { takes } => to.takes(&takes),
            Self::List
            | Self::Info
            | Self::Stats
            | Self::Connections
            | Self::Channels
            | Self::Whoami => Ok(()),
        }
    }
}

/// Where a request is written, at which value size.
struct Writing<'a> {
    size: ValueSize,
    out: &'a mut Vec<u8>,
}

impl Writing<'_> {
    fn number(&mut self, number: u64) -> Result<(), Unwritable> {
        if number > self.size.max() {
            return Err(Unwritable::NumberTooLarge);
        }
        put(self.out, self.size, number);
        Ok(())
    }

    fn ttl(&mut self, ttl: Ttl) -> Result<(), Unwritable> {
        self.out.push(ttl.unit.map_or(0, super::Unit::byte));
        self.number(ttl.amount)
    }

    fn key_len(&mut self, key: &[u8]) -> Result<(), Unwritable> {
        const _: () = assert!(KEY_BYTES_MAX == u8::MAX as usize, "a key's length is one byte");
        self.out.push(u8::try_from(key.len()).map_err(|_| Unwritable::KeyTooLong)?);
        Ok(())
    }

    fn key(&mut self, key: &[u8]) -> Result<(), Unwritable> {
        self.key_len(key)?;
        self.out.extend_from_slice(key);
        Ok(())
    }

    fn value_len(&mut self, value: &[u8]) -> Result<(), Unwritable> {
        self.number(value.len() as u64).map_err(|_| Unwritable::ValueTooLong)
    }

    /// A take without its key.
    fn take(&mut self, take: &Take<'_>) -> Result<(), Unwritable> {
        self.number(take.cost)?;
        self.number(take.quota)?;
        self.ttl(take.ttl)?;
        self.key_len(take.key)
    }

    fn takes(&mut self, takes: &Takes<'_>) -> Result<(), Unwritable> {
        if takes.len() > TAKES_MAX {
            return Err(Unwritable::TooManyTakes);
        }
        // It is at most TAKES_MAX, which is less than 256.
        self.out.push(takes.len() as u8);
        for take in takes.iter() {
            self.take(&take)?;
        }
        for take in takes.iter() {
            self.out.extend_from_slice(take.key);
        }
        Ok(())
    }
}
