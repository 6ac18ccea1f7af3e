//! Cuts long reports of quota streams into short messages.
//!
//! Envoy reports all its buckets in one message, however many there are, and their ids are as long
//! as its clients make them. If such a message were refused, the stream would end, Envoy would keep
//! the buckets, and no later report would be read. A report is a list, so a long one is cut between
//! two of its buckets: what is decoded at a time is short, and a report may be of any length.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::proto::MESSAGE_BYTES_MAX;

/// What stands before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Reports are cut into pieces of this size. A bucket that is longer is a piece by itself.
const PIECE_BYTES: usize = 64 << 10;
/// A number is written in so many bytes at most.
const VARINT_BYTES_MAX: usize = 10;

/// The bytes of a quota stream on their way to the decoder.
#[derive(Debug)]
pub struct ReportPieces {
    /// The size of pieces.
    piece_bytes: usize,
    /// What has come and was not handed on.
    begun: BytesMut,
    /// Bytes of the present message that were not handed on, those that have not come included.
    /// `None` between two messages.
    left: Option<usize>,
    has_seen_one: bool,
}

impl Default for ReportPieces {
    fn default() -> Self {
        Self::of(PIECE_BYTES)
    }
}

impl ReportPieces {
    /// Pieces of another size than the usual one.
    #[must_use]
    pub fn of(piece_bytes: usize) -> Self {
        Self { piece_bytes, begun: BytesMut::new(), left: None, has_seen_one: false }
    }

    /// Takes in what has come.
    pub fn add(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
    }

    /// How many bytes are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.begun.len()
    }

    /// Whether the client owes nothing: there was a message, and no other has begun.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.has_seen_one && self.begun.is_empty() && self.left.is_none()
    }

    /// The next piece, as a message of its own; `None` until more bytes come.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        let Some(left) = self.left else {
            let length = u32::from_be_bytes(*self.begun.get(1..)?.first_chunk()?);
            if self.begun[0] != 0 {
                // Compressed, or nonsense: the decoder refuses it by this.
                return Some(self.begun.split().freeze());
            }
            self.begun.advance(PREFIX_BYTES);
            self.left = Some(usize::try_from(length).unwrap_or(usize::MAX));
            return self.next_piece();
        };
        let come = self.begun.len().min(left);
        let cut = if left <= self.piece_bytes {
            // Short enough to wait for all of it. Its fields are not looked at: a client that sends
            // a byte at a time would have them looked at for each.
            if come < left {
                return None;
            }
            left
        } else {
            // Whole fields are cut off as they come, so they are looked at once.
            match whole_fields(&self.begun[..come], self.piece_bytes) {
                // One field, or no field at all.
                0 if come == left => left,
                0 if come > MESSAGE_BYTES_MAX => return Some(self.rest()),
                0 => return None,
                fields => fields,
            }
        };
        self.has_seen_one = true;
        self.left = Some(left - cut).filter(|left| *left > 0);
        let fields = self.begun.split_to(cut);
        Some(message(cut, &fields))
    }

    /// All that there is of a message that is not whole, for the decoder to refuse.
    pub fn rest(&mut self) -> Bytes {
        let begun = self.begun.split();
        match self.left.take() {
            Some(left) => message(left, &begun),
            None => begun.freeze(),
        }
    }
}

fn message(length: usize, fields: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(PREFIX_BYTES + fields.len());
    message.put_u8(0);
    message.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.extend_from_slice(fields);
    message.freeze()
}

/// How many bytes the first whole fields take: all that fit into a piece, or one that is longer.
fn whole_fields(bytes: &[u8], piece_bytes: usize) -> usize {
    let mut end = 0;
    while let Some(next) = field_bytes(&bytes[end..]).map(|field| end + field) {
        if next > bytes.len() || end > 0 && next > piece_bytes {
            break;
        }
        end = next;
    }
    end
}

/// How many bytes the first field takes, though not all of them may be there.
fn field_bytes(bytes: &[u8]) -> Option<usize> {
    #[cfg(test)]
    tests::SCANNED.set(tests::SCANNED.get() + 1);
    let (tag, head) = varint(bytes)?;
    let body = &bytes[head..];
    let body = match tag & 7 {
        0 => varint(body)?.1,
        1 => 8,
        2 => {
            let (length, head) = varint(body)?;
            usize::try_from(length).ok()?.checked_add(head)?
        }
        5 => 4,
        _ => return None,
    };
    head.checked_add(body)
}

