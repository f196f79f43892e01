//! How far a kernel's result may be from the oracle's: bounds derived from types and lengths, never bare numbers.
//!
//! # Derivation
//! With unit roundoff `u`, each operation gives `fl(a ∘ b) = (a ∘ b)(1 + δ)`, |δ| ≤ u, and a chain of `n` of them is off
//! by at most `γₙ = n·u / (1 − n·u)` relative to the sum of the magnitudes of its terms (Higham, *Accuracy and Stability
//! of Numerical Algorithms*, §3.1), in whatever order it is summed. Kernels accumulate in `f32` (`f64` for `f64`) and
//! store in the container's type, so an element that is a reduction over `n` terms, each made by `d` operations, is off by
//! at most
//!
//! ```text
//! bound = (γ(n + d) of the accumulator + Σ u of what is stored) · magnitude
//! ```
//!
//! - `n` is the longest reduction below the element: its terms plus those of reductions it reads in the same kernel. Sums count as
//!   the scheme that kernels use makes them: in blocks of [`BLOCK`] terms, whose sums are added up in double precision ([`blocked`]).
//!   Sums of products count in full, since those may be matrix products of libraries. On a GPU a team adds what its points add to one
//!   element in f32: as many terms as a block has, unless a sum over outer indices has more than that for each team;
//! - `d` counts the arithmetic operations on the way to it; an exponential, logarithm, root, quotient or the like counts
//!   [`FUNCTION`] because libraries and vectorised approximations are not correctly rounded;
//! - stored is each container on the way that the kernel writes, the result included, with the `u` of its own type: a sum
//!   in f32 over a bf16 container that the same kernel has just written carries that rounding too. What a kernel is given
//!   is exact: the oracle reads values that the container's type can hold ([`Dtype::rounded`]);
//! - factors of f32 are exact unless the program lets them be TF32: then each of the two loses up to [`TF32`];
//! - where the program allows Winograd's form, a convolution by windows of 3×3 counts as F(4×4, 3×3), the least exact of its forms: the sum
//!   over channels and the transforms before and after it ([`TRANSFORMS`]), times what the transforms enlarge ([`GROWTH`]);
//! - `magnitude` is the largest sum of absolute terms. It is not the result's own size where terms cancel, so it is
//!   taken over the whole tensor: the largest |element| of what is computed and what is read for it.
//!
//! The bound is that of the worst case; rounding errors that behave like noise stay at about its square root, so a wrong
//! index, mask or scale, whose error is of the order of the magnitude itself, is caught as long as `bound ≪ magnitude`.

use crate::data::{Dtype, Storage};
pub use crate::functions::FUNCTION;
use crate::graph::Sdfg;
use crate::library::OperatorError;
use crate::memlet::Combine;
use crate::movement::MovementError;
use crate::node::{Computation, Index, Loop, Nested, Operation};
use crate::scalar::{Binary, Scalar};
use crate::scope::{Item, Scope, Unit};
use crate::symbol::SymbolError;
use ndarray::ArrayD;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Terms of one block of a sum: kernels add the terms of a block one after the other, and the sums of blocks in double precision.
pub const BLOCK: u64 = 512;

/// Relative error of a factor that is rounded to TF32, whose fraction has 10 bits.
pub const TF32: f64 = 1.0 / 1024.0;

/// Taps of a window along each dim, for which convolutions have Winograd's form.
const WINDOW: i64 = 3;

/// By how much Winograd's F(4×4, 3×3) may enlarge a relative error of what it multiplies: along each dim the largest row of
/// |Aᵀ| (|G|·1 ⊙ |Bᵀ|·1), which is 48, against the three products of a window (as in Barabasz et al., "Error Analysis and Improving the
/// Accuracy of Winograd Convolution for Deep Neural Networks", theorem 2). For F(2×2, 3×3) it is (8 / 3)².
pub const GROWTH: u64 = 16 * 16;

/// Roundings of the transforms of F(4×4, 3×3) along two dims: four of a patch, four of a window, with its constants, five of results.
pub const TRANSFORMS: u64 = 2 * (4 + 4 + 5);

/// Unit roundoff of the type that kernels compute in for elements of `dtype`; integers and bits are computed in f32.
fn accumulator(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => Dtype::F64.roundoff(),
        _ => Dtype::F32.roundoff(),
    }
}

