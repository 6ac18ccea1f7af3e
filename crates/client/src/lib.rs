//! Clients of Tidegate's doors, for applications to embed.
//!
//! A client knows sockets, timeouts and what to do without an answer. The bytes of a protocol are
//! the business of `tidegate-wire`; limits are the server's.
//!
//! - [`jarl`]: how long to wait before a call
//! - [`text`]: the UDP text protocol
//! - [`throttr`]: the binary record protocol, over TCP and Unix sockets
//! - `zmq`: ZeroMQ's sockets for Smockron, shared with the server; with the feature `gatekeeper`

pub mod jarl;
pub mod text;
pub mod throttr;
#[cfg(feature = "gatekeeper")]
#[doc(hidden)]
pub mod zmq;

pub use jarl::JarlClient;
pub use text::TextClient;
pub use throttr::ThrottrClient;
