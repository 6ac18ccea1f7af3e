//! Waiting on a clock that is moved by hand: order, bounds, leaving, and who wakes whom.
