//! Windows in which a pool is kept warm: weekdays and times of day in a time zone.
//!
//! A window belongs to the day on which it begins, and may end on the next. Where clocks skip or repeat a time at which a
//! window begins or ends, the window is longer than on other days, never shorter.

use jiff::{
    Timestamp, ToSpan,
    civil::{Date, Time, Weekday},
    tz::TimeZone,
};

use super::ScalingPolicy;
use crate::intervals::MAX_WINDOWS;

/// A set of days of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weekdays(u8);

impl FromIterator<Weekday> for Weekdays {
    fn from_iter<I: IntoIterator<Item = Weekday>>(days: I) -> Self {
        Self(days.into_iter().fold(0, |all, day| all | bit(day)))
    }
}

impl Weekdays {
    /// Whether the day is in the set.
    pub fn contains(self, day: Weekday) -> bool {
        self.0 & bit(day) != 0
    }
}

fn bit(day: Weekday) -> u8 {
    1 << day.to_monday_zero_offset()
}

/// A time of the week with a higher minimum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmWindow {
    /// The days on which it begins.
    pub days: Weekdays,
    /// When it begins.
    pub from: Time,
    /// When it ends. At or before `from`: on the next day.
    pub to: Time,
    /// Where the clock with these times is.
    pub zone: TimeZone,
    /// Daemons without any job while it lasts.
    pub minimum: u32,
}

impl ScalingPolicy {
    /// The minimum at a time, never above the maximum, and when a window next begins or ends.
    pub fn minimum(&self, now: Timestamp) -> (u32, Option<Timestamp>) {
        let mut minimum = self.min;
        let mut next = None;
        for window in self.windows.iter().take(MAX_WINDOWS) {
            let today = window.zone.to_datetime(now).date();
            // From yesterday, whose window may last until now, until the same day of the next week.
            for (start, end) in (-1..=8).filter_map(|days| window.on(today.checked_add(days.days()).ok()?)) {
                if start <= now && now < end {
                    minimum = minimum.max(window.minimum);
                }
                let later = [next, Some(start), Some(end)].into_iter().flatten();
                next = later.filter(|time| *time > now).min();
            }
        }
        (minimum.min(self.max), next)
    }
}

