//! Measuring and showing: one protocol for every time, one record of where it came from, one report for a person.
//!
//! A number has a unit in its type ([`mod@unit`]), a time was either predicted or measured ([`unit::Quantity`]), and every figure carries
//! the machine and the command that reproduce it ([`record::Provenance`]). The pipeline fills a [`model::Report`]; [`report::write`]
//! turns it into `report.html` and one SVG per figure.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo, clippy::unimplemented)
)]

pub mod atomic;
pub mod check;
pub mod layer_form;
pub mod layered;
pub mod load;
pub mod machine;
pub mod memory;
pub mod model;
pub mod mue;
pub mod plot;
pub mod protocol;
pub mod record;
pub mod report;
pub mod stats;
pub mod stitching;
pub mod table;
pub mod unit;

pub use load::{Load, Watch};
pub use machine::Machine;
pub use model::Report;
pub use protocol::{Cache, Contender, Protocol, Timing};
pub use record::Provenance;
pub use unit::{Bytes, Flop, Measured, Milliseconds, Predicted, Quantity};
