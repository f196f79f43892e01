//! Scatters on cores: rows of a table get what their readers hand back, also where several name one row.
//!
//! Each worker owns a range of columns, or of rows where rows are short, and goes through all points in their order: sums do not depend on
//! the number of workers. Where the result lies in the place of `base`, only rows that some point names are touched.

mod text;

use crate::c_form::CForm;
use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::executable::Executable;
use crate::in_place::KNOB;
use crate::kernel::{KernelSpec, unsupported};
use crate::named_rows::NamedRows;
use crate::packing::run_alone;
use crate::phases::{self, Phase, PhaseMemory, PhaseRun, Spread, Touch, WorkerShare};
use crate::run_context::{Completion, RunContext};
use sdfg::config::KernelConfig;
use sdfg::library::scatter::parts;
use sdfg::{Bindings, Dtype, Layout, Op, Operand, Operation, Scalar, Unit};
use std::ops::Range;

/// Columns that a worker has at least, a cache line of f32.
const COLUMNS: usize = 16;

/// The one way to run a scatter: all containers in the recipe's order of dims.
pub struct ScatterSpace {
    spec: KernelSpec,
    tensors: Vec<TensorChoice>,
    bytes: f64,
}

impl ScatterSpace {
    /// # Errors
    /// Operands that it does not take.
    pub fn new(spec: &KernelSpec) -> Result<Self, KernelError> {
        ScatterKernel::new(spec, &KernelConfig::default())?;
        let mut tensors = Vec::new();
        let mut bytes = 0.0;
        for argument in spec.arguments() {
            let container = &spec.containers[argument.data.as_str()];
            bytes += argument.dtype.bytes(spec.shape(&argument.data)?.iter().product::<usize>() as u64) as f64;
            tensors.push(TensorChoice { data: argument.data, layouts: vec![Layout::row_major(container)] });
        }
        Ok(ScatterSpace { spec: spec.clone(), tensors, bytes })
    }
}

impl ConfigSpace for ScatterSpace {
    fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        1
    }

    fn config(&self, _: u64) -> KernelConfig {
        let layouts = self.tensors.iter().filter_map(|t| Some((t.data.clone(), t.layouts.first()?.clone()))).collect();
        KernelConfig { layouts, ..KernelConfig::default() }
    }

    fn identity(&self, n: u64) -> String {
        crate::config_space::identity(&self.spec, &self.tensors, &self.config(n))
    }

    fn predicted_cost(&self, _: u64) -> f64 {
        self.bytes
    }

    fn matches_rule_of_thumb(&self, _: &KernelConfig) -> bool {
        true
    }
}

/// What is added, and where: one pair of operands.
struct ScatterOperands {
    x: usize,
    at: usize,
    rows_in: Dtype,
    /// For each point that names a row: the element that names it, and the first element of what is added.
    points: Vec<(usize, usize)>,
    /// The same as loops: the extent of each, and what its steps are apart in both.
    loops: Vec<[usize; 3]>,
    /// For each element of a row: where it lies beside the first one.
    columns: Vec<usize>,
}

/// A scatter, ready to run.
pub struct ScatterKernel {
    name: String,
    arguments: usize,
    dtype: Dtype,
    out: usize,
    base: Option<usize>,
    in_place: bool,
    elements: usize,
    rows: usize,
    row_stride: usize,
    columns: Vec<usize>,
    parts: Vec<ScatterOperands>,
    /// The multiple of what is added, and the numbers that it reads: connector, argument.
    code: Scalar,
    numbers: Vec<(String, usize)>,
    sizes: Bindings,
    rows_named: NamedRows,
}

/// All points of an iteration space in order, each as the values of its indices.
fn points(sizes: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..sizes.iter().product::<usize>()).map(move |point| {
        let mut rest = point;
        let mut values = vec![0; sizes.len()];
        for (value, size) in values.iter_mut().zip(sizes).rev() {
            *value = rest % size;
            rest /= size;
        }
        values
    })
}

