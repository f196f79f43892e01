//! Checks and times configurations of kernels on a device, as the sweep asks.

use super::phase_times::PhaseTimes;
use super::scratch_operands::{ScratchBuffer, ScratchOperands};
use super::swept_kernel::{SweptKernel, rank_all};
use crate::pipeline::oracle::{RUN, Reference, ReferenceCache, SEED, tensors, with_small_sizes_for, within_jumps};
use crate::timings::{CommandPhase, during, enter};
use kernels::device::{CompileRequest, Device, DeviceMemory, Recording};
use kernels::error::Blame;
use kernels::pool::Pool;
use kernels::{CancelToken, Completion, Executable, KernelError, KernelSpec, RunContext};
use layouts::measure::space::{Bench, Check, Coming, Fault, KernelSpace, TimingResult};
use layouts::record::CacheState;
use ndarray::{ArrayD, IxDyn};
use sdfg::config::KernelConfig;
use sdfg::tolerance;
use sdfg::{Container, Dtype, Layout, Sdfg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Milliseconds: a first run that is this long hardly depends on cold caches and pages, so it counts as a sample.
const SETTLED_MS: f64 = 20.0;

/// Milliseconds of runs after which two samples of a configuration are enough: in a race, whose winner gets fresh samples, and for such
/// fresh samples.
const LONG_MS: [f64; 2] = [50.0, 500.0];

/// The fewest configurations that are compiled together, unless the time that is left is too short.
const LEAST_MADE: usize = 4;

/// The part of the remaining time that compiling a batch of configurations may take.
const TOGETHER: f64 = 0.2;

/// The part of a kernel's running time that its threads may have waited for cores. Beyond it the kernel is retimed, at most `AGAIN`
/// times.
const DISTURBED: f64 = 0.05;
const AGAIN: usize = 2;

/// The most untimed runs of a recording before it is timed.
const WARM_UPS: usize = 16;

/// Points (products of all dims) of a kernel that the interpreter runs in well under a second.
const INTERPRETED: u64 = 1 << 18;

/// Points of a kernel at a program's sizes: the product of all dims of its arguments.
fn points(spec: &KernelSpec, program: &Sdfg) -> u64 {
    let dims: BTreeSet<String> = spec.arguments().into_iter().flat_map(|a| a.dims).collect();
    let size = |dim: &String| program.size_of(dim).eval(&program.sizes).map_or(u64::MAX, |n| n.unsigned_abs());
    dims.iter().map(size).fold(1, u64::saturating_mul)
}

/// The effect of a failure on the sweep.
fn fault(error: KernelError) -> Fault {
    match error.blame() {
        Blame::Configuration => Fault::Configuration(error.to_string()),
        Blame::Crash => Fault::Crash(error.to_string()),
        Blame::Device => Fault::Device(error.to_string()),
    }
}

/// The key of a program at small sizes: blocked dims, dims that must be multiples, dims that keep their sizes, and a limit on the
/// others.
type Small = (BTreeSet<(String, u32)>, Vec<(String, i64)>, Vec<String>, i64);

/// A device on which the sweep measures.
pub struct DeviceBench<'a> {
    program: &'a Sdfg,
    /// The program at small sizes, by what they depend on.
    small: Mutex<BTreeMap<Small, Arc<Sdfg>>>,
    kernels: BTreeMap<String, &'a SweptKernel>,
    device: &'a dyn Device,
    pool: &'a Pool,
    oracle: ReferenceCache,
    operands: ScratchOperands,
    /// By kernel, the configurations whose compilation was requested.
    made: BTreeMap<String, BTreeSet<KernelConfig>>,
    /// How many configurations the last batch held.
    batch: usize,
    /// At least this many samples, and at least this long in total, for each configuration.
    pub samples: usize,
    pub sample_ms: f64,
    /// The state of the caches when a timed run begins.
    pub cache: CacheState,
    /// When the time of the sweep is up. Batches are compiled ahead only as far as they fit before it.
    pub until: Option<Instant>,
    /// How long workers waited for cores in the last runs; `None` where the system does not tell.
    queued: Option<Duration>,
    /// Which values the operands of timed runs have ([`RunContext::parameters`]).
    parameters: u64,
    /// Seconds of compilation for each configuration in recent batches.
    pace: Option<f64>,
    /// Once set, nothing is compiled ahead.
    pub interrupt: Option<&'a AtomicBool>,
    pub spent: PhaseTimes,
    /// Set when the bench is dropped: queued compilations in the background are then skipped.
    unwanted: Arc<AtomicBool>,
}

