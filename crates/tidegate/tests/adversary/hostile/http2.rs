//! Frames of HTTP/2 as bytes, right or wrong: nothing here keeps a client from breaking its rules.

/// What every connection begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The most bytes of a frame, unless the other side allows more.
pub(crate) const FRAME_BYTES_MAX: usize = 16_384;
/// Bytes before the body of a frame.
pub(crate) const FRAME_HEAD_BYTES: usize = 9;

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// Preface and settings.
pub(crate) fn greeting(settings: &[(u16, u32)]) -> Vec<u8> {
    let pair =
        |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let settings: Vec<u8> = settings.iter().flat_map(pair).collect();
    [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat()
}

/// Stream numbers of a client.
pub(crate) fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}
