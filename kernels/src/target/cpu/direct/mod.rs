//! Products by micro-kernels that read both factors where they lie: convolutions in any layout, and matrix products whose factors need no
//! packing.
//!
//! ```text
//! y[n,o,p,q] = Σ k[o,c,r,s] · x[n,c,p+r-1,q+s-1 else 0]
//!               ───────────   ────────────────────────
//!               vectors of o  single values at p, q: a register block of rows q and vectors of o, summed over c, r, s
//! ```
//!
//! One factor gives vectors, along an index that the other lacks; the other gives single values. An index that all three tensors have may
//! be that of the lanes, too: then both factors give vectors, as in depthwise convolutions. A factor that is read outside its container is
//! copied once, with the fill around it, before the first point; where the fill adds nothing to a sum, products leave out what lies outside
//! instead (`clip.rs`). A factor whose lanes are no neighbours is packed once, where plain indices subscript it. All distances are
//! constants of the text, so that windows cost no arithmetic.

mod block_loop;
mod block_rows;
mod border;
mod clip;
mod clipped_dim;
mod copies;
mod epilogue;
mod kept_rows;
mod micro;
mod next_rows;
pub(crate) mod operand;
mod product_axis;
mod roles;
mod winograd;

use crate::emit::scalar::{integer, value};
use crate::error::KernelError;
use crate::loopnest::matmul_pattern::factors;
use crate::loopnest::{Element, ForLoop, LoopGroup, MemorySpace, slope};
use crate::register_block;
use crate::target::cpu::dialect::CPrinter;
use block_loop::BlockLoop;
use block_rows::{BlockRows, runs};
use clip::{ClippedBlocks, clip_of_run, kinds_of_runs, written_out};
use clipped_dim::ClippedDim;
use copies::PackedFactor;
use epilogue::{DirectEpilogue, Touched};
use micro::{Brought, Clip, DepthLoop, EpilogueStrides, MicroKernel, steps_of_round};
use next_rows::NextRows;
pub use operand::DirectOperand;
use product_axis::{ProductAxis, heights, joined, widths};
use roles::Roles;
use sdfg::{Expr, Scalar};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Types, instructions and copies that the micro-kernels are made of.
pub const PRELUDE: &str = include_str!("direct.c");
/// Bytes of a panel of vectors that stays in the first cache while rows pass.
const NEAR: i64 = 16 << 10;
/// Vectors between steps of the depth, of vectors that are read where they lie.
const NEIGHBOURS: i64 = 4;
/// Bytes of vectors that stay in the second cache while rows pass.
const FAR: i64 = 512 << 10;
/// Most micro-kernels of runs of places: more of them take too long to compile.
const MOST_KINDS: usize = 16;
/// Bytes of a factor that is in no second cache when a step comes to it: what other kernels read has passed since.
const DISTANT: i64 = 256 << 10;

