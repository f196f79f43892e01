//! Statistics of samples: order statistics, bootstrap intervals, ratios of interleaved runs, kernel density.
//!
//! Every function is deterministic: the bootstrap draws from a generator with a fixed seed, so that a report drawn twice
//! from the same samples is the same report.

use serde::{Deserialize, Serialize};

/// Resamplings of a bootstrap. The ends of a 95% interval are the 50th values from either side, which leaves their own
/// sampling error well below the spread that they describe.
const RESAMPLES: usize = 2000;

/// Any constant serves; it is fixed so that equal samples give equal intervals.
const SEED: u64 = 0x4d65_6d6c_6574;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StatsError {
    #[error("no samples: measure at least once before asking for statistics")]
    Empty,
    #[error("sample {index} is {value}: only finite numbers have an order; look for a failed run at that position")]
    NotFinite { index: usize, value: f64 },
    #[error("{left} samples against {right}: interleaved runs have equally many; pair them before taking ratios")]
    Unpaired { left: usize, right: usize },
    #[error("sample {index} of the denominator is {value}: a ratio needs positive times")]
    NotPositive { index: usize, value: f64 },
}

/// A closed interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub lower: f64,
    pub upper: f64,
}

/// At least one sample, all finite, in the order in which they were taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    taken: Vec<f64>,
    sorted: Vec<f64>,
}

/// Statistics of a distribution for tables; all in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub count: usize,
    pub minimum: f64,
    pub lower_quartile: f64,
    pub median: f64,
    pub upper_quartile: f64,
    pub maximum: f64,
    /// Bootstrap 95% interval of the median.
    pub interval: Interval,
}

impl Summary {
    /// Interquartile range over median; 0 for a median of 0.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.upper_quartile - self.lower_quartile) / self.median }
    }
}

impl Samples {
    /// # Errors
    /// [`StatsError::Empty`], [`StatsError::NotFinite`].
    pub fn new(taken: Vec<f64>) -> Result<Self, StatsError> {
        if taken.is_empty() {
            return Err(StatsError::Empty);
        }
        if let Some((index, value)) = taken.iter().enumerate().find(|(_, v)| !v.is_finite()) {
            return Err(StatsError::NotFinite { index, value: *value });
        }
        let mut sorted = taken.clone();
        sorted.sort_by(f64::total_cmp);
        Ok(Samples { taken, sorted })
    }

    /// In the order in which they were taken.
    pub fn taken(&self) -> &[f64] {
        &self.taken
    }