impl WarmWindow {
    /// Beginning and end of the window that belongs to a date.
    fn on(&self, date: Date) -> Option<(Timestamp, Timestamp)> {
        let Self { days, from, to, zone, minimum: _ } = self;
        if !days.contains(date.weekday()) {
            return None;
        }
        let end = if to > from { date } else { date.tomorrow().ok()? };
        let start = zone.to_ambiguous_timestamp(date.to_datetime(*from)).earlier().ok()?;
        Some((start, zone.to_ambiguous_timestamp(end.to_datetime(*to)).later().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::time;

    use super::*;

    const WORKDAYS: [Weekday; 5] =
        [Weekday::Monday, Weekday::Tuesday, Weekday::Wednesday, Weekday::Thursday, Weekday::Friday];

    /// The rules of Berlin, which need no database.
    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn policy(days: &[Weekday], from: Time, to: Time) -> ScalingPolicy {
        let days = days.iter().copied().collect();
        let window = WarmWindow { days, from, to, zone: berlin(), minimum: 5 };
        let scale_down_after = jiff::SignedDuration::from_mins(5);
        ScalingPolicy { min: 1, max: 8, spare: 0, scale_down_after, windows: vec![window] }
    }

    #[test]
    fn a_window_is_on_its_days_between_its_times() {
        let day = policy(&WORKDAYS, time(8, 30, 0, 0), time(18, 0, 0, 0));
        let night = policy(&[Weekday::Friday], time(22, 0, 0, 0), time(6, 0, 0, 0));
        let whole = policy(&[Weekday::Sunday], time(7, 0, 0, 0), time(7, 0, 0, 0));
        let never = policy(&[], time(7, 0, 0, 0), time(9, 0, 0, 0));
        // 13 November 2026 is a Friday.
        for (policy, now, minimum, next) in [
            (&day, "2026-11-13T07:29:59Z", 1, Some("2026-11-13T07:30:00Z")),
            (&day, "2026-11-13T07:30:00Z", 5, Some("2026-11-13T17:00:00Z")),
            (&day, "2026-11-13T16:59:59Z", 5, Some("2026-11-13T17:00:00Z")),
            (&day, "2026-11-13T17:00:00Z", 1, Some("2026-11-16T07:30:00Z")),
            (&day, "2026-11-14T10:00:00Z", 1, Some("2026-11-16T07:30:00Z")),
            (&day, "2026-07-13T06:30:00Z", 5, Some("2026-07-13T16:00:00Z")),
            (&night, "2026-11-13T20:59:00Z", 1, Some("2026-11-13T21:00:00Z")),
            (&night, "2026-11-13T23:30:00Z", 5, Some("2026-11-14T05:00:00Z")),
            (&night, "2026-11-14T04:59:00Z", 5, Some("2026-11-14T05:00:00Z")),
            (&night, "2026-11-14T05:00:00Z", 1, Some("2026-11-20T21:00:00Z")),
            (&night, "2026-11-14T23:00:00Z", 1, Some("2026-11-20T21:00:00Z")),
            (&whole, "2026-11-15T05:59:00Z", 1, Some("2026-11-15T06:00:00Z")),
            (&whole, "2026-11-16T05:59:00Z", 5, Some("2026-11-16T06:00:00Z")),
            (&whole, "2026-11-16T06:00:00Z", 1, Some("2026-11-22T06:00:00Z")),
            (&never, "2026-11-16T08:00:00Z", 1, None),
        ] {
            let expected = (minimum, next.map(|time| time.parse().unwrap()));
            assert_eq!(policy.minimum(now.parse().unwrap()), expected, "{now}");
        }
    }

    #[test]
    fn a_time_that_clocks_skip_or_repeat_makes_a_window_longer() {
        let night = |from, to| policy(&[Weekday::Saturday, Weekday::Sunday], from, to);
        // On 29 March 2026 clocks go from 02:00 to 03:00, at 01:00Z; on 25 October from 03:00 back to 02:00, at 01:00Z.
        for (from, to, start, end) in [
            (time(2, 30, 0, 0), time(5, 0, 0, 0), "2026-03-29T00:30:00Z", "2026-03-29T03:00:00Z"),
            (time(1, 0, 0, 0), time(2, 30, 0, 0), "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"),
            (time(2, 10, 0, 0), time(2, 50, 0, 0), "2026-03-29T00:10:00Z", "2026-03-29T01:50:00Z"),
            (time(2, 30, 0, 0), time(3, 15, 0, 0), "2026-03-29T00:30:00Z", "2026-03-29T01:15:00Z"),
            (time(2, 30, 0, 0), time(5, 0, 0, 0), "2026-10-25T00:30:00Z", "2026-10-25T04:00:00Z"),
            (time(1, 0, 0, 0), time(2, 30, 0, 0), "2026-10-24T23:00:00Z", "2026-10-25T01:30:00Z"),
        ] {
            let policy = night(from, to);
            let [start, end]: [Timestamp; 2] = [start, end].map(|time| time.parse().unwrap());
            let second = 1.second();
            assert_eq!(policy.minimum(start - second), (1, Some(start)), "{from} to {to}");
            assert_eq!(policy.minimum(start), (5, Some(end)), "{from} to {to}");
            assert_eq!(policy.minimum(end - second), (5, Some(end)), "{from} to {to}");
            assert_eq!(policy.minimum(end).0, 1, "{from} to {to}");
        }
    }

    #[test]
    fn windows_overlap_and_never_exceed_the_maximum() {
        let mut policy = policy(&WORKDAYS, time(8, 0, 0, 0), time(18, 0, 0, 0));
        let high = WarmWindow {
            from: time(9, 0, 0, 0),
            to: time(10, 0, 0, 0),
            minimum: 100,
            ..policy.windows[0].clone()
        };
        policy.windows.push(high);
        let at = |time: &str| policy.minimum(time.parse().unwrap());
        assert_eq!(at("2026-11-13T07:30:00Z"), (5, Some("2026-11-13T08:00:00Z".parse().unwrap())));
        assert_eq!(at("2026-11-13T08:30:00Z"), (8, Some("2026-11-13T09:00:00Z".parse().unwrap())));
    }

    #[test]
    fn the_ends_of_time_and_too_many_windows_are_survived() {
        let mut policy = policy(&WORKDAYS, time(8, 0, 0, 0), time(18, 0, 0, 0));
        for now in [Timestamp::MIN, Timestamp::MAX] {
            assert_eq!(policy.minimum(now).0, 1);
        }
        let late = WarmWindow { minimum: 7, ..policy.windows[0].clone() };
        policy.windows.resize(MAX_WINDOWS, policy.windows[0].clone());
        policy.windows.push(late);
        assert_eq!(policy.minimum("2026-11-13T09:00:00Z".parse().unwrap()).0, 5);
    }
}
