//! Which datagrams of a batch can leave in one send: those of one length to one receiver.
//!
//! Pure book-keeping over at most [`BATCH`] datagrams. They have no order, so those to one receiver
//! may be gathered from all over the batch.

use super::mmsg::{Address, BATCH, Local};

/// The most bytes that one send may carry; the kernel's own bound is 64 KiB with headers.
const SEND_MAX: usize = 60_000;

/// Datagrams longer than this leave alone: a segment must fit the path's packets, and longer ones
/// may have to be fragmented.
const SEGMENT_MAX: usize = 1200;

/// Slots of the little hash table; a power of two, well above [`BATCH`] so that probes are short.
const SLOTS: usize = 256;

const NONE: u8 = u8::MAX;

/// A datagram to send: where it goes, and where its bytes lie among those of its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parcel<'a> {
    /// The receiver.
    pub(crate) to: &'a Address,
    /// Our address to leave from: the one that the client asked.
    pub(crate) from: Local,
    /// Where its bytes begin.
    pub(crate) start: usize,
    /// Where its bytes end.
    pub(crate) end: usize,
}

impl Parcel<'_> {
    /// Bytes of the datagram.
    pub(crate) fn length(&self) -> usize {
        self.end - self.start
    }

    /// Whether both can leave in one send.
    fn suits(&self, other: &Self) -> bool {
        self.length() == other.length() && self.to == other.to && self.from == other.from
    }
}

#[derive(Clone, Copy, Default)]
struct Group {
    /// A member that stands for all.
    sample: u8,
    count: u8,
    start: u8,
}

/// The groups of one batch. Made once and used again.
pub(crate) struct Grouping {
    slots: [u8; SLOTS],
    groups: [Group; BATCH],
    count: usize,
    /// The group of each parcel.
    of: [u8; BATCH],
    /// Parcels, group by group.
    order: [u8; BATCH],
}

impl Grouping {
    /// Room for one batch.
    pub(crate) fn new() -> Self {
        Self {
            slots: [NONE; SLOTS],
            groups: [Group::default(); BATCH],
            count: 0,
            of: [0; BATCH],
            order: [0; BATCH],
        }
    }

    /// Groups `parcels`, [`BATCH`] at most. Without `join` every parcel is a group of its own.
    pub(crate) fn group(&mut self, parcels: &[Parcel<'_>], join: bool) {
        self.count = 0;
        self.slots.fill(NONE);
        for (at, parcel) in parcels.iter().enumerate() {
            let group = self.find(parcels, parcel, join).unwrap_or_else(|slot| {
                let group = self.count;
                self.groups[group] = Group { sample: at as u8, count: 0, start: 0 };
                self.count += 1;
                self.slots[slot] = group as u8;
                group
            });
            self.groups[group].count += 1;
            self.of[at] = group as u8;
        }
        let mut start = 0;
        for group in &mut self.groups[..self.count] {
            group.start = start;
            start += group.count;
        }
        let mut next = self.groups.map(|group| group.start);
        for at in 0..parcels.len() {
            let place = &mut next[usize::from(self.of[at])];
            self.order[usize::from(*place)] = at as u8;
            *place += 1;
        }
    }

    /// The group that `parcel` can join, or the free slot for one of its own.
    fn find(
        &self,
        parcels: &[Parcel<'_>],
        parcel: &Parcel<'_>,
        join: bool,
    ) -> Result<usize, usize> {
        let length = parcel.length();
        let bits = parcel.to.mix() ^ ((length as u64) << 48);
        let mut slot = (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % SLOTS;
        let join = join && length > 0 && length <= SEGMENT_MAX;
        loop {
            let group = usize::from(self.slots[slot]);
            if group == usize::from(NONE) {
                return Err(slot);
            }
            let Group { sample, count, .. } = self.groups[group];
            let room = (usize::from(count) + 1) * length <= SEND_MAX;
            if join && room && parcels[usize::from(sample)].suits(parcel) {
                return Ok(group);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// The groups: positions of parcels that can leave together.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[u8]> {
        self.groups[..self.count].iter().map(|group| {
            let start = usize::from(group.start);
            &self.order[start..start + usize::from(group.count)]
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;

    fn address(client: u16) -> Address {
        SocketAddr::from(([10, 0, 0, 1], 1000 + client)).into()
    }

    proptest! {
        #[test]
        fn groups_are_a_partition_by_client_and_length(
            kinds in prop::collection::vec((0_u16..4, 0_usize..4, any::<bool>()), 0..=BATCH),
            join: bool,
        ) {
            let addresses: Vec<_> = (0..4).map(address).collect();
            let lengths = [0, 30, 31, SEGMENT_MAX + 1];
            let parcels: Vec<_> = kinds
                .iter()
                .map(|&(client, length, other)| Parcel {
                    to: &addresses[usize::from(client)],
                    from: if other { Local::V4([10, 0, 0, 2]) } else { Local::Bound },
                    start: 0,
                    end: lengths[length],
                })
                .collect();
            let mut grouping = Grouping::new();
            grouping.group(&parcels, join);
            let mut seen = Vec::new();
            for group in grouping.groups() {
                let first = parcels[usize::from(group[0])];
                prop_assert!(group.iter().all(|&at| parcels[usize::from(at)].suits(&first)));
                let alone = !join || first.length() == 0 || first.length() > SEGMENT_MAX;
                let like = parcels.iter().filter(|parcel| parcel.suits(&first)).count();
                prop_assert_eq!(group.len(), if alone { 1 } else { like });
                seen.extend(group.iter().map(|&at| usize::from(at)));
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..parcels.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_send_never_exceeds_what_the_kernel_takes() {
        let to = address(0);
        let parcel = Parcel { to: &to, from: Local::Bound, start: 0, end: SEGMENT_MAX };
        let mut grouping = Grouping::new();
        grouping.group(&[parcel; BATCH], true);
        let sizes: Vec<_> = grouping.groups().map(<[u8]>::len).collect();
        assert_eq!(sizes.iter().sum::<usize>(), BATCH);
        assert!(sizes.iter().all(|size| size * SEGMENT_MAX <= SEND_MAX), "{sizes:?}");
        assert_eq!(sizes.len(), 2, "as few sends as fit");
    }
}
