//! C of the loops around the micro-kernels of a direct product, and of the calls within them.

use super::block_loop::BlockLoop;
use super::blocked_product::{BlockedProduct, PlacedRun};
use super::product_axis::{ProductAxis, heights, widths};
use crate::emit::scalar::value;
use crate::error::KernelError;
use crate::loopnest::{ForLoop, LoopGroup};
use crate::target::cpu::dialect::CPrinter;
use sdfg::Expr;
use std::collections::BTreeMap;
use std::ops::Range;

/// Loops from outer to inner, and which of them walk what.
struct BlockLoops {
    order: Vec<BlockLoop>,
    vectors: usize,
    rows: [Option<usize>; 2],
    run: Option<usize>,
    /// Loops over the blocks of rows that have met a panel, or all panels of the tile where these are the innermost loop.
    met: Range<usize>,
}

impl BlockedProduct {
    fn loops_around(&self) -> BlockLoops {
        let tensors = || 0..self.product.results.len() + 2;
        let walked = |axis: &ProductAxis, size: i64| BlockLoop {
            count: axis.count.clone(),
            step: size,
            is_equal: true,
            strides: tensors().map(|t| axis.stride(t)).collect(),
            moves: self.clipped.iter().map(|(dim, _)| dim.step_of(&axis.indices)).collect(),
        };
        let lanes = self.product.lanes;
        let count = match &self.beside {
            Some(axis) => axis.count.clone(),
            None => format!("(({}) + {}) / {lanes}", self.lane.count, lanes - 1),
        };
        let still = vec![0; self.clipped.len()];
        let strides = tensors().map(|t| self.apart(t)).collect();
        let of_vectors = BlockLoop { count, step: self.block.vectors, is_equal: false, strides, moves: still.clone() };
        let mut order: Vec<BlockLoop> = self.loops.iter().chain(&self.across).map(|axis| walked(axis, 1)).collect();
        let outside = self.vectors_are_outside();
        let (mut vectors, mut rows) = (order.len(), [None; 2]);
        if outside {
            order.push(of_vectors.clone());
        }
        let begin = order.len();
        for (n, axis) in self.rows.iter().enumerate().skip(if self.block.is_run { 2 } else { 0 }).rev() {
            if n < 2 {
                rows[n] = Some(order.len());
            }
            order.push(walked(axis, if n < 2 { self.block.rows[n] } else { 1 }));
        }
        let run = self.block.is_run.then_some(order.len());
        if self.block.is_run {
            let (count, strides) = (self.runs.len().to_string(), tensors().map(|_| 0).collect());
            order.push(BlockLoop { count, step: 1, is_equal: true, strides, moves: still });
        }
        let met = begin..order.len();
        if !outside {
            vectors = order.len();
            order.push(of_vectors);
        }
        BlockLoops { order, vectors, rows, run, met }
    }

    /// C of where a tensor is within the loops.
    fn place(&self, loops: &BlockLoops, name: &str, t: usize) -> String {
        let terms = loops.order.iter().enumerate().filter(|(_, l)| l.strides[t] != 0).map(|(n, l)| format!("x{n} * {}", l.strides[t]));
        let of_run = ["run_a", "run_b"].into_iter().zip(&self.rows).filter(|(_, axis)| loops.run.is_some() && axis.stride(t) != 0);
        let of_run = of_run.map(|(at, axis)| format!("{at} * {}", axis.stride(t)));
        [name.to_string()].into_iter().chain(terms).chain(of_run).collect::<Vec<_>>().join(" + ")
    }
}

