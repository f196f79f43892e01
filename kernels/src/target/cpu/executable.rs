//! Runs a generated kernel: shares its points among the workers and combines their partial results.

use crate::caches::largest_cache;
use crate::error::KernelError;
use crate::kernel::{Completion, Executable, KernelSpec, Phases, RunContext, WorkingMemory};
use crate::loopnest::LoopNest;
use crate::pool::{StaticPartition, Working};
use crate::processor::streams_for;
use crate::runtime::{dropout, stream};
use crate::target::cpu::compile::{Entry, Host, Toolchain};
use crate::target::cpu::emit::{CSource, emit};
use sdfg::config::KernelConfig;
use std::sync::atomic::{AtomicBool, Ordering};

/// Parts into which each worker's share is cut, so that fast workers help slow ones and deadlines are seen.
const PARTS: i64 = 8;

/// A map kernel under one configuration.
pub struct MapKernel {
    name: String,
    arguments: usize,
    source: CSource,
    entry: Entry,
    row: dropout::DrawRowFn,
    stream: stream::Stream,
    streams: bool,
}

/// Addresses that all workers may use.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Shared(*mut u8);
// SAFETY: workers write disjoint parts: their own scratch memory, their own points.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Generates, compiles and loads a loop nest.
pub(crate) fn load(spec: &KernelSpec, nest: &LoopNest, config: &KernelConfig, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    of_text(spec, emit(spec, nest, config)?, toolchain)
}

/// Compiles and loads the C of a kernel.
pub(crate) fn of_text(spec: &KernelSpec, source: CSource, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    let entry = toolchain.load(&spec.name, &source)?;
    let arguments = spec.arguments();
    let mut bytes = 0;
    for argument in &arguments {
        bytes += argument.dtype.bytes(spec.shape(&argument.data)?.iter().product::<usize>() as u64);
    }
    Ok(MapKernel {
        name: spec.name.clone(),
        arguments: arguments.len(),
        source,
        entry,
        row: dropout::row(),
        stream: stream::stream(),
        // What one kernel moves through the whole cache, the next one finds no more.
        streams: bytes as usize > largest_cache(),
    })
}

impl MapKernel {
    /// Whether results are written around the caches; by default if all arguments together do not fit them.
    pub fn streaming(self, streams: bool) -> Self {
        MapKernel { streams, ..self }
    }

    /// Whether it needs random bits: for dropout masks.
    pub fn draws(&self) -> bool {
        !self.source.masks.is_empty()
    }

    /// The same kernel made of changed C text: for tests that plant faults.
    ///
    /// # Errors
    /// A compiler that is missing or refuses.
    pub fn rewritten(mut self, toolchain: &Toolchain, rewrite: impl FnOnce(&str) -> String) -> Result<Self, KernelError> {
        self.source.text = rewrite(&self.source.text);
        self.entry = toolchain.load(&self.name, &self.source)?;
        Ok(self)
    }

    /// `late`: whether results that no later kernel reads soon are written with non-temporal stores; `far`: whether results that other
    /// workers may read next are written so as well.
    fn host(&self, masks: &[dropout::Keep], late: bool, far: bool) -> Host {
        let [pack, pack_lines, gemm] = self.entry.gemm;
        Host {
            keep: masks.as_ptr(),
            row: self.row,
            stream: self.stream,
            streams: i64::from(self.streams || far),
            late: i64::from(late),
            around: far.then_some(self.stream),
            pack,
            pack_lines,
            gemm,
        }
    }

    /// Sets one worker's partial results to the identities.
    ///
    /// # Safety
    /// `scratch` is that worker's memory.
    unsafe fn reset(&self, scratch: *mut u8) {
        for partial in &self.source.partials {
            let identity = partial.combine.identity().first().copied().unwrap_or(0.0);
            // SAFETY: the emitter has made room for these elements, aligned to a line.
            unsafe {
                if let Some(total) = partial.total {
                    std::slice::from_raw_parts_mut(scratch.add(total).cast::<f64>(), partial.elements).fill(0.0);
                }
                let at = scratch.add(partial.at);
                if self.source.double {
                    std::slice::from_raw_parts_mut(at.cast::<f64>(), partial.elements).fill(identity);
                } else {
                    std::slice::from_raw_parts_mut(at.cast::<f32>(), partial.elements).fill(identity as f32);
                }
            }
        }
    }
}

/// One run of a kernel.
struct MapRun<'a> {
    kernel: &'a MapKernel,
    context: &'a RunContext<'a>,
    pointers: Vec<Shared>,
    masks: Vec<dropout::Keep>,
    /// Whether results that no later kernel reads soon are written around the caches, and those that other workers may read next.
    late: bool,
    far: bool,
    scratch: Shared,
    stride: usize,
    steps: StaticPartition,
    shares: StaticPartition,
    expired: AtomicBool,
    phases: Vec<Phase>,
}

/// What happens between two barriers.
#[derive(Clone, Copy)]
enum Phase {
    /// Factors of products are packed.
    Prepare,
    Points,
    /// Partial results of the workers are added up: those of these numbers, by one worker; or those of one, by all.
    Combine(usize, usize),
    CombineShared(usize),
}

