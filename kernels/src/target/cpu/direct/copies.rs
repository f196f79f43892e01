//! Where a direct product finds a factor: in place, in a copy with the fill around it, or packed in vectors.

use super::operand::{Copied, DirectOperand};
use super::product_axis::ProductAxis;
use crate::emit::printer::Prepared;
use crate::emit::scalar::{constant, integer};
use crate::error::KernelError;
use crate::loopnest::{Element, LoopGroup, MemorySpace, slope};
use crate::target::cpu::dialect::CPrinter;
use sdfg::Expr;
use std::collections::BTreeMap;

/// Steps of a copy that give all workers something to do.
const SHARES: i64 = 16;

/// Most elements of the copy that a tile makes for itself: half of a second cache of 512 KiB.
const NEAREST: i64 = 1 << 16;
/// Elements beyond a copy that vectors may touch.
const SLACK: usize = 32;

/// A dim of a copy: C text of its first subscript and of the first place that is copied, how many there are, size and stride in memory,
/// stride in the copy, and whether all of them are inside the container.
struct Dim {
    low: String,
    begin: String,
    extent: i64,
    size: i64,
    from: i64,
    to: i64,
    inside: bool,
}

/// A factor packed in vectors: all of its other indices, then vectors, then the depth, then lanes.
#[derive(Clone, Debug)]
pub struct PackedFactor {
    /// C text of where the first vector is.
    pub start: String,
    /// Elements between neighbours along each index but the lanes'.
    pub strides: BTreeMap<String, i64>,
    /// Elements between vectors.
    pub apart: i64,
}

