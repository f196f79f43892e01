//! The sweep over every program of a recipe, and the choice among all programs.

use super::budget_ledger::BudgetLedger;
use super::budget_policy::BudgetPolicy;
use super::device_bench::DeviceBench;
use super::dim_order::{boundary, follows};
use super::measurement_budget::MeasurementBudget;
use super::memory_limit::MemoryLimit;
use super::phase_times::PhaseTimes;
use super::swept_kernel::{SweptKernel, relayout_spaces, swept_kernels};
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::value_fingerprint;
use crate::pipeline::run::candidate::BESIDE;
use crate::pipeline::run::{Candidate, Once};
use crate::timings::{CommandPhase, during, enter};
use kernels::device::Device;
use kernels::pool::Pool;
use layouts::candidates::Shard;
use layouts::exact::SearchLimits;
use layouts::measure::space::{Clock, KernelSpace, RelayoutSpace};
use layouts::problem::{SelectionProblem, Tensor};
use layouts::record::CacheState;
use layouts::selection::{select_top, write_out};
use layouts::solve::selection::{PlannedRelayout, ingredients};
use layouts::{Finish, Method, Progress, Selection, Session, Store, SweepOptions, SweepReport, Sweeper, select, select_each, sweep};
use sdfg::config::KernelConfig;
use sdfg::{Dtype, Role, Sdfg};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The resources and limits of a sweep.
pub struct SweepContext<'a> {
    pub pool: &'a Pool,
    pub device: &'a dyn Device,
    pub store: &'a mut Store,
    pub interrupt: &'a AtomicBool,
    pub shard: Shard,
    /// The state of the caches when timed runs begin.
    pub cache: CacheState,
    /// Programs that need more memory are not run.
    pub memory: MemoryLimit,
    /// The time that earlier sweeps have spent of the budget.
    pub ledger: &'a mut BudgetLedger,
    /// The time left for measuring.
    pub budget: MeasurementBudget,
    /// Milliseconds: a program whose kernels take longer in total after a first look at each is given up, since others are that much
    /// faster.
    pub hopeless_ms: Option<f64>,
    /// The relative gain below which the rest of a program's share is not used; `None` uses all of it.
    pub settle: Option<f64>,
    pub progress: &'a mut dyn FnMut(SweepEvent),
}

/// The required resources of a sweep: workers, device, records and the ledger of earlier sweeps.
pub struct MeasurementSetup<'a> {
    pub pool: &'a Pool,
    pub device: &'a dyn Device,
    pub store: &'a mut Store,
    pub ledger: &'a mut BudgetLedger,
    pub interrupt: &'a AtomicBool,
}

impl<'a> SweepContext<'a> {
    /// A sweep of the whole space with warm caches, without bounds on time or memory.
    pub fn unbounded(
        MeasurementSetup { pool, device, store, ledger, interrupt }: MeasurementSetup<'a>,
        progress: &'a mut dyn FnMut(SweepEvent),
    ) -> Self {
        let (shard, cache, memory) = (Shard::WHOLE, CacheState::Warm, MemoryLimit::UNKNOWN);
        let budget = MeasurementBudget::default();
        SweepContext { pool, device, store, interrupt, shard, cache, memory, ledger, budget, hopeless_ms: None, settle: None, progress }
    }
}

/// Progress of a sweep, for display.
pub enum SweepEvent<'a> {
    /// After every configuration: the program's name, and the sweep's progress.
    Measured(&'a str, &'a Progress<'a>),
    /// Before a step that may take a while without measuring anything.
    Planning(String),
}

struct Stopwatch(Instant);