impl Drop for DeviceBench<'_> {
    fn drop(&mut self) {
        self.unwanted.store(true, Ordering::Relaxed);
    }
}

impl<'a> DeviceBench<'a> {
    pub fn new(program: &'a Sdfg, kernels: &'a [SweptKernel], device: &'a dyn Device, pool: &'a Pool) -> Self {
        let by_name = kernels.iter().map(|k| (k.spec.name.clone(), k)).collect();
        DeviceBench {
            program,
            small: Mutex::default(),
            kernels: by_name,
            device,
            pool,
            oracle: ReferenceCache::default(),
            operands: ScratchOperands::default(),
            made: BTreeMap::new(),
            batch: 0,
            samples: 3,
            sample_ms: 2.0,
            cache: CacheState::Warm,
            until: None,
            pace: None,
            queued: None,
            parameters: 0,
            interrupt: None,
            spent: PhaseTimes::default(),
            unwanted: Arc::default(),
        }
    }

    /// Compiles the first configuration of every kernel, on devices where compiling takes long. A device that compiles in the background
    /// only queues them, and the other seeds after them. Configurations that are `known` are skipped. Returns how long the first ones took,
    /// without compilation that kernels share.
    pub fn prepare(&mut self, kernels: &[&SweptKernel], known: &dyn Fn(&SweptKernel, &KernelConfig) -> bool) -> Duration {
        let _phase = enter(CommandPhase::Compile);
        let (began, products) = (Instant::now(), kernels::target::cpu::compile::spent_on_gemm_libraries());
        let kernels: Vec<&SweptKernel> = kernels.iter().copied().filter(|k| self.device.precompile_batch_size(&k.spec) > 0).collect();
        // Ranking the seeds takes about as long as generating their code, so it is done in parallel.
        rank_all(&kernels);
        let wanted = |numbers: &dyn Fn(&SweptKernel) -> Vec<u64>| {
            let new = |kernel: &SweptKernel, n: &u64| Some(kernel.config(*n)).filter(|config| !known(kernel, config));
            let all: Vec<(&SweptKernel, Vec<u64>)> = kernels.iter().map(|kernel| (*kernel, numbers(kernel))).collect();
            // Kernels take turns, as in the sweep.
            let most = all.iter().map(|(_, numbers)| numbers.len()).max().unwrap_or(0);
            let turns = (0..most).flat_map(|turn| {
                all.iter().filter_map(move |(k, numbers)| {
                    let n = numbers.get(turn)?;
                    Some((*k, new(k, n)?, k.mark(*n)))
                })
            });
            // Of configurations that are the same but for names one is measured, and the others borrow its time.
            let mut marks = BTreeSet::new();
            let turns = turns.filter(|(_, _, mark)| mark.is_empty() || marks.insert(mark.clone()));
            turns.map(|(kernel, config, _)| (kernel, config)).collect::<Vec<(&SweptKernel, KernelConfig)>>()
        };
        let first = wanted(&|kernel| kernel.seeds().into_iter().chain([0]).take(1).collect());
        let meanwhile = self.device.precompile_in_background(self.coming(&first), &self.unwanted);
        if !meanwhile {
            self.device.precompile(&self.coming(&first), CancelToken { time: None, interrupt: self.interrupt });
        }
        // While one core compiles a GEMM library, the others compile kernels.
        let shared =
            kernels::target::cpu::compile::spent_on_gemm_libraries().saturating_sub(products) / rayon::current_num_threads().max(1) as u32;
        let took = began.elapsed().saturating_sub(shared);
        let seeds = if meanwhile { wanted(&|kernel| kernel.seeds()) } else { vec![] };
        if meanwhile {
            self.device.precompile_in_background(self.coming(&seeds), &self.unwanted);
        }
        for (kernel, config) in first.into_iter().chain(seeds) {
            self.made.entry(kernel.spec.name.clone()).or_default().insert(config);
        }
        PhaseTimes::since(&mut self.spent.making, began);
        took
    }

