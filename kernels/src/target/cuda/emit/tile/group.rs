//! The CUDA of one group of loops of a tile: its rows are shared by the warps of the block, or its columns by all threads.

use crate::emit::scalar::constant;
use crate::error::KernelError;
use crate::loopnest::{ForLoop, LoopGroup, LoopNest, MemorySpace, NestStatement};
use crate::target::cuda::emit::CudaPrinter;
use indexmap::IndexSet;
use std::collections::BTreeSet;

/// The loops of a group whose indices an element has.
fn held(group: &LoopGroup, statement: &NestStatement) -> BTreeSet<String> {
    let uses = |l: &&ForLoop| statement.write.subscripts.iter().any(|e| e.symbols().contains(&l.index));
    group.loops.iter().filter(uses).map(|l| l.index.clone()).collect()
}

/// Who walks a loop of a group within a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileWalk {
    /// The warps of the block share its iterations with those of other loops.
    Warps,
    /// Lanes of a warp, or all threads of the block.
    Lanes,
    Threads,
    /// One iteration after the other.
    One,
}

/// The walks of a group, by the loops whose indices their results have: one for each set of loops that reductions are over, and one that
/// stores the rest. `stores` says whether anything is stored that is no reduction.
fn kinds(group: &LoopGroup, stores: bool) -> Vec<BTreeSet<String>> {
    let all: BTreeSet<String> = group.loops.iter().map(|l| l.index.clone()).collect();
    let mut kinds: Vec<BTreeSet<String>> = Vec::new();
    for statement in group.statements.iter().filter(|s| s.combine.is_some()) {
        let kind = held(group, statement);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    // Passes that store rows come last, since a store may overwrite an operand that the others read.
    kinds.sort_by_key(|kind| !runs_across(group, kind));
    if kinds.is_empty() || (stores && kinds.last().is_some_and(|kind| runs_across(group, kind))) {
        kinds.push(all);
    }
    kinds
}

/// Whether a walk sums over rows: its results have the innermost loop, and lack others.
fn runs_across(group: &LoopGroup, kind: &BTreeSet<String>) -> bool {
    group.loops.last().is_some_and(|last| kind.contains(&last.index)) && kind.len() < group.loops.len()
}

/// Who walks a loop of a group for one of its statements.
pub fn walk_of(group: &LoopGroup, statement: &NestStatement, each: &ForLoop, nest: &LoopNest) -> TileWalk {
    let stored = |s: &NestStatement| s.combine.is_none() && nest.tensors.get(&s.write.data).is_some_and(|t| t.stored);
    let kinds = kinds(group, group.statements.iter().any(stored));
    let own = statement.combine.map(|_| held(group, statement)).or(kinds.last().cloned()).unwrap_or_default();
    let is_last = group.loops.last().is_some_and(|last| last.index == each.index);
    let all = own.len() == group.loops.len();
    match (is_last, runs_across(group, &own)) {
        (true, true) if own.len() == 1 => TileWalk::Threads,
        (true, _) => TileWalk::Lanes,
        (false, _) if all || own.contains(&each.index) => TileWalk::Warps,
        (false, _) => TileWalk::One,
    }
}

impl CudaPrinter<'_> {
    /// All statements of a group. Reductions over different loops are walks of their own, each of which computes again what it
    /// reduces; the last walk stores the rest. Each ends with a barrier.
    pub fn tile_group(&mut self, group: &LoopGroup, depth: usize) -> Result<(), KernelError> {
        let all: BTreeSet<String> = group.loops.iter().map(|l| l.index.clone()).collect();
        let last = group.loops.last().map(|l| l.index.clone()).unwrap_or_default();
        let stores = group.statements.iter().any(|s| s.combine.is_none() && self.tensor(&s.write.data).is_ok_and(|t| t.stored));
        let kinds = kinds(group, stores);
        for (n, kind) in kinds.iter().enumerate() {
            self.silent = n + 1 < kinds.len();
            let mine = |s: &NestStatement| s.combine.is_none() || held(group, s) == *kind;
            let statements = needed(group.statements.iter().filter(|s| mine(s)).cloned().collect(), self.silent);
            let (kept, others): (Vec<ForLoop>, Vec<ForLoop>) =
                group.loops.iter().filter(|l| l.index != last).cloned().partition(|l| kind.contains(&l.index));
            let ordered = kept.iter().chain(&others).chain(group.loops.last()).cloned().collect();
            let part = LoopGroup { loops: ordered, statements, ..group.clone() };
            self.title(&part, depth);
            self.line(depth, "{");
            if runs_across(group, kind) {
                self.columns(&part, kept.len(), depth + 1)?;
            } else {
                let shared = if *kind == all { group.loops.len().saturating_sub(1) } else { kept.len() };
                self.rows(&part, shared, depth + 1)?;
            }
            self.line(depth, "}");
            self.line(depth, "__syncthreads();");
        }
        self.silent = false;
        Ok(())
    }

    /// Warps share the iterations of the first loops; lanes share the last one.
    fn rows(&mut self, group: &LoopGroup, shared: usize, depth: usize) -> Result<(), KernelError> {
        let mut reductions = self.reductions(group)?;
        // An element with all loops' indices is reached once: there is nothing to reduce, and no initial value is needed.
        let once = self.nest.sequential().next().is_none();
        for r in reductions.iter_mut().filter(|r| once && r.level == group.loops.len()) {
            r.again = matches!(self.tensor(&r.statement.write.data)?.space, MemorySpace::Private { .. });
        }
        self.dialect.uniform = true;
        self.open_units(&group.loops[..shared], depth);
        for level in 0..shared {
            self.loads(group, level, depth + 1)?;
        }
        self.walk(group, &reductions, &mut IndexSet::new(), shared, depth + 1)?;
        self.line(depth, "}");
        Ok(())
    }

    /// Opens one loop over the iterations of some loops together, shared by the warps; without any loops the first warp does it once.
    fn open_units(&mut self, loops: &[ForLoop], depth: usize) {
        if loops.is_empty() {
            self.line(depth, "if (row == 0) {");
            return;
        }
        let counts: Vec<String> = loops.iter().map(|l| self.count(&l.index, l.count)).collect();
        self.line(depth, format!("for (index_t unit = row; unit < {}; unit += ROWS) {{", counts.join(" * ")));
        self.line(depth + 1, "index_t left = unit;");
        for (each, count) in loops.iter().zip(&counts).rev() {
            let index = self.index(&each.index);
            self.line(depth + 1, format!("const index_t {index} = left % {count};"));
            self.line(depth + 1, format!("left /= {count};"));
        }
    }

    /// Sums over rows: a thread keeps those of its lanes in registers. Warps share the rows that have sums of their own; where there
    /// are none, the whole block shares the columns.
    fn columns(&mut self, group: &LoopGroup, kept: usize, depth: usize) -> Result<(), KernelError> {
        let Some(last) = group.loops.last() else { return Ok(()) };
        let mut reductions = self.reductions(group)?;
        for r in &mut reductions {
            r.variable = Some(format!("{}[w]", self.fresh("sums")));
            r.total = None;
        }
        let rows = self.dialect.schedule.as_ref().map_or(1, |s| s.rows);
        self.dialect.uniform = true;
        if kept == 0 {
            self.line(depth, "{");
            self.line(depth + 1, "constexpr int TEAM = THREADS;");
            self.line(depth + 1, "const int member = threadIdx.x;");
            self.dialect.schedule.iter_mut().for_each(|s| s.rows = 1);
        } else {
            self.open_units(&group.loops[..kept], depth);
        }
        for level in 0..=kept {
            self.loads(group, level, depth + 1)?;
        }
        self.open_strips(last, false, depth + 1);
        let mut at = depth + 2;
        for r in &reductions {
            let identity = constant(r.combine.identity().first().copied().unwrap_or(0.0), self.double);
            let name = r.variable.as_deref().unwrap_or_default().trim_end_matches("[w]");
            self.line(at, format!("real {name}[W];"));
            self.line(at, "#pragma unroll");
            self.line(at, format!("for (int w = 0; w < W; ++w) {name}[w] = {identity};"));
        }
        let over = &group.loops[kept..group.loops.len() - 1];
        for (n, each) in over.iter().enumerate() {
            let (index, count) = (self.index(&each.index), self.count(&each.index, each.count));
            self.line(at, format!("for (index_t {index} = 0; {index} < {count}; ++{index}) {{"));
            at += 1;
            self.loads(group, kept + n + 1, at)?;
        }
        self.dialect.uniform = false;
        let reads = self.reads_at(group, group.loops.len());
        self.strip(group, last, reads, &reductions, &mut IndexSet::new(), at)?;
        for _ in over {
            at -= 1;
            self.line(at, "}");
        }
        self.open_lanes(last, at);
        for r in &reductions {
            let variable = r.variable.clone().unwrap_or_default();
            let private = matches!(self.tensor(&r.statement.write.data)?.space, MemorySpace::Private { .. });
            let text = if private {
                let held = self.held_value(&r.statement.write)?;
                format!("({})", self.combined(r.combine, &held, &variable))
            } else {
                variable
            };
            let store = self.store(&r.statement.write, &text)?;
            self.line(at + 1, store);
        }
        self.line(at, "}");
        self.line(at - 1, "}");
        self.line(depth, "}");
        self.dialect.uniform = true;
        self.dialect.schedule.iter_mut().for_each(|s| s.rows = rows);
        Ok(())
    }
}

/// The statements that a walk needs: of one that only reduces, those that its reductions depend on.
fn needed(statements: Vec<NestStatement>, silent: bool) -> Vec<NestStatement> {
    if !silent {
        return statements;
    }
    let mut wanted: Vec<bool> = statements.iter().map(|s| s.combine.is_some()).collect();
    for n in (0..statements.len()).rev() {
        let read = |later: &NestStatement| later.reads.iter().any(|(_, e)| *e == statements[n].write);
        wanted[n] |= (n + 1..statements.len()).any(|m| wanted[m] && read(&statements[m]));
    }
    statements.into_iter().zip(wanted).filter_map(|(s, wanted)| wanted.then_some(s)).collect()
}
