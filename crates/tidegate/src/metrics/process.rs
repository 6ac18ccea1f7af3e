//! What any process shows of itself, under the names that Prometheus' own clients give it.
//!
//! It is read when a page is asked for. What the system does not tell is left out.

use std::fmt::{self, Write as _};
use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

/// The series `process_*`.
pub(super) struct ProcessSeries {
    /// In Unix time.
    pub(super) began_at: Nanos,
}

impl ProcessSeries {
    /// Writes them behind the other series of a page.
    pub(super) fn write(&self, page: &mut String) -> fmt::Result {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / SECOND as f64;
        writeln!(page, "# HELP process_cpu_seconds Time on processors, in user and system mode.")?;
        writeln!(page, "# TYPE process_cpu_seconds counter")?;
        writeln!(page, "# UNIT process_cpu_seconds seconds")?;
        writeln!(page, "process_cpu_seconds_total {cpu_seconds}")?;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let began_at = self.began_at as f64 / SECOND as f64;
        let gauges = [
            ("resident_memory_bytes", "Memory in use.", memory(&status, "VmRSS")),
            ("virtual_memory_bytes", "Memory reserved.", memory(&status, "VmSize")),
            ("open_fds", "Open file descriptors.", open_files()),
            ("max_fds", "The most open file descriptors.", files_max()),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                gauge(page, name, help, value)?;
            }
        }
        gauge(page, "start_time_seconds", "When the process started, in Unix time.", began_at)
    }
}

fn gauge(page: &mut String, name: &str, help: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(page, "# HELP process_{name} {help}")?;
    writeln!(page, "# TYPE process_{name} gauge")?;
    writeln!(page, "process_{name} {value}")
}

/// Bytes of memory under this name in the kernel's page about the process.
fn memory(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn open_files() -> Option<u64> {
    // The listing is an open file itself.
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u64::try_from(count).ok()
}

fn files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shows_what_it_uses() {
        let mut page = String::new();
        ProcessSeries { began_at: 3 * SECOND / 2 }.write(&mut page).expect("a string");
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name}: {page}")).parse::<f64>().expect("a number")
        };
        assert!(value("process_cpu_seconds_total") > 0.0);
        assert!(value("process_resident_memory_bytes") >= 1e5);
        let resident = value("process_resident_memory_bytes");
        assert!(value("process_virtual_memory_bytes") >= resident);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!((value("process_start_time_seconds") - 1.5).abs() < 1e-9);
    }
}
