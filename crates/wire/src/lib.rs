//! The codecs of the protocols that Tidegate speaks, without sockets.
//!
//! A codec turns bytes into requests and answers into bytes, and nothing else: no I/O, no clock,
//! no knowledge of rules or limits. Of the law it knows the form of keys alone. Doors, clients, the
//! load generator and the fuzz targets share them. A protocol's words and its polarity (a text
//! door's `Y` means *over*) stop here.
//!
//! - [`http1`]: answers of an upstream, as a proxy reads them
//! - [`jarl`]: a delay in seconds for each client that connects
//! - [`path`]: paths of URLs, as they are counted
//! - [`percent`]: percent-encoding, decoded
//! - [`resp`]: the Redis protocol: arrays of bulk strings over byte streams
//! - [`smockron`]: accounting and delays between gatekeepers and a master, in ZeroMQ's frames
//! - [`text`]: the UDP text protocol: `over_limit ws ip=1.2.3.4`
//! - [`throttr`]: the binary record protocol over byte streams, with pub/sub and introspection
//! - [`zmtp`]: as much of ZeroMQ's own protocol as a publisher needs

pub mod http1;
pub mod jarl;
pub mod path;
pub mod percent;
pub mod resp;
pub mod smockron;
pub mod text;
pub mod throttr;
pub mod zmtp;
