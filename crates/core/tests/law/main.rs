//! The law against the figures of the protocols' documents, and against slow, obvious models.

mod buckets;
mod common;
mod documents;
mod encoding;
mod extremes;
mod grammar;
mod held;
mod joins;
mod late;
mod logs;
mod promises;
mod rules;
mod windows;
