//! Sites of rewrites, the reasons why a pass does not rewrite one, and rewrites that are left out.

use sdfg::{NodeId, Origin, Sdfg, StateId};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Top-level units of one state that a transform looks at, in execution order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Site {
    pub state: StateId,
    pub units: Vec<NodeId>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state)?;
        for unit in &self.units {
            write!(f, " {unit}")?;
        }
        Ok(())
    }
}

/// A share in percent, held in thousandths so that reasons can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percent(pub i64);

impl Percent {
    pub fn of(share: f64) -> Self {
        Percent((share * 100_000.0).round() as i64)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        write!(f, "{:.digits$}", self.0 as f64 / 1000.0)
    }
}

/// Bytes that a program would move more, or fewer where it is below 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BytesChange(pub i64);

impl fmt::Display for BytesChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.0 < 0 { "fall" } else { "rise" };
        match self.0.unsigned_abs() {
            bytes @ 0..10_000 => write!(f, "bytes would {verb} by {bytes} B"),
            bytes @ 10_000..1_000_000 => write!(f, "bytes would {verb} by {:.0} kB", bytes as f64 / 1e3),
            bytes => write!(f, "bytes would {verb} by {:.1} MB", bytes as f64 / 1e6),
        }
    }
}

/// Why a transform does not apply. Unknown is never yes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum Reason {
    #[error("`{unit}` is a contraction; only scaling is fused into contractions here")]
    Contraction { unit: String },
    #[error("`{between}` runs between them and depends on the first, as the second depends on it; fusing would make a cycle")]
    Cycle { between: String },
    #[error(
        "they share no index that every one of their computations has: {first} iterates over [{first_space}], {second} over [{second_space}]"
    )]
    NoSharedIndex { first: String, first_space: String, second: String, second_space: String },
    #[error(
        "they neither read a common container nor does one read what the other writes, and their iteration spaces differ: [{first_space}] against [{second_space}]"
    )]
    SpacesDiffer { first_space: String, second_space: String },
    #[error("the intermediate results would need {bytes} bytes for each iteration, more than the {limit} that stay in a core's cache")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("the kernel would have a single point, so that one core moves its {bytes} bytes while the others wait; it may move {limit}")]
    SinglePoint { bytes: u64, limit: u64 },
    #[error("the kernel would run through {containers} containers at once, more than the {limit} that a core can prefetch")]
    TooManyStreams { containers: usize, limit: usize },
    #[error("`{once}` reads parameters alone, so it runs once; in one kernel with `{each}` it would run in every step")]
    RunsOnce { once: String, each: String },
    #[error("the program would move {bytes} bytes more")]
    MovesMore { bytes: u64 },
    #[error("`{contraction}` would find its operand `{data}` on chip, but {reader} needs it too, so it reaches memory all the same")]
    Stored { data: String, contraction: String, reader: String },
    #[error(
        "`{data}` with its {bytes} bytes is no larger than the {operands} bytes of an operand that `{contraction}` makes it of; each product is better off with tiles of its own"
    )]
    Outweighed { data: String, bytes: u64, contraction: String, operands: u64 },
    #[error("`{data}` would be summed over the outer indices [{over}], and each core would need {bytes} bytes of its own for that")]
    SummedOutside { data: String, over: String, bytes: u64 },
    #[error("several computations write parts of `{data}`, so it is neither one local buffer nor one sum")]
    SeveralWriters { data: String },
    #[error("only a part of `{data}` would be written, and a kernel around a contraction writes all of a container")]
    WritesPart { data: String },
    #[error("one kernel would move as many bytes as two")]
    SavesNothing,
    #[error("the part of `{data}` that one tile needs cannot be told from its subscripts: {why}")]
    Window { data: String, why: String },
    #[error("in tiles of {tile}, {recompute:.0}% of the flop would be computed again at their borders, more than {limit:.0}%; {bytes}")]
    Recompute { tile: String, recompute: Percent, limit: Percent, bytes: BytesChange },
    #[error("in tiles of {tile}, {bytes}; {recompute:.0}% of the flop would be computed again at their borders")]
    TilesMoveMore { tile: String, recompute: Percent, bytes: BytesChange },
    #[error("it would hold {levels} levels of intermediate results on chip, and {limit} are allowed")]
    Levels { levels: usize, limit: usize },
    /// With a reason that the caller may add, from `: ` on.
    #[error("this program leaves the composed kernel `{kernel}` out{why}")]
    NotWanted { kernel: String, why: String },
    /// Found by interpreting the program before and after it.
    #[error("with it the program computes something else, which is a fault of Memlet's: please report it")]
    FoundWrong,
    #[error("the program has nothing of the kind that this pass rewrites")]
    NothingToRewrite,
    #[error("{0}")]
    Unsupported(String),
}

