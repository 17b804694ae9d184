//! Metrics of this process under their customary names, read from `/proc/self` when gathered. Where that cannot be
//! read they are absent.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

/// Ticks per second of the times in `/proc`, the same on every architecture Rust supports Linux on.
const TICKS: f64 = 100.0;

/// Reads `/proc/self` at each scrape.
#[derive(Clone, Debug)]
pub(super) struct Process {
    cpu: Counter,
    resident: Gauge,
    virtual_memory: Gauge,
    start: Gauge,
    open_fds: Gauge,
}

/// What `/proc/self` says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    start_seconds: f64,
    open_fds: f64,
}

// === impl Process ===

impl Process {
    pub(super) fn new() -> prometheus::Result<Self> {
        Ok(Self {
            cpu: Counter::new("process_cpu_seconds_total", "User and system CPU time spent in seconds.")?,
            resident: Gauge::new("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            virtual_memory: Gauge::new("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            start: Gauge::new("process_start_time_seconds", "Unix time at which the process began.")?,
            open_fds: Gauge::new("process_open_fds", "File descriptors that are open.")?,
        })
    }

    fn parts(&self) -> [&dyn Collector; 5] {
        [&self.cpu, &self.resident, &self.virtual_memory, &self.start, &self.open_fds]
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(reading) = read() else { return Vec::new() };
        // Two scrapes at once may both add; the counter is then ahead by less than a tick and waits.
        self.cpu.inc_by((reading.cpu_seconds - self.cpu.get()).max(0.0));
        self.resident.set(reading.resident_bytes);
        self.virtual_memory.set(reading.virtual_bytes);
        self.start.set(reading.start_seconds);
        self.open_fds.set(reading.open_fds);
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}

fn read() -> Option<Reading> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let machine = fs::read_to_string("/proc/stat").ok()?;
    // The folder that is being listed is one of them.
    let open = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    parse(&stat, &status, &machine, open)
}

/// Fields are numbered in proc(5); the second may contain anything, so counting begins behind its parenthesis.
fn parse(stat: &str, status: &str, machine: &str, open: usize) -> Option<Reading> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let line = |text: &str, name: &str| {
        let value = text.lines().find_map(|l| l.strip_prefix(name))?;
        value.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(Reading {
        cpu_seconds: (field(14)? + field(15)?) / TICKS,
        resident_bytes: line(status, "VmRSS:")? * 1024.0,
        virtual_bytes: field(23)?,
        start_seconds: line(machine, "btime ")? + field(22)? / TICKS,
        open_fds: open as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_a_hostile_name() {
        let stat = "42 (a) S 9 9) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 3 0 1000 8192000 300 0";
        let reading = parse(stat, "Name:\tx\nVmRSS:\t   1200 kB\n", "cpu 1 2\nbtime 1795960000\n", 7);
        let expected = Reading {
            cpu_seconds: 2.0,
            resident_bytes: 1_228_800.0,
            virtual_bytes: 8_192_000.0,
            start_seconds: 1_795_960_010.0,
            open_fds: 7.0,
        };
        assert_eq!(reading, Some(expected));
        assert_eq!(parse("", "", "", 0), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let reading = read().unwrap();
        assert!(reading.resident_bytes > 100_000.0 && reading.virtual_bytes >= reading.resident_bytes);
        assert!(reading.open_fds >= 3.0 && reading.start_seconds > 1.5e9);
    }
}
