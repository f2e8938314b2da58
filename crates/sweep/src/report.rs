//! The table at the end, and the files with it.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, process::ExitCode, time::Duration};

use serde::Serialize;

use crate::{cases::Args, misoperation::Tally};

/// One case.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub scenario: &'static str,
    pub family: &'static str,
    /// Whether the fault was met at all.
    pub reached: bool,
    /// How often the operator ended.
    pub ends: usize,
    pub seconds: f64,
    /// None: it ended as it should.
    pub failure: Option<String>,
}

/// All cases of a sweep.
#[derive(Debug, Serialize)]
pub struct Report {
    scenarios: usize,
    pub rows: Vec<Row>,
    pub took: Duration,
    /// With the time that they took.
    pub misoperations: Option<(Tally, Duration)>,
}

/// Counts of one row of the table.
#[derive(Clone, Copy, Default)]
struct Count {
    cases: usize,
    unreached: usize,
    failed: usize,
}

impl Report {
    pub fn new(scenarios: usize) -> Self {
        Self { scenarios, rows: Vec::new(), took: Duration::ZERO, misoperations: None }
    }

    pub fn failed(&self) -> usize {
        let misoperations = self.misoperations.as_ref().map_or(0, |(tally, _)| tally.failures.len());
        self.rows.iter().filter(|row| row.failure.is_some()).count() + misoperations
    }

    /// Prints the table and the verdict, and writes the files.
    pub fn finish(&self, args: &Args) -> ExitCode {
        println!("\n{}", self.table());
        let is_saved = self.save(args);
        let failed = self.failed();
        for row in self.rows.iter().filter(|row| row.failure.is_some()) {
            let why = row.failure.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
            println!("failed: {}: {why}", row.name);
        }
        let ends: usize = self.rows.iter().map(|row| row.ends).sum();
        let (count, took) = (self.rows.len(), self.took);
        if failed == 0 && is_saved {
            println!("held: {count} cases, {ends} ends of the operator, {took:.0?}");
            ExitCode::SUCCESS
        } else {
            println!("FAILED: {failed} of {count} cases, {took:.0?}");
            ExitCode::FAILURE
        }
    }

    /// Writes the files that were asked for, as far as the sweep has come. Returns whether they could be written.
    pub fn save(&self, args: &Args) -> bool {
        let json = || serde_json::to_string_pretty(self).unwrap_or_default();
        let errors = [
            args.json.as_deref().and_then(|file| write(file, &json())),
            args.markdown.as_deref().and_then(|file| write(file, &self.table())),
        ];
        errors.iter().flatten().for_each(|error| println!("{error}"));
        errors.iter().all(Option::is_none)
    }

    /// By scenario and by family, in Markdown.
    fn table(&self) -> String {
        let mut counts = BTreeMap::<_, Count>::new();
        let mut families: Vec<_> = self.rows.iter().map(|row| row.family).collect();
        families.sort_unstable();
        families.dedup();
        for row in &self.rows {
            for scenario in [row.scenario, "all"] {
                let count = counts.entry((scenario, row.family)).or_default();
                count.cases += 1;
                count.unreached += usize::from(!row.reached);
                count.failed += usize::from(row.failure.is_some());
            }
        }
        let mut scenarios: Vec<_> = self.rows.iter().map(|row| row.scenario).collect();
        scenarios.sort_unstable();
        scenarios.dedup();
        scenarios.push("all");
        let mut text = String::from("| Scenario |");
        for family in &families {
            let _ = write!(text, " {family} |");
        }
        let _ = write!(text, "\n|---|{}\n", "---|".repeat(families.len()));
        for scenario in scenarios {
            let _ = write!(text, "| {scenario} |");
            for family in &families {
                let count = counts.get(&(scenario, *family)).copied().unwrap_or_default();
                let _ = write!(text, " {} |", count.text());
            }
            text.push('\n');
        }
        if let Some((tally, took)) = &self.misoperations {
            let Tally { operations, accepted, refused, properties, never_accepted, failures } = tally;
            let _ = write!(
                text,
                "\nMisoperations: {properties} properties, {operations} writes, {accepted} accepted, {refused} refused, \
                 {} failures, {took:.0?}. Never accepted: {}.\n",
                failures.len(),
                if never_accepted.is_empty() { "none".to_owned() } else { never_accepted.join(", ") },
            );
        }
        text
    }
}

impl Count {
    /// How many held, and what else there is to say.
    fn text(self) -> String {
        let mut text = (self.cases - self.failed).to_string();
        if self.unreached > 0 {
            let _ = write!(text, " ({} not reached)", self.unreached);
        }
        if self.failed > 0 {
            let _ = write!(text, ", **{} failed**", self.failed);
        }
        text
    }
}

fn write(file: &Path, text: &str) -> Option<String> {
    fs::write(file, text).err().map(|error| format!("cannot write {}: {error}", file.display()))
}
