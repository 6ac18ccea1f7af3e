//! What Prometheus is shown of this door, summed when asked.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::commands::COMMANDS;
use super::state::RespState;
use crate::doors::io::limits::AllDoors;
use crate::metrics::Door;

/// What requests are counted under that are no command of the door.
const OTHER: &str = "other";

/// The series of the door.
pub(super) struct RespSeries(pub(super) Arc<RespState>, pub(super) Arc<AllDoors>);

impl fmt::Debug for RespSeries {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RespSeries")
    }
}

impl Collector for RespSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let RespSeries(state, doors) = self;
        let sum = state.sum();
        let counter = ConstCounter::new(0u64).metric_type();
        let help = "RESP requests by command";
        let mut commands = encoder.encode_descriptor("resp_commands", help, None, counter)?;
        let names = COMMANDS.iter().map(|command| command.name).chain([OTHER]);
        for (name, count) in names.zip(&sum.commands) {
            if *count > 0 {
                let labels = [("command", name)];
                ConstCounter::new(*count).encode(commands.encode_family(&labels)?)?;
            }
        }
        let help = "Bytes of RESP connections";
        let mut bytes = encoder.encode_descriptor("resp_bytes", help, None, counter)?;
        for (direction, count) in [("read", sum.read_bytes), ("written", sum.written_bytes)] {
            let labels = [("direction", direction)];
            ConstCounter::new(count).encode(bytes.encode_family(&labels)?)?;
        }
        let connections = doors.connections(Door::Resp);
        let gauge = ConstGauge::new(i64::try_from(connections).unwrap_or(i64::MAX));
        let help = "Connected RESP clients";
        let descriptor =
            encoder.encode_descriptor("resp_connections", help, None, gauge.metric_type())?;
        gauge.encode(descriptor)
    }
}
