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
mod winograd;

use crate::emit::scalar::{integer, value};
use crate::error::KernelError;
use crate::loopnest::matmul_pattern::factors;
use crate::loopnest::{Element, ForLoop, LoopGroup, MemorySpace, slope};
use crate::register_block;
use crate::target::cpu::dialect::CPrinter;
use block_loop::BlockLoop;
use clip::{ClippedBlocks, written_out};
use clipped_dim::ClippedDim;
use copies::PackedFactor;
use epilogue::{DirectEpilogue, Touched};
use micro::{Brought, Clip, DepthLoop, EpilogueStrides, MicroKernel, steps_of_round};
use next_rows::NextRows;
pub use operand::DirectOperand;
use product_axis::{ProductAxis, heights, joined, widths};
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
/// Bytes of a factor that is in no second cache when a step comes to it: what other kernels read has passed since.
const DISTANT: i64 = 256 << 10;

/// How the axes of a product are used.
struct Roles {
    /// Which factor gives vectors.
    vectors: usize,
    lane: ProductAxis,
    /// Whether the other factor gives vectors along the lanes, too.
    both: bool,
    /// Only in the factor of vectors, in the other one, in both, each with the result; and summed.
    across: Vec<ProductAxis>,
    rows: Vec<ProductAxis>,
    loops: Vec<ProductAxis>,
    depth: Vec<ProductAxis>,
}

