//! Measuring the space of configurations, and choosing one configuration for the whole program.
//!
//! This crate runs nothing and reads no clock: kernels and times come in through the traits of [`problem`].
//! [`mod@sweep`] decides what to measure next, [`store`] keeps what was measured, [`selection`] chooses: with the shortest
//! path of the paper ([`config_graph`], [`shortest_path`], [`sssp`]) or exactly ([`exact`]). [`explain`] tells why.
//!
//! # What a choice costs
//! Every container is *held* in one layout. A kernel may read or write it in another one; then a relayout runs before
//! the kernel (read: held to wanted) or after it (write: written to held). The cost of a choice is the sum of the
//! chosen kernel times and of these relayouts, in milliseconds. Conversions for two readers are paid twice, although
//! whoever runs them may make one for both: what is chosen costs that much at most.
//!
//! Source: "Data Movement Is All You Need", V-B (sweep) and VI-A (selection).

pub mod alternatives;
pub mod candidates;
pub mod certificate;
pub mod config_graph;
pub mod cost;
pub mod count;
pub mod dual;
pub mod eliminate;
pub mod exact;
pub mod explain;
pub mod model;
pub mod network;
pub mod options;
pub mod problem;
pub mod race;
pub mod record;
pub mod refine;
pub mod relayout;
pub mod robust;
pub mod selection;
pub mod shortest_path;
pub mod solution;
pub mod sssp;
pub mod stack;
pub mod store;
pub mod sweep;
pub mod tally;
pub mod uniform;
pub mod verify;

pub use model::{Model, SelectError};
pub use network::Network;
pub use options::SweepOptions;
pub use problem::{Access, Bench, Check, Clock, Fault, KernelSpace, Program, RelayoutSpace, TensorSpace, Timing};
pub use record::{Measurement, Outcome, Session};
pub use selection::{Method, Selection, select, select_each};
pub use store::{Store, StoreError};
pub use sweep::{Finish, Progress, Report, SweepError, Sweeper, sweep};
pub use tally::Tally;
