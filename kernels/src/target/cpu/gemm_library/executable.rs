//! Runs a contraction: the loops around the matrix products, over the cores of a pool.

use crate::contraction::ContractionProblem;
use crate::contraction::Types;
use crate::contraction::{GemmNest, StridedLoop};
use crate::error::KernelError;
use crate::executable::Executable;
use crate::kernel::KernelSpec;
use crate::run_context::{Completion, RunContext};
use crate::target::cpu::gemm_library::library::{GemmCall, GemmFactor, GemmLibrary, Threads};
use half::bf16;
use rayon::prelude::*;
use sdfg::Dtype;
use sdfg::config::KernelConfig;

/// Work below which a task of its own costs more than it gives, in flop.
const TASK_FLOP: f64 = 5e5;

/// A contraction with all choices made.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractionPlan {
    pub call: GemmNest,
    /// First element of `a`, `b`, `out` in its storage.
    pub origins: [usize; 3],
    pub types: Types,
    pub scale: f64,
    pub library: GemmLibrary,
    pub threads: Threads,
}

/// Base addresses that several threads may use.
struct Bases<T, O>(*const T, *const T, *mut O);

impl<T, O> Clone for Bases<T, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, O> Copy for Bases<T, O> {}

// SAFETY: the addresses are only used inside `ContractionPlan::run`, whose caller promises that the tensors outlive it; different
// items write disjoint parts of `out`, and no item writes `a` or `b`.
unsafe impl<T, O> Send for Bases<T, O> {}
// SAFETY: as above.
unsafe impl<T, O> Sync for Bases<T, O> {}

