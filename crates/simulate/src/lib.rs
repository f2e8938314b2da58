//! Days of a scaled fleet in seconds: the decision of `coder_k8s_core::autoscaling`, driven over virtual time by traces of
//! jobs, and compared with fleets of a fixed size.
//!
//! The decision, the counting of daemons and the delay between polls are those of the operator. Simulated are coderd's
//! queue, the daemons and the ReplicaSets, with the delays that [`world`] and [`trace`] state as assumptions. A daemon that
//! is told to stop has its grace period, so that a build is killed only where a real one would be.
//!
//! A trace can be a file with the jobs of a real coderd: see [`import`].

pub mod fixed;
pub mod import;
pub mod report;
pub mod setting;
pub mod trace;
pub mod world;

use std::{path::Path, time::Instant};

use anyhow::{Result, bail};

use crate::{
    report::{Report, Row},
    setting::Setting,
    trace::{BUILT_IN, Trace},
};

/// Milliseconds of virtual time, counted from midnight (UTC) of the first day.
pub type Millis = i64;

/// The command line.
#[derive(clap::Parser, Debug)]
#[command(
    name = "cargo xtask simulate",
    about = "Simulates days of scaled pools and compares them with fixed fleets",
    after_long_help = import::HELP
)]
pub struct Args {
    /// A built-in trace (workday-1000, workday-10000, monday-burst, failing-starts, failing-nodes, coderd-away), or a
    /// file with jobs that coderd listed [default: all built-in traces]
    #[arg(long)]
    trace: Option<String>,
    /// Other seeds make other days
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many days, from a Monday
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=366))]
    days: u32,
    /// The users of a file, from which the size of Coder's reference fleet follows
    #[arg(long, default_value_t = 1_000)]
    users: u32,
}

/// Simulates, and returns the report as Markdown.
pub fn run(args: &Args) -> Result<String> {
    let began = Instant::now();
    let traces = match &args.trace {
        None => BUILT_IN.iter().map(|name| Trace::built_in(name, args.seed, args.days)).collect(),
        Some(name) if BUILT_IN.contains(&name.as_str()) => vec![Trace::built_in(name, args.seed, args.days)],
        Some(file) if Path::new(file).is_file() => vec![import::read(Path::new(file), args.users)?],
        Some(other) => bail!("{other} is neither a file nor one of {}", BUILT_IN.join(", ")),
    };
    let rows =
        traces.iter().flat_map(|trace| Setting::ALL.map(|setting| Row::simulate(trace, setting, args.seed)));
    let report = Report { rows: rows.collect(), seed: args.seed, took: began.elapsed() };
    Ok(report.to_string())
}
