//! How long a sweep may take, and what it spends its time on.

use crate::measure::candidates::Shard;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct SweepOptions {
    /// `None`: to the end of the space.
    pub budget: Option<Duration>,
    pub shard: Shard,
    /// How many of the fastest of each kernel get fresh samples.
    pub finalists: usize,
    /// Part of the budget kept for them.
    pub finalist_share: f64,
    /// A configuration is given up when it takes longer than its limit times this: room for noise.
    pub margin: f64,
    /// Relayouts measured of each container before the space.
    pub relayouts: u64,
    /// Part of the budget for finding twins, and how many of each kernel are kept.
    pub twin_share: f64,
    pub twins: u64,
    /// Whether making code takes so long that a configuration of a small kernel costs what one of a large kernel does.
    pub costly: bool,
    /// The relative gain below which the rest of the budget is not used (see [`crate::measure::settling`]); `None` uses all of it.
    pub settle: Option<f64>,
}

impl Default for SweepOptions {
    fn default() -> Self {
        SweepOptions {
            budget: None,
            shard: Shard::WHOLE,
            finalists: 4,
            finalist_share: 0.1,
            margin: 1.15,
            relayouts: 2,
            twin_share: 0.03,
            twins: 1024,
            costly: false,
            settle: None,
        }
    }
}

impl SweepOptions {
    /// The same for a sweep that has the last part of its budget: the usual shares that are kept for the end are those of that part,
    /// however often a budget is gone on with.
    pub fn for_the_last(self, part: f64) -> Self {
        let SweepOptions { finalist_share, twin_share, .. } = SweepOptions::default();
        SweepOptions { finalist_share: finalist_share * part, twin_share: twin_share * part, ..self }
    }
}
