//! What the library's manual says about a description, carried out by plain loops: for machines without a GPU.

use crate::error::KernelError;
use crate::executable::Executable;
use crate::kernel::KernelSpec;
use crate::run_context::{Completion, RunContext};
use crate::target::cuda::cublaslt::algorithm::Listing;
use crate::target::cuda::cublaslt::config::CublasLtConfig;
use crate::target::cuda::cublaslt::description::{Description, MajorOrder, Matrix};
use crate::target::cuda::cublaslt::epilogue_desc::{Bias, EpilogueDesc, EpilogueFunction};
use crate::target::cuda::cublaslt::fused::FusedContraction;
use crate::target::cuda::cublaslt::space::{AlgorithmQuery, AlgorithmSource};
use half::{bf16, f16};
use sdfg::Dtype;
use sdfg::config::KernelConfig;
use std::collections::BTreeMap;

/// Algorithms that the reference pretends to have, so that a choice of algorithms can be tested.
const OFFERED: usize = 2;

/// Position of an element of `op(matrix)`.
fn position(matrix: &Matrix, transposed: bool, row: usize, column: usize) -> usize {
    let (row, column) = if transposed { (column, row) } else { (row, column) };
    assert!(row < matrix.rows && column < matrix.columns, "beyond the descriptor {matrix:?}");
    match matrix.order {
        MajorOrder::Column => row + column * matrix.leading,
        MajorOrder::Row => row * matrix.leading + column,
    }
}

/// What a description speaks of, by the contraction's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperandView {
    A,
    B,
    Out,
    /// Vector and auxiliary matrix of an epilogue.
    Bias,
    Aux,
}

/// GELU by the hyperbolic tangent, and its derivative.
fn gelu(x: f64) -> (f64, f64) {
    let slope = (2.0 / std::f64::consts::PI).sqrt();
    let tanh = (slope * (x + 0.044715 * x.powi(3))).tanh();
    let inner = slope * (1.0 + 3.0 * 0.044715 * x * x);
    (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner)
}

/// Carries out a description with sums in f64: reads elements of the operands, and of the output where it accumulates.
///
/// # Panics
/// Descriptors that contradict themselves.
pub fn carry_out(d: &Description, read: &dyn Fn(OperandView, usize) -> f64, write: &mut dyn FnMut(OperandView, usize, f64)) {
    for matrix in [&d.a, &d.b, &d.d] {
        let length = if matrix.order == MajorOrder::Column { matrix.rows } else { matrix.columns };
        assert!(matrix.leading >= length, "a leading dimension below the length: {matrix:?}");
    }
    let (first, second) = if d.exchanged { (OperandView::B, OperandView::A) } else { (OperandView::A, OperandView::B) };
    let single = d.launches.len() == 1 && d.batch == 1;
    assert!(d.epilogue.is_none() || single, "an epilogue of several products");
    for launch in &d.launches {
        assert_eq!(launch.origins.len(), if d.pointers { d.batch } else { 1 }, "as many addresses as products");
        for n in 0..d.batch {
            let of = |matrix: &Matrix, t: usize| if d.pointers { launch.origins[n][t] } else { launch.origins[0][t] + n * matrix.stride };
            let a = |i: usize, l: usize| read(first, of(&d.a, 0) + position(&d.a, d.transpose_a, i, l));
            let b = |l: usize, j: usize| read(second, of(&d.b, 1) + position(&d.b, d.transpose_b, l, j));
            let mut sums = vec![0.0; d.m];
            for (i, sum) in sums.iter_mut().enumerate() {
                for j in 0..d.n {
                    let total = d.alpha * (0..d.k).map(|l| a(i, l) * b(l, j)).sum::<f64>();
                    let at = of(&d.d, 2) + position(&d.d, false, i, j);
                    let before = if launch.accumulate { read(OperandView::Out, at) } else { 0.0 };
                    let value = ended(d.epilogue, before + total, (i, j), read, write);
                    *sum += value;
                    write(OperandView::Out, at, value);
                }
            }
            let mut vector = |length: usize, sum: &dyn Fn(usize) -> f64| (0..length).for_each(|n| write(OperandView::Bias, n, sum(n)));
            match d.epilogue.and_then(|e| e.bias) {
                Some(Bias::OfA) => vector(d.m, &|i| (0..d.k).map(|l| a(i, l)).sum()),
                Some(Bias::OfB) => vector(d.n, &|j| (0..d.k).map(|l| b(l, j)).sum()),
                Some(Bias::OfResult) => vector(d.m, &|i| sums[i]),
                Some(Bias::Added) | None => {}
            }
        }
    }
}

/// An element after its epilogue.
fn ended(
    epilogue: Option<EpilogueDesc>,
    sum: f64,
    (row, column): (usize, usize),
    read: &dyn Fn(OperandView, usize) -> f64,
    write: &mut dyn FnMut(OperandView, usize, f64),
) -> f64 {
    let Some(EpilogueDesc { function, bias, aux }) = epilogue else { return sum };
    let x = if bias == Some(Bias::Added) { sum + read(OperandView::Bias, row) } else { sum };
    let at = aux.map(|leading| row + column * leading);
    match (function, at) {
        (None, _) => x,
        (Some(EpilogueFunction::Relu), at) => {
            if let Some(at) = at {
                write(OperandView::Aux, at, f64::from(u8::from(x > 0.0)));
            }
            x.max(0.0)
        }
        (Some(EpilogueFunction::ReluGradient), at) => x * at.map_or(0.0, |at| read(OperandView::Aux, at)),
        (Some(EpilogueFunction::Gelu), at) => {
            if let Some(at) = at {
                write(OperandView::Aux, at, x);
            }
            gelu(x).0
        }
        (Some(EpilogueFunction::GeluGradient), at) => x * gelu(at.map_or(0.0, |at| read(OperandView::Aux, at))).1,
    }
}

