//! Split reductions, over outer indices: the partial results of each team, or of each section of the points that make one element, and the
//! kernel that combines them in a fixed order.

use crate::emit::scalar::constant;
use crate::error::KernelError;
use crate::loopnest::{Element, ForLoop, LoopGroup, LoopNest, MemorySpace, NestStatement};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::GRID;
use crate::target::cuda::emit::group::functor;
use crate::target::cuda::emit::register::cuda_type;
use crate::target::cuda::emit::schedule::{Placement, writer};
use sdfg::{Combine, Expr};

/// Threads of the kernel that combines: 32 neighbouring results, in slices of the parts.
pub const FINISH_THREADS: i64 = 32 * SLICES;
const SLICES: i64 = 32;

/// The partial results of a nest.
pub fn partials(nest: &LoopNest) -> impl Iterator<Item = (&String, Combine, i64)> {
    nest.tensors.iter().filter_map(|(data, tensor)| match tensor.space {
        MemorySpace::Private { combine } => Some((data, combine, tensor.shape.iter().product())),
        _ => None,
    })
}

/// Puts the loops first that tell partial results apart: teams then come to all that makes one before they go on to the next, and hold
/// it in registers. Points have no order of their own.
pub fn elements_first(nest: &mut LoopNest) {
    let written = |data: &String| writer(nest, data).map(|(_, s)| s.write.subscripts.clone());
    let apart: Vec<Expr> = partials(nest).filter_map(|(data, _, _)| written(data)).flatten().collect();
    if nest.sequential().next().is_none() {
        nest.outer.sort_by_key(|l| !apart.contains(&Expr::sym(l.index.as_str())));
    }
}

fn identity(combine: Combine, double: bool) -> String {
    constant(combine.identity().first().copied().unwrap_or(0.0), double)
}

/// How the blocks of a kernel share its points where results are in registers until all points are done: each has a section of the
/// points that make one element, and one part of memory holds what the same section of all elements came to.
pub struct Sections {
    /// Outer loops, from the first, that tell elements apart.
    pub around: usize,
    /// Their points.
    pub groups: i64,
    /// Sections of each.
    pub count: i64,
}

