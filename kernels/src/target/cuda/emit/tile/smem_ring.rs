//! The ring buffer in shared memory (the array `stage` of the text) through which factors of streamed tiles are copied, chunk by chunk.

use crate::emit::gemm::{GemmAxis, Matrices};
use crate::emit::scalar::value;
use crate::error::KernelError;
use crate::loopnest::streaming::StreamedTile;
use crate::loopnest::{ForLoop, LoopGroup, NestStatement};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::tile::LINE;
use sdfg::{Dtype, Expr};
use std::collections::BTreeMap;

/// Neighbouring columns that the four lanes of a row have together.
pub const STRIP: i64 = 32;
/// Most steps of a product that makes values, and most columns of one that has them: the registers of a thread hold as many.
pub const MOST: i64 = 128;

/// Statements over rows and columns.
pub fn over(plan: &StreamedTile, statements: &[NestStatement]) -> LoopGroup {
    LoopGroup { loops: vec![plan.row.clone(), plan.column.clone()], statements: statements.to_vec(), is_gemm: false, last: false }
}

/// A factor that is copied through the ring, a chunk at a time.
pub struct Staged {
    /// C text of a pointer to its first element, and the type of that.
    pub from: String,
    pub kind: &'static str,
    /// Names of the distances between its lines, and between its steps.
    pub line: String,
    pub step: String,
    /// `STEPS`, `SIDE`, `NEITHER`, as the prelude has them.
    pub near: &'static str,
    /// Lines of a chunk, chunks of DEPTH steps.
    pub lines: i64,
    pub chunks: i64,
    /// Where its chunks begin in the ring, in bytes.
    pub at: i64,
    /// Whether its lines are dealt, see `streaming.cu`.
    pub dealt: bool,
    /// Whether every chunk is whole, and every line of it begins where a vector may.
    pub whole: bool,
}

impl Staged {
    pub fn is_near(&self) -> bool {
        self.near == "STEPS"
    }
}

/// A product that makes values: its rows' factor, its columns' factor, steps, and what values are multiplied by.
pub struct First {
    pub rows: Staged,
    pub columns: Staged,
    pub steps: i64,
    pub scale: String,
    pub out: String,
}

/// A product that has values: its other factor, its columns, and what sums are multiplied by.
pub struct Last {
    pub factor: Staged,
    pub columns: i64,
    pub scale: String,
    pub out: String,
    pub by: String,
}

/// The side of a factor that is not its steps, the lines of a chunk along it, and the steps of a chunk.
struct Sides<'m> {
    side: &'m Option<GemmAxis>,
    lines: i64,
    depth: i64,
}

