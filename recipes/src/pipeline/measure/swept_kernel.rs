//! A kernel of a program with its configuration space, as the sweep enumerates it.

use super::dim_order::{boundary, flat_order, follows, pytorch_order};
use crate::pipeline::PipelineError;
use crate::pipeline::parallel::in_order;
use kernels::device::Device;
use kernels::{ConfigSpace, KernelClass, KernelSpec, KernelSpecs};
use layouts::measure::space::{KernelSpace, RelayoutSpace, TensorSpace, by_predicted_cost};
use layouts::problem::Access;
use rayon::prelude::*;
use sdfg::config::KernelConfig;
use sdfg::{Direction, Dtype, Layout, Sdfg, StateId, Unit};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A kernel of the program, numbered configuration by configuration.
pub struct SweptKernel {
    pub spec: KernelSpec,
    pub pass: Direction,
    space: Box<dyn ConfigSpace>,
    key: String,
    family: Option<KernelClass>,
    tensors: Vec<TensorSpace>,
    around: Arc<ProgramLayouts>,
    /// Whether it runs once, before the first step.
    pub(super) once: bool,
    /// Computed once, because ranking takes long.
    seeds: OnceLock<Vec<u64>>,
    /// What tells apart the rankings of kernels that are the same but for names: the device and the kernel's class.
    ranked_as: Option<String>,
}

/// What layouts of a program's kernels have in common: it is found once.
struct ProgramLayouts {
    /// Orders of dims that all tensors of the program may follow.
    orders: Vec<Vec<String>>,
    /// Prescribed layouts of containers at the boundary.
    fixed: BTreeMap<String, Layout>,
}

impl ProgramLayouts {
    fn of(program: &Sdfg) -> Arc<Self> {
        Arc::new(ProgramLayouts { orders: vec![flat_order(program), pytorch_order(program)], fixed: boundary(program) })
    }
}

/// The best predicted configurations in certain layouts, each with its mark: kernels that are the same but for names share them.
type Ranking = Arc<Vec<(u64, String)>>;

/// Rankings of this process, by what [`SweptKernel::ranked_as`] says and the first number with these layouts.
static RANKINGS: Mutex<Option<HashMap<(String, u64), Ranking>>> = Mutex::new(None);

/// A ranking that this process has already, or the one that `compute` returns.
///
/// No lock is held while `compute` runs. It works on all cores, so the thread that waits for a part of it may take up any other job of the
/// thread pool, the ranking of an equal kernel among them, and would wait for itself. Two threads may thus compute equal rankings at once;
/// [`rank_all`] ranks one kernel of each class first.
fn ranking(of: &str, base: u64, compute: impl FnOnce() -> Vec<(u64, String)>) -> Ranking {
    let all = || RANKINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (of.to_string(), base);
    if let Some(known) = all().get_or_insert_with(HashMap::new).get(&key) {
        return known.clone();
    }
    let computed = Arc::new(compute());
    all().get_or_insert_with(HashMap::new).entry(key).or_insert(computed).clone()
}

/// Ranks the seeds of kernels on all cores: first of one kernel of each class, from which equal kernels take their ranking.
pub fn rank_all(kernels: &[&SweptKernel]) {
    let mut classes: BTreeSet<&str> = BTreeSet::new();
    let (first, rest): (Vec<&SweptKernel>, Vec<&SweptKernel>) =
        kernels.iter().copied().partition(|kernel| kernel.ranked_as.as_deref().is_none_or(|class| classes.insert(class)));
    for part in [first, rest] {
        part.par_iter().for_each(|kernel| drop(kernel.seeds()));
    }
}

impl SweptKernel {
    pub fn new(program: &Sdfg, state: StateId, unit: &Unit, device: &dyn Device) -> Result<Self, PipelineError> {
        SweptKernel::within(program, (&KernelSpecs::of(program), &ProgramLayouts::of(program)), (state, unit), device)
    }

    fn within(
        program: &Sdfg,
        (specs, around): (&KernelSpecs, &Arc<ProgramLayouts>),
        (state, unit): (StateId, &Unit),
        device: &dyn Device,
    ) -> Result<Self, PipelineError> {
        let spec = specs.spec(unit)?;
        let space = device.space(&spec)?;
        let backward = program.state(state).is_some_and(|s| s.name == "backward");
        let arguments = spec.arguments();
        let tensors = space
            .tensors()
            .iter()
            .map(|t| {
                let written = arguments.iter().any(|a| a.data == t.data && a.access == kernels::ArgumentAccess::Write);
                TensorSpace {
                    data: t.data.clone(),
                    access: match written {
                        true if unit.writes_part(program, &t.data) => Access::Update,
                        true => Access::Write,
                        false => Access::Read,
                    },
                    layouts: t.layouts.clone(),
                    bytes: program.bytes(&t.data).unwrap_or(0),
                }
            })
            .collect();
        let family = KernelClass::of(&spec);
        let on = || format!("{:?} {} {} {}", device.name(), device.toolchain(), device.extension(), spec.images);
        Ok(SweptKernel {
            key: spec.key(),
            ranked_as: family.as_ref().map(|family| format!("{} {}", family.fingerprint(""), on())),
            family,
            pass: if backward { Direction::Backward } else { Direction::Forward },
            spec,
            space,
            tensors,
            around: around.clone(),
            once: false,
            seeds: OnceLock::new(),
        })
    }
}

