//! Our trimmed protocol beside `envoy-types`, which is generated from all of Envoy's files, and its
//! JSON. No test here opens a socket.

mod bytes;
mod calls;
mod json;
mod twins;
