//! Clients of Tidegate's doors, for applications to embed.
//!
//! A client knows sockets, timeouts and what to do without an answer. The bytes of a protocol are
//! the business of `tidegate-wire`; limits are the server's.
//!
//! - [`jarl`]: how long to wait before a call
//! - [`text`]: the UDP text protocol
//! - [`throttr`]: the binary record protocol, over TCP and Unix sockets

pub mod jarl;
pub mod text;
pub mod throttr;

pub use jarl::JarlClient;
pub use text::TextClient;
pub use throttr::ThrottrClient;
