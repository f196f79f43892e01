//! Rows along the innermost loop: dropout lanes that are made before it, results that are streamed after it.

use super::printer::{Mask, Printer, c_type};
use super::scalar::integer;
use crate::error::KernelError;
use crate::loopnest::{Element, Group, Loop, Space, Tag};
use crate::maps::{dropout, slope};
use sdfg::{Dtype, Expr, Scalar};
use std::collections::BTreeMap;

/// Lanes of one mask along the innermost loop of a group.
#[derive(Clone, Debug)]
pub struct MaskRow {
    pub mask: usize,
    pub element: Expr,
    /// C text of the lane.
    pub lane: String,
}

/// A result whose row may be written around the caches.
#[derive(Clone, Debug)]
pub struct StreamRow {
    pub element: Element,
    /// C text of the place of one element within the row.
    pub place: String,
    room: String,
    to: String,
    count: String,
}

/// Stands for the first iteration of a block.
pub const FIRST: &str = "\u{0}first";

impl Printer<'_> {
    /// An expression at the first iteration of a loop.
    fn at_first(&self, e: &Expr, of: &Loop) -> Expr {
        let start = if self.is_block(&of.index) { Expr::sym(FIRST) } else { Expr::Int(0) };
        e.substitute(&BTreeMap::from([(of.index.clone(), start)]))
    }

    /// C texts of the number of iterations and of the iteration; the largest number.
    fn iterations(&mut self, of: &Loop) -> (String, String, usize) {
        if self.is_block(&of.index) {
            ("lanes".into(), "lane".into(), self.nest.lanes as usize)
        } else {
            (self.count(&of.index, of.count), self.index(&of.index), of.count as usize)
        }
    }

    /// Rows of dropout lanes for masks whose elements lie at a fixed stride along the innermost loop.
    pub fn mask_rows(&mut self, group: &Group, depth: usize) {
        let Some(last) = group.loops.last() else { return };
        let mut found = Vec::new();
        for statement in &group.statements {
            statement.code.walk(&mut |s| {
                if let Scalar::Keep { stream, element, rate } = s
                    && let Some(step) = slope(element, &last.index)
                {
                    found.push((stream.clone(), element.clone(), *rate, step));
                }
            });
        }
        for (stream, element, rate, step) in found {
            let mask = self.mask(&stream, rate);
            if self.rows.iter().any(|r| r.mask == mask && r.element == element) {
                continue;
            }
            // A size that has no value is reported where it is printed.
            let stride = step.eval(&self.spec.sizes).or_else(|_| step.eval(&self.symbols())).unwrap_or(1);
            let first = self.at_first(&element, last);
            let (mut count, mut at, mut most) = self.iterations(last);
            if step == Expr::Int(0) {
                (count, at, most) = ("1".into(), "0".into(), 1);
            }
            let (number, name) = (self.held, self.fresh("mask"));
            self.held += 1;
            let room = format!("room{number}");
            self.scratch.insert(room.clone(), ("uint16_t", 2 * dropout::room(most, stride)));
            let (first, step) = (integer(&first, self), integer(&step, self));
            let call = format!("host->row(&host->keep[{mask}], {first}, {step}, {count}, {room}, &held[{number}])");
            self.line(depth, format!("const uint16_t *const {name} = {call};"));
            self.rows.push(MaskRow { mask, element, lane: format!("{name}[{at}]") });
        }
    }

    pub fn mask(&mut self, stream: &str, rate: f64) -> usize {
        let mask = Mask { stream: stream.to_string(), rate };
        match self.masks.iter().position(|m| *m == mask) {
            Some(n) => n,
            None => {
                self.masks.push(mask);
                self.masks.len() - 1
            }
        }
    }

    /// Whether a row of this element along the loop is contiguous, and nothing in this kernel reads it from memory.
    fn streams(&self, element: &Element, last: &Loop, group: &Group) -> Result<bool, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let Space::Heap { root, .. } = &tensor.space else { return Ok(false) };
        if last.tag != Tag::Vector || !matches!(tensor.dtype, Dtype::F32 | Dtype::Bf16) {
            return Ok(false);
        }
        let (_, unit, _) = self.strides(&element.data)?;
        let contiguous =
            element.subscripts.iter().enumerate().all(|(n, e)| {
                if unit == Some(n) { slope(e, &last.index) == Some(Expr::Int(1)) } else { !e.symbols().contains(&last.index) }
            });
        let same_root =
            |data: &str| matches!(self.nest.tensors.get(data).map(|t| &t.space), Some(Space::Heap { root: r, .. }) if r == root);
        let others = self.nest.groups.iter().filter(|g| !std::ptr::eq(*g, group));
        let read_again = others.flat_map(|g| &g.statements).flat_map(|s| &s.reads).any(|(_, e)| same_root(&e.data));
        Ok(unit.is_some() && contiguous && !read_again)
    }

    /// Declares where the results of the innermost loop go: to their place, or to a row that is streamed there.
    pub fn open_streams(&mut self, group: &Group, depth: usize) -> Result<(), KernelError> {
        let Some(last) = group.loops.last() else { return Ok(()) };
        for statement in group.statements.iter().filter(|s| s.combine.is_none()) {
            if !self.streams(&statement.write, last, group)? {
                continue;
            }
            let dtype = self.tensor(&statement.write.data)?.dtype;
            let Some(kind) = c_type(dtype) else { continue };
            let first = Element {
                subscripts: statement.write.subscripts.iter().map(|e| self.at_first(e, last)).collect(),
                ..statement.write.clone()
            };
            let (count, at, most) = self.iterations(last);
            let (room, to, out) = (self.fresh("row"), self.fresh("to"), self.fresh("out"));
            self.scratch.insert(room.clone(), (kind, most * dtype.bytes(1) as usize));
            self.pointers.insert(statement.write.data.clone());
            let place = self.position(&first)?;
            let name = self.identifier(&statement.write.data);
            self.line(depth, format!("{kind} *const {to} = {name} + {place};"));
            self.line(depth, format!("{kind} *const {out} = host->streams ? {room} : {to};"));
            self.streamed.push(StreamRow { element: statement.write.clone(), place: format!("{out}[{at}]"), room, to, count });
        }
        Ok(())
    }

    pub fn close_streams(&mut self, depth: usize) {
        for row in std::mem::take(&mut self.streamed) {
            let StreamRow { room, to, count, .. } = row;
            self.line(depth, format!("if (host->streams) host->stream({to}, {room}, {count} * sizeof(*{to}));"));
        }
    }
}
