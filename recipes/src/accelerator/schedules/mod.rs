//! How a group of steps runs through the on-chip memory, and what that moves.

pub mod chunks;
pub mod maps;
pub mod strips;

use serde::Serialize;

/// What a group costs under a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Price {
    /// Elements that move between the memories.
    pub moved: u64,
    /// Operations, recomputed ones included.
    pub flop: u64,
}

/// A schedule of a group of steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "form")]
pub enum GroupSchedule {
    /// Tiles of columns, each in strips of rows.
    Strips(strips::Strips),
    /// Step after step, each on whole maps, with weights streamed once.
    Maps(maps::Maps),
    /// One step in parts of its output channels and rows.
    Chunks(chunks::Chunks),
}
