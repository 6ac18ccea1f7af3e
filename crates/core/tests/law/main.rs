//! The law against its seeds' own figures and against slow, obvious models.

mod buckets;
mod common;
mod encoding;
mod extremes;
mod grammar;
mod held;
mod joins;
mod late;
mod logs;
mod promises;
mod rules;
mod seeds;
mod windows;
