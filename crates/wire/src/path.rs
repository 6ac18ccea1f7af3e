//! Paths of URLs as they are counted: two spellings of one path are one path.
//!
//! A path is percent-decoded once, repeated slashes are merged, and `.` and `..` segments are
//! resolved, as in nginx's `$uri`; what was decoded counts like what was written, so `%2F` is a
//! slash and `%2e%2e` goes up. `..` stops at the root. Case and a slash at the end count. What is
//! no percent-encoding stays as it is.

use crate::percent::Decoded;

/// Whether a path is surely its own normal form: it has no `%`, and neither an empty segment nor
/// one that begins with a dot.
#[must_use]
pub fn is_plain(path: &[u8]) -> bool {
    let odd = |pair: &[u8]| pair[0] == b'/' && (pair[1] == b'/' || pair[1] == b'.');
    !path.contains(&b'%') && !path.windows(2).any(odd)
}

/// Appends the normal form of `path` to `out`. It is never longer than `path`. What does not begin
/// with a slash, such as the `*` of OPTIONS, is only decoded.
pub fn normalise(path: &[u8], out: &mut Vec<u8>) {
    let mut bytes = Decoded(path).map(|byte| byte.unwrap_or_else(|percent| percent));
    if path.first() != Some(&b'/') {
        out.extend(bytes);
        return;
    }
    bytes.next();
    let root = out.len();
    out.push(b'/');
    // Where the segment that is being written begins: behind a slash.
    let mut segment = out.len();
    for byte in bytes {
        if byte != b'/' {
            out.push(byte);
        } else if !resolve(out, root, &mut segment) && out.len() > segment {
            out.push(b'/');
            segment = out.len();
        }
    }
    resolve(out, root, &mut segment);
}

/// Takes out the last segment if it is `.`, and the one before it, too, if it is `..`; whether it
/// was one of them.
fn resolve(out: &mut Vec<u8>, root: usize, segment: &mut usize) -> bool {
    match &out[*segment..] {
        b"." => {}
        b".." => {
            // The slash in front of the segment is left out of the search for the one before it.
            let above = out[root..*segment - 1].iter().rposition(|&byte| byte == b'/');
            *segment = above.map_or(root, |slash| root + slash) + 1;
        }
        _ => return false,
    }
    out.truncate(*segment);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(path: &[u8]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        normalise(path, &mut out);
        out.split_off(6)
    }

    /// Slow and obvious: decode all, cut at slashes, and go through the segments.
    fn model(path: &[u8]) -> Vec<u8> {
        let mut decoded = Vec::new();
        let mut at = 0;
        while at < path.len() {
            let hex = path.get(at + 1..at + 3).filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
            match hex {
                Some(hex) if path[at] == b'%' => {
                    let hex = std::str::from_utf8(hex).unwrap();
                    decoded.push(u8::from_str_radix(hex, 16).unwrap());
                    at += 3;
                }
                _ => {
                    decoded.push(path[at]);
                    at += 1;
                }
            }
        }
        if path.first() != Some(&b'/') {
            return decoded;
        }
        let segments: Vec<&[u8]> = decoded.split(|&byte| byte == b'/').collect();
        let mut kept: Vec<&[u8]> = Vec::new();
        for segment in &segments {
            match *segment {
                b"" | b"." => {}
                b".." => drop(kept.pop()),
                other => kept.push(other),
            }
        }
        let folder = matches!(*segments.last().unwrap(), b"" | b"." | b"..");
        let mut whole = vec![b'/'];
        whole.extend(kept.join(&b'/'));
        if folder && !kept.is_empty() {
            whole.push(b'/');
        }
        whole
    }

    #[test]
    fn spellings_of_one_path_are_one_path() {
        for (path, expected) in [
            ("/login", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/%2e/login", "/login"),
            ("/%2E%2E/login", "/login"),
            ("/a/../login", "/login"),
            ("/../../login", "/login"),
            ("/a/b/..//./../login", "/login"),
            ("/%6cogin", "/login"),
            ("/%2flogin", "/login"),
            ("/a%2f..%2flogin", "/login"),
            ("/login/", "/login/"),
            ("/login//", "/login/"),
            ("/login/.", "/login/"),
            ("/login/x/..", "/login/"),
            ("/login/..", "/"),
            ("/..", "/"),
            ("/.", "/"),
            ("/", "/"),
            ("///", "/"),
            ("/Login", "/Login"),
            ("/.login", "/.login"),
            ("/..login", "/..login"),
            ("/...", "/..."),
            ("/login..", "/login.."),
            ("/%252e/login", "/%2e/login"),
            ("/%", "/%"),
            ("/%4", "/%4"),
            ("/%zz", "/%zz"),
            ("*", "*"),
            ("", ""),
        ] {
            assert_eq!(normal(path.as_bytes()).escape_ascii().to_string(), expected, "{path}");
        }
    }

    fn path() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => Just("/"), 3 => Just("."), 2 => Just("a"), 1 => Just("%"), 1 => Just("2"),
            1 => Just("e"), 1 => Just("%2e"), 1 => Just("%2F"), 1 => Just("%25"), 1 => Just("%00"),
        ];
        prop::collection::vec(piece, 0..16)
            .prop_map(|pieces| std::iter::once("/").chain(pieces).collect::<String>().into_bytes())
    }

    proptest! {
        #[test]
        fn it_is_what_the_model_says(path in path()) {
            prop_assert_eq!(normal(&path), model(&path));
            prop_assert_eq!(normal(&path[1..]), model(&path[1..]));
        }

        #[test]
        fn a_plain_path_is_its_own_normal_form(path in path()) {
            prop_assert!(!is_plain(&path) || normal(&path) == path);
            prop_assert!(normal(&path).len() <= path.len());
        }
    }
}
