//! Drives the real program: every test spawns the binary on free ports and talks to it.

mod admin;
mod authorize;
mod balancer;
mod cli;
mod clients;
// Quotas of real Envoys are in real time.
#[path = "../adversary/clock.rs"]
mod clock;
mod config;
mod connections;
mod degraded;
mod deny;
mod documents;
#[path = "../engines/mod.rs"]
mod engines;
mod envoy;
mod golden;
mod grpc;
mod http;
mod http2;
mod jarl;
mod message;
mod notify;
mod packages;
mod papers;
mod peers;
mod program;
mod proxy;
mod rate;
mod reload;
mod remote;
mod replicas;
mod resp;
mod rules;
mod serve;
mod smockron;
mod snapshot;
mod start;
mod stores;
mod text;
mod throttr;
mod tls;
mod upstream;
