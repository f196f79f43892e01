//! Configurations by number: each choice of a space is a digit, and the numbers are of mixed radix.

use crate::config_space::TensorChoice;
use sdfg::Layout;

/// The rest of a number, after the digits taken so far; the fastest digit is taken first.
pub struct MixedRadix(u64);

impl MixedRadix {
    /// The number of one of `count` configurations; a larger one stands for its remainder.
    pub fn of(n: u64, count: u64) -> Self {
        MixedRadix(n % count.max(1))
    }

    /// The next digit, of a choice among `radix`.
    pub fn below(&mut self, radix: usize) -> usize {
        let radix = radix.max(1) as u64;
        let digit = self.0 % radix;
        self.0 /= radix;
        digit as usize
    }

    /// The position of a layout of each tensor; that of the first is the slowest digit.
    pub fn picks(&mut self, tensors: &[TensorChoice]) -> Vec<usize> {
        let mut picks: Vec<usize> = tensors.iter().rev().map(|t| self.below(t.layouts.len())).collect();
        picks.reverse();
        picks
    }

    /// A layout of each tensor; that of the first is the slowest digit.
    pub fn layouts<C: FromIterator<(String, Layout)>>(&mut self, tensors: &[TensorChoice]) -> C {
        let picks = self.picks(tensors);
        tensors.iter().zip(picks).map(|(t, pick)| (t.data.clone(), t.layouts[pick].clone())).collect()
    }
}

/// Choices of layouts of all tensors; the largest number where there are more.
pub fn layouts(tensors: &[TensorChoice]) -> u64 {
    tensors.iter().map(|t| t.layouts.len() as u64).fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_means_another_choice() {
        let tensor = |data: &str, dims: &[&str]| {
            let dims: Vec<String> = dims.iter().map(|d| d.to_string()).collect();
            TensorChoice { data: data.into(), layouts: Layout::permutations(&dims) }
        };
        let tensors = [tensor("x", &["i", "j"]), tensor("y", &["i", "j", "k"])];
        assert_eq!(layouts(&tensors), 12);
        let all: std::collections::BTreeSet<(usize, String)> = (0..36)
            .map(|n| {
                let mut digits = MixedRadix::of(n, 36);
                let knob = digits.below(3);
                let layouts: Vec<(String, Layout)> = digits.layouts(&tensors);
                (knob, format!("{layouts:?}"))
            })
            .collect();
        assert_eq!(all.len(), 36);
        assert_eq!(MixedRadix::of(37, 36).below(3), 1);
    }
}
