//! How the pools of a simulation are scaled.

use coder_k8s_core::autoscaling::{ScalingPolicy, WarmWindow};
use jiff::{
    SignedDuration,
    civil::{Weekday, time},
    tz::TimeZone,
};

/// A choice of `spec.autoscaling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Only a maximum, the size of the reference fleet. Everything else is the default.
    ToZero,
    /// Spare daemons, and a quarter of the maximum in the morning.
    Warm,
    /// As `ToZero`, with four times the maximum: what is not used costs nothing.
    Wide,
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ToZero, Self::Warm, Self::Wide];

    /// As it is called in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::ToZero => "to zero",
            Self::Warm => "warm",
            Self::Wide => "wide",
        }
    }

    /// The policy of a pool whose part of the reference fleet is `reference`.
    pub fn policy(self, reference: u32) -> ScalingPolicy {
        let to_zero = ScalingPolicy {
            min: 0,
            max: reference,
            spare: 0,
            scale_down_after: SignedDuration::from_mins(5),
            windows: Vec::new(),
        };
        match self {
            Self::ToZero => to_zero,
            Self::Wide => ScalingPolicy { max: reference.saturating_mul(4), ..to_zero },
            Self::Warm => {
                let window = WarmWindow {
                    days: Weekday::Monday.cycle_forward().take(5).collect(),
                    from: time(8, 0, 0, 0),
                    to: time(10, 0, 0, 0),
                    zone: TimeZone::UTC,
                    minimum: reference.div_ceil(4),
                };
                ScalingPolicy { spare: reference.div_ceil(20), windows: vec![window], ..to_zero }
            }
        }
    }
}