    /// How many of `many` configurations are compiled together: those whose compilation fits into `TOGETHER` of the remaining time.
    fn affordable(&self, many: usize) -> usize {
        match (self.until, self.pace) {
            (Some(until), Some(pace)) => {
                let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
                many.min((TOGETHER * left / pace.max(f64::MIN_POSITIVE)) as usize).max(1)
            }
            _ => many,
        }
    }

    /// Requests to compile kernels under some configurations, at the timed sizes and at those of the check.
    fn coming(&self, kernels: &[(&SweptKernel, KernelConfig)]) -> Vec<CompileRequest> {
        let each = |(kernel, config): &(&SweptKernel, KernelConfig)| {
            let checked = kernel.spec.with_sizes(&self.small(Some(&kernel.spec), config).sizes).ok();
            CompileRequest { timed: kernel.spec.clone(), checked, config: config.clone() }
        };
        kernels.iter().map(each).collect()
    }

    fn context(&self, deadline: Option<Instant>) -> RunContext<'a> {
        RunContext { seed: RUN.seed, step: RUN.step, dropout: RUN.dropout, pool: self.pool, deadline, parameters: self.parameters }
    }

    fn kernel(&self, name: &str) -> Result<&'a SweptKernel, Fault> {
        self.kernels.get(name).copied().ok_or_else(|| Fault::Configuration(format!("there is no kernel `{name}`")))
    }

    /// The container of a relayout, by the name the sweep asks for.
    fn relayouted(&self, name: &str) -> Option<&'a Container> {
        name.strip_prefix("relayout:").and_then(|data| self.program.containers.get(data))
    }

    /// The program at the small sizes at which a configuration of a kernel, or of a relayout, is checked. Sizes that are constants in the
    /// kernel's code are kept, unless the interpreter would take too long.
    fn small(&self, spec: Option<&KernelSpec>, config: &KernelConfig) -> Arc<Sdfg> {
        let mut granules = spec.map(|spec| self.device.granules(spec)).unwrap_or_default();
        granules.extend(spec.and_then(|spec| kernels::split_blocked_dims::granules(spec, config).ok()).unwrap_or_default());
        let blocks = config.layouts.values().flat_map(|l| l.blocks().unwrap_or_default());
        let blocks: BTreeSet<(String, u32)> = blocks.map(|(dim, block)| (dim.to_string(), block)).collect();
        let with = |whole: &[String], most: i64| {
            let mut known = self.small.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (blocks.clone(), granules.clone(), whole.to_vec(), most);
            let made = || Arc::new(with_small_sizes_for(self.program, config.layouts.values(), &granules, (whole, most)));
            known.entry(key).or_insert_with(made).clone()
        };
        let plain = || with(&[], i64::MAX);
        let Some(spec) = spec.filter(|spec| !ReferenceCache::runs_all(spec)) else { return plain() };
        let whole = self.device.written(spec, config);
        // Smaller sizes of the other dims weaken the check, but the checked code is the code that is timed.
        let fit = [i64::MAX, 2, 1].into_iter().map(|most| with(&whole, most)).find(|small| points(spec, small) <= INTERPRETED);
        fit.unwrap_or_else(plain)
    }

    /// Runs the interpreter on a kernel at sizes that suit a configuration, unless it has done so; returns the program at these sizes.
    fn expect(&mut self, name: &str, config: &KernelConfig) -> Result<Arc<Sdfg>, Fault> {
        let kernel = self.kernel(name)?;
        let small = self.small(Some(&kernel.spec), config);
        if self.oracle.says(name, &small.sizes).is_none() {
            let began = Instant::now();
            self.oracle.run(&kernel.spec, &small)?;
            PhaseTimes::since(&mut self.spent.expecting, began);
        }
        Ok(small)
    }

    fn compiled(&self, name: &str, config: &KernelConfig) -> Result<(Arc<dyn Executable>, Vec<ScratchBuffer>), Fault> {
        if let Some(container) = self.relayouted(name) {
            let shape = self.program.shape_of(&container.name).map_err(|e| Fault::Configuration(e.to_string()))?;
            let (from, to) = ends(config)?;
            let executable = during(CommandPhase::Compile, || self.device.relayout(container, &shape, from, to)).map_err(fault)?;
            let room = |layout, written| Ok(ScratchBuffer { dtype: container.dtype, bytes: bytes(container, &shape, layout)?, written });
            return Ok((executable, vec![room(from, false)?, room(to, true)?]));
        }
        let spec = &self.kernel(name)?.spec;
        let mut rooms = Vec::new();
        for argument in spec.arguments() {
            let shape = spec.shape(&argument.data).map_err(fault)?;
            let container = &spec.containers[&argument.data];
            let natural = Layout::row_major(container);
            let bytes = bytes(container, &shape, config.layouts.get(&argument.data).unwrap_or(&natural))?;
            rooms.push(ScratchBuffer { dtype: container.dtype, bytes, written: argument.access == kernels::ArgumentAccess::Write });
        }
        Ok((during(CommandPhase::Compile, || self.device.compile(spec, config)).map_err(fault)?, rooms))
    }
}

