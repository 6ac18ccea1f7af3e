//! Asks the processor to bring a line of memory closer. Nothing else.
//!
//! One exposed cache miss costs more than the rest of a decision; a batch that asks for all its
//! lines first pays for about one of them. This is one of the two files that may say `unsafe`.
#![allow(unsafe_code)]

/// Brings the cache line at `address` closer, if there is memory; never faults, changes nothing.
#[inline]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint. The processor ignores it for addresses that are not mapped,
    // so any value at all is sound here, and no memory is read or written in the language's sense.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
