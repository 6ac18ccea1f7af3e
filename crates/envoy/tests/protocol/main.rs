//! Our trimmed protocol beside `envoy-types`, which is generated from all of Envoy's files. No test
//! here opens a socket.

mod bytes;
mod calls;
mod twins;
