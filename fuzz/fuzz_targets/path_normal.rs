//! Any path of a URL: its normal form has no segment left to resolve and is no longer than it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::path::{is_plain, normalise};

fuzz_target!(|path: &[u8]| {
    let mut normal = Vec::new();
    normalise(path, &mut normal);
    assert!(normal.len() <= path.len());
    if is_plain(path) {
        assert_eq!(normal, path);
    }
    if path.first() == Some(&b'/') {
        let (first, rest) = normal.split_first().expect("a root");
        assert_eq!(*first, b'/');
        let mut segments = rest.split(|&byte| byte == b'/').rev();
        // Only the last segment may be empty: a slash at the end counts.
        assert!(!matches!(segments.next(), Some(b"." | b"..")));
        assert!(!segments.any(|segment| matches!(segment, b"" | b"." | b"..")));
    }
});