/// Roundings of a sum of `terms` in blocks of [`BLOCK`]: those within one block, one of the block's sum and one of the result. The sums
/// of blocks are added in double precision, where 2²⁸ additions weigh as much as one rounding of f32.
pub fn blocked(terms: u64) -> u64 {
    if terms <= BLOCK { terms } else { BLOCK + 2 + ((terms / BLOCK) >> 28) }
}

/// `γₙ = n·u / (1 − n·u)`; infinite where `n·u ≥ 1`, as nothing can be said then.
pub fn gamma(n: u64, u: f64) -> f64 {
    let nu = n as f64 * u;
    if nu < 1.0 { nu / (1.0 - nu) } else { f64::INFINITY }
}

/// Error of an element of type `dtype` that sums `reduction_length` products of stored elements, the absolute values of
/// the products adding up to `magnitude`: each term has one multiplication, and the result is rounded.
pub fn bound(dtype: Dtype, reduction_length: u64, magnitude: f64) -> f64 {
    Tolerance { dtype, length: reduction_length, depth: 1, stored: dtype.roundoff() }.bound(magnitude)
}

/// What an element's error bound depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub dtype: Dtype,
    /// Terms reduced.
    pub length: u64,
    /// Operations on the way, besides the reduction's.
    pub depth: u64,
    /// Unit roundoffs of the containers stored on the way, its own included.
    pub stored: f64,
}

impl Tolerance {
    /// Relative to the magnitude of what is summed.
    pub fn relative(&self) -> f64 {
        gamma(self.length.saturating_add(self.depth), accumulator(self.dtype)) + self.stored
    }

    pub fn bound(&self, magnitude: f64) -> f64 {
        self.relative() * magnitude
    }
}

/// A result against the oracle's.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub max_error: f64,
    pub tolerance: f64,
    /// Error ÷ tolerance of the worst element; at most 1 if the result is right.
    pub ratio: f64,
    /// The worst element.
    pub at: Vec<usize>,
}

impl Comparison {
    pub fn passes(&self) -> bool {
        self.ratio <= 1.0
    }
}

/// Elements from which on all cores compare.
const PARALLEL: usize = 1 << 16;

/// The largest difference, and the first element that has it; -1 of no elements.
fn worst_of(got: &[f64], want: &[f64], nan_agrees: bool) -> (f64, usize) {
    let (mut max_error, mut worst) = (-1.0, 0);
    for (number, (w, g)) in want.iter().zip(got).enumerate() {
        let is_same = g == w || (nan_agrees && g.is_nan() && w.is_nan());
        let difference = if is_same { 0.0 } else { (g - w).abs() };
        let error = if difference.is_nan() { f64::INFINITY } else { difference };
        if error > max_error {
            (max_error, worst) = (error, number);
        }
    }
    (max_error, worst)
}

/// Compares element by element, the tolerance relative to `scale` or to the largest |want|, whichever is larger.
///
/// Equal infinities agree. A NaN agrees with a NaN as long as at least half of what is wanted are numbers, so that values drawn at random
/// may be divided by a zero here and there; where more are none, it agrees with nothing, as little would be compared. Tensors of
/// different shapes never agree. The ratio is infinite where something does not agree.
pub fn compare(got: &ArrayD<f64>, want: &ArrayD<f64>, scale: f64, tolerance: &Tolerance) -> Comparison {
    compare_within(got, want, scale, tolerance.relative())
}

