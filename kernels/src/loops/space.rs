//! Every way to run a loop: a layout of each tensor that the body reads as a whole, and one of the best configurations of each kernel of
//! the body under these layouts, at any of its divisions: with a barrier after each kernel, with all kernels that allow it divided
//! along one dim, or with runs of kernels each divided along a dim of its own ([`super::runs`]).

use super::body::{Body, joined, with_before};
use super::divided::{dims, divided, writes_along};
use super::runs::{Link, Runs, SMALL, names, runs};
use crate::alpha_equivalence::KernelClass;
use crate::config_space::{ConfigSpace, TensorChoice};
use crate::device::{Device, Partitioned};
use crate::error::KernelError;
use crate::kernel::{ArgumentAccess, KernelSpec, unsupported};
use crate::loopnest::partition::PartitionedNest;
use crate::mixed_radix::{MixedRadix, layouts};
use crate::packing::divide::divide;
use crate::phases::{AccessedPart, PhaseMemory};
use crate::processor::cores;
use sdfg::Layout;
use sdfg::config::KernelConfig;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

/// Configurations of a kernel among which a loop chooses at most, the best by predicted cost.
const CHOICES: usize = 8;
/// The most of these that call a GEMM library.
const LIBRARIES: usize = 2;
/// Choices for all kernels of a body together, at most: a loop has few enough to be listed.
const TOGETHER: usize = 4096;
/// Configurations that are tried to find those that can be divided along a dim.
const TRIED: usize = 64;
/// The same for one in a run, which is asked along each dim of its results.
const TRIED_IN_RUNS: usize = 12;
/// The best of this many configurations by predicted cost are tried.
const CONSIDERED: u64 = 512;

/// The cost of a barrier, in bytes that memory could move in its time.
const BARRIER: f64 = 4e4;

/// Bytes that stay in a core's second cache from one time to the next.
const NEAR: f64 = 1e6;

/// A kernel's configuration, its predicted cost and its identity.
type Choice = (KernelConfig, f64, String);

/// The best configurations of a kernel under given layouts.
type Ranked = Arc<Vec<Choice>>;

/// By kernel, the division, and the positions of the layouts of the tensors that the kernel touches.
type RankedByLayouts = HashMap<(usize, usize, Vec<usize>), Option<Ranked>>;

pub struct LoopSpace {
    body: Body,
    /// How the device divides points, and the dim along which most of the body's kernels can be divided, if there is one.
    partitioned: Option<Partitioned>,
    divisions: Vec<String>,
    /// Runs of kernels that are divided alike, if there are fewer of these than kernels, and the kernels that the caller does before them.
    runs: Option<(Runs, Vec<usize>)>,
    tensors: Vec<TensorChoice>,
    spaces: Vec<Box<dyn ConfigSpace>>,
    /// The class of each kernel: those that are the same but for names choose together.
    classes: Vec<usize>,
    /// Configurations that each class chooses among.
    choices: usize,
    /// Bytes that divided kernels read at every time beyond those that undivided ones read: a tensor without the dim of the division that
    /// is larger than a core's second-level cache is read whole by every worker, from the cache that they share.
    read_by_each: f64,
    /// The tensors of the loop with several layouts that each kernel of the body touches.
    touched: Vec<Vec<usize>>,
    ranked: RwLock<RankedByLayouts>,
}

