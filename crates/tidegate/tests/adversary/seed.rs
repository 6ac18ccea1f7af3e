//! Random choices that can be repeated: everything follows from one seed.

use std::hash::{BuildHasher as _, RandomState};

/// The seed of a test. It is printed if the test fails.
pub(crate) struct Seed(u64);

impl Seed {
    /// From `TIDEGATE_SEED`, or a new one.
    pub(crate) fn new() -> Self {
        match std::env::var("TIDEGATE_SEED") {
            Ok(text) => Self(text.parse().expect("TIDEGATE_SEED is a number")),
            Err(_) => Self(RandomState::new().hash_one(0)),
        }
    }

    /// A source of random numbers for one part of the test.
    pub(crate) fn random(&self, part: u64) -> Random {
        let mut random = Random(self.0 ^ part.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with TIDEGATE_SEED={}", self.0);
        }
    }
}

/// Whether the long form was asked for.
pub(crate) fn soak() -> bool {
    std::env::var_os("TIDEGATE_SOAK").is_some()
}

/// Random numbers (splitmix64).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    /// Whether one of `count` equal chances has come.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// One of `choices`.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// So many random bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Another source that follows from this one.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
