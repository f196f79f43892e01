//! What the library's manual says about a description, carried out by plain loops: for machines without a GPU.

use super::choice::Choice;
use super::description::{Description, Matrix, Order};
use super::space::Offer;
use crate::contraction::{Problem, Types};
use crate::error::KernelError;
use crate::kernel::{Completion, Executable, KernelSpec, RunContext};
use half::{bf16, f16};
use sdfg::Dtype;
use sdfg::config::KernelConfig;

/// Algorithms that the reference pretends to have, so that a choice of algorithms can be tested.
const OFFERED: usize = 2;

/// Position of an element of `op(matrix)`.
fn position(matrix: &Matrix, transposed: bool, row: usize, column: usize) -> usize {
    let (row, column) = if transposed { (column, row) } else { (row, column) };
    assert!(row < matrix.rows && column < matrix.columns, "beyond the descriptor {matrix:?}");
    match matrix.order {
        Order::Column => row + column * matrix.leading,
        Order::Row => row * matrix.leading + column,
    }
}

/// Computes what a description says, sums in f64: reads elements of the operands, and of the output where it adds to what is there.
///
/// # Panics
/// Descriptors that contradict themselves.
pub fn carry_out(
    d: &Description,
    x: &dyn Fn(usize) -> f64,
    y: &dyn Fn(usize) -> f64,
    out: &dyn Fn(usize) -> f64,
    write: &mut dyn FnMut(usize, f64),
) {
    for matrix in [&d.a, &d.b, &d.d] {
        let length = if matrix.order == Order::Column { matrix.rows } else { matrix.columns };
        assert!(matrix.leading >= length, "a leading dimension below the length: {matrix:?}");
    }
    let (a, b) = if d.exchanged { (y, x) } else { (x, y) };
    for launch in &d.launches {
        assert_eq!(launch.origins.len(), if d.pointers { d.batch } else { 1 }, "as many addresses as products");
        for n in 0..d.batch {
            let of = |matrix: &Matrix, t: usize| if d.pointers { launch.origins[n][t] } else { launch.origins[0][t] + n * matrix.stride };
            for i in 0..d.m {
                for j in 0..d.n {
                    let term = |l: usize| {
                        a(of(&d.a, 0) + position(&d.a, d.transpose_a, i, l)) * b(of(&d.b, 1) + position(&d.b, d.transpose_b, l, j))
                    };
                    let total = d.alpha * (0..d.k).map(term).sum::<f64>();
                    let at = of(&d.d, 2) + position(&d.d, false, i, j);
                    let before = if launch.accumulate { out(at) } else { 0.0 };
                    write(at, before + total);
                }
            }
        }
    }
}

/// A contraction on memory of this machine, as a GPU would be told to do it.
pub struct Reference {
    name: String,
    description: Description,
    types: Types,
    arguments: usize,
    /// Which argument is `a`, `b`, `out`, and how many elements each has.
    position: [usize; 3],
    elements: [usize; 3],
}

/// Any product has as many algorithms as any other.
pub struct Everything;

impl Offer for Everything {
    fn known(&self, _: &Description, _: Types) -> Option<usize> {
        Some(OFFERED)
    }
}

impl Reference {
    /// # Errors
    /// No matrix product; layouts or knobs that do not fit, algorithms that there are not.
    pub fn new(spec: &KernelSpec, config: &KernelConfig) -> Result<Self, KernelError> {
        let problem = Problem::of(spec)?;
        let choice = Choice::of(&problem, config)?;
        let description = choice.description(&problem, problem.layouts_of(config).each_ref())?;
        if choice.algorithm >= OFFERED {
            return Err(KernelError::Cuda {
                what: format!("there are {OFFERED} algorithms for `{}`, not {}", spec.name, choice.algorithm),
            });
        }
        if description.pointers || problem.types.narrows() && description.launches.iter().any(|l| l.accumulate) {
            return Err(KernelError::Cuda { what: format!("`{}` is not launched like that", spec.name) });
        }
        let position = problem.positions(spec)?;
        let elements = problem.tensors.each_ref().map(|t| t.storage.iter().product());
        let (name, arguments) = (spec.name.clone(), spec.arguments().len());
        Ok(Reference { name, description, types: problem.types, arguments, position, elements })
    }
}

impl Executable for Reference {
    unsafe fn run(&self, arguments: &[*mut u8], _: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let [a, b, out] = self.position.map(|p| arguments[p]);
        let [x, y, z] = self.elements;
        let read = |base: *mut u8, dtype: Dtype, elements: usize| {
            move |at: usize| {
                assert!(at < elements, "element {at} of {elements}");
                // SAFETY: an element of a whole container, as promised by the caller.
                unsafe { load(base, dtype, at) }
            }
        };
        let Types { factor, out: stored } = self.types;
        let mut write = |at: usize, value: f64| {
            assert!(at < z, "element {at} of {z}");
            // SAFETY: as above; nothing else writes the output meanwhile.
            unsafe { store(out, stored, at, value) };
        };
        carry_out(&self.description, &read(a, factor, x), &read(b, factor, y), &read(out, stored, z), &mut write);
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
            Dtype::Bf16 => *base.cast::<bf16>().add(at) = bf16::from_f64(value),
            Dtype::F16 => *base.cast::<f16>().add(at) = f16::from_f64(value),
            _ => *base.cast::<f32>().add(at) = value as f32,
        }
    }
}