    /// The quantile at `fraction` in [0, 1], linear between neighbours (type 7, as in R and NumPy).
    pub fn quantile(&self, fraction: f64) -> f64 {
        quantile(&self.sorted, fraction)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn summary(&self) -> Summary {
        Summary {
            count: self.taken.len(),
            minimum: self.quantile(0.0),
            lower_quartile: self.quantile(0.25),
            median: self.median(),
            upper_quartile: self.quantile(0.75),
            maximum: self.quantile(1.0),
            interval: self.interval(),
        }
    }

    /// Percentile bootstrap 95% interval of the median.
    pub fn interval(&self) -> Interval {
        let n = self.taken.len();
        bootstrap(n, |draw| {
            let mut again: Vec<f64> = draw.iter().filter_map(|i| self.taken.get(*i)).copied().collect();
            again.sort_by(f64::total_cmp);
            quantile(&again, 0.5)
        })
    }

    /// Gaussian kernel density at `points` places spread over the samples' range, as (place, density), with Silverman's
    /// bandwidth. Samples without spread give one place of density 1.
    pub fn density(&self, points: usize) -> Vec<(f64, f64)> {
        let (low, high) = (self.quantile(0.0), self.quantile(1.0));
        let n = self.taken.len() as f64;
        let mean = self.taken.iter().sum::<f64>() / n;
        let deviation = (self.taken.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        let quartile_width = (self.quantile(0.75) - self.quantile(0.25)) / 1.34;
        let width = if quartile_width > 0.0 { deviation.min(quartile_width) } else { deviation };
        let bandwidth = 0.9 * width * n.powf(-0.2);
        if !(bandwidth > 0.0 && high > low) || points < 2 {
            return vec![(self.median(), 1.0)];
        }
        let norm = 1.0 / (n * bandwidth * std::f64::consts::TAU.sqrt());
        (0..points)
            .map(|p| {
                let at = low + (high - low) * p as f64 / (points - 1) as f64;
                // Beyond five bandwidths a Gaussian adds less than 4e-6 of its peak: the sorted window suffices.
                let from = self.sorted.partition_point(|x| *x < at - 5.0 * bandwidth);
                let to = self.sorted.partition_point(|x| *x <= at + 5.0 * bandwidth);
                let sum: f64 =
                    self.sorted.get(from..to).unwrap_or_default().iter().map(|x| (-0.5 * ((x - at) / bandwidth).powi(2)).exp()).sum();
                (at, sum * norm)
            })
            .collect()
    }
}

/// The median of `numerator` over the median of `denominator`, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub median: f64,
    /// Bootstrap over rounds; its lower end is what counts in a claim.
    pub interval: Interval,
}

/// Ratio of two contenders measured A B A B: whole rounds are resampled, so that drift of the machine, which hits both
/// sides of a round alike, does not widen the interval.
///
/// # Errors
/// [`StatsError::Unpaired`], [`StatsError::NotPositive`].
pub fn paired_ratio(numerator: &Samples, denominator: &Samples) -> Result<Ratio, StatsError> {
    let (left, right) = (numerator.taken(), denominator.taken());
    if left.len() != right.len() {
        return Err(StatsError::Unpaired { left: left.len(), right: right.len() });
    }
    if let Some((index, value)) = right.iter().enumerate().find(|(_, v)| **v <= 0.0) {
        return Err(StatsError::NotPositive { index, value: *value });
    }
    let interval = bootstrap(left.len(), |draw| {
        let (mut above, mut below): (Vec<f64>, Vec<f64>) = draw.iter().filter_map(|i| Some((*left.get(*i)?, *right.get(*i)?))).unzip();
        above.sort_by(f64::total_cmp);
        below.sort_by(f64::total_cmp);
        quantile(&above, 0.5) / quantile(&below, 0.5)
    });
    Ok(Ratio { median: numerator.median() / denominator.median(), interval })
}

/// `statistic` of draws with replacement from `0..n`; the 2.5% and 97.5% quantiles of its values.
fn bootstrap(n: usize, statistic: impl Fn(&[usize]) -> f64) -> Interval {
    let mut state = SEED;
    let mut draw = vec![0; n];
    let mut values: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for slot in &mut draw {
                *slot = (split_mix(&mut state) % n as u64) as usize;
            }
            statistic(&draw)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    Interval { lower: quantile(&values, 0.025), upper: quantile(&values, 0.975) }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `sorted` is not empty wherever this is called; an empty slice gives 0 rather than a panic.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let place = fraction.clamp(0.0, 1.0) * sorted.len().saturating_sub(1) as f64;
    let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
    let (low, high) = (at(place.floor() as usize), at(place.ceil() as usize));
    low + (high - low) * place.fract()
}

/// Spearman's rank correlation of pairs, equal values with the mean of their ranks; `None` with fewer than three pairs, or where one side
/// has one value only.
pub fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    if pairs.len() < 3 {
        return None;
    }
    let ranks = |side: fn(&(f64, f64)) -> f64| -> Vec<f64> {
        let rank = |value: f64| {
            let (below, equal) = pairs
                .iter()
                .map(side)
                .fold((0, 0), |(below, equal), other| (below + usize::from(other < value), equal + usize::from(other == value)));
            below as f64 + (equal as f64 + 1.0) / 2.0
        };
        pairs.iter().map(|pair| rank(side(pair))).collect()
    };
    let (x, y) = (ranks(|p| p.0), ranks(|p| p.1));
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let scale = (product(&x, &x) * product(&y, &y)).sqrt();
    (scale > 0.0).then(|| product(&x, &y) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples::new(values.to_vec()).unwrap()
    }

