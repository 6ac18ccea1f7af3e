//! The ids by which the clients of quota streams know their buckets.
//!
//! An id is made of header values, which may be long and are chosen by clients of Envoy, and is
//! kept for as long as its stream has a seat in the bucket. So ids have budgets of bytes: each
//! stream has some bytes of its own, and all streams share the rest. Which streams have a seat is
//! the division's business.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tidegate_envoy::proto::quota::BucketId;
use tidegate_envoy::quota::StreamId;

/// The longest id that is kept. Envoy passes on header values of up to 60 KiB, and reports every
/// bucket with its whole id every five seconds.
pub(super) const ID_BYTES_MAX: usize = 4 << 10;
/// What the ids of a stream may take, whatever those of others take.
const OWN_BYTES: usize = 64 << 10;
/// What the ids of a stream may take at most.
const STREAM_BYTES_MAX: usize = 8 << 20;
/// What the ids of all streams may take beyond their own bytes. When half of it is taken, a stream
/// has no more of it than an even share.
const SHARED_BYTES_MAX: usize = 128 << 20;

/// The ids of all streams.
#[derive(Debug, Default)]
pub(super) struct BucketIds {
    streams: HashMap<StreamId, StreamIds>,
    /// What streams take beyond their own bytes.
    shared: usize,
}

#[derive(Debug, Default)]
struct StreamIds {
    by_key: HashMap<Arc<[u8]>, BucketId>,
    bytes: usize,
}

impl BucketIds {
    pub(super) fn open(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_default();
    }

    pub(super) fn close(&mut self, stream: StreamId) {
        if let Some(ids) = self.streams.remove(&stream) {
            self.shared -= beyond(ids.bytes);
        }
    }

    pub(super) fn get(&self, stream: StreamId, key: &[u8]) -> Option<&BucketId> {
        self.streams.get(&stream)?.by_key.get(key)
    }

    /// Whether a stream may have another id of so many bytes.
    pub(super) fn has_room(&self, stream: StreamId, id_bytes: usize) -> bool {
        let Some(ids) = self.streams.get(&stream) else { return false };
        let bytes = ids.bytes + id_bytes;
        if bytes <= OWN_BYTES {
            return true;
        }
        let share = SHARED_BYTES_MAX / self.streams.len();
        let is_fair = self.shared < SHARED_BYTES_MAX / 2 || beyond(bytes) <= share;
        let shared = self.shared + beyond(bytes) - beyond(ids.bytes);
        is_fair && bytes <= STREAM_BYTES_MAX && shared <= SHARED_BYTES_MAX
    }

    /// Keeps an id.
    pub(super) fn remember(&mut self, stream: StreamId, key: &[u8], id: &BucketId) {
        let Some(ids) = self.streams.get_mut(&stream) else { return };
        let before = beyond(ids.bytes);
        ids.bytes += id.encoded_len();
        if let Some(replaced) = ids.by_key.insert(key.into(), owned(id)) {
            ids.bytes -= replaced.encoded_len();
        }
        self.shared = self.shared + beyond(ids.bytes) - before;
    }

    /// Lets go of an id, and returns it.
    pub(super) fn forget(&mut self, stream: StreamId, key: &[u8]) -> Option<BucketId> {
        let ids = self.streams.get_mut(&stream)?;
        let id = ids.by_key.remove(key)?;
        let before = beyond(ids.bytes);
        ids.bytes -= id.encoded_len();
        self.shared = self.shared + beyond(ids.bytes) - before;
        Some(id)
    }
}

/// The part of a stream's bytes that it shares with others.
fn beyond(bytes: usize) -> usize {
    bytes.saturating_sub(OWN_BYTES)
}

/// A copy: what was decoded is a part of its message, and would keep all of that in memory.
fn owned(id: &BucketId) -> BucketId {
    let copied = |(name, value): (&String, &Bytes)| (name.clone(), Bytes::copy_from_slice(value));
    BucketId { bucket: id.bucket.iter().map(copied).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize, bytes: usize) -> (Vec<u8>, BucketId) {
        let value = format!("{number}{}", "v".repeat(bytes));
        let bucket = [("user".to_owned(), value.clone().into())].into_iter().collect();
        (value.into_bytes(), BucketId { bucket })
    }

    /// Fills a stream with ids; returns how many bytes it has then.
    fn fill(ids: &mut BucketIds, stream: StreamId) -> usize {
        ids.open(stream);
        for number in 0.. {
            let (key, id) = id(number, 4_000);
            if !ids.has_room(stream, id.encoded_len()) {
                break;
            }
            ids.remember(stream, &key, &id);
        }
        ids.streams[&stream].bytes
    }

    #[test]
    fn greedy_streams_leave_others_their_own_bytes() {
        let mut ids = BucketIds::default();
        assert!(!ids.has_room(StreamId(0), 1), "no such stream");
        let mut sum = 0;
        for number in 0..40 {
            let bytes = fill(&mut ids, StreamId(number));
            assert!((OWN_BYTES - 4_100..=STREAM_BYTES_MAX).contains(&bytes), "{bytes}");
            sum += beyond(bytes);
        }
        assert!((SHARED_BYTES_MAX / 2..=SHARED_BYTES_MAX).contains(&sum), "{sum}");
        assert_eq!(ids.shared, sum);
        // A stream that leaves makes room for others.
        let had = fill(&mut ids, StreamId(39));
        ids.close(StreamId(0));
        assert!(fill(&mut ids, StreamId(39)) >= had);
        (0..40).for_each(|number| ids.close(StreamId(number)));
        assert_eq!(ids.shared, 0);
    }

    #[test]
    fn ids_are_kept_until_they_are_forgotten_and_counted_once() {
        let (mut ids, stream) = (BucketIds::default(), StreamId(1));
        ids.open(stream);
        let (key, long) = id(1, OWN_BYTES);
        (0..2).for_each(|_| ids.remember(stream, &key, &long));
        assert_eq!(ids.get(stream, &key), Some(&long));
        assert_eq!(ids.shared, long.encoded_len() - OWN_BYTES);
        assert_eq!(ids.forget(stream, &key), Some(long));
        assert_eq!((ids.get(stream, &key).is_none(), ids.shared), (true, 0));
        assert_eq!(ids.forget(stream, &key), None);
    }

    #[test]
    fn an_id_does_not_keep_its_message() {
        let (mut ids, stream) = (BucketIds::default(), StreamId(1));
        ids.open(stream);
        let message = Bytes::from(vec![b'm'; 1 << 20]);
        let bucket = [("user".to_owned(), message.slice(7..9))].into_iter().collect();
        ids.remember(stream, b"key", &BucketId { bucket });
        assert!(message.is_unique());
    }
}
