//! What the doors have in common on the side of their sockets. It knows no protocol and no door.
//!
//! - [`tcp`]: listening sockets, options of connections, and how the other side is seen to leave

pub(crate) mod tcp;