impl CudaPrinter<'_> {
    /// The type that all factors have.
    pub fn staged_type(&self, plan: &StreamedTile) -> Result<&'static str, KernelError> {
        let mut found: Vec<Dtype> = Vec::new();
        for group in plan.first.iter().chain(plan.last.iter().map(|(g, _)| g)) {
            for (_, element) in group.statements.iter().flat_map(|s| &s.reads) {
                found.push(self.tensor(&element.data)?.dtype);
            }
        }
        let pairs = self.nest.gemm.is_some_and(|p| p.pairs);
        match found[..] {
            [Dtype::Bf16, ..] if pairs && found.iter().all(|d| *d == Dtype::Bf16) => Ok("bf16_t"),
            [Dtype::F16, ..] if pairs && found.iter().all(|d| *d == Dtype::F16) => Ok("f16_t"),
            _ => Err(self.unsupported("streamed tiles multiply factors of one type of 16 bits".into())),
        }
    }

    /// A product as matrices whose rows are those of the tile.
    fn matrices_of(&mut self, group: &LoopGroup, row: &ForLoop) -> Result<Matrices, KernelError> {
        let mut m = self.matrices(group, false, [&|_, _, _| false; 2])?;
        let is_row = |axis: &Option<GemmAxis>| axis.as_ref().is_some_and(|x| x.indices == [row.index.clone()]);
        if is_row(&m.columns) {
            std::mem::swap(&mut m.a, &mut m.b);
            std::mem::swap(&mut m.rows, &mut m.columns);
            for axis in [&mut m.rows, &mut m.columns, &mut m.steps].into_iter().flatten() {
                axis.strides.swap(0, 1);
            }
        }
        let one = |axis: &Option<GemmAxis>| axis.as_ref().is_some_and(|x| x.indices.len() == 1);
        if !is_row(&m.rows) || !one(&m.columns) || !one(&m.steps) || !m.loops.is_empty() || !m.again.is_empty() {
            return Err(self.unsupported("its products have more than rows, columns and steps".into()));
        }
        Ok(m)
    }

    /// One factor (0 or 1) of a product, its lines along `side`.
    fn staged(&mut self, m: &Matrices, t: usize, sides: Sides, group: &LoopGroup, chunks: i64) -> Result<Staged, KernelError> {
        let Sides { side, lines, depth } = sides;
        let of = |axis: &Option<GemmAxis>| axis.as_ref().and_then(|x| x.strides[t]).unwrap_or(0);
        let near = match (of(&m.steps), of(side)) {
            (1, _) => "STEPS",
            (_, 1) => "SIDE",
            _ => "NEITHER",
        };
        let first: BTreeMap<String, Expr> =
            [&m.rows, &m.columns, &m.steps].into_iter().flatten().flat_map(|x| &x.indices).map(|i| (i.clone(), Expr::Int(0))).collect();
        let (from, kind) = self.start(if t == 0 { &m.a } else { &m.b }, &first)?;
        let number = self.fresh("");
        let line = self.given(format!("line{number}"), of(side));
        let step = self.given(format!("step{number}"), of(&m.steps));
        let along = if near == "STEPS" { &m.steps } else { side };
        let along = along.as_ref().and_then(|x| group.loops.iter().find(|l| x.indices == [l.index.clone()]));
        let element = if t == 0 { &m.a } else { &m.b };
        let even = along.map_or(Ok(false), |l| self.is_even(element, l))?;
        let whole = near != "NEITHER" && even && self.comes_out(side, lines) && self.comes_out(&m.steps, depth);
        Ok(Staged { from, kind, line, step, near, lines, chunks, at: 0, dealt: false, whole })
    }

    /// Whether the iterations along a side are always a multiple of this number.
    fn comes_out(&self, side: &Option<GemmAxis>, number: i64) -> bool {
        let ragged = |index: &String| self.nest.tiles.iter().any(|t| t.index == *index && t.is_ragged());
        side.as_ref().is_some_and(|x| x.most % number == 0 && !x.indices.iter().any(ragged))
    }

    pub fn first(&mut self, group: &LoopGroup, plan: &StreamedTile, chunk: i64, rows: i64, at: &mut i64) -> Result<First, KernelError> {
        let m = self.matrices_of(group, &plan.row)?;
        let most = m.steps.as_ref().map_or(1, |x| x.most);
        if most > MOST {
            return Err(self.unsupported(format!("rows of {most} steps do not fit registers")));
        }
        let chunks = (most + chunk - 1) / chunk;
        let mut held = self.staged(&m, 0, Sides { side: &m.rows, lines: rows, depth: chunk }, group, chunks)?;
        held.at = *at;
        *at += bytes(&held, chunk);
        let mut columns = self.staged(&m, 1, Sides { side: &m.columns, lines: chunk, depth: chunk }, group, chunks)?;
        columns.dealt = columns.is_near();
        Ok(First { rows: held, columns, steps: (most + 15) / 16 * 16, scale: value(&m.scale, self), out: m.out.data.clone() })
    }

    pub fn last(&mut self, group: &LoopGroup, by: &str, plan: &StreamedTile) -> Result<Last, KernelError> {
        let m = self.matrices_of(group, &plan.row)?;
        let most = m.columns.as_ref().map_or(1, |x| x.most);
        let columns = (most + STRIP - 1) / STRIP * STRIP;
        if columns > MOST || m.steps.as_ref().is_none_or(|s| s.indices != [plan.column.index.clone()]) {
            return Err(self.unsupported(format!("sums of {most} columns do not fit registers")));
        }
        let chunk = self.nest.gemm.map_or(1, |p| p.depth);
        let mut factor = self.staged(&m, 1, Sides { side: &m.columns, lines: columns, depth: chunk }, group, 1)?;
        factor.dealt = !factor.is_near();
        Ok(Last { factor, columns, scale: value(&m.scale, self), out: m.out.data.clone(), by: by.to_string() })
    }

    /// Prints the copies of a factor's chunks. Of its lines, or of its steps if it is not `along` them, `from` is the first and `left`
    /// remain; `others` are there of what lies across.
    pub fn fill(&mut self, factor: &Staged, staged: &str, to: &str, [from, left]: [&str; 2], (others, along): (&str, bool), depth: usize) {
        let Staged { from: pointer, kind, line, step, near, lines, chunks, at, dealt, whole } = factor;
        let order = if *dealt { "DEALT" } else { "IN_ORDER" };
        for chunk in 0..*chunks {
            let (first, side, steps) = match along {
                true => (
                    format!("{from} * {line} + {} * {step}", chunk_first(chunk)),
                    left.to_string(),
                    format!("{others} - {}", chunk_first(chunk)),
                ),
                false => (format!("{from} * {step}"), left.to_string(), others.to_string()),
            };
            self.line(
                depth,
                format!("Factor<{staged}, {lines}, {near}, ELSEWHERE, {kind}>::bring<{order}, {whole}>({to} + {}, {chunk}, {pointer} + ({first}), {line}, {step}, {side}, {steps});", at / 2),
            );
        }
    }
}

/// Bytes of all chunks of a factor, beginning at multiples of 16.
pub fn bytes(factor: &Staged, depth: i64) -> i64 {
    let gap = 8;
    let chunk = if factor.is_near() { factor.lines * (depth + gap) } else { depth * (factor.lines + gap) };
    (chunk * 2 * factor.chunks + LINE - 1) / LINE * LINE
}

/// C text of the first step of a chunk.
fn chunk_first(chunk: i64) -> String {
    if chunk == 0 { "0".into() } else { format!("{chunk} * DEPTH") }
}
