//! The choice as numbers: programs with alternatives, costs, and the network of cost functions.

pub mod alternatives;
pub mod cost;
pub mod network;
pub mod selection_model;
