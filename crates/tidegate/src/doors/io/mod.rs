//! What the doors have in common on the side of their sockets. It knows no protocol and no door.
//!
//! - [`handler`]: what a protocol is to an event loop; [`event_loop`]: one loop
//! - [`connection`], `stream`, `byte_queue`, `connection_places`, `shared`, `output`, [`pushes`],
//!   `linger`: the loop's connections
//! - [`inbox`]: what other threads leave for a loop; `epoll`: waiting for sockets
//! - [`listeners`], [`listener`]: the sockets of a door of loops, and how its loops are started
//! - [`accept`]: the accept loop of doors on tokio
//! - [`certificates`]: what clients are shown
//! - [`client_socket`]: a client of a door on tokio, and when it closes the connection;
//!   [`client_tls`]: the same over TLS
//! - [`tcp`]: listening sockets, and options of connections
//! - [`limits`]: how many connections a door has, and which one gives way to a new one
//! - [`sources`]: how many of them come from one source
//! - [`descriptors`]: which file descriptors are kept back
//! - [`held_bytes`]: how much of what clients send is kept at once
//! - [`activity`]: what an HTTP/1 client is doing, and how long it may
//! - [`settings`]: what tables say about connections

pub(crate) mod accept;
pub(crate) mod activity;
mod byte_queue;
pub(crate) mod certificates;
pub(crate) mod client_socket;
pub(crate) mod client_tls;
pub(crate) mod connection;
mod connection_places;
pub(crate) mod descriptors;
mod epoll;
pub(crate) mod event_loop;
pub(crate) mod handler;
pub(crate) mod held_bytes;
pub(crate) mod inbox;
pub(crate) mod limits;
mod linger;
pub(crate) mod listener;
pub(crate) mod listeners;
mod output;
pub(crate) mod pushes;
pub(crate) mod settings;
mod shared;
pub(crate) mod sources;
mod stream;
pub(crate) mod tcp;
#[cfg(test)]
pub(crate) mod test_loop;
