//! Every way to run a loop: a layout of each tensor that the body reads as a whole, and one of the best configurations of each kernel of
//! the body under these layouts.

use super::body::{Body, joined};
use crate::alpha_equivalence::KernelClass;
use crate::device::Device;
use crate::error::KernelError;
use crate::kernel::{ConfigSpace, KernelSpec, TensorChoice, unsupported};
use crate::mixed_radix::{MixedRadix, layouts};
use sdfg::Layout;
use sdfg::config::KernelConfig;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

/// Configurations of a kernel among which a loop chooses at most, the best by predicted cost.
const CHOICES: usize = 8;
/// Choices for all kernels of a body together, at most: a loop has few enough to be listed.
const TOGETHER: usize = 4096;
/// Configurations that are compared for that.
const CONSIDERED: u64 = 512;

/// The numbers of a kernel's best configurations under given layouts, with their predicted costs.
type Ranked = Arc<Numbered>;

/// Configurations by number, with their predicted costs.
type Numbered = Vec<(u64, f64)>;

/// By kernel and the positions of the layouts of the tensors that it touches.
type RankedByLayouts = HashMap<(usize, Vec<usize>), Option<Ranked>>;

pub struct LoopSpace {
    body: Body,
    tensors: Vec<TensorChoice>,
    spaces: Vec<Box<dyn ConfigSpace>>,
    /// The class of each kernel: those that are the same but for names choose together.
    classes: Vec<usize>,
    /// Configurations that each class chooses among.
    choices: usize,
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
        let space = LoopSpace { body, tensors, spaces, classes, choices, touched, ranked: RwLock::default() };
        // Every layout of a slice must be one of its kernels'.
        space.choice(0).ok_or_else(|| unsupported(spec, "a kernel of its body has no layout in which the times come first"))?;
        Ok(space)
    }

    /// The position of each tensor's layout, and the number and predicted cost of each kernel's configuration.
    fn choice(&self, n: u64) -> Option<(Vec<usize>, Numbered)> {
        let mut digits = MixedRadix::of(n, self.count());
        let mut picks: Vec<usize> = self.knobs().iter().map(|radix| digits.below(*radix as usize)).collect();
        picks.reverse();
        let layouts = digits.picks(&self.tensors);
        let mut numbers = Vec::new();
        for (kernel, class) in self.classes.iter().enumerate() {
            let ranked = self.ranked(kernel, &layouts)?;
            numbers.push(ranked[picks[*class] % ranked.len()]);
        }
        Some((layouts, numbers))
    }

    fn outer(&self, picks: &[usize]) -> KernelConfig {
        let layouts = self.tensors.iter().zip(picks).map(|(t, pick)| (t.data.clone(), t.layouts[*pick].clone())).collect();
        KernelConfig { layouts, ..KernelConfig::default() }
    }

    /// The best configurations of a kernel under layouts of the loop's tensors.
    fn ranked(&self, kernel: usize, picks: &[usize]) -> Option<Ranked> {
        let key = (kernel, self.touched[kernel].iter().map(|n| picks[*n]).collect::<Vec<usize>>());
        if let Some(known) = self.ranked.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let found = self.rank(kernel, &self.outer(picks)).map(Arc::new);
        self.ranked.write().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
        found
    }

    fn rank(&self, kernel: usize, outer: &KernelConfig) -> Option<Vec<(u64, f64)>> {
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
        let mut seen = BTreeSet::new();
        numbers.retain(|(n, _)| seen.len() < CHOICES && seen.insert(space.identity(*n)));
        (!numbers.is_empty()).then_some(numbers)
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
        vec![self.choices as u64; classes]
    }

    fn config(&self, n: u64) -> KernelConfig {
        let Some((picks, numbers)) = self.choice(n) else { return KernelConfig::default() };
        let each: Vec<KernelConfig> = self.spaces.iter().zip(numbers).map(|(space, (n, _))| space.config(n)).collect();
        KernelConfig { knobs: joined(&each), ..self.outer(&picks) }
    }

    fn identity(&self, n: u64) -> String {
        let Some((picks, numbers)) = self.choice(n) else { return String::new() };
        let each: Vec<String> = self.spaces.iter().zip(numbers).map(|(space, (n, _))| space.identity(n)).collect();
        let whole = self.tensors.iter().zip(picks).map(|(t, pick)| format!("{}[{}]", t.data, t.layouts[pick]));
        format!("{} | {}", whole.collect::<Vec<_>>().join(" "), each.join(" | "))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        let Some((_, numbers)) = self.choice(n) else { return f64::INFINITY };
        numbers.iter().map(|(_, cost)| cost).sum::<f64>() * self.body.trips as f64
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let configs = self.body.configs(config).unwrap_or_default();
        !configs.is_empty() && self.spaces.iter().zip(&configs).all(|(space, config)| space.matches_rule_of_thumb(config))
    }
}
