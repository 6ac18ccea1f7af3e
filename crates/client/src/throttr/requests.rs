//! The requests by name: each asks, and says what its reply means.

use tokio::sync::{mpsc, oneshot};

use super::driver::Command;
use super::events::{Listener, Subscription};
use super::replies::{Buffer, Channel, Consumed, ConsumedMany, Counter, KeyStats, Record, Reply};
use super::{
    AskError, Attribute, BrokenReply, Change, ConnectionRecord, ID_BYTES, Info, Loss, Request,
    Stat, Subscriber, Take, Takes, ThrottrClient, Ttl, Unwritable,
};

/// Takes the reply apart. A reply of another kind cannot come: the reader was told what was asked.
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

fn unexpected(reply: &Reply) -> AskError {
    match reply {
        Reply::TooManyRows => AskError::TooManyRows,
        _ => AskError::Lost(Loss::Broken(BrokenReply::Fragment)),
    }
}

impl ThrottrClient {
    /// INSERT: makes a counter. `false` if the key is alive, or the server's table is full.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer, as with every request.
    pub async fn insert(&self, key: &[u8], quota: u64, ttl: Ttl) -> Result<bool, AskError> {
        self.status(Request::Insert { quota, ttl, key }).await
    }

    /// QUERY: reads a counter, if there is one.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn query(&self, key: &[u8]) -> Result<Option<Counter>, AskError> {
        let reply = self.ask(Request::Query { key }).await?;
        expect_or_none!(reply, Reply::Counter(counter) => counter)
    }

    /// UPDATE: changes a record. `false` if there is none, if it is a buffer whose quota is meant,
    /// or if the quota would fall below nought or grow over the value size.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn update(
        &self,
        key: &[u8],
        attribute: Attribute,
        change: Change,
        value: u64,
    ) -> Result<bool, AskError> {
        let (attribute, change) = (Some(attribute), Some(change));
        self.status(Request::Update { attribute, change, value, key }).await
    }

    /// PURGE: removes a record. `false` if there is none.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn purge(&self, key: &[u8]) -> Result<bool, AskError> {
        self.status(Request::Purge { key }).await
    }

    /// SET: makes a buffer or overwrites one. `false` if the key is a counter, or the server's
    /// table is full. A server closes the connection on a value that is longer than it takes.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn set(&self, key: &[u8], value: &[u8], ttl: Ttl) -> Result<bool, AskError> {
        self.status(Request::Set { ttl, key, value }).await
    }

    /// GET: reads a buffer, if there is one.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Buffer>, AskError> {
        let reply = self.ask(Request::Get { key }).await?;
        expect_or_none!(reply, Reply::Buffer(buffer) => buffer)
    }

    /// LIST: every record, in the order in which they were made.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer, or too long a list.
    pub async fn list(&self) -> Result<Vec<Record>, AskError> {
        expect!(self.ask(Request::List).await?, Reply::List(records) => records)
    }

    /// INFO: the server's figures.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn info(&self) -> Result<Info, AskError> {
        expect!(self.ask(Request::Info).await?, Reply::Info(info) => *info)
    }

    /// STAT: how often a record was read and written, if there is one.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn stat(&self, key: &[u8]) -> Result<Option<Stat>, AskError> {
        let reply = self.ask(Request::Stat { key }).await?;
        expect_or_none!(reply, Reply::Stat(stat) => stat)
    }

    /// STATS: the same for every record.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer, or too long a list.
    pub async fn stats(&self) -> Result<Vec<KeyStats>, AskError> {
        expect!(self.ask(Request::Stats).await?, Reply::Stats(stats) => stats)
    }

    /// SUBSCRIBE: what is published to a channel from now on. It ends (UNSUBSCRIBE) when it is
    /// dropped, and is made again on a new connection.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn subscribe(&self, channel: &[u8]) -> Result<Subscription, AskError> {
        if u8::try_from(channel.len()).is_err() {
            return Err(Unwritable::KeyTooLong.into());
        }
        let (events, receiver) = mpsc::channel(self.settings.events_max.max(1));
        let listener = Listener::new(events);
        let subscription = Subscription::new(receiver, &listener, self.commands.clone());
        let (ready, readied) = oneshot::channel();
        let listen = Command::Listen { channel: channel.into(), listener, ready };
        self.exchange(listen, readied).await?;
        Ok(subscription)
    }

    /// PUBLISH: sends a payload to the subscribers of a channel. `false` if there is none.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn publish(&self, channel: &[u8], payload: &[u8]) -> Result<bool, AskError> {
        self.status(Request::Publish { channel, payload }).await
    }

    /// CONNECTIONS: every connection of the server.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer, or too long a list.
    pub async fn connections(&self) -> Result<Vec<ConnectionRecord>, AskError> {
        expect!(self.ask(Request::Connections).await?, Reply::Connections(records) => records)
    }

    /// CONNECTION: one of them, if it is there.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn connection(
        &self,
        id: [u8; ID_BYTES],
    ) -> Result<Option<ConnectionRecord>, AskError> {
        let reply = self.ask(Request::Connection { id }).await?;
        expect_or_none!(reply, Reply::Connection(record) => *record)
    }

    /// CHANNELS: every channel that has a subscriber.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer, or too long a list.
    pub async fn channels(&self) -> Result<Vec<Channel>, AskError> {
        expect!(self.ask(Request::Channels).await?, Reply::Channels(channels) => channels)
    }

    /// CHANNEL: the subscribers of a channel, if it has any.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer, or too long a list.
    pub async fn channel(&self, channel: &[u8]) -> Result<Option<Vec<Subscriber>>, AskError> {
        let reply = self.ask(Request::Channel { channel }).await?;
        expect_or_none!(reply, Reply::Channel(subscribers) => subscribers)
    }

    /// WHOAMI: the id of the connection that this client has now.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn whoami(&self) -> Result<[u8; ID_BYTES], AskError> {
        expect!(self.ask(Request::Whoami).await?, Reply::Whoami(id) => id)
    }

    /// CONSUME: takes `cost` from a counter if it holds as much. Without a counter one is made
    /// first, with this quota and time to live. Tidegate's own: other servers close the connection.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn consume(
        &self,
        key: &[u8],
        cost: u64,
        quota: u64,
        ttl: Ttl,
    ) -> Result<Consumed, AskError> {
        let reply = self.ask(Request::Consume { cost, quota, ttl, key }).await?;
        expect!(reply, Reply::Consumed(consumed) => consumed)
    }

    /// CONSUME MANY: several in one, of which all take or none does. Tidegate's own.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn consume_many(&self, takes: &[Take<'_>]) -> Result<ConsumedMany, AskError> {
        let reply = self.ask(Request::ConsumeMany { takes: Takes::new(takes) }).await?;
        expect!(reply, Reply::ConsumedMany(consumed) => consumed)
    }

    /// EVENT: has the server execute a request, no EVENT itself, that is the payload of an event,
    /// and returns that request's reply.
    ///
    /// # Errors
    /// [`AskError`] if there is no answer.
    pub async fn event(&self, channel: &[u8], request: Request<'_>) -> Result<Reply, AskError> {
        let mut payload = Vec::new();
        request.encode(self.settings.value_size, &mut payload)?;
        self.ask(Request::Event { channel, payload: &payload }).await
    }

    async fn status(&self, request: Request<'_>) -> Result<bool, AskError> {
        expect!(self.ask(request).await?, Reply::Status(success) => success)
    }
}