impl CPrinter<'_> {
    /// The axes of a group for two operands and a result: those of more than one step, and all where these alone have no depth or no
    /// lanes, as at the small sizes of a check.
    fn axes(&mut self, group: &LoopGroup, operands: &[DirectOperand; 2], results: &[Element]) -> Result<Vec<ProductAxis>, KernelError> {
        let axes = self.axes_of(group, operands, results, 2)?;
        let is_depth = |a: &ProductAxis| a.strides[0].is_some() && a.strides[1].is_some() && a.strides[2].is_none();
        match axes.iter().any(is_depth) && axes.iter().any(|a| !is_depth(a)) {
            true => Ok(axes),
            false => self.axes_of(group, operands, results, 1),
        }
    }

    /// The axes of at least this many steps.
    fn axes_of(
        &mut self,
        group: &LoopGroup,
        operands: &[DirectOperand; 2],
        results: &[Element],
        least: i64,
    ) -> Result<Vec<ProductAxis>, KernelError> {
        let mut axes = Vec::new();
        for each in group.loops.iter().filter(|l| l.count >= least) {
            let index = each.index.as_str();
            let tile = self.nest.tiles.iter().find(|t| t.index == *index && t.is_ragged());
            let mut last = tile.map_or(each.count, |t| t.count % t.size);
            let mut strides = Vec::new();
            for DirectOperand { element, strides: lie, .. } in operands {
                strides.push(self.distance(element, lie, index)?);
            }
            for element in results {
                strides.push(self.distance(element, &self.strides(&element.data)?.0, index)?);
            }
            let mut count = self.count(index, each.count);
            let mut most = each.count;
            // What lies outside the picture is filled afterwards.
            match self.made(index, each.count) {
                None => {}
                Some((_, Expr::Int(whole))) => (most, last, count) = (whole.max(1), whole.max(1), whole.to_string()),
                Some((_, made)) => (last, count) = (0, format!("({})", integer(&made, self))),
            }
            axes.push(ProductAxis { indices: vec![index.to_string()], most, count, last, strides, is_alone: false });
        }
        Ok(axes)
    }

    /// Elements between neighbours along an index, for these strides of the dims; `None` where it does not occur.
    fn distance(&self, element: &Element, strides: &[i64], index: &str) -> Result<Option<i64>, KernelError> {
        let (mut total, mut found) = (0, false);
        for (subscript, stride) in element.subscripts.iter().zip(strides) {
            let step = slope(subscript, index).and_then(|s| s.eval(&self.symbols()).ok());
            let step = step.ok_or_else(|| self.unsupported(format!("`{}` is subscripted by `{subscript}` in a product", element.data)))?;
            found |= step != 0;
            total += step * stride;
        }
        Ok(found.then_some(total))
    }

    /// Prints a group that is one sum of products, and what its micro-kernels make of the sums.
    pub fn direct(&mut self, group: &LoopGroup, epilogue: Option<DirectEpilogue>, depth: usize) -> Result<(), KernelError> {
        let Some(statement) = group.statements.first() else { return Err(self.unsupported("a group of products is empty".into())) };
        let no_product = format!("`{}` is no product", statement.name);
        let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e.clone());
        let factors = factors(&statement.code).and_then(|f| Some((read(&f.a)?, read(&f.b)?, f.scale)));
        let (Some((a, b, scale)), Some(plan)) = (factors, self.nest.gemm) else { return Err(self.unsupported(no_product)) };
        let out = statement.write.clone();
        let lanes = plan.block.vector as i64 / if self.double { 8 } else { 4 };
        let mut operands = [self.operand(a, group, depth)?, self.operand(b, group, depth)?];
        let touched = epilogue.iter().flat_map(|e| &e.touched).map(|t| t.element.clone());
        let results: Vec<Element> = [out.clone()].into_iter().chain(touched).collect();
        let mut axes = self.axes(group, &operands, &results)?;
        for axis in &mut axes {
            axis.is_alone = operands.iter().flat_map(|o| &o.clipped).any(|dim| dim.moves_with(&axis.indices));
        }
        // Lanes are neighbours in what is written.
        let main = epilogue.iter().flat_map(|e| &e.touched).position(|t| t.is_written).map_or(2, |n| n + 3);
        let Some(mut roles) = self.roles(axes, &operands, lanes, main) else { return Err(self.unsupported(no_product)) };
        let (v, s) = (roles.vectors, 1 - roles.vectors);
        self.tell_lanes(&out, epilogue.as_ref(), &roles.lane);

        // The factor of vectors as it lies, in a copy with room beyond its last vector, or packed.
        let partial = roles.lane.most % lanes != 0 || roles.lane.last % lanes != 0 || roles.lane.last == 0;
        let mut packed = None;
        // Steps of the depth that lie farther apart are in lines that no processor foresees.
        let step = roles.depth.last().map_or(0, |d| d.stride(v).abs());
        if let [lane] = &roles.lane.indices[..]
            && (roles.lane.stride(v) != 1 || partial || step > NEIGHBOURS * lanes)
            && self.may_pack(&operands[v])
            && self.has_whole_vectors(lane, lanes)
        {
            let found = self.packed(&operands[v], &lane.clone(), &roles.depth, lanes)?;
            roles.lane.strides[v] = Some(1);
            for axis in roles.across.iter_mut().chain(&mut roles.loops).chain(&mut roles.depth) {
                axis.strides[v] = axis.indices.first().and_then(|i| found.strides.get(i)).copied();
            }
            packed = Some(found);
        }
        for (t, operand) in operands.iter_mut().enumerate() {
            let has_vectors = t == v || roles.both;
            let mine = packed.is_none() || t != v;
            let part = partial && has_vectors && mine && roles.lane.stride(t) == 1 && self.is_given(&operand.element.data);
            // What gives single values leaves out what lies outside; vectors along a window are copied.
            let along = operand.clipped.iter().any(|dim| dim.moves_with(&roles.lane.indices));
            let leaves = !operand.clipped.is_empty() && (t == v || along);
            if !operand.is_copied() && (part || leaves) {
                roles.each(|axis| axis.is_alone &= !operand.clipped.iter().any(|dim| dim.moves_with(&axis.indices)));
                self.copy_whole(operand, Some((group, depth)))?;
                // Strides of the copy in the place of those in memory.
                let strides = operand.strides.clone();
                let (mut wrong, element) = (None, operand.element.clone());
                roles.each(|axis| match self.distance(&element, &strides, &axis.indices[0]) {
                    Ok(stride) => axis.strides[t] = stride,
                    Err(e) => wrong = Some(e),
                });
                if let Some(e) = wrong {
                    return Err(e);
                }
            }
        }
        self.blocked(group, roles, [v, s], operands, packed, (&results, main), (scale, epilogue), lanes, depth)
    }

    /// Prints the loops around the micro-kernels.
    #[allow(clippy::too_many_arguments)]
    fn blocked(
        &mut self,
        group: &LoopGroup,
        roles: Roles,
        [v, s]: [usize; 2],
        operands: [DirectOperand; 2],
        packed: Option<PackedFactor>,
        (results, main): (&[Element], usize),
        (scale, epilogue): (Scalar, Option<DirectEpilogue>),
        lanes: i64,
        level: usize,
    ) -> Result<(), KernelError> {
        let Roles { lane, both, mut across, rows, loops, depth: summed, .. } = roles;
        let Some(plan) = self.nest.gemm else { return Err(self.unsupported("it has no products".into())) };
        let partial = lane.most % lanes != 0 || lane.last % lanes != 0;
        // Vectors along the lanes' axis, or, where that is one vector, along another one.
        let along = lane.most > lanes;
        across.sort_by_key(|a| (a.is_ragged(), Reverse(a.most)));
        let beside = if along || across.is_empty() { None } else { Some(across.remove(0)) };
        let by = if packed.is_none() && lane.stride(v) == 1 { v } else { s };
        let (mut rows, loops) = (joined(rows, main), joined(loops, main));
        // Of axes of one length the one along which images are in one piece.
        rows.sort_by_key(|a| (a.is_ragged(), Reverse(a.most), a.stride(s).abs()));
        let vectors = match &beside {
            Some(axis) => axis.most,
            None => (lane.most + lanes - 1) / lanes,
        };
        let picture = [0, 1].map(|n| rows.get(n).map_or(1, |a| a.most));
        // Which places of a run lie at the sides of an image must be known, and so where they are.
        let is_whole = |axis: &ProductAxis| {
            let is_clipped = operands[s].clipped.iter().any(|dim| dim.is_placed_by(&axis.indices));
            !axis.is_ragged() && (!is_clipped || axis.indices.iter().all(|i| self.whole_count(i) == Some(axis.most)))
        };
        let is_placed = |dim: &ClippedDim| rows.iter().take(2).any(|axis| dim.is_placed_by(&axis.indices));
        let may_run = !both && rows.len() > 1 && rows[..2].iter().all(is_whole) && operands[s].clipped.iter().all(is_placed);
        let mut block = register_block::choose(plan.block, picture, vectors, may_run);
        if block.is_run && kinds_of_runs(&operands[s].clipped, &rows, block.rows[0]) > MOST_KINDS {
            block = register_block::choose(plan.block, picture, vectors, false);
        }
        let of_blocks = if block.is_run { &[][..] } else { &operands[s].clipped };
        let clipped: Vec<(ClippedDim, Option<(usize, ClippedBlocks)>)> = of_blocks
            .iter()
            .map(|dim| {
                let axis = (0..2).find(|n| block.rows[*n] > 1 && rows.get(*n).is_some_and(|a| dim.is_placed_by(&a.indices)));
                (dim.clone(), axis.map(|n| (n, self.clipped_blocks(dim, &rows[n], block.rows[n]))))
            })
            .collect();
        // Where nothing is left out, windows that are written out at the edges are loops like others.
        let edged = joined(summed.clone(), by);
        let in_blocks = |axis: &ProductAxis| {
            let of_run = block.is_run && operands[s].clipped.iter().any(|dim| dim.moves_with(&axis.indices));
            of_run || clipped.iter().any(|(dim, blocks)| blocks.is_some() && dim.moves_with(&axis.indices))
        };
        let plain = |axis: ProductAxis| ProductAxis { is_alone: axis.is_alone && !in_blocks(&axis), ..axis };
        let depth = joined(summed.into_iter().map(plain).collect(), by);
        let apart = |t: usize| match (&beside, &packed) {
            (Some(axis), _) => axis.stride(t),
            (None, Some(packed)) if t == v => packed.apart,
            (None, _) => lanes * lane.stride(t),
        };
        let row = |t: usize| [0, 1].map(|n| rows.get(n).map_or(0, |a| a.stride(t)));
        let copied = |t: usize| operands[t].is_copied() || (t == v && packed.is_some());
        let whole = [v, s].map(|t| !partial || copied(t) || self.has_room(&operands[t].element));
        let loop_of = |d: &ProductAxis, clip: Clip| DepthLoop { count: d.most, strides: [d.stride(v), d.stride(s)], clip };
        let counted = |d: &ProductAxis| clipped.iter().any(|(dim, blocks)| blocks.is_none() && dim.is_walked_by(&d.indices));
        let unclipped = |d: &ProductAxis| if counted(d) { Clip::Counted } else { Clip::None };
        let steps: Vec<DepthLoop> = depth.iter().map(|d| loop_of(d, unclipped(d))).collect();
        // The depth of blocks at these edges along the axes of the block.
        let at_edges = |edges: [usize; 2], height: [i64; 2]| -> Vec<DepthLoop> {
            if edges == [0, 0] {
                return steps.clone();
            }
            let clip = |d: &ProductAxis| match clipped.iter().find(|(dim, _)| dim.is_walked_by(&d.indices)) {
                Some((dim, Some((axis, blocks)))) => written_out(dim, blocks, edges[*axis], BlockRows::Rectangle(height), *axis),
                _ => unclipped(d),
            };
            edged.iter().map(|d| loop_of(d, clip(d))).collect()
        };
        // The depth of a run that begins at these places.
        let of_run = |first: [i64; 2], run: BlockRows| -> Vec<DepthLoop> {
            let clips: Vec<(&ClippedDim, Clip)> =
                operands[s].clipped.iter().filter_map(|dim| Some((dim, clip_of_run(dim, &rows, first, run)?))).collect();
            if clips.is_empty() {
                return steps.clone();
            }
            let clip =
                |d: &ProductAxis| clips.iter().find(|(dim, _)| dim.is_walked_by(&d.indices)).map_or(Clip::None, |(_, clip)| clip.clone());
            edged.iter().map(|d| loop_of(d, clip(d))).collect()
        };
        let all_runs = if block.is_run { runs(picture, block.rows[0]) } else { Vec::new() };
        let panel = depth.iter().map(|d| d.most).product::<i64>() * lanes * 4 * block.vectors;
        // The blocks of rows that one panel of vectors meets ask for the next panel together, each for vectors of other steps.
        let of_factor = self.tensor(&operands[v].element.data)?.shape.iter().product::<i64>() * 4;
        let in_memory = packed.is_some() || (!operands[v].is_copied() && self.is_given(&operands[v].element.data));
        let of_picture = match all_runs.len() as i64 {
            0 => (0..2).map(|n| (picture[n] + block.rows[n] - 1) / block.rows[n]).product::<i64>(),
            runs => runs,
        };
        let calls = of_picture * rows.iter().skip(2).map(|a| a.most).product::<i64>();
        let every = calls.min(steps_of_round(&steps));
        let brings = (in_memory && !both && panel > NEAR && of_factor > DISTANT).then_some(every);
        let bytes = |data: &str| self.tensor(data).map(|t| if self.is_given(data) { t.shape.iter().product::<i64>() * 4 } else { 0 });
        let distant = |element: &Element| Ok::<_, KernelError>(bytes(&element.data)? > DISTANT);
        let comes_from_afar = !operands[s].is_copied() && distant(&operands[s].element)?;
        // Indices that share a subscript with those of the rows move windows.
        let of_rows: BTreeSet<&String> = rows.iter().flat_map(|row| &row.indices).collect();
        let subscripts = operands[s].element.subscripts.iter().map(|e| self.untiled(e).symbols());
        let windows: BTreeSet<String> = subscripts.filter(|symbols| symbols.iter().any(|i| of_rows.contains(i))).flatten().collect();
        let is_window = |axis: &ProductAxis| axis.indices.iter().any(|i| windows.contains(i));
        let next_rows = |height: [i64; 2]| match comes_from_afar {
            true => NextRows::of(s, height, &rows, &edged, is_window),
            false => NextRows::default(),
        };
        let mut brings_results = false;
        for (n, element) in results.iter().enumerate().filter(|(n, _)| *n > 0 || epilogue.is_none()) {
            brings_results |= rows.iter().any(|row| row.stride(n + 2) != 0) && distant(element)?;
        }
        let kernel = |rows: BlockRows, depth: Vec<DepthLoop>, next: NextRows, vectors: i64| MicroKernel {
            lanes,
            vectors,
            rows,
            depth,
            vector: [apart(v), lane.stride(v)],
            row: row(s),
            whole,
            other: both.then(|| [apart(s), lane.stride(s)]),
            out_rows: row(2),
            out: [apart(2), lane.stride(2)],
            last_is_partial: beside.is_none(),
            epilogue: epilogue.as_ref().map(|e| {
                let place = |(n, touched): (usize, &Touched)| EpilogueStrides {
                    rows: row(n + 3),
                    vector: apart(n + 3),
                    lane: lane.stride(n + 3),
                    is_written: touched.is_written,
                };
                (e.text.clone(), e.touched.iter().enumerate().map(place).collect())
            }),
            brings: brings.map(|every| Brought { vectors, every }),
            next,
            brings_results,
        };
        if let Some(ragged) = depth.iter().find(|d| d.is_ragged()) {
            return Err(self.unsupported(format!("`{}` is summed in tiles of different sizes", ragged.indices[0])));
        }

        // Runs that have a micro-kernel in common: the first of each kind.
        let mut kinds: Vec<([i64; 2], BlockRows)> = Vec::new();
        let mut table: Vec<String> = Vec::new();
        for (first, run) in &all_runs {
            let same = |(at, other): &([i64; 2], BlockRows)| other.each() == run.each() && of_run(*at, *other) == of_run(*first, *run);
            let kind = kinds.iter().position(same).unwrap_or_else(|| {
                kinds.push((*first, *run));
                kinds.len() - 1
            });
            table.push(format!("{{{}, {}, {kind}}}", first[0], first[1]));
        }

        let name = group.statements[0].name.replace("*/", "");
        self.line(level, format!("/* {name} */"));
        self.line(level, "{");
        let begin = |l: &ForLoop| self.made(&l.index, l.count).map_or(Expr::Int(0), |(first, _)| first);
        let first: BTreeMap<String, Expr> = group.loops.iter().map(|l| (l.index.clone(), begin(l))).collect();
        let from = match &packed {
            Some(packed) => packed.start.clone(),
            None => self.start(&operands[v], &first)?,
        };
        let other = self.start(&operands[s], &first)?;
        let mut pointers = Vec::new();
        for (n, element) in results.iter().enumerate() {
            // Sums that stay in registers have no place in memory.
            let absent = n == 0 && epilogue.is_some();
            pointers.push(if absent { String::new() } else { self.pointer(element, &first)? });
        }
        self.line(level + 1, format!("const real *const w = {from};"));
        self.line(level + 1, format!("const real *const s = {other};"));
        match &epilogue {
            None => self.line(level + 1, format!("real *const c = {};", pointers[0])),
            Some(e) => {
                for (n, (touched, pointer)) in e.touched.iter().zip(&pointers[1..]).enumerate() {
                    let constant = if touched.is_written { "" } else { "const " };
                    self.line(level + 1, format!("{constant}real *const t{n} = {pointer};"));
                }
            }
        }

        if block.is_run {
            self.line(level + 1, format!("static const int16_t runs[{}][3] = {{{}}};", table.len(), table.join(", ")));
        }

        // Loops from outer to inner: iterations, step, and distances in each tensor.
        let all = || 0..results.len() + 2;
        let lane_count = format!("({})", lane.count);
        let count = match &beside {
            Some(axis) => axis.count.clone(),
            None => format!("({lane_count} + {}) / {lanes}", lanes - 1),
        };
        let moves = |axis: &ProductAxis| clipped.iter().map(|(dim, _)| dim.step_of(&axis.indices)).collect::<Vec<i64>>();
        let walked = |axis: &ProductAxis, size: i64| BlockLoop {
            count: axis.count.clone(),
            step: size,
            is_equal: true,
            strides: all().map(|t| axis.stride(t)).collect(),
            moves: moves(axis),
        };
        let of_vectors =
            BlockLoop { count, step: block.vectors, is_equal: false, strides: all().map(apart).collect(), moves: vec![0; clipped.len()] };
        let mut order: Vec<BlockLoop> = loops.iter().chain(&across).map(|axis| walked(axis, 1)).collect();
        let outside = panel <= NEAR || panel * (vectors + block.vectors - 1) / block.vectors > FAR;
        let (mut at_vectors, mut at_rows) = (0, [None; 2]);
        if outside {
            at_vectors = order.len();
            order.push(of_vectors.clone());
        }
        let walked_alone = if block.is_run { 2 } else { 0 };
        for (n, axis) in rows.iter().enumerate().skip(walked_alone).rev() {
            let size = if n < 2 { block.rows[n] } else { 1 };
            if n < 2 {
                at_rows[n] = Some(order.len());
            }
            order.push(walked(axis, size));
        }
        let at_run = block.is_run.then_some(order.len());
        if block.is_run {
            let none = all().map(|_| 0).collect();
            order.push(BlockLoop { count: all_runs.len().to_string(), step: 1, is_equal: true, strides: none, moves: Vec::new() });
        }
        if !outside {
            at_vectors = order.len();
            order.push(of_vectors);
        }
        // Blocks of rows that have met a panel, or all panels of the tile where these are the innermost loop: the loops that are counted.
        let end = order.len() - usize::from(!outside);
        let met = end - (rows.len() - usize::from(block.is_run))..end;
        for (n, block_loop) in order.iter().enumerate() {
            if brings.is_some() && !rows.is_empty() && n == met.start {
                self.line(level + 1 + n, "int64_t met = 0;");
            }
            let [begin, size] = block_loop.begin(n);
            self.line(level + 1 + n, begin);
            if !size.is_empty() {
                self.line(level + 2 + n, size);
            }
            if at_run == Some(n) {
                self.line(level + 2 + n, format!("const int64_t run_a = runs[x{n}][0], run_b = runs[x{n}][1], kind = runs[x{n}][2];"));
            }
        }
        let inner = level + 1 + order.len();
        let place = |name: &str, t: usize| {
            let terms = order.iter().enumerate().filter(|(_, l)| l.strides[t] != 0);
            let of_run = ["run_a", "run_b"].into_iter().zip(&rows).filter(|(_, axis)| block.is_run && axis.stride(t) != 0);
            let terms =
                terms.map(|(n, l)| format!("x{n} * {}", l.strides[t])).chain(of_run.map(|(at, axis)| format!("{at} * {}", axis.stride(t))));
            [name.to_string()].into_iter().chain(terms).collect::<Vec<_>>().join(" + ")
        };
        let valid = match beside {
            Some(_) => lane_count,
            None => format!("{lane_count} - x{at_vectors} * {lanes}"),
        };
        let (add, scale) = (self.adds(&results[0], &[])?, value(&scale, self));
        let result = if epilogue.is_some() { String::new() } else { format!(", {}, {add}", place("c", 2)) };
        let touched: String = (3..results.len() + 2).map(|t| format!(", {}", place(&format!("t{}", t - 3), t))).collect();
        let next = apart(v) * if outside { block.vectors } else { vectors };
        let ahead = match brings {
            None => "",
            Some(_) if rows.is_empty() => &format!(", {next}"),
            Some(every) => {
                let step = steps.last().map_or(0, |d| d.strides[0]);
                self.line(inner, format!("const int64_t ahead = met < {every} ? {next} + met * {step} : 0;"));
                ", ahead"
            }
        };
        // Where windows begin later, both factors do.
        let mut begin = [place("w", v), place("s", s)];
        for (n, (dim, blocks)) in clipped.iter().enumerate() {
            let moved: Vec<String> =
                order.iter().enumerate().filter(|(_, l)| l.moves[n] != 0).map(|(at, l)| format!("x{at} * {}", l.moves[n])).collect();
            let position = self.window_position(dim, &first, &moved);
            self.line(inner, format!("const int64_t at{n} = {position};"));
            if let Some((_, blocks)) = blocks {
                let edges = blocks.edges.iter().enumerate().map(|(k, position)| format!("at{n} == {position} ? {} : ", k + 1));
                self.line(inner, format!("const int64_t edge{n} = {}0;", edges.collect::<String>()));
            } else {
                let [from, end] = dim.left(&format!("at{n}"));
                self.line(inner, format!("const int64_t from{n} = {from}, left{n} = max_of({end} - from{n}, 0);"));
                let window = edged.iter().find(|d| dim.is_walked_by(&d.indices));
                for (begin, t) in begin.iter_mut().zip([v, s]) {
                    *begin += &format!(" + from{n} * {}", window.map_or(0, |d| d.stride(t)));
                }
            }
        }
        let left = |d: &ProductAxis| clipped.iter().position(|(dim, blocks)| blocks.is_none() && dim.is_walked_by(&d.indices));
        let lefts: String = edged.iter().filter_map(left).map(|n| format!(", left{n}")).collect();
        let [of_v, of_s] = begin;
        let arguments = format!("({of_v}, {of_s}{result}, {scale}, {valid}{touched}{ahead}{lefts});");
        let of_lane = ProductAxis { most: vectors, last: (lane.last + lanes - 1) / lanes, ..lane.clone() };
        let wide = widths(beside.as_ref().unwrap_or(&of_lane), block.vectors);
        // Rows along each axis of a block, and the edge that they are at.
        let blocks_of = [0, 1].map(|axis| {
            if block.is_run {
                return (None, Vec::new());
            }
            let found = clipped.iter().enumerate().find_map(|(n, (_, blocks))| {
                let (_, blocks) = blocks.as_ref().filter(|(a, _)| *a == axis)?;
                Some((Some(n), blocks.blocks.clone()))
            });
            found.unwrap_or_else(|| (None, heights(rows.get(axis), block.rows[axis]).into_iter().map(|h| (h, 0)).collect()))
        });
        let is_edge = |axis: usize, edge: usize| {
            let (dim, blocks) = &blocks_of[axis];
            dim.filter(|_| blocks.iter().any(|(_, e)| *e != edge)).map(|n| format!("edge{n} == {edge}"))
        };
        for n in &wide {
            for (kind, (first, run)) in kinds.iter().enumerate() {
                let (name, text) = kernel(*run, of_run(*first, *run), next_rows([run.count(), 1]), *n).code();
                self.functions.insert(name.clone(), text);
                let wide = if wide.len() > 1 && block.vectors > 1 { format!("h{at_vectors} == {n} && ") } else { String::new() };
                self.line(inner, format!("if ({wide}kind == {kind}) {name}{arguments}"));
            }
        }
        let alone = wide.len() * blocks_of[0].1.len() * blocks_of[1].1.len() == 1;
        for n in &wide {
            for (a, edge_a) in &blocks_of[0].1 {
                for (b, edge_b) in &blocks_of[1].1 {
                    let height = [*a, *b];
                    let depth = at_edges([*edge_a, *edge_b], height);
                    let (name, text) = kernel(BlockRows::Rectangle(height), depth, next_rows(height), *n).code();
                    self.functions.insert(name.clone(), text);
                    let is = |at: Option<usize>, size: i64, of: i64| at.filter(|_| size > 1).map(|at| format!("h{at} == {of}"));
                    let of_sizes =
                        [is(Some(at_vectors), block.vectors, *n), is(at_rows[0], block.rows[0], *a), is(at_rows[1], block.rows[1], *b)];
                    let tests: Vec<String> = of_sizes.into_iter().chain([is_edge(0, *edge_a), is_edge(1, *edge_b)]).flatten().collect();
                    let when = if tests.is_empty() || alone { String::new() } else { format!("if ({}) ", tests.join(" && ")) };
                    self.line(inner, format!("{when}{name}{arguments}"));
                }
            }
        }
        for n in (0..order.len()).rev() {
            if brings.is_some() && !rows.is_empty() && n + 1 == met.end {
                self.line(level + 2 + n, "++met;");
            }
            self.line(level + 1 + n, "}");
        }
        self.line(level, "}");
        Ok(())
    }

    /// Whether an element is in a tile's memory, which has room beyond its last vector.
    fn has_room(&self, element: &Element) -> bool {
        self.tensor(&element.data).is_ok_and(|t| t.space == MemorySpace::Local)
    }
}
