//! Every way to run one contraction: layouts of its tensors × mappings × libraries × threads, decoded from a number.

use super::estimate;
use super::executable::ContractionPlan;
use super::library::{GemmLibrary, Threads};
use crate::config_space::{ConfigSpace, TensorChoice};
use crate::contraction::{ContractionError, ContractionProblem, GemmNest, IndexGroup, MappedSpace, Mapping, Types, mappings};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Dtype, Layout};

/// All plain permutations of the tensors and all knobs of one contraction.
///
/// Numbers are mixed radix, slowest digit first: the layout of each container, the sets of rows, columns and depth, the
/// library, the threads. How many sets fuse depends on the layouts, so those digits wrap around: numbers that give the
/// same configuration have the same [identity](ConfigSpace::identity). Nothing is enumerated in advance.
#[derive(Clone, Debug)]
pub struct ContractionSpace {
    mapped: MappedSpace,
    cores: usize,
}

/// One point of the space.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractionConfig {
    /// By distinct container.
    pub layouts: Vec<Layout>,
    pub mapping: Mapping,
    pub library: GemmLibrary,
    pub threads: Threads,
}

impl ContractionSpace {
    /// `cores` is what the kernel will run on; on one core there is nothing to choose for `threads`.
    pub fn new(problem: ContractionProblem, cores: usize) -> Self {
        ContractionSpace { mapped: MappedSpace::new(problem), cores: cores.max(1) }
    }

    /// The space of a kernel that is a contraction.
    ///
    /// # Errors
    /// Anything but a contraction; one that is no matrix product (see [`ContractionError`]).
    pub fn of(spec: &KernelSpec, cores: usize) -> Result<Self, KernelError> {
        Ok(ContractionSpace::new(ContractionProblem::of(spec)?, cores))
    }

    pub fn problem(&self) -> &ContractionProblem {
        self.mapped.problem()
    }

    /// The layouts and mappings of the space.
    pub fn mapped(&self) -> &MappedSpace {
        &self.mapped
    }

    /// Cores first on whole products where there are enough of them.
    fn threads(&self) -> &'static [Threads] {
        let batch = self.problem().indices.iter().filter(|(_, g, _)| *g == IndexGroup::Batch).map(|(_, _, e)| *e).product::<usize>();
        match self.cores {
            1 => &[Threads::Inside],
            cores if batch >= cores => &[Threads::Batch, Threads::Inside],
            _ => &[Threads::Inside, Threads::Batch],
        }
    }

    /// Values of each digit, slowest first; their product is the number of configurations.
    pub fn radices(&self) -> Vec<u64> {
        let knobs = [GemmLibrary::allowed().len() as u64, self.threads().len() as u64];
        self.mapped.radices().into_iter().chain(knobs).collect()
    }

    /// Configuration `number`; numbers beyond the last one wrap around.
    pub fn choice(&self, number: u64) -> Result<ContractionConfig, ContractionError> {
        let (libraries, threads) = (GemmLibrary::allowed().len() as u64, self.threads().len() as u64);
        let (layouts, mapping) = self.mapped.at(number / threads / libraries)?;
        let layouts = layouts.into_iter().cloned().collect();
        let library = GemmLibrary::allowed()[(number / threads % libraries) as usize];
        Ok(ContractionConfig { layouts, mapping, library, threads: self.threads()[(number % threads) as usize] })
    }

    /// The choice in the form in which plans hold it.
    pub fn kernel_config(&self, choice: &ContractionConfig) -> KernelConfig {
        KernelConfig {
            layouts: self.tensors().iter().map(|t| t.data.clone()).zip(choice.layouts.iter().cloned()).collect(),
            knobs: Knobs::default().with("mapping", &choice.mapping).with("library", choice.library).with("threads", choice.threads),
        }
    }

    /// Everything worked out for a choice of this space.
    pub fn plan(&self, choice: &ContractionConfig) -> Result<ContractionPlan, ContractionError> {
        let layouts = self.mapped.triple(&choice.layouts.iter().collect::<Vec<_>>());
        self.problem().plan(layouts, &choice.mapping, choice.library, choice.threads)
    }

    /// Predicted seconds of a choice.
    pub fn seconds(&self, choice: &ContractionConfig) -> Result<f64, ContractionError> {
        let plan = self.plan(choice)?;
        Ok(estimate::seconds(&plan.call, choice.threads, self.cores, self.problem().types))
    }

    /// The least that any configuration promises: all multiplications at full speed.
    pub fn best(&self) -> f64 {
        estimate::least(self.problem().flop(), self.cores, self.problem().types.accumulator_width()) * estimate::CORE_BYTES
    }

    /// The knobs that a person would expect to be good under given layouts (by distinct container).
    pub fn default_choice(&self, layouts: Vec<Layout>) -> Result<ContractionConfig, ContractionError> {
        let (mapping, threads) = self.problem().best(self.mapped.triple(&layouts.iter().collect::<Vec<_>>()), self.cores)?;
        Ok(ContractionConfig { layouts, mapping, library: GemmLibrary::usual(), threads })
    }
}

