//! Rows along the innermost loop: dropout lanes that are made before it, results that are streamed after it.

use crate::emit::dialect::TargetDialect;
use crate::emit::printer::{FIRST, MaskRow, Printer, StreamRow, c_type};
use crate::emit::scalar::integer;
use crate::error::KernelError;
use crate::loopnest::{Element, ForLoop, LoopGroup, MemorySpace, Tag, slope};
use crate::runtime::dropout::{self, Mask};
use sdfg::{Dtype, Expr, Scalar};
use std::collections::BTreeMap;

/// Iterations of the innermost loop between two rounds of streaming: few enough that a core still writes the results of one
/// piece while it computes the next, many enough that the loop around them costs nothing.
const PIECE: usize = 128;
/// Lanes of a mask up to which they are made at once for the whole loop: a call for each piece costs more than it hides.
const MASKED: i64 = 1024;
/// Bytes in a cache line.
const LINE: usize = 64;
/// How many bytes ahead a row is fetched: the time to memory, and a page, which the processor's own prefetching stops at.
const AHEAD: usize = 4096;

/// Operations that a function counts as.
const FUNCTION: usize = 16;

impl<D: TargetDialect> Printer<'_, D> {
    /// An expression at the first iteration of a loop.
    pub fn at_first(&self, e: &Expr, of: &ForLoop) -> Expr {
        let start = if D::STRIPS || self.is_block(&of.index) { Expr::sym(FIRST) } else { Expr::Int(0) };
        e.substitute(&BTreeMap::from([(of.index.clone(), start)]))
    }

    /// C texts of the number of iterations and of the iteration; the largest number.
    fn iterations(&mut self, of: &ForLoop) -> (String, String, usize) {
        if self.is_block(&of.index) {
            ("lanes".into(), "lane".into(), self.nest.lanes as usize)
        } else {
            (self.count(&of.index, of.count), self.index(&of.index), of.count as usize)
        }
    }

    /// Rows of dropout lanes for masks whose elements lie at a fixed stride along the innermost loop: for the whole loop, or
    /// within a piece of a long one where they are neighbours. Others are
    /// kept for the next rows, so they are made for the whole loop.
    pub fn mask_rows(&mut self, group: &LoopGroup, piecewise: bool, within: bool, depth: usize) {
        let Some(last) = group.loops.last() else { return };
        for (mask, element, step) in self.linear_masks(group, last) {
            // Decided by the lanes of a block and never by sizes, so that a check at small sizes runs the code that is timed.
            let long = self.is_block(&last.index) && self.nest.lanes > MASKED;
            let in_piece = piecewise && step == Expr::Int(1) && long;
            if in_piece != within || self.rows.iter().any(|r| r.mask == mask && r.element == element) {
                continue;
            }
            // A size that has no value is reported where it is printed.
            let stride = step.eval(&self.spec.sizes).or_else(|_| step.eval(&self.symbols())).unwrap_or(1);
            let first = self.at_first(&element, last);
            let (mut count, mut at, mut most) = self.iterations(last);
            let mut first = integer(&first, self);
            if in_piece {
                // Room for all of them: where nothing is streamed there is one piece.
                (count, at) = ("end - piece".into(), format!("{at} - piece"));
                first = format!("{first} + piece");
            }
            if step == Expr::Int(0) {
                (count, at, most) = ("1".into(), "0".into(), 1);
            }
            let (number, name) = (self.held, self.fresh("mask"));
            self.held += 1;
            let room = format!("room{number}");
            self.scratch.insert(room.clone(), ("uint16_t", 2 * dropout::room(most, stride)));
            let step = integer(&step, self);
            let call = format!("host->row(&host->keep[{mask}], {first}, {step}, {count}, {room}, &held[{number}])");
            self.line(depth, format!("const uint16_t *const {name} = {call};"));
            self.rows.push(MaskRow { mask, element, lane: format!("{name}[{at}]"), upper: false });
        }
    }

    /// Masks of a group, each once, whose elements lie at a fixed stride along a loop: number, element, stride.
    pub fn linear_masks(&mut self, group: &LoopGroup, along: &ForLoop) -> Vec<(usize, Expr, Expr)> {
        let mut found = Vec::new();
        for statement in &group.statements {
            statement.code.walk(&mut |s| {
                if let Scalar::Keep { stream, element, rate } = s
                    && let Some(step) = slope(element, &along.index)
                {
                    found.push((stream.clone(), element.clone(), *rate, step));
                }
            });
        }
        let mut masks: Vec<(usize, Expr, Expr)> = Vec::new();
        for (stream, element, rate, step) in found {
            let mask = self.mask(&stream, rate);
            if masks.iter().all(|(m, e, _)| *m != mask || *e != element) {
                masks.push((mask, element, step));
            }
        }
        masks
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

    /// Whether the iterations of a loop are neighbours in memory.
    pub fn contiguous(&self, element: &Element, along: &ForLoop) -> Result<bool, KernelError> {
        let (_, unit, _) = self.strides(&element.data)?;
        let step = |(n, e): (usize, &Expr)| {
            if unit == Some(n) { slope(e, &along.index) == Some(Expr::Int(1)) } else { !e.symbols().contains(&along.index) }
        };
        Ok(unit.is_some() && element.subscripts.iter().enumerate().all(step))
    }

    /// Whether vectors run along a contiguous row of this element in memory.
    fn is_row(&self, element: &Element, last: &ForLoop) -> Result<bool, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let heap = matches!(tensor.space, MemorySpace::Heap { .. }) && matches!(tensor.dtype, Dtype::F32 | Dtype::Bf16);
        Ok(heap && last.tag == Tag::Vector && self.contiguous(element, last)?)
    }

    /// Whether a row of this element is contiguous, and nothing in this kernel reads it from memory.
    fn streams(&self, element: &Element, last: &ForLoop, group: &LoopGroup) -> Result<bool, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let MemorySpace::Heap { root, .. } = &tensor.space else { return Ok(false) };
        let same_root =
            |data: &str| matches!(self.nest.tensors.get(data).map(|t| &t.space), Some(MemorySpace::Heap { root: r, .. }) if r == root);
        let others = self.nest.groups.iter().filter(|g| !std::ptr::eq(*g, group));
        let read_again = others.flat_map(|g| &g.statements).flat_map(|s| &s.reads).any(|(_, e)| same_root(&e.data));
        Ok(!read_again && self.is_row(element, last)?)
    }

    /// Whether the innermost loop runs in pieces: its results may be stored around the caches, or rows are prefetched between pieces.
    pub fn in_pieces(&mut self, group: &LoopGroup) -> Result<bool, KernelError> {
        let Some(last) = group.loops.last() else { return Ok(false) };
        for statement in group.statements.iter().filter(|s| s.combine.is_none()) {
            if self.streams(&statement.write, last, group)? {
                return Ok(true);
            }
        }
        Ok(!self.fetched(group, last)?.is_empty())
    }

    /// Opens the loop over pieces, prefetches rows that are read soon, and declares where the results of a piece go: to their
    /// place, or to a buffer that is streamed there.
    ///
    /// Sums need pieces that are no longer than their blocks, also where nothing is streamed.
    pub fn open_pieces(&mut self, group: &LoopGroup, sums: bool, depth: usize) -> Result<(), KernelError> {
        let Some(last) = group.loops.last() else { return Ok(()) };
        let (count, at, most) = self.iterations(last);
        let mut rows: Vec<StreamRow> = Vec::new();
        for statement in group.statements.iter().filter(|s| s.combine.is_none()) {
            if !self.streams(&statement.write, last, group)? {
                continue;
            }
            let dtype = self.tensor(&statement.write.data)?.dtype;
            let Some(kind) = c_type(dtype) else { continue };
            let (room, to, out) = (self.fresh("row"), self.fresh("to"), self.fresh("out"));
            self.scratch.insert(room.clone(), (kind, most.min(PIECE) * dtype.bytes(1) as usize));
            let place = self.row_start(&statement.write, last)?;
            self.line(depth, format!("{kind} *const {to} = {place};"));
            rows.push(StreamRow {
                element: statement.write.clone(),
                place: format!("{out}[{at} - piece]"),
                room,
                to,
                out,
                kind,
                even: false,
            });
        }
        let fetched = self.fetched(group, last)?;
        // A block's terms are divided among the lanes of a vector. With fewer lanes blocks are shorter, so that no lane adds up
        // more terms than with 16 lanes: the rounding error grows with these.
        let block = sdfg::tolerance::BLOCK * crate::images::lanes().min(16) as u64 / 16;
        let whole = if sums { block.to_string() } else { count.clone() };
        let step = if rows.is_empty() && fetched.is_empty() {
            format!("step = {whole}")
        } else {
            format!("step = host->streams ? {PIECE} : {whole}")
        };
        self.line(depth, format!("for (int64_t piece = 0, {step}; piece < {count}; piece += step) {{"));
        self.line(depth + 1, format!("const int64_t end = min_of(piece + step, {count});"));
        for (row, ahead, bytes) in fetched {
            let ahead = if ahead == 0 { String::new() } else { format!(" + {}", ahead / bytes) };
            let lines = format!("for (int64_t line = piece; line < end; line += {})", LINE / bytes);
            self.line(depth + 1, format!("if (host->streams) {lines} __builtin_prefetch({row}{ahead} + line);"));
        }
        for StreamRow { room, to, out, kind, .. } in &rows {
            self.line(depth + 1, format!("{kind} *const {out} = host->streams ? {room} : {to} + piece;"));
        }
        self.streamed = rows;
        Ok(())
    }

    /// C text of the address of the first element along a loop.
    fn row_start(&mut self, element: &Element, last: &ForLoop) -> Result<String, KernelError> {
        let subscripts = element.subscripts.iter().map(|e| self.at_first(e, last)).collect();
        self.pointers.insert(element.data.clone());
        let place = self.position(&Element { subscripts, ..element.clone() })?;
        Ok(format!("{} + {place}", self.identifier(&element.data)))
    }

    /// Rows to fetch from memory while this group computes, how many bytes ahead of the current one, and the bytes of an
    /// element.
    ///
    /// A group alone reads on along its row. Of several groups the first reads a row from memory and the others find it in the
    /// cache: the one that computes most prefetches the row of the next point.
    fn fetched(&mut self, group: &LoopGroup, last: &ForLoop) -> Result<Vec<(String, usize, usize)>, KernelError> {
        let nest = self.nest;
        let next = nest.outer.last().filter(|l| l.tag == Tag::Core).map(|l| &l.index);
        let alone = nest.groups.len() == 1;
        let same_rows = |g: &&LoopGroup| g.loops.last().is_some_and(|l| l.index == last.index && l.tag == Tag::Vector);
        let most = nest.groups.iter().filter(same_rows).map(weight).max();
        let chosen = nest.groups.iter().filter(same_rows).find(|g| Some(weight(g)) == most);
        let mut found: Vec<(&str, (String, usize, usize))> = Vec::new();
        if chosen.is_none_or(|g| !std::ptr::eq(g, group)) {
            return Ok(vec![]);
        }
        let indices = || nest.outer.iter().chain(nest.groups.iter().flat_map(|g| &g.loops)).map(|l| &l.index);
        for (_, element) in nest.groups.iter().flat_map(|g| &g.statements).flat_map(|s| &s.reads) {
            let uses = |index: &String| element.subscripts.iter().any(|e| e.symbols().contains(index));
            let written = nest.groups.iter().flat_map(|g| &g.statements).any(|s| s.write.data == element.data);
            let in_scope = |i: &String| nest.outer.iter().chain(&group.loops).any(|l| l.index == *i);
            let here = group.loops.iter().all(|l| uses(&l.index)) && indices().all(|i| !uses(i) || in_scope(i));
            if written || !here || found.iter().any(|(data, _)| *data == element.data) || !self.is_row(element, last)? {
                continue;
            }
            let bytes = self.tensor(&element.data)?.dtype.bytes(1) as usize;
            // Rows that are the same at every point stay in the cache.
            if alone && nest.outer.iter().any(|l| l.index != last.index && uses(&l.index)) {
                found.push((&element.data, (self.row_start(element, last)?, AHEAD, bytes)));
            } else if let Some(index) = next.filter(|index| !alone && uses(index)) {
                let after = BTreeMap::from([(index.clone(), Expr::sym(index) + Expr::Int(1))]);
                let subscripts = element.subscripts.iter().map(|e| e.substitute(&after)).collect();
                found.push((&element.data, (self.row_start(&Element { subscripts, ..element.clone() }, last)?, 0, bytes)));
            }
        }
        Ok(found.into_iter().map(|(_, row)| row).collect())
    }

    /// Streams the results of a piece and closes the loop over pieces.
    pub fn close_pieces(&mut self, depth: usize) {
        for row in std::mem::take(&mut self.streamed) {
            let StreamRow { room, to, .. } = row;
            self.line(depth + 1, format!("if (host->streams) host->stream({to} + piece, {room}, (end - piece) * sizeof(*{to}));"));
        }
        self.line(depth, "}");
    }
}

/// Operations of a group at each iteration; functions count as several.
fn weight(group: &LoopGroup) -> usize {
    let mut total = 0;
    for statement in &group.statements {
        statement.code.walk(&mut |s| {
            total += match s {
                Scalar::Unary(op, _) if op.row().roundings > 0 => FUNCTION,
                Scalar::Unary(..) | Scalar::Binary(..) | Scalar::Select(..) => 1,
                _ => 0,
            }
        });
    }
    total
}