impl LoopSpace {
    /// # Errors
    /// A unit that is no loop; kernels of the body that have no space.
    pub fn new(spec: &KernelSpec, device: &dyn Device) -> Result<Self, KernelError> {
        let body = Body::new(spec)?;
        let spaces = body.kernels.iter().map(|kernel| device.space(kernel)).collect::<Result<Vec<_>, _>>()?;
        let mut tensors = Vec::new();
        for argument in spec.arguments() {
            let Some(container) = spec.containers.get(&argument.data) else { continue };
            let layouts = match body.sliced_layout(container) {
                Some(layout) => vec![layout],
                None => shared(&body, &spaces, &argument.data).unwrap_or_else(|| vec![Layout::row_major(container)]),
            };
            tensors.push(TensorChoice { data: argument.data, layouts });
        }
        let touches =
            |space: &dyn ConfigSpace, t: &TensorChoice| space.tensors().iter().any(|own| body.outer(&own.data) == Some(t.data.as_str()));
        let several = |space: &dyn ConfigSpace| {
            (0..tensors.len()).filter(|n| tensors[*n].layouts.len() > 1 && touches(space, &tensors[*n])).collect()
        };
        let touched = spaces.iter().map(|space| several(&**space)).collect();
        let mut kinds: Vec<String> = Vec::new();
        let mut class = |kernel: &KernelSpec| {
            let kind = KernelClass::of(kernel).map_or_else(|| kernel.name.clone(), |class| class.fingerprint(""));
            kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len() - 1
            })
        };
        let classes: Vec<usize> = body.kernels.iter().map(&mut class).collect();
        let all = |choices: usize| kinds.iter().try_fold(1usize, |n, _| n.checked_mul(choices)).is_some_and(|n| n <= TOGETHER);
        let choices = (1..=CHOICES).rev().find(|choices| all(*choices)).unwrap_or(1);
        let mut space = LoopSpace {
            divisions: vec![],
            runs: None,
            partitioned: device.partitioned(),
            body,
            tensors,
            spaces,
            classes,
            choices,
            touched,
            read_by_each: 0.0,
            ranked: RwLock::default(),
        };
        // Every layout of a slice must be one of its kernels'.
        space.choice(0).ok_or_else(|| unsupported(spec, "a kernel of its body has no layout in which the times come first"))?;
        let (first, _) = space.choice(0).unwrap_or_default();
        // The dim along which most kernels can be divided, if that is half of them.
        let all = space.body.kernels.len();
        let mut most = (all.div_ceil(2), None);
        for dim in dims(&space.body).into_iter().filter(|_| space.partitioned.is_some()) {
            space.divisions = vec![dim.clone()];
            let can = (0..all).filter(|kernel| space.divide(*kernel, 1, &first).is_some()).count();
            if can > most.0 || (can == most.0 && most.1.is_none()) {
                most = (can, Some(dim));
            }
        }
        if let Some(dim) = &most.1 {
            let bytes = space.body.bytes_without(dim);
            space.read_by_each = if bytes > NEAR { bytes * (cores().saturating_sub(1)) as f64 } else { 0.0 };
        }
        space.divisions = most.1.into_iter().collect();
        space.runs = space.in_runs(&first, &kinds);
        Ok(space)
    }

    /// The kernels of the body in runs that are divided alike; `None` where that saves no barrier.
    fn in_runs(&self, picks: &[usize], kinds: &[String]) -> Option<(Runs, Vec<usize>)> {
        let partitioned = self.partitioned?;
        let outer = self.outer(picks);
        let mut known: HashMap<String, Option<PartitionedNest>> = HashMap::new();
        let mut links = Vec::new();
        for (n, kernel) in self.body.kernels.iter().enumerate() {
            let arguments = kernel.arguments();
            let written = || arguments.iter().filter(|a| a.access == ArgumentAccess::Write);
            let mut link = Link::default();
            let bytes = |data: &str| kernel.shape(data).map_or(usize::MAX, |shape| shape.iter().product::<usize>().saturating_mul(4));
            let all = arguments.iter().map(|a| bytes(&a.data)).fold(0usize, usize::saturating_add);
            link.is_small = matches!(kernel.unit, sdfg::Unit::Scope(_)) && all <= SMALL;
            for (data, access) in names(&self.body, kernel) {
                match access {
                    ArgumentAccess::Write => _ = link.writes.insert(data),
                    ArgumentAccess::Read => _ = link.reads.entry(data).or_default(),
                }
            }
            // Every worker reads all weights where kernels are divided along the dim that most of them have: that is a division of its own.
            let dims: indexmap::IndexSet<&String> = written().flat_map(|a| &a.dims).filter(|dim| !self.divisions.contains(dim)).collect();
            for dim in dims {
                let shapes: Vec<&Vec<String>> = arguments.iter().map(|a| &a.dims).collect();
                let key = format!("{} {shapes:?} {dim}", kinds.get(self.classes[n]).map_or("", String::as_str));
                let nest = known.entry(key).or_insert_with(|| self.along(n, dim, &outer, partitioned));
                let Some(nest) = nest else { continue };
                link.dims.push(dim.clone());
                for touch in nest.touches.iter().filter(|t| !t.written) {
                    let (PhaseMemory::Argument(at), AccessedPart::Along(axis)) = (touch.place, touch.part) else { continue };
                    let Some(argument) = arguments.get(at).filter(|a| a.dims.get(axis) == Some(dim)) else { continue };
                    let name = self.body.outer(&argument.data).unwrap_or(&argument.data);
                    link.reads.entry(name.to_string()).or_default().insert(dim.clone());
                }
            }
            links.push(link);
        }
        let found = runs(&links);
        let before = (0..links.len()).filter(|n| links[*n].is_small && found.along[*n].is_none()).collect();
        let divided = found.along.iter().any(Option::is_some);
        (divided && found.count < links.len()).then_some((found, before))
    }

    /// What a kernel touches in its best configuration that can be divided along a dim so that each worker writes its own part.
    fn along(&self, kernel: usize, dim: &str, outer: &KernelConfig, by: Partitioned) -> Option<PartitionedNest> {
        let (spec, space) = (&self.body.kernels[kernel], &self.spaces[kernel]);
        let numbers = self.numbers(kernel, outer)?.into_iter().map(|(n, cost)| (space.config(n), cost));
        let generated = numbers.filter(|(config, _)| config.knobs.get("library").is_none()).take(TRIED_IN_RUNS);
        let mut found = generated.filter_map(|(config, _)| divide(spec, &config, dim, cores(), by).map(|(_, nest)| nest));
        found.find(|nest| writes_along(spec, nest, dim))
    }

    /// Whether a division is that in runs.
    fn is_in_runs(&self, division: usize) -> bool {
        division == self.divisions.len() + 1
    }

    /// The position of each tensor's layout, and each kernel's configuration.
    fn choice(&self, n: u64) -> Option<(Vec<usize>, Vec<Choice>)> {
        let mut digits = MixedRadix::of(n, self.count());
        let mut picks: Vec<usize> = self.knobs().iter().rev().map(|radix| digits.below(*radix as usize)).collect();
        picks.reverse();
        let layouts = digits.picks(&self.tensors);
        let (division, picks) = picks.split_first()?;
        let mut choices = Vec::new();
        for (kernel, class) in self.classes.iter().enumerate() {
            let ranked = self.ranked(kernel, *division, &layouts)?;
            choices.push(ranked[picks[*class] % ranked.len()].clone());
        }
        Some((layouts, choices))
    }

    fn outer(&self, picks: &[usize]) -> KernelConfig {
        let layouts = self.tensors.iter().zip(picks).map(|(t, pick)| (t.data.clone(), t.layouts[*pick].clone())).collect();
        KernelConfig { layouts, ..KernelConfig::default() }
    }

    /// The best configurations of a kernel under layouts of the loop's tensors: of any, or of those divided along a dim, counted from 1.
    fn ranked(&self, kernel: usize, division: usize, picks: &[usize]) -> Option<Ranked> {
        let key = (kernel, division, self.touched[kernel].iter().map(|n| picks[*n]).collect::<Vec<usize>>());
        if let Some(known) = self.ranked.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let found = match division {
            0 => self.rank(kernel, &self.outer(picks)),
            _ if self.is_in_runs(division) => self.link(kernel, picks).or_else(|| self.rank(kernel, &self.outer(picks))),
            // A kernel that cannot be divided keeps its barriers.
            _ => self.divide(kernel, division, picks).or_else(|| self.rank(kernel, &self.outer(picks))),
        };
        let found = found.map(Arc::new);
        self.ranked.write().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
        found
    }

    /// Of a kernel's best configurations those that can be divided along a dim.
    fn divide(&self, kernel: usize, division: usize, picks: &[usize]) -> Option<Vec<Choice>> {
        let (dim, partitioned) = (self.divisions.get(division - 1)?, self.partitioned?);
        let (spec, space) = (&self.body.kernels[kernel], &self.spaces[kernel]);
        let mut found: Vec<Choice> = Vec::new();
        let numbers = self.numbers(kernel, &self.outer(picks))?.into_iter().map(|(n, cost)| (space.config(n), cost));
        // Libraries share out their work by themselves.
        for (config, cost) in numbers.filter(|(config, _)| config.knobs.get("library").is_none()).take(TRIED) {
            let Some(config) = divided(&self.body, spec, &config, dim, cores(), partitioned) else { continue };
            let identity = crate::config_space::identity(spec, space.tensors(), &config);
            if found.iter().all(|(.., known)| *known != identity) {
                found.push((config, cost, identity));
            }
            if found.len() == CHOICES {
                break;
            }
        }
        (!found.is_empty()).then_some(found)
    }

    /// Of a kernel's best configurations those that can be divided along the dim of its run.
    fn link(&self, kernel: usize, picks: &[usize]) -> Option<Vec<Choice>> {
        let (dim, partitioned) = (self.runs.as_ref()?.0.along.get(kernel)?.as_ref()?, self.partitioned?);
        let (spec, space) = (&self.body.kernels[kernel], &self.spaces[kernel]);
        let mut found: Vec<Choice> = Vec::new();
        let numbers = self.numbers(kernel, &self.outer(picks))?.into_iter().map(|(n, cost)| (space.config(n), cost));
        for (config, cost) in numbers.filter(|(config, _)| config.knobs.get("library").is_none()).take(TRIED) {
            let Some((config, nest)) = divide(spec, &config, dim, cores(), partitioned) else { continue };
            let identity = crate::config_space::identity(spec, space.tensors(), &config);
            if writes_along(spec, &nest, dim) && found.iter().all(|(.., known)| *known != identity) {
                found.push((config, cost, identity));
            }
            if found.len() == CHOICES {
                break;
            }
        }
        (!found.is_empty()).then_some(found)
    }

    /// The kernels that the caller does by itself at a number of the space.
    fn before(&self, n: u64) -> &[usize] {
        let in_runs = self.is_in_runs(self.division(n));
        self.runs.as_ref().filter(|_| in_runs).map_or(&[], |(_, before)| before.as_slice())
    }

    /// The division at a number of the space.
    fn division(&self, n: u64) -> usize {
        let radices = self.knobs();
        let first: u64 = radices[1..].iter().product();
        (n / first % radices[0]) as usize
    }

    /// The numbers of a kernel's configurations under layouts of the loop's tensors, with their predicted costs, the least first.
    fn numbers(&self, kernel: usize, outer: &KernelConfig) -> Option<Vec<(u64, f64)>> {
        let space = &self.spaces[kernel];
        let mut at = 0u64;
        for tensor in space.tensors() {
            let own = self.body.inner_layout(outer, self.body.program.containers.get(&tensor.data)?).ok()?;
            let digit = tensor.layouts.iter().position(|l| *l == own)? as u64;
            at = at * tensor.layouts.len() as u64 + digit;
        }
        let knobs = (space.count() / layouts(space.tensors()).max(1)).max(1);
        // Evenly spread, where there are more than can be compared.
        let considered = knobs.min(CONSIDERED);
        let costed = |n: u64| (n, space.predicted_cost(n));
        let mut numbers: Vec<(u64, f64)> = (0..considered).map(|n| costed(at * knobs + n * (knobs / considered))).collect();
        numbers.sort_by(|a, b| a.1.total_cmp(&b.1));
        Some(numbers)
    }

    /// The best configurations of a kernel under layouts of the loop's tensors: generated ones first, and of libraries the best.
    ///
    /// Products of one time are small. A library packs its operands at every time, where generated kernels are packed in common with those
    /// of other times and of other kernels, and often take a third of its time.
    fn rank(&self, kernel: usize, outer: &KernelConfig) -> Option<Vec<Choice>> {
        let (space, mut seen) = (&self.spaces[kernel], BTreeSet::new());
        let (mut found, mut libraries): (Vec<Choice>, Vec<Choice>) = Default::default();
        for (n, cost) in self.numbers(kernel, outer)? {
            let (config, identity) = (space.config(n), space.identity(n));
            let (kept, most) = match config.knobs.get("library").is_some() {
                true => (&mut libraries, LIBRARIES),
                false => (&mut found, CHOICES),
            };
            if kept.len() < most && seen.insert(identity.clone()) {
                kept.push((config, cost, identity));
            }
            if found.len() == CHOICES && libraries.len() == LIBRARIES {
                break;
            }
        }
        if !found.is_empty() {
            found.truncate(CHOICES - libraries.len());
        }
        found.append(&mut libraries);
        Some(found).filter(|found| !found.is_empty())
    }
}

