//! Any bytes as an answer of an upstream: its head, and then its chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::http1::{Chunks, Ending, Part, fields, head, trailer_fields, trailers};

fuzz_target!(|bytes: &[u8]| {
    let mut room = fields();
    let Ok(Some(head)) = head(bytes, &mut room) else {
        read_chunks(bytes);
        return;
    };
    assert!(head.bytes > 0 && head.bytes <= bytes.len() && head.status >= 100);
    let told = head.ending(false);
    if let Ok((ending, keeps)) = told {
        // Nobody can say where the next answer begins.
        assert!(!(keeps && ending == Ending::Close));
    }
    if let Ok((ending, _)) = head.ending(true) {
        assert_eq!(ending, Ending::Nothing);
    }
    read_chunks(&bytes[head.bytes..]);
});

/// Reads them whole and byte by byte: both find the same.
fn read_chunks(bytes: &[u8]) {
    assert_eq!(read(bytes, bytes.len().max(1)), read(bytes, 1));
}

fn read(bytes: &[u8], piece: usize) -> Option<(Vec<u8>, usize)> {
    let (mut chunks, mut data) = (Chunks::default(), Vec::new());
    let (mut at, mut seen) = (0, 0);
    loop {
        match chunks.next(&bytes[at..seen]).ok()? {
            Part::Frame(used) => at += used,
            Part::Data(more) => {
                data.extend_from_slice(more);
                at += more.len();
            }
            Part::End => {
                let mut room = trailer_fields();
                if let Some((_, used)) = trailers(&bytes[at..seen], &mut room).ok()? {
                    return Some((data, at + used));
                }
                if seen == bytes.len() {
                    return None;
                }
                seen = bytes.len().min(seen + piece);
            }
            Part::More if seen == bytes.len() => return None,
            Part::More => seen = bytes.len().min(seen + piece),
        }
        assert!(at <= seen);
    }
}
