//! What hostile clients say at the JARL door, where nothing needs to be said.

use super::Target;
use crate::server::Doors;

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    for address in [doors.counted, doors.booked] {
        let scripts = vec![Vec::new(), b"x".to_vec(), vec![b'x'; 5_000]];
        let burdens = vec![vec![b'x'; 100_000]];
        targets.push(Target { address: address.into(), scripts, burdens });
    }
}
