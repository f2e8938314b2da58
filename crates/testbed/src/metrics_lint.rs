//! Checks the text of a metrics endpoint against the `OpenMetrics` format and Prometheus' rules of naming: help and
//! type for every family, `_total` on counters and nothing else, base units as suffixes, cumulative buckets, no
//! series twice. It reads a text and never a registry, so that it also checks what the running operator serves.

use std::collections::{BTreeMap, BTreeSet};

/// Returns every fault of `text`, in the order of its lines. An empty list means that the text is valid.
pub fn lint(text: &str) -> Vec<String> {
    let mut linter = Linter::default();
    for (index, line) in text.lines().enumerate() {
        linter.number = index + 1;
        linter.line(line);
    }
    linter.end_family();
    if text.lines().next_back() != Some("# EOF") {
        linter.findings.push("the last line is not `# EOF`".into());
    }
    if !text.ends_with('\n') {
        linter.findings.push("the last line does not end".into());
    }
    linter.findings
}

/// Units for which Prometheus asks for the base unit.
const SCALED_UNITS: [&str; 9] = [
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "days",
    "kilobytes",
    "megabytes",
    "ms",
];
const UNITS: [&str; 3] = ["seconds", "bytes", "ratio"];

#[derive(Default)]
struct Linter {
    number: usize,
    findings: Vec<String>,
    families: BTreeSet<String>,
    series: BTreeSet<String>,
    family: Family,
    ended: bool,
}

#[derive(Default)]
struct Family {
    name: String,
    help: bool,
    kind: Option<String>,
    unit: Option<String>,
    samples: usize,
    histograms: BTreeMap<String, Buckets>,
}

#[derive(Default)]
struct Buckets {
    counts: Vec<(f64, f64)>,
    count: Option<f64>,
    sum: bool,
}

/// A line of an exposition with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name of the series, with `_total`, `_bucket` and the like.
    pub name: &'a str,
    /// Names of the labels with their values, unescaped, in the order of the line.
    pub labels: Vec<(&'a str, String)>,
    /// The value.
    pub value: f64,
}

/// The samples of an exposition that [`lint`] finds nothing wrong with.
pub fn samples(text: &str) -> Vec<Sample<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| sample(line).ok()).collect()
}

impl Linter {
    fn found(&mut self, what: impl std::fmt::Display) {
        self.findings.push(format!("line {}: {what}", self.number));
    }

    fn line(&mut self, line: &str) {
        if self.ended {
            return self.found("there is something after `# EOF`");
        }
        if line == "# EOF" {
            self.ended = true;
            return;
        }
        match line.strip_prefix("# ") {
            Some(comment) => self.describe(comment),
            None if line.starts_with('#') || line.trim().is_empty() => {
                self.found("neither a sample nor a description");
            }
            None => match sample(line) {
                Ok(sample) => self.sample(&sample),
                Err(what) => self.found(what),
            },
        }
    }

