//! Matrix products of a loop nest: how the indices of a group become rows, columns and depth of matrices.

use crate::emit::dialect::TargetDialect;
use crate::emit::printer::Printer;
use crate::error::KernelError;
use crate::loopnest::matmul_pattern::factors;
use crate::loopnest::{Element, LoopGroup, MemorySpace, slope};
use sdfg::Scalar;
use std::cmp::Reverse;

/// One index, or several that are walked as one.
#[derive(Clone, Debug)]
pub struct GemmAxis {
    /// From inner to outer.
    pub indices: Vec<String>,
    /// Most iterations.
    pub most: i64,
    /// C text of the iterations.
    pub count: String,
    /// Whether it may have fewer iterations than `most`.
    pub ragged: bool,
    /// Elements between neighbours in a, b and out; `None` where it does not occur.
    pub strides: [Option<i64>; 3],
    /// Iterations after which some tensors jump.
    pub block: i64,
    /// Elements from one such block to the next, where that is not where the block ends.
    pub jumps: [Option<i64>; 3],
}

/// A group of products as matrices, and the loops around them.
pub struct Matrices {
    pub scale: Scalar,
    pub a: Element,
    pub b: Element,
    pub out: Element,
    pub rows: Option<GemmAxis>,
    pub columns: Option<GemmAxis>,
    pub steps: Option<GemmAxis>,
    /// Of products that have nothing to do with one another.
    pub loops: Vec<GemmAxis>,
    /// Of products that are added up.
    pub again: Vec<GemmAxis>,
}

/// Whether a tensor (a, b, out: 0, 1, 2) may consist of blocks: given the elements of a block and the distance between blocks.
pub type MayJump<'a> = &'a dyn Fn(usize, i64, i64) -> bool;

impl GemmAxis {
    /// `self` around `inner`, if it continues where `inner` ends wherever they occur, or jumps where it may.
    fn around(&self, inner: &GemmAxis, may_jump: MayJump) -> Option<GemmAxis> {
        let (mut block, mut jumps) = (inner.block, inner.jumps);
        for (t, jump) in jumps.iter_mut().enumerate() {
            let jumped = jump.map(|jump| jump * (inner.most / inner.block));
            match (self.strides[t], inner.strides[t]) {
                (None, None) => {}
                (Some(outer), Some(step)) if outer == jumped.unwrap_or(step * inner.most) => {}
                (Some(outer), Some(step)) if inner.indices.len() == 1 && may_jump(t, inner.most, step) => {
                    (block, *jump) = (inner.most, Some(outer));
                }
                _ => return None,
            }
        }
        let joined = || GemmAxis {
            indices: inner.indices.iter().chain(&self.indices).cloned().collect(),
            most: self.most * inner.most,
            count: format!("{} * {}", self.count, inner.count),
            ragged: self.ragged,
            strides: inner.strides,
            block,
            jumps,
        };
        (!inner.ragged).then(joined)
    }
}

/// The axis that a matrix takes from a group, and the axes that remain for loops around. `by` is the tensor whose neighbours should
/// be neighbours.
fn take(mut axes: Vec<GemmAxis>, by: usize, wanted: Option<i64>, may_jump: MayJump) -> (Option<GemmAxis>, Vec<GemmAxis>) {
    axes.sort_by_key(|a| a.strides[by]);
    let mut chains: Vec<GemmAxis> = Vec::new();
    for axis in &axes {
        match chains.last().and_then(|inner| axis.around(inner, may_jump)) {
            Some(joined) => {
                chains.pop();
                chains.push(joined);
            }
            None => chains.push(axis.clone()),
        }
    }
    let taken = chains.into_iter().min_by_key(|a| (wanted.is_some() && a.strides[by] != wanted, Reverse(a.most)));
    axes.retain(|a| taken.as_ref().is_none_or(|t| !t.indices.contains(&a.indices[0])));
    (taken, axes)
}

