//! What the loops count: requests by kind, bytes, events; since the start and by the minute.
//!
//! Each loop has counts of its own, so that two cores never write to one of them. INFO and /metrics
//! sum them. Minutes are those of the monotonic clock, so that a step of the wall clock
//! loses no count; they turn when a loop counts or a client asks, and need no timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tidegate_core::Now;
use tidegate_core::time::MINUTE;
use tidegate_wire::throttr::RequestKind;
use tidegate_wire::throttr::figures::CountRate;

use super::connection_stats::ConnectionStats;

/// What is counted beside the kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Bytes that were read.
    Read = RequestKind::COUNT as isize,
    /// Bytes that were written.
    Written,
    /// Events that were handed to a subscriber.
    Delivered,
    /// Events that a subscriber did not get.
    Lost,
}

/// Figures of one loop: the kinds of requests, then [`Figure`].
const FIGURES: usize = RequestKind::COUNT + 4;

type Figures = [u64; FIGURES];

/// The counts of one loop. Only that loop adds to it.
pub(super) struct LoopCounts {
    figures: [AtomicU64; FIGURES],
    /// The number of the minute that runs, so that a batch need not take the lock to know.
    number: AtomicU64,
    minutes: Mutex<Minutes>,
}

/// What the figures read when minutes began.
struct Minutes {
    /// The minute in which something was last counted.
    number: u64,
    /// At its beginning.
    began: Figures,
    /// At the beginning of the minute before it.
    before: Figures,
}

impl LoopCounts {
    fn new() -> Self {
        Self {
            figures: [const { AtomicU64::new(0) }; FIGURES],
            number: AtomicU64::new(0),
            minutes: Mutex::new(Minutes { number: 0, began: [0; FIGURES], before: [0; FIGURES] }),
        }
    }

    /// Says that what is added from now on happened at `now`.
    #[inline]
    pub(super) fn turn(&self, now: Now) {
        let number = now.mono / MINUTE;
        if number > self.number.load(Relaxed) {
            self.turn_to(number);
        }
    }

    #[cold]
    fn turn_to(&self, number: u64) {
        let mut minutes = self.minutes.lock();
        let began = self.read();
        minutes.before = if number == minutes.number + 1 { minutes.began } else { began };
        minutes.began = began;
        minutes.number = number;
        self.number.store(number, Relaxed);
    }

    /// Adds requests of a kind.
    #[inline]
    pub(super) fn requests(&self, kind: usize, count: u64) {
        self.bump(kind, count);
    }

    /// Adds to another figure.
    #[inline]
    pub(super) fn add(&self, figure: Figure, count: u64) {
        self.bump(figure as usize, count);
    }

    #[inline]
    fn bump(&self, place: usize, count: u64) {
        // One writer: no locked instruction is needed to lose nothing.
        let figure = &self.figures[place];
        figure.store(figure.load(Relaxed) + count, Relaxed);
    }

    fn read(&self) -> Figures {
        std::array::from_fn(|place| self.figures[place].load(Relaxed))
    }

    /// The figures, and how much each rose in the last full minute.
    fn rates(&self, now: Now) -> (Figures, Figures) {
        let minutes = self.minutes.lock();
        let figures = self.read();
        let running = now.mono / MINUTE;
        let risen = |from: &Figures, to: &Figures| {
            std::array::from_fn(|place| to[place].saturating_sub(from[place]))
        };
        let last = match running.saturating_sub(minutes.number) {
            0 => risen(&minutes.before, &minutes.began),
            1 => risen(&minutes.began, &figures),
            _ => [0; FIGURES],
        };
        (figures, last)
    }
}

/// The counts of all loops of the process.
#[derive(Default)]
pub(super) struct AllCounts {
    all: Vec<Arc<LoopCounts>>,
    /// Those whose loop has ended. They keep their counts, and the next loop goes on with them.
    free: Vec<Arc<LoopCounts>>,
}

