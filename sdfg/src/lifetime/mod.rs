//! What lives off chip while a step runs, from when to when, and where.
//!
//! Inputs and parameters are there all the time. Everything else has a *life*: from the kernel that first writes it to the
//! last that touches it, both included, so that no kernel writes over what it still reads; results live until the step has
//! ended. A view keeps what it is a view of alive. Two buffers share bytes only if their lives do not meet, or if one is
//! handed over to the other: the kernel that reads the first for the last time writes the second, each element where it
//! has just read it.
//!
//! [`Schedule`] says who touches what, [`Schedule::order`] looks for the order of kernels that needs the least, [`plan`] for a
//! place for everything in one arena.

mod arena;
mod order;
mod schedule;

pub use arena::{ArenaPlan, plan};
pub use schedule::{Buffer, Schedule, ScheduleStep};

use crate::data::Role;
use crate::graph::Sdfg;
use crate::symbol::SymbolError;
use serde::{Deserialize, Serialize};

/// Every offset is a multiple of this: a cache line, and the widest vector of current CPUs.
pub const ALIGNMENT: u64 = 64;

/// The life of one buffer, in kernels from the first of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveInterval {
    pub data: String,
    pub bytes: u64,
    /// First and last kernel that touches it.
    pub first: usize,
    pub last: usize,
}

/// A buffer that may take the place of another one, whose life ends where its own begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    pub from: String,
    pub to: String,
}

impl LiveInterval {
    pub fn meets(&self, other: &LiveInterval) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn room(&self) -> u64 {
        room(self.bytes)
    }
}

fn room(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}

/// The lives of a program's heap transients, in order of first use. Programs whose states loop need no other rule: what
/// is carried around a loop is no transient.
pub fn intervals(program: &Sdfg) -> Result<Vec<LiveInterval>, SymbolError> {
    let transient = |i: &LiveInterval| program.containers.get(&i.data).is_some_and(|c| c.role == Role::Transient);
    Ok(Schedule::of(program)?.intervals().into_iter().filter(transient).collect())
}
