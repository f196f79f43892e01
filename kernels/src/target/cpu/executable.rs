//! Runs a generated kernel: shares its points among the workers and combines their partial results.

use crate::c_form::{CForm, GeneratedC, KernelStage};
use crate::caches::largest_cache;
use crate::error::KernelError;
use crate::executable::{Executable, OnChipMemory};
use crate::kernel::{ArgumentAccess, KernelSpec};
use crate::loopnest::LoopNest;
use crate::loopnest::partition::PartitionedNest;
use crate::named_rows::NamedRows;
use crate::packing::run_alone;
use crate::phases::{AccessedPart, PartitionIndex, Phase, PhaseMemory, PhaseRun, Spread, Touch, WorkerShare};
use crate::pool::Working;
use crate::run_context::{Completion, RunContext};
use crate::runtime::{dropout, stream};
use crate::target::cpu::compile::{Entry, Host, Toolchain};
use crate::target::cpu::emit::{CSource, emit};
use crate::target::cpu::kept::{KeptOperands, KeptPacking};
use sdfg::config::KernelConfig;
use std::sync::Arc;

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
    stages: Vec<KernelStage>,
    phases: Vec<Phase>,
    /// What the points touch.
    touched: PartitionedNest,
    rows: NamedRows,
    /// What is kept of packed operands, if all of these hold the same in every step.
    keep: Option<KeptPacking>,
}

/// Generates, compiles and loads a loop nest.
pub(crate) fn load(spec: &KernelSpec, nest: &LoopNest, config: &KernelConfig, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    let touched = PartitionedNest::of(spec, nest);
    let part = |argument: usize| {
        let of = |t: &&Touch| t.place == PhaseMemory::Argument(argument);
        touched.touches.iter().find(of).map_or(AccessedPart::Whole, |touch| touch.part)
    };
    let rows = NamedRows::new(spec, config, &part)?;
    Ok(MapKernel { rows, ..of_nest(spec, emit(spec, nest, config)?, touched, toolchain)? })
}

/// Compiles and loads the C of a kernel that may touch any part of its arguments at any point.
pub(crate) fn of_text(spec: &KernelSpec, source: CSource, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    let touch = |(n, argument): (usize, &crate::KernelArgument)| Touch {
        place: PhaseMemory::Argument(n),
        written: argument.access == ArgumentAccess::Write,
        part: AccessedPart::Whole,
    };
    let touches = spec.arguments().iter().enumerate().map(touch).collect();
    of_nest(spec, source, PartitionedNest { partition: None, touches }, toolchain)
}

fn of_nest(spec: &KernelSpec, source: CSource, touched: PartitionedNest, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    let entry = toolchain.load(&spec.name, &source)?;
    let arguments = spec.arguments();
    let mut bytes = 0;
    for argument in &arguments {
        bytes += argument.dtype.bytes(spec.shape(&argument.data)?.iter().product::<usize>() as u64);
    }
    let constant = |n: &usize| arguments.get(*n).is_some_and(|a| spec.constants.contains(&a.data));
    let mut kernel = MapKernel {
        stages: stages(&source, &entry),
        phases: vec![],
        touched,
        rows: NamedRows::default(),
        keep: (!source.packed.is_empty() && source.packed.iter().all(constant)).then(KeptPacking::default),
        name: spec.name.clone(),
        arguments: arguments.len(),
        source,
        entry,
        row: dropout::row(),
        stream: stream::stream(),
        // What one kernel moves through the whole cache, the next one finds no more.
        streams: bytes as usize > largest_cache(),
    };
    kernel.phases = kernel.stages.iter().map(|stage| kernel.stage(*stage)).collect();
    Ok(kernel)
}

impl MapKernel {
    /// Whether results are written around the caches; by default if all arguments together do not fit them.
    pub fn streaming(self, streams: bool) -> Self {
        MapKernel { streams, ..self }
    }

