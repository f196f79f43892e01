//! Which parts of its arguments a loop nest touches when its points are divided along the outermost shared index.
//!
//! A worker that has a range of that index touches, of an argument whose subscript along some dim is the index wherever the nest names the
//! argument, the elements of that range alone. This is memlet propagation over a range of the outermost map (Ben-Nun et al., "Stateful
//! Dataflow Multigraphs", SC 2019, section 4.3).

use super::{Element, LoopNest, MemorySpace, Tag, Tile};
use crate::kernel::{ArgumentAccess, KernelSpec};
use crate::phases::{AccessedPart, PartitionIndex, PhaseMemory, Touch};
use sdfg::{Expr, Scalar};
use std::collections::BTreeMap;

/// What the points of a nest touch.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionedNest {
    /// How the points can be divided, and the points of a step; `None` if there is one step only.
    pub partition: Option<(PartitionIndex, i64)>,
    pub touches: Vec<Touch>,
}

impl PartitionedNest {
    pub fn of(spec: &KernelSpec, nest: &LoopNest) -> Self {
        let outermost = nest.shared().find(|l| nest.steps(l) > 1);
        let points = nest.points();
        // The position along the index as subscripts have it, and how many positions there are.
        // Of strips of steps the positions are those of all their tiles.
        let in_strips = |outer: &super::ForLoop| nest.strip.as_ref().filter(|strip| strip.strips == outer.index);
        let walked = |outer: &super::ForLoop| in_strips(outer).map_or(outer.index.clone(), |strip| strip.steps.clone());
        let found = outermost.map(|outer| match nest.tiles.iter().find(|t| t.outer == walked(outer)) {
            Some(tile) => {
                let start = Expr::sym(tile.outer.as_str()) * Expr::sym(Tile::symbol(&tile.index));
                let each = in_strips(outer).map_or(1, |strip| strip.each);
                (start + Expr::sym(tile.index.as_str()), PartitionIndex { size: tile.count, step: tile.size * each }, nest.steps(outer))
            }
            None => {
                let of_strip = in_strips(outer).map(|strip| strip.each);
                let step = of_strip.unwrap_or(if outer.tag == Tag::Block { nest.lanes } else { 1 });
                let index = walked(outer);
                let size = nest.outer.iter().find(|l| l.index == index).map_or(outer.count, |l| l.count);
                (Expr::sym(index), PartitionIndex { size, step }, nest.steps(outer))
            }
        });
        let position = found.as_ref().map(|(position, ..)| position);
        // Argument → the dims along which all its subscripts so far are the position; the same of what is written.
        let mut along: BTreeMap<usize, (bool, Vec<usize>)> = BTreeMap::new();
        let mut touch = |element: &Element, written: bool| {
            let Some(MemorySpace::Heap { argument, root }) = nest.tensors.get(&element.data).map(|t| &t.space) else { return };
            let fits = |e: &Expr| *root == element.data && position.is_some_and(|position| e == position);
            let dims = (0..element.subscripts.len()).filter(|n| fits(&element.subscripts[*n]));
            match along.get_mut(argument) {
                None => drop(along.insert(*argument, (written, dims.collect()))),
                Some((any, known)) => {
                    *any |= written;
                    known.retain(|n| element.subscripts.get(*n).is_some_and(fits));
                }
            }
        };
        for statement in nest.groups.iter().flat_map(|g| &g.statements) {
            for element in statement.reads.iter().map(|(_, e)| e) {
                touch(element, false);
                element.subscripts.iter().for_each(|e| elements(e, &mut |inside| touch(inside, false)));
            }
            touch(&statement.write, true);
            statement.write.subscripts.iter().for_each(|e| elements(e, &mut |inside| touch(inside, false)));
            statement.code.walk(&mut |s| {
                if let Scalar::Index(e) = s {
                    elements(e, &mut |inside| touch(inside, false));
                }
            });
        }
        let private = |argument: usize| {
            let data = spec.arguments().into_iter().nth(argument).map(|a| a.data);
            let sums = nest.tensors.iter().filter(|(_, t)| matches!(t.space, MemorySpace::Private { .. }));
            sums.map(|(name, _)| name.trim_end_matches(".partial")).any(|target| data.as_deref() == Some(spec.root(target)))
        };
        let mut touches = Vec::new();
        for (n, argument) in spec.arguments().iter().enumerate() {
            let place = PhaseMemory::Argument(n);
            match along.get(&n) {
                Some((written, dims)) => {
                    let part = dims.first().map_or(AccessedPart::Whole, |dim| AccessedPart::Along(*dim));
                    touches.push(Touch { place, written: *written, part });
                }
                // What workers add up privately is written after the last point.
                None if private(n) => {}
                None => touches.push(Touch { place, written: argument.access == ArgumentAccess::Write, part: AccessedPart::Whole }),
            }
        }
        let partition = found.map(|(_, partition, steps)| (partition, points / steps.max(1)));
        PartitionedNest { partition, touches }
    }
}

/// The elements of containers whose values an expression takes.
fn elements(e: &Expr, visit: &mut dyn FnMut(&Element)) {
    match e {
        Expr::Element(data, subscripts) => {
            visit(&Element { data: data.to_string(), subscripts: subscripts.to_vec(), fill: None });
            subscripts.iter().for_each(|inside| elements(inside, visit));
        }
        Expr::Add(a, b)
        | Expr::Sub(a, b)
        | Expr::Mul(a, b)
        | Expr::FloorDiv(a, b)
        | Expr::Mod(a, b)
        | Expr::Min(a, b)
        | Expr::Max(a, b) => {
            elements(a, visit);
            elements(b, visit);
        }
        Expr::Int(_) | Expr::Sym(_) => {}
    }
}
