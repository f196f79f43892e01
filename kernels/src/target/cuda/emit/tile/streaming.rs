//! The CUDA of a streamed tile: the values that products make for rows and columns stay in registers until another product multiplies them.

use crate::emit::reduction::Reduction;
use crate::emit::scalar::constant;
use crate::error::KernelError;
use crate::loopnest::streaming::{ColumnPass, StreamedTile};
use crate::loopnest::{ForLoop, LoopGroup, MemorySpace, NestStatement};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::group::functor;
use crate::target::cuda::emit::schedule::{Placement, WARP};
use crate::target::cuda::emit::tile::async_copy::{PACK, StagedOperand};
use crate::target::cuda::emit::tile::smem_ring::{First, Last, MOST, STRIP, Staged, bytes, over};
use indexmap::{IndexMap, IndexSet};
use sdfg::Combine;

/// Neighbouring columns of a lane.
pub const WIDTH: i64 = 8;
/// Rows of a warp.
const ROWS: i64 = 16;

/// The operands that are copied through the shared-memory ring.
struct Parts {
    firsts: Vec<First>,
    lasts: Vec<Last>,
    operands: Vec<StagedOperand>,
    /// The element type of all of it, and how many elements a part of the ring has.
    staged: &'static str,
    part: i64,
}

/// A streamed tile as its kernel needs it: the text, the declarations and bytes of the ring, and how many parts the ring has.
pub struct StreamedBlock {
    pub body: String,
    pub stage: String,
    pub bytes: i64,
    pub stages: i64,
}