impl ConfigSpace for ContractionSpace {
    fn tensors(&self) -> &[TensorChoice] {
        self.mapped.tensors()
    }

    fn count(&self) -> u64 {
        self.radices().iter().product()
    }

    fn config(&self, n: u64) -> KernelConfig {
        self.choice(n).map(|choice| self.kernel_config(&choice)).unwrap_or_default()
    }

    /// The call that the library receives, turned into normal form.
    fn identity(&self, n: u64) -> String {
        let plan = self.choice(n).and_then(|choice| self.plan(&choice));
        // Permutations of the containers' own dims always make a plan; a number that does not is only like itself.
        let Ok(ContractionPlan { call, origins, library, threads, .. }) = plan else { return format!("number {n}") };
        let at = if origins == [0; 3] { String::new() } else { format!(" at {origins:?}") };
        format!("{} {library} {threads} {}{at}", self.problem().types, call.normal())
    }

    /// Predicted seconds, as the bytes that one core copies in that time.
    fn predicted_cost(&self, n: u64) -> f64 {
        let seconds = self.choice(n).and_then(|choice| self.seconds(&choice));
        seconds.map_or(f64::INFINITY, |seconds| seconds * estimate::CORE_BYTES)
    }

    /// Mapping and threads are those predicted to be best under the configuration's layouts.
    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let bare = KernelConfig { layouts: config.layouts.clone(), knobs: Knobs::default() };
        let plan = |config: &KernelConfig| self.problem().plan_of(config, self.cores);
        matches!((plan(config), plan(&bare)), (Ok(x), Ok(y)) if x.call == y.call && x.threads == y.threads)
    }
}

impl ContractionProblem {
    /// The same as [`ContractionProblem::of`], for the libraries that run on cores.
    ///
    /// # Errors
    /// As [`ContractionProblem::of`]; factors that none of them takes.
    pub fn on_cores(spec: &KernelSpec) -> Result<Self, KernelError> {
        let problem = ContractionProblem::of(spec)?;
        match problem.types.factor {
            factor @ Dtype::F16 => Err(ContractionError::Cores { operation: problem.name, factor }.into()),
            _ => Ok(problem),
        }
    }

    /// Everything worked out for given layouts of `a`, `b`, `out` and given knobs.
    pub fn plan(
        &self,
        layouts: [&Layout; 3],
        mapping: &Mapping,
        library: GemmLibrary,
        threads: Threads,
    ) -> Result<ContractionPlan, ContractionError> {
        let axes = self.axes(layouts)?;
        let call = GemmNest::new(mapping, &axes).ok_or_else(|| self.unknown("mapping", mapping, mappings(&axes).iter()))?;
        Ok(ContractionPlan { call, origins: self.origins(layouts)?, types: self.types, scale: self.scale, library, threads })
    }

    /// The plan of a configuration. Absent layouts are the containers' own order, absent knobs the predicted best.
    pub fn plan_of(&self, config: &KernelConfig, cores: usize) -> Result<ContractionPlan, ContractionError> {
        let layouts = self.layouts_of(config);
        let layouts = layouts.each_ref();
        let library = match config.knobs.get("library") {
            None => GemmLibrary::usual(),
            Some(text) => text.parse().map_err(|()| self.unknown("library", text, GemmLibrary::ALL.iter()))?,
        };
        let mut threads: Option<Threads> = match config.knobs.get("threads") {
            None => None,
            Some(text) => Some(text.parse().map_err(|()| self.unknown("threads", text, Threads::ALL.iter()))?),
        };
        let mapping = match config.knobs.get("mapping") {
            None => {
                let (mapping, best) = self.best(layouts, cores)?;
                threads = threads.or(Some(best));
                mapping
            }
            Some(text) => match text.parse() {
                Ok(mapping) => mapping,
                Err(_) => return Err(self.unknown("mapping", text, mappings(&self.axes(layouts)?).iter())),
            },
        };
        let mut plan = self.plan(layouts, &mapping, library, threads.unwrap_or(Threads::Inside))?;
        if threads.is_none() {
            plan.threads = faster(&plan.call, cores, self.types).1;
        }
        Ok(plan)
    }

    /// The mapping and threads with the least predicted time; of equals the first.
    pub fn best(&self, layouts: [&Layout; 3], cores: usize) -> Result<(Mapping, Threads), ContractionError> {
        let axes = self.axes(layouts)?;
        let timed = mappings(&axes).into_iter().filter_map(|mapping| {
            let (seconds, threads) = faster(&GemmNest::new(&mapping, &axes)?, cores, self.types);
            Some((seconds, mapping, threads))
        });
        let best = timed.min_by(|(x, ..), (y, ..)| x.total_cmp(y)).map(|(_, mapping, threads)| (mapping, threads));
        best.ok_or_else(|| self.unknown("mapping", "", std::iter::empty::<&Mapping>()))
    }
}

/// Predicted seconds and threads of the better way to use the cores.
fn faster(call: &GemmNest, cores: usize, types: Types) -> (f64, Threads) {
    let timed = Threads::ALL.map(|threads| (estimate::seconds(call, threads, cores, types), threads));
    if timed[1].0 < timed[0].0 { timed[1] } else { timed[0] }
}
