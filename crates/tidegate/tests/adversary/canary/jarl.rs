//! Canaries of the JARL door. Hostile clients book at the same services, so the counts are shared;
//! but `Counted` never delays, and `Booked` gives every caller a start of its own.

use std::io::Read as _;
use std::net::SocketAddr;

use super::{Canary, Named, PER_LISTENER, Wrong, failed, same};
use crate::clock::Moment;
use crate::net::Stream;
use crate::seed::Random;
use crate::server::Doors;

/// The least time between two starts at `Booked`, as a caller sees it. They are a second apart, but
/// the server reads its clock once for a batch of callers, before it accepts them, so a start can
/// be earlier than the caller believes.
const APART_S: f64 = 0.2;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    let born = Moment::now();
    for number in 0..PER_LISTENER {
        let counted = Caller { door: doors.counted, booked: None, born };
        canaries.push((format!("jarl-counted-{number}"), Box::new(counted)));
        let booked = Caller { door: doors.booked, booked: Some(f64::MIN), born };
        canaries.push((format!("jarl-booked-{number}"), Box::new(booked)));
    }
}

struct Caller {
    door: SocketAddr,
    /// The earliest start that its last answer can have meant.
    booked: Option<f64>,
    born: Moment,
}

impl Caller {
    fn now(&self) -> f64 {
        self.born.elapsed().as_secs_f64()
    }
}

impl Canary for Caller {
    fn ask(&mut self, _: &mut Random) -> Result<(), Wrong> {
        let before = self.now();
        let mut stream = Stream::connect(&self.door.into()).map_err(failed("connect"))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed("read to the end"))?;
        let Some(last) = self.booked else { return same("delay", answer.as_str(), "0.000") };
        let decimals = answer.split_once('.').map(|(_, decimals)| decimals.len());
        let (Ok(delay), Some(3)) = (answer.parse::<f64>(), decimals) else {
            return Err(format!("{answer:?} is no delay"));
        };
        let latest = self.now() + delay;
        if latest < last + APART_S {
            return Err(format!("start {latest} after a start at {last}"));
        }
        self.booked = Some(before + delay);
        Ok(())
    }
}
