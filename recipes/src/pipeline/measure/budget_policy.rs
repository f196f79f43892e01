//! How a measurement budget is divided: one policy, with the unit and the reason of every number.

use std::time::Duration;

/// How a measurement budget is divided. Parts are of the whole budget of `optimize` or `sweep`, from 0 to 1, unless a field says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetPolicy {
    /// For finding out which fusions of contractions pay, by undoing them one by one.
    pub partial_fusion: f64,
    /// For fresh samples of what the merged program is made of.
    pub merging: f64,
    /// On a GPU, where code takes far longer to make than to time: the first round over all programs. What is left goes to the fastest.
    pub gpu_first_round: f64,
    /// On a GPU: how many times as long as the fastest program another may take after its first look before it is given up.
    pub hopeless_ratio: f64,
    /// On a GPU: a program that takes this many times as long by all that earlier sweeps have measured gets no more time.
    pub behind_ratio: f64,
    /// Less time than this is not worth going through a program once more.
    pub least: Duration,
    /// How often the choice of the merged program is made once more with fresh samples before another may stand.
    pub merging_rounds: u32,
    /// Of one program's share: fresh samples of what a choice is made of, and relayouts.
    pub confirming: f64,
    /// Of one program's share: other knobs in the layouts that the choice takes.
    pub refining: f64,
    /// Of one program's share: compiling the first kernels, many at a time.
    pub precompiling: f64,
    /// Of one program's share: the first look, after which a program that is far slower than others is given up. It is not one
    /// configuration of each kernel, since which of its kernels pay is asked later, too.
    pub first_look: f64,
    /// Of one program's share: so little may be left that no further round begins.
    pub unused: f64,
    /// Of the time for whole plans: checks may take this much until no other is begun.
    pub checking_plans: f64,
    /// Of the time for whole plans: after this no choice is made once more within the step.
    pub reselecting: f64,
}

impl BudgetPolicy {
    pub const DEFAULT: BudgetPolicy = BudgetPolicy {
        partial_fusion: 0.12,
        merging: 0.03,
        gpu_first_round: 0.6,
        hopeless_ratio: 3.0,
        behind_ratio: 1.25,
        least: Duration::from_secs(1),
        merging_rounds: 3,
        confirming: 0.15,
        refining: 0.3,
        precompiling: 0.25,
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
    fn parts_leave_something_to_what_they_are_parts_of() {
        let policy = BudgetPolicy::DEFAULT;
        assert!(policy.partial_fusion + policy.merging < 0.5);
        assert!(policy.confirming + policy.refining < 1.0 && policy.precompiling + policy.confirming + policy.refining < 1.0);
        assert!(policy.checking_plans < policy.reselecting && policy.reselecting < 1.0);
        assert!(policy.hopeless_ratio > policy.behind_ratio && policy.behind_ratio > 1.0);
    }
}