    fn describe(&mut self, comment: &str) {
        let mut parts = comment.splitn(3, ' ');
        let (word, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let rest = parts.next().unwrap_or_default().to_owned();
        if name != self.family.name {
            self.end_family();
            self.start_family(name);
        }
        if self.family.samples > 0 {
            self.found(format_args!("{name} is described after its first sample"));
        }
        match word {
            "HELP" => {
                if std::mem::replace(&mut self.family.help, true) {
                    self.found(format_args!("second HELP for {name}"));
                }
                if rest.trim().is_empty() {
                    self.found(format_args!("{name} has an empty HELP"));
                }
            }
            "TYPE" => {
                if self.family.kind.is_some() {
                    self.found(format_args!("second TYPE for {name}"));
                }
                self.check_kind(name, &rest);
                self.family.kind = Some(rest);
            }
            "UNIT" => {
                if !name.ends_with(&format!("_{rest}")) {
                    self.found(format_args!("{name} does not end in its unit {rest}"));
                }
                self.family.unit = Some(rest);
            }
            _ => self.found(format_args!("unknown description {word}")),
        }
    }

    fn start_family(&mut self, name: &str) {
        if !self.families.insert(name.to_owned()) {
            self.found(format_args!("{name} is described in two places"));
        }
        if !is_snake_case(name) {
            self.found(format_args!("{name} is not snake_case"));
        }
        if name.ends_with("_total") {
            self.found(format_args!(
                "{name} names a family with _total, which belongs to a counter's sample"
            ));
        }
        if let Some(unit) = SCALED_UNITS.iter().find(|unit| name.split('_').any(|word| word == **unit)) {
            self.found(format_args!("{name} is in {unit} instead of a base unit"));
        }
        self.family = Family { name: name.to_owned(), ..Family::default() };
    }

    fn check_kind(&mut self, name: &str, kind: &str) {
        if !["counter", "gauge", "histogram"].contains(&kind) {
            self.found(format_args!("{name} is a {kind}, which the operator does not use"));
        }
        let measured = UNITS.iter().any(|unit| name.ends_with(&format!("_{unit}")));
        if kind == "histogram" && !measured {
            self.found(format_args!("histogram {name} does not name its unit"));
        }
    }

    fn sample(&mut self, sample: &Sample<'_>) {
        self.check_labels(sample);
        let Some(suffix) = sample.name.strip_prefix(self.family.name.as_str()) else {
            return self.found(format_args!("{} is not described above", sample.name));
        };
        let suffix = suffix.to_owned();
        self.family.samples += 1;
        let unit_missing = self.family.unit.is_none()
            && UNITS.iter().any(|unit| self.family.name.ends_with(&format!("_{unit}")));
        if self.family.samples == 1 && unit_missing {
            let name = self.family.name.clone();
            self.found(format_args!("{name} has no UNIT line"));
        }
        match (self.family.kind.as_deref(), suffix.as_str()) {
            (Some("counter"), "_total") if sample.value < 0.0 => {
                self.found(format_args!("counter {} is negative", sample.name));
            }
            (Some("counter"), "_total") | (Some("gauge"), "") => {}
            (Some("counter"), _) => self.found(format_args!("counter {} lacks _total", sample.name)),
            (Some("histogram"), "_bucket" | "_count" | "_sum") => self.histogram_sample(sample, &suffix),
            (Some(kind), _) => {
                let kind = kind.to_owned();
                self.found(format_args!("a {kind} has no sample {}", sample.name));
            }
            (None, _) => self.found(format_args!("{} has no TYPE", sample.name)),
        }
    }

    fn check_labels(&mut self, sample: &Sample<'_>) {
        let mut names = BTreeSet::new();
        for (label, _) in &sample.labels {
            if !is_snake_case(label) {
                self.found(format_args!("label {label} of {} is not snake_case", sample.name));
            }
            if !names.insert(*label) {
                self.found(format_args!("label {label} of {} is there twice", sample.name));
            }
        }
        let series = format!("{}{}", sample.name, series_key(sample, None));
        if !self.series.insert(series.clone()) {
            self.found(format_args!("{series} is there twice"));
        }
    }

    fn histogram_sample(&mut self, sample: &Sample<'_>, suffix: &str) {
        let key = series_key(sample, Some("le"));
        let buckets = self.family.histograms.entry(key).or_default();
        match suffix {
            "_count" => buckets.count = Some(sample.value),
            "_sum" => buckets.sum = true,
            _ => match sample.labels.iter().find(|(label, _)| *label == "le").map(|(_, le)| number(le)) {
                Some(Some(le)) => buckets.counts.push((le, sample.value)),
                _ => self.found(format_args!("{} has no readable le", sample.name)),
            },
        }
    }

    fn end_family(&mut self) {
        let family = std::mem::take(&mut self.family);
        if family.name.is_empty() {
            return;
        }
        let name = &family.name;
        if !family.help {
            self.found(format_args!("{name} has no HELP"));
        }
        if family.kind.is_none() {
            self.found(format_args!("{name} has no TYPE"));
        }
        for (labels, buckets) in &family.histograms {
            for what in buckets.faults() {
                self.found(format_args!("{name}{labels}: {what}"));
            }
        }
    }
}

impl Buckets {
    fn faults(&self) -> Vec<&'static str> {
        let mut faults = Vec::new();
        let ascending = |pairs: &[(f64, f64)], by: fn(&(f64, f64)) -> f64, strict: bool| {
            pairs.windows(2).all(|pair| match pair {
                [a, b] => by(a) < by(b) || (!strict && (by(b) - by(a)).abs() < f64::EPSILON),
                _ => true,
            })
        };
        if !ascending(&self.counts, |b| b.0, true) {
            faults.push("buckets are not in ascending order of le");
        }
        if !ascending(&self.counts, |b| b.1, false) {
            faults.push("buckets are not cumulative");
        }
        match self.counts.last() {
            Some((le, all)) if le.is_infinite() => match self.count {
                Some(count) if (count - all).abs() < f64::EPSILON => {}
                Some(_) => faults.push("_count differs from the +Inf bucket"),
                None => faults.push("_count is missing"),
            },
            _ => faults.push("the last bucket is not +Inf"),
        }
        if !self.sum {
            faults.push("_sum is missing");
        }
        faults
    }
}

/// The labels of a sample in a fixed order, except `without`.
fn series_key(sample: &Sample<'_>, without: Option<&str>) -> String {
    let labels: BTreeMap<_, _> =
        sample.labels.iter().filter(|(label, _)| Some(*label) != without).map(|(l, v)| (l, v)).collect();
    format!("{labels:?}")
}

fn is_snake_case(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('_')
        && !name.contains("__")
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok().filter(|value: &f64| value.is_finite()),
    }
}

/// Parses `name{label="value",...} number`. The operator writes no exemplars and no timestamps, so that both are faults.
fn sample(line: &str) -> Result<Sample<'_>, String> {
    let end = line.find(['{', ' ']).ok_or("a sample without a value")?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.strip_prefix(' ').and_then(number);
    let value = value.ok_or_else(|| format!("{name} has no readable value in {rest:?}"))?;
    Ok(Sample { name, labels, value })
}