/// The same within a share of the magnitude that is no single tolerance: that of two sides that both may be off.
pub fn compare_within(got: &ArrayD<f64>, want: &ArrayD<f64>, scale: f64, share: f64) -> Comparison {
    let same = got.shape() == want.shape();
    let (got, wanted) = (got.as_standard_layout(), want.as_standard_layout());
    let (got, wanted) = (got.as_slice().unwrap_or_default(), wanted.as_slice().unwrap_or_default());
    let magnitude = |part: &[f64]| part.iter().filter(|v| v.is_finite()).fold(scale, |m, v| m.max(v.abs()));
    let largest = match wanted.len() < PARALLEL {
        true => magnitude(wanted),
        false => wanted.par_chunks(PARALLEL).map(magnitude).reduce(|| scale, f64::max),
    };
    let tolerance = share * largest;
    if !same {
        return Comparison { max_error: f64::INFINITY, tolerance, ratio: f64::INFINITY, at: vec![] };
    }
    let numberless = |part: &[f64]| part.iter().filter(|v| v.is_nan()).count();
    let missing = match wanted.len() < PARALLEL {
        true => numberless(wanted),
        false => wanted.par_chunks(PARALLEL).map(numberless).sum(),
    };
    let nan_agrees = 2 * missing <= wanted.len();
    let (max_error, mut worst) = match wanted.len() < PARALLEL {
        true => worst_of(got, wanted, nan_agrees),
        false => {
            let parts = got.par_chunks(PARALLEL).zip(wanted.par_chunks(PARALLEL)).enumerate();
            let worst = parts.map(|(n, (g, w))| (worst_of(g, w, nan_agrees), n * PARALLEL)).map(|((error, at), first)| (error, first + at));
            // Of equal ones the first.
            worst.reduce(|| (-1.0, 0), |a, b| if b.0 > a.0 { b } else { a })
        }
    };
    let mut at = vec![0; want.ndim()];
    for (index, extent) in at.iter_mut().zip(want.shape()).rev() {
        (*index, worst) = (worst % (*extent).max(1), worst / (*extent).max(1));
    }
    let at = if max_error < 0.0 { vec![] } else { at };
    let max_error = f64::max(max_error, 0.0);
    let ratio = if max_error == 0.0 { 0.0 } else { max_error / tolerance };
    Comparison { max_error, tolerance, ratio, at }
}

/// Why a tolerance could not be derived.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ToleranceError {
    #[error("in `{unit}`: {source}")]
    Symbol { unit: String, source: SymbolError },
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error(transparent)]
    Movement(#[from] MovementError),
}

/// Length, depth and roundings of every heap container that a unit writes, from its code and maps; what it reads counts
/// as exact but for its own rounding.
///
/// Reductions that feed each other add their lengths. An operation is derived from its expansion; a nested program from
/// all its units in turn.
pub fn unit_tolerance(program: &Sdfg, unit: &Unit) -> Result<BTreeMap<String, Tolerance>, ToleranceError> {
    let mut chains = Chains { program, unit: unit.name(), known: BTreeMap::new() };
    chains.unit(unit)?;
    let heap = |name: &String| program.containers.get(name).filter(|c| c.storage == Storage::Heap);
    Ok(chains
        .known
        .iter()
        .filter_map(|(name, chain)| {
            let dtype = heap(name)?.dtype;
            Some((name.clone(), Tolerance { dtype, length: chain.length, depth: chain.depth, stored: chain.stored }))
        })
        .collect())
}

/// The same for everything that a program writes to memory, from its inputs on: errors of what a unit reads are errors of
/// what it writes, so an element carries the lengths, depths and roundings of every unit that it depends on, each once, at
/// the least exact type on the way. That an operation does not enlarge the relative error of what it reads is assumed, not
/// derived; the slack of the worst case has to cover where one does.
pub fn program_tolerances(program: &Sdfg) -> Result<BTreeMap<String, Tolerance>, ToleranceError> {
    let stored = |data: &str| {
        let mut at = data;
        // A chain of views ends at the container that has the storage.
        while let Some(view) = program.containers.get(at).and_then(|c| c.view.as_ref()) {
            at = &view.of;
        }
        at.to_string()
    };
    let mut units: Vec<Tolerance> = Vec::new();
    let mut behind: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (n, (state, node, unit)) in program.units().iter().enumerate() {
        let own = unit_tolerance(program, unit)?;
        let coarsest = own.values().map(|t| t.dtype).max_by(|a, b| a.roundoff().total_cmp(&b.roundoff())).unwrap_or(Dtype::F64);
        let most = |part: fn(&Tolerance) -> u64| own.values().map(part).max().unwrap_or(0);
        let stored_most = own.values().map(|t| t.stored).fold(0.0, f64::max);
        units.push(Tolerance { dtype: coarsest, length: most(|t| t.length), depth: most(|t| t.depth), stored: stored_most });
        let reads = program.state(*state).map(|s| s.boundary(*node).0).unwrap_or_default();
        let mut all: BTreeSet<usize> = reads.iter().filter_map(|m| behind.get(&stored(&m.data))).flatten().copied().collect();
        all.insert(n);
        for name in own.keys() {
            behind.entry(stored(name)).or_default().extend(&all);
        }
    }
    let chain = |name: &String| {
        let dtype = program.containers.get(name)?.dtype;
        let start = Tolerance { dtype, length: 0, depth: 0, stored: 0.0 };
        Some(behind.get(&stored(name))?.iter().map(|n| &units[*n]).fold(start, |sum, unit| Tolerance {
            dtype: if unit.dtype.roundoff() > sum.dtype.roundoff() { unit.dtype } else { sum.dtype },
            length: sum.length.saturating_add(unit.length),
            depth: sum.depth.saturating_add(unit.depth),
            stored: sum.stored + unit.stored,
        }))
    };
    Ok(program.containers.keys().filter_map(|name| Some((name.clone(), chain(name)?))).collect())
}