impl CPrinter<'_> {
    /// A factor, copied if it is read outside its container, unless the product may leave out what lies there.
    pub fn operand(&mut self, element: Element, group: &LoopGroup, level: usize) -> Result<DirectOperand, KernelError> {
        self.operand_of(element, Some((group, level)))
    }

    /// What a map reads through windows, copied before the first point if it is read outside its container.
    pub fn padded_operand(&mut self, element: Element) -> Result<DirectOperand, KernelError> {
        self.operand_of(element, None)
    }

    fn operand_of(&mut self, element: Element, tile: Option<(&LoopGroup, usize)>) -> Result<DirectOperand, KernelError> {
        let (strides, ..) = self.strides(&element.data)?;
        let mut operand = DirectOperand::in_place(element, strides);
        let shape = self.tensor(&operand.element.data)?.shape.clone();
        if !matches!(self.tensor(&operand.element.data)?.space, MemorySpace::Heap { .. }) {
            return Ok(operand);
        }
        let mut leaves = false;
        for (subscript, size) in operand.element.subscripts.clone().iter().zip(&shape) {
            let (low, high) = self.hull(&operand.element, subscript)?;
            leaves |= low < 0 || high >= *size;
        }
        let clipped = tile.filter(|_| leaves).and_then(|(group, _)| self.clipped(&operand.element, group));
        match clipped {
            Some(dims) => operand.clipped = dims,
            None if leaves => self.copy_whole(&mut operand, tile)?,
            None => {}
        }
        Ok(operand)
    }

    /// All iterations of an index, over all tiles.
    pub fn whole_count(&self, index: &str) -> Option<i64> {
        if let Some(tile) = self.nest.tiles.iter().find(|t| t.index == index) {
            return Some(tile.count);
        }
        let mut loops = self.nest.outer.iter().chain(self.nest.groups.iter().flat_map(|g| &g.loops));
        loops.find(|l| l.index == index).map(|l| l.count)
    }

    /// An expression with loops over tiles at the first one, where it has the index within the tile: that one counts for all tiles.
    pub fn untiled(&self, e: &Expr) -> Expr {
        let all = e.symbols();
        let both = self.nest.tiles.iter().filter(|t| all.contains(&t.index));
        e.substitute(&both.map(|t| (t.outer.clone(), Expr::Int(0))).collect())
    }

    /// Least and greatest value of a subscript over all iterations.
    pub(super) fn hull(&self, element: &Element, subscript: &Expr) -> Result<(i64, i64), KernelError> {
        let wrong = || self.unsupported(format!("`{}` is subscripted by `{subscript}` in a product", element.data));
        // Windows are walked inside the picture alone: their places there, whatever the tile.
        let place = |index: &String| format!("{index}.place");
        let inside = |index: &String| Some((index.clone(), Expr::sym(place(index)) - self.nest.border(index)?.start.clone()));
        let e = subscript.substitute(&subscript.symbols().iter().filter_map(inside).collect());
        let places: BTreeMap<String, i64> =
            subscript.symbols().iter().filter_map(|i| Some((place(i), self.nest.border(i)?.size))).collect();
        let (e, mut zero) = (self.untiled(&e), BTreeMap::new());
        let (mut low, mut high) = (0, 0);
        for index in e.symbols() {
            let Some(count) = places.get(&index).copied().or_else(|| self.whole_count(&index)) else { continue };
            let step = slope(&e, &index).and_then(|s| s.eval(&self.symbols()).ok()).ok_or_else(wrong)?;
            zero.insert(index, Expr::Int(0));
            (low, high) = (low + (step * (count - 1)).min(0), high + (step * (count - 1)).max(0));
        }
        let first = e.substitute(&zero).eval(&self.symbols()).map_err(|_| wrong())?;
        Ok((first + low, first + high))
    }

    /// Copies what is read of an operand with the fill around it: what a tile reads, before its product, if no other tile reads the same,
    /// else all of it before the first point.
    pub fn copy_whole(&mut self, operand: &mut DirectOperand, of_tile: Option<(&LoopGroup, usize)>) -> Result<(), KernelError> {
        let element = operand.element.clone();
        if !self.is_given(&element.data) {
            return Err(self.unsupported(format!("`{}` is read outside of what the same kernel writes of it", element.data)));
        }
        let shape = self.tensor(&element.data)?.shape.clone();
        let depends = |index: &str| element.subscripts.iter().any(|e| e.symbols().contains(index));
        let alone = self.nest.outer.iter().all(|l| l.count == 1 || depends(&l.index) || self.nest.divides_steps(&l.index));
        let loops = || of_tile.iter().flat_map(|(group, _)| &group.loops);
        let first: BTreeMap<String, Expr> = loops().map(|l| (l.index.clone(), Expr::Int(0))).collect();
        let (mut whole, mut tile, mut offset) = (Vec::new(), Vec::new(), Vec::new());
        for ((subscript, size), from) in element.subscripts.iter().zip(&shape).zip(&operand.strides) {
            let (low, high) = self.hull(&element, subscript)?;
            whole.push(Dim {
                low: low.to_string(),
                begin: "0".into(),
                extent: high - low + 1,
                size: *size,
                from: *from,
                to: 0,
                inside: low >= 0 && high < *size,
            });
            let (mut below, mut extent, mut begin) = (0, 1, "0".to_string());
            for each in loops() {
                let step = slope(subscript, &each.index).and_then(|s| s.eval(&self.symbols()).ok()).unwrap_or(0);
                below += (step * (each.count - 1)).min(0);
                extent += (step * (each.count - 1)).abs();
                // Of rows that a step does not make nothing is read.
                if let Some(made) = self.nest.first_made(&each.index).filter(|_| step > 0) {
                    begin = format!("{} * {step}", integer(&made, self));
                }
            }
            let low = format!("({} + ({below}))", integer(&subscript.substitute(&first), self));
            tile.push(Dim { low, begin, extent, size: *size, from: *from, to: 0, inside: false });
            offset.push(-below);
        }
        let lows: Vec<i64> = element.subscripts.iter().map(|e| self.hull(&element, e).map(|(low, _)| low)).collect::<Result<_, _>>()?;
        let elements = |dims: &[Dim]| dims.iter().map(|d| d.extent).product::<i64>();
        let near = of_tile.filter(|_| alone && elements(&tile) <= NEAREST);
        let mut dims = if near.is_some() { tile } else { whole };
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|n| std::cmp::Reverse(dims[*n].from));
        let mut total = 1;
        for n in order.iter().rev() {
            dims[*n].to = total;
            total *= dims[*n].extent;
        }
        let bytes = if self.double { 8 } else { 4 };
        if let Some((_, level)) = near {
            let name = self.fresh("near");
            self.room(&name, (total as usize + SLACK) * bytes);
            let (_, code) = self.copying(&element, &dims, &order, &name, 0)?;
            self.line(level, format!("{{ {code} }}"));
            let offset = offset.iter().zip(&dims).map(|(below, dim)| below * dim.to).sum();
            operand.copy = Some(Copied::Near { name, offset });
        } else {
            let (_, elements, at) = self.reserve(total, bytes);
            let (steps, code) = self.copying(&element, &dims, &order, &format!("prepared + {at}"), SHARES)?;
            self.prepared.push(Prepared { data: element.data.clone(), elements, steps, code: format!("{{ int64_t rest = at; {code} }}") });
            operand.copy = Some(Copied::Whole { at, lows });
        }
        operand.strides = dims.iter().map(|d| d.to).collect();
        operand.clipped.clear();
        Ok(())
    }

    /// C of a copy, dims in an order from outer to inner, and the steps that it is divided into if these are to be so many at least.
    fn copying(&mut self, element: &Element, dims: &[Dim], order: &[usize], to: &str, steps: i64) -> Result<(i64, String), KernelError> {
        // The innermost dims that are copied whole are one run with the next dim.
        let (mut run, mut each) = (order.len().saturating_sub(1), 1);
        while run > 0 {
            let (inner, outer) = (&dims[order[run]], &dims[order[run - 1]]);
            if !inner.inside || inner.extent != inner.size || inner.from != each || outer.from != each * inner.size {
                break;
            }
            (each, run) = (each * inner.size, run - 1);
        }
        let last = &dims[order[run]];
        if last.from != each {
            return Err(self.unsupported(format!("`{}` has no neighbours in memory", element.data)));
        }
        let (mut shared, mut divided) = (0, 1);
        while shared < run && divided < steps {
            divided *= dims[order[shared]].extent;
            shared += 1;
        }
        let first = self.strides(&element.data)?.2;
        let name = self.identifier(&element.data);
        self.pointers.insert(element.data.clone());
        let fill = constant(element.fill.map_or(0.0, f64::from_bits), self.double);
        let mut code = String::new();
        for n in (0..shared).rev() {
            let extent = dims[order[n]].extent;
            code += &format!("const int64_t e{n} = rest % {extent}; rest /= {extent}; ");
        }
        if steps > 0 {
            code += "(void)rest; ";
        }
        let (mut place, mut from, mut inside) = (vec![to.to_string()], vec![format!("{name} + {first}")], Vec::new());
        for (n, dim) in order[..run].iter().map(|n| &dims[*n]).enumerate() {
            if n >= shared {
                code += &format!("for (int64_t e{n} = {}; e{n} < {}; ++e{n}) ", dim.begin, dim.extent);
            }
            place.push(format!("e{n} * {}", dim.to));
            from.push(format!("(e{n} + {}) * {}", dim.low, dim.from));
            if !dim.inside {
                inside.push(format!("e{n} + {} >= 0 && e{n} + {} < {}", dim.low, dim.low, dim.size));
            }
        }
        let inside = if inside.is_empty() { "1".to_string() } else { inside.join(" && ") };
        let (place, from, Dim { low, extent, size, .. }) = (place.join(" + "), from.join(" + "), last);
        code += &format!("pad_run({place}, {from}, {inside}, {low}, {extent}, {size}, {each}, {fill});");
        Ok((divided, code))
    }

    /// C text of a pointer to the element of a factor with some indices at their first iteration.
    pub fn start(&mut self, operand: &DirectOperand, first: &BTreeMap<String, Expr>) -> Result<String, KernelError> {
        let (at, lows) = match operand.copy.clone() {
            None => return self.pointer(&operand.element, first),
            Some(Copied::Near { name, offset }) => {
                // It begins where windows do; loops begin inside the picture.
                let mut terms = vec![format!("{name} + {offset}")];
                for (subscript, stride) in operand.element.subscripts.iter().zip(&operand.strides) {
                    for (index, begin) in first.iter().filter(|(_, begin)| **begin != Expr::Int(0)) {
                        let step = slope(subscript, index).and_then(|s| s.eval(&self.symbols()).ok()).unwrap_or(0);
                        if step != 0 {
                            terms.push(format!("{} * {}", integer(begin, self), step * stride));
                        }
                    }
                }
                return Ok(terms.join(" + "));
            }
            Some(Copied::Whole { at, lows }) => (at, lows),
        };
        let mut terms = vec![format!("prepared + {at}")];
        for ((subscript, low), stride) in operand.element.subscripts.iter().zip(lows).zip(&operand.strides) {
            match subscript.substitute(first) {
                Expr::Int(at) => terms.push(format!("({})", (at - low) * stride)),
                e => terms.push(format!("({} - ({low})) * {stride}", integer(&e, self))),
            }
        }
        Ok(terms.join(" + "))
    }

    /// Whether an operand can be packed: this kernel does not write it, and plain indices subscript it.
    pub fn may_pack(&self, operand: &DirectOperand) -> bool {
        let mut seen = std::collections::BTreeSet::new();
        let plain = |e: &Expr| self.untiled(e).as_sym().is_some_and(|name| seen.insert(name.to_string())) || e.as_int() == Some(0);
        operand.copy.is_none() && self.is_given(&operand.element.data) && operand.element.subscripts.iter().all(plain)
    }

    /// Whether every point begins at the beginning of a vector along `lane`, as packed vectors need: the index is walked as a whole, or in
    /// tiles of whole vectors.
    pub fn has_whole_vectors(&self, lane: &str, lanes: i64) -> bool {
        match self.nest.tiles.iter().find(|t| t.index == lane) {
            Some(tile) => tile.size % lanes == 0,
            None => self.nest.outer.iter().all(|l| l.index != lane),
        }
    }

    /// Packs an operand in vectors along the index `lane`, for steps of the depth in this order. Every point must begin with a whole vector
    /// ([`CPrinter::has_whole_vectors`]).
    pub fn packed(&mut self, operand: &DirectOperand, lane: &str, depth: &[ProductAxis], lanes: i64) -> Result<PackedFactor, KernelError> {
        let element = operand.element.clone();
        let summed = |index: &String| depth.iter().any(|axis| axis.indices.contains(index));
        let mut others: Vec<(String, i64, i64)> = Vec::new();
        let mut across = (1, 0);
        for (subscript, stride) in element.subscripts.iter().zip(&operand.strides) {
            let e = self.untiled(subscript);
            let Some(index) = e.as_sym().map(String::from) else { continue };
            let count = self.whole_count(&index).unwrap_or(1);
            if index == lane {
                across = (count, *stride);
            } else if !summed(&index) {
                others.push((index, count, *stride));
            }
        }
        // Steps of the depth, from inner to outer: what is one loop in memory, too, is one here.
        let mut strides = BTreeMap::new();
        let mut next = lanes;
        let mut loops: Vec<(i64, i64)> = Vec::new();
        for axis in depth.iter().rev() {
            for index in &axis.indices {
                let count = self.whole_count(index).unwrap_or(1);
                let from = self.distance(&element, &operand.strides, index)?.unwrap_or(0);
                strides.insert(index.clone(), next);
                next *= count;
                match loops.last_mut() {
                    Some((inner, step)) if *inner * *step == from => *inner *= count,
                    _ => loops.push((count, from)),
                }
            }
        }
        let apart = next;
        let vectors = (across.0 + lanes - 1) / lanes;
        let mut total = vectors * apart;
        let mut steps = vectors;
        for (index, count, _) in others.iter().rev() {
            strides.insert(index.clone(), total);
            (total, steps) = (total * count, steps * count);
        }
        let (_, elements, at) = self.reserve(total, if self.double { 8 } else { 4 });
        let all = self.nest.outer.iter().chain(self.nest.groups.iter().flat_map(|g| &g.loops));
        let zero: BTreeMap<String, Expr> = all.map(|l| (l.index.clone(), Expr::Int(0))).collect();
        let from = self.pointer(&element, &zero)?;
        let mut code = format!("int64_t rest = at; const int64_t vector = rest % {vectors}; rest /= {vectors};");
        let mut terms = vec![from, format!("vector * {}", lanes * across.1)];
        for (n, (_, count, stride)) in others.iter().enumerate().rev() {
            code += &format!(" const int64_t u{n} = rest % {count}; rest /= {count};");
            terms.push(format!("u{n} * {stride}"));
        }
        code += &format!(" (void)rest; real *to = prepared + {at} + at * {apart}; const real *const from = {};", terms.join(" + "));
        let (inner, outer) = loops.split_first().map_or(((1, 0), &[][..]), |(inner, outer)| (*inner, outer));
        let mut place = vec!["from".to_string()];
        for (n, (count, stride)) in outer.iter().enumerate().rev() {
            code += &format!(" for (int64_t d{n} = 0; d{n} < {count}; ++d{n})");
            place.push(format!("d{n} * {stride}"));
        }
        let valid = format!("min_of(VL, {} - vector * VL)", across.0);
        code += &format!(" to = pack_vectors(to, {}, {valid}, {}, {}, {});", place.join(" + "), across.1, inner.0, inner.1);
        self.prepared.push(Prepared { data: element.data.clone(), elements, steps, code: format!("{{ {code} }}") });

        // Where this point begins.
        let mut start = vec![format!("prepared + {at}")];
        for (index, ..) in &others {
            let stride = strides[index];
            if let Some(tile) = self.nest.tiles.iter().find(|t| t.index == *index) {
                start.push(format!("{} * {}", self.index(&tile.outer), tile.size * stride));
            } else if self.nest.outer.iter().any(|l| l.index == *index) {
                start.push(format!("{} * {stride}", self.index(index)));
            }
        }
        if let Some(tile) = self.nest.tiles.iter().find(|t| t.index == lane) {
            start.push(format!("{} * {}", self.index(&tile.outer), tile.size / lanes * apart));
        }
        Ok(PackedFactor { start: start.join(" + "), strides, apart })
    }
}
