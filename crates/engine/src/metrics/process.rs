//! The standard `process_*` metrics, read from `/proc` at each scrape. A value that cannot be read is left out
//! of the exposition.

use std::fs;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let stat = Stat::read();
        let resident = stat.as_ref().map(|s| s.resident_bytes);
        let cpu = stat.as_ref().map(|s| s.cpu_seconds);
        let started = stat.as_ref().and_then(Stat::started_at);
        let mut put = |name, help, unit: Option<Unit>, metric: &dyn EncodeMetric| {
            let encoder = encoder.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?;
            metric.encode(encoder)
        };
        if let Some(bytes) = resident {
            put("process_resident_memory", "Resident memory.", Some(Unit::Bytes), &ConstGauge::new(bytes))?;
        }
        if let Some(seconds) = cpu {
            put(
                "process_cpu",
                "User and system time spent.",
                Some(Unit::Seconds),
                &ConstCounter::new(seconds),
            )?;
        }
        if let Some(count) = open_files() {
            put("process_open_fds", "Open file descriptors.", None, &ConstGauge::new(count))?;
        }
        if let Some(seconds) = started {
            let help = "When the process started, since the epoch.";
            put("process_start_time", help, Some(Unit::Seconds), &ConstGauge::new(seconds))?;
        }
        Ok(())
    }
}

struct Stat {
    cpu_seconds: f64,
    resident_bytes: i64,
    started_after_boot: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).map(f64::from).ok()?;
        let page = i64::try_from(rustix::param::page_size()).ok()?;
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?, ticks, page)
    }

    /// Fields are numbered as in `proc_pid_stat(5)`. The second is the command in parentheses and may contain
    /// anything, so counting starts after the last closing parenthesis.
    fn parse(stat: &str, ticks: f64, page: i64) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let time = |number| field(number)?.parse::<f64>().ok().map(|t| t / ticks);
        Some(Self {
            cpu_seconds: time(14)? + time(15)?,
            resident_bytes: field(24)?.parse::<i64>().ok()?.saturating_mul(page),
            started_after_boot: time(22)?,
        })
    }

    fn started_at(&self) -> Option<f64> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let boot: f64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(boot + self.started_after_boot)
    }
}

fn open_files() -> Option<i64> {
    i64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 250 150 13 14 15 16 17 18 500 20 7 22 23";
        for command in ["(coder)", "(a b)", "(a) (b)"] {
            let stat = Stat::parse(&format!("42 {command} {tail}"), 100.0, 4096).unwrap();
            assert!((stat.cpu_seconds - 4.0).abs() < 1e-9);
            assert_eq!(stat.resident_bytes, 7 * 4096);
            assert!((stat.started_after_boot - 5.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_truncated_stat_line_gives_no_value() {
        assert!(Stat::parse("", 100.0, 4096).is_none());
        assert!(Stat::parse("42 (x) S 1 2", 100.0, 4096).is_none());
    }
}