impl AllCounts {
    /// Counts for a loop that begins.
    pub(super) fn take(&mut self) -> Arc<LoopCounts> {
        self.free.pop().unwrap_or_else(|| {
            let counts = Arc::new(LoopCounts::new());
            self.all.push(counts.clone());
            counts
        })
    }

    /// Takes the counts of a loop that has ended.
    pub(super) fn give_back(&mut self, counts: Arc<LoopCounts>) {
        self.free.push(counts);
    }

    /// The sum of all loops.
    pub(super) fn sum(&self, now: Now) -> Sum {
        let mut sum = Sum { figures: [CountRate::default(); FIGURES] };
        for counts in &self.all {
            let (totals, last) = counts.rates(now);
            for (rate, (total, last)) in sum.figures.iter_mut().zip(totals.iter().zip(last)) {
                rate.total += total;
                rate.per_minute += last;
            }
        }
        sum
    }
}

/// What all loops counted.
pub(super) struct Sum {
    figures: [CountRate; FIGURES],
}

impl Sum {
    /// Requests by [`RequestKind::index`].
    pub(super) fn kinds(&self) -> [CountRate; RequestKind::COUNT] {
        std::array::from_fn(|kind| self.figures[kind])
    }

    /// All requests.
    pub(super) fn requests(&self) -> CountRate {
        self.kinds().iter().fold(CountRate::default(), |sum, rate| CountRate {
            total: sum.total + rate.total,
            per_minute: sum.per_minute + rate.per_minute,
        })
    }

    /// Another figure.
    pub(super) fn figure(&self, figure: Figure) -> CountRate {
        self.figures[figure as usize]
    }
}

/// Requests by kind that are not yet in the counts and in the connection's figures.
#[derive(Default)]
pub(super) struct Tally {
    counts: [u32; RequestKind::COUNT],
    /// The kinds that were counted, a bit each.
    seen: u32,
}

impl Tally {
    #[inline]
    pub(super) fn count(&mut self, kind: RequestKind) {
        self.counts[kind.index()] += 1;
        self.seen |= 1 << kind.index();
    }

    /// Adds them there.
    #[inline]
    pub(super) fn settle(&mut self, stats: &ConnectionStats, counts: &LoopCounts) {
        while self.seen != 0 {
            let kind = self.seen.trailing_zeros() as usize;
            self.seen &= self.seen - 1;
            let count = u64::from(std::mem::take(&mut self.counts[kind]));
            stats.count(kind, count);
            counts.requests(kind, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now { mono: 1000 * MINUTE + seconds * MINUTE / 60, unix: 0 }
    }

    #[test]
    fn the_last_full_minute_is_told_whether_or_not_somebody_counts() {
        let mut all = AllCounts::default();
        let (one, other) = (all.take(), all.take());
        let count = |counts: &LoopCounts, seconds, count| {
            counts.turn(at(seconds));
            counts.add(Figure::Read, count);
        };
        let told = |all: &AllCounts, seconds| {
            let rate = all.sum(at(seconds)).figure(Figure::Read);
            (rate.total, rate.per_minute)
        };
        count(&one, 10, 5);
        count(&one, 59, 1);
        count(&other, 30, 100);
        assert_eq!(told(&all, 59), (106, 0), "no minute is full yet");
        assert_eq!(told(&all, 60), (106, 106));
        count(&one, 61, 7);
        assert_eq!(told(&all, 119), (113, 106), "what this minute adds is not in the last");
        assert_eq!(told(&all, 120), (113, 7));
        count(&other, 121, 1);
        assert_eq!(told(&all, 130), (114, 7));
        assert_eq!(told(&all, 180), (114, 1));
        assert_eq!(told(&all, 240), (114, 0));
        count(&one, 900, 2);
        assert_eq!(told(&all, 910), (116, 0), "a long silence lies before it");
        all.give_back(one);
        count(&all.take(), 965, 3);
        assert_eq!(told(&all, 970), (119, 2), "counts are kept for the next loop");
        assert_eq!(all.all.len(), 2);
    }
}