/// The layouts that all kernels of the body have for a container that they read as a whole.
fn shared(body: &Body, spaces: &[Box<dyn ConfigSpace>], outer: &str) -> Option<Vec<Layout>> {
    let own = |space: &dyn ConfigSpace| {
        let found = space.tensors().iter().find(|t| body.outer(&t.data) == Some(outer));
        found.map(|t| t.layouts.clone())
    };
    let found = spaces.iter().filter_map(|space| own(&**space)).reduce(|mut all, more| {
        all.retain(|layout| more.contains(layout));
        all
    })?;
    (!found.is_empty()).then_some(found)
}

impl ConfigSpace for LoopSpace {
    fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        self.knobs().into_iter().fold(layouts(&self.tensors), u64::saturating_mul)
    }

    fn knobs(&self) -> Vec<u64> {
        let classes = self.classes.iter().max().map_or(0, |last| last + 1);
        std::iter::once((self.divisions.len() + 1 + usize::from(self.runs.is_some())) as u64)
            .chain(vec![self.choices as u64; classes])
            .collect()
    }

    fn config(&self, n: u64) -> KernelConfig {
        let Some((picks, choices)) = self.choice(n) else { return KernelConfig::default() };
        let each: Vec<KernelConfig> = choices.into_iter().map(|(config, ..)| config).collect();
        KernelConfig { knobs: with_before(joined(&each), self.before(n)), ..self.outer(&picks) }
    }

    fn identity(&self, n: u64) -> String {
        let Some((picks, choices)) = self.choice(n) else { return String::new() };
        let each: Vec<String> = choices.into_iter().map(|(.., identity)| identity).collect();
        let whole = self.tensors.iter().zip(picks).map(|(t, pick)| format!("{}[{}]", t.data, t.layouts[pick]));
        let before = match self.before(n) {
            [] => String::new(),
            before => format!(" | before: {before:?}"),
        };
        format!("{} | {}{before}", whole.collect::<Vec<_>>().join(" "), each.join(" | "))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        let Some((_, choices)) = self.choice(n) else { return f64::INFINITY };
        let more = match (self.division(n), &self.runs) {
            (0, _) => choices.len() as f64 * BARRIER,
            (division, Some((runs, _))) if self.is_in_runs(division) => runs.count as f64 * BARRIER,
            _ => self.read_by_each,
        };
        (choices.iter().map(|(_, cost, _)| cost).sum::<f64>() + more) * self.body.trips as f64
    }

    /// The same choices with a barrier after each kernel; for a number that has these, divided in runs.
    fn control(&self, n: u64) -> Option<u64> {
        let radices = self.knobs();
        let first: u64 = radices[1..].iter().product();
        let undivided = n - self.division(n) as u64 * first;
        match self.division(n) {
            0 => self.runs.is_some().then(|| undivided + (radices[0] - 1) * first),
            _ => Some(undivided),
        }
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let configs = self.body.configs(config).unwrap_or_default();
        !configs.is_empty() && self.spaces.iter().zip(&configs).all(|(space, config)| space.matches_rule_of_thumb(config))
    }
}