/// A recording of several runs of a kernel, and the number of runs.
type Repeated = (Box<dyn Recording>, usize);

impl DeviceBench<'_> {
    /// A recording of `repeats` runs of a kernel and their number; `None` on devices that record nothing.
    fn recorded(&self, executable: &dyn Executable, pointers: &[*mut u8], repeats: usize) -> Result<Option<Repeated>, KernelError> {
        let context = self.context(None);
        let recording = self.device.record(&mut || {
            // SAFETY: one piece of memory for each argument, as large as its container in its layout.
            (0..repeats).try_for_each(|_| unsafe { executable.run(pointers, &context) }.map(|_| ()))
        })?;
        Ok(recording.map(|r| (r, repeats)))
    }
}

fn ends(config: &KernelConfig) -> Result<(&Layout, &Layout), Fault> {
    match (config.layouts.get("from"), config.layouts.get("to")) {
        (Some(from), Some(to)) => Ok((from, to)),
        _ => Err(Fault::Configuration("a relayout needs the layouts `from` and `to`".into())),
    }
}

fn bytes(container: &Container, shape: &[usize], layout: &Layout) -> Result<usize, Fault> {
    let elements = layout
        .extent(&container.dims, shape)
        .ok_or_else(|| Fault::Configuration(format!("the layout {layout} does not fit `{}`", container.name)))?;
    Ok(container.dtype.bytes(elements as u64) as usize)
}

