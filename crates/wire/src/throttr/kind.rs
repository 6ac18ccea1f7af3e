//! The kinds of requests: their first bytes, their names, and their places in arrays of counts.

/// Makes the kinds from their first bytes, the constants for these, and their names.
macro_rules! kinds {
    ($($kind:ident $constant:ident $byte:literal $name:literal,)*) => {
        /// The first byte of each request.
        pub(super) mod type_byte {
            $(pub(crate) const $constant: u8 = $byte;)*
        }

        /// The kinds of requests, for counting them and for reading their replies.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each is a variant of Request and documented there")]
        pub enum RequestKind {
            $($kind,)*
        }

        impl RequestKind {
            /// How many kinds there are.
            pub const COUNT: usize = [$($byte),*].len();

            /// All of them; each stands at its own [`RequestKind::index`].
            pub const ALL: [Self; Self::COUNT] = [$(Self::$kind),*];

            /// The first byte of such a request.
            #[must_use]
            pub const fn type_byte(self) -> u8 {
                match self {
                    $(Self::$kind => $byte,)*
                }
            }

            /// A word for a metric's label: `insert`, `consume_many`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

// `0A` to `0F` do not exist; from `40` they are Tidegate's own.
kinds! {
    Insert INSERT 0x01 "insert",
    Query QUERY 0x02 "query",
    Update UPDATE 0x03 "update",
    Purge PURGE 0x04 "purge",
    Set SET 0x05 "set",
    Get GET 0x06 "get",
    List LIST 0x07 "list",
    Info INFO 0x08 "info",
    Stat STAT 0x09 "stat",
    Stats STATS 0x10 "stats",
    Subscribe SUBSCRIBE 0x11 "subscribe",
    Unsubscribe UNSUBSCRIBE 0x12 "unsubscribe",
    Publish PUBLISH 0x13 "publish",
    Connections CONNECTIONS 0x14 "connections",
    Connection CONNECTION 0x15 "connection",
    Channels CHANNELS 0x16 "channels",
    Channel CHANNEL 0x17 "channel",
    Whoami WHOAMI 0x18 "whoami",
    Event EVENT 0x19 "event",
    Consume CONSUME 0x40 "consume",
    ConsumeMany CONSUME_MANY 0x41 "consume_many",
}

impl RequestKind {
    /// Its place in an array of [`RequestKind::COUNT`].
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}
