//! Runs a contraction: the loops around the matrix products, over the cores of a pool.

use super::library::{Element, Library, Product, Threads};
use super::mapping::{Call, Loop};
use super::problem::Problem;
use crate::error::KernelError;
use crate::kernel::{Completion, Executable, KernelSpec, RunContext};
use rayon::prelude::*;
use sdfg::Dtype;
use sdfg::config::KernelConfig;

/// Work below which a task of its own costs more than it gives, in flop.
const TASK_FLOP: f64 = 5e5;

/// A contraction with all choices made.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub call: Call,
    /// First element of `a`, `b`, `out` in its storage.
    pub origins: [usize; 3],
    pub scale: f64,
    pub library: Library,
    pub threads: Threads,
}

/// Base addresses that several threads may use.
#[derive(Clone, Copy)]
struct Bases<T>([*mut T; 3]);

// SAFETY: the addresses are only used inside `Plan::run`, whose caller promises that the tensors outlive it; different
// items write disjoint parts of `out`, and nobody writes `a` or `b`.
unsafe impl<T> Send for Bases<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Bases<T> {}

impl<T> Bases<T> {
    /// The addresses `offsets` elements further.
    ///
    /// # Safety
    /// They must lie within the tensors.
    unsafe fn at(self, offsets: [usize; 3]) -> [*mut T; 3] {
        let [a, b, out] = self.0;
        // SAFETY: promised by the caller.
        unsafe { [a.add(offsets[0]), b.add(offsets[1]), out.add(offsets[2])] }
    }
}

/// Where iteration `number` of a nest of loops begins in each tensor.
fn offsets(nest: &[Loop], mut number: usize) -> [usize; 3] {
    let mut offsets = [0; 3];
    for each in nest.iter().rev() {
        let position = number % each.extent;
        number /= each.extent;
        for (offset, stride) in offsets.iter_mut().zip(each.strides) {
            *offset += position * stride;
        }
    }
    offsets
}

impl Plan {
    /// Computes `out` on the cores of `pool`, asking `expired` before every product. False if it stopped early.
    ///
    /// # Safety
    /// `tensors` (`a`, `b`, `out`) must be valid for every element that the plan's strides reach, `out` for writing, and
    /// `out` must not overlap the others.
    pub unsafe fn run<T: Element>(&self, tensors: [*mut T; 3], pool: &rayon::ThreadPool, expired: &(dyn Fn() -> bool + Sync)) -> bool {
        let bases = Bases(tensors);
        let (items, cores) = (self.call.items(), pool.current_num_threads());
        // SAFETY (both calls): promised by the caller.
        let item = |number: usize, threads: usize| unsafe { self.item(number, bases, threads, expired) };
        match self.threads {
            Threads::Batch if items > 1 && cores > 1 => {
                let flop = self.call.flop() / items as f64;
                let task = (TASK_FLOP / flop.max(1.0)).ceil().min(items.div_ceil(4 * cores) as f64) as usize;
                pool.install(|| (0..items).into_par_iter().with_min_len(task.max(1)).all(|number| item(number, 1)))
            }
            Threads::Batch => (0..items).all(|number| item(number, 1)),
            Threads::Inside => pool.install(|| (0..items).all(|number| item(number, cores))),
        }
    }

    /// One item of the batch: its products, added up. False if it stopped early.
    ///
    /// # Safety
    /// As for [`Plan::run`].
    unsafe fn item<T: Element>(&self, number: usize, bases: Bases<T>, threads: usize, expired: &dyn Fn() -> bool) -> bool {
        let Call { m, n, k, batch, depth } = &self.call;
        let library = self.library.implementation::<T>();
        let start = offsets(batch, number);
        // A depth of extent 0 still has one product: the one of no terms, which writes zeros.
        let (steps, k_extent) = if self.call.steps() == 0 { (1, 0) } else { (self.call.steps(), k.extent) };
        for step in 0..steps {
            if expired() {
                return false;
            }
            let within = if k_extent == 0 { [0; 3] } else { offsets(depth, step) };
            let at = |t: usize| self.origins[t] + start[t] + within[t];
            // SAFETY: origin and offsets stay within the tensors, as the caller promises for the plan's strides.
            let [a, b, c] = unsafe { bases.at([at(0), at(1), at(2)]) };
            let product = Product {
                m: m.extent,
                n: n.extent,
                k: k_extent,
                a: (a, m.strides[0] as isize, k.strides[0] as isize),
                b: (b, k.strides[1] as isize, n.strides[1] as isize),
                c: (c, m.strides[2] as isize, n.strides[2] as isize),
                alpha: T::from_f64(self.scale),
                accumulate: step > 0,
                threads,
            };
            // SAFETY: promised by the caller; `out` has one element for each row and column, and no two items share one.
            unsafe { library.run(&product) };
        }
        true
    }
}

/// A contraction ready to run on the pointers of its kernel.
#[derive(Clone, Debug)]
pub struct ContractionKernel {
    plan: Plan,
    name: String,
    dtype: Dtype,
    arguments: usize,
    /// Which argument is `a`, `b`, `out`.
    position: [usize; 3],
}

impl ContractionKernel {
    /// Works a configuration out. Absent layouts are the containers' own order, absent knobs the predicted best.
    ///
    /// # Errors
    /// No matrix product; layouts or knobs that do not fit.
    pub fn new(spec: &KernelSpec, config: &KernelConfig, cores: usize) -> Result<Self, KernelError> {
        let problem = Problem::of(spec)?;
        let plan = problem.plan_of(config, cores)?;
        let arguments = spec.arguments();
        let mut position = [0; 3];
        for (position, tensor) in position.iter_mut().zip(&problem.tensors) {
            let unknown = || KernelError::UnknownContainer { kernel: spec.name.clone(), data: tensor.data.clone() };
            *position = arguments.iter().position(|a| a.data == tensor.data).ok_or_else(unknown)?;
        }
        Ok(ContractionKernel { plan, name: spec.name.clone(), dtype: problem.dtype, arguments: arguments.len(), position })
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl Executable for ContractionKernel {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let tensors = self.position.map(|p| arguments[p]);
        let (pool, expired) = (context.pool.threads(), || context.expired());
        // SAFETY: the caller promises whole containers in the configuration's layouts, which is what the plan's strides reach.
        let done = unsafe {
            match self.dtype {
                Dtype::F64 => self.plan.run::<f64>(tensors.map(<*mut u8>::cast), pool, &expired),
                // A problem is of f64 or f32.
                _ => self.plan.run::<f32>(tensors.map(<*mut u8>::cast), pool, &expired),
            }
        };
        Ok(if done { Completion::Done } else { Completion::DeadlineExceeded })
    }
}
