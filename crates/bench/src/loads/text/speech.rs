//! What is said to the text door. Key number `n` is the text `ws ip=a.b.c.d`.

use std::io::Write as _;

/// Appends request `id` for key number `key`.
pub(super) fn ask(id: u64, key: u64, out: &mut Vec<u8>) {
    let [.., a, b, c, d] = key.to_be_bytes();
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{id} over_limit ws ip={a}.{b}.{c}.{d}");
}

/// The id of a reply, and whether it says that the key is over its limit.
pub(super) fn read(reply: &[u8]) -> Option<(u64, bool)> {
    let digits = reply.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (id, rest) = reply.split_at(digits);
    let id = std::str::from_utf8(id).ok()?.parse().ok()?;
    Some((id, rest.starts_with(b" ok Y")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_whole_and_their_ids_come_back() {
        let mut out = Vec::new();
        ask(u64::MAX, u64::from(u32::MAX), &mut out);
        assert_eq!(out, b"18446744073709551615 over_limit ws ip=255.255.255.255");
        assert_eq!(read(&out), Some((u64::MAX, false)));
        assert_eq!(read(b"ok N"), None);
        assert_eq!(read(b"7 ok N 0.0 1.0 1"), Some((7, false)));
        assert_eq!(read(b"7 ok Y 2.0 1.0 1"), Some((7, true)));
    }
}
