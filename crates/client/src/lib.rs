//! Clients of Tidegate's doors, for applications to embed.
//!
//! A client knows sockets, timeouts and what to do without an answer. The bytes of a protocol are
//! the business of `tidegate-wire`; limits are the server's.
//!
//! - [`text`]: the UDP text protocol

pub mod text;

pub use text::TextClient;