#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    length: u64,
    depth: u64,
    stored: f64,
}

struct Chains<'a> {
    program: &'a Sdfg,
    unit: &'a str,
    /// Container → the longest chain behind an element.
    known: BTreeMap<String, Chain>,
}

impl Chains<'_> {
    fn unit(&mut self, unit: &Unit) -> Result<(), ToleranceError> {
        match unit {
            Unit::Operation(operation) => self.operation(operation, &mut vec![]),
            Unit::Scope(scope) => self.scope(scope, &mut vec![]),
            Unit::Nested(nested) => match &nested.repeat {
                Some(repeat) => self.repeated(nested, repeat),
                None => self.inside(&nested.program),
            },
        }
    }

    fn inside(&mut self, program: &Sdfg) -> Result<(), ToleranceError> {
        let mut inner = Chains { program, unit: self.unit, known: std::mem::take(&mut self.known) };
        let result = program.units().iter().try_for_each(|(_, _, unit)| inner.unit(unit));
        self.known = inner.known;
        result
    }

    /// A loop: the errors of one iteration are handed to the next, so the last one carries those of all.
    fn repeated(&mut self, nested: &Nested, repeat: &Loop) -> Result<(), ToleranceError> {
        let symbol = |source| ToleranceError::Symbol { unit: self.unit.to_string(), source };
        let trips = self.program.size_of(&repeat.dim).eval(&self.program.sizes).map_err(symbol)?.max(1) as u64;
        let mut inner = Chains { program: &nested.program, unit: self.unit, known: BTreeMap::new() };
        nested.program.units().iter().try_for_each(|(_, _, unit)| inner.unit(unit))?;
        let most = inner.known.values().copied().fold(Chain::default(), longer);
        let all = Chain {
            length: most.length.saturating_mul(trips),
            depth: most.depth.saturating_mul(trips),
            stored: most.stored * trips as f64,
        };
        self.known.extend(nested.boundary().1.into_iter().map(|data| (data, all)));
        Ok(())
    }

    fn operation(&mut self, operation: &Operation, around: &mut Vec<Index>) -> Result<(), ToleranceError> {
        operation.expand(self.program)?.scopes.iter().try_for_each(|scope| self.scope(scope, around))
    }

    fn scope(&mut self, scope: &Scope, around: &mut Vec<Index>) -> Result<(), ToleranceError> {
        let depth = around.len();
        around.extend(scope.map.indices.iter().cloned());
        for item in &scope.body {
            match item {
                Item::Scope(inner) => self.scope(inner, around)?,
                Item::Operation(operation) => self.operation(operation, around)?,
                Item::Tasklet(computation) => self.tasklet(computation, around)?,
            }
        }
        around.truncate(depth);
        Ok(())
    }

    fn tasklet(&mut self, computation: &Computation, around: &[Index]) -> Result<(), ToleranceError> {
        let mut behind: BTreeMap<&str, Chain> = BTreeMap::new();
        for (connector, memlet) in &computation.reads {
            let chain = self.known.get(&memlet.data).copied().unwrap_or_default();
            behind.insert(connector, chain);
        }
        for (connector, memlet) in &computation.writes {
            let Some((_, code)) = computation.tasklet.code.iter().find(|(c, _)| c == connector) else { continue };
            let mut chain = chain_of(code, &behind);
            if let Some(combine) = memlet.wcr {
                let terms = self.terms(memlet, around)?;
                let in_blocks = combine == Combine::Sum && !multiplies(code);
                let filtered =
                    self.program.winograd && combine == Combine::Sum && multiplies(code) && self.walks_square(computation, around);
                let terms = if filtered { terms.max(GROWTH * (terms / (WINDOW * WINDOW) as u64 + TRANSFORMS)) } else { terms };
                chain.length = chain.length.saturating_add(if in_blocks { blocked(terms) } else { terms });
            }
            if self.program.tf32 && memlet.wcr.is_some() && multiplies(code) {
                chain.stored += 2.0 * TF32;
            }
            // Whether an intermediate is stored depends on the kernel; counting each covers both.
            chain.stored += self.program.containers.get(&memlet.data).map_or(0.0, |c| c.dtype.roundoff());
            let held = self.known.entry(memlet.data.clone()).or_default();
            *held = longer(*held, chain);
        }
        Ok(())
    }

    /// Whether a computation reads windows of 3×3: two subscripts of one memlet have an index of three iterations beside another one.
    fn walks_square(&self, computation: &Computation, around: &[Index]) -> bool {
        let windowed = |e: &&crate::symbol::Expr| {
            let symbols = e.symbols();
            let walked: Vec<&Index> = around.iter().filter(|i| symbols.contains(&i.name)).collect();
            walked.len() > 1 && walked.iter().any(|i| i.count().eval(&self.program.sizes) == Ok(WINDOW))
        };
        let square = |memlet: &crate::memlet::Memlet| memlet.point().into_iter().flatten().filter(windowed).count() == 2;
        computation.reads.iter().any(|(_, memlet)| square(memlet))
    }

    /// Iterations that write one element: those of the indices that no subscript mentions.
    fn terms(&self, memlet: &crate::memlet::Memlet, around: &[Index]) -> Result<u64, ToleranceError> {
        let mentioned: Vec<String> = memlet.point().into_iter().flatten().flat_map(|e| e.symbols()).collect();
        let local = self.program.containers.get(&memlet.data).is_none_or(|c| c.storage != Storage::Heap);
        let mut terms = 1u64;
        for index in around.iter().filter(|i| !mentioned.contains(&i.name)) {
            // A local container exists once for each iteration of the independent indices around it.
            if local && index.kind == crate::node::IndexKind::Independent {
                continue;
            }
            let symbols = &self.program.sizes;
            // A bound that needs an outer index is at most the dim.
            let count = index.count().eval(symbols).or_else(|_| self.program.size_of(&index.dim).eval(symbols));
            let count = count.map_err(|source| ToleranceError::Symbol { unit: self.unit.to_string(), source })?;
            terms = terms.saturating_mul(count.max(1) as u64);
        }
        Ok(terms)
    }
}