impl<D: TargetDialect> Printer<'_, D> {
    /// Elements between neighbours along an index; `None` if the element does not depend on it.
    fn stride(&self, element: &Element, index: &str) -> Result<Option<i64>, KernelError> {
        let (strides, _, _) = self.strides(&element.data)?;
        let (mut total, mut found) = (0, false);
        for (subscript, stride) in element.subscripts.iter().zip(strides) {
            let step = slope(subscript, index).and_then(|s| s.eval(&self.symbols()).ok());
            let step = step.ok_or_else(|| self.unsupported(format!("`{}` is subscripted by `{subscript}` in a product", element.data)))?;
            found |= subscript.symbols().contains(index);
            total += step * stride;
        }
        Ok(found.then_some(total))
    }

    /// The matrices of a group of products. `may_jump` says of the axes of columns and of the depth where tensors may jump.
    pub fn matrices(&mut self, group: &LoopGroup, across: bool, may_jump: [MayJump; 2]) -> Result<Matrices, KernelError> {
        let statement = group.statements.first().ok_or_else(|| self.unsupported("a group of products is empty".into()))?;
        let factors = factors(&statement.code).ok_or_else(|| self.unsupported(format!("`{}` is no product", statement.name)))?;
        let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e.clone());
        let (Some(mut a), Some(mut b)) = (read(&factors.a), read(&factors.b)) else {
            return Err(self.unsupported(format!("`{}` reads fewer values than it multiplies", statement.name)));
        };
        let out = statement.write.clone();
        let mut axes = Vec::new();
        for each in &group.loops {
            let strides = [self.stride(&a, &each.index)?, self.stride(&b, &each.index)?, self.stride(&out, &each.index)?];
            let ragged = self.nest.tiles.iter().any(|t| t.index == each.index && t.is_ragged());
            let count = self.count(&each.index, each.count);
            axes.push(GemmAxis {
                indices: vec![each.index.clone()],
                most: each.count,
                count,
                ragged,
                strides,
                block: each.count,
                jumps: [None; 3],
            });
        }
        // Columns are what neighbours in the result share with the second factor, if not asked for otherwise.
        let unit = axes.iter().find(|x| x.strides[2] == Some(1) && x.most > 1);
        if unit.is_some_and(|x| x.strides[0].is_some() && x.strides[1].is_none()) != across {
            std::mem::swap(&mut a, &mut b);
            axes.iter_mut().for_each(|x| x.strides.swap(0, 1));
        }
        let (mut rows, mut columns, mut steps, mut loops) = (vec![], vec![], vec![], vec![]);
        for axis in axes {
            match axis.strides.map(|s| s.is_some()) {
                [true, false, true] => rows.push(axis),
                [false, true, true] => columns.push(axis),
                [true, true, false] => steps.push(axis),
                [_, _, true] => loops.push(axis),
                _ => return Err(self.unsupported(format!("`{}` sums an index of one factor only", statement.name))),
            }
        }
        let (rows, left) = take(rows, 2, None, &|_, _, _| false);
        loops.extend(left);
        let (columns, left) = take(columns, 2, Some(1), may_jump[0]);
        loops.extend(left);
        let (steps, again) = take(steps, 0, None, may_jump[1]);
        Ok(Matrices { scale: factors.scale, a, b, out, rows, columns, steps, loops, again })
    }

    /// C text of whether the result accumulates: partial results always do, others from the second time on.
    pub fn adds(&mut self, out: &Element, again: &[GemmAxis]) -> Result<String, KernelError> {
        if matches!(self.tensor(&out.data)?.space, MemorySpace::Private { .. }) {
            return Ok("1".into());
        }
        let lasts = matches!(self.tensor(&out.data)?.space, MemorySpace::Heap { .. } | MemorySpace::Kept);
        let nest = self.nest;
        let mut later: Vec<String> = again.iter().map(|x| self.index(&x.indices[0])).collect();
        if lasts {
            later.extend(
                nest.sequential().filter(|l| !out.subscripts.iter().any(|e| e.symbols().contains(&l.index))).map(|l| self.index(&l.index)),
            );
        }
        Ok(if later.is_empty() { "0".into() } else { format!("({}) != 0", later.join(" | ")) })
    }
}