impl Clock for Stopwatch {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A program that was swept.
pub struct SweptProgram {
    pub name: String,
    pub program: Sdfg,
    /// Its selection problem.
    pub problem: SelectionProblem,
    pub kernels: Vec<SweptKernel>,
    pub report: SweepReport,
    pub spent: PhaseTimes,
    /// The part of its share of the budget that was left when more measuring promised too little.
    pub unused: Option<Duration>,
}

/// A weight, its gradient and its value in the next step share a layout.
fn ties(program: &Sdfg) -> Vec<(String, String)> {
    let parameters = program.containers.values().filter(|c| c.role == Role::Parameter && c.view.is_none());
    let replaced = program.containers.values().filter_map(|next| Some((next.replaces.clone()?, next.name.clone())));
    parameters
        .filter_map(|weight| {
            let gradient = program.containers.get(&format!("d_{}", weight.name))?;
            (gradient.dims == weight.dims && gradient.view.is_none()).then(|| (weight.name.clone(), gradient.name.clone()))
        })
        .chain(replaced)
        .collect()
}

const POLICY: BudgetPolicy = BudgetPolicy::DEFAULT;

/// Which kernels of a program are swept.
#[derive(Clone, Copy)]
pub enum SweepExtent<'a> {
    Whole,
    /// All kernels of the unfused program, with which every other is compared. It is an alternative to none of the other programs.
    Baseline,
    /// Kernels whose content hash is not among these. The program may be chosen.
    Beside(&'a BTreeSet<String>),
    /// The same for a trial, in which one fusion is undone: it only lends its kernels to other programs.
    Trial(&'a BTreeSet<String>),
}

impl SweepExtent<'_> {
    fn holds(&self, kernel: &SweptKernel) -> bool {
        match self {
            SweepExtent::Whole | SweepExtent::Baseline => true,
            SweepExtent::Beside(known) | SweepExtent::Trial(known) => !known.contains(kernel.key()),
        }
    }
}

/// A program as the sweep and the choice see it.
pub struct SweepInput {
    pub kernels: Vec<SweptKernel>,
    pub relayouts: Vec<RelayoutSpace>,
    pub problem: SelectionProblem,
}

/// Builds the selection problem of a program: the configuration spaces of its kernels and relayouts, the layouts that bind them, and the
/// fingerprints of its containers' values.
pub fn build_problem(program: &Sdfg, device: &dyn Device) -> Result<SweepInput, PipelineError> {
    let _phase = enter(CommandPhase::Enumerate);
    let mut kernels = swept_kernels(program, device)?;
    let once = Once::of(program);
    for kernel in &mut kernels {
        kernel.once = once.kernels.contains(&kernel.spec.name);
    }
    let relayouts = relayout_spaces(program, &kernels);
    let all: Vec<&dyn KernelSpace> = kernels.iter().map(|k| k as &dyn KernelSpace).collect();
    let touched = |data: &String| all.iter().any(|s| s.tensors().iter().any(|t| t.data == *data));
    let boundary = boundary(program).into_iter().filter(|(d, _)| touched(d)).collect();
    let ties = ties(program).into_iter().filter(|(a, b)| touched(a) && touched(b)).collect();
    let mut problem = SelectionProblem::of(&all, &relayouts, boundary, ties);
    for kernel in &mut problem.kernels {
        kernel.once = once.kernels.contains(&kernel.name);
    }
    for tensor in &mut problem.tensors {
        tensor.once = once.containers.contains(&tensor.data);
        tensor.fixed = program.containers.get(&tensor.data).is_some_and(|c| c.dtype == Dtype::Bit);
    }
    for (kernel, swept) in problem.kernels.iter_mut().zip(&kernels) {
        kernel.names = value_fingerprint::names(&swept.spec, program);
    }
    value_fingerprint::mark(&mut problem, program)?;
    Ok(SweepInput { kernels, relayouts, problem })
}

/// Sweeps one program within its share of the budget.
pub fn sweep_program(
    name: &str,
    program: &Sdfg,
    budget: Option<Duration>,
    extent: SweepExtent,
    with: &mut SweepContext,
) -> Result<SweptProgram, PipelineError> {
    let posed = build_problem(program, with.device)?;
    sweep_posed(name, program, posed, budget, extent, with)
}

/// The same for a program whose problem is already built.
pub fn sweep_posed(
    name: &str,
    program: &Sdfg,
    posed: SweepInput,
    budget: Option<Duration>,
    extent: SweepExtent,
    with: &mut SweepContext,
) -> Result<SweptProgram, PipelineError> {
    let _phase = enter(CommandPhase::Enumerate);
    let SweepInput { kernels, relayouts, problem } = posed;
    let all: Vec<&dyn KernelSpace> = kernels.iter().map(|k| k as &dyn KernelSpace).collect();
    let trial = matches!(extent, SweepExtent::Trial(_));
    with.store.begin(session(name, program, &problem, extent, with))?;
    let held: Vec<&SweptKernel> = kernels.iter().filter(|k| extent.holds(k)).collect();
    let spaces: Vec<&dyn KernelSpace> = held.iter().map(|k| *k as &dyn KernelSpace).collect();
    let mut bench = DeviceBench::new(program, &kernels, with.device, with.pool);
    bench.cache = with.cache;
    bench.interrupt = Some(with.interrupt);
    let clock = Stopwatch(Instant::now());
    let (share, budget) = (budget, with.budget.share(with.ledger.left(&problem, budget)));
    let new = with.budget.new_kernels(program, with.store)?;
    let known = |kernel: &SweptKernel, config: &KernelConfig| with.store.get(kernel.key(), config).is_some();
    bench.until = budget.and_then(|b| Instant::now().checked_add(b));
    let (made, mut firsts) = (bench.prepare(&held, &known), None);
    let prepared = clock.elapsed();
    let (mut given_up, mut ends) = (false, budget);
    // On a GPU compiling takes far longer than timing, and confirming leaves most of its share: another search uses that time.
    let devices = !with.device.is_host();
    let mut searched = || -> Result<SweepReport, PipelineError> {
        let progress = &mut with.progress;
        let mut count = 0;
        let mut told = |p: &Progress| {
            count += 1;
            // Every kernel has its first time before any has a second one.
            if count == held.len() && firsts.is_none() {
                firsts = Some(p.elapsed.saturating_sub(prepared));
            }
            progress(SweepEvent::Measured(name, p));
        };
        let options = SweepOptions { budget, shard: with.shard, costly: devices, settle: with.settle, ..SweepOptions::default() };
        let mut sweeper = Sweeper {
            bench: &mut bench,
            clock: &clock,
            store: with.store,
            options,
            interrupt: with.interrupt,
            progress: &mut told,
            timed: 0,
        };
        if let Some(most) = with.hopeless_ms {
            let wanted = sweeper.options.budget;
            // Time that earlier sweeps spent counts towards the first look.
            let spent = share.unwrap_or_default().saturating_sub(wanted.unwrap_or_default());
            sweeper.options.budget = share.map(|share| share.mul_f64(POLICY.first_look).saturating_sub(spent));
            let report = sweep(&mut sweeper, &spaces, &relayouts)?;
            let best = |kernel: &dyn KernelSpace| sweeper.store.of(kernel.key()).filter_map(|m| sweeper.store.ms(m)).reduce(f64::min);
            if spaces.iter().filter_map(|kernel| best(*kernel)).sum::<f64>() > most {
                given_up = true;
                return Ok(report);
            }
            sweeper.options.budget = wanted;
        }
        let mut began = Duration::ZERO;
        loop {
            // The time that is left is split between searching, refining and confirming.
            let until = |end: Option<Duration>, later: f64| end.map(|b| began + b.saturating_sub(began).mul_f64(1.0 - later));
            sweeper.options.budget = until(budget, if trial { 0.0 } else { POLICY.confirming + POLICY.refining });
            let last = sweeper.options.budget.map_or(1.0, |b| 1.0 - began.as_secs_f64() / b.as_secs_f64().max(f64::MIN_POSITIVE));
            sweeper.options = sweeper.options.clone().for_the_last(last.clamp(0.0, 1.0));
            let report = sweep(&mut sweeper, &spaces, &relayouts)?;
            if report.finish == Finish::Interrupted || trial {
                return Ok(report);
            }
            if report.settled {
                // Refining and confirming take what they would of a budget that ends when this search did.
                let searched = clock.elapsed().saturating_sub(began);
                let whole = began + searched.div_f64(1.0 - POLICY.confirming - POLICY.refining);
                ends = Some(budget.map_or(whole, |budget| budget.min(whole)));
            }
            sweeper.options.budget = until(ends, POLICY.confirming);
            // A first look may have used all the time, so that none is left to refine.
            if report.finish == Finish::Budget && sweeper.options.budget.is_none_or(|b| clock.elapsed() < b) {
                sweeper.refine(&all, &problem, QUICK)?;
            }
            sweeper.options.budget = ends;
            // The chosen configurations get fresh samples before the choice stands.
            for _ in 0..4 {
                if ends.is_some_and(|b| clock.elapsed() >= b) {
                    break;
                }
                let chosen = during(CommandPhase::Select, || select_each(&problem, sweeper.store, &METHODS, QUICK)).unwrap_or_default();
                let (kernels, relayouts) = ingredients(&chosen);
                if sweeper.confirm(&problem, kernels, relayouts)? == 0 {
                    break;
                }
            }
            began = clock.elapsed();
            let left = budget.unwrap_or_default().saturating_sub(began);
            if !devices || report.finish != Finish::Budget || left < POLICY.least.max(budget.unwrap_or_default().mul_f64(POLICY.unused)) {
                return Ok(report);
            }
        }
    };
    let report = searched();
    if let Some(firsts) = firsts.filter(|_| !new.is_empty()) {
        with.budget.learn(new.len(), made + firsts);
    }
    with.budget.know(new);
    // A sweep that ended in time has spent its whole share, so that the same budget does not repeat it. After an interrupt or a device
    // failure the rest of the share stays available.
    let ended = report.as_ref().is_ok_and(|r| r.finish != Finish::Interrupted) && !given_up;
    let spent = clock.elapsed().max(if ended { budget.unwrap_or_default() } else { Duration::ZERO });
    with.ledger.spend(&problem, spent, clock.elapsed())?;
    let (report, spent) = (report?, bench.spent);
    let unused = budget.filter(|_| report.settled).map(|budget| budget.saturating_sub(clock.elapsed()));
    drop(bench);
    Ok(SweptProgram { name: name.to_string(), program: program.clone(), problem, kernels, report, spent, unused })
}

pub const METHODS: [Method; 6] = Method::ALL;

/// The name under which a program is recorded, and the recipe whose programs are its alternatives; the baseline is an alternative to
/// none.
fn variant(name: &str, program: &Sdfg, extent: SweepExtent) -> layouts::record::RecipeVariant {
    let of = if matches!(extent, SweepExtent::Baseline) { format!("{}, unfused", program.name) } else { program.name.clone() };
    layouts::record::RecipeVariant { of, name: name.to_string() }
}

/// For choosing what to measure next: seconds would be too long, and a good choice will do.
pub const QUICK: SearchLimits = SearchLimits { table: 1 << 18, work: 1 << 26 };

/// Several devices may begin sessions in the same millisecond.
static SESSIONS: AtomicUsize = AtomicUsize::new(0);

fn session(name: &str, program: &Sdfg, problem: &SelectionProblem, extent: SweepExtent, with: &SweepContext) -> Session {
    let device = with.device;
    let provenance = bench::record::Machine::here();
    let (host, hardware) = (bench::machine::host_name(), provenance.line());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map(|d| d.as_millis()).unwrap_or(0);
    Session {
        session: format!("{now}-{}.{:04}@{host}", std::process::id(), SESSIONS.fetch_add(1, Ordering::Relaxed)),
        format: 1,
        device: device.name().unwrap_or(provenance.cpu),
        toolchain: device.toolchain(),
        // On another device than the cores, workers make no difference to a time.
        threads: if device.is_host() { with.pool.workers() } else { 1 },
        sizes: program.sizes.clone(),
        // A person who measures for the record sets the commit that the program was built from.
        commit: std::env::var("MEMLET_COMMIT").unwrap_or_default(),
        clock: device.clock().into(),
        host,
        hardware,
        cache: with.cache,
        program: Some(problem.clone()),
        variant: Some(variant(name, program, extent)),
    }
}

/// Share of the bytes of all tensors from which on a tensor is large.
const LARGE: f64 = 0.05;

impl SweptProgram {
    /// Adds an earlier sweep of the same program: of each kernel it keeps the tally that reached more configurations.
    pub fn after(mut self, before: &SweptProgram) -> Self {
        self.spent += before.spent;
        self.report.timed += before.report.timed;
        for (name, tally) in &mut self.report.tallies {
            if let Some(known) = before.report.tallies.get(name).filter(|known| known.not_reached < tally.not_reached) {
                *tally = *known;
            }
        }
        self
    }

