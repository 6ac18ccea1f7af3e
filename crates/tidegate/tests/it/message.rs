//! HTTP/1.1 messages as the tests read them, whichever side they stand on.

use std::io::{BufRead, BufReader, Read};

/// A message as a test reads it: the first line, the headers in lower case, and the body.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn status(&self) -> u16 {
        self.first.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Reads a head; `None` at the end of the stream.
    pub(crate) fn read_head(stream: &mut impl BufRead) -> Option<Self> {
        let mut line = || {
            let mut line = Vec::new();
            stream.read_until(b'\n', &mut line).ok().filter(|count| *count > 0)?;
            Some(String::from_utf8_lossy(&line).trim_end().to_owned())
        };
        let first = line()?;
        let mut headers = Vec::new();
        loop {
            match line()?.split_once(':') {
                Some((name, value)) => {
                    headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
                None => return Some(Self { first, headers, body: Vec::new() }),
            }
        }
    }

    /// Reads a whole message; one without a length has no body.
    pub(crate) fn read(stream: &mut impl BufRead) -> Option<Self> {
        let mut message = Self::read_head(stream)?;
        let chunked = message.header("transfer-encoding") == Some("chunked");
        if let Some(length) = message.header("content-length").and_then(|text| text.parse().ok()) {
            message.body = vec![0; length];
            stream.read_exact(&mut message.body).ok()?;
        }
        if chunked {
            message.read_chunks(stream)?;
        }
        Some(message)
    }

    /// Reads chunks to the last one, and the trailers behind it among the headers.
    fn read_chunks(&mut self, stream: &mut impl BufRead) -> Option<()> {
        loop {
            let mut size = String::new();
            stream.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim_end(), 16).ok()?;
            if size == 0 {
                let trailers = Self::read_head(&mut BufReader::new(Stitched(b"x\n", stream)))?;
                self.headers.extend(trailers.headers);
                return Some(());
            }
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).ok()?;
            self.body.extend_from_slice(&chunk[..size]);
        }
    }
}

/// Trailers look like a head without its first line.
struct Stitched<'a, R>(&'static [u8], &'a mut R);

impl<R: BufRead> Read for Stitched<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if let [byte, rest @ ..] = self.0 {
            self.0 = rest;
            out[0] = *byte;
            return Ok(1);
        }
        // A byte at a time, so that nothing beyond the trailers is swallowed.
        self.1.read(&mut out[..1])
    }
}
