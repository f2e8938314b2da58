//! Figures of a run: as JSON to keep, as a table to read.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;
use serde_json::{Map, Value, json};

/// One figure: what was measured, in which unit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// Whether it is the same on every machine: a count, or bytes kept. Times and CPU are not.
    pub(crate) is_count: bool,
}

/// All figures of a run, in the order in which they were measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn count(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.add(name.into(), value, unit, true);
    }

    pub(crate) fn measured(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.add(name.into(), value, unit, false);
    }

    pub(crate) fn time(&mut self, name: impl Into<String>, time: Duration) {
        self.measured(name, time.as_secs_f64() * 1000.0, "ms");
    }

    /// The median and the 99th percentile of times.
    pub(crate) fn times(&mut self, name: &str, mut times: Vec<Duration>) {
        times.sort();
        for (word, percent) in [("p50", 50), ("p99", 99)] {
            if let Some(time) = percentile(&times, percent) {
                self.time(format!("{name}, {word}"), time);
            }
        }
    }

    fn add(&mut self, name: String, value: f64, unit: &'static str, is_count: bool) {
        let figure = Figure { name, value, unit, is_count };
        crate::say(&format!("  {}: {} {}", figure.name, shown(value), figure.unit));
        self.figures.push(figure);
    }

    /// The figure of this name.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// The time below or at which so many percent of the sorted times are.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1).min(last)).copied()
}

/// The median of one figure in several runs, and how far they are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// None: there are no values.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let median = *values.get(values.len().saturating_sub(1) / 2)?;
        Some(Self { median, least: *values.first()?, most: *values.last()? })
    }
}

/// The medians of several runs, and how far they were apart.
pub(crate) fn table(runs: &[Report]) -> String {
    let mut text = String::from("| Figure | Median | Least | Most | Unit |\n|---|---|---|---|---|\n");
    for Figure { name, unit, .. } in runs.first().map(|run| run.figures.as_slice()).unwrap_or_default() {
        let values = runs.iter().filter_map(|run| run.get(name)).collect();
        if let Some(Spread { median, least, most }) = Spread::of(values) {
            let [median, least, most] = [median, least, most].map(shown);
            let _ = writeln!(text, "| {name} | {median} | {least} | {most} | {unit} |");
        }
    }
    text
}

/// Everything, for a file. `figures` are the names in the order in which they were measured, which an object does not keep.
pub(crate) fn json(operator: &str, machine: &Value, runs: &[Report]) -> Value {
    let first = runs.first().map(|run| run.figures.as_slice()).unwrap_or_default();
    let names: Vec<_> = first.iter().map(|figure| &figure.name).collect();
    let runs: Vec<_> = runs
        .iter()
        .map(|run| {
            let figures = run.figures.iter().map(|figure| {
                (
                    figure.name.clone(),
                    json!({"value": figure.value, "unit": figure.unit, "count": figure.is_count}),
                )
            });
            Value::Object(figures.collect::<Map<_, _>>())
        })
        .collect();
    json!({"operator": operator, "machine": machine, "figures": names, "runs": runs})
}

/// Few digits, as many as say something.
pub(crate) fn shown(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&times, 99), Some(Duration::from_millis(198)));
        assert_eq!(percentile(&times[..1], 99), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_table_shows_the_median_and_the_spread_of_runs() {
        let runs = [3.0, 1.0, 250.5].map(|value| {
            let mut report = Report::default();
            report.count("requests", value, "");
            report
        });
        assert!(table(&runs).contains("| requests | 3 | 1 | 250 |"), "{}", table(&runs));
        let kept = json("ours", &json!({}), &runs);
        assert_eq!(kept.pointer("/runs/1/requests/value"), Some(&json!(1.0)));
    }
}