type Labels<'a> = Vec<(&'a str, String)>;

fn labels(mut rest: &str) -> Result<(Labels<'_>, &str), String> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (name, tail) = rest.split_once("=\"").ok_or("a label without a value")?;
        let (value, tail) = quoted(tail)?;
        labels.push((name, value));
        rest = match tail.strip_prefix(',') {
            Some(more) => more,
            None if tail.starts_with('}') => tail,
            None => return Err(format!("label {name} is followed by {tail:?}")),
        };
    }
}

/// Reads up to the closing quote and unescapes `\\`, `\"` and `\n`.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, text.get(at + 1..).unwrap_or_default())),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                other => return Err(format!("a label value with the escape {other:?}")),
            },
            c => value.push(c),
        }
    }
    Err("a label value without an end".into())
}

#[cfg(test)]
mod tests {
    use super::lint;

    const VALID: &str = "\
# HELP calls Calls.
# TYPE calls counter
calls_total{verb=\"get\",code=\"200\"} 3
calls_total{verb=\"a \\\"b\\\" \\\\ \\n } ,\",code=\"200\"} 0
# HELP depth Depth.
# TYPE depth gauge
depth -1
# HELP took_seconds Time.
# TYPE took_seconds histogram
# UNIT took_seconds seconds
took_seconds_sum{verb=\"get\"} 0.5
took_seconds_count{verb=\"get\"} 2
took_seconds_bucket{le=\"0.1\",verb=\"get\"} 1
took_seconds_bucket{le=\"+Inf\",verb=\"get\"} 2
# EOF
";

    #[test]
    fn a_valid_text_has_no_findings() {
        assert_eq!(lint(VALID), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        let table = [
            ("# HELP calls Calls.\n", "", "calls has no HELP"),
            ("# TYPE depth gauge\n", "", "depth has no TYPE"),
            ("# EOF\n", "", "not `# EOF`"),
            ("# EOF\n", "# EOF", "does not end"),
            ("# EOF\n", "# EOF\ndepth 1\n", "after `# EOF`"),
            ("depth -1\n", "depth -1\ndepth 2\n", "there twice"),
            ("depth -1\n", "\ndepth -1\n", "neither a sample"),
            ("depth -1\n", "depth_total -1\n", "a gauge has no sample depth_total"),
            ("depth -1\n", "depth minus\n", "no readable value"),
            ("depth -1\n", "depth{a=\"x\",a=\"y\"} 1\n", "label a of depth is there twice"),
            ("depth -1\n", "depth{A=\"x\"} 1\n", "label A of depth is not snake_case"),
            ("depth -1\n", "depth{a=\"x} 1\n", "without an end"),
            ("depth -1\n", "width -1\n", "width is not described above"),
            ("calls_total{verb=\"get\"", "calls{verb=\"get\"", "lacks _total"),
            ("calls_total{verb=\"get\",code=\"200\"} 3", "calls_total -1", "negative"),
            ("# UNIT took_seconds seconds\n", "", "no UNIT line"),
            ("# UNIT took_seconds seconds\n", "# UNIT took_seconds bytes\n", "does not end in its unit"),
            ("took_seconds_sum{verb=\"get\"} 0.5\n", "", "_sum is missing"),
            ("took_seconds_count{verb=\"get\"} 2\n", "", "_count is missing"),
            ("_count{verb=\"get\"} 2", "_count{verb=\"get\"} 3", "_count differs"),
            ("le=\"0.1\",verb=\"get\"} 1", "le=\"0.1\",verb=\"get\"} 5", "not cumulative"),
            ("le=\"+Inf\"", "le=\"0.2\"", "the last bucket is not +Inf"),
            ("le=\"+Inf\"", "le=\"0.01\"", "ascending order"),
        ];
        for (from, to, finding) in table {
            let text = VALID.replacen(from, to, 1);
            assert_ne!(text, VALID, "{from:?}");
            let findings = lint(&text);
            assert!(findings.iter().any(|f| f.contains(finding)), "{from:?} -> {to:?}: {findings:?}");
        }
    }

    #[test]
    fn names_that_break_the_rules_are_found() {
        for (name, kind, finding) in [
            ("Calls", "gauge", "not snake_case"),
            ("a__b", "gauge", "not snake_case"),
            ("calls_total", "counter", "names a family with _total"),
            ("wait_milliseconds", "gauge", "instead of a base unit"),
            ("wait", "histogram", "does not name its unit"),
            ("wait", "summary", "does not use"),
        ] {
            let findings = lint(&format!("# HELP {name} Text.\n# TYPE {name} {kind}\n# EOF\n"));
            assert!(findings.iter().any(|f| f.contains(finding)), "{name}: {findings:?}");
        }
    }

    #[test]
    fn a_family_in_two_places_is_found() {
        let text = VALID.replace("# EOF\n", "# HELP calls Calls.\n# TYPE calls counter\n# EOF\n");
        assert!(lint(&text).iter().any(|f| f.contains("described in two places")));
    }
}
