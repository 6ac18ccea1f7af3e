//! Which connections have the quota streams that there may be.
//!
//! A connection has a bounded number of streams. When all places are taken, a connection that has
//! fewer streams than another takes one of that other's places: so a few connections with many
//! streams do not shut out the Envoys that come later.

use std::collections::HashMap;

use tidegate_envoy::quota::{STREAMS_MAX, StreamId};

use crate::doors::io::held_bytes::ConnectionId;

/// The most streams of one connection. An Envoy has one for each domain.
pub(super) const STREAMS_PER_CONNECTION_MAX: usize = 32;

/// Why there is no place for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPlace {
    #[error("more than {STREAMS_PER_CONNECTION_MAX} quota streams of one connection")]
    OfConnection,
    #[error("more than {STREAMS_MAX} quota streams")]
    AtAll,
}

/// The places of all streams.
#[derive(Debug, Default)]
pub(super) struct StreamPlaces {
    /// The streams of each connection, the oldest first.
    connections: HashMap<ConnectionId, Vec<StreamId>>,
    streams: HashMap<StreamId, ConnectionId>,
}

impl StreamPlaces {
    /// Whether a connection may have another stream. If all places are taken: the stream of another
    /// connection that must end for it.
    pub(super) fn room_for(&self, connection: ConnectionId) -> Result<Option<StreamId>, NoPlace> {
        let has = self.connections.get(&connection).map_or(0, Vec::len);
        if has >= STREAMS_PER_CONNECTION_MAX {
            return Err(NoPlace::OfConnection);
        }
        if self.streams.len() < STREAMS_MAX {
            return Ok(None);
        }
        let largest = self.connections.values().max_by_key(|streams| streams.len());
        // Where both would only change places, streams would end for nothing.
        let largest = largest.filter(|streams| streams.len() > has + 1);
        largest.and_then(|streams| streams.last().copied()).map(Some).ok_or(NoPlace::AtAll)
    }

    pub(super) fn open(&mut self, connection: ConnectionId, stream: StreamId) {
        self.connections.entry(connection).or_default().push(stream);
        self.streams.insert(stream, connection);
    }

    pub(super) fn close(&mut self, stream: StreamId) {
        let Some(connection) = self.streams.remove(&stream) else { return };
        if let Some(streams) = self.connections.get_mut(&connection) {
            streams.retain(|other| *other != stream);
            if streams.is_empty() {
                self.connections.remove(&connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens streams of a connection until one is refused; returns why.
    fn fill(places: &mut StreamPlaces, connection: usize, number: &mut u64) -> NoPlace {
        loop {
            match places.room_for(ConnectionId(connection)) {
                Ok(ended) => ended.into_iter().for_each(|stream| places.close(stream)),
                Err(why) => return why,
            }
            *number += 1;
            places.open(ConnectionId(connection), StreamId(*number));
        }
    }

    fn count(places: &StreamPlaces, connection: usize) -> usize {
        places.connections.get(&ConnectionId(connection)).map_or(0, Vec::len)
    }

    #[test]
    fn greedy_connections_leave_others_an_even_share() {
        let (mut places, mut number) = (StreamPlaces::default(), 0);
        assert_eq!(fill(&mut places, 0, &mut number), NoPlace::OfConnection);
        assert_eq!(count(&places, 0), STREAMS_PER_CONNECTION_MAX);
        for greedy in 1..40 {
            fill(&mut places, greedy, &mut number);
        }
        assert_eq!(places.streams.len(), STREAMS_MAX);
        let even = STREAMS_MAX / 40;
        assert!((0..40).all(|greedy| count(&places, greedy).abs_diff(even) <= 1));
        // The one that comes last has as many as the others, which can take nothing back.
        assert_eq!(fill(&mut places, 40, &mut number), NoPlace::AtAll);
        let honest = count(&places, 40);
        assert!(honest.abs_diff(STREAMS_MAX / 41) <= 1, "{honest}");
        for greedy in 0..40 {
            fill(&mut places, greedy, &mut number);
        }
        assert_eq!(count(&places, 40), honest);
        // A connection keeps its only stream.
        for single in 41..2_000 {
            if let Ok(ended) = places.room_for(ConnectionId(single)) {
                ended.into_iter().for_each(|stream| places.close(stream));
                number += 1;
                places.open(ConnectionId(single), StreamId(number));
            }
        }
        assert!((0..STREAMS_MAX).all(|connection| count(&places, connection) == 1));
        assert_eq!(places.room_for(ConnectionId(9_999)), Err(NoPlace::AtAll));
    }

    #[test]
    fn nothing_is_remembered_of_what_is_closed() {
        let (mut places, mut number) = (StreamPlaces::default(), 0);
        fill(&mut places, 1, &mut number);
        (0..=number).for_each(|stream| places.close(StreamId(stream)));
        assert!(places.connections.is_empty() && places.streams.is_empty());
    }
}