impl<'a> MapRun<'a> {
    /// # Errors
    /// A wrong number of arguments.
    fn new(kernel: &'a MapKernel, arguments: &[*mut u8], context: &'a RunContext<'a>, memory: WorkingMemory) -> Result<Self, KernelError> {
        if arguments.len() != kernel.arguments {
            return Err(KernelError::Arguments { kernel: kernel.name.clone(), expected: kernel.arguments, given: arguments.len() });
        }
        let workers = context.pool.workers();
        let late = streams_for(workers);
        let pointers = arguments.iter().copied().chain([memory.shared]).map(Shared).collect();
        let (source, points) = (&kernel.source, kernel.source.points);
        let mut phases = Vec::new();
        if kernel.entry.prepare.is_some() {
            phases.push(Phase::Prepare);
        }
        phases.push(Phase::Points);
        if kernel.entry.finish.is_some() {
            for (which, partial) in source.partials.iter().enumerate() {
                // Sharing costs a few microseconds: only for what takes longer.
                match (partial.elements < 1 << 14, phases.last_mut()) {
                    (true, Some(Phase::Combine(_, end))) if *end == which => *end += 1,
                    (true, _) => phases.push(Phase::Combine(which, which + 1)),
                    (false, _) => phases.push(Phase::CombineShared(which)),
                }
            }
        }
        Ok(MapRun {
            kernel,
            context,
            pointers,
            masks: dropout::keeps(&source.masks, context.seed, context.step, context.dropout),
            late,
            far: late && !context.pool.is_near(),
            scratch: Shared(memory.own),
            stride: memory.stride,
            steps: StaticPartition::new(source.preparations, workers, 1),
            shares: StaticPartition::new(points, workers, points / (workers as i64 * PARTS)),
            expired: AtomicBool::new(false),
            phases,
        })
    }

    fn prepare(&self, worker: usize) {
        let Some(prepare) = self.kernel.entry.prepare else { return };
        let host = self.kernel.host(&self.masks, self.late, self.far);
        while let Some(step) = self.steps.take(worker) {
            // SAFETY: pointers as promised by the caller; integers and masks as this source was printed for.
            unsafe { prepare(self.pointers.as_ptr().cast(), self.kernel.source.integers.as_ptr(), &host, step.start, step.end) };
        }
        stream::fence();
    }

    fn points(&self, worker: usize) {
        let host = self.kernel.host(&self.masks, self.late, self.far);
        // SAFETY: within the buffer, which has `workers` times `stride` bytes.
        let mine = unsafe { self.scratch.0.add(worker * self.stride) };
        // SAFETY: as above.
        unsafe { self.kernel.reset(mine) };
        // Where partial results are added up, which worker does what must not depend on chance.
        let fixed = !self.kernel.source.partials.is_empty();
        let take = || if fixed { self.shares.take_own(worker) } else { self.shares.take(worker) };
        while let Some(piece) = take() {
            if self.context.expired() {
                self.expired.store(true, Ordering::Relaxed);
                return;
            }
            // SAFETY: pointers as promised by the caller; integers, masks and scratch as this source was printed for.
            unsafe {
                (self.kernel.entry.kernel)(
                    self.pointers.as_ptr().cast(),
                    self.kernel.source.integers.as_ptr(),
                    &host,
                    mine,
                    piece.start,
                    piece.end,
                );
            }
        }
        // Products stream by themselves.
        if self.kernel.streams || self.late {
            stream::fence();
        }
    }

    fn combine(&self, which: usize, from: i64, to: i64) {
        let Some(finish) = self.kernel.entry.finish else { return };
        // SAFETY: as for the kernel.
        unsafe {
            finish(
                self.pointers.as_ptr().cast(),
                self.kernel.source.integers.as_ptr(),
                self.scratch.0,
                self.stride as i64,
                self.context.pool.workers() as i64,
                which as i64,
                from,
                to,
            );
        }
    }
}

impl Phases for MapRun<'_> {
    fn count(&self) -> usize {
        self.phases.len()
    }

    fn is_serial(&self, phase: usize) -> bool {
        matches!(self.phases[phase], Phase::Combine(..))
    }

    fn work(&self, phase: usize, worker: usize) {
        let partials = &self.kernel.source.partials;
        match self.phases[phase] {
            Phase::Prepare => self.prepare(worker),
            Phase::Points => self.points(worker),
            Phase::Combine(from, to) if worker == 0 => (from..to).for_each(|which| self.combine(which, 0, partials[which].steps)),
            Phase::Combine(..) => {}
            Phase::CombineShared(which) => {
                let workers = self.context.pool.workers();
                let share = |worker: usize| partials[which].steps * worker as i64 / workers as i64;
                self.combine(which, share(worker), share(worker + 1));
            }
        }
    }
}

impl Executable for MapKernel {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        let mut held = context.pool.scratch(self.working())?;
        let own = held.as_mut_ptr();
        // SAFETY: the buffer holds the scratch memory of all workers, then what they share.
        let shared = unsafe { own.add(held.shared_at()) };
        let run = MapRun::new(self, arguments, context, WorkingMemory { own, stride: held.stride(), shared })?;
        for phase in 0..run.count() {
            match run.is_serial(phase) {
                true => run.work(phase, 0),
                false => drop(context.pool.broadcast(|worker| run.work(phase, worker))),
            }
            if run.expired.load(Ordering::Relaxed) {
                return Ok(Completion::DeadlineExceeded);
            }
        }
        Ok(Completion::Done)
    }

    fn is_phased(&self) -> bool {
        true
    }

    unsafe fn phases<'a>(
        &'a self,
        arguments: &[*mut u8],
        context: &'a RunContext<'a>,
        memory: WorkingMemory,
    ) -> Result<Box<dyn Phases + 'a>, KernelError> {
        Ok(Box::new(MapRun::new(self, arguments, context, memory)?))
    }

    fn working(&self) -> Working {
        Working { own: self.source.scratch, shared: self.source.prepared }
    }

    fn source(&self) -> Option<&str> {
        Some(&self.source.text)
    }

    fn library(&self) -> Option<&str> {
        self.source.library.as_deref()
    }
}