impl ScatterKernel {
    /// # Errors
    /// Operands of other types than f32 and f64, or under other subscripts than plain indices.
    pub fn new(spec: &KernelSpec, config: &KernelConfig) -> Result<Self, KernelError> {
        let Unit::Operation(operation) = &spec.unit else { return Err(unsupported(spec, "it is no scatter")) };
        let Op::Scatter { over, code, .. } = &operation.op else { return Err(unsupported(spec, "it is no scatter")) };
        let (Some(out), [row]) = (operation.output("out"), over.as_slice()) else {
            return Err(unsupported(spec, "a scatter names its result and one index of rows"));
        };
        let arguments = spec.arguments();
        let place =
            |data: &str| arguments.iter().position(|a| a.data == data).ok_or_else(|| unsupported(spec, format!("`{data}` is a view")));
        let dtype = |operand: &Operand| spec.containers.get(&operand.data).map(|c| c.dtype);
        let real = dtype(out).filter(|t| matches!(t, Dtype::F32 | Dtype::F64));
        let Some(real) = real else { return Err(unsupported(spec, format!("`{}` is not stored in f32 or f64", out.data))) };
        let strides = |operand: &Operand| -> Result<Vec<usize>, KernelError> {
            let (container, shape) = (&spec.containers[operand.data.as_str()], spec.shape(&operand.data)?);
            let fault = || unsupported(spec, format!("`{}` is held in no order of its dims", operand.data));
            let layout = config.layouts.get(&operand.data).cloned().unwrap_or_else(|| Layout::row_major(container));
            layout.strides(&container.dims, &shape).ok_or_else(fault)
        };
        let names = |operand: &Operand| -> Result<Vec<String>, KernelError> {
            let fault = || unsupported(spec, format!("`{}` is subscripted by more than plain indices", operand.data));
            Ok(operand.index_names().ok_or_else(fault)?.into_iter().map(str::to_string).collect())
        };
        let size = |index: &String| spec.size(&operation.indices[index]);
        // The sum of an operand's strides along each of some indices.
        let steps = |operand: &Operand, indices: &[String]| -> Result<Vec<usize>, KernelError> {
            let (own, strides) = (names(operand)?, strides(operand)?);
            Ok(indices.iter().map(|i| own.iter().zip(&strides).filter(|(name, _)| *name == i).map(|(_, s)| s).sum()).collect())
        };
        let offsets = |sizes: &[usize], steps: &[usize]| -> Vec<usize> {
            points(sizes).map(|at| at.iter().zip(steps).map(|(value, step)| value * step).sum()).collect()
        };
        let within: Vec<String> = names(out)?.into_iter().filter(|index| index != row).collect();
        let widths = within.iter().map(&size).collect::<Result<Vec<_>, _>>()?;
        let mut found = Vec::new();
        for part in parts(operation) {
            let typed =
                dtype(part.x) == Some(real) && dtype(part.at).is_some_and(|t| t != Dtype::Bit && t != Dtype::Bf16 && t != Dtype::F16);
            if !typed {
                return Err(unsupported(spec, format!("`{}` or `{}` is of another type than it adds up", part.x.data, part.at.data)));
            }
            let lead: Vec<String> = part.indices(operation).into_iter().filter(|i| !within.contains(i)).cloned().collect();
            let sizes = lead.iter().map(&size).collect::<Result<Vec<_>, _>>()?;
            let (at_steps, x_steps) = (steps(part.at, &lead)?, steps(part.x, &lead)?);
            let (at, x) = (offsets(&sizes, &at_steps), offsets(&sizes, &x_steps));
            found.push(ScatterOperands {
                x: place(&part.x.data)?,
                at: place(&part.at.data)?,
                rows_in: dtype(part.at).unwrap_or(Dtype::I32),
                points: at.into_iter().zip(x).collect(),
                loops: sizes.iter().zip(at_steps.iter().zip(&x_steps)).map(|(size, (at, x))| [*size, *at, *x]).collect(),
                columns: offsets(&widths, &steps(part.x, &within)?),
            });
        }
        let used = code.inputs();
        let numbers = operation.inputs.iter().filter(|o| used.contains(&o.connector) && o.connector != "x");
        let numbers = numbers.map(|o| Ok((o.connector.clone(), place(&o.data)?))).collect::<Result<Vec<_>, KernelError>>()?;
        // Whatever the numbers are, its code is a constant then.
        let filled = used.iter().fold(code.clone(), |code, connector| code.inline(connector, &Scalar::Const(1.0)));
        filled.constant(&spec.sizes).map_err(|_| unsupported(spec, "its code is no multiple of what is added"))?;
        let base: Option<&Operand> = operation.input("base");
        Ok(ScatterKernel {
            name: spec.name.clone(),
            arguments: arguments.len(),
            dtype: real,
            out: place(&out.data)?,
            base: base.map(|o| place(&o.data)).transpose()?,
            in_place: config.knobs.get(KNOB).is_some(),
            elements: spec.shape(&out.data)?.iter().product(),
            rows: size(row)?,
            row_stride: steps(out, std::slice::from_ref(row))?.first().copied().unwrap_or(0),
            columns: offsets(&widths, &steps(out, &within)?),
            parts: found,
            code: code.clone(),
            numbers,
            sizes: spec.sizes.clone(),
            rows_named: NamedRows::new(spec, config, &|_| phases::AccessedPart::Whole)?,
        })
    }