/// A number, and how many bytes it takes.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0_u64;
    for (place, byte) in bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
        number |= u64::from(byte & 0x7f).checked_shl(7 * place as u32)?;
        if byte & 0x80 == 0 {
            return Some((number, place + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::proto::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
    use crate::proto::quota::{BucketId, RateLimitQuotaUsageReports};

    thread_local! {
        /// How many fields were looked at.
        pub(super) static SCANNED: Cell<usize> = const { Cell::new(0) };
    }

    fn usage(number: usize, bytes: usize) -> BucketQuotaUsage {
        let value = format!("{number}{}", "v".repeat(bytes)).into();
        let bucket = [("user".to_owned(), value)].into_iter().collect();
        let bucket_id = Some(BucketId { bucket });
        BucketQuotaUsage { bucket_id, num_requests_denied: number as u64, ..Default::default() }
    }

    fn framed(bytes: &[u8]) -> Vec<u8> {
        message(bytes.len(), bytes).to_vec()
    }

    /// Hands on what was said, in portions of this size; returns the messages that come out.
    fn pieces(said: &[u8], portion: usize) -> Vec<Bytes> {
        let mut pieces = ReportPieces::default();
        let mut out = Vec::new();
        for portion in said.chunks(portion) {
            pieces.add(portion);
            out.extend(std::iter::from_fn(|| pieces.next_piece()));
        }
        assert!(pieces.is_between(), "{pieces:?}");
        out
    }

    fn decoded(piece: &Bytes) -> RateLimitQuotaUsageReports {
        RateLimitQuotaUsageReports::decode(&piece[PREFIX_BYTES..]).expect("a message")
    }

    #[test]
    fn a_long_report_is_cut_between_its_buckets() {
        let sizes = [10, 70_000, 100, 60_000, 60_000, 4, 200_000, 9_000, 9_000];
        let usages: Vec<_> = (0..99).map(|number| usage(number, sizes[number % 9])).collect();
        let report = RateLimitQuotaUsageReports {
            domain: "web".to_owned(),
            bucket_quota_usages: usages.clone(),
        };
        let bytes = report.encode_to_vec();
        assert!(bytes.len() > MESSAGE_BYTES_MAX);
        let said = [framed(&bytes), framed(&[]), framed(&usage(7, 9).encode_to_vec())].concat();
        for portion in [1_000, 16_384, 1_000_000, said.len()] {
            let out = pieces(&said, portion);
            let (long, short) = out.split_at(out.len() - 2);
            assert_eq!((short[0].len(), short[1].len()), (5, 5 + usage(7, 9).encoded_len()));
            assert!(long.len() > 30, "{}", long.len());
            assert!(long.iter().all(|piece| piece.len() < 200_100));
            assert_eq!(decoded(&long[0]).domain, "web");
            let told: Vec<_> =
                long.iter().flat_map(|piece| decoded(piece).bucket_quota_usages).collect();
            assert_eq!(told, usages, "{portion}");
        }
    }

    #[test]
    fn what_cannot_be_cut_is_for_the_decoder_to_refuse() {
        let prefix = |length: u32| [&[0], &length.to_be_bytes()[..]].concat();
        let mut pieces = ReportPieces::default();
        // A field that is longer than any message.
        pieces.add(&[prefix(8 << 20), vec![0x12, 0xff, 0xff, 0xff, 0x03]].concat());
        for _ in 0..4 << 20 >> 14 {
            assert_eq!(pieces.next_piece(), None);
            pieces.add(&[b'x'; 1 << 14]);
        }
        assert_eq!(pieces.next_piece().expect("all of it")[..5], prefix(8 << 20));
        // A tag that there is not.
        let nonsense = vec![0xff; PIECE_BYTES + 9];
        let mut pieces = ReportPieces::default();
        pieces.add(&framed(&nonsense));
        assert_eq!(pieces.next_piece().expect("all of it")[5..], nonsense);
        // A message that is compressed, and one that ends too early.
        pieces.add(&[1, 0, 0, 0, 9, 7]);
        assert_eq!(pieces.next_piece().expect("all of it")[..], [1, 0, 0, 0, 9, 7]);
        pieces.add(&[0, 0, 0, 0, 9, 7]);
        assert_eq!((pieces.next_piece(), pieces.is_between()), (None, false));
        assert_eq!(pieces.rest()[..], [0, 0, 0, 0, 9, 7]);
        pieces.add(&[0, 0]);
        assert_eq!((pieces.next_piece(), &pieces.rest()[..]), (None, &[0, 0][..]));
    }

    /// The client chooses the size of what it sends at a time.
    #[test]
    fn each_field_is_looked_at_about_once_however_small_the_portions_are() {
        for (fields, portion) in [(32_000, 1), (32_000, 7), (100_000, 1), (100_000, 9_000)] {
            let bytes = [0x08, 0x01].repeat(fields);
            let before = SCANNED.get();
            let out = pieces(&framed(&bytes), portion);
            let whole: usize = out.iter().map(|piece| piece.len() - PREFIX_BYTES).sum();
            assert_eq!(whole, bytes.len());
            let scanned = SCANNED.get() - before;
            let portions = bytes.len() / portion;
            assert!(scanned <= 2 * fields + 3 * portions, "{scanned} of {fields} by {portion}");
        }
    }

    proptest! {
        /// Whatever is said, not a byte is lost or comes twice.
        #[test]
        fn pieces_are_the_whole(
            parts in prop::collection::vec((any::<[u8; 4]>(), 0_usize..90_000), 0..8),
            portion in 1_usize..40_000,
        ) {
            let part = |(head, count): &([u8; 4], usize)| {
                [&head[..], &vec![head[0]; *count]].concat()
            };
            let said: Vec<u8> = parts.iter().flat_map(part).collect();
            let mut pieces = ReportPieces::default();
            let mut told = Vec::new();
            for portion in framed(&said).chunks(portion) {
                pieces.add(portion);
                while let Some(piece) = pieces.next_piece() {
                    told.extend_from_slice(&piece[PREFIX_BYTES..]);
                }
            }
            prop_assert!(pieces.is_between());
            prop_assert_eq!(told, said);
        }
    }
}
