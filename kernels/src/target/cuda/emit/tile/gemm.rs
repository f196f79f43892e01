//! The CUDA of one matrix product: the matrices that a block multiplies, and the shared-memory ring that factors pass through.

use crate::emit::gemm::{GemmAxis, Matrices};
use crate::emit::scalar::value;
use crate::error::KernelError;
use crate::loopnest::{Element, LoopGroup, MemorySpace};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::register::cuda_type;
use crate::target::cuda::emit::schedule::{Placement, ThreadSchedule};
use crate::target::cuda::emit::tile::LINE;
use sdfg::{Dtype, Expr};
use std::collections::BTreeMap;

/// Most rows, and columns, of which a block holds sums at a time; the fewest are those of one instruction.
const PANEL: i64 = 128;
const LEAST: i64 = 16;
/// Most sums of one thread.
const SUMS: i64 = 64;

/// How a group of products is multiplied.
struct Panels {
    /// Element type of the ring.
    staged: &'static str,
    /// Bytes of it.
    bytes: i64,
    rows: i64,
    columns: i64,
    /// Where its factors are multiplied from.
    from: [Route; 2],
}

/// Where a factor is multiplied from; the names are those of the prelude.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// The ring, by asynchronous copies from global memory.
    Elsewhere,
    /// The ring, to which threads copy it from shared memory.
    Staged,
    /// The shared memory in which it is.
    Here,
}

impl Route {
    fn name(self) -> &'static str {
        match self {
            Route::Elsewhere => "ELSEWHERE",
            Route::Staged => "STAGED",
            Route::Here => "HERE",
        }
    }
}

