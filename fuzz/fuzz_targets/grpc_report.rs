//! Any bytes as a report of quotas, in portions and pieces of any size: the pieces are the whole,
//! and a report that can be read says the same in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate_envoy::proto::quota::RateLimitQuotaUsageReports;
use tidegate_envoy::report_pieces::ReportPieces;

const PREFIX_BYTES: usize = 5;

/// What comes out, piece by piece, and what is left when the client has ended its stream.
fn pieces(bytes: &[u8], portion: usize, piece_bytes: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut pieces = ReportPieces::of(piece_bytes);
    let mut out = Vec::new();
    for portion in bytes.chunks(portion) {
        pieces.add(portion);
        out.extend(std::iter::from_fn(|| pieces.next_piece()).map(Vec::from));
    }
    (out, pieces.rest().into())
}

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (portion, piece_bytes, bytes) = input;
    let (portion, piece_bytes) = (usize::from(portion) + 1, usize::from(piece_bytes) + 1);
    // As it may come from a client that does not speak gRPC.
    let (out, rest) = pieces(bytes, portion, piece_bytes);
    assert!(out.iter().all(|piece| !piece.is_empty()));
    assert!(rest.len() <= bytes.len() + PREFIX_BYTES);
    // As one message.
    let length = u32::try_from(bytes.len()).expect("a short input");
    let framed = [&[0][..], &length.to_be_bytes(), bytes].concat();
    let (out, rest) = pieces(&framed, portion, piece_bytes);
    assert!(rest.is_empty());
    let told: Vec<u8> = out.iter().flat_map(|piece| &piece[PREFIX_BYTES..]).copied().collect();
    assert_eq!(told, bytes);
    for piece in &out {
        let length = u32::try_from(piece.len() - PREFIX_BYTES).expect("a short piece");
        assert_eq!(piece[..PREFIX_BYTES], [&[0][..], &length.to_be_bytes()].concat());
    }
    let Ok(whole) = RateLimitQuotaUsageReports::decode(bytes) else { return };
    let mut usages = Vec::new();
    for piece in &out {
        let piece = RateLimitQuotaUsageReports::decode(&piece[PREFIX_BYTES..]);
        usages.extend(piece.expect("cut between fields").bucket_quota_usages);
    }
    assert_eq!(usages, whole.bucket_quota_usages);
});