/// A contraction on memory of this machine, computed from the description that cuBLASLt would get.
pub struct CublasLtReference {
    name: String,
    description: Description,
    arguments: usize,
    /// By operand: which argument it is, of how many elements of which type.
    operands: BTreeMap<OperandView, (usize, usize, Dtype)>,
}

/// Any product has as many algorithms as any other.
pub struct Everything;

/// As many as a catalogue has besides what is offered.
fn listed(listing: Listing) -> usize {
    match listing {
        Listing::Heuristic => OFFERED,
        Listing::Catalogue => 1,
    }
}

impl AlgorithmSource for Everything {
    fn known(&self, _: &AlgorithmQuery, listing: Listing) -> Option<usize> {
        Some(listed(listing))
    }
}

impl CublasLtReference {
    /// # Errors
    /// Layouts or knobs that do not fit, algorithms that there are not.
    pub fn new(spec: &KernelSpec, fused: FusedContraction, config: &KernelConfig) -> Result<Self, KernelError> {
        let choice = CublasLtConfig::of(&fused.problem, config)?;
        let description = fused.description(&choice, config)?;
        let (listing, number) = Listing::of(choice.algorithm);
        if number >= listed(listing) {
            return Err(KernelError::Cuda {
                what: format!("there are {} algorithms for `{}`, not {}", listed(listing), spec.name, choice.algorithm),
            });
        }
        let types = fused.problem.types;
        if types.narrows() && description.launches.iter().any(|l| l.accumulate) {
            return Err(KernelError::Cuda { what: format!("`{}` is not launched like that", spec.name) });
        }
        let arguments = spec.arguments();
        let [a, b, out] = fused.problem.positions(spec)?.map(Some);
        let [bias, aux] = fused.beside(spec);
        let mut operands = BTreeMap::new();
        for (operand, position) in
            [OperandView::A, OperandView::B, OperandView::Out, OperandView::Bias, OperandView::Aux].into_iter().zip([a, b, out, bias, aux])
        {
            let Some(position) = position else { continue };
            let elements = spec.shape(&arguments[position].data)?.iter().product();
            operands.insert(operand, (position, elements, arguments[position].dtype));
        }
        Ok(CublasLtReference { name: spec.name.clone(), description, arguments: arguments.len(), operands })
    }
}

impl Executable for CublasLtReference {
    unsafe fn run(&self, arguments: &[*mut u8], _: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let place = |operand: OperandView, at: usize| {
            let (position, elements, dtype) = self.operands[&operand];
            assert!(at < elements, "element {at} of {elements} of {operand:?}");
            (arguments[position], dtype)
        };
        let read = |operand: OperandView, at: usize| {
            let (base, dtype) = place(operand, at);
            // SAFETY: an element of a whole container, as promised by the caller.
            unsafe { load(base, dtype, at) }
        };
        let mut write = |operand: OperandView, at: usize, value: f64| {
            let (base, dtype) = place(operand, at);
            // SAFETY: as above; no other thread writes during the run.
            unsafe { store(base, dtype, at, value) };
        };
        carry_out(&self.description, &read, &mut write);
        Ok(Completion::Done)
    }

    fn source(&self) -> Option<&str> {
        None
    }
}

/// # Safety
/// An element of this type at this place.
unsafe fn load(base: *mut u8, dtype: Dtype, at: usize) -> f64 {
    // SAFETY: as promised by the caller.
    unsafe {
        match dtype {
            Dtype::F64 => *base.cast::<f64>().add(at),
            Dtype::Bf16 => (*base.cast::<bf16>().add(at)).to_f64(),
            Dtype::F16 => (*base.cast::<f16>().add(at)).to_f64(),
            Dtype::Bit => f64::from(*base.add(at / 8) >> (at % 8) & 1),
            _ => f64::from(*base.cast::<f32>().add(at)),
        }
    }
}

/// # Safety
/// Room for an element of this type at this place.
unsafe fn store(base: *mut u8, dtype: Dtype, at: usize, value: f64) {
    // SAFETY: as promised by the caller.
    unsafe {
        match dtype {
            Dtype::F64 => *base.cast::<f64>().add(at) = value,
            Dtype::Bf16 => *base.cast::<bf16>().add(at) = sdfg::rounding::to_bf16(value),
            Dtype::F16 => *base.cast::<f16>().add(at) = sdfg::rounding::to_f16(value),
            Dtype::Bit => {
                let (byte, bit) = (base.add(at / 8), 1u8 << (at % 8));
                *byte = if value != 0.0 { *byte | bit } else { *byte & !bit };
            }
            _ => *base.cast::<f32>().add(at) = value as f32,
        }
    }
}
