//! Why results differ from what NumPy or PyTorch have. Each difference needs a reason, and each reason a difference.

use super::Difference;

pub struct Reason {
    pub text: &'static str,
    applies: fn(&Difference) -> bool,
}

pub const ALL: &[Reason] = &[];

/// The number of the reason of a difference.
pub fn of(difference: &Difference) -> Option<usize> {
    ALL.iter().position(|reason| (reason.applies)(difference))
}

/// Reasons that explain nothing any more.
pub fn idle(differences: &[Difference]) -> Vec<&'static str> {
    let used: Vec<usize> = differences.iter().filter_map(of).collect();
    ALL.iter().enumerate().filter(|(n, _)| !used.contains(n)).map(|(_, reason)| reason.text).collect()
}
