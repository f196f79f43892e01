//! Measuring the space of configurations, and choosing one configuration for the whole program.
//!
//! This crate runs nothing and reads no clock: kernels and times come in through the traits of [`measure::space`].
//!
//! Its folders use one another one way, each only those before it:
//! - [`problem`]: the selection problem, as plain data;
//! - [`measure`]: the order of measurements ([`measure::sweep`]) and their records ([`store`]);
//! - [`model`]: the choice as numbers ([`model::selection_model`], [`model::network`]), also of several programs at once
//!   ([`alternatives`]);
//! - [`solve`]: the shortest path of the paper ([`config_graph`], [`shortest_path`], [`solve::sssp`]), or the optimum with a proof
//!   ([`exact`], for many equal layers [`stack`]); [`selection`] is the entrance;
//! - [`packing`]: which patterns of operators become kernels, chosen from scores alone, with a proof of its own;
//! - [`certify`]: a proof as a file ([`certificate`]), its checker ([`verify`]), and what else could be chosen ([`explain`]).
//!
//! # What a choice costs
//! Every container is *held* in one layout. A kernel may read or write it in another one; then a relayout runs before
//! the kernel (read: held to wanted) or after it (write: written to held). The cost of a choice is the sum of the
//! chosen kernel times and of these relayouts, in milliseconds. Relayouts for two readers are counted twice, although one
//! relayout may serve both when the choice runs: the cost is an upper bound.
//!
//! Source: "Data Movement Is All You Need", V-B (sweep) and VI-A (selection).

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo, clippy::unimplemented)
)]

pub mod certify;
pub mod measure;
pub mod model;
pub mod packing;
pub mod problem;
pub mod solve;

pub use certify::{certificate, explain, verify};
pub use measure::options::SweepOptions;
pub use measure::record::{Measurement, Outcome, Session};
pub use measure::space::{Bench, Check, Clock, Fault, KernelSpace, RelayoutSpace, TensorSpace, TimingResult};
pub use measure::store::{Store, StoreError};
pub use measure::sweep::{Finish, Progress, SweepError, SweepReport, Sweeper, sweep};
pub use measure::tally::Tally;
pub use measure::{candidates, options, record, relayout, store};
pub use model::network::Network;
pub use model::selection_model::{Model, SelectError};
pub use model::{alternatives, cost};
pub use problem::{Access, SelectionProblem};
pub use solve::selection::{Method, Selection, select, select_each};
pub use solve::{config_graph, count, exact, robust, selection, shortest_path, solution, stack, uniform};