impl Bench for DeviceBench<'_> {
    fn ahead(&mut self, name: &str, config: &KernelConfig, coming: &Coming) {
        let Some(kernel) = self.kernels.get(name).copied() else { return };
        let most = self.device.precompile_batch_size(&kernel.spec);
        if most == 0 {
            return;
        }
        let _phase = enter(CommandPhase::Compile);
        let began = Instant::now();
        let made = self.made.get(name);
        // A device that compiles in the foreground needs no new batch while the configuration is in the last one.
        let meanwhile = self.device.precompile_in_background(vec![], &self.unwanted);
        if !meanwhile && made.is_some_and(|made| made.contains(config)) {
            return;
        }
        let is_new =
            |kernel: &SweptKernel, config: &KernelConfig| self.made.get(&kernel.spec.name).is_none_or(|made| !made.contains(config));
        let wanted: Vec<(&SweptKernel, KernelConfig)> = if meanwhile {
            let soon = [config.clone()].into_iter().chain((coming.same_kernel)(most - 1)).map(|config| (kernel, config));
            soon.filter(|(kernel, config)| is_new(kernel, config)).collect()
        } else {
            // Kernels take turns, and so do they in a batch: more configurations of the same kernel would be compiled in vain if the time
            // is up before its next turn, or if its next find leads elsewhere. Twice the last batch: a small budget ends soon.
            let many = self.affordable((2 * self.batch).clamp(LEAST_MADE.min(most), most));
            let others = (coming.in_turns)(many - 1).into_iter().filter_map(|(name, config)| Some((*self.kernels.get(&name)?, config)));
            let others: Vec<(&SweptKernel, KernelConfig)> = others.filter(|(kernel, config)| is_new(kernel, config)).collect();
            // A kernel whose turns follow each other gets a batch of its own.
            let own = if others.is_empty() { (coming.same_kernel)(many - 1) } else { vec![] };
            let own = own.into_iter().map(|config| (kernel, config)).filter(|(kernel, config)| is_new(kernel, config));
            [(kernel, config.clone())].into_iter().chain(own).chain(others).collect()
        };
        for (kernel, config) in &wanted {
            self.made.entry(kernel.spec.name.clone()).or_default().insert(config.clone());
        }
        if meanwhile {
            self.device.precompile_in_background(self.coming(&wanted), &self.unwanted);
        } else {
            self.batch = wanted.len();
            self.device.precompile(&self.coming(&wanted), CancelToken { time: self.until, interrupt: self.interrupt });
            let each = began.elapsed().as_secs_f64() / wanted.len().max(1) as f64;
            // An exponential average with weight 1/2: kernels differ, and so does the load of the machine.
            self.pace = Some(self.pace.map_or(each, |pace| (pace + each) / 2.0));
        }
        PhaseTimes::since(&mut self.spent.making, began);
    }

    fn check(&mut self, name: &str, config: &KernelConfig) -> Result<Check, Fault> {
        let (began, waited) = (Instant::now(), self.device.compile_wait());
        let checked = during(CommandPhase::Check, || self.checked(name, config));
        let making = self.device.compile_wait().saturating_sub(waited);
        self.spent.making += making.as_secs_f64();
        PhaseTimes::without(&mut self.spent.checking, began, making);
        checked
    }

    fn time(&mut self, name: &str, config: &KernelConfig, give_up: Duration) -> Result<TimingResult, Fault> {
        self.spent.measured += 1;
        let (began, waited) = (Instant::now(), self.device.compile_wait());
        let timed = during(CommandPhase::Measure, || self.undisturbed(name, config, give_up));
        let making = self.device.compile_wait().saturating_sub(waited);
        self.spent.making += making.as_secs_f64();
        PhaseTimes::without(&mut self.spent.timing, began, making);
        timed
    }
}

