//! Answers the sweep's questions on a device: is a configuration right, and how long does it take?

use super::phase_times::PhaseTimes;
use super::scratch_operands::{ScratchBuffer, ScratchOperands};
use super::swept_kernel::SweptKernel;
use crate::pipeline::oracle::{RUN, Reference, ReferenceCache, SEED, tensors, with_small_sizes_for, within_jumps};
use kernels::device::{CompileRequest, Device, DeviceMemory, Recording};
use kernels::error::Blame;
use kernels::pool::Pool;
use kernels::{CancelToken, Completion, Executable, KernelError, KernelSpec, RunContext};
use layouts::measure::space::{Bench, Check, Fault, KernelSpace, Timing};
use layouts::record::Cache;
use ndarray::{ArrayD, IxDyn};
use rayon::prelude::*;
use sdfg::config::KernelConfig;
use sdfg::tolerance;
use sdfg::{Container, Dtype, Layout, Sdfg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A run that takes so many milliseconds leaves nothing to warm up: the first one counts.
const SETTLED_MS: f64 = 20.0;

/// Milliseconds of runs after which two samples of a configuration are enough: in a race, as what is chosen gets fresh ones;
/// and of such fresh ones.
const LONG_MS: [f64; 2] = [50.0, 500.0];

/// Configurations of a kernel whose code is made together at first.
const LEAST_MADE: usize = 4;

/// Part of the time that is left which may go by while the code of configurations is made together.
const TOGETHER: f64 = 0.2;

/// Part of the time of a kernel's runs that its threads may have waited for cores; beyond that the runs are timed again, so many times.
const DISTURBED: f64 = 0.05;
const AGAIN: usize = 2;

/// Untimed runs of what was recorded, at most.
const WARM_UPS: usize = 16;

/// Points of a kernel that the interpreter gets through in no time.
const INTERPRETED: u64 = 1 << 18;

/// Points of a kernel in a program of other sizes: all dims of what it reads and writes, whatever it does with them.
fn points(spec: &KernelSpec, program: &Sdfg) -> u64 {
    let dims: BTreeSet<String> = spec.arguments().into_iter().flat_map(|a| a.dims).collect();
    let size = |dim: &String| program.size_of(dim).eval(&program.sizes).map_or(u64::MAX, |n| n.unsigned_abs());
    dims.iter().map(size).fold(1, u64::saturating_mul)
}

/// What a failure means for the sweep.
fn fault(error: KernelError) -> Fault {
    match error.blame() {
        Blame::Configuration => Fault::Configuration(error.to_string()),
        Blame::Crash => Fault::Crash(error.to_string()),
        Blame::Device => Fault::Device(error.to_string()),
    }
}

/// What the small sizes of a program depend on: blocks of dims, dims in multiples, dims that keep their sizes, and the most of others.
type Small = (BTreeSet<(String, u32)>, Vec<(String, i64)>, Vec<String>, i64);

/// A device as the sweep asks it.
pub struct DeviceBench<'a> {
    program: &'a Sdfg,
    /// The program at small sizes, by what they depend on.
    small: Mutex<BTreeMap<Small, Arc<Sdfg>>>,
    kernels: BTreeMap<String, &'a SweptKernel>,
    device: &'a dyn Device,
    pool: &'a Pool,
    oracle: ReferenceCache,
    operands: ScratchOperands,
    /// Configurations whose code was made together last, or that is made meanwhile, by kernel.
    made: BTreeMap<String, BTreeSet<KernelConfig>>,
    /// At least this many samples, and at least this long in total, for each configuration.
    pub samples: usize,
    pub sample_ms: f64,
    /// What every timed run finds in the caches.
    pub cache: Cache,
    /// When its time is up: what would take longer is not made ahead.
    pub until: Option<Instant>,
    /// How long workers had waited for cores when the last runs began.
    queued: Option<Duration>,
    /// Seconds that a configuration took lately whose code was made together with that of others.
    pace: Option<f64>,
    /// Once set, no code is made ahead any more.
    pub interrupt: Option<&'a AtomicBool>,
    pub spent: PhaseTimes,
    /// Whether code that is made meanwhile has come too late.
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
            samples: 3,
            sample_ms: 2.0,
            cache: Cache::Warm,
            until: None,
            pace: None,
            queued: None,
            interrupt: None,
            spent: PhaseTimes::default(),
            unwanted: Arc::default(),
        }
    }

    /// Makes the code of what a sweep tries first of every kernel, on devices where that takes long: of its first configuration
    /// whatever the time, and until then of its seeds, or of both meanwhile. What is `known` needs none. Returns what the first ones took,
    /// but for what kernels share.
    pub fn prepare(
        &mut self,
        kernels: &[&SweptKernel],
        known: &dyn Fn(&SweptKernel, &KernelConfig) -> bool,
        time: Option<Instant>,
    ) -> Duration {
        let until = CancelToken { time, interrupt: self.interrupt };
        let (began, products) = (Instant::now(), kernels::target::cpu::compile::spent_on_gemm_libraries());
        let kernels: Vec<&SweptKernel> = kernels.iter().copied().filter(|k| self.device.precompile_batch_size(&k.spec) > 0).collect();
        // What each begins with takes as long to find as its code to write.
        kernels.par_iter().for_each(|kernel| drop(kernel.seeds()));
        let wanted = |numbers: &dyn Fn(&SweptKernel) -> Vec<u64>| {
            let new = |kernel: &SweptKernel, n: &u64| Some(kernel.config(*n)).filter(|config| !known(kernel, config));
            let all: Vec<(&SweptKernel, Vec<u64>)> = kernels.iter().map(|kernel| (*kernel, numbers(kernel))).collect();
            // Kernels in turns, as they are swept.
            let most = all.iter().map(|(_, numbers)| numbers.len()).max().unwrap_or(0);
            let turns = (0..most).flat_map(|turn| all.iter().filter_map(move |(k, numbers)| Some((*k, new(k, numbers.get(turn)?)?))));
            turns.collect::<Vec<(&SweptKernel, KernelConfig)>>()
        };
        let first = wanted(&|kernel| kernel.seeds().into_iter().chain([0]).take(1).collect());
        let meanwhile = self.device.precompile_in_background(self.coming(&first), &self.unwanted);
        if !meanwhile {
            self.device.precompile(&self.coming(&first), CancelToken { time: None, ..until });
        }
        // While one core makes a library of products, the others make kernels.
        let shared =
            kernels::target::cpu::compile::spent_on_gemm_libraries().saturating_sub(products) / rayon::current_num_threads().max(1) as u32;
        let took = began.elapsed().saturating_sub(shared);
        let seeds = wanted(&|kernel| kernel.seeds());
        if !self.device.precompile_in_background(self.coming(&seeds), &self.unwanted) {
            self.device.precompile(&self.coming(&seeds), until);
        }
        let in_time = meanwhile || until.goes_on();
        for (kernel, config) in first.into_iter().chain(seeds.into_iter().filter(|_| in_time)) {
            self.made.entry(kernel.spec.name.clone()).or_default().insert(config);
        }
        PhaseTimes::since(&mut self.spent.making, began);
        took
    }

    /// How many configurations may be made together, for not more than a part of what is left to be spent on code alone.
    fn affordable(&self, many: usize) -> usize {
        match (self.until, self.pace) {
            (Some(until), Some(pace)) => {
                let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
                many.min((TOGETHER * left / pace.max(f64::MIN_POSITIVE)) as usize).max(1)
            }
            _ => many,
        }
    }

    /// Kernels under some configurations, with the sizes at which they are checked.
    fn coming(&self, kernels: &[(&SweptKernel, KernelConfig)]) -> Vec<CompileRequest> {
        let each = |(kernel, config): &(&SweptKernel, KernelConfig)| {
            let checked = kernel.spec.with_sizes(&self.small(Some(&kernel.spec), config).sizes).ok();
            CompileRequest { timed: kernel.spec.clone(), checked, config: config.clone() }
        };
        kernels.iter().map(each).collect()
    }

    fn context(&self, deadline: Option<Instant>) -> RunContext<'a> {
        RunContext { seed: RUN.seed, step: RUN.step, dropout: RUN.dropout, pool: self.pool, deadline }
    }

    fn kernel(&self, name: &str) -> Result<&'a SweptKernel, Fault> {
        self.kernels.get(name).copied().ok_or_else(|| Fault::Configuration(format!("there is no kernel `{name}`")))
    }

    /// The container of a relayout, by the name the sweep asks for.
    fn relayouted(&self, name: &str) -> Option<&'a Container> {
        name.strip_prefix("relayout:").and_then(|data| self.program.containers.get(data))
    }

    /// The program at small sizes, at which a configuration of a kernel, or of a relayout, is checked. Sizes that the kernel's code has
    /// in it stay what they are, unless that is too much for the interpreter.
    fn small(&self, spec: Option<&KernelSpec>, config: &KernelConfig) -> Arc<Sdfg> {
        let granules = spec.map(|spec| self.device.granules(spec)).unwrap_or_default();
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
        // The less there is of other dims, the less they tell, but the code is that which is timed.
        let fit = [i64::MAX, 2, 1].into_iter().map(|most| with(&whole, most)).find(|small| points(spec, small) <= INTERPRETED);
        fit.unwrap_or_else(plain)
    }

    /// Has the oracle run a kernel at sizes that suit a configuration, if it has not; the program at these.
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
            let executable = self.device.relayout(container, &shape, from, to).map_err(fault)?;
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
            rooms.push(ScratchBuffer { dtype: container.dtype, bytes, written: argument.access == kernels::Access::Write });
        }
        Ok((self.device.compile(spec, config).map_err(fault)?, rooms))
    }
}

