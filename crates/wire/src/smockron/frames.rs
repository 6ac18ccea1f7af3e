//! A message to send: a few frames in one buffer that is used again and again.

/// The most frames that are ever written, or looked at when a message is read.
pub const FRAMES_MAX: usize = 6;

/// The frames of one message, back to back.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    ends: [usize; FRAMES_MAX],
    count: usize,
}

impl Frames {
    /// No frames yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the last message and keeps its memory.
    pub(super) fn begin(&mut self) -> &mut Self {
        self.bytes.clear();
        self.count = 0;
        self
    }

    /// Adds a frame.
    pub(super) fn frame(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.end()
    }

    /// Adds a domain, with the NUL that ends it on the wire.
    pub(super) fn domain(&mut self, domain: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(domain);
        self.frame(b"\0")
    }

    /// Adds a number as ASCII decimal: no sign, no exponent, no fraction.
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        const DIGITS_MAX: usize = 20;
        let mut digits = [0; DIGITS_MAX];
        let mut at = DIGITS_MAX;
        let mut left = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.frame(&digits[at..])
    }

    fn end(&mut self) -> &mut Self {
        self.ends[self.count] = self.bytes.len();
        self.count += 1;
        self
    }

    /// The frames, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        (0..self.count).map(|frame| {
            let from = if frame == 0 { 0 } else { self.ends[frame - 1] };
            &self.bytes[from..self.ends[frame]]
        })
    }
}
