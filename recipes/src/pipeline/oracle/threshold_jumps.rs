//! Results that jump where a computed value lies within rounding of a threshold, and how far they may be from the reference then.

use ndarray::ArrayD;
use sdfg::{Binary, Dtype, Scalar, Unit, tolerance};

/// Whether a kernel decides by comparing computed values, as the derivative of a rectifier does: its results jump where a
/// value lies within rounding of the threshold.
pub fn compares_values(unit: &Unit) -> bool {
    let Unit::Scope(scope) = unit else { return false };
    let mut found = false;
    for (_, code) in scope.computations().iter().flat_map(|(_, c)| &c.tasklet.code) {
        code.walk(&mut |s| found |= matches!(s, Scalar::Select(condition, ..) if !condition.inputs().is_empty()));
        // A stored sign is the result of the comparison itself.
        found |= matches!(code, Scalar::Binary(Binary::Gt, x, _) if !x.inputs().is_empty());
    }
    found
}

/// Relative distance in the Euclidean norm that jumps may cause. A sum of n terms has a rounding error of about u·√n of its magnitude. Of
/// values spread evenly around the threshold, the share 4·u·√n lies within two standard deviations on either side and may be decided
/// otherwise. Each such value changes its term entirely, so the relative distance is the square root of that share.
pub fn kink_bound(dtype: Dtype, length: u64) -> f64 {
    (4.0 * dtype.roundoff() * (length as f64).sqrt()).sqrt()
}

/// The ratio of error to tolerance of one unit's result. Where the unit compares values and single elements jumped, the ratio is that of
/// the whole result's distance to [`kink_bound`].
pub fn within_jumps(unit: &Unit, tolerance: &tolerance::Tolerance, got: &ArrayD<f64>, want: &ArrayD<f64>, ratio: f64) -> f64 {
    if ratio <= 1.0 || !compares_values(unit) {
        return ratio;
    }
    let bound = match tolerance.dtype {
        // Bits have no rounding error; among few bits, any one may have been close to the threshold.
        Dtype::Bit => f64::max(kink_bound(Dtype::F32, tolerance.length), (2.0 / got.len() as f64).sqrt()),
        dtype => f64::max(kink_bound(dtype.accumulator(), tolerance.length), kink_bound(dtype, 1)),
    };
    ratio.min(distance(got, want) / bound)
}

/// |got − want| ÷ |want| in the Euclidean norm.
pub fn distance(got: &ArrayD<f64>, want: &ArrayD<f64>) -> f64 {
    let square = |v: f64| v * v;
    let apart: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    let size: f64 = want.iter().map(|w| square(*w)).sum();
    if apart == 0.0 { 0.0 } else { (apart / size).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::IxDyn;

    /// One flipped element among many passes; a wrong scale, a wrong block or a NaN does not.
    #[test]
    fn jumps_differ_from_mistakes() {
        let want = ArrayD::from_shape_fn(IxDyn(&[2000, 1000]), |i| ((i[0] * 7 + i[1] * 13) % 29) as f64 - 14.0);
        let bound = kink_bound(Dtype::F32, 1024);
        let mut flipped = want.clone();
        flipped[[3, 5]] = 0.0;
        assert!(distance(&flipped, &want) < bound);
        assert!(distance(&want.mapv(|v| v * 1.01), &want) > bound);
        let mut missing = want.clone();
        missing.slice_mut(ndarray::s![0, ..]).fill(0.0);
        assert!(distance(&missing, &want) > bound);
        let mut lost = want.clone();
        lost[[0, 0]] = f64::NAN;
        // The ratio of a NaN is infinite and stays so: a NaN is never excused.
        assert!(f64::INFINITY.min(distance(&lost, &want)).is_infinite());
    }
}