fn longer(a: Chain, b: Chain) -> Chain {
    Chain { length: a.length.max(b.length), depth: a.depth.max(b.depth), stored: a.stored.max(b.stored) }
}

/// Whether two values that are read are multiplied: what a contraction sums.
fn multiplies(code: &Scalar) -> bool {
    let reads = |code: &Scalar| !code.inputs().is_empty();
    matches!(code, Scalar::Binary(Binary::Mul, a, b) if reads(a) && reads(b)) || code.operands().into_iter().any(multiplies)
}

/// The chain behind scalar code: errors of operands add, those of an operation come on top.
fn chain_of(code: &Scalar, behind: &BTreeMap<&str, Chain>) -> Chain {
    let own = match code {
        Scalar::Input(connector) => return behind.get(connector.as_str()).copied().unwrap_or_default(),
        Scalar::Unary(op, _) => op.row().roundings,
        Scalar::Binary(Binary::Pow | Binary::Div, _, _) => FUNCTION,
        Scalar::Binary(Binary::Add | Binary::Sub | Binary::Mul, _, _) => 1,
        _ => 0,
    };
    let sum = code.operands().into_iter().map(|o| chain_of(o, behind)).fold(Chain::default(), |a, b| Chain {
        length: a.length.saturating_add(b.length),
        depth: a.depth.saturating_add(b.depth),
        stored: a.stored + b.stored,
    });
    Chain { depth: sum.depth.saturating_add(own), ..sum }
}
