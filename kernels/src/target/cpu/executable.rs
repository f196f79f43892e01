//! Runs a generated kernel: shares its points among the workers and combines their partial results.

use crate::caches::largest_cache;
use crate::error::KernelError;
use crate::kernel::{Completion, Executable, KernelSpec, RunContext};
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

impl Executable for MapKernel {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let workers = context.pool.workers();
        let late = streams_for(workers);
        let far = late && !context.pool.is_near();
        let mut held = context.pool.scratch(self.working())?;
        let (scratch, stride) = (Shared(held.as_mut_ptr()), held.stride());
        let mut pointers: Vec<Shared> = arguments.iter().map(|p| Shared(*p)).collect();
        // SAFETY: the buffer holds the scratch memory of all workers, then what they share.
        pointers.push(Shared(unsafe { scratch.0.add(held.shared_at()) }));
        let pointers = pointers;
        let masks = dropout::keeps(&self.source.masks, context.seed, context.step, context.dropout);
        let (points, fixed) = (self.source.points, !self.source.partials.is_empty());
        let expired = AtomicBool::new(false);
        let shares = StaticPartition::new(points, workers, points / (workers as i64 * PARTS));
        let work = |worker: usize| {
            let (scratch, pointers) = (&scratch, &pointers);
            let host = self.host(&masks, late, far);
            // SAFETY: within the buffer, which has `workers` times `stride` bytes.
            let mine = unsafe { scratch.0.add(worker * stride) };
            // SAFETY: as above.
            unsafe { self.reset(mine) };
            let call = |from: i64, to: i64| {
                // SAFETY: pointers as promised by the caller; integers, masks and scratch as this source was printed for.
                unsafe {
                    (self.entry.kernel)(pointers.as_ptr().cast(), self.source.integers.as_ptr(), &host, mine, from, to);
                }
            };
            // Where partial results are added up, which worker does what must not depend on chance.
            let take = || if fixed { shares.take_own(worker) } else { shares.take(worker) };
            while let Some(piece) = take() {
                if context.expired() {
                    expired.store(true, Ordering::Relaxed);
                    return;
                }
                call(piece.start, piece.end);
            }
            // Products stream by themselves.
            if self.streams || late {
                stream::fence();
            }
        };
        if let Some(prepare) = self.entry.prepare {
            let steps = StaticPartition::new(self.source.preparations, workers, 1);
            context.pool.broadcast(|worker| {
                let (pointers, host) = (&pointers, self.host(&masks, late, far));
                while let Some(step) = steps.take(worker) {
                    // SAFETY: as for the kernel.
                    unsafe { prepare(pointers.as_ptr().cast(), self.source.integers.as_ptr(), &host, step.start, step.end) };
                }
                stream::fence();
            });
        }
        context.pool.broadcast(work);
        if expired.load(Ordering::Relaxed) {
            return Ok(Completion::DeadlineExceeded);
        }
        if let Some(finish) = self.entry.finish {
            for (which, partial) in self.source.partials.iter().enumerate() {
                let combine = |from: i64, to: i64| {
                    let (scratch, pointers) = (&scratch, &pointers);
                    // SAFETY: as for the kernel.
                    unsafe {
                        finish(
                            pointers.as_ptr().cast(),
                            self.source.integers.as_ptr(),
                            scratch.0,
                            stride as i64,
                            workers as i64,
                            which as i64,
                            from,
                            to,
                        );
                    }
                };
                // Sharing costs a few microseconds: only for what takes longer.
                if partial.elements < 1 << 14 {
                    combine(0, partial.steps);
                } else {
                    let share = |worker: usize| partial.steps * worker as i64 / workers as i64;
                    context.pool.broadcast(|worker| combine(share(worker), share(worker + 1)));
                }
            }
        }
        Ok(Completion::Done)
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
