//! A picture of compared figures: memory, and the time of a creation, over the number of control planes.
//!
//! A point is the median of the runs; a thin bar reaches from the least of them to the most. The numbers of control planes are on
//! a logarithmic axis. Axes and text suit the colour scheme of the reader. All lengths are in pixels.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    compare::Measured,
    measure::as_f64,
    report::{Spread, shown},
};

const WIDTH: f64 = 720.0;
const TITLE: &str = "Memory and time of a creation over the number of control planes";
/// Of the lines, in the order of the files. Readable on white and on black.
const COLOURS: [&str; 4] = ["#2f81f7", "#e8590c", "#2da44e", "#bf3989"];
const LEGEND_LINE: f64 = 18.0;
/// Between the axes.
const PANEL_WIDTH: f64 = 280.0;
const PANEL_HEIGHT: f64 = 200.0;
/// A label of the lower axis that is closer than this to the next one is left out.
const LEAST_GAP: f64 = 30.0;

/// A figure at each number of control planes.
type Points = BTreeMap<usize, Spread>;

/// Draws both panels and a legend.
pub(crate) fn svg(all: &[Measured]) -> String {
    let legend = LEGEND_LINE * as_f64(all.len());
    let bottom = legend + 40.0 + PANEL_HEIGHT;
    let memory = Panel::new("Memory (PSS), MiB", all, ("memory with ", ", PSS"), (50.0, bottom));
    let time = ("created, up to ", ", time for each");
    let time = Panel::new("Time for each created control plane, ms", all, time, (420.0, bottom));
    let mut parts = vec![head(bottom + 50.0)];
    for (number, (measured, colour)) in all.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let y = 14.0 + LEGEND_LINE * as_f64(number);
        parts.push(line([50.0, 74.0], [y, y], &format!(r#"stroke="{colour}" stroke-width="2""#)));
        parts.push(label(80.0, y + 4.0, "start", &measured.operator));
    }
    for panel in [memory, time] {
        parts.extend(panel.axes());
        parts.extend(panel.lines(all));
    }
    parts.push("</svg>\n".to_owned());
    parts.join("\n")
}

/// Where the picture stands alone, text is black unless it says so itself.
fn head(height: f64) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="bench-plot" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{TITLE}" font-family="system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif" font-size="12" fill="currentColor">
<title>{TITLE}</title>
<style>.bench-plot {{ color: #1b1f24 }} @media (prefers-color-scheme: dark) {{ .bench-plot {{ color: #e6edf3 }} }}</style>"#
    )
}

/// One figure of all files.
struct Panel {
    title: &'static str,
    /// Of each file.
    points: Vec<Points>,
    sizes: BTreeSet<usize>,
    /// The largest value of the upper end of the axis, and how far its labels are apart.
    top: f64,
    step: f64,
    /// Where the axes meet.
    left: f64,
    bottom: f64,
}

impl Panel {
    /// The names of the figures are a number of control planes between the two parts of `name`.
    fn new(title: &'static str, all: &[Measured], name: (&str, &str), (left, bottom): (f64, f64)) -> Self {
        let points: Vec<_> = all.iter().map(|measured| points(measured, name)).collect();
        let most = points.iter().flat_map(Points::values).map(|spread| spread.most).fold(0.0, f64::max);
        let step = round_step(most / 4.0);
        let top = (most / step).ceil().max(1.0) * step;
        let sizes = points.iter().flat_map(Points::keys).copied().collect();
        Self { title, points, sizes, top, step, left, bottom }
    }

    fn x(&self, size: usize) -> f64 {
        let log = |size: Option<&usize>| size.map_or(0.0, |size| as_f64(*size).log10());
        let (least, most) = (log(self.sizes.first()), log(self.sizes.last()));
        let share = if most > least { (log(Some(&size)) - least) / (most - least) } else { 0.5 };
        self.left + share * PANEL_WIDTH
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - value / self.top * PANEL_HEIGHT
    }

    fn axes(&self) -> Vec<String> {
        let Self { left, bottom, .. } = *self;
        let title = label(left, bottom - PANEL_HEIGHT - 12.0, "start", self.title);
        let below = label(left + PANEL_WIDTH / 2.0, bottom + 36.0, "middle", "control planes");
        let mut parts = vec![title, below];
        let mut value = 0.0;
        while value < self.top + self.step / 2.0 {
            let (y, opacity) = (self.y(value), if value > 0.0 { "0.2" } else { "1" });
            let style = format!(r#"stroke="currentColor" stroke-opacity="{opacity}""#);
            parts.push(line([left, left + PANEL_WIDTH], [y, y], &style));
            parts.push(label(left - 6.0, y + 4.0, "end", &shown(value)));
            value += self.step;
        }
        let mut next = f64::INFINITY;
        // From the largest on, which always has its label.
        for size in self.sizes.iter().rev() {
            let x = self.x(*size);
            parts.push(line([x, x], [bottom, bottom + 4.0], r#"stroke="currentColor""#));
            if next - x >= LEAST_GAP {
                parts.push(label(x, bottom + 17.0, "middle", &grouped(*size)));
                next = x;
            }
        }
        parts
    }

    fn lines(&self, all: &[Measured]) -> Vec<String> {
        let mut parts = Vec::new();
        for ((measured, points), colour) in all.iter().zip(&self.points).zip(COLOURS.iter().cycle()) {
            let corners = points.iter().map(|(size, spread)| {
                let (x, y) = (self.x(*size), self.y(spread.median));
                format!("{x:.1},{y:.1}")
            });
            let corners = corners.collect::<Vec<_>>().join(" ");
            parts.push(format!(
                r#"<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>"#
            ));
            for (size, spread) in points {
                let Spread { median, least, most } = *spread;
                let (x, y) = (self.x(*size), self.y(median));
                parts.push(line([x, x], [self.y(least), self.y(most)], &format!(r#"stroke="{colour}""#)));
                let [median, least, most] = [median, least, most].map(shown);
                let (name, size) = (escaped(&measured.operator), grouped(*size));
                parts.push(format!(
                    r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"><title>{name}, {size}: {median} ({least} to {most})</title></circle>"#
                ));
            }
        }
        parts
    }
}

fn points(measured: &Measured, (before, after): (&str, &str)) -> Points {
    let size = |name: &str| match name.strip_prefix(before)?.strip_suffix(after)? {
        "one object" => Some(1),
        number => number.parse().ok().filter(|size| *size > 0),
    };
    measured.names().into_iter().filter_map(|name| Some((size(name)?, measured.spread(name)?))).collect()
}

fn line([x1, x2]: [f64; 2], [y1, y2]: [f64; 2], style: &str) -> String {
    format!(r#"<line x1="{x1:.1}" x2="{x2:.1}" y1="{y1:.1}" y2="{y2:.1}" {style}/>"#)
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// At least `step`: 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    if step <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0].map(|part| part * power).into_iter().find(|round| *round >= step).unwrap_or(10.0 * power)
}

/// With commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn measured(operator: &str, runs: &[&[(&str, f64)]]) -> Measured {
        let figure = |(name, value): &(&str, f64)| ((*name).to_owned(), json!({"value": value, "unit": ""}));
        let runs: Vec<serde_json::Map<_, _>> =
            runs.iter().map(|run| run.iter().map(figure).collect()).collect();
        serde_json::from_value(json!({"operator": operator, "machine": {}, "runs": runs})).unwrap()
    }

    /// Asserts that every element ends, in order, and that no attribute or text breaks out of its place.
    fn assert_well_formed(text: &str) {
        let mut open = Vec::new();
        for part in text.split('<').skip(1) {
            let (tag, after) = part.split_once('>').unwrap();
            assert!(!after.contains('>'), "{part}");
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().unwrap());
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn points_are_where_their_figures_belong() {
        let run = |pss: f64| [("memory with one object, PSS", 10.0), ("memory with 1000, PSS", pss)];
        let time = [("created, up to 10, time for each", 5.0), ("created, up to 100, time for each", 20.0)];
        let ours = measured("a < b & \"c\"", &[&run(30.0), &run(20.0), &run(40.0)]);
        let theirs = measured("other", &[&[("memory with 10, PSS", 40.0)], &time]);
        let text = svg(&[ours, theirs]);
        assert_well_formed(&text);
        assert!(text.contains("a &lt; b &amp; &quot;c&quot;</text>"), "{text}");
        // The axes meet at (50, 276) and (420, 276). Both have 40 MiB and 20 ms at their upper end.
        for place in [
            r#"<circle cx="50.0" cy="226.0""#,
            r#"<circle cx="330.0" cy="126.0""#,
            r##"<line x1="330.0" x2="330.0" y1="176.0" y2="76.0" stroke="#2f81f7"/>"##,
            r#"<circle cx="143.3" cy="76.0""#,
            r#"<circle cx="420.0" cy="226.0""#,
            r#"<circle cx="700.0" cy="76.0""#,
            r#"<polyline points="50.0,226.0 330.0,126.0""#,
            r#"<polyline points="420.0,226.0 700.0,76.0""#,
            ">1,000</text>",
        ] {
            assert!(text.contains(place), "{place} is not in\n{text}");
        }
    }

    #[test]
    fn files_without_figures_make_an_empty_picture() {
        let text = svg(&[measured("none", &[])]);
        assert_well_formed(&text);
        assert!(!text.contains("NaN") && !text.contains("<circle"), "{text}");
    }

    #[test]
    fn steps_are_round() {
        for (step, round) in [(0.0, 1.0), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (5.5, 10.0), (24.0, 50.0)] {
            assert!((round_step(step) - round).abs() < 1e-9, "{step}");
        }
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(
            [1, 999, 1000, 12_345, 1_000_000].map(grouped),
            ["1", "999", "1,000", "12,345", "1,000,000"]
        );
    }
}
