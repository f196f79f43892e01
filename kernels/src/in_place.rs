//! In place: which arguments of a kernel may be written where others are read.
//!
//! ```text
//! point (b,j):  m = Σi x[b,j,i];  y[b,j,i] = x[b,j,i] - m      y may lie where x lies
//! point (b,j):  y[b,j] = x[b,j] + x[b,j+1]                     it may not: another point has not read x[b,j+1] yet
//! ```
//!
//! *Legal when* both have the same element type, dims and layout, neither is reached through a view, and in the loop nest
//! that the configuration means
//! 1. one statement writes the one, not by adding up, and reaches each element in one iteration only;
//! 2. nothing reads the other after the group of that statement, within that group its iterations read the very element
//!    that they write, and groups before it read elements of the same point of the outer loops.
//!
//! Points run in any order and at the same time: 1 keeps their elements apart. Within an iteration everything is read
//! before anything is written.

use crate::error::KernelError;
use crate::kernel::{ArgumentAccess, KernelSpec};
use crate::loopnest::{Element, LoopGroup, LoopNest, MemorySpace, Tile};
use sdfg::config::KernelConfig;
use sdfg::{Expr, Layout};
use std::collections::BTreeSet;

/// The knob with the results that are written in place: `y:x,d:c` for `y` where `x` is and `d` where `c` is.
pub const KNOB: &str = "over";

/// An argument that may be written where another one is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InPlace {
    pub read: String,
    pub written: String,
}

/// The configuration under which a kernel writes these arguments in place.
pub fn with(config: &KernelConfig, all: &[InPlace]) -> KernelConfig {
    if all.is_empty() {
        return config.clone();
    }
    let pairs: Vec<String> = all.iter().map(|p| format!("{}:{}", p.written, p.read)).collect();
    KernelConfig { knobs: config.knobs.clone().with(KNOB, pairs.join(",")), ..config.clone() }
}

/// What a configuration asks to be written in place.
///
/// # Errors
/// What cannot be.
pub(crate) fn asked(spec: &KernelSpec, nest: &LoopNest, config: &KernelConfig) -> Result<Vec<InPlace>, KernelError> {
    let Some(text) = config.knobs.get(KNOB) else { return Ok(vec![]) };
    let legal = found(spec, nest, config);
    let wrong = || {
        let allowed: Vec<String> = legal.iter().map(|p| format!("{}:{}", p.written, p.read)).collect();
        let (kernel, key, value) = (spec.name.clone(), KNOB.into(), text.to_string());
        KernelError::Knob { kernel, key, value, allowed: if allowed.is_empty() { "nothing".into() } else { allowed.join(", ") } }
    };
    let pair = |part: &str| {
        let (written, read) = part.split_once(':')?;
        legal.iter().find(|p| p.written == written && p.read == read).cloned()
    };
    text.split(',').filter(|part| !part.is_empty()).map(|part| pair(part).ok_or_else(wrong)).collect()
}

/// All that a kernel may write in place in this loop nest.
pub(crate) fn found(spec: &KernelSpec, nest: &LoopNest, config: &KernelConfig) -> Vec<InPlace> {
    let arguments = spec.arguments();
    let layout = |data: &str| config.layouts.get(data).cloned().or_else(|| spec.containers.get(data).map(Layout::row_major));
    // Reached by its own name alone.
    let plain = |data: &str| {
        let of = |space: &MemorySpace| matches!(space, MemorySpace::Heap { root, .. } if root == data);
        nest.tensors.iter().all(|(name, t)| !of(&t.space) || name == data) && nest.tensors.get(data).is_some_and(|t| of(&t.space))
    };
    let mut all = Vec::new();
    for written in arguments.iter().filter(|a| a.access == ArgumentAccess::Write && plain(&a.data)) {
        let Some((at, element)) = writer(nest, &written.data) else { continue };
        let alike = |a: &&crate::kernel::KernelArgument| {
            a.access == ArgumentAccess::Read
                && a.dtype == written.dtype
                && a.dims == written.dims
                && layout(&a.data) == layout(&written.data)
        };
        for read in arguments.iter().filter(alike).filter(|a| plain(&a.data)) {
            if is_read_before(nest, &read.data, at, element) {
                all.push(InPlace { read: read.data.clone(), written: written.data.clone() });
            }
        }
    }
    all
}

/// The group and the element in which a container is written, if that is one statement that reaches each element in one
/// iteration.
fn writer<'a>(nest: &'a LoopNest, data: &str) -> Option<(usize, &'a Element)> {
    let mut writers = nest.groups.iter().enumerate().flat_map(|(n, g)| g.statements.iter().map(move |s| (n, g, s)));
    let (at, group, statement) = writers.find(|(_, _, s)| s.write.data == data)?;
    let alone = nest.groups.iter().flat_map(|g| &g.statements).filter(|s| s.write.data == data).count() == 1;
    let once = alone && !group.is_gemm && statement.combine.is_none() && reaches_once(nest, group, &statement.write);
    once.then_some((at, &statement.write))
}

/// Whether different iterations, of all points, reach different elements.
fn reaches_once(nest: &LoopNest, group: &LoopGroup, element: &Element) -> bool {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let tiled = |e: &Expr, tile: &Tile| {
        *e == Expr::sym(tile.outer.as_str()) * Expr::sym(Tile::symbol(&tile.index)) + Expr::sym(tile.index.as_str())
    };
    let indices: BTreeSet<&str> = nest.outer.iter().chain(&group.loops).map(|l| l.index.as_str()).collect();
    for subscript in &element.subscripts {
        let used: Vec<&str> = match (subscript.as_sym(), nest.tiles.iter().find(|t| tiled(subscript, t))) {
            (Some(index), _) => vec![index],
            (None, Some(tile)) => vec![&tile.outer, &tile.index],
            _ if subscript.symbols().iter().all(|s| !indices.contains(s.as_str())) => vec![],
            _ => return false,
        };
        if used.into_iter().any(|index| !seen.insert(index)) {
            return false;
        }
    }
    let sequential: BTreeSet<&str> = nest.sequential().map(|l| l.index.as_str()).collect();
    let walked = nest.outer.iter().chain(&group.loops).filter(|l| l.count > 1 && !nest.divides_steps(&l.index));
    // A group that waits for the last of the iterations in order runs once for all of them.
    walked.map(|l| l.index.as_str()).all(|index| seen.contains(index) || group.last && sequential.contains(index))
}

/// Whether everything reads its elements of a container before the statement in group `at` writes `element` in their place.
fn is_read_before(nest: &LoopNest, data: &str, at: usize, element: &Element) -> bool {
    let outer: BTreeSet<&str> = nest.outer.iter().map(|l| l.index.as_str()).collect();
    let by_point = |e: &Expr| e.symbols().iter().any(|s| outer.contains(s.as_str()));
    nest.groups.iter().enumerate().all(|(n, group)| {
        let reads = group.statements.iter().flat_map(|s| &s.reads).map(|(_, e)| e).filter(|e| e.data == data);
        let mut legal = |read: &Element| {
            let pairs = || read.subscripts.iter().zip(&element.subscripts);
            let of_point = pairs().all(|(r, w)| if by_point(r) || by_point(w) { r == w } else { true });
            let same = pairs().all(|(r, w)| r == w);
            read.fill.is_none() && if n == at { same } else { n < at && of_point }
        };
        reads.into_iter().all(&mut legal)
    })
}
