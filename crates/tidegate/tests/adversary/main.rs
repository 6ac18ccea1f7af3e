//! The adversary: hostile clients at every door of the real program, around honest ones.
//!
//! Each honest client, a *canary*, has keys and answers that nobody else can have, and must get
//! exactly its own, in order, whatever the others do. After each round of attacks the server must
//! be quiet, and hold no more than before. Nothing here knows the code under test: it talks through
//! sockets and looks through `/proc` and `/metrics`.
//!
//! Every choice follows from one seed, which is printed when a test fails; `TIDEGATE_SEED` repeats
//! it. A short share runs always, the whole where `TIDEGATE_SOAK` is set. A new door adds a file
//! under `canary` and one under `hostile`, and its table in `server.rs`.

mod ask;
mod canary;
mod clock;
#[path = "../engines/mod.rs"]
mod engines;
mod grpc;
mod hostile;
mod lifecycle;
#[path = "../it/message.rs"]
mod message;
mod net;
#[path = "../it/program.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest of it")]
mod program;
mod quiet;
mod rounds;
mod seed;
mod server;
mod stores;
mod upstream;