/// Where iteration `number` of a nest of loops begins in each tensor.
fn offsets(nest: &[StridedLoop], mut number: usize) -> [usize; 3] {
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

impl ContractionPlan {
    /// Computes `out` on the cores of `pool`, asking `expired` before every product. False if it stopped early.
    ///
    /// # Safety
    /// `tensors` (`a`, `b`, `out`) must be valid for every element that the plan's strides reach, `out` for writing, and
    /// `out` must not overlap the others.
    pub unsafe fn run(&self, tensors: [*mut u8; 3], pool: &rayon::ThreadPool, expired: &(dyn Fn() -> bool + Sync)) -> bool {
        let [a, b, out] = tensors;
        // SAFETY (all): promised by the caller; the types are those of the tensors.
        match (self.types.factor, self.types.out) {
            (Dtype::F64, _) => {
                let bases: Bases<f64, f64> = Bases(a.cast(), b.cast(), out.cast());
                self.items(pool, &|number, threads| unsafe { self.item(number, bases, threads, expired) })
            }
            (Dtype::Bf16, Dtype::F32) => {
                let bases: Bases<bf16, f32> = Bases(a.cast(), b.cast(), out.cast());
                self.items(pool, &|number, threads| unsafe { self.item(number, bases, threads, expired) })
            }
            (Dtype::Bf16, _) => {
                let bases: Bases<bf16, bf16> = Bases(a.cast(), b.cast(), out.cast());
                self.items(pool, &|number, threads| unsafe {
                    if self.call.steps() > 1 {
                        self.item_summed(number, bases, threads, expired)
                    } else {
                        self.item(number, bases, threads, expired)
                    }
                })
            }
            _ => {
                let bases: Bases<f32, f32> = Bases(a.cast(), b.cast(), out.cast());
                self.items(pool, &|number, threads| unsafe { self.item(number, bases, threads, expired) })
            }
        }
    }

    /// Runs every item, given its number and threads, until one says that it stopped early.
    fn items(&self, pool: &rayon::ThreadPool, item: &(dyn Fn(usize, usize) -> bool + Sync)) -> bool {
        let (items, cores) = (self.call.items(), pool.current_num_threads());
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
    /// As for [`ContractionPlan::run`].
    unsafe fn item<T: GemmFactor<O>, O: 'static>(
        &self,
        number: usize,
        bases: Bases<T, O>,
        threads: usize,
        expired: &dyn Fn() -> bool,
    ) -> bool {
        let GemmNest { m, n, batch, .. } = &self.call;
        // SAFETY (both): promised by the caller.
        let out = unsafe { bases.2.add(self.origins[2] + offsets(batch, number)[2]) };
        unsafe { self.products(number, bases, (out, m.strides[2] as isize, n.strides[2] as isize), threads, expired) }
    }

    /// One item whose output holds less than the sums of its products: they are added up in f32 and rounded once.
    ///
    /// # Safety
    /// As for [`ContractionPlan::run`].
    unsafe fn item_summed(&self, number: usize, bases: Bases<bf16, bf16>, threads: usize, expired: &dyn Fn() -> bool) -> bool {
        let GemmNest { m, n, batch, .. } = &self.call;
        let mut sums = vec![0f32; m.extent * n.extent];
        let factors = Bases(bases.0, bases.1, sums.as_mut_ptr());
        // SAFETY: promised by the caller; the sums have one element for each row and column.
        if !unsafe { self.products(number, factors, (factors.2, n.extent as isize, 1), threads, expired) } {
            return false;
        }
        let first = self.origins[2] + offsets(batch, number)[2];
        for (place, sum) in sums.iter().enumerate() {
            let at = first + place / n.extent * m.strides[2] + place % n.extent * n.strides[2];
            // SAFETY: an element of the output.
            unsafe { *bases.2.add(at) = bf16::from_f32(*sum) };
        }
        true
    }

    /// The products of one item, added up in `c`: first element, row stride, column stride.
    ///
    /// # Safety
    /// As for [`ContractionPlan::run`].
    unsafe fn products<T: GemmFactor<O>, O: 'static>(
        &self,
        number: usize,
        bases: Bases<T, O>,
        c: (*mut O, isize, isize),
        threads: usize,
        expired: &dyn Fn() -> bool,
    ) -> bool {
        let GemmNest { m, n, k, batch, depth } = &self.call;
        let library = T::implementation(self.library);
        let start = offsets(batch, number);
        // A depth of extent 0 still has one product: the one of no terms, which writes zeros.
        let (steps, k_extent) = if self.call.steps() == 0 { (1, 0) } else { (self.call.steps(), k.extent) };
        for step in 0..steps {
            if expired() {
                return false;
            }
            let within = if k_extent == 0 { [0; 3] } else { offsets(depth, step) };
            let at = |t: usize| self.origins[t] + start[t] + within[t];
            // SAFETY (both): origin and offsets stay within the tensors, as the caller promises for the plan's strides.
            let (a, b) = unsafe { (bases.0.add(at(0)), bases.1.add(at(1))) };
            let product = GemmCall {
                m: m.extent,
                n: n.extent,
                k: k_extent,
                a: (a, m.strides[0] as isize, k.strides[0] as isize),
                b: (b, k.strides[1] as isize, n.strides[1] as isize),
                c,
                alpha: self.scale,
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
    plan: ContractionPlan,
    name: String,
    arguments: usize,
    /// Which argument is `a`, `b`, `out`.
    position: [usize; 3],
}

impl ContractionKernel {
    /// Works a configuration out. Absent layouts are the containers' own order, absent knobs the predicted best.
    ///
    /// # Errors
    /// No matrix product, or none for cores; layouts or knobs that do not fit.
    pub fn new(spec: &KernelSpec, config: &KernelConfig, cores: usize) -> Result<Self, KernelError> {
        let problem = ContractionProblem::on_cores(spec)?;
        let plan = problem.plan_of(config, cores)?;
        let position = problem.positions(spec)?;
        Ok(ContractionKernel { plan, name: spec.name.clone(), arguments: spec.arguments().len(), position })
    }

    pub fn plan(&self) -> &ContractionPlan {
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
        let done = unsafe { self.plan.run(tensors, pool, &expired) };
        Ok(if done { Completion::Done } else { Completion::DeadlineExceeded })
    }
}
