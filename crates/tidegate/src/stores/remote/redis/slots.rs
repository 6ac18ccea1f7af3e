//! Which slot of a Cluster a name is in.

/// How many slots there are.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a name: of its hash tag, if it has one.
pub(super) fn slot(name: &[u8]) -> u16 {
    crc16(tag(name)) % SLOTS as u16
}

/// What stands in the first pair of braces, if anything does; else the whole.
fn tag(name: &[u8]) -> &[u8] {
    let Some(open) = name.iter().position(|&byte| byte == b'{') else { return name };
    let inside = &name[open + 1..];
    match inside.iter().position(|&byte| byte == b'}') {
        Some(length) if length > 0 => &inside[..length],
        _ => name,
    }
}

/// CRC-16 as XMODEM has it: polynomial 0x1021, from zero.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        let mut crc = crc ^ (u16::from(byte) << 8);
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc = (crc << 1) ^ if carry { 0x1021 } else { 0 };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_servers() {
        // As `CLUSTER KEYSLOT` tells.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"123456789"), 12_739);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b""), 0);
    }

    #[test]
    fn a_hash_tag_stands_for_the_name() {
        for (name, same) in [("{user1000}.x", "user1000"), ("a{b}{c}", "b"), ("a{{b}}c", "{b")] {
            assert_eq!(tag(name.as_bytes()), same.as_bytes(), "{name}");
        }
        for name in ["a{}{b}", "a{b", "a}b{", ""] {
            assert_eq!(tag(name.as_bytes()), name.as_bytes(), "{name}");
        }
    }
}
