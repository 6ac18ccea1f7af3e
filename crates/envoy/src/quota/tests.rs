//! The division against simulated Envoys, on a manual clock.

mod calls;
mod envoy;
mod leases;
mod simulation;
mod slices;
mod streams;