    /// The same kernel whose points no index divides: that of its nest walks a part of a dim.
    pub fn undivided(mut self) -> Self {
        self.touched.partition = None;
        self.touched.touches.iter_mut().for_each(|touch| touch.part = AccessedPart::Whole);
        self.phases = self.stages.iter().map(|stage| self.stage(*stage)).collect();
        self
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

/// The stages of a kernel's run.
fn stages(source: &CSource, entry: &Entry) -> Vec<KernelStage> {
    let mut stages = Vec::new();
    if entry.prepare.is_some() {
        stages.push(KernelStage::Prepare);
    }
    stages.push(KernelStage::Points);
    if entry.finish.is_some() {
        for (which, partial) in source.partials.iter().enumerate() {
            // Sharing costs a few microseconds: only for what takes longer.
            match (partial.elements < 1 << 14, stages.last_mut()) {
                (true, Some(KernelStage::Combine(_, end))) if *end == which => *end += 1,
                (true, _) => stages.push(KernelStage::Combine(which, which + 1)),
                (false, _) => stages.push(KernelStage::CombineShared(which)),
            }
        }
    }
    stages
}

impl MapKernel {
    /// The memory in which this run finds its packed operands, if that is kept.
    fn kept(&self, run: &PhaseRun) -> Option<Arc<KeptOperands>> {
        let operands = || self.source.packed.iter().filter_map(|n| run.arguments.get(*n)).map(|pointer| pointer.addr()).collect();
        self.keep.as_ref()?.at(operands(), self.source.prepared, run.context.parameters)
    }

    /// # Safety
    /// As for [`Executable::work`].
    unsafe fn prepare(&self, worker: usize, share: WorkerShare, run: &PhaseRun, pointers: &[*mut u8]) {
        let Some(prepare) = self.entry.prepare else { return };
        let host = self.host(&[], run.late, run.far);
        let steps = |from: i64, to: i64| {
            // SAFETY: pointers as promised by the caller; integers and masks as this source was printed for.
            unsafe { prepare(pointers.as_ptr().cast(), self.source.integers.as_ptr(), &host, from, to) };
        };
        match share {
            WorkerShare::Taken(items) => std::iter::from_fn(|| items.take(worker)).for_each(|piece| steps(piece.start, piece.end)),
            _ => steps(0, self.source.preparations),
        }
        stream::fence();
    }

    /// # Safety
    /// As for [`Executable::work`].
    unsafe fn points(&self, worker: usize, share: WorkerShare, run: &PhaseRun, pointers: &[*mut u8]) -> bool {
        let masks = dropout::keeps(&self.source.masks, run.context.seed, run.context.step, run.context.dropout);
        let host = self.host(&masks, run.late, run.far);
        let of = |worker: usize| {
            // SAFETY: within the buffer, which has a stride for each worker.
            unsafe { run.memory.own.add(worker * run.memory.stride) }
        };
        let mine = of(worker);
        if !self.rows.is_empty() {
            // SAFETY: as promised by the caller.
            unsafe { self.rows.check(worker, share, run.arguments) };
        }
        let points = |from: i64, to: i64| -> bool {
            if run.context.expired() {
                return false;
            }
            // SAFETY: pointers as promised by the caller; integers, masks and scratch as this source was printed for.
            unsafe { (self.entry.kernel)(pointers.as_ptr().cast(), self.source.integers.as_ptr(), &host, mine, from, to) };
            true
        };
        // SAFETY: that memory is this worker's, or the others do nothing.
        let reset = |worker: usize| unsafe { self.reset(of(worker)) };
        let complete = match share {
            WorkerShare::Taken(items) => {
                reset(worker);
                // Where partial results are added up, which worker does what must not depend on chance.
                let fixed = !self.source.partials.is_empty();
                let mut take = || if fixed { items.take_own(worker) } else { items.take(worker) };
                std::iter::from_fn(&mut take).all(|piece| points(piece.start, piece.end))
            }
            WorkerShare::All => {
                (0..run.context.pool.workers()).for_each(reset);
                points(0, self.source.points)
            }
            WorkerShare::Along { from, to } => {
                reset(worker);
                let (step, each) = self.touched.partition.map_or((1, 0), |(partition, each)| (partition.step, each));
                let range = WorkerShare::points(from, to, step, each);
                range.is_empty() || points(range.start, range.end)
            }
        };
        // Products stream by themselves.
        if self.streams || run.late {
            stream::fence();
        }
        complete
    }

    /// # Safety
    /// As for [`Executable::work`].
    unsafe fn combine(&self, which: usize, from: i64, to: i64, run: &PhaseRun, pointers: &[*mut u8]) {
        let Some(finish) = self.entry.finish else { return };
        // SAFETY: as for the kernel.
        unsafe {
            finish(
                pointers.as_ptr().cast(),
                self.source.integers.as_ptr(),
                run.memory.own,
                run.memory.stride as i64,
                run.context.pool.workers() as i64,
                which as i64,
                from,
                to,
            );
        }
    }

    fn stage(&self, stage: KernelStage) -> Phase {
        let touch = |place: PhaseMemory, written: bool, part: AccessedPart| Touch { place, written, part };
        let reads = || self.touched.touches.iter().filter(|t| !t.written);
        let targets = |which: std::ops::Range<usize>| which.filter_map(|n| self.source.partials[n].argument);
        match stage {
            KernelStage::Prepare => {
                let mut touches: Vec<Touch> = reads().map(|t| touch(t.place, false, AccessedPart::Whole)).collect();
                if !self.source.packed.is_empty() {
                    touches.retain(|t| matches!(t.place, PhaseMemory::Argument(n) if self.source.packed.contains(&n)));
                }
                touches.push(touch(PhaseMemory::Shared, true, AccessedPart::Whole));
                Phase { spread: Spread::Items { count: self.source.preparations, parts: i64::MAX }, touches }
            }
            KernelStage::Points => {
                let mut touches = self.touched.touches.clone();
                if self.entry.prepare.is_some() {
                    touches.push(touch(PhaseMemory::Shared, false, AccessedPart::Whole));
                }
                touches.push(touch(PhaseMemory::Own, true, AccessedPart::Own));
                // Parts small enough that fast workers help slow ones and deadlines are seen.
                Phase { spread: Spread::Items { count: self.source.points, parts: PARTS }, touches }
            }
            KernelStage::Combine(from, to) => {
                let mut touches: Vec<Touch> =
                    targets(from..to).map(|n| touch(PhaseMemory::Argument(n), true, AccessedPart::Whole)).collect();
                touches.push(touch(PhaseMemory::Own, false, AccessedPart::Whole));
                Phase { spread: Spread::Alone, touches }
            }
            KernelStage::CombineShared(which) => {
                let mut touches: Vec<Touch> =
                    targets(which..which + 1).map(|n| touch(PhaseMemory::Argument(n), true, AccessedPart::Whole)).collect();
                touches.push(touch(PhaseMemory::Own, false, AccessedPart::Whole));
                Phase { spread: Spread::Fixed, touches }
            }
        }
    }
}

impl Executable for MapKernel {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        // SAFETY: as promised by the caller.
        unsafe { run_alone(self, &self.phases, arguments, context) }
    }

    fn phases(&self) -> Option<Vec<Phase>> {
        Some(self.phases.clone())
    }

    fn partition(&self) -> Option<PartitionIndex> {
        self.touched.partition.map(|(partition, _)| partition)
    }

    fn keeps_own_memory(&self) -> bool {
        !self.source.partials.is_empty()
    }

    unsafe fn work(&self, phase: usize, worker: usize, share: WorkerShare, run: &PhaseRun) -> bool {
        let (kept, parameters) = (self.kept(run), run.context.parameters);
        let shared = kept.as_ref().map_or(run.memory.shared, |kept| kept.address());
        let pointers: Vec<*mut u8> = run.arguments.iter().copied().chain([shared]).collect();
        // SAFETY (all): as promised by the caller.
        unsafe {
            match self.stages[phase] {
                KernelStage::Prepare if kept.as_ref().is_some_and(|kept| kept.is_of(parameters)) => {}
                KernelStage::Prepare => self.prepare(worker, share, run, &pointers),
                KernelStage::Points => {
                    if let Some(kept) = kept {
                        kept.is_whole(parameters);
                    }
                    return self.points(worker, share, run, &pointers);
                }
                KernelStage::Combine(from, to) => {
                    (from..to).for_each(|which| self.combine(which, 0, self.source.partials[which].steps, run, &pointers));
                }
                KernelStage::CombineShared(which) => {
                    let (workers, steps) = (run.context.pool.workers(), self.source.partials[which].steps);
                    let (from, to) = match share {
                        WorkerShare::All => (0, workers),
                        _ => (worker, worker + 1),
                    };
                    let at = |worker: usize| steps * worker as i64 / workers as i64;
                    self.combine(which, at(from), at(to), run, &pointers);
                }
            }
        }
        true
    }

    fn is_shareable(&self) -> bool {
        self.keep.is_none() && self.rows.is_empty()
    }

    fn missing_row(&self) -> Option<KernelError> {
        self.rows.missing()
    }

    fn working(&self) -> Working {
        Working { own: self.source.scratch, shared: self.source.prepared }
    }

    fn on_chip(&self) -> OnChipMemory {
        OnChipMemory { allocated: self.source.scratch as u64, requested: self.source.requested as u64 }
    }

    fn as_c(&self) -> Option<CForm<'_>> {
        let divided = self.touched.partition.map_or((1, 0), |(partition, each)| (partition.step, each));
        Some(CForm::Generated(GeneratedC { source: &self.source, streams: self.streams, stages: &self.stages, divided }))
    }

    fn source(&self) -> Option<&str> {
        Some(&self.source.text)
    }

    fn library(&self) -> Option<&str> {
        self.source.library.as_deref()
    }
}
