//! Choosing: by the shortest path of the paper, uniformly, or exactly with a proof; and what to measure for the next choice.

pub mod config_graph;
pub mod count;
pub mod dual;
pub mod eliminate;
pub mod exact;
pub mod refine;
pub mod robust;
pub mod selection;
pub mod shortest_path;
pub mod solution;
pub mod sssp;
pub mod stack;
pub mod uniform;