impl Roles {
    fn each(&mut self, of: impl FnMut(&mut ProductAxis)) {
        let all = [&mut self.across, &mut self.rows, &mut self.loops, &mut self.depth];
        all.into_iter().flatten().chain([&mut self.lane]).for_each(of);
    }
}

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
        rows.sort_by_key(|a| (a.is_ragged(), Reverse(a.most)));
        let vectors = match &beside {
            Some(axis) => axis.most,
            None => (lane.most + lanes - 1) / lanes,
        };
        let block = register_block::choose(plan.block, [0, 1].map(|n| rows.get(n).map_or(1, |a| a.most)), vectors);
        let clipped: Vec<(ClippedDim, Option<(usize, ClippedBlocks)>)> = operands[s]
            .clipped
            .iter()
            .map(|dim| {
                let axis = (0..2).find(|n| block.rows[*n] > 1 && rows.get(*n).is_some_and(|a| dim.is_placed_by(&a.indices)));
                (dim.clone(), axis.map(|n| (n, self.clipped_blocks(dim, &rows[n], block.rows[n]))))
            })
            .collect();
        // Where nothing is left out, windows that are written out at the edges are loops like others.
        let edged = joined(summed.clone(), by);
        let in_blocks = |axis: &ProductAxis| clipped.iter().any(|(dim, blocks)| blocks.is_some() && dim.moves_with(&axis.indices));
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
                Some((dim, Some((axis, blocks)))) => written_out(dim, blocks, edges[*axis], height[*axis], *axis),
                _ => unclipped(d),
            };
            edged.iter().map(|d| loop_of(d, clip(d))).collect()
        };
        let panel = depth.iter().map(|d| d.most).product::<i64>() * lanes * 4 * block.vectors;
        // The blocks of rows that one panel of vectors meets ask for the next panel together, each for vectors of other steps.
        let of_factor = self.tensor(&operands[v].element.data)?.shape.iter().product::<i64>() * 4;
        let in_memory = packed.is_some() || (!operands[v].is_copied() && self.is_given(&operands[v].element.data));
        let calls = [0, 1].map(|n| rows.get(n).map_or(1, |a| (a.most + block.rows[n] - 1) / block.rows[n])).iter().product::<i64>()
            * rows.iter().skip(2).map(|a| a.most).product::<i64>();
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
        let next = |height: [i64; 2]| match comes_from_afar {
            true => NextRows::of(s, height, &rows, &edged, is_window),
            false => NextRows::default(),
        };
        let mut brings_results = false;
        for (n, element) in results.iter().enumerate().filter(|(n, _)| *n > 0 || epilogue.is_none()) {
            brings_results |= rows.iter().any(|row| row.stride(n + 2) != 0) && distant(element)?;
        }
        let kernel = |height: [i64; 2], edges: [usize; 2], vectors: i64| MicroKernel {
            lanes,
            vectors,
            rows: height,
            depth: at_edges(edges, height),
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
            next: next(height),
            brings_results,
        };
        if let Some(ragged) = depth.iter().find(|d| d.is_ragged()) {
            return Err(self.unsupported(format!("`{}` is summed in tiles of different sizes", ragged.indices[0])));
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
        for (n, axis) in rows.iter().enumerate().rev() {
            let size = if n < 2 { block.rows[n] } else { 1 };
            if n < 2 {
                at_rows[n] = Some(order.len());
            }
            order.push(walked(axis, size));
        }
        if !outside {
            at_vectors = order.len();
            order.push(of_vectors);
        }
        // Blocks of rows that have met a panel, or all panels of the tile where these are the innermost loop: the loops that are counted.
        let end = order.len() - usize::from(!outside);
        let met = end - rows.len()..end;
        for (n, block_loop) in order.iter().enumerate() {
            if brings.is_some() && !rows.is_empty() && n == met.start {
                self.line(level + 1 + n, "int64_t met = 0;");
            }
            let [begin, size] = block_loop.begin(n);
            self.line(level + 1 + n, begin);
            if !size.is_empty() {
                self.line(level + 2 + n, size);
            }
        }
        let inner = level + 1 + order.len();
        let place = |name: &str, t: usize| {
            let terms = order.iter().enumerate().filter(|(_, l)| l.strides[t] != 0);
            [name.to_string()].into_iter().chain(terms.map(|(n, l)| format!("x{n} * {}", l.strides[t]))).collect::<Vec<_>>().join(" + ")
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
        let alone = wide.len() * blocks_of[0].1.len() * blocks_of[1].1.len() == 1;
        for n in &wide {
            for (a, edge_a) in &blocks_of[0].1 {
                for (b, edge_b) in &blocks_of[1].1 {
                    let (name, text) = kernel([*a, *b], [*edge_a, *edge_b], *n).code();
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

    /// What each axis is used for; `None` if no index gives lanes, or nothing is summed.
    fn roles(&self, axes: Vec<ProductAxis>, operands: &[DirectOperand; 2], lanes: i64, main: usize) -> Option<Roles> {
        let (mut alone, mut loops, mut depth): ([Vec<ProductAxis>; 2], _, _) = (Default::default(), Vec::new(), Vec::new());
        for axis in axes {
            match [0, 1, 2].map(|t| axis.strides[t].is_some()) {
                [true, false, true] => alone[0].push(axis),
                [false, true, true] => alone[1].push(axis),
                [true, true, true] => loops.push(axis),
                [true, true, false] => depth.push(axis),
                _ => return None,
            }
        }
        /// An axis that may give lanes.
        struct Candidate {
            factor: usize,
            lane: ProductAxis,
            both: bool,
            worth: f64,
        }
        let mut found: Vec<Candidate> = Vec::new();
        let mut offer = |factor: usize, lane: &ProductAxis, both: bool, reads: f64| {
            // Parts of vectors of results in memory are read one by one: others would be read beyond its end.
            let parts = lane.most % lanes != 0 || lane.last % lanes != 0;
            let given = |e: &Element| self.is_given(&e.data) || self.has_room(e);
            let makes = |t: usize| parts && (t == factor || both) && !given(&operands[t].element);
            let reads = if makes(0) || makes(1) { 0.1 } else { reads };
            let used = lane.most as f64 / ((lane.most + lanes - 1) / lanes * lanes) as f64;
            let writes = if lane.strides[main] == Some(1) { 1.0 } else { 0.75 };
            found.push(Candidate { factor, lane: lane.clone(), both, worth: used * writes * reads });
        };
        for t in 0..2 {
            for lane in joined(alone[t].clone(), main) {
                if lane.stride(t) == 1 {
                    offer(t, &lane, false, 1.0);
                }
            }
            for lane in &alone[t] {
                offer(t, lane, false, if lane.stride(t) == 1 || self.may_pack(&operands[t]) { 1.0 } else { 0.1 });
            }
        }
        for lane in &loops {
            let reads = |t: usize| if lane.stride(t) == 1 { 1.0 } else { 0.1 };
            let factor = usize::from(self.may_pack(&operands[1]) && !self.may_pack(&operands[0]));
            let of_vectors = if self.may_pack(&operands[factor]) { 1.0 } else { reads(factor) };
            offer(factor, lane, true, 0.99 * of_vectors * reads(1 - factor));
        }
        // Of equals the first.
        let best = found.into_iter().reduce(|best, next| if next.worth > best.worth { next } else { best })?;
        let Candidate { factor, lane, both, .. } = best;
        let without =
            |axes: Vec<ProductAxis>| axes.into_iter().filter(|a| !lane.indices.contains(&a.indices[0])).collect::<Vec<ProductAxis>>();
        let [first, second] = alone;
        let (across, rows) = if factor == 0 { (first, second) } else { (second, first) };
        // Vectors that are read where they lie are walked in their order: few weights stay in the first cache until they are needed again,
        // while the few lines of an image that a register block reads do.
        let walked = if lane.stride(factor) == 1 { factor } else { 1 - factor };
        depth.sort_by_key(|d| Reverse(d.stride(walked).abs()));
        (!depth.is_empty()).then(|| Roles {
            vectors: factor,
            across: without(across),
            rows,
            loops: without(loops),
            lane: lane.clone(),
            both,
            depth,
        })
    }
}
