//! Long sums in C: terms are added up in blocks, and the blocks in double precision.
//!
//! A sum of n numbers in f32 is off by up to n roundings. In blocks it is off by those of one block, as the sum of the blocks is as good as
//! exact. Along the innermost loop a block is a piece of it ([`sdfg::tolerance::BLOCK`]), summed in the lanes of a vector. Where another
//! loop adds to the same elements again and again, each element has a total beside it, to which what has come together is moved after every
//! [`TERMS`] terms; sums of fewer than [`LONG`] have none.

use crate::emit::dialect::TargetDialect;
use crate::emit::printer::Printer;
use crate::emit::reduction::{LongSum, Reduction};
use crate::error::KernelError;
use crate::loopnest::{Element, ForLoop, LoopGroup, LoopNest, MemorySpace, Tag};
use sdfg::Combine;

/// Terms that are added to an element one after the other. Moving them takes as long as adding three, so a tenth of the time.
const TERMS: i64 = 32;
/// Terms from which on totals are kept.
const LONG: i64 = 4 * TERMS;

/// Terms that the loops of a nest which do not tell elements apart add to each of them; with the loops, from outer to inner.
fn adding<'a>(nest: &'a LoopNest, group: &'a LoopGroup, write: &Element, private: bool, level: usize) -> (i64, Vec<(&'a ForLoop, bool)>) {
    let uses = |l: &ForLoop| write.subscripts.iter().any(|s| s.symbols().contains(&l.index));
    let outer = nest.outer.iter().filter(|l| private && !uses(l)).map(|l| (l, true));
    let inner = group.loops[..level].iter().filter(|l| !uses(l) && !group.is_lane(&l.index)).map(|l| (l, false));
    let loops: Vec<(&ForLoop, bool)> = outer.chain(inner).collect();
    let count = |(l, outer): &(&ForLoop, bool)| if *outer { nest.steps(l) } else { l.count };
    (loops.iter().map(count).fold(1, |a, b: i64| a.saturating_mul(b)), loops)
}

/// Whether a worker's partial sums have totals beside them: for those who make and read the memory.
pub fn has_total(nest: &LoopNest, data: &str) -> bool {
    let mut writers = nest.groups.iter().flat_map(|g| g.statements.iter().map(move |s| (g, s)));
    let Some((group, statement)) = writers.find(|(_, s)| s.write.data == data) else { return false };
    let uses = |l: &ForLoop| statement.write.subscripts.iter().any(|s| s.symbols().contains(&l.index));
    let level = group.loops.iter().rposition(uses).map_or(0, |n| n + 1);
    !group.is_gemm && statement.combine == Some(Combine::Sum) && adding(nest, group, &statement.write, true, level).0 >= LONG
}

/// Name of the totals of a container.
pub fn total_of(name: &str) -> String {
    format!("total_{name}")
}

impl<D: TargetDialect> Printer<'_, D> {
    /// The totals of a sum that is held in memory, if it may be long.
    pub fn long_sum(&mut self, group: &LoopGroup, r: &Reduction) -> Result<Option<LongSum>, KernelError> {
        let (nest, write) = (self.nest, &r.statement.write);
        let tensor = self.tensor(&write.data)?;
        let private = matches!(tensor.space, MemorySpace::Private { .. });
        if !D::LONG_SUMS || r.combine != Combine::Sum || !r.again || !(private || tensor.space == MemorySpace::Local) {
            return Ok(None);
        }
        let (terms, loops) = adding(nest, group, write, private, r.level);
        if loops.is_empty() {
            return Ok(None);
        }
        let mut term = String::from("0");
        for (each, outer) in &loops {
            let (count, at) = match (each.tag, outer) {
                (Tag::Block, true) => (nest.steps(each), "first_lane / LANES".to_string()),
                (_, true) => (nest.steps(each), self.index(&each.index)),
                _ => (each.count, self.index(&each.index)),
            };
            let count = self.given(format!("terms_{}", self.index(&each.index)), count);
            term = format!("({term} * {count} + {at})");
        }
        let at = loops.iter().rev().find(|(_, outer)| !outer).and_then(|(l, _)| group.loops.iter().position(|g| g.index == l.index));
        let name = self.identifier(&write.data);
        let is_long = terms >= LONG;
        let long = self.given(format!("long_{name}"), i64::from(is_long));
        let total = total_of(&name);
        let lanes = if nest.per_lane(tensor) { nest.lanes } else { 1 };
        let elements = tensor.shape.iter().product::<i64>() * lanes;
        self.scratch.insert(total.clone(), ("double", if is_long { elements as usize * 8 } else { 0 }));
        Ok(Some(LongSum { at, total, long, term }))
    }

    /// Sets totals to 0 before the loops of a group.
    pub fn begin_total(&mut self, group: &LoopGroup, r: &Reduction, sum: &LongSum, depth: usize) -> Result<(), KernelError> {
        let at = self.total_place(&r.statement.write, sum)?;
        self.over_elements(group, r, 0, &sum.long, vec![format!("{at} = 0;")], depth)
    }

    /// Moves what has come together to the totals, where a block of terms is in.
    pub fn move_to_total(&mut self, group: &LoopGroup, r: &Reduction, sum: &LongSum, depth: usize) -> Result<(), KernelError> {
        let (at, held) = (self.total_place(&r.statement.write, sum)?, self.place(&r.statement.write)?);
        let when = format!("{} && ({} + 1) % {TERMS} == 0", sum.long, sum.term);
        let inside = sum.at.map_or(0, |n| n + 1);
        self.over_elements(group, r, inside, &when, vec![format!("{at} += {held};"), format!("{held} = 0;")], depth)
    }

    /// Adds the totals to the remaining sums, after the loops of a group.
    pub fn end_total(&mut self, group: &LoopGroup, r: &Reduction, sum: &LongSum, depth: usize) -> Result<(), KernelError> {
        let (at, held) = (self.total_place(&r.statement.write, sum)?, self.place(&r.statement.write)?);
        self.over_elements(group, r, 0, &sum.long, vec![format!("{held} = (real)({at} + {held});")], depth)
    }

    fn total_place(&mut self, write: &Element, sum: &LongSum) -> Result<String, KernelError> {
        Ok(format!("{}[{}]", sum.total, self.position(write)?))
    }

    /// Lines for every element that the loops of a group from one on tell apart.
    fn over_elements(
        &mut self,
        group: &LoopGroup,
        r: &Reduction,
        from: usize,
        when: &str,
        lines: Vec<String>,
        depth: usize,
    ) -> Result<(), KernelError> {
        let uses = |l: &&ForLoop| r.statement.write.subscripts.iter().any(|s| s.symbols().contains(&l.index));
        let lane = self.nest.per_lane(self.tensor(&r.statement.write.data)?);
        let inner = group.loops.iter().skip(from);
        let loops = inner.filter(|l| uses(l) || (lane && group.is_lane(&l.index) && self.is_block(&l.index))).cloned().collect();
        let nest = LoopGroup { loops, statements: vec![], is_gemm: false, last: false };
        self.line(depth, format!("if ({when}) {{"));
        for n in 0..nest.loops.len() {
            self.open_loop(&nest, n, &[], false, depth + 1 + n);
        }
        for line in lines {
            self.line(depth + 1 + nest.loops.len(), line);
        }
        for n in (0..nest.loops.len()).rev() {
            self.line(depth + 1 + n, "}");
        }
        self.line(depth, "}");
        Ok(())
    }
}
