//! What the doors have in common on the side of their sockets. It knows no protocol and no door.
//!
//! - [`tcp`]: listening sockets, options of connections, and how the other side is seen to leave
//! - [`limits`]: how many connections a door has, and which one gives way to a newcomer
//! - [`sources`]: how many of them come from one source
//! - [`descriptors`]: which file descriptors are kept back
//! - [`activity`]: what an HTTP/1 client is doing, and how long it may
//! - [`settings`]: what tables say about connections

pub(crate) mod activity;
pub(crate) mod descriptors;
pub(crate) mod limits;
pub(crate) mod settings;
pub(crate) mod sources;
pub(crate) mod tcp;