    #[test]
    fn quartiles_are_type_seven() {
        let s = samples(&[4.0, 1.0, 3.0, 2.0]).summary();
        assert_eq!((s.minimum, s.lower_quartile, s.median, s.upper_quartile, s.maximum), (1.0, 1.75, 2.5, 3.25, 4.0));
        assert_eq!(s.spread(), 0.6);
    }

    #[test]
    fn nothing_and_nan_are_refused() {
        assert_eq!(Samples::new(vec![]), Err(StatsError::Empty));
        assert!(matches!(Samples::new(vec![1.0, f64::NAN]), Err(StatsError::NotFinite { index: 1, .. })));
        assert!(matches!(Samples::new(vec![f64::INFINITY]), Err(StatsError::NotFinite { index: 0, .. })));
    }

    #[test]
    fn one_sample_has_no_spread() {
        let s = samples(&[5.0]);
        assert_eq!(s.interval(), Interval { lower: 5.0, upper: 5.0 });
        assert_eq!(s.density(64), vec![(5.0, 1.0)]);
    }

    #[test]
    fn interval_holds_the_median_and_narrows_with_more_samples() {
        let noisy = |n: usize| {
            let mut state = 7;
            samples(&(0..n).map(|_| 10.0 + (split_mix(&mut state) % 1000) as f64 / 1000.0).collect::<Vec<_>>())
        };
        let (few, many) = (noisy(10), noisy(1000));
        for s in [&few, &many] {
            let interval = s.interval();
            assert!(interval.lower <= s.median() && s.median() <= interval.upper);
            assert_eq!(interval, s.interval(), "the bootstrap is deterministic");
        }
        let width = |s: &Samples| s.interval().upper - s.interval().lower;
        assert!(width(&many) < width(&few));
    }

    #[test]
    fn common_drift_cancels_in_a_paired_ratio() {
        let drift: Vec<f64> = (0..40).map(|n| 1.0 + f64::from(n)).collect();
        let double: Vec<f64> = drift.iter().map(|x| 2.0 * x).collect();
        let ratio = paired_ratio(&samples(&double), &samples(&drift)).unwrap();
        assert_eq!(ratio, Ratio { median: 2.0, interval: Interval { lower: 2.0, upper: 2.0 } });
    }

    #[test]
    fn ratios_need_rounds_and_positive_times() {
        let (two, three) = (samples(&[1.0, 2.0]), samples(&[1.0, 2.0, 3.0]));
        assert_eq!(paired_ratio(&two, &three), Err(StatsError::Unpaired { left: 2, right: 3 }));
        let zero = samples(&[1.0, 0.0]);
        assert_eq!(paired_ratio(&two, &zero), Err(StatsError::NotPositive { index: 1, value: 0.0 }));
    }

    #[test]
    fn density_integrates_to_the_mass_within_the_range() {
        let s = samples(&(0..200).map(|n| f64::from(n % 20)).collect::<Vec<_>>());
        let density = s.density(400);
        let step = density[1].0 - density[0].0;
        let mass: f64 = density.windows(2).map(|w| 0.5 * (w[0].1 + w[1].1) * step).sum();
        // The tails cut at the range hold at most half of the mass of the samples within a bandwidth or so of either
        // end: well under a fifth here.
        assert!((0.8..=1.0).contains(&mass), "{mass}");
    }

    /// Of three values one is twice: ranks 1.5, 1.5, 3 against 1, 2, 3 give √3/2 (as scipy.stats.spearmanr does, 0.8660254).
    #[test]
    fn ranks_correlate() {
        let near = |pairs: &[(f64, f64)], rho: f64| assert!((rank_correlation(pairs).unwrap() - rho).abs() < 1e-12);
        near(&[(1.0, 10.0), (2.0, 400.0), (3.0, 401.0)], 1.0);
        near(&[(1.0, 5.0), (2.0, 4.0), (9.0, -3.0)], -1.0);
        near(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0)], 0.75f64.sqrt());
        assert_eq!(rank_correlation(&[(1.0, 2.0), (2.0, 3.0)]), None);
        assert_eq!(rank_correlation(&[(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]), None);
    }
}