    /// The multiple of what is added.
    ///
    /// # Safety
    /// As [`Executable::run`].
    unsafe fn factor(&self, arguments: &[Shared]) -> Result<f64, KernelError> {
        let mut code = self.code.inline("x", &Scalar::Const(1.0));
        for (connector, argument) in &self.numbers {
            // SAFETY: numbers are whole containers of this type.
            let value = unsafe {
                match self.dtype {
                    Dtype::F64 => *arguments[*argument].0.cast::<f64>(),
                    _ => f64::from(*arguments[*argument].0.cast::<f32>()),
                }
            };
            code = code.inline(connector, &Scalar::Const(value));
        }
        let fault = || KernelError::Unsupported { kernel: self.name.clone(), what: "its code is no multiple of what is added".into() };
        code.constant(&self.sizes).map_err(|_| fault())
    }

    /// # Safety
    /// As [`Executable::run`], with `T` the type of the result.
    unsafe fn add<T: Real>(&self, arguments: &[Shared], factor: T, (rows, columns): (Range<usize>, Range<usize>)) {
        let contiguous = |offsets: &[usize]| offsets.windows(2).all(|pair| pair[1] == pair[0] + 1);
        for part in &self.parts {
            let straight = contiguous(&self.columns) && contiguous(&part.columns);
            for (at, x) in &part.points {
                // SAFETY: the offsets are those of elements of `at`.
                let Some(row) = (unsafe { row(arguments[part.at].0, part.rows_in, *at) }).filter(|row| rows.contains(row)) else {
                    continue;
                };
                // SAFETY: a row of the table, and elements of `x`; this worker alone writes these columns of this row.
                unsafe {
                    let to = arguments[self.out].0.cast::<T>().add(row * self.row_stride);
                    let from = arguments[part.x].0.cast::<T>().cast_const().add(*x);
                    if straight && !columns.is_empty() {
                        let (first, count) = (columns.start, columns.len());
                        let to = std::slice::from_raw_parts_mut(to.add(self.columns[first]), count);
                        let from = std::slice::from_raw_parts(from.add(part.columns[first]), count);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = to.plus(factor, *from));
                    } else {
                        for n in columns.clone() {
                            let to = &mut *to.add(self.columns[n]);
                            *to = to.plus(factor, *from.add(part.columns[n]));
                        }
                    }
                }
            }
        }
    }

    /// The copy of the table, unless the sums are added where it lies, and the sums.
    fn phases(&self) -> Vec<Phase> {
        let touch = |n: usize, written: bool| Touch { place: PhaseMemory::Argument(n), written, part: phases::AccessedPart::Whole };
        let touches: Vec<Touch> = (0..self.arguments).map(|n| touch(n, n == self.out || (self.in_place && Some(n) == self.base))).collect();
        let phase = || Phase { spread: Spread::Fixed, touches: touches.clone() };
        if self.in_place { vec![phase()] } else { vec![phase(), phase()] }
    }

    /// A worker's part of the copy of the table, or of the sums.
    ///
    /// # Safety
    /// As [`Executable::work`], with `T` the type of the result.
    unsafe fn work_as<T: Real>(&self, copies: bool, arguments: &[Shared], factor: T, (worker, workers): (usize, usize)) {
        let share = |all: usize| all * worker / workers..all * (worker + 1) / workers;
        if copies {
            let mine = share(self.elements);
            // SAFETY: each worker has a part of its own of the whole result.
            unsafe {
                let to = arguments[self.out].0.cast::<T>().add(mine.start);
                match self.base {
                    Some(base) => std::ptr::copy_nonoverlapping(arguments[base].0.cast::<T>().add(mine.start), to, mine.len()),
                    None => std::slice::from_raw_parts_mut(to, mine.len()).fill(T::ZERO),
                }
            }
            return;
        }
        let own = match self.columns.len() >= COLUMNS * workers {
            true => (0..self.rows, share(self.columns.len())),
            false => (share(self.rows), 0..self.columns.len()),
        };
        // SAFETY: workers own different rows or different columns.
        unsafe { self.add::<T>(arguments, factor, own) };
    }
}