impl CudaPrinter<'_> {
    /// The sections of a nest with partial results for this number of blocks; `None` if results have to be in memory before the last point.
    pub fn sections(&mut self, blocks: i64) -> Option<Sections> {
        let (nest, schedule) = (self.nest, self.dialect.schedule.as_ref()?);
        let several = |l: &ForLoop| nest.steps(l) > 1;
        let names = |s: &NestStatement, l: &ForLoop| s.write.subscripts.contains(&Expr::sym(l.index.as_str()));
        let writers: Vec<&NestStatement> = partials(nest).filter_map(|(data, _, _)| Some(writer(nest, data)?.1)).collect();
        let named = |l: &&ForLoop| several(l) && writers.iter().any(|s| names(s, l));
        let around = nest.outer.len() - nest.outer.iter().rev().take_while(|l| !named(l)).count();
        let (outer, inner) = nest.outer.split_at(around);
        let apart = outer.iter().all(|l| !several(l) || writers.iter().all(|s| names(s, l)));
        if !apart || nest.sequential().next().is_some() || schedule.places.values().any(|p| *p == Placement::Scratch) {
            return None;
        }
        let steps = |loops: &[ForLoop]| loops.iter().map(|l| nest.steps(l)).product::<i64>();
        let (groups, run) = (steps(outer), steps(inner));
        let count = (blocks / groups.max(1)).clamp(1, ((run + schedule.rows - 1) / schedule.rows).max(1));
        self.given("run".into(), run);
        (groups.saturating_mul(count) <= GRID).then_some(Sections { around, groups, count })
    }

    /// Sets a team's partial results to the identities: in registers, and in memory where they are added to there.
    pub fn begin_partials(&mut self, added: bool, depth: usize) -> Result<(), KernelError> {
        for (data, combine, elements) in partials(self.nest) {
            let (name, identity) = (self.identifier(data), identity(combine, self.double));
            self.pointers.insert(data.clone());
            if added {
                let elements = self.given(format!("elements_{name}"), elements);
                self.line(depth, format!("for (index_t e = member; e < {elements}; e += TEAM) {name}_part[e] = {identity};"));
            }
            self.declare_registers(data, Some(&identity), depth)?;
        }
        if added {
            self.line(depth, "team_sync();");
        }
        Ok(())
    }

    /// Writes what the rows of a block hold in registers, put together, to the block's part of memory.
    pub fn write_partials(&mut self, depth: usize) -> Result<(), KernelError> {
        for (data, combine, _) in partials(self.nest) {
            let Some((group, statement)) = writer(self.nest, data) else { continue };
            let element: Element = statement.write.clone();
            let (last, opened) = self.open_elements(data, group, &element, depth);
            let mut at = depth + opened;
            let (name, position) = (self.identifier(data), self.position(&element)?);
            let held = self.register(&element)?.unwrap_or_default();
            let (rows, functor) = (self.dialect.schedule.as_ref().map_or(1, |s| s.rows), functor(combine));
            if let Some(last) = last {
                self.open_strips(last, true, at);
                at += 1;
                // Lanes beyond the end, too: all threads come to the barriers.
                self.line(at, "real whole[W];");
                self.line(at, "#pragma unroll");
                self.line(at, format!("for (int w = 0; w < W; ++w) whole[w] = {held};"));
                if rows > 1 {
                    self.line(at, format!("rows_reduce_strip(whole, {functor}, gathered);"));
                }
                self.line(at, "#pragma unroll");
                self.line(at, "for (int w = 0; w < W; ++w) {");
                self.line(at + 1, format!("const index_t {} = first_lane + w;", self.index(&last.index)));
                self.line(at + 1, format!("if (row == 0 && w < live) {name}_part[{position}] = whole[w];"));
                at += 1;
            } else {
                let whole = if rows > 1 { format!("rows_reduce({held}, {functor}, gathered)") } else { held };
                self.line(at, format!("{{ const real whole = {whole};"));
                self.line(at, format!("if (row == 0 && member == 0) {name}_part[{position}] = whole; }}"));
            }
            while at > depth {
                at -= 1;
                self.line(at, "}");
            }
        }
        Ok(())
    }

    /// Points after which the registers go to memory: a team's next point has another element.
    fn run(&self) -> i64 {
        let nest = self.nest;
        let named = |index: &str| {
            partials(nest).filter_map(|(data, _, _)| writer(nest, data)).any(|(_, s)| s.write.subscripts.contains(&Expr::sym(index)))
        };
        nest.outer.iter().rev().take_while(|l| !named(&l.index)).map(|l| nest.steps(l)).product()
    }

    /// Opens loops over the registers of a partial result but for the one that the team shares. That one, if there is one, and how
    /// many are open.
    fn open_elements<'g>(&mut self, data: &str, group: &'g LoopGroup, element: &Element, depth: usize) -> (Option<&'g ForLoop>, usize) {
        let owned = matches!(self.held_in(data), Some(Placement::Owned { along: Some(_) }));
        let last = group.loops.last().filter(|_| owned);
        let uses = |index: &str| element.subscripts.contains(&Expr::sym(index));
        let mut opened = 0;
        for each in group.loops.iter().filter(|l| uses(&l.index) && last.is_none_or(|k| k.index != l.index)) {
            let (index, count) = (self.index(&each.index), self.count(&each.index, each.count));
            self.line(depth + opened, format!("for (index_t {index} = 0; {index} < {count}; ++{index}) {{"));
            opened += 1;
        }
        (last, opened)
    }

    /// Adds the registers to the team's part of memory.
    pub fn flush_partials(&mut self, depth: usize) -> Result<(), KernelError> {
        let run = self.run();
        let run = self.given("run".into(), run);
        self.line(depth, format!("if (point + by >= to || (point + by) % {run} == 0) {{"));
        for (data, combine, _) in partials(self.nest) {
            if self.held_in(data) == Some(Placement::Scratch) {
                continue;
            }
            let Some((group, statement)) = writer(self.nest, data) else { continue };
            let element: Element = statement.write.clone();
            let (last, opened) = self.open_elements(data, group, &element, depth + 1);
            let mut at = depth + 1 + opened;
            if let Some(last) = last {
                self.open_strips(last, true, at);
                self.open_lanes(last, at + 1);
                at += 2;
            }
            let (name, position) = (self.identifier(data), self.position(&element)?);
            let held = self.register(&element)?.unwrap_or_default();
            let part = format!("{name}_part[{position}]");
            let once = if last.is_none() { "if (member == 0) " } else { "" };
            let whole = self.combined(combine, &format!("to_real({part})"), &held);
            self.line(at, format!("{once}{part} = {whole};"));
            while at > depth + 1 {
                at -= 1;
                self.line(at, "}");
            }
            let identity = identity(combine, self.double);
            self.fill_registers(data, &identity, depth + 1)?;
        }
        self.line(depth, "}");
        Ok(())
    }

    /// The body of the kernel that combines the teams' results, and its blocks.
    pub fn finish_partials(&mut self) -> Result<i64, KernelError> {
        let nest = self.nest;
        let mut blocks = 0;
        self.line(1, format!("SHARED(real, parts, {FINISH_THREADS});"));
        self.line(1, "const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;");
        for (data, combine, elements) in partials(nest) {
            let tensor = self.tensor(data)?;
            let target = data.trim_end_matches(".partial");
            let container = self
                .spec
                .containers
                .get(target)
                .ok_or_else(|| KernelError::UnknownContainer { kernel: self.spec.name.clone(), data: target.to_string() })?;
            let root = self.spec.root(target).to_string();
            let argument = self.spec.arguments().iter().position(|a| a.data == root).unwrap_or(0);
            let kind = cuda_type(container.dtype)
                .ok_or_else(|| self.unsupported(format!("`{target}` holds bits, which kernels cannot address")))?;
            let (from, _, _) = self.strides(data)?;
            let (to, first) = self.heap_strides(target, &root)?;
            let name = self.identifier(data);
            // Sizes are given: the same text serves others.
            let more = (elements + 31) / 32;
            let (first_block, end_block) =
                (self.given(format!("first_block_{name}"), blocks), self.given(format!("end_block_{name}"), blocks + more));
            let elements = self.given(format!("elements_{name}"), elements);
            self.line(1, format!("if (blockIdx.x >= {first_block} && blockIdx.x < {end_block}) {{"));
            self.line(2, format!("const index_t e = (index_t)(blockIdx.x - {first_block}) * 32 + lane;"));
            let held = if combine == Combine::Sum { "double" } else { "real" };
            self.line(2, format!("{held} whole = {};", identity(combine, self.double)));
            self.line(2, format!("if (e < {elements}) {{"));
            // Several reads under way: a thread may have hundreds, each as long as the way to memory.
            self.line(3, "#pragma unroll 8");
            self.line(3, format!("for (int64_t team = slice; team < teams; team += {SLICES}) {{"));
            let at = self.given(format!("at_{name}"), 0);
            self.line(4, format!("const real one = to_real(scratch[team * stride + {at} + e]);"));
            self.line(4, format!("whole = {};", self.combined(combine, "whole", "one")));
            self.line(3, "}");
            self.line(2, "}");
            self.line(2, "parts[threadIdx.x] = (real)whole;");
            self.line(2, "__syncthreads();");
            self.line(2, format!("if (slice == 0 && e < {elements}) {{"));
            self.line(3, format!("for (int s = 1; s < {SLICES}; ++s) {{"));
            self.line(4, "const real one = to_real(parts[s * 32 + lane]);");
            self.line(4, format!("whole = {};", self.combined(combine, "whole", "one")));
            self.line(3, "}");
            let mut place = vec![self.given(format!("first_{name}_out"), first)];
            for (n, extent) in tensor.shape.iter().enumerate() {
                let (s, t) = (self.given(format!("s_{name}_{n}"), from[n]), self.given(format!("out_{name}_{n}"), to[n]));
                let extent = self.given(format!("d_{name}_{n}"), *extent);
                place.push(format!("e / {s} % {extent} * {t}"));
            }
            self.line(3, format!("GLOBAL({kind}, a.p[{argument}])[{}] = From<{kind}>::real_((real)whole);", place.join(" + ")));
            self.line(2, "}");
            self.line(1, "}");
            blocks += more;
        }
        Ok(blocks)
    }
}
