//! What our server counts, read from `/metrics` of its HTTP door.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

/// The sum of all series of this counter at this door.
pub(crate) fn sum(http: SocketAddr, counter: &str, door: &str) -> io::Result<u64> {
    let mut stream = TcpStream::connect(http)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(sum_of(&text, counter, door))
}

fn sum_of(metrics: &str, counter: &str, door: &str) -> u64 {
    let (name, label) = (format!("{counter}{{"), format!("door=\"{door}\""));
    let wanted = |line: &&str| line.starts_with(&name) && line.contains(&label);
    let value = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse::<u64>().ok());
    metrics.lines().filter(wanted).filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::sum_of;

    #[test]
    fn one_counter_of_one_door_is_summed() {
        let metrics = "# TYPE tidegate_decisions_total counter\n\
                       tidegate_decisions_total{door=\"smockron\",rule=\"a\",verdict=\"allow\"} 7\n\
                       tidegate_decisions_total{door=\"smockron\",rule=\"a\",verdict=\"delay\"} 5\n\
                       tidegate_decisions_total{door=\"http\",rule=\"a\",verdict=\"allow\"} 100\n\
                       tidegate_degraded_total{door=\"smockron\",rule=\"a\",policy=\"allow\"} 3\n\
                       tidegate_keys 1000\n";
        assert_eq!(sum_of(metrics, "tidegate_decisions_total", "smockron"), 12);
        assert_eq!(sum_of(metrics, "tidegate_degraded_total", "smockron"), 3);
        assert_eq!(sum_of(metrics, "tidegate_decisions_total", "text"), 0);
    }
}
