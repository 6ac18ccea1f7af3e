//! The addresses of the upstream's name, kept for a short while.
//!
//! To resolve the name for every connection costs a round trip, and a thread for as long as it
//! takes. The caller brings the function that resolves it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::sync::Mutex;

use super::super::ticks::Tick;

/// How long addresses are used before the name is resolved again, in ticks: ten seconds.
const FRESH_FOR: Tick = 100;
/// The most addresses that are kept, and tried.
const ADDRESSES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Names {
    known: RefCell<Rc<[SocketAddr]>>,
    fresh_until: Cell<Tick>,
    /// Held while the name is resolved, so that only one task does it.
    asking: Mutex<()>,
}

impl Names {
    /// The addresses, the one that was last connected to first. Calls `find` if they are too old;
    /// if that fails, the old ones are used.
    pub(super) async fn addresses(
        &self,
        now: Tick,
        find: impl AsyncFnOnce() -> io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Rc<[SocketAddr]>> {
        if now < self.fresh_until.get() {
            return Ok(self.known.borrow().clone());
        }
        let _asking = self.asking.lock().await;
        if now < self.fresh_until.get() {
            return Ok(self.known.borrow().clone());
        }
        let before = self.known.borrow().clone();
        match find().await {
            Ok(mut found) if !found.is_empty() => {
                // The address that was last reached stays first.
                if let Some(at) = before
                    .first()
                    .and_then(|reached| found.iter().position(|address| address == reached))
                {
                    found[..=at].rotate_right(1);
                }
                found.truncate(ADDRESSES_MAX);
                *self.known.borrow_mut() = found.into();
            }
            Ok(_) if before.is_empty() => {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
            }
            Err(error) if before.is_empty() => return Err(error),
            _ => {}
        }
        self.fresh_until.set(now + FRESH_FOR);
        Ok(self.known.borrow().clone())
    }

    /// A connection was made to `address`: it comes first from now on.
    pub(super) fn reached(&self, address: SocketAddr) {
        let mut known = self.known.borrow_mut();
        if known.first() == Some(&address) {
            return;
        }
        let mut moved = known.to_vec();
        if let Some(at) = moved.iter().position(|other| *other == address) {
            moved[..=at].rotate_right(1);
            *known = moved.into();
        }
    }

    /// No address could be connected to: the name is resolved again next time.
    pub(super) fn unreachable(&self) {
        self.fresh_until.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> SocketAddr {
        ([127, 0, 0, number], 80).into()
    }

    /// Asks at `now`, where a search would find `found`; what came of it, and whether there was
    /// one.
    async fn ask(names: &Names, now: Tick, found: &[u8]) -> (Vec<SocketAddr>, bool) {
        let asked = Cell::new(false);
        let find = async || {
            asked.set(true);
            match found {
                [] => Err(io::ErrorKind::TimedOut.into()),
                found => Ok(found.iter().copied().map(address).collect()),
            }
        };
        let known = names.addresses(now, find).await.map_or(Vec::new(), |known| known.to_vec());
        (known, asked.get())
    }

    fn addresses(numbers: &[u8]) -> Vec<SocketAddr> {
        numbers.iter().copied().map(address).collect()
    }

    #[tokio::test]
    async fn addresses_are_kept_for_a_while_and_longer_if_the_name_cannot_be_resolved() {
        let names = Names::default();
        assert_eq!(ask(&names, 1000, &[]).await, (Vec::new(), true));
        assert_eq!(ask(&names, 1000, &[1, 2]).await, (addresses(&[1, 2]), true));
        assert_eq!(ask(&names, 999 + FRESH_FOR, &[3]).await, (addresses(&[1, 2]), false));
        assert_eq!(ask(&names, 1000 + FRESH_FOR, &[]).await, (addresses(&[1, 2]), true));
        assert_eq!(ask(&names, 1001 + FRESH_FOR, &[3]).await, (addresses(&[1, 2]), false));
        names.unreachable();
        assert_eq!(ask(&names, 1001 + FRESH_FOR, &[3]).await, (addresses(&[3]), true));
        let many: Vec<u8> = (1..=40).collect();
        assert_eq!(ask(&names, 5000, &many).await.0.len(), ADDRESSES_MAX);
    }

    #[tokio::test]
    async fn the_address_that_was_reached_is_tried_first() {
        let names = Names::default();
        ask(&names, 1000, &[1, 2, 3]).await;
        names.reached(address(3));
        assert_eq!(ask(&names, 1000, &[]).await.0, addresses(&[3, 1, 2]));
        assert_eq!(ask(&names, 5000, &[1, 2, 3, 4]).await.0, addresses(&[3, 1, 2, 4]));
        names.reached(address(9));
        assert_eq!(ask(&names, 9000, &[1, 2]).await.0, addresses(&[1, 2]));
        names.reached(address(2));
        let many: Vec<u8> = (10..30).chain([2]).collect();
        let kept = ask(&names, 13_000, &many).await.0;
        assert_eq!((kept[0], kept.len()), (address(2), ADDRESSES_MAX), "however late it is named");
    }

    #[tokio::test]
    async fn while_one_asks_the_others_wait_for_what_it_finds() {
        let (names, searches) = (Names::default(), Cell::new(0));
        let find = || async {
            searches.set(searches.get() + 1);
            tokio::task::yield_now().await;
            Ok(addresses(&[1]))
        };
        let both = tokio::join!(names.addresses(1000, find), names.addresses(1000, find));
        let known = |found: io::Result<Rc<[SocketAddr]>>| found.expect("an address").to_vec();
        assert_eq!([known(both.0), known(both.1)], [addresses(&[1]), addresses(&[1])]);
        assert_eq!(searches.get(), 1);
    }

    #[tokio::test]
    async fn a_name_without_addresses_is_an_error_until_some_were_known() {
        let names = Names::default();
        let nothing = async || Ok(Vec::new());
        for _ in 0..2 {
            let error = names.addresses(1000, nothing).await.expect_err("nowhere to go");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
        ask(&names, 1000, &[1]).await;
        let kept = names.addresses(5000, nothing).await.expect("those of before");
        assert_eq!(kept.to_vec(), addresses(&[1]));
        assert_eq!(ask(&names, 4999 + FRESH_FOR, &[2]).await, (addresses(&[1]), false));
    }
}