impl KernelSpace for SweptKernel {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn pass(&self) -> Direction {
        self.pass
    }

    fn tensors(&self) -> &[TensorSpace] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        self.space.count()
    }

    fn runs_once(&self) -> bool {
        self.once
    }

    fn config(&self, n: u64) -> KernelConfig {
        self.space.config(n)
    }

    fn identity(&self, n: u64) -> String {
        self.space.identity(n)
    }

    fn mark(&self, n: u64) -> String {
        self.family.as_ref().map_or_else(String::new, |family| family.fingerprint(&self.space.identity(n)))
    }

    /// One digit for each knob where the space has them as digits: configurations that differ in one digit are neighbours.
    fn radices(&self) -> Vec<u64> {
        let layouts = self.tensors.iter().map(|t| t.layouts.len() as u64);
        let knobs = self.space.knobs();
        let all: Vec<u64> = layouts.clone().chain(knobs.iter().copied()).collect();
        let product = |digits: &[u64]| digits.iter().try_fold(1u64, |n, radix| n.checked_mul(*radix));
        if !knobs.is_empty() && product(&all) == Some(self.count()) {
            return all;
        }
        let layouts: Vec<u64> = layouts.collect();
        match product(&layouts) {
            Some(n) if n > 0 && self.count().is_multiple_of(n) => layouts.into_iter().chain([self.count() / n]).collect(),
            _ => vec![self.count()],
        }
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        self.space.predicted_cost(n)
    }

    fn predicted_costs(&self, numbers: &[u64]) -> Vec<f64> {
        self.space.predicted_costs(numbers)
    }

    fn ranking_batch(&self) -> u64 {
        self.space.ranking_batch()
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        self.space.matches_rule_of_thumb(config)
    }

    fn seeds(&self) -> Vec<u64> {
        // Not within the cell's lock, for the reason that `ranking` gives.
        if let Some(seeds) = self.seeds.get() {
            return seeds.clone();
        }
        let seeds = self.uniform();
        self.seeds.get_or_init(|| seeds).clone()
    }
}

impl SweptKernel {
    /// Whether a layout has blocks: of a dim that results have, where the tensor can be held so.
    fn is_in_blocks(&self, tensor: &TensorSpace, layout: &Layout) -> bool {
        let made = |dim: &str| {
            let written = self.tensors.iter().filter(|t| t.access != Access::Read).filter_map(|t| t.layouts.first());
            written.flat_map(|l| &l.pieces).any(|p| p.dim == dim)
        };
        let block = |l: &Layout| l.pieces.iter().find(|p| p.block.is_some()).map(|p| made(&p.dim));
        let any_made = tensor.layouts.iter().any(|l| block(l) == Some(true));
        block(layout).is_some_and(|made| made || !any_made)
    }

    /// The best predicted knobs under the first layout of each tensor, for a kernel with more layouts than can be counted, such as a loop
    /// that reads many weights.
    fn first_layouts(&self) -> Vec<u64> {
        let knobs = self.space.knobs().iter().try_fold(1u64, |n, knob| n.checked_mul(*knob)).unwrap_or(RANKED);
        let mut known = BTreeSet::new();
        let mut seeds = by_predicted_cost(self, &(0..knobs.min(RANKED)).collect::<Vec<u64>>());
        seeds.retain(|n| known.len() < SEEDS && known.insert(self.space.identity(*n)));
        let control = seeds.first().and_then(|first| self.space.control(*first));
        // Beside the best one what tells whether it is.
        control.into_iter().for_each(|n| seeds.insert(seeds.len().min(1), n));
        seeds
    }

