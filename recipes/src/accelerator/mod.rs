//! Plans for accelerators with an on-chip memory (Deep Fusion, Zhuang et al., 2019), made from a model instead of measured.
//!
//! A program becomes [layers], layers become [steps], and steps are [partitioned](partition) into groups, each of which runs under
//! the cheapest of its [schedules]. The plan is written as [moves] and [simulated](simulate) element by element, so that its traffic is
//! counted. The partition is [proven](certificate), which a [verifier](verify) checks without the planner. The paper's own method stands
//! beside it ([greedy]).

pub mod certificate;
pub mod derive;
pub mod device;
pub mod greedy;
pub mod layers;
pub mod memory;
pub mod moves;
#[cfg(test)]
mod networks;
pub mod outcome;
pub mod partition;
pub mod report;
pub mod schedules;
pub mod shapes;
pub mod simulate;
pub mod steps;
#[cfg(test)]
mod tests;
pub mod verify;

pub use outcome::{AcceleratorError, PlanComparison};
