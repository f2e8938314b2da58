//! The figures of several files that `--json` wrote, side by side.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::report::{Spread, shown};

/// The runs of one operator.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) operator: String,
    /// The names in the order in which they were measured. Empty in a file of an earlier release.
    #[serde(default)]
    figures: Vec<String>,
    runs: Vec<BTreeMap<String, Value>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Value {
    value: f64,
    unit: String,
}

impl Measured {
    /// The names of all figures, in the order in which they were measured if that is known.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.figures.iter().map(String::as_str).collect();
        for name in self.runs.iter().flat_map(BTreeMap::keys) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    /// A figure over all runs that have it.
    pub(crate) fn spread(&self, name: &str) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(|run| run.get(name)).map(|figure| figure.value).collect())
    }

    /// Such as `17.8 (17.7 to 18.1) MiB`, and without the parentheses if all runs agree.
    fn cell(&self, name: &str) -> String {
        let Some(Spread { median, least, most }) = self.spread(name) else {
            return "not measured".to_owned();
        };
        let [median, least, most] = [median, least, most].map(shown);
        let unit = self.runs.iter().find_map(|run| run.get(name)).map_or("", |figure| &figure.unit);
        let range = if least == most { String::new() } else { format!(" ({least} to {most})") };
        format!("{median}{range} {unit}").trim_end().to_owned()
    }
}

/// Reads what `--json` wrote.
pub(crate) fn read(file: &Path) -> Result<Measured> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} was not written by --json", file.display()))
}

/// Every figure that any of them has, in Markdown.
pub(crate) fn table(all: &[Measured]) -> String {
    let mut names = Vec::new();
    for name in all.iter().flat_map(Measured::names) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let operators = all.iter().map(|measured| measured.operator.replace('|', "\\|")).collect::<Vec<_>>();
    let mut text = format!("| Figure | {} |\n|---|{}\n", operators.join(" | "), "---|".repeat(all.len()));
    for name in names {
        let cells: Vec<_> = all.iter().map(|measured| measured.cell(name)).collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use crate::report::{self, Report};

    #[test]
    fn figures_stand_side_by_side_in_the_order_in_which_they_were_measured() {
        let runs = [17.8, 17.7, 18.1].map(|memory| {
            let mut report = Report::default();
            report.measured("memory", memory, "MiB");
            report.count("calls", 2.0, "");
            report
        });
        let ours = serde_json::from_value(report::json("A", &json!({}), &runs)).unwrap();
        let earlier = json!({"operator": "x | y", "machine": {},
            "runs": [{"memory": {"value": 69.4, "unit": "MiB", "count": false},
                "events": {"value": 3, "unit": "", "count": true}}]});
        let theirs = serde_json::from_value(earlier).unwrap();
        let expected = "| Figure | A | x \\| y |\n|---|---|---|\n\
            | memory | 17.8 (17.7 to 18.1) MiB | 69.4 MiB |\n\
            | calls | 2 | not measured |\n\
            | events | not measured | 3 |\n";
        assert_eq!(table(&[ours, theirs]), expected);
    }
}