impl CPrinter<'_> {
    /// Prints a product in blocks.
    pub(super) fn print_blocks(&mut self, group: &LoopGroup, blocked: &BlockedProduct, level: usize) -> Result<(), KernelError> {
        let name = group.statements.first().map_or(String::new(), |s| s.name.replace("*/", ""));
        self.line(level, format!("/* {name} */"));
        self.line(level, "{");
        let begin = |l: &ForLoop| self.made(&l.index, l.count).map_or(Expr::Int(0), |(first, _)| first);
        let first: BTreeMap<String, Expr> = group.loops.iter().map(|l| (l.index.clone(), begin(l))).collect();
        self.print_pointers(blocked, &first, level + 1)?;
        if blocked.block.is_run {
            let run = |run: &PlacedRun| format!("{{{}, {}, {}}}", run.first[0], run.first[1], run.kind);
            let table: Vec<String> = blocked.runs.iter().map(run).collect();
            self.line(level + 1, format!("static const int16_t runs[{}][3] = {{{}}};", table.len(), table.join(", ")));
        }
        let loops = blocked.loops_around();
        let counts_blocks = blocked.brings.is_some() && !blocked.rows.is_empty();
        for (n, block_loop) in loops.order.iter().enumerate() {
            if counts_blocks && n == loops.met.start {
                self.line(level + 1 + n, "int64_t met = 0;");
            }
            let [begin, size] = block_loop.begin(n);
            self.line(level + 1 + n, begin);
            if !size.is_empty() {
                self.line(level + 2 + n, size);
            }
            if loops.run == Some(n) {
                self.line(level + 2 + n, format!("const int64_t run_a = runs[x{n}][0], run_b = runs[x{n}][1], kind = runs[x{n}][2];"));
            }
        }
        let inner = level + 1 + loops.order.len();
        let arguments = self.print_arguments(blocked, &loops, &first, inner)?;
        self.print_calls(blocked, &loops, &arguments, inner);
        for n in (0..loops.order.len()).rev() {
            if counts_blocks && n + 1 == loops.met.end {
                self.line(level + 2 + n, "++met;");
            }
            self.line(level + 1 + n, "}");
        }
        self.line(level, "}");
        Ok(())
    }

    /// Prints where the tensors of a product begin.
    fn print_pointers(&mut self, blocked: &BlockedProduct, first: &BTreeMap<String, Expr>, level: usize) -> Result<(), KernelError> {
        let product = &blocked.product;
        let from = match &product.packed {
            Some(packed) => packed.start.clone(),
            None => self.start(&product.operands[blocked.v], first)?,
        };
        let other = self.start(&product.operands[blocked.s], first)?;
        let mut pointers = Vec::new();
        for (n, element) in product.results.iter().enumerate() {
            // Sums that stay in registers have no place in memory.
            let absent = n == 0 && product.epilogue.is_some();
            pointers.push(if absent { String::new() } else { self.pointer(element, first)? });
        }
        self.line(level, format!("const real *const w = {from};"));
        self.line(level, format!("const real *const s = {other};"));
        match &product.epilogue {
            None => self.line(level, format!("real *const c = {};", pointers[0])),
            Some(e) => {
                for (n, (touched, pointer)) in e.touched.iter().zip(&pointers[1..]).enumerate() {
                    let constant = if touched.is_written { "" } else { "const " };
                    self.line(level, format!("{constant}real *const t{n} = {pointer};"));
                }
            }
        }
        Ok(())
    }

    /// Prints what the calls need to know, and returns their arguments.
    fn print_arguments(
        &mut self,
        blocked: &BlockedProduct,
        loops: &BlockLoops,
        first: &BTreeMap<String, Expr>,
        level: usize,
    ) -> Result<String, KernelError> {
        let BlockedProduct { product, v, s, .. } = blocked;
        let valid = match blocked.beside {
            Some(_) => format!("({})", blocked.lane.count),
            None => format!("({}) - x{} * {}", blocked.lane.count, loops.vectors, product.lanes),
        };
        let (add, scale) = (self.adds(&product.results[0], &[])?, value(&product.scale, self));
        let place = |name: &str, t: usize| blocked.place(loops, name, t);
        let result = if product.epilogue.is_some() { String::new() } else { format!(", {}, {add}", place("c", 2)) };
        let touched: String = (3..product.results.len() + 2).map(|t| format!(", {}", place(&format!("t{}", t - 3), t))).collect();
        let next = blocked.apart(*v) * if blocked.vectors_are_outside() { blocked.block.vectors } else { blocked.vectors };
        let ahead = match blocked.brings {
            None => "",
            Some(_) if blocked.rows.is_empty() => &format!(", {next}"),
            Some(every) => {
                let step = blocked.steps().last().map_or(0, |d| d.strides[0]);
                self.line(level, format!("const int64_t ahead = met < {every} ? {next} + met * {step} : 0;"));
                ", ahead"
            }
        };
        // Where windows begin later, both factors do.
        let mut begin = [place("w", *v), place("s", *s)];
        for (n, (dim, blocks)) in blocked.clipped.iter().enumerate() {
            let moving = loops.order.iter().enumerate().filter(|(_, l)| l.moves[n] != 0);
            let moved: Vec<String> = moving.map(|(at, l)| format!("x{at} * {}", l.moves[n])).collect();
            let position = self.window_position(dim, first, &moved);
            self.line(level, format!("const int64_t at{n} = {position};"));
            if let Some((_, blocks)) = blocks {
                let edges = blocks.edges.iter().enumerate().map(|(k, position)| format!("at{n} == {position} ? {} : ", k + 1));
                self.line(level, format!("const int64_t edge{n} = {}0;", edges.collect::<String>()));
            } else {
                let [from, end] = dim.left(&format!("at{n}"));
                self.line(level, format!("const int64_t from{n} = {from}, left{n} = max_of({end} - from{n}, 0);"));
                let window = blocked.edged.iter().find(|d| dim.is_walked_by(&d.indices));
                for (begin, t) in begin.iter_mut().zip([*v, *s]) {
                    *begin += &format!(" + from{n} * {}", window.map_or(0, |d| d.stride(t)));
                }
            }
        }
        let lefts: String = blocked.edged.iter().filter_map(|d| blocked.counted(d)).map(|n| format!(", left{n}")).collect();
        let [of_v, of_s] = begin;
        Ok(format!("({of_v}, {of_s}{result}, {scale}, {valid}{touched}{ahead}{lefts});"))
    }

    /// Prints a call of the micro-kernel that a block has, by its rows, vectors and edges, or by its kind of run.
    fn print_calls(&mut self, blocked: &BlockedProduct, loops: &BlockLoops, arguments: &str, level: usize) {
        let (lane, lanes, block) = (&blocked.lane, blocked.product.lanes, blocked.block);
        let of_lane = ProductAxis { most: blocked.vectors, last: (lane.last + lanes - 1) / lanes, ..lane.clone() };
        let wide = widths(blocked.beside.as_ref().unwrap_or(&of_lane), block.vectors);
        let is = |at: Option<usize>, size: i64, of: i64| at.filter(|_| size > 1).map(|at| format!("h{at} == {of}"));
        let mut calls = Vec::new();
        for n in &wide {
            let is_wide = || is(Some(loops.vectors), block.vectors, *n);
            let mut kinds = Vec::new();
            for run in &blocked.runs {
                if !kinds.contains(&run.kind) {
                    kinds.push(run.kind);
                    let tests = [is_wide(), Some(format!("kind == {}", run.kind))];
                    calls.push((tests.into_iter().flatten().collect::<Vec<_>>(), blocked.of_run(run, *n)));
                }
            }
            if block.is_run {
                continue;
            }
            let [first, second] = [0, 1].map(|axis| blocks_along(blocked, axis));
            for (a, edge_a) in &first.blocks {
                for (b, edge_b) in &second.blocks {
                    let of_rows = [is(loops.rows[0], block.rows[0], *a), is(loops.rows[1], block.rows[1], *b)];
                    let edges = [first.is_at(*edge_a), second.is_at(*edge_b)];
                    let tests = [is_wide()].into_iter().chain(of_rows).chain(edges).flatten().collect();
                    calls.push((tests, blocked.of_rectangle([*a, *b], [*edge_a, *edge_b], *n)));
                }
            }
        }
        let alone = calls.len() == 1;
        for (tests, kernel) in calls {
            let (name, text) = kernel.code();
            self.functions.insert(name.clone(), text);
            let when = if tests.is_empty() || alone { String::new() } else { format!("if ({}) ", tests.join(" && ")) };
            self.line(level, format!("{when}{name}{arguments}"));
        }
    }
}

/// Blocks along an axis of rows: rows and edge of each, and the number of the clipped dim whose edges these are.
struct BlocksAlong {
    dim: Option<usize>,
    blocks: Vec<(i64, usize)>,
}

impl BlocksAlong {
    /// C that tells blocks at an edge from others.
    fn is_at(&self, edge: usize) -> Option<String> {
        self.dim.filter(|_| self.blocks.iter().any(|(_, e)| *e != edge)).map(|n| format!("edge{n} == {edge}"))
    }
}

fn blocks_along(blocked: &BlockedProduct, axis: usize) -> BlocksAlong {
    let found = blocked.clipped.iter().enumerate().find_map(|(n, (_, blocks))| {
        let (_, blocks) = blocks.as_ref().filter(|(a, _)| *a == axis)?;
        Some(BlocksAlong { dim: Some(n), blocks: blocks.blocks.clone() })
    });
    let plain = || heights(blocked.rows.get(axis), blocked.block.rows[axis]).into_iter().map(|rows| (rows, 0)).collect();
    found.unwrap_or_else(|| BlocksAlong { dim: None, blocks: plain() })
}
