//! The answers that wait for the client of a quota stream, and the bytes that they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use prost::Message as _;
use tidegate_envoy::proto::quota::RateLimitQuotaResponse;
use tidegate_envoy::proto::quota::rate_limit_quota_response::BucketAction;
use tokio::sync::{Notify, mpsc};

use crate::doors::io::held_bytes::{CallBytes, ConnectionId};

/// Messages that wait for one stream. A client that leaves more unread loses its stream.
const UNREAD_MESSAGES_MAX: usize = 64;
/// While more than this is unread, no report of the stream is read.
const UNREAD_BYTES_MAX: usize = 256 << 10;
/// Answers are cut into messages of this size.
const MESSAGE_BYTES: usize = 1 << 20;

/// Why an answer cannot wait for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The client has left too many unread, or is gone.
    SlowReader,
    /// Clients hold so many bytes that there is no room.
    NoRoom,
}

/// The server's end.
pub(super) struct Answers {
    messages: mpsc::Sender<Answer>,
    unread: Arc<Unread>,
    held: Arc<CallBytes>,
}

/// The client's end.
pub(super) type AnswerReceiver = mpsc::Receiver<Answer>;

/// A message that waits for its client. What it holds is given back when it is dropped.
pub(super) struct Answer {
    message: RateLimitQuotaResponse,
    _bytes: UnreadBytes,
}

impl Answer {
    pub(super) fn taken(self) -> RateLimitQuotaResponse {
        self.message
    }
}

/// What a stream has left unread.
#[derive(Debug, Default)]
pub(super) struct Unread {
    bytes: AtomicUsize,
    /// Whether the server has ended the stream.
    has_ended: AtomicBool,
    changed: Notify,
}

impl Unread {
    /// Waits until the server ends the stream.
    pub(super) async fn has_ended(&self) {
        while !self.has_ended.load(Relaxed) {
            self.changed.notified().await;
        }
    }

    /// Waits until the client has read most of what there is, or the server ends the stream.
    pub(super) async fn is_short(&self) {
        while self.bytes.load(Relaxed) > UNREAD_BYTES_MAX && !self.has_ended.load(Relaxed) {
            self.changed.notified().await;
        }
    }
}

struct UnreadBytes {
    bytes: usize,
    unread: Arc<Unread>,
    held: Arc<CallBytes>,
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.held.give_back(self.bytes);
        self.unread.bytes.fetch_sub(self.bytes, Relaxed);
        self.unread.changed.notify_one();
    }
}

impl Answers {
    /// The ends of a stream whose call holds these bytes.
    pub(super) fn new(held: Arc<CallBytes>) -> (Self, AnswerReceiver) {
        let (messages, receiver) = mpsc::channel(UNREAD_MESSAGES_MAX);
        (Self { messages, unread: Arc::default(), held }, receiver)
    }

    /// Whose answers they are.
    pub(super) fn connection(&self) -> ConnectionId {
        self.held.connection()
    }

    pub(super) fn unread(&self) -> Arc<Unread> {
        self.unread.clone()
    }

    /// Sends what the client is told, in messages of a bounded size.
    pub(super) fn send(&self, actions: Vec<BucketAction>) -> Result<(), NotTaken> {
        let mut message = RateLimitQuotaResponse::default();
        let mut bytes = 0;
        for action in actions {
            let more = action.encoded_len();
            // What one bucket is told at a time belongs together.
            let goes_on = |last: &BucketAction| last.bucket_id == action.bucket_id;
            if bytes + more > MESSAGE_BYTES && !message.bucket_action.last().is_none_or(goes_on) {
                self.send_one(std::mem::take(&mut message), bytes)?;
                bytes = 0;
            }
            bytes += more;
            message.bucket_action.push(action);
        }
        self.send_one(message, bytes)
    }

    fn send_one(&self, message: RateLimitQuotaResponse, bytes: usize) -> Result<(), NotTaken> {
        if !self.held.take(bytes) {
            return Err(NotTaken::NoRoom);
        }
        self.unread.bytes.fetch_add(bytes, Relaxed);
        let (unread, held) = (self.unread.clone(), self.held.clone());
        let _bytes = UnreadBytes { bytes, unread, held };
        let sent = self.messages.try_send(Answer { message, _bytes });
        sent.map_err(|_| NotTaken::SlowReader)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.unread.has_ended.store(true, Relaxed);
        self.unread.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tidegate_envoy::proto::quota::BucketId;
    use tidegate_envoy::quota::Action;

    use super::super::quota_messages::assigned;
    use super::*;
    use crate::doors::io::held_bytes::{ConnectionBytes, HeldBytes};

    fn slice(value: &str) -> [BucketAction; 2] {
        let bucket = [("user".to_owned(), value.to_owned().into())].into_iter().collect();
        let id = BucketId { bucket };
        [Action::DenyAll { ttl_s: 2 }, Action::AllowAll { ttl_s: 2 }]
            .map(|action| assigned(id.clone(), action))
    }

    #[test]
    fn long_answers_are_cut_between_buckets_and_held_until_they_are_taken() {
        let pot = Arc::new(HeldBytes::default());
        let call = ConnectionBytes::new(&pot).begin(0).expect("room");
        let (answers, mut receiver) = Answers::new(call.clone());
        let unread = answers.unread();
        let values: Vec<String> = (0..1_000).map(|number| format!("{number:0999}")).collect();
        let actions = values.iter().flat_map(|value| slice(value)).collect();
        assert_eq!(answers.send(actions), Ok(()));
        let whole = unread.bytes.load(Relaxed);
        assert!(whole > 2_000_000 && pot.bytes() + (256 << 10) > whole, "{whole}");
        let mut told = Vec::new();
        while let Ok(answer) = receiver.try_recv() {
            let message = answer.taken();
            assert!(message.encoded_len() < MESSAGE_BYTES + 20_000);
            let actions = message.bucket_action;
            assert_eq!(actions.first().map(|one| &one.bucket_id), {
                actions.get(1).map(|one| &one.bucket_id)
            });
            told.push(actions.len());
        }
        assert!(told.len() > 1 && told.iter().sum::<usize>() == 2_000, "{told:?}");
        assert_eq!((unread.bytes.load(Relaxed), pot.bytes()), (0, 0));
        // A client that reads nothing, and one that is gone, hold nothing for long.
        let sent = std::iter::repeat_with(|| answers.send(slice("a").into()));
        assert_eq!(sent.take_while(Result::is_ok).count(), UNREAD_MESSAGES_MAX);
        drop(receiver);
        assert_eq!(answers.send(slice("a").into()), Err(NotTaken::SlowReader));
        drop(answers);
        assert_eq!(unread.bytes.load(Relaxed), 0);
    }
}
