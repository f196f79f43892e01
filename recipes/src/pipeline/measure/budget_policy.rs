//! How a measurement budget is divided: one policy, with the unit and the reason of every number.

use std::time::Duration;

/// How a measurement budget is divided. Parts are of the whole budget of `optimize` or `sweep`, from 0 to 1, unless a field says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetPolicy {
    /// For deciding which fusions of contractions pay, by undoing them one by one.
    pub partial_fusion: f64,
    /// For kernels of the plan of fusion that is made anew once patterns have times.
    pub stitching_by_times: f64,
    /// For fresh samples of the merged program's kernels.
    pub merging: f64,
    /// On a GPU, where compiling takes far longer than timing: the first round over all programs. The rest goes to the fastest program.
    pub gpu_first_round: f64,
    /// On a GPU: a program whose time after its first look exceeds the fastest program's by this factor is given up.
    pub hopeless_ratio: f64,
    /// On a GPU: a program whose time by all earlier sweeps exceeds the fastest program's by this factor gets no more time.
    pub behind_ratio: f64,
    /// The shortest time for which another pass over a program is worthwhile.
    pub least: Duration,
    /// How many times the merged program is selected, each time with fresh samples of its kernels, before the last selection stands.
    pub merging_rounds: u32,
    /// Of one program's share: fresh samples of the chosen configurations and relayouts.
    pub confirming: f64,
    /// Of one program's share: other knobs in the chosen layouts.
    pub refining: f64,
    /// Of one program's share: the first look, after which a program that is far slower than others is given up. It allows more than one
    /// configuration of each kernel, because the search over partial fusion compares the kernels later.
    pub first_look: f64,
    /// Of one program's share: no further round begins when less than this is left.
    pub unused: f64,
    /// Of the time for whole plans: no further check begins after this part.
    pub checking_plans: f64,
    /// Of the time for whole plans: no further reselection within the step begins after this part.
    pub reselecting: f64,
}

impl BudgetPolicy {
    pub const DEFAULT: BudgetPolicy = BudgetPolicy {
        partial_fusion: 0.12,
        stitching_by_times: 0.06,
        merging: 0.03,
        gpu_first_round: 0.6,
        hopeless_ratio: 3.0,
        behind_ratio: 1.25,
        least: Duration::from_secs(1),
        merging_rounds: 3,
        confirming: 0.15,
        refining: 0.3,
        first_look: 0.25,
        unused: 0.03,
        checking_plans: 0.35,
        reselecting: 0.6,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_leave_some_of_the_whole() {
        let policy = BudgetPolicy::DEFAULT;
        assert!(policy.partial_fusion + policy.stitching_by_times + policy.merging < 0.5);
        assert!(policy.confirming + policy.refining < 1.0);
        assert!(policy.checking_plans < policy.reselecting && policy.reselecting < 1.0);
        assert!(policy.hopeless_ratio > policy.behind_ratio && policy.behind_ratio > 1.0);
    }
}
