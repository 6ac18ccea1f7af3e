//! One reservation of memory for the slots of all shards, on huge pages where there are any.
//!
//! Slots lie side by side in the order in which they were first used, whatever their shard: with
//! a vector for each shard, a decision missed the address cache for every line that it touched,
//! and that cost more than the decision. What is not used is not resident. The arena knows places;
//! the table knows which shard owns each.
#![allow(unsafe_code, reason = "shards behind their own locks share one mapping, see above")]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Places that a shard keeps for itself before it gives some back to all.
const FREE_MAX: usize = 64;
const CACHE_LINE: usize = 64;

/// Room for entries, each at a place that is given to one owner at a time.
pub(super) struct Arena<E> {
    base: NonNull<E>,
    capacity: usize,
    /// Places that were ever given away.
    given: AtomicUsize,
    /// Places given back, for any shard.
    spare: Mutex<Vec<u32>>,
    spares: AtomicUsize,
    _entries: PhantomData<E>,
}

// SAFETY: the arena hands out places and addresses only; code that reads or writes there must say
// `unsafe` and own the place. Entries may be dropped on another thread than they were made on.
unsafe impl<E: Send> Send for Arena<E> {}
// SAFETY: as above; `&Arena` alone gives no access to entries.
unsafe impl<E: Send> Sync for Arena<E> {}

impl<E> Arena<E> {
    /// Reserves room for `capacity` entries.
    pub(super) fn new(capacity: usize) -> Self {
        // The mapping starts on a page, which is as much alignment as an entry may ask for.
        const { assert!(align_of::<E>() <= 4096 && size_of::<E>() > 0) };
        let bytes = Self::bytes(capacity);
        let base = reserve(bytes).cast::<E>();
        advise_huge(base.cast(), bytes);
        Self {
            base,
            capacity,
            given: AtomicUsize::new(0),
            spare: Mutex::default(),
            spares: AtomicUsize::new(0),
            _entries: PhantomData,
        }
    }

    fn bytes(capacity: usize) -> usize {
        capacity.max(1).saturating_mul(size_of::<E>())
    }

    /// A place that no other shard has: one of the shard's own, a new one, or a spare one.
    pub(super) fn take(&self, free: &mut Vec<u32>) -> Option<u32> {
        if let Some(place) = free.pop() {
            return Some(place);
        }
        if self.given.load(Relaxed) < self.capacity {
            let place = self.given.fetch_add(1, Relaxed);
            if place < self.capacity {
                return Some(place as u32);
            }
            self.given.fetch_sub(1, Relaxed);
        }
        if self.spares.load(Relaxed) == 0 {
            return None;
        }
        let mut spare = self.spare.lock();
        let keep = spare.len().saturating_sub(FREE_MAX / 2);
        free.extend(spare.drain(keep..));
        self.spares.store(spare.len(), Relaxed);
        free.pop()
    }

    /// Gives a place back whose entry has been taken out.
    pub(super) fn give_back(&self, place: u32, free: &mut Vec<u32>) {
        free.push(place);
        if free.len() >= FREE_MAX {
            let mut spare = self.spare.lock();
            spare.extend(free.drain(FREE_MAX / 2..));
            self.spares.store(spare.len(), Relaxed);
        }
    }

    /// The address of a place.
    #[inline]
    pub(super) fn at(&self, place: u32) -> NonNull<E> {
        assert!((place as usize) < self.capacity);
        // SAFETY: the mapping holds `capacity` entries.
        unsafe { self.base.add(place as usize) }
    }

    /// Prefetches the entry at a place.
    #[inline]
    pub(super) fn prefetch(&self, place: u32) {
        let address = self.base.as_ptr() as usize + place as usize * size_of::<E>();
        prefetch(address);
        if size_of::<E>() > CACHE_LINE / 2 {
            prefetch(address + CACHE_LINE);
        }
    }
}

impl<E> Drop for Arena<E> {
    fn drop(&mut self) {
        // SAFETY: no address of the mapping is in use once its arena is dropped; the range
        // is exactly the one that `new` made.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), Self::bytes(self.capacity)) };
    }
}

/// Maps `bytes` of zeroes that are not resident until they are touched. Never unmapped by itself.
pub(super) fn reserve(bytes: usize) -> NonNull<u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choosing touches no memory
    // that exists.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
    let Some(base) = mapped.ok().and_then(|at| NonNull::new(at.cast::<u8>())) else {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<u64>());
    };
    base
}

/// Asks for huge pages in a range of a mapping of [`reserve`].
pub(super) fn advise_huge(base: NonNull<u8>, bytes: usize) {
    // SAFETY: advice changes no content; where huge pages are not to be had it fails, and nothing
    // else changes.
    let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
}

/// Brings the cache line at `address` closer, if there is memory; never faults, changes nothing.
///
/// One exposed cache miss costs more than the rest of a decision; a batch that asks for all its
/// lines first pays for about one of them.
#[inline]
pub(super) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint. The processor ignores it for addresses that are not mapped,
    // so any value is sound here, and no memory is read or written in the language's sense.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// As [`prefetch`], for a line that will be written: other cores give it up meanwhile.
#[inline]
pub(super) fn prefetch_to_write(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint as above. Processors too old to know it take it for an instruction that does
    // nothing. The intrinsic of the same name compiles to a prefetch for reading.
    unsafe {
        std::arch::asm!(
            "prefetchw [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
