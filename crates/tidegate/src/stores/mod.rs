//! What is remembered, and where.
//!
//! A store keeps one slot for each (rule, key) with one state for each limit of the rule, and
//! changes all slots of one request in one atomic step. It decides nothing: the limiter hands it
//! the step. Memory is always there: it
//! keeps the statistics, and decides where a remote store cannot. To add a remote store: a folder
//! in [`remote`], a variant of its `Engine`, and the arms.

pub mod memory;
pub mod remote;
