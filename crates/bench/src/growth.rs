//! How figures grow with the number of control planes, from the sizes of one run.
//!
//! Two answers: the line that fits the totals best, and how the cost of one object at the largest size compares with that at
//! the size before. If the second is about 1 or less, the cost grows at most in proportion to the number of objects.

use crate::{measure::as_f64, report::Report};

/// Totals at one number of control planes, and what each of them costs there.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    size: f64,
    total: f64,
    each: f64,
}

/// `total = start + each * size`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    start: f64,
    each: f64,
}

impl Line {
    /// Fits by least squares. None: there are not two different sizes.
    fn fit(points: &[Point]) -> Option<Self> {
        let count = as_f64(points.len());
        let mean = |value: fn(&Point) -> f64| points.iter().map(value).sum::<f64>() / count;
        let (size, total) = (mean(|point| point.size), mean(|point| point.total));
        let spread: f64 = points.iter().map(|point| (point.size - size).powi(2)).sum();
        let common: f64 = points.iter().map(|point| (point.size - size) * (point.total - total)).sum();
        let each = common / spread;
        each.is_finite().then_some(Self { start: total - each * size, each })
    }
}

/// Adds figures about memory, about time and CPU of creation, and about those of raw writes, if there are at least two sizes.
pub(crate) fn add(report: &mut Report, sizes: &[usize]) {
    let memory = memory(report, sizes);
    let time = sums(report, sizes, "created", "time for each");
    let own_cpu = sums(report, sizes, "created", "CPU of the operator for each");
    let cpu = sums(report, sizes, "created", "CPU of kube-apiserver for each");
    let raw_time = sums(report, sizes, "raw writes", "time for each");
    let raw_cpu = sums(report, sizes, "raw writes", "CPU of kube-apiserver for each");
    add_line(report, "memory", &memory, "MiB", ("KiB", 1024.0));
    add_line(report, "creation time", &time, "ms", ("ms", 1.0));
    add_line(report, "CPU of the operator at creation", &own_cpu, "ms", ("ms", 1.0));
    add_line(report, "CPU of kube-apiserver at creation", &cpu, "ms", ("ms", 1.0));
    add_line(report, "time of raw writes", &raw_time, "ms", ("ms", 1.0));
    add_line(report, "CPU of kube-apiserver at raw writes", &raw_cpu, "ms", ("ms", 1.0));
}

fn memory(report: &Report, sizes: &[usize]) -> Vec<Point> {
    let point = |size: &usize| {
        let total = report.get(&format!("memory with {size}, PSS"))?;
        Some(Point { size: as_f64(*size), total, each: report.get(&format!("memory for each of {size}"))? })
    };
    sizes.iter().filter_map(point).collect()
}

/// A cost of what was done to each. Each size adds the objects that the size before did not have, so the total is that of all sizes so far.
fn sums(report: &Report, sizes: &[usize], done: &str, cost: &str) -> Vec<Point> {
    let (mut made, mut total) = (0, 0.0);
    let point = |size: &usize| {
        let each = report.get(&format!("{done}, up to {size}, {cost}"))?;
        total += each * as_f64(size.saturating_sub(made));
        made = *size;
        Some(Point { size: as_f64(*size), total, each })
    };
    sizes.iter().filter_map(point).collect()
}

/// `each` is the unit of what an object adds, and how many of them make one `unit` of the totals.
fn add_line(
    report: &mut Report,
    what: &str,
    points: &[Point],
    unit: &'static str,
    each: (&'static str, f64),
) {
    let ([.., before, last], Some(line)) = (points, Line::fit(points)) else { return };
    report.measured(format!("growth of {what}: each object adds"), line.each * each.1, each.0);
    report.measured(format!("growth of {what}: the line starts at"), line.start, unit);
    let ratio = last.each / before.each;
    if ratio.is_finite() {
        report.measured(format!("growth of {what}, largest size over the one before"), ratio, "");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn points(all: &[(f64, f64)]) -> Vec<Point> {
        all.iter().map(|(size, total)| Point { size: *size, total: *total, each: 0.0 }).collect()
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
    }

    #[test]
    fn a_line_through_its_points_is_found_again() {
        let line = Line::fit(&points(&[(100.0, 21.5), (200.0, 23.0), (1000.0, 35.0)])).unwrap();
        assert_near(line.start, 20.0);
        assert_near(line.each, 0.015);
    }

    #[test]
    fn points_beside_the_line_pull_it_to_both_sides_alike() {
        // Worked out by hand: means 2 and 4, spread 2, common 5.
        let line = Line::fit(&points(&[(1.0, 1.0), (2.0, 5.0), (3.0, 6.0)])).unwrap();
        assert_near(line.each, 2.5);
        assert_near(line.start, -1.0);
    }

    #[test]
    fn one_size_makes_no_line() {
        for few in [&[][..], &[(100.0, 1.0)], &[(100.0, 1.0), (100.0, 2.0)]] {
            assert_eq!(Line::fit(&points(few)), None, "{few:?}");
        }
        let mut report = Report::default();
        report.measured("memory with 100, PSS", 20.0, "MiB");
        report.measured("memory for each of 100", 15.0, "KiB");
        add(&mut report, &[100]);
        assert_eq!(report.figures.len(), 2);
    }

    #[test]
    fn the_figures_of_a_run_say_how_it_grows() {
        let mut report = Report::default();
        for (size, pss, kib, ms) in [(100, 21.0, 20.0, 10.0), (300, 23.0, 15.0, 15.0)] {
            report.measured(format!("memory with {size}, PSS"), pss, "MiB");
            report.measured(format!("memory for each of {size}"), kib, "KiB");
            report.measured(format!("created, up to {size}, time for each"), ms, "ms");
        }
        add(&mut report, &[100, 300]);
        let get = |name: &str| report.get(name).unwrap();
        assert_near(get("growth of memory: each object adds"), 10.24);
        assert_near(get("growth of memory: the line starts at"), 20.0);
        assert_near(get("growth of memory, largest size over the one before"), 0.75);
        // The first 100 took 1,000 ms, the other 200 took 3,000 ms.
        assert_near(get("growth of creation time: each object adds"), 15.0);
        assert_near(get("growth of creation time: the line starts at"), -500.0);
        assert_near(get("growth of creation time, largest size over the one before"), 1.5);
        assert_eq!(report.get("growth of CPU of kube-apiserver at creation: each object adds"), None);
    }
}