    /// Configurations in which every tensor follows one of the program's uniform orders, with the prescribed layouts at the boundary and
    /// without them. The best predicted knobs come first, and the orders take turns. So the first choices fit together, however soon the
    /// budget ends.
    fn uniform(&self) -> Vec<u64> {
        let layouts = self.tensors.iter().map(|t| t.layouts.len() as u64).try_fold(1u64, |n, l| n.checked_mul(l));
        let Some(knobs) = layouts.map(|layouts| self.count() / layouts.max(1)).filter(|knobs| *knobs > 0) else {
            return self.first_layouts();
        };
        let base = |fits: &dyn Fn(&TensorSpace, &Layout) -> bool, fixed: &BTreeMap<String, Layout>| {
            let digit = |t: &TensorSpace| {
                let place = |l: &Layout| fixed.get(&t.data).map_or_else(|| fits(t, l), |fixed| l == fixed);
                t.layouts.iter().position(place).unwrap_or(0) as u64
            };
            self.tensors.iter().fold(0u64, |n, t| n * t.layouts.len() as u64 + digit(t)) * knobs
        };
        let uniform = |order: &[String], fixed: &BTreeMap<String, Layout>| base(&|_, l| follows(l, order), fixed);
        let best = |base: u64| {
            // Distinct knobs can normalize to equal configurations, which are kept once.
            let (mut known, mut numbers) = (BTreeSet::new(), by_predicted_cost(self, &(base..base + knobs).collect::<Vec<u64>>()));
            numbers.retain(|n| known.len() < SEEDS && known.insert(self.config(*n)));
            numbers
        };
        let ranked = |base: u64| {
            let Some(of) = &self.ranked_as else { return best(base) };
            let marked = |n: u64| (n, self.mark(n));
            let shared = ranking(of, base, || best(base).into_iter().map(marked).collect());
            // The spaces of two kernels correspond number by number unless names decide an order somewhere.
            if shared.iter().all(|(n, mark)| *n < self.count() && self.mark(*n) == *mark) {
                shared.iter().map(|(n, _)| *n).collect()
            } else {
                best(base)
            }
        };
        // Row-major is the first, but for images: where these are held in blocks of channels, products read whole vectors, and weights in
        // blocks of the channels that they make need no packing.
        let ProgramLayouts { orders, fixed } = &*self.around;
        let mut bases = vec![0];
        let blocked = if self.spec.images { base(&|t, l| self.is_in_blocks(t, l), fixed) } else { 0 };
        let is_blocked = blocked != 0;
        bases.splice(0..0, is_blocked.then_some(blocked));
        for base in orders.iter().flat_map(|order| [uniform(order, fixed), uniform(order, &BTreeMap::new())]) {
            if !bases.contains(&base) {
                bases.push(base);
            }
        }
        let orders: Vec<Vec<u64>> = bases.into_iter().map(ranked).collect();
        let in_turns = |orders: &[Vec<u64>]| -> Vec<u64> {
            (0..SEEDS).flat_map(|rank| orders.iter().filter_map(move |order| order.get(rank).copied())).collect()
        };
        let mut seeds = match orders.split_first() {
            // Every second one is in blocks: where these are to be had, other layouts seldom win.
            Some((blocked, others)) if is_blocked => {
                let others = in_turns(others);
                let turns = (0..blocked.len().max(others.len())).flat_map(|n| [blocked.get(n), others.get(n)]);
                turns.flatten().copied().collect()
            }
            _ => in_turns(&orders),
        };
        seeds.extend(seeds.first().and_then(|first| self.space.control(*first)));
        seeds
    }
}

/// Seeds for row-major and for each uniform order.
const SEEDS: usize = 6;
/// Knobs that are ranked under the first layouts where there are more layouts than can be counted.
const RANKED: u64 = 1 << 14;

/// Every kernel of a program, in execution order.
pub fn swept_kernels(program: &Sdfg, device: &dyn Device) -> Result<Vec<SweptKernel>, PipelineError> {
    let (specs, around) = (KernelSpecs::of(program), ProgramLayouts::of(program));
    let units = program.units();
    in_order(units.par_iter().map(|(state, _, unit)| SweptKernel::within(program, (&specs, &around), (*state, unit), device)))
}

/// One relayout space for each container that kernels touch and that has more than one layout. Generated kernels cannot copy bits, so
/// containers of bits keep their layout.
pub fn relayout_spaces(program: &Sdfg, kernels: &[SweptKernel]) -> Vec<RelayoutSpace> {
    let mut found: Vec<RelayoutSpace> = Vec::new();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for tensor in kernels.iter().flat_map(|k| &k.tensors) {
        let Some(container) = program.containers.get(&tensor.data) else { continue };
        if container.dtype != Dtype::Bit && container.dims.len() > 1 && known.insert(&tensor.data) {
            let shape = program.shape_of(&tensor.data).unwrap_or_default();
            let key = format!("relayout {} {} {:?} {:?}", kernels::maps::COPIES, container.dtype, container.dims, shape);
            found.push(RelayoutSpace::new(&tensor.data, &key, tensor.layouts.clone(), tensor.bytes));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ranking_may_be_asked_for_while_it_is_computed() {
        // As by a thread that waits for a part of one ranking and meanwhile takes up an equal kernel from its queue.
        let outer = ranking("asked for while computed", 3, || {
            let inner = ranking("asked for while computed", 3, || vec![(7, "mark".into())]);
            inner.to_vec()
        });
        assert_eq!(*outer, [(7, "mark".into())]);
        assert!(Arc::ptr_eq(&outer, &ranking("asked for while computed", 3, Vec::new)));
    }
}
