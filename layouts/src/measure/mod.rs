//! Measuring: spaces of configurations, the sweep through them, racing, and records.

pub mod candidates;
pub mod options;
pub mod race;
pub mod record;
pub mod relayout;
pub mod settling;
pub mod space;
pub mod store;
pub mod sweep;
pub mod tally;
