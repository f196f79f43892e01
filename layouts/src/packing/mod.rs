//! Weighted set packing of fusion patterns over a graph of operators, proven.
//!
//! A plan of fusion chooses patterns (sets of operators that become one kernel) such that no operator is in two of them and the graph of
//! kernels has no cycle. It maximises the sum of the patterns' scores: max Σ f(P)·X_P with Σ_{P∋v} X_P ≤ 1 for every operator v, and
//! Σ_{P∈C} X_P ≤ |C|−1 for every set C of patterns that wait for one another.
//!
//! - [`dag`], [`problem`]: the operators in a topological order; patterns with scores. Patterns with a negative score and patterns that a
//!   path leaves and enters again are no candidates.
//! - [`score`]: the score of a pattern by a measured bandwidth curve and a measured launch time.
//! - [`mod@greedy`]: best score first, with an incremental topological order ([`order`]).
//! - [`intervals`]: patterns that are intervals of one order, by dynamic programming.
//! - [`branch`]: all others, by branch and bound; bounds are duals of the linear relaxation ([`simplex`]), cycles are cut when a choice
//!   has them ([`cycles`]).
//! - [`planner`]: parts that share no operator are solved apart, and equal ones once.
//! - [`certificate`], [`verify`]: the choice with its proof, and a check of both that shares no code with the solver.
//! - [`mod@cover`], [`cover_verify`]: the same choice where an operator may be computed in several kernels.
//!
//! Source: "FusionStitching" (Long, Yang, Lin), §4.1.

pub mod branch;
pub mod certificate;
pub mod cover;
pub mod cover_verify;
pub mod cycles;
pub mod dag;
pub mod greedy;
pub mod intervals;
pub mod order;
pub mod planner;
pub mod problem;
pub mod score;
pub mod simplex;
pub mod verify;

pub use certificate::PackingCertificate;
pub use dag::Dag;
pub use greedy::greedy;
pub use planner::{PackingLimits, PackingPlan, Statistics, plan};
pub use problem::{Dropped, FusionPattern, PackingProblem};
