//! Schedule templates as values, and their text form. "FusionStitching" (arXiv:1911.11576), section 5.2.
//!
//! ```text
//! template  = (schedule | launch) ";" …
//! schedule  = identifier "[" attribute "," … "]" ["S"]
//! attribute = kind | kind "_" integer ("-" kind "_" integer) …
//! kind      = "GRID" | "CTA" | "WARP" | "THREAD"
//! launch    = ("cta_num" | "cta_size") "=" integer
//! ```
//!
//! The paper gives the launch parameters (figure 1c) no syntax of their own; they are statements among the schedules here.

use std::fmt;

/// Who walks a dim of an operator, from the largest part of a processor to the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttributeKind {
    /// Blocks of threads of a GPU; workers of the cores.
    Grid,
    /// Threads of a block; iterations of a worker's tile.
    Cta,
    /// Warps of a block; lanes of a worker's vectors.
    Warp,
    /// One thread, one iteration after the other.
    Thread,
}

impl AttributeKind {
    pub const ALL: [AttributeKind; 4] = [AttributeKind::Grid, AttributeKind::Cta, AttributeKind::Warp, AttributeKind::Thread];

    /// Its word in the text form.
    pub fn word(self) -> &'static str {
        match self {
            AttributeKind::Grid => "GRID",
            AttributeKind::Cta => "CTA",
            AttributeKind::Warp => "WARP",
            AttributeKind::Thread => "THREAD",
        }
    }
}

/// How one dim of an operator is walked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DimAttribute {
    /// All of it in one way.
    Whole(AttributeKind),
    /// In parts, from outer to inner: each with its number of steps. At least one, and none of 0 steps.
    Levels(Vec<(AttributeKind, u64)>),
}

impl DimAttribute {
    /// The attribute of a dim of `extent` points without what says nothing: levels of one step, and the number of a level that is all
    /// of the dim. A dim of one point is walked by one thread, whoever that is.
    pub fn canonical(&self, extent: u64) -> DimAttribute {
        let levels: &[(AttributeKind, u64)] = match self {
            DimAttribute::Whole(kind) => &[(*kind, extent)],
            DimAttribute::Levels(levels) => levels,
        };
        let telling: Vec<(AttributeKind, u64)> = levels.iter().copied().filter(|(_, steps)| *steps != 1).collect();
        match telling.as_slice() {
            [] => DimAttribute::Whole(AttributeKind::Thread),
            [(kind, steps)] if *steps == extent => DimAttribute::Whole(*kind),
            _ => DimAttribute::Levels(telling),
        }
    }
}

impl fmt::Display for DimAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimAttribute::Whole(kind) => f.write_str(kind.word()),
            DimAttribute::Levels(levels) => {
                for (n, (kind, steps)) in levels.iter().enumerate() {
                    write!(f, "{}{}_{steps}", if n > 0 { "-" } else { "" }, kind.word())?;
                }
                Ok(())
            }
        }
    }
}

/// How an operator that writes memory is walked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperatorSchedule {
    /// The container that the operator writes.
    pub operator: String,
    /// One for each dim of its iteration space, summed ones included.
    pub attributes: Vec<DimAttribute>,
    /// `S`: its values are held on chip. On a GPU in shared memory, on the cores in a worker's scratch memory.
    pub on_chip: bool,
}

impl fmt::Display for OperatorSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.operator)?;
        for (n, attribute) in self.attributes.iter().enumerate() {
            write!(f, "{}{attribute}", if n > 0 { "," } else { "" })?;
        }
        write!(f, "]{}", if self.on_chip { "S" } else { "" })
    }
}

/// One way to run a kernel: a schedule for each operator that writes memory, shared memory included. What has none is computed where it
/// is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScheduleTemplate {
    pub schedules: Vec<OperatorSchedule>,
    /// Blocks of threads; on the cores the pieces of work that workers share.
    pub cta_num: Option<u64>,
    /// Threads of a block; on the cores one, since one worker does a piece.
    pub cta_size: Option<u64>,
}

/// The launch parameters in the text form.
pub(super) const CTA_NUM: &str = "cta_num";
pub(super) const CTA_SIZE: &str = "cta_size";

impl fmt::Display for ScheduleTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launch = [(CTA_NUM, self.cta_num), (CTA_SIZE, self.cta_size)];
        let launch = launch.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value)?)));
        let all: Vec<String> = self.schedules.iter().map(|s| s.to_string()).chain(launch).collect();
        for (n, statement) in all.iter().enumerate() {
            write!(f, "{}{statement};", if n > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