impl Reason {
    /// The same about other units and containers, of those kinds of reasons that compositions have; `None` where a name has no other one.
    pub(crate) fn renamed(&self, other: &dyn Fn(&str) -> Option<String>) -> Option<Reason> {
        let mut reason = self.clone();
        let names: Vec<&mut String> = match &mut reason {
            Reason::Contraction { unit } => vec![unit],
            Reason::NoSharedIndex { first, second, .. } => vec![first, second],
            Reason::Outweighed { data, contraction, .. } => vec![data, contraction],
            Reason::SummedOutside { data, .. } | Reason::SeveralWriters { data } | Reason::WritesPart { data } => vec![data],
            Reason::TooLarge { .. } | Reason::SinglePoint { .. } => vec![],
            // Names stand between marks.
            Reason::Unsupported(why) => {
                let mut parts = why.split('`').map(String::from).collect::<Vec<_>>();
                for name in parts.iter_mut().skip(1).step_by(2) {
                    *name = other(name)?;
                }
                *why = parts.join("`");
                vec![]
            }
            _ => return None,
        };
        for name in names {
            *name = other(name)?;
        }
        Some(reason)
    }

    /// What refusals of this kind have in common, without the names and numbers of one.
    pub fn kind(&self) -> String {
        match self {
            Reason::Contraction { .. } => "one of them is a contraction; only scaling is fused into contractions here",
            Reason::Cycle { .. } => "another kernel runs between them; fusing would make a cycle",
            Reason::NoSharedIndex { .. } => "they share no index that every one of their computations has",
            Reason::SpacesDiffer { .. } => "they share no data, and their iteration spaces differ",
            Reason::TooLarge { .. } => "the intermediate results would not stay in a core's cache",
            Reason::SinglePoint { .. } => "the kernel would have a single point, so that one core works and the others wait",
            Reason::TooManyStreams { .. } => "the kernel would run through more containers at once than a core can prefetch",
            Reason::MovesMore { .. } => "the program would move more bytes",
            Reason::Stored { .. } => "a contraction would find an operand on chip that others need in memory all the same",
            Reason::Outweighed { .. } => {
                "what is between two contractions is no larger than their operands; each is better off with tiles of its own"
            }
            Reason::SummedOutside { .. } => "a result would be summed over outer indices, in too much memory of each core's own",
            Reason::SeveralWriters { .. } => "several computations write parts of one container",
            Reason::WritesPart { .. } => "only a part of a container would be written",
            Reason::SavesNothing => "one kernel would move as many bytes as two",
            Reason::Window { .. } => "the part of an intermediate result that one tile needs cannot be told from its subscripts",
            Reason::Recompute { .. } => "too much would be computed again at the borders of tiles",
            Reason::TilesMoveMore { .. } => "tiles would move more bytes",
            Reason::RunsOnce { .. } => "one of them reads parameters alone and runs once",
            Reason::Levels { .. } => "more levels of intermediate results would be on chip than are allowed",
            Reason::NotWanted { .. } => "this program leaves a composed kernel out",
            Reason::FoundWrong => "with it the program computes something else",
            Reason::NothingToRewrite => "the program has nothing of the kind that this pass rewrites",
            Reason::Unsupported(why) => why,
        }
        .to_string()
    }
}

/// A located "no", in full sentences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    pub transform: &'static str,
    pub site: Site,
    /// Names of the units at the site.
    pub units: Vec<String>,
    pub reason: Reason,
    pub origin: Option<Origin>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused at {} (`{}`): {}", self.transform, self.site, self.units.join("`, `"), self.reason)?;
        if let Some(origin) = &self.origin {
            write!(f, "\n  from: {origin}")?;
        }
        Ok(())
    }
}

/// Patches that are not applied, by their summaries: those that were found to change what a program computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Barred(BTreeSet<String>);

impl Barred {
    /// Bars a patch; false if it was barred already.
    pub fn bar(&mut self, summary: &str) -> bool {
        self.0.insert(summary.to_string())
    }

    pub fn has(&self, summary: &str) -> bool {
        self.0.contains(summary)
    }

    /// Summaries of all of them.
    pub fn summaries(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    pub(crate) fn refusal(&self, transform: &'static str, program: &Sdfg, site: &Site) -> Refusal {
        let state = program.state(site.state);
        let name = |node: &NodeId| {
            let state = state?;
            let operation = state.operation(*node).map(|o| o.name);
            operation.or_else(|| state.scope(*node).map(|s| s.map.label))
        };
        let units = site.units.iter().filter_map(name).collect();
        Refusal { transform, site: site.clone(), units, reason: Reason::FoundWrong, origin: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_said_of_another_layer_or_not_at_all() {
        let other = |name: &str| name.strip_suffix("_0").map(|stem| format!("{stem}_1"));
        let why = |text: &str| Reason::Unsupported(text.into());
        assert_eq!(why("`qq_0` is written in slices").renamed(&other), Some(why("`qq_1` is written in slices")));
        assert_eq!(why("`qq_0` and `x` differ").renamed(&other), None, "`x` is in no other layer");
        let outweighed = |data: &str, contraction: &str| {
            let (data, contraction) = (data.to_string(), contraction.to_string());
            Reason::Outweighed { data, bytes: 64, contraction, operands: 64 }
        };
        assert_eq!(outweighed("t_0", "t.dot_0").renamed(&other), Some(outweighed("t_1", "t.dot_1")));
        assert_eq!(Reason::Cycle { between: "y_0".into() }.renamed(&other), None, "a unit outside has no place in a class");
    }
}
