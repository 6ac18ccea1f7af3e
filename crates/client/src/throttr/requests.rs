//! The requests by name: each asks, and says what its reply means.

use tokio::sync::{mpsc, oneshot};

use super::driver::ClientCommand;
use super::events::{ChannelSubscription, SubscriptionSender};
use super::replies::{
    Buffer, Channel, ConsumeManyResult, ConsumeResult, CounterState, ListedRecord, RecordStats,
    Reply,
};
use super::{
    Attribute, BrokenReply, Change, ConnectionRecord, ID_BYTES, Info, Loss, Request, Stat,
    Subscriber, Take, Takes, ThrottrClient, ThrottrError, Ttl, Unwritable,
};

/// Takes the reply apart. A reply of another kind cannot come: the reader knows what was asked.
macro_rules! expect {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            $pattern => Ok($value),
            other => Err(unexpected(&other)),
        }
    };
}

/// The same where a status alone says that there is no such thing.
macro_rules! expect_or_none {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            $pattern => Ok(Some($value)),
            Reply::Status(false) => Ok(None),
            other => Err(unexpected(&other)),
        }
    };
}

fn unexpected(reply: &Reply) -> ThrottrError {
    match reply {
        Reply::TooManyRows => ThrottrError::TooManyRows,
        _ => ThrottrError::Lost(Loss::Broken(BrokenReply::Fragment)),
    }
}

/// Every request fails with a [`ThrottrError`] if there is no answer, or if a list is too long.
#[expect(clippy::missing_errors_doc, reason = "they are the same for every request, see above")]
impl ThrottrClient {
    /// INSERT: makes a counter. `false` if the key is alive, or the server's table is full.
    pub async fn insert(&self, key: &[u8], quota: u64, ttl: Ttl) -> Result<bool, ThrottrError> {
        self.status(Request::Insert { quota, ttl, key }).await
    }

    /// QUERY: reads a counter, if there is one.
    pub async fn query(&self, key: &[u8]) -> Result<Option<CounterState>, ThrottrError> {
        let reply = self.ask(Request::Query { key }).await?;
        expect_or_none!(reply, Reply::Counter(counter) => counter)
    }

    /// UPDATE: changes a record. `false` if there is none, if it is a buffer whose quota is meant,
    /// or if the quota would fall below nought or grow over the value size.
    pub async fn update(
        &self,
        key: &[u8],
        attribute: Attribute,
        change: Change,
        value: u64,
    ) -> Result<bool, ThrottrError> {
        let (attribute, change) = (Some(attribute), Some(change));
        self.status(Request::Update { attribute, change, value, key }).await
    }

    /// PURGE: removes a record. `false` if there is none.
    pub async fn purge(&self, key: &[u8]) -> Result<bool, ThrottrError> {
        self.status(Request::Purge { key }).await
    }

    /// SET: makes a buffer or overwrites one. `false` if the key is a counter, or the server's
    /// table is full. A server closes the connection on a value that is longer than it takes.
    pub async fn set(&self, key: &[u8], value: &[u8], ttl: Ttl) -> Result<bool, ThrottrError> {
        self.status(Request::Set { ttl, key, value }).await
    }

