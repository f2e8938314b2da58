//! The table of a simulation.

use std::{fmt, time::Duration};

use crate::{
    Millis, fixed,
    setting::Setting,
    trace::{HOUR, SECOND, Trace, TraceJob},
    world::{Outcome, World},
};

/// One trace with one setting, and the fleets that it is compared with.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the trace.
    pub trace: String,
    /// How the pools are scaled.
    pub setting: Setting,
    /// What came of it.
    pub outcome: Outcome,
    /// Daemons of the smallest fixed fleet with the same p95 in each pool.
    pub fixed: u32,
    /// Daemons of Coder's reference fleet.
    pub reference: u32,
    /// How long 95 of 100 jobs wait at most in the reference fleet.
    pub reference_p95: Millis,
}

/// The table, and how long it took.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its rows.
    pub rows: Vec<Row>,
    /// The seed of all of them.
    pub seed: u64,
    /// Real time.
    pub took: Duration,
}

impl Row {
    /// Simulates.
    pub fn simulate(trace: &Trace, setting: Setting, seed: u64) -> Self {
        let outcome = World::run(trace, setting, seed);
        let (mut fixed, mut reference_waits) = (0, Vec::new());
        for (index, pool) in trace.pools.iter().enumerate() {
            let jobs: Vec<TraceJob> = trace.of_pool(index).collect();
            let mut waits = outcome.waits_of(index);
            fixed += fixed::smallest(&jobs, percentile(&mut waits, 95));
            reference_waits.extend(fixed::waits(&jobs, pool.reference));
        }
        Self {
            trace: trace.name.clone(),
            setting,
            outcome,
            fixed,
            reference: trace.pools.iter().map(|pool| pool.reference).sum(),
            reference_p95: percentile(&mut reference_waits, 95),
        }
    }
}

/// What so many of 100 values do not exceed. 0 if there are none.
pub fn percentile(values: &mut [Millis], percent: usize) -> Millis {
    let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
    if rank < values.len() { *values.select_nth_unstable(rank).1 } else { 0 }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, setting, outcome, fixed, reference, reference_p95 } = self;
        let mut waits: Vec<_> = outcome.waits.iter().map(|(_, wait)| *wait).collect();
        let [p50, p95, p99] = [50, 95, 99].map(|percent| seconds(percentile(&mut waits, percent)));
        let (ours, length) = (hours(outcome.daemon_time), hours(outcome.length));
        let beside = |daemons: u32| {
            let theirs = f64::from(daemons) * length;
            let saved = if theirs > 0.0 { 100.0 * (1.0 - ours / theirs) } else { 0.0 };
            format!("{daemons} for {theirs:.0} h: {saved:.0} % saved")
        };
        let changes = f64::from(outcome.changes.values().sum::<u32>()) / length;
        let most_changes = outcome.changes.values().max().unwrap_or(&0);
        write!(
            f,
            "| {trace} | {} | {} | {p50} | {p95} | {p99} | {ours:.0} | {} | {}, {} | {}, {} | {changes:.0}, {most_changes} | {} | {} | {} |",
            setting.name(),
            outcome.waits.len(),
            beside(*fixed),
            beside(*reference),
            seconds(*reference_p95),
            outcome.most,
            outcome.started,
            outcome.stopped_busy,
            outcome.reaped,
            outcome.killed,
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| Trace | Setting | Builds | Wait p50 | p95 | p99 | Daemon-hours | Fixed fleet with the same p95 | Reference fleet, its p95 | \
             Pods at once, in all | Changes an hour, most | Told to stop while busy | Given up by coderd | Builds killed |"
        )?;
        writeln!(f, "|---|---|--:|--:|--:|--:|--:|---|---|--:|--:|--:|--:|--:|")?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        let virtual_seconds: Millis = self.rows.iter().map(|row| row.outcome.length / SECOND).sum();
        let decisions: u64 = self.rows.iter().map(|row| row.outcome.decisions).sum();
        writeln!(
            f,
            "\nSeed {}: {virtual_seconds} virtual seconds and {decisions} decisions, in {:.1} s with the search for fixed fleets.",
            self.seed,
            self.took.as_secs_f64()
        )
    }
}

fn seconds(time: Millis) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let seconds = time as f64 / SECOND as f64;
    if seconds < 100.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

fn hours(time: Millis) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let hours = time as f64 / HOUR as f64;
    hours
}