impl DeviceBench<'_> {
    fn checked(&mut self, name: &str, config: &KernelConfig) -> Result<Check, Fault> {
        if let Some(container) = self.relayouted(name) {
            let small = self.small(None, config);
            let shape = small.shape_of(&container.name).map_err(|e| Fault::Configuration(e.to_string()))?;
            let (from, to) = ends(config)?;
            let values = tensors::values(&small, container, shape.iter().product(), SEED, |v| v);
            let mut values = values.map_err(|e| Fault::Configuration(e.to_string()))?;
            values.iter_mut().for_each(|v| *v = container.dtype.rounded(*v));
            let want = ArrayD::from_shape_vec(IxDyn(&shape), values).map_err(|e| Fault::Configuration(e.to_string()))?;
            let mut input = self.device.memory(bytes(container, &shape, from)?).map_err(fault)?;
            let mut output = self.device.memory(bytes(container, &shape, to)?).map_err(fault)?;
            input.pack(container, from, &want).map_err(fault)?;
            let executable = self.device.relayout(container, &shape, from, to).map_err(fault)?;
            // SAFETY: both buffers hold the container in their layout.
            unsafe { executable.run(&[input.address(), output.address()], &self.context(None)) }.map_err(fault)?;
            let got = output.unpack(0, container, to, &shape).map_err(fault)?;
            return Ok(Check { ratio: if got == want { 0.0 } else { f64::INFINITY } });
        }
        let small = self.expect(name, config)?;
        let context = self.context(None);
        let Some(Reference { spec, inputs, outputs, tolerances, scale }) = self.oracle.says(name, &small.sizes) else {
            return Err(Fault::Configuration(format!("there is no kernel `{name}`")));
        };
        // Tiles shrink with the sizes, so that the check also covers several tiles.
        let scaled = self.kernels.get(name).map(|kernel| self.device.scaled(config, &kernel.spec, spec));
        let config = scaled.as_ref().unwrap_or(config);
        let executable = during(CommandPhase::Compile, || self.device.compile(spec, config)).map_err(fault)?;
        let mut memories = Vec::new();
        let arguments = spec.arguments();
        for argument in &arguments {
            let container = &spec.containers[&argument.data];
            let layout = config.layouts.get(&argument.data).cloned().unwrap_or_else(|| Layout::row_major(container));
            let shape = spec.shape(&argument.data).map_err(fault)?;
            let mut memory = self.device.memory(bytes(container, &shape, &layout)?).map_err(fault)?;
            if argument.access == kernels::ArgumentAccess::Read || spec.unit.writes_part(&small, &argument.data) {
                memory.pack(container, &layout, &inputs[&argument.data]).map_err(fault)?;
            } else {
                // All bits set is NaN: an element that is not written is found.
                memory.fill(&[0xff]).map_err(fault)?;
            }
            memories.push((memory, layout));
        }
        let pointers: Vec<*mut u8> = memories.iter_mut().map(|(m, _)| m.address()).collect();
        // SAFETY: one piece of memory for each argument, as large as its container in its layout.
        unsafe { executable.run(&pointers, &context) }.map_err(fault)?;
        let mut ratio = 0.0f64;
        for (argument, (memory, layout)) in arguments.iter().zip(&memories) {
            if argument.access == kernels::ArgumentAccess::Write {
                let got = memory
                    .unpack(0, &spec.containers[&argument.data], layout, &spec.shape(&argument.data).map_err(fault)?)
                    .map_err(fault)?;
                let missing = || Fault::Configuration(format!("`{name}`: the oracle does not know `{}`", argument.data));
                let (want, tolerance) =
                    (outputs.get(&argument.data).ok_or_else(missing)?, tolerances.get(&argument.data).ok_or_else(missing)?);
                let found = tolerance::compare(&got, want, *scale, tolerance).ratio;
                // A bit is one side of a threshold, so it jumps where the value is within rounding of the threshold.
                let bits = argument.dtype == Dtype::Bit;
                let found = if bits { within_jumps(&spec.unit, tolerance, &got, want, found) } else { found };
                ratio = if found.is_nan() { f64::INFINITY } else { ratio.max(found) };
            }
        }
        Ok(Check { ratio })
    }

    /// Times a configuration, and retimes it where its threads waited for cores that other processes used. Returns the least disturbed
    /// timing.
    fn undisturbed(&mut self, name: &str, config: &KernelConfig, give_up: Duration) -> Result<TimingResult, Fault> {
        if !self.device.is_host() {
            return self.timed(name, config, give_up);
        }
        let mut least: Option<(f64, TimingResult)> = None;
        for _ in 0..=AGAIN {
            let running = self.spent.running;
            let timing = self.timed(name, config, give_up)?;
            let took = (self.spent.running - running).max(f64::MIN_POSITIVE);
            let waited = self.queued.map_or(0.0, |queued| queued.as_secs_f64() / took);
            if waited <= DISTURBED {
                return Ok(timing);
            }
            self.spent.disturbed += u64::from(least.is_none());
            if least.as_ref().is_none_or(|(best, _)| waited < *best) {
                least = Some((waited, timing));
            }
        }
        self.spent.unsettled += 1;
        least.map(|(_, timing)| timing).ok_or_else(|| Fault::Configuration("nothing was timed".into()))
    }

    fn timed(&mut self, name: &str, config: &KernelConfig, give_up: Duration) -> Result<TimingResult, Fault> {
        let (began, waited) = (Instant::now(), self.device.compile_wait());
        let (executable, rooms) = self.compiled(name, config)?;
        // Operands have changed places; what is packed of weights is packed before the first sample.
        self.parameters = kernels::constant::new_parameters();
        let operands = self.operands.take(&rooms, self.device, SEED).map_err(|e| Fault::Device(e.to_string()))?;
        PhaseTimes::without(&mut self.spent.loading, began, self.device.compile_wait().saturating_sub(waited));
        let pointers: Vec<*mut u8> = operands.iter().map(|n| self.operands.address(*n)).collect();
        // A device with processors of its own needs no workers, and this thread may run on any free core.
        let _held = self.device.is_host().then(|| self.pool.hold());
        let before = self.pool.queued();
        let timing = self.samples(name, &*executable, (&operands, &rooms), &pointers, give_up);
        self.queued = self.pool.queued().zip(before).map(|(after, before)| after.saturating_sub(before));
        timing
    }

    /// Times runs of a kernel until they suffice or the race is lost.
    fn samples(
        &mut self,
        name: &str,
        executable: &dyn Executable,
        (operands, rooms): (&[usize], &[ScratchBuffer]),
        pointers: &[*mut u8],
        give_up: Duration,
    ) -> Result<TimingResult, Fault> {
        let mut samples = Vec::new();
        // The first run warms caches and pages, so it is a sample only if it is long. Two runs beyond the limit in a row, or one long
        // run, end the race.
        let limit = give_up.as_secs_f64() * 1e3;
        let long = LONG_MS[usize::from(give_up == Duration::MAX)];
        // The limit and half as much again, because one slow run on a shared machine proves nothing.
        let patience = give_up.saturating_add((give_up / 2).min(Duration::from_secs_f64(SETTLED_MS / 1e3)));
        let mut first = None;
        let mut total = 0.0;
        // Where runs are recorded, a sample is several of them, so that the launch is not timed. A cold sample is a single run: its
        // launch overlaps with emptying the caches.
        let mut recorded: Option<Repeated> = None;
        // In a step, a relayout reads data that another core wrote and writes to memory that has left the caches. With both in the caches
        // it takes a third of that time, and selections would overuse relayouts.
        let relayout = self.relayouted(name).is_some();
        loop {
            let parts: Vec<(&DeviceMemory, usize)> =
                operands.iter().zip(rooms).filter_map(|(n, room)| Some((self.operands.memory(*n)?, room.bytes))).collect();
            let emptied = (self.cache == CacheState::Cold || relayout) && self.device.flush(&parts).map_err(fault)?;
            if self.cache == CacheState::Cold && !emptied {
                return Err(Fault::Device("its caches cannot be emptied, so nothing is timed cold there; leave out --cold".into()));
            }
            let repeats = recorded.as_ref().map_or(1, |(_, repeats)| *repeats);
            let context = self.context(Instant::now().checked_add(patience));
            let mut completion = Completion::Done;
            let mut once = || {
                // SAFETY: one piece of memory for each argument, as large as its container in its layout.
                completion = unsafe { executable.run(pointers, &context) }?;
                Ok(())
            };
            let ms = match &recorded {
                Some((recorded, _)) => self.device.time(&mut || recorded.run(&RUN)),
                None => self.device.time(&mut once),
            };
            let ms = ms.map_err(fault)? / repeats as f64;
            // The first run may include loading a library, so the faster of two decides how many repeats are recorded.
            let again = match first {
                None if self.device.records() && !emptied => self.device.time(&mut once).map_err(fault)?.min(ms),
                _ => ms,
            };
            if completion == Completion::DeadlineExceeded {
                return Ok(TimingResult::ExceededAfter(ms));
            }
            total += ms * repeats as f64;
            self.spent.running += ms * repeats as f64 / 1e3;
            if first.is_some() || (ms >= SETTLED_MS && !self.device.records()) {
                samples.push(ms);
            }
            if first.is_none() && !emptied {
                let began = Instant::now();
                recorded = self.recorded(executable, pointers, self.device.repeats(again)).map_err(fault)?;
                PhaseTimes::since(&mut self.spent.recording, began);
                if let Some((recorded, _)) = &recorded {
                    let mut warm = 0.0;
                    for _ in 0..WARM_UPS {
                        if warm < self.device.warm_up_ms() {
                            warm += self.device.time(&mut || recorded.run(&RUN)).map_err(fault)?;
                        }
                    }
                    self.spent.running += warm / 1e3;
                }
            }
            let warm_up = *first.get_or_insert(ms);
            let fastest = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let slow = if samples.len() == 1 { warm_up.min(fastest) } else { fastest };
            if !samples.is_empty() && slow > limit {
                return Ok(TimingResult::ExceededAfter(slow));
            }
            let enough = samples.len() >= self.samples && total >= self.sample_ms;
            if enough || samples.len() >= 200 || (samples.len() >= 2 && total > long) {
                return Ok(TimingResult::Samples(samples));
            }
        }
    }
}
