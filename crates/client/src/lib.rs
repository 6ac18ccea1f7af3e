//! Clients of Tidegate's doors, for applications to embed.
//!
//! A client knows sockets, timeouts and what to do without an answer. The bytes of a protocol are
//! the business of `tidegate-wire`; limits are the server's.
//!
//! - [`gatekeeper`]: Smockron's gatekeeper, which decides in memory by what a master says; with the
//!   feature `gatekeeper`, and [`clock`], its time
//! - [`jarl`]: how long to wait before a call
//! - [`layer`]: the gatekeeper as a `tower` layer; with the feature `tower`
//! - [`text`]: the UDP text protocol
//! - [`throttr`]: the binary record protocol, over TCP and Unix sockets
//! - `zmq`: ZeroMQ's sockets for Smockron, shared with the server; with the feature `gatekeeper`

#[cfg(feature = "gatekeeper")]
pub mod clock;
#[cfg(feature = "gatekeeper")]
pub mod gatekeeper;
pub mod jarl;
#[cfg(feature = "tower")]
pub mod layer;
pub mod text;
pub mod throttr;
#[cfg(feature = "gatekeeper")]
#[doc(hidden)]
pub mod zmq;

#[cfg(feature = "gatekeeper")]
pub use gatekeeper::Gatekeeper;
pub use jarl::JarlClient;
#[cfg(feature = "tower")]
pub use layer::GatekeeperLayer;
pub use text::TextClient;
pub use throttr::ThrottrClient;
