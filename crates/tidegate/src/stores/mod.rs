//! What is remembered, and where.
//!
//! A store keeps one slot for each (rule, key) with one state for each limit of the rule, and
//! changes all slots of one request in one atomic step. It decides nothing: the limiter hands it
//! the step. To add one: a file here, a variant in [`Store`], and its arms.

pub mod memory;

/// The configured store. An enum, so that a decision in memory is a direct call.
pub(crate) enum Store {
    /// In this process, bounded.
    Memory(memory::Memory),
}