/// Several runs of a kernel, recorded as one, and how many they are.
type Repeated = (Box<dyn Recording>, usize);

impl DeviceBench<'_> {
    /// Runs of a kernel as the device has recorded them, and how many they are; `None` where the device records nothing.
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
    fn ahead(&mut self, name: &str, config: &KernelConfig, coming: &dyn Fn(usize) -> Vec<KernelConfig>) {
        let Some(kernel) = self.kernels.get(name).copied() else { return };
        let most = self.device.precompile_batch_size(&kernel.spec);
        if most == 0 {
            return;
        }
        let began = Instant::now();
        let made = self.made.get(name);
        // Where code is made at once, what is there already needs no look at what comes.
        let meanwhile = self.device.precompile_in_background(vec![], &self.unwanted);
        if !meanwhile && made.is_some_and(|made| made.contains(config)) {
            return;
        }
        let soon = || [config.clone()].into_iter().chain(coming(most - 1)).map(|config| (kernel, config));
        if meanwhile {
            let new: Vec<(&SweptKernel, KernelConfig)> = soon().filter(|(_, c)| made.is_none_or(|made| !made.contains(c))).collect();
            self.device.precompile_in_background(self.coming(&new), &self.unwanted);
            self.made.entry(name.to_string()).or_default().extend(new.into_iter().map(|(_, config)| config));
        } else {
            // Twice as many as the last time: a small budget ends soon.
            let many = (2 * made.map_or(0, BTreeSet::len)).clamp(LEAST_MADE.min(most), most);
            let wanted: Vec<(&SweptKernel, KernelConfig)> = soon().take(self.affordable(many)).collect();
            self.made.insert(name.to_string(), wanted.iter().map(|(_, config)| config.clone()).collect());
            self.device.precompile(&self.coming(&wanted), CancelToken { time: self.until, interrupt: self.interrupt });
            let each = began.elapsed().as_secs_f64() / wanted.len().max(1) as f64;
            // Half of it is what the last ones took: kernels differ, and so does what else the machine does.
            self.pace = Some(self.pace.map_or(each, |pace| (pace + each) / 2.0));
        }
        PhaseTimes::since(&mut self.spent.making, began);
    }

    fn check(&mut self, name: &str, config: &KernelConfig) -> Result<Check, Fault> {
        let (began, waited) = (Instant::now(), self.device.compile_wait());
        let checked = self.checked(name, config);
        let making = self.device.compile_wait().saturating_sub(waited);
        self.spent.making += making.as_secs_f64();
        PhaseTimes::without(&mut self.spent.checking, began, making);
        checked
    }

    fn time(&mut self, name: &str, config: &KernelConfig, give_up: Duration) -> Result<Timing, Fault> {
        let (began, waited) = (Instant::now(), self.device.compile_wait());
        let timed = self.undisturbed(name, config, give_up);
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
        // Tiles shrink with the sizes, so that there are several of them here as well.
        let scaled = self.kernels.get(name).map(|kernel| self.device.scaled(config, &kernel.spec, spec));
        let config = scaled.as_ref().unwrap_or(config);
        let executable = self.device.compile(spec, config).map_err(fault)?;
        let mut memories = Vec::new();
        let arguments = spec.arguments();
        for argument in &arguments {
            let container = &spec.containers[&argument.data];
            let layout = config.layouts.get(&argument.data).cloned().unwrap_or_else(|| Layout::row_major(container));
            let shape = spec.shape(&argument.data).map_err(fault)?;
            let mut memory = self.device.memory(bytes(container, &shape, &layout)?).map_err(fault)?;
            if argument.access == kernels::Access::Read || spec.unit.writes_part(&small, &argument.data) {
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
            if argument.access == kernels::Access::Write {
                let got = memory
                    .unpack(0, &spec.containers[&argument.data], layout, &spec.shape(&argument.data).map_err(fault)?)
                    .map_err(fault)?;
                let missing = || Fault::Configuration(format!("`{name}`: the oracle does not know `{}`", argument.data));
                let (want, tolerance) =
                    (outputs.get(&argument.data).ok_or_else(missing)?, tolerances.get(&argument.data).ok_or_else(missing)?);
                let found = tolerance::compare(&got, want, *scale, tolerance).ratio;
                // A bit tells on which side of a threshold a value is, and jumps where that is within rounding.
                let bits = argument.dtype == Dtype::Bit;
                let found = if bits { within_jumps(&spec.unit, tolerance, &got, want, found) } else { found };
                ratio = if found.is_nan() { f64::INFINITY } else { ratio.max(found) };
            }
        }
        Ok(Check { ratio })
    }

    /// Times a configuration, again where threads waited for cores on which others ran; of several times the one that was disturbed
    /// least.
    fn undisturbed(&mut self, name: &str, config: &KernelConfig, give_up: Duration) -> Result<Timing, Fault> {
        if !self.device.is_host() {
            return self.timed(name, config, give_up);
        }
        let mut least: Option<(f64, Timing)> = None;
        for _ in 0..=AGAIN {
            let running = self.spent.running;
            let timing = self.timed(name, config, give_up)?;
            let took = (self.spent.running - running).max(f64::MIN_POSITIVE);
            let waited =
                self.pool.queued().zip(self.queued).map_or(0.0, |(after, before)| after.saturating_sub(before).as_secs_f64() / took);
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

    fn timed(&mut self, name: &str, config: &KernelConfig, give_up: Duration) -> Result<Timing, Fault> {
        let (began, waited) = (Instant::now(), self.device.compile_wait());
        let (executable, rooms) = self.compiled(name, config)?;
        let operands = self.operands.take(&rooms, self.device, SEED).map_err(|e| Fault::Device(e.to_string()))?;
        PhaseTimes::without(&mut self.spent.loading, began, self.device.compile_wait().saturating_sub(waited));
        let pointers: Vec<*mut u8> = operands.iter().map(|n| self.operands.address(*n)).collect();
        // A device of its own needs no workers, and this thread any core that is free.
        let (mut samples, _held) = (Vec::new(), self.device.is_host().then(|| self.pool.hold()));
        self.queued = self.pool.queued();
        // The first run warms caches and pages: it is no sample unless it is long, but two runs beyond the limit in a row end the
        // race, or a long one.
        let limit = give_up.as_secs_f64() * 1e3;
        let long = LONG_MS[usize::from(give_up == Duration::MAX)];
        // Half as much again: one slow run on a shared machine proves nothing.
        let patience = give_up.saturating_add((give_up / 2).min(Duration::from_secs_f64(SETTLED_MS / 1e3)));
        let mut first = None;
        let mut total = 0.0;
        // Where runs are recorded, a sample is several of them, so that putting them under way is not what is timed. A cold one is a
        // single run: while caches are emptied, it waits on the device already.
        let mut recorded: Option<Repeated> = None;
        // In a step, a relayout reads what others wrote elsewhere and writes what was long forgotten: with both in the caches it takes
        // a third of that time, and choices would be full of relayouts.
        let relayout = self.relayouted(name).is_some();
        loop {
            let parts: Vec<(&DeviceMemory, usize)> =
                operands.iter().zip(&rooms).filter_map(|(n, room)| Some((self.operands.memory(*n)?, room.bytes))).collect();
            let emptied = (self.cache == Cache::Cold || relayout) && self.device.flush(&parts).map_err(fault)?;
            if self.cache == Cache::Cold && !emptied {
                return Err(Fault::Device("its caches cannot be emptied, so nothing is timed cold there; leave out --cold".into()));
            }
            let repeats = recorded.as_ref().map_or(1, |(_, repeats)| *repeats);
            let context = self.context(Instant::now().checked_add(patience));
            let mut completion = Completion::Done;
            let mut once = || {
                // SAFETY: one piece of memory for each argument, as large as its container in its layout.
                completion = unsafe { executable.run(&pointers, &context) }?;
                Ok(())
            };
            let ms = match &recorded {
                Some((recorded, _)) => self.device.time(&mut || recorded.run(&RUN)),
                None => self.device.time(&mut once),
            };
            let ms = ms.map_err(fault)? / repeats as f64;
            // What a library loads at its first use is no part of how long a run takes.
            let again = match first {
                None if self.device.records() && !emptied => self.device.time(&mut once).map_err(fault)?.min(ms),
                _ => ms,
            };
            if completion == Completion::DeadlineExceeded {
                return Ok(Timing::ExceededAfter(ms));
            }
            total += ms * repeats as f64;
            self.spent.running += ms * repeats as f64 / 1e3;
            if first.is_some() || (ms >= SETTLED_MS && !self.device.records()) {
                samples.push(ms);
            }
            if first.is_none() && !emptied {
                let began = Instant::now();
                recorded = self.recorded(&*executable, &pointers, self.device.repeats(again)).map_err(fault)?;
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
                return Ok(Timing::ExceededAfter(slow));
            }
            let enough = samples.len() >= self.samples && total >= self.sample_ms;
            if enough || samples.len() >= 200 || (samples.len() >= 2 && total > long) {
                return Ok(Timing::Samples(samples));
            }
        }
    }
}
