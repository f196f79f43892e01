//! The model's score of a pattern: the time of the bytes that it saves, and of the launches.
//!
//! f(P) = M(V) + (N−1)·φ, or negative where a block cannot hold what it must. V are bytes that no longer go to memory, M(V) = V / B(V) with
//! B the measured bandwidth of moving V bytes, φ the measured time of a launch.
//!
//! Source: "FusionStitching" (Long, Yang, Lin), §4.3 and Fig. 4.

use crate::model::cost::Cost;
use serde::{Deserialize, Serialize};

/// Times to move bytes: what Fig. 4 of the paper shows as bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Bytes and picoseconds, bytes rising.
    points: Vec<(u64, Cost)>,
}

impl Curve {
    /// The curve through measured points, in any order. Where fewer bytes took longer than more, they take as long as those.
    pub fn measured(points: impl IntoIterator<Item = (u64, Cost)>) -> Self {
        let mut points: Vec<(u64, Cost)> = points.into_iter().filter(|(bytes, _)| *bytes > 0).collect();
        points.sort_unstable();
        points.dedup_by_key(|(bytes, _)| *bytes);
        for n in (1..points.len()).rev() {
            points[n - 1].1 = points[n - 1].1.min(points[n].1);
        }
        Curve { points }
    }

    /// A memory of this bandwidth, of which transfers of `half` bytes reach half.
    pub fn saturating(bytes_per_second: f64, half: u64) -> Self {
        let time = |bytes: u64| ((bytes + half) as f64 / bytes_per_second * 1e12).round() as Cost;
        Curve { points: (6..36).map(|log| (1u64 << log, time(1 << log))).collect() }
    }

    pub fn points(&self) -> &[(u64, Cost)] {
        &self.points
    }

    /// Picoseconds to move bytes: between measured points on a line, beyond the last one at its bandwidth, none for none.
    pub fn time(&self, bytes: u64) -> Cost {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return 0 };
        if bytes == 0 {
            return 0;
        }
        let at = self.points.partition_point(|(known, _)| *known < bytes);
        let between = |(a, fa): (u64, Cost), (b, fb): (u64, Cost)| {
            let share = (bytes - a) as f64 / (b - a) as f64;
            fa + ((fb - fa) as f64 * share).round() as Cost
        };
        match at {
            0 => first.1,
            _ if at == self.points.len() => (last.1 as f64 * (bytes as f64 / last.0 as f64)).round() as Cost,
            _ => between(self.points[at - 1], self.points[at]),
        }
    }

    /// Bytes for a second at a volume.
    pub fn bandwidth(&self, bytes: u64) -> f64 {
        let time = self.time(bytes);
        if time == 0 { 0.0 } else { bytes as f64 / time as f64 * 1e12 }
    }
}

/// A device as the model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreModel {
    pub curve: Curve,
    /// φ, picoseconds.
    pub launch_ps: Cost,
    /// Bytes that a block can hold.
    pub on_chip: u64,
}

/// The score of a pattern that has no kernel.
pub const NO_KERNEL: Cost = -1;

impl ScoreModel {
    /// Picoseconds saved by a pattern that saves bytes and launches and must hold `on_chip` bytes in a block.
    pub fn score(&self, bytes: u64, launches: u64, on_chip: u64) -> Cost {
        if on_chip > self.on_chip {
            return NO_KERNEL;
        }
        self.curve.time(bytes) + launches as Cost * self.launch_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rise_along_measured_points() {
        let curve = Curve::measured([(4096, 200), (1024, 150), (2048, 140)]);
        assert_eq!(curve.points(), [(1024, 140), (2048, 140), (4096, 200)]);
        assert_eq!([0, 1, 1024, 3072, 4096, 8192].map(|bytes| curve.time(bytes)), [0, 140, 140, 170, 200, 400]);
        assert!((curve.bandwidth(4096) - 4096.0 / 200e-12).abs() < 1.0);
    }

    #[test]
    fn half_of_the_bandwidth_is_reached_at_half() {
        let curve = Curve::saturating(650e9, 1 << 20);
        assert!((curve.bandwidth(1 << 20) / 325e9 - 1.0).abs() < 1e-3);
        assert!(curve.bandwidth(1 << 30) > 640e9);
    }

    #[test]
    fn patterns_that_do_not_fit_have_no_kernel() {
        let model = ScoreModel { curve: Curve::saturating(650e9, 1 << 20), launch_ps: 8_000_000, on_chip: 48 << 10 };
        assert_eq!(model.score(1 << 20, 3, 50_000), NO_KERNEL);
        assert_eq!(model.score(0, 3, 0), 24_000_000);
    }
}
