//! The kinds of requests: their first bytes, their names, and their places in arrays of counts.

/// The first byte of each request. `0A` to `0F` do not exist; from `40` they are Tidegate's own.
pub(super) mod type_byte {
    pub(crate) const INSERT: u8 = 0x01;
    pub(crate) const QUERY: u8 = 0x02;
    pub(crate) const UPDATE: u8 = 0x03;
    pub(crate) const PURGE: u8 = 0x04;
    pub(crate) const SET: u8 = 0x05;
    pub(crate) const GET: u8 = 0x06;
    pub(crate) const LIST: u8 = 0x07;
    pub(crate) const INFO: u8 = 0x08;
    pub(crate) const STAT: u8 = 0x09;
    pub(crate) const STATS: u8 = 0x10;
    pub(crate) const SUBSCRIBE: u8 = 0x11;
    pub(crate) const UNSUBSCRIBE: u8 = 0x12;
    pub(crate) const PUBLISH: u8 = 0x13;
    pub(crate) const CONNECTIONS: u8 = 0x14;
    pub(crate) const CONNECTION: u8 = 0x15;
    pub(crate) const CHANNELS: u8 = 0x16;
    pub(crate) const CHANNEL: u8 = 0x17;
    pub(crate) const WHOAMI: u8 = 0x18;
    pub(crate) const EVENT: u8 = 0x19;
    pub(crate) const CONSUME: u8 = 0x40;
    pub(crate) const CONSUME_MANY: u8 = 0x41;
}

/// The kinds of requests, for those who count them or wait for their replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is a variant of Request and documented there")]
pub enum Kind {
    Insert,
    Query,
    Update,
    Purge,
    Set,
    Get,
    List,
    Info,
    Stat,
    Stats,
    Subscribe,
    Unsubscribe,
    Publish,
    Connections,
    Connection,
    Channels,
    Channel,
    Whoami,
    Event,
    Consume,
    ConsumeMany,
}

impl Kind {
    /// How many kinds there are.
    pub const COUNT: usize = 21;

    /// All of them; each stands at its own [`Kind::index`].
    pub const ALL: [Self; Self::COUNT] = [
        Self::Insert,
        Self::Query,
        Self::Update,
        Self::Purge,
        Self::Set,
        Self::Get,
        Self::List,
        Self::Info,
        Self::Stat,
        Self::Stats,
        Self::Subscribe,
        Self::Unsubscribe,
        Self::Publish,
        Self::Connections,
        Self::Connection,
        Self::Channels,
        Self::Channel,
        Self::Whoami,
        Self::Event,
        Self::Consume,
        Self::ConsumeMany,
    ];

    /// Its place in an array of [`Kind::COUNT`].
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The first byte of such a request.
    #[must_use]
    pub const fn type_byte(self) -> u8 {
        match self {
            Self::Insert => type_byte::INSERT,
            Self::Query => type_byte::QUERY,
            Self::Update => type_byte::UPDATE,
            Self::Purge => type_byte::PURGE,
            Self::Set => type_byte::SET,
            Self::Get => type_byte::GET,
            Self::List => type_byte::LIST,
            Self::Info => type_byte::INFO,
            Self::Stat => type_byte::STAT,
            Self::Stats => type_byte::STATS,
            Self::Subscribe => type_byte::SUBSCRIBE,
            Self::Unsubscribe => type_byte::UNSUBSCRIBE,
            Self::Publish => type_byte::PUBLISH,
            Self::Connections => type_byte::CONNECTIONS,
            Self::Connection => type_byte::CONNECTION,
            Self::Channels => type_byte::CHANNELS,
            Self::Channel => type_byte::CHANNEL,
            Self::Whoami => type_byte::WHOAMI,
            Self::Event => type_byte::EVENT,
            Self::Consume => type_byte::CONSUME,
            Self::ConsumeMany => type_byte::CONSUME_MANY,
        }
    }

    /// A word for a metric's label: `insert`, `consume_many`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Query => "query",
            Self::Update => "update",
            Self::Purge => "purge",
            Self::Set => "set",
            Self::Get => "get",
            Self::List => "list",
            Self::Info => "info",
            Self::Stat => "stat",
            Self::Stats => "stats",
            Self::Subscribe => "subscribe",
            Self::Unsubscribe => "unsubscribe",
            Self::Publish => "publish",
            Self::Connections => "connections",
            Self::Connection => "connection",
            Self::Channels => "channels",
            Self::Channel => "channel",
            Self::Whoami => "whoami",
            Self::Event => "event",
            Self::Consume => "consume",
            Self::ConsumeMany => "consume_many",
        }
    }
}
