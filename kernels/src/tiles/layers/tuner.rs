//! The tuner of "Accelerating Deep Learning Inference with Cross-Layer Data Reuse on GPUs" (§3.3): which tiles it tries. It is a rule of
//! thumb beside the sweep; reports say how much longer its best tile takes than the best that was measured.
//!
//! - Along each dim a tile has a factor of the extent, but not 1 nor all of it: of 12 it tries 2, 3, 4 and 6.
//! - A prime extent is rounded up to the next number that is none: of 13 it tries the factors of 14, and the last tile overhangs.
//! - Intermediate results take less than a third of the memory near a processor.
//!
//! What it says about banks and about constant memory concerns GPUs alone.

/// Sizes of tiles along an extent.
pub fn sizes(extent: i64) -> Vec<i64> {
    let factors = |n: i64| (2..n).filter(move |size| n % size == 0).collect::<Vec<i64>>();
    // Of 1 and 2 there are no others.
    (extent..).take(3).map(factors).find(|found| !found.is_empty()).unwrap_or_else(|| vec![extent])
}

/// Whether intermediate results of so many bytes leave room for what streams past them.
pub fn fits(bytes: f64, near: f64) -> bool {
    bytes < near / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_factors_and_primes_are_rounded_up() {
        assert_eq!(sizes(12), [2, 3, 4, 6]);
        assert_eq!(sizes(13), [2, 7]);
        assert_eq!(sizes(28), [2, 4, 7, 14]);
        assert_eq!(sizes(2), [2]);
        assert!(fits(100.0, 301.0) && !fits(100.0, 300.0));
    }
}
