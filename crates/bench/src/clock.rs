//! The only file of this program that reads a clock.

use rustix::time::{ClockId, clock_gettime};
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

/// Nanoseconds since the machine was started.
pub(crate) fn now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}