impl CudaPrinter<'_> {
    fn panels(&mut self, group: &LoopGroup, threads: i64) -> Result<(Matrices, Panels), KernelError> {
        let matrices = self.matrices(group, false, [&|_, _, _| false; 2])?;
        let most = |axis: &Option<GemmAxis>| axis.as_ref().map_or(1, |x| x.most);
        let panel = |most: i64| (most as u64).next_power_of_two().clamp(LEAST as u64, PANEL as u64) as i64;
        let (mut rows, mut columns) = (panel(most(&matrices.rows)), panel(most(&matrices.columns)));
        let sums = if self.double { SUMS / 2 } else { SUMS };
        while rows * columns > sums * threads {
            if rows > columns {
                rows /= 2;
            } else {
                columns /= 2;
            }
        }
        let (a, b) = (self.tensor(&matrices.a.data)?.dtype, self.tensor(&matrices.b.data)?.dtype);
        let narrow = self.nest.gemm.is_some_and(|p| p.pairs) && a == b && !self.double;
        let (staged, bytes) = match a {
            Dtype::Bf16 if narrow => ("bf16_t", 2),
            Dtype::F16 if narrow => ("f16_t", 2),
            _ => ("real", if self.double { 8 } else { 4 }),
        };
        // Values of 16 bits are rounded as they are read. Others are read by many threads again and again: lines of the ring are in
        // different banks.
        let mut from = [Route::Elsewhere; 2];
        for (from, element) in from.iter_mut().zip([&matrices.a, &matrices.b]) {
            if !self.is_global(element)? {
                *from = if bytes == 2 { Route::Here } else { Route::Staged };
            }
        }
        Ok((matrices, Panels { staged, bytes, rows, columns, from }))
    }

    /// Bytes of the shared-memory ring with this number of parts, for all products together, and its declarations.
    pub fn stage(&mut self, schedule: &ThreadSchedule, parts: i64) -> Result<(i64, String), KernelError> {
        let (nest, depth) = (self.nest, self.nest.gemm.map_or(0, |p| p.depth));
        // A line has room for 16 bytes more, so that lines begin in different banks.
        let elements = |side: i64, bytes: i64| ((depth + 16 / bytes) * side).max((side + 16 / bytes) * depth);
        let mut sides: [BTreeMap<&'static str, (i64, i64)>; 2] = Default::default();
        for group in nest.groups.iter().filter(|g| g.is_gemm) {
            let (_, panels) = self.panels(group, schedule.threads)?;
            for ((side, of), from) in sides.iter_mut().zip([panels.rows, panels.columns]).zip(panels.from) {
                let held = side.entry(panels.staged).or_insert((0, panels.bytes));
                if from != Route::Here {
                    held.0 = held.0.max(parts * elements(of, panels.bytes));
                }
            }
        }
        let (mut at, mut text) = (0, String::new());
        for (name, side) in ["rows", "columns"].into_iter().zip(&sides) {
            for (staged, (elements, _)) in side {
                text += &format!("    PLACED({staged}, {name}_{staged}, {at}, {elements});\n");
            }
            let bytes = side.values().map(|(elements, bytes)| elements * bytes).max().unwrap_or(0);
            at += (bytes + LINE - 1) / LINE * LINE;
        }
        Ok((at, text))
    }

    /// C texts of the pointer to an element with some indices at their first iteration, and of its type.
    pub fn start(&mut self, element: &Element, first: &BTreeMap<String, Expr>) -> Result<(String, &'static str), KernelError> {
        let subscripts = element.subscripts.iter().map(|e| e.substitute(first)).collect();
        let position = self.position(&Element { subscripts, ..element.clone() })?;
        self.pointers.insert(element.data.clone());
        let tensor = self.tensor(&element.data)?;
        let root = |root: &str| self.spec.arguments().into_iter().find(|a| a.data == root).map(|a| a.access);
        let kind = match &tensor.space {
            MemorySpace::Heap { root: r, .. } => {
                let kind = cuda_type(tensor.dtype);
                let kind = kind.ok_or_else(|| self.unsupported(format!("`{}` holds bits, which kernels cannot address", element.data)))?;
                match (root(r), kind) {
                    (Some(crate::kernel::ArgumentAccess::Read), "float") => "const float",
                    (Some(crate::kernel::ArgumentAccess::Read), "double") => "const double",
                    (Some(crate::kernel::ArgumentAccess::Read), "bf16_t") => "const bf16_t",
                    (Some(crate::kernel::ArgumentAccess::Read), "f16_t") => "const f16_t",
                    (_, kind) => kind,
                }
            }
            _ => "real",
        };
        Ok((format!("{} + ({position})", self.identifier(&element.data)), kind))
    }

    /// Whether an element is in global memory: before placements are known, local containers count as on chip.
    fn is_global(&self, element: &Element) -> Result<bool, KernelError> {
        let heap = matches!(self.tensor(&element.data)?.space, MemorySpace::Heap { .. });
        Ok(heap || self.held_in(&element.data) == Some(Placement::Scratch))
    }

    pub fn tile_gemm(&mut self, group: &LoopGroup, depth: usize) -> Result<(), KernelError> {
        let threads = self.dialect.schedule.as_ref().map_or(1, |s| s.threads);
        let (Matrices { scale, a, b, out, rows, columns, steps, loops, again }, panels) = self.panels(group, threads)?;
        let name = group.statements.first().map_or("", |s| s.name.as_str()).replace("*/", "");
        self.line(depth, format!("/* {name} */"));
        let around: Vec<&GemmAxis> = loops.iter().chain(&again).collect();
        for (n, axis) in around.iter().enumerate() {
            let at = self.index(&axis.indices[0]);
            self.line(depth + n, format!("for (index_t {at} = 0; {at} < {}; ++{at}) {{", axis.count));
        }
        let level = depth + around.len();
        let first: BTreeMap<String, Expr> =
            [&rows, &columns, &steps].into_iter().flatten().flat_map(|x| &x.indices).map(|i| (i.clone(), Expr::Int(0))).collect();
        let ((left, left_type), (right, right_type), (to, to_type)) =
            (self.start(&a, &first)?, self.start(&b, &first)?, self.start(&out, &first)?);
        let count = |axis: &Option<GemmAxis>| axis.as_ref().map_or_else(|| "1".to_string(), |x| x.count.clone());
        let (m, n, k) = (count(&rows), count(&columns), count(&steps));
        let of = |axis: &Option<GemmAxis>, t: usize| axis.as_ref().and_then(|x| x.strides[t]).unwrap_or(0);
        // Which index has unit stride is a template argument; the other strides are run-time values.
        let near = |side: &Option<GemmAxis>, t: usize| match (of(&steps, t), of(side, t)) {
            (1, _) => "STEPS",
            (_, 1) => "SIDE",
            _ => "NEITHER",
        };
        let (a_near, b_near) = (near(&rows, 0), near(&columns, 1));
        let number = self.fresh("");
        let mut given = |name: &str, axis: &Option<GemmAxis>, t: usize| self.given(format!("{name}{number}"), of(axis, t));
        let (a_row, a_step) = (given("a_row", &rows, 0), given("a_step", &steps, 0));
        let (b_step, b_column) = (given("b_step", &steps, 1), given("b_column", &columns, 1));
        let (c_row, c_column) = (given("c_row", &rows, 2), given("c_column", &columns, 2));
        let (scale, adds) = (value(&scale, self), self.adds(&out, &again)?);
        let Panels { staged, rows: high, columns: wide, from, .. } = panels;
        let [a_from, b_from] = from.map(Route::name);
        self.line(
            level,
            format!(
                "gemm<{staged}, {high}, {wide}, {a_near}, {b_near}, {a_from}, {b_from}, {left_type}, {right_type}, {to_type}>({m}, {n}, {k}, {left}, {a_row}, {a_step},"
            ),
        );
        self.line(
            level + 1,
            format!("{right}, {b_step}, {b_column}, {to}, {c_row}, {c_column}, {scale}, {adds}, rows_{staged}, columns_{staged});"),
        );
        for n in (0..around.len()).rev() {
            self.line(depth + n, "}");
        }
        Ok(())
    }
}