/// Addresses that all workers may use.
#[derive(Clone, Copy)]
struct Shared(*mut u8);
// SAFETY: workers write different elements.
unsafe impl Sync for Shared {}

/// What sums are stored in.
trait Real: Copy + Send + Sync {
    const ZERO: Self;
    fn plus(self, factor: Self, value: Self) -> Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    fn plus(self, factor: f32, value: f32) -> f32 {
        self + factor * value
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    fn plus(self, factor: f64, value: f64) -> f64 {
        self + factor * value
    }
}

/// The row that an element names; `None` if it is no whole number from 0 on.
///
/// # Safety
/// `at` is an element of the container at `from`.
unsafe fn row(from: *const u8, dtype: Dtype, at: usize) -> Option<usize> {
    let whole = |value: f64| ((0.0..9e15).contains(&value) && value.fract() == 0.0).then_some(value as usize);
    // SAFETY: as promised by the caller.
    unsafe {
        match dtype {
            Dtype::I64 => usize::try_from(*from.cast::<i64>().add(at)).ok(),
            Dtype::I32 => usize::try_from(*from.cast::<i32>().add(at)).ok(),
            Dtype::I16 => usize::try_from(*from.cast::<i16>().add(at)).ok(),
            Dtype::U8 => Some(usize::from(*from.add(at))),
            Dtype::F64 => whole(*from.cast::<f64>().add(at)),
            Dtype::F32 => whole(f64::from(*from.cast::<f32>().add(at))),
            Dtype::Bf16 | Dtype::F16 | Dtype::Bit => None,
        }
    }
}

impl Executable for ScatterKernel {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        // What the code computes is checked before any worker begins.
        let shared: Vec<Shared> = arguments.iter().map(|pointer| Shared(*pointer)).collect();
        // SAFETY: as promised by the caller.
        unsafe {
            self.factor(&shared)?;
            run_alone(self, &self.phases(), arguments, context)
        }
    }

    fn phases(&self) -> Option<Vec<Phase>> {
        Some(self.phases())
    }

    fn missing_row(&self) -> Option<KernelError> {
        self.rows_named.missing()
    }

    fn as_c(&self) -> Option<CForm<'_>> {
        Some(CForm::Scatter(self.text()))
    }

    unsafe fn work(&self, phase: usize, worker: usize, share: WorkerShare, run: &PhaseRun) -> bool {
        let arguments: Vec<Shared> = run.arguments.iter().map(|pointer| Shared(*pointer)).collect();
        let part = if matches!(share, WorkerShare::All) { (0, 1) } else { (worker, run.context.pool.workers()) };
        let copies = !self.in_place && phase == 0;
        if !copies {
            // SAFETY: as promised by the caller.
            unsafe { self.rows_named.check(worker, share, run.arguments) };
        }
        // SAFETY: as promised by the caller.
        unsafe {
            let Ok(factor) = self.factor(&arguments) else { return true };
            match self.dtype {
                Dtype::F64 => self.work_as::<f64>(copies, &arguments, factor, part),
                _ => self.work_as::<f32>(copies, &arguments, factor as f32, part),
            }
        }
        true
    }
}

/// Whether an operation is a scatter.
pub fn is_scatter(operation: &Operation) -> bool {
    matches!(operation.op, Op::Scatter { .. })
}
