//! What a composed kernel holds besides its contractions.

use crate::unit_graph::Boundary;
use sdfg::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What the other members of a kernel are to its contractions. A kernel that grows loses none of its kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FusionKind {
    /// Work on a result, element by element, and sums of it that leave the kernel.
    Epilogue,
    /// What is reduced inside is read inside: rows of a softmax or a normalization.
    Rows,
    /// An operand is made inside.
    Prologue,
    /// Several contractions: one makes an operand of another, or their results are added up.
    Chain,
    /// Work on nothing but what the contraction reads as well: the sums of an operand.
    Beside,
}

impl FusionKind {
    pub const ALL: [FusionKind; 5] = [FusionKind::Epilogue, FusionKind::Rows, FusionKind::Prologue, FusionKind::Chain, FusionKind::Beside];
}

impl fmt::Display for FusionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FusionKind::Epilogue => "epilogue",
            FusionKind::Rows => "rows",
            FusionKind::Prologue => "prologue",
            FusionKind::Chain => "chain",
            FusionKind::Beside => "beside",
        })
    }
}

/// What a unit reduces, and what it reads, locals included.
#[derive(Default)]
pub(super) struct Inside {
    pub reduces: BTreeSet<String>,
    pub reads: BTreeSet<String>,
}

impl Inside {
    /// A contraction reduces, too, but its result is what the kinds are about.
    pub fn of(state: &State, unit: &Boundary) -> Self {
        let mut inside = Inside { reduces: BTreeSet::new(), reads: unit.reads.clone() };
        for (_, computation) in state.scope(unit.node).iter().flat_map(|scope| scope.computations()) {
            inside.reads.extend(computation.reads.iter().map(|(_, m)| m.data.clone()));
            inside.reduces.extend(computation.writes.iter().filter(|(_, m)| m.wcr.is_some()).map(|(_, m)| m.data.clone()));
        }
        inside
    }
}
