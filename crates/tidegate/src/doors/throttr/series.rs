//! What Prometheus is shown of this door: the same figures that INFO tells, summed when asked.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tidegate_wire::throttr::RequestKind;

use super::counts::Figure;
use super::state::ThrottrState;
use crate::doors::io::limits::AllDoors;
use crate::metrics::Door;

/// The series of the door.
pub(super) struct Series(pub(super) Arc<ThrottrState>, pub(super) Arc<AllDoors>);

impl fmt::Debug for Series {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Series")
    }
}

impl Collector for Series {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Series(state, doors) = self;
        let sum = state.sum();
        let counter = ConstCounter::new(0u64).metric_type();
        let help = "Throttr requests by type";
        let mut requests = encoder.encode_descriptor("throttr_requests", help, None, counter)?;
        for (kind, rate) in RequestKind::ALL.iter().zip(sum.kinds()) {
            let labels = [("type", kind.name())];
            let family = requests.encode_family(&labels)?;
            ConstCounter::new(rate.total).encode(family)?;
        }
        let help = "Bytes of Throttr connections";
        let mut bytes = encoder.encode_descriptor("throttr_bytes", help, None, counter)?;
        for (direction, figure) in [("read", Figure::Read), ("written", Figure::Written)] {
            let labels = [("direction", direction)];
            let family = bytes.encode_family(&labels)?;
            ConstCounter::new(sum.figure(figure).total).encode(family)?;
        }
        for (name, help, figure) in [
            ("throttr_events_delivered", "Events handed to subscribers", Figure::Delivered),
            ("throttr_events_lost", "Events that a subscriber did not get", Figure::Lost),
        ] {
            let descriptor = encoder.encode_descriptor(name, help, None, counter)?;
            ConstCounter::new(sum.figure(figure).total).encode(descriptor)?;
        }
        let (subscriptions, channels) = state.channels.size();
        for (name, help, value) in [
            ("throttr_connections", "Connected Throttr clients", doors.connections(Door::Throttr)),
            ("throttr_subscriptions", "Subscriptions to channels", subscriptions),
            ("throttr_channels", "Channels with a subscriber", channels),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let descriptor = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(descriptor)?;
        }
        Ok(())
    }
}
