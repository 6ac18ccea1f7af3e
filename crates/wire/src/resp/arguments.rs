//! The arguments of one request.

use std::ops::Range;

/// Where an argument lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArgumentSpan {
    pub(super) start: u32,
    pub(super) bytes: u32,
}

impl ArgumentSpan {
    /// Requests are far shorter than 4 GiB: see [`request_bytes_max`](super::request_bytes_max).
    #[inline]
    pub(super) fn new(start: usize, bytes: usize) -> Self {
        Self { start: start as u32, bytes: bytes as u32 }
    }

    #[inline]
    fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.bytes as usize
    }
}

/// The arguments of a request, the command's name first. There is at least the name.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    /// The request, or the words of an inline command.
    text: &'a [u8],
    spans: &'a [ArgumentSpan],
    is_inline: bool,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(text: &'a [u8], spans: &'a [ArgumentSpan], is_inline: bool) -> Self {
        Self { text, spans, is_inline }
    }

    /// How many there are, the command's name included.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a request has a name at least")]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The command's name.
    #[must_use]
    #[inline]
    pub fn name(&self) -> &'a [u8] {
        self.get(0).unwrap_or_default()
    }

    /// The argument at `index`; the name is at 0.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| &self.text[span.range()])
    }

    /// All arguments, the name first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let text = self.text;
        self.spans.iter().map(move |span| &text[span.range()])
    }

    /// Where the argument at `index` lies, from the start of the request. `None` if there is no
    /// such argument, or if the request is an inline command, whose words may have escapes.
    #[must_use]
    #[inline]
    pub fn place(&self, index: usize) -> Option<Range<usize>> {
        if self.is_inline {
            return None;
        }
        self.spans.get(index).map(|span| span.range())
    }
}

impl std::fmt::Debug for Arguments<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|bytes| bytes.escape_ascii().to_string())).finish()
    }
}
