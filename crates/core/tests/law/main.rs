//! Every algorithm against its seed's own figures and against a slow, obvious model.

mod common;
mod seeds;