    pub fn select(&self, store: &Store, method: Method) -> Result<Selection, PipelineError> {
        Ok(select(&self.problem, store, method, SearchLimits::default())?)
    }

    /// Selections by every method, in the order of [`METHODS`].
    pub fn select_each(&self, store: &Store) -> Result<Vec<Selection>, PipelineError> {
        Ok(select_each(&self.problem, store, &METHODS, SearchLimits::default())?)
    }

    pub fn top(&self, store: &Store, count: usize) -> Result<Vec<Selection>, PipelineError> {
        Ok(select_top(&self.problem, store, count, SearchLimits::default())?)
    }

    /// The best selection in which no large tensor is relaid out: that takes memory for a second copy. `None` where `selection` has no
    /// such relayout, or every selection has one.
    pub fn without_large_relayouts(&self, store: &Store, selection: &Selection) -> Result<Option<Selection>, PipelineError> {
        let all: u64 = self.problem.tensors.iter().map(|tensor| tensor.bytes).sum();
        let large = |tensor: &Tensor| !tensor.once && tensor.bytes as f64 >= LARGE * all as f64;
        let is_relaid = |tensor: &Tensor| selection.relayouts.iter().any(|planned| planned.relayout.data == tensor.plain());
        let mut problem = self.problem.clone();
        let mut some = false;
        for tensor in problem.tensors.iter_mut().filter(|tensor| large(tensor)) {
            some |= is_relaid(tensor);
            (tensor.fixed, tensor.relayout_key) = (true, String::new());
        }
        if !some {
            return Ok(None);
        }
        let found = select(&problem, store, Method::Exact, SearchLimits::default())?;
        let relaid = |planned: &PlannedRelayout| problem.tensors.iter().any(|t| t.fixed && t.plain() == planned.relayout.data);
        Ok((!found.relayouts.iter().any(relaid)).then_some(found))
    }

    pub fn candidate(&self, selection: &Selection) -> Candidate {
        let name = format!("{} · {}", self.name, selection.method);
        let (program, configuration) = (self.program.clone(), selection.configuration.clone());
        Candidate {
            name,
            program,
            configuration,
            predicted_ms: selection.total_ms,
            streams: 1,
            packed: false,
            beside: BESIDE,
            exchanges: vec![],
            measured_as: Default::default(),
        }
    }

    /// The best selection in which every container follows one order of dims, for example PyTorch's: batch and sequence outside, features
    /// inside, attention as batch, head, query, key.
    pub fn in_order(&self, store: &Store, order: &[String]) -> Result<Selection, PipelineError> {
        let costs = layouts::relayout::RelayoutCosts::new(&self.problem, store);
        let model = layouts::Model::new(&self.problem, store, &costs)?;
        let held = model.natural();
        let held = model
            .classes
            .iter()
            .zip(held)
            .map(|(class, natural)| class.domain.iter().copied().find(|l| follows(&class.layouts[*l as usize], order)).unwrap_or(natural))
            .collect();
        let solution = layouts::uniform::strict(&model, held);
        Ok(write_out(&model, &[], &costs, Method::Uniform, &solution))
    }
}