impl CudaPrinter<'_> {
    /// Prints a streamed tile, with as many parts of the ring as are wanted and fit.
    pub fn streamed_tile(&mut self, wanted: i64, shared: i64, depth: usize) -> Result<StreamedBlock, KernelError> {
        let (nest, none) = (self.nest, self.unsupported("its tiles cannot be streamed".into()));
        let Some(plan) = StreamedTile::of(nest).filter(|_| !self.double) else { return Err(none) };
        let width = self.dialect.schedule.as_ref().map_or(0, |s| s.width);
        let chunk = nest.gemm.map_or(0, |p| p.depth);
        let knob = |key: &str, value: i64, allowed: &str| KernelError::Knob {
            kernel: self.spec.name.clone(),
            key: key.into(),
            value: value.to_string(),
            allowed: format!("{allowed}, where tiles are streamed"),
        };
        if width != WIDTH {
            return Err(knob("width", width, "8"));
        }
        if chunk % STRIP != 0 || chunk > MOST {
            return Err(knob("depth", chunk, "32, 64, 128"));
        }
        // Values and lines are in registers before anything asks where an element is.
        let mut places = IndexMap::new();
        for (data, _) in nest.tensors.iter().filter(|(_, t)| t.space == MemorySpace::Local) {
            places.insert(data.clone(), if plan.lines.contains(data) { Placement::Line } else { Placement::Strip });
        }
        let staged = self.staged_type(&plan)?;
        let (mut at, mut firsts, mut lasts) = (0, Vec::new(), Vec::new());
        let threads = self.dialect.schedule.as_ref().map_or(WARP, |s| s.threads);
        for group in &plan.first {
            firsts.push(self.first(group, &plan, chunk, threads / WARP * ROWS, &mut at)?);
        }
        let rows = at;
        for first in &mut firsts {
            first.columns.at = at;
            at += bytes(&first.columns, chunk);
        }
        for (group, by) in &plan.last {
            let mut last = self.last(group, by, &plan)?;
            last.factor.at = at;
            at += bytes(&last.factor, chunk);
            lasts.push(last);
        }
        let fit = |part: i64| (2..=wanted).rev().find(|n| rows + n * part <= shared);
        let stages = fit(at - rows).ok_or_else(|| knob("depth", chunk, "less"))?;
        // Operands are copied ahead only where that costs the ring no part, and a processor none of the blocks that are to fit it.
        let mut operands = self.staged_operands(&plan, staged)?;
        let each = chunk / 16 * threads * 16;
        let beside = self.config.knobs.get("resident").and_then(|n| n.parse().ok()).unwrap_or(1).max(1);
        let room = |part: i64| (rows + stages * part) * beside <= shared;
        let with = at - rows + operands.len() as i64 * each;
        if fit(with) != Some(stages) || (room(at - rows) && !room(with)) {
            operands.clear();
        }
        for operand in &mut operands {
            operand.at = at - rows;
            at += each;
        }
        let part = at - rows;
        if let Some(schedule) = &mut self.dialect.schedule {
            schedule.places = places;
        }
        let stage =
            format!("    PLACED({staged}, rows_stage, 0, {});\n    PLACED({staged}, stage, {rows}, {});\n", rows / 2, stages * part / 2);
        for first in &mut firsts {
            first.columns.at -= rows;
        }
        lasts.iter_mut().for_each(|last| last.factor.at -= rows);
        let body = self.panels_text(&plan, &Parts { firsts, lasts, operands, staged, part: part / 2 }, depth)?;
        Ok(StreamedBlock { body, stage, bytes: rows + stages * part, stages })
    }

    /// The text of a tile: panels of rows, and passes over the columns of each.
    fn panels_text(
        &mut self,
        plan: &StreamedTile,
        Parts { firsts, lasts, operands, staged, part }: &Parts,
        depth: usize,
    ) -> Result<String, KernelError> {
        let (row_count, column_count) = (self.count(&plan.row.index, plan.row.count), self.count(&plan.column.index, plan.column.count));
        self.line(depth, format!("for (index_t panel = 0; panel < {row_count}; panel += WARPS * {ROWS}) {{"));
        let d = depth + 1;
        for index in &plan.single {
            let index = self.index(index);
            self.line(d, format!("const index_t {index} = 0;"));
        }
        self.line(d, "const int member = threadIdx.x % 4;");
        self.line(d, format!("const index_t panel_row = panel + threadIdx.x / 32 * {ROWS} + threadIdx.x % 32 / 4;"));
        self.line(d, "__syncthreads();");
        for (group, first) in plan.first.iter().zip(firsts) {
            let steps = self.free(group, plan)?;
            self.fill(&first.rows, staged, "rows_stage", ["panel", &format!("{row_count} - panel")], (&steps, true), d);
        }
        self.line(d, "end_copies();");
        self.line(d, "int next_pass = 0, next_part = 0, part = 0;");
        self.line(d, "index_t next = 0;");
        self.line(d, "const auto fill = [&]() {");
        let number = plan.passes.len();
        self.line(d + 1, format!("if (next_pass < {number}) {{"));
        self.line(d + 2, format!("POINTER({staged}) to = stage + next_part * {part};"));
        for (n, (group, first)) in plan.first.iter().zip(firsts).enumerate() {
            let uses: Vec<bool> = plan.passes.iter().map(|s| s.first.contains(&n)).collect();
            let inside = self.in_passes(&uses, d + 2);
            let steps = self.free(group, plan)?;
            self.fill(&first.columns, staged, "to", ["next", &format!("{column_count} - next")], (&steps, true), inside);
            if inside > d + 2 {
                self.line(d + 2, "}");
            }
        }
        for (n, ((group, _), last)) in plan.last.iter().zip(lasts).enumerate() {
            let uses: Vec<bool> = plan.passes.iter().map(|s| s.last.contains(&n)).collect();
            let inside = self.in_passes(&uses, d + 2);
            let columns = self.free(group, plan)?;
            self.fill(&last.factor, staged, "to", ["next", &columns], (&format!("{column_count} - next"), false), inside);
            if inside > d + 2 {
                self.line(d + 2, "}");
            }
        }
        for operand in operands {
            self.copy_operand(operand, plan, d + 2)?;
        }
        self.line(d + 2, "next_part = next_part + 1 < STAGES ? next_part + 1 : 0;");
        self.line(d + 2, "next += DEPTH;");
        self.line(d + 2, format!("if (next >= {column_count}) {{ next = 0; ++next_pass; }}"));
        self.line(d + 1, "}");
        self.line(d + 1, "end_copies();");
        self.line(d, "};");
        self.line(d, "for (int n = 1; n < STAGES; ++n) fill();");
        self.line(d, "await_copies<STAGES - 1>();");
        self.line(d, "__syncthreads();");
        for (n, first) in firsts.iter().enumerate() {
            self.line(d, format!("uint32_t held{n}[{}][4];", first.steps / 16));
            let Staged { lines, at, .. } = first.rows;
            let near = first.rows.is_near();
            self.line(d, format!("take_rows<{}, {lines}, {near}>(held{n}, rows_stage + {});", first.steps, at / 2));
        }
        for (n, first) in firsts.iter().enumerate() {
            self.line(d, format!("const real scale{n} = {};", first.scale));
        }
        let double = self.double;
        let mut lines: IndexSet<String> = IndexSet::new();
        let followed: IndexSet<&String> = plan.passes.iter().flat_map(|s| &s.relative).map(|(_, by)| by).collect();
        let combined = |s: &'_ &NestStatement| s.combine.is_some();
        for statement in plan.passes.iter().flat_map(|s| s.statements.iter().chain(&s.later).filter(combined).chain(&s.rows)) {
            let data = &statement.write.data;
            if self.held_in(data) == Some(Placement::Line) && lines.insert(data.clone()) {
                let identity = statement.combine.map_or(0.0, |c| c.identity().first().copied().unwrap_or(0.0));
                // The smallest finite number: minus infinity less it is no NaN, and its exponential is zero.
                let identity = if followed.contains(data) { f64::from(f32::MIN) } else { identity };
                let (name, identity) = (self.identifier(data), constant(identity, double));
                self.line(d, format!("real {name}[2] = {{{identity}, {identity}}};"));
            }
        }
        for (n, last) in lasts.iter().enumerate() {
            self.line(d, format!("float sums{n}[{}][4];", last.columns / 8));
            self.line(d, "#pragma unroll");
            self.line(d, format!("for (int n = 0; n < {}; ++n) sums{n}[n / 4][n % 4] = 0;", last.columns / 2));
        }
        for (turn, pass) in plan.passes.iter().enumerate() {
            self.line(d, format!("for (index_t at = 0; at < {column_count}; at += DEPTH) {{"));
            self.line(d + 1, "await_copies<STAGES - 2>();");
            self.line(d + 1, "__syncthreads();");
            self.line(d + 1, "fill();");
            self.line(d + 1, format!("POINTER({staged}) from = stage + part * {part};"));
            self.line(d + 1, "part = part + 1 < STAGES ? part + 1 : 0;");
            // Where lanes may have gone different ways, they meet before tensor cores take what all of them hold.
            let apart = firsts.iter().any(|f| !f.columns.whole) || lasts.iter().any(|l| !l.factor.whole);
            if apart {
                self.line(d + 1, "__syncwarp(0xffffffffu);");
            }
            for StagedOperand { element, at, .. } in operands.iter().filter(|operand| operand.uses[turn]) {
                self.ahead.insert(element.clone(), format!("read_pack<W>(from, {} + {PACK})", at / 2));
            }
            for n in &pass.first {
                let First { columns, steps, .. } = &firsts[*n];
                self.line(d + 1, format!("float values{n}[DEPTH / 8][4];"));
                self.line(d + 1, format!("make_values<{steps}, {}>(values{n}, held{n}, from + {});", columns.is_near(), columns.at / 2));
            }
            for n in &pass.last {
                self.line(d + 1, format!("uint32_t given{n}[DEPTH / 16][4];"));
            }
            self.line(d + 1, "#pragma unroll");
            self.line(d + 1, format!("for (int strip = 0; strip < DEPTH / {STRIP}; ++strip) {{"));
            self.line(d + 2, "#pragma unroll");
            self.line(d + 2, "for (int half = 0; half < 2; ++half) {");
            self.title(&over(plan, &[&pass.statements[..], &pass.later].concat()), d + 3);
            let first_lane = format!("at + strip * {STRIP} + member * W");
            self.open_row(plan, &first_lane, &plan.column, d + 3);
            for n in &pass.first {
                let name = self.identifier(&firsts[*n].out);
                self.line(d + 3, format!("real {name}[W];"));
                self.line(d + 3, "#pragma unroll");
                self.line(
                    d + 3,
                    format!("for (int w = 0; w < W; ++w) {name}[w] = scale{n} * values{n}[strip * 4 + w / 2][half * 2 + w % 2];"),
                );
            }
            let mut declared: IndexSet<&String> = IndexSet::new();
            for statement in pass.statements.iter().chain(&pass.later).filter(|s| s.combine.is_none()) {
                let data = &statement.write.data;
                if self.held_in(data) == Some(Placement::Strip) && self.tensor(data)?.stored && declared.insert(data) {
                    let name = self.identifier(data);
                    self.line(d + 3, format!("real {name}[W];"));
                    self.line(d + 3, "#pragma unroll");
                    self.line(d + 3, format!("for (int w = 0; w < W; ++w) {name}[w] = 0;"));
                }
            }
            let followed: IndexSet<String> = pass.relative.iter().map(|(_, by)| self.identifier(by)).collect();
            for by in &followed {
                self.line(d + 3, format!("const real {by}_before = {by}[half];"));
            }
            self.neighbours_of(&over(plan, &pass.statements), d + 3)?;
            for (sum, by) in &pass.relative {
                let (sum, by) = (self.identifier(sum), self.identifier(by));
                self.line(d + 3, format!("{sum}[half] *= r_exp({by}_before - {by}[half]);"));
            }
            if !pass.later.is_empty() {
                self.neighbours_of(&over(plan, &pass.later), d + 3)?;
            }
            for n in &pass.last {
                let name = self.identifier(&lasts[*n].by);
                self.line(d + 3, "#pragma unroll");
                self.line(
                    d + 3,
                    format!("for (int t = 0; t < 4; ++t) given{n}[strip * 2 + t / 2][t % 2 * 2 + half] = rounded_two<{staged}>({name}[2 * t], {name}[2 * t + 1]);"),
                );
            }
            self.line(d + 2, "}");
            self.line(d + 1, "}");
            self.ahead.clear();
            if apart && !pass.last.is_empty() {
                self.line(d + 1, "__syncwarp(0xffffffffu);");
            }
            for n in &pass.last {
                let Last { factor, columns, .. } = &lasts[*n];
                self.line(d + 1, format!("use_values<{columns}, {}>(sums{n}, given{n}, from + {});", factor.is_near(), factor.at / 2));
            }
            self.line(d, "}");
            self.whole_lines(pass, d);
            self.row_ends(&pass.rows, plan, d)?;
        }
        for group in &plan.ends {
            self.end(group, plan, lasts, d)?;
        }
        self.line(depth, "}");
        Ok(std::mem::take(&mut self.text))
    }

    /// Statements over a lane's neighbours of one row, with what they add to the row's lines.
    fn neighbours_of(&mut self, group: &LoopGroup, depth: usize) -> Result<(), KernelError> {
        let mut reductions = self.reductions(group)?;
        for r in &mut reductions {
            r.variable = Some(format!("{}[half]", self.identifier(&r.statement.write.data)));
            r.total = None;
        }
        self.strip_of(group, &reductions, depth)
    }

    /// Combines what the lanes of a row found in a pass.
    fn whole_lines(&mut self, pass: &ColumnPass, depth: usize) {
        let found: Vec<(String, Combine)> = pass
            .statements
            .iter()
            .chain(&pass.later)
            .filter_map(|s| s.combine.map(|combine| (self.identifier(&s.write.data), combine)))
            .collect();
        let relative: IndexMap<String, String> =
            pass.relative.iter().map(|(sum, by)| (self.identifier(sum), self.identifier(by))).collect();
        if found.is_empty() {
            return;
        }
        self.line(depth, "#pragma unroll");
        self.line(depth, "for (int half = 0; half < 2; ++half) {");
        for by in relative.values().collect::<IndexSet<_>>() {
            self.line(depth + 1, format!("const real {by}_before = {by}[half];"));
        }
        // The largest comes before the sums of exponentials less it, as in the pass.
        for (name, combine) in found {
            if let Some(by) = relative.get(&name) {
                self.line(depth + 1, format!("{name}[half] *= r_exp({by}_before - {by}[half]);"));
            }
            self.line(depth + 1, format!("{name}[half] = row_reduce({name}[half], {});", functor(combine)));
        }
        self.line(depth, "}");
    }

    /// C text of the iterations of the loop of a product that is neither of rows nor of columns.
    fn free(&mut self, group: &LoopGroup, plan: &StreamedTile) -> Result<String, KernelError> {
        let own = group.loops.iter().find(|l| l.index != plan.row.index && l.index != plan.column.index);
        let own = own.ok_or_else(|| self.unsupported("a product has no steps".into()))?;
        Ok(self.count(&own.index, own.count))
    }

    /// Opens a condition around statements that only some passes have; returns the depth inside.
    pub fn in_passes(&mut self, uses: &[bool], depth: usize) -> usize {
        if uses.iter().all(|u| *u) {
            return depth;
        }
        let those: Vec<String> = (0..uses.len()).filter(|n| uses[*n]).map(|n| format!("next_pass == {n}")).collect();
        self.line(depth, format!("if ({}) {{", if those.is_empty() { "false".to_string() } else { those.join(" || ") }));
        depth + 1
    }

    /// Whether all rows and strips are whole.
    pub fn comes_out_even(&self, plan: &StreamedTile, along: &ForLoop) -> bool {
        let ragged = self.nest.tiles.iter().any(|t| t.index == plan.row.index && t.is_ragged());
        let together = self.dialect.schedule.as_ref().map_or(WARP, |s| s.threads) / WARP * ROWS;
        // A pass computes all columns of a chunk, those beyond the last one as well.
        let strips = if along.index == plan.column.index { self.nest.gemm.map_or(1, |p| p.depth) } else { STRIP };
        !ragged && plan.row.count % together == 0 && along.count % strips == 0
    }

    /// Declares the row of a half, the first of its neighbours, and how many of them there are.
    pub fn open_row(&mut self, plan: &StreamedTile, first: &str, along: &ForLoop, depth: usize) {
        let (row, rows) = (self.index(&plan.row.index), self.count(&plan.row.index, plan.row.count));
        let whole = self.comes_out_even(plan, along);
        let count = self.count(&along.index, along.count);
        self.line(depth, "const index_t own_row = panel_row + half * 8;");
        // Where rows and strips are whole, no bound is checked.
        let own = if whole { "own_row".to_string() } else { format!("min_of(own_row, {rows} - 1)") };
        self.line(depth, format!("const index_t {row} = {own};"));
        let live = if whole { "W".to_string() } else { format!("own_row < {rows} ? live_of({count} - first_lane) : 0") };
        if !first.is_empty() {
            self.line(depth, format!("const index_t first_lane = {first};"));
            self.line(depth, format!("const int live = {live};"));
        }
    }

    /// Statements over a lane's neighbours of one row.
    fn strip_of(&mut self, group: &LoopGroup, reductions: &[Reduction], depth: usize) -> Result<(), KernelError> {
        self.dialect.uniform = true;
        for level in 0..group.loops.len() {
            self.loads(group, level, depth)?;
        }
        self.dialect.uniform = false;
        let (reads, last) = (self.reads_at(group, group.loops.len()), group.loops[group.loops.len() - 1].clone());
        self.strip(group, &last, reads, reductions, &mut IndexSet::new(), depth)?;
        self.dialect.uniform = true;
        Ok(())
    }

    /// Statements over each row after a pass; the first lane of each row stores the results.
    fn row_ends(&mut self, statements: &[NestStatement], plan: &StreamedTile, depth: usize) -> Result<(), KernelError> {
        if statements.is_empty() {
            return Ok(());
        }
        let group = LoopGroup { loops: vec![plan.row.clone()], statements: statements.to_vec(), is_gemm: false, last: false };
        self.line(depth, "#pragma unroll");
        self.line(depth, "for (int half = 0; half < 2; ++half) {");
        self.title(&group, depth + 1);
        self.open_row(plan, "", &plan.column, depth + 1);
        let rows = self.count(&plan.row.index, plan.row.count);
        self.line(depth + 1, format!("if (own_row < {rows}) {{"));
        self.dialect.uniform = true;
        for level in 0..=1 {
            self.loads(&group, level, depth + 2)?;
        }
        for statement in statements {
            self.statement(statement, &[], depth + 2)?;
        }
        self.line(depth + 1, "}");
        self.line(depth, "}");
        Ok(())
    }

    /// Statements over the sums of last products.
    fn end(&mut self, group: &LoopGroup, plan: &StreamedTile, lasts: &[Last], depth: usize) -> Result<(), KernelError> {
        let own = group.loops.iter().find(|l| l.index != plan.row.index).cloned();
        let own = own.ok_or_else(|| self.unsupported("the results of a product have no columns".into()))?;
        let reads = |data: &str| group.statements.iter().flat_map(|s| &s.reads).any(|(_, e)| e.data == data);
        let mine: Vec<usize> = (0..lasts.len()).filter(|n| reads(&lasts[*n].out)).collect();
        let columns = (own.count + STRIP - 1) / STRIP;
        self.line(depth, "#pragma unroll");
        self.line(depth, format!("for (int strip = 0; strip < {columns}; ++strip) {{"));
        self.line(depth + 1, "#pragma unroll");
        self.line(depth + 1, "for (int half = 0; half < 2; ++half) {");
        let ordered = LoopGroup { loops: vec![plan.row.clone(), own.clone()], ..group.clone() };
        self.title(&ordered, depth + 2);
        for n in mine {
            let (name, scale) = (self.identifier(&lasts[n].out), lasts[n].scale.clone());
            self.line(depth + 2, format!("real {name}[W];"));
            self.line(depth + 2, "#pragma unroll");
            self.line(
                depth + 2,
                format!("for (int w = 0; w < W; ++w) {name}[w] = {scale} * sums{n}[strip * 4 + w / 2][half * 2 + w % 2];"),
            );
            self.line(depth + 2, format!("gather_row({name});"));
        }
        self.open_row(plan, &format!("strip * {STRIP} + member * W"), &own, depth + 2);
        self.strip_of(&ordered, &[], depth + 2)?;
        self.line(depth + 1, "}");
        self.line(depth, "}");
        Ok(())
    }
}