    /// GET: reads a buffer, if there is one.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Buffer>, ThrottrError> {
        let reply = self.ask(Request::Get { key }).await?;
        expect_or_none!(reply, Reply::Buffer(buffer) => buffer)
    }

    /// LIST: every record, in the order in which they were made.
    pub async fn list(&self) -> Result<Vec<ListedRecord>, ThrottrError> {
        expect!(self.ask(Request::List).await?, Reply::List(records) => records)
    }

    /// INFO: the server's figures.
    pub async fn info(&self) -> Result<Info, ThrottrError> {
        expect!(self.ask(Request::Info).await?, Reply::Info(info) => *info)
    }

    /// STAT: how often a record was read and written, if there is one.
    pub async fn stat(&self, key: &[u8]) -> Result<Option<Stat>, ThrottrError> {
        let reply = self.ask(Request::Stat { key }).await?;
        expect_or_none!(reply, Reply::Stat(stat) => stat)
    }

    /// STATS: the same for every record.
    pub async fn stats(&self) -> Result<Vec<RecordStats>, ThrottrError> {
        expect!(self.ask(Request::Stats).await?, Reply::Stats(stats) => stats)
    }

    /// SUBSCRIBE: what is published to a channel from now on. It ends (UNSUBSCRIBE) when it is
    /// dropped, and is made again on a new connection.
    pub async fn subscribe(&self, channel: &[u8]) -> Result<ChannelSubscription, ThrottrError> {
        if u8::try_from(channel.len()).is_err() {
            return Err(Unwritable::KeyTooLong.into());
        }
        let (events, receiver) = mpsc::channel(self.settings.events_max.max(1));
        let sender = SubscriptionSender::new(events);
        let subscription = ChannelSubscription::new(receiver, &sender, self.commands.clone());
        let (ready, readied) = oneshot::channel();
        let subscribe = ClientCommand::Subscribe { channel: channel.into(), sender, ready };
        self.exchange(subscribe, readied).await?;
        Ok(subscription)
    }

    /// PUBLISH: sends a payload to the subscribers of a channel. `false` if there is none.
    pub async fn publish(&self, channel: &[u8], payload: &[u8]) -> Result<bool, ThrottrError> {
        self.status(Request::Publish { channel, payload }).await
    }

    /// CONNECTIONS: every connection of the server.
    pub async fn connections(&self) -> Result<Vec<ConnectionRecord>, ThrottrError> {
        expect!(self.ask(Request::Connections).await?, Reply::Connections(records) => records)
    }

    /// CONNECTION: one of them, if it is there.
    pub async fn connection(
        &self,
        id: [u8; ID_BYTES],
    ) -> Result<Option<ConnectionRecord>, ThrottrError> {
        let reply = self.ask(Request::Connection { id }).await?;
        expect_or_none!(reply, Reply::Connection(record) => *record)
    }

    /// CHANNELS: every channel that has a subscriber.
    pub async fn channels(&self) -> Result<Vec<Channel>, ThrottrError> {
        expect!(self.ask(Request::Channels).await?, Reply::Channels(channels) => channels)
    }

    /// CHANNEL: the subscribers of a channel, if it has any.
    pub async fn channel(&self, channel: &[u8]) -> Result<Option<Vec<Subscriber>>, ThrottrError> {
        let reply = self.ask(Request::Channel { channel }).await?;
        expect_or_none!(reply, Reply::Channel(subscribers) => subscribers)
    }

    /// WHOAMI: the id of the connection that this client has now.
    pub async fn whoami(&self) -> Result<[u8; ID_BYTES], ThrottrError> {
        expect!(self.ask(Request::Whoami).await?, Reply::Whoami(id) => id)
    }

    /// CONSUME: takes `cost` from a counter if it holds as much. Without a counter one is made
    /// first, with this quota and time to live. Tidegate's own: other servers close the connection.
    pub async fn consume(
        &self,
        key: &[u8],
        cost: u64,
        quota: u64,
        ttl: Ttl,
    ) -> Result<ConsumeResult, ThrottrError> {
        let reply = self.ask(Request::Consume { cost, quota, ttl, key }).await?;
        expect!(reply, Reply::Consumed(consumed) => consumed)
    }

    /// CONSUME MANY: several in one, of which all take or none does. Tidegate's own.
    pub async fn consume_many(
        &self,
        takes: &[Take<'_>],
    ) -> Result<ConsumeManyResult, ThrottrError> {
        let reply = self.ask(Request::ConsumeMany { takes: Takes::new(takes) }).await?;
        expect!(reply, Reply::ConsumedMany(consumed) => consumed)
    }

    /// EVENT: has the server execute a request, no EVENT itself, that is the payload of an event,
    /// and returns that request's reply.
    pub async fn event(&self, channel: &[u8], request: Request<'_>) -> Result<Reply, ThrottrError> {
        let mut payload = Vec::new();
        request.encode(self.settings.value_size, &mut payload)?;
        self.ask(Request::Event { channel, payload: &payload }).await
    }

    async fn status(&self, request: Request<'_>) -> Result<bool, ThrottrError> {
        expect!(self.ask(request).await?, Reply::Status(success) => success)
    }
}
