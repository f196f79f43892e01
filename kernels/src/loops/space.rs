//! Every way to run a loop: a layout of each tensor that the body reads as a whole, and one of the best configurations of each kernel of
//! the body under these layouts.

use super::body::{Body, joined};
use crate::device::Device;
use crate::error::KernelError;
use crate::kernel::{ConfigSpace, KernelSpec, TensorChoice, unsupported};
use crate::mixed_radix::{MixedRadix, layouts};
use sdfg::Layout;
use sdfg::config::KernelConfig;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Configurations of a kernel among which a loop chooses, the best by predicted cost.
const CHOICES: usize = 8;
/// Configurations that are compared for that.
const CONSIDERED: u64 = 512;

/// The numbers of a kernel's best configurations under given layouts.
type Ranked = Arc<Vec<u64>>;

pub struct LoopSpace {
    body: Body,
    tensors: Vec<TensorChoice>,
    spaces: Vec<Box<dyn ConfigSpace>>,
    /// By kernel and the layouts of its tensors.
    ranked: Mutex<HashMap<(usize, Vec<Layout>), Ranked>>,
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
        let space = LoopSpace { body, tensors, spaces, ranked: Mutex::default() };
        // Every layout of a slice must be one of its kernels'.
        space.choice(0).ok_or_else(|| unsupported(spec, "a kernel of its body has no layout in which the times come first"))?;
        Ok(space)
    }

    /// The layouts of the tensors and the number of each kernel's configuration.
    fn choice(&self, n: u64) -> Option<(KernelConfig, Vec<u64>)> {
        let mut digits = MixedRadix::of(n, self.count());
        let mut picks: Vec<usize> = self.spaces.iter().rev().map(|_| digits.below(CHOICES)).collect();
        picks.reverse();
        let layouts: BTreeMap<String, Layout> = digits.layouts(&self.tensors);
        let outer = KernelConfig { layouts, ..KernelConfig::default() };
        let mut numbers = Vec::new();
        for (kernel, pick) in picks.into_iter().enumerate() {
            let ranked = self.ranked(kernel, &outer)?;
            numbers.push(ranked[pick % ranked.len()]);
        }
        Some((outer, numbers))
    }

    /// The best configurations of a kernel under layouts of the loop's tensors.
    fn ranked(&self, kernel: usize, outer: &KernelConfig) -> Option<Ranked> {
        let space = &self.spaces[kernel];
        let mut own = Vec::new();
        for tensor in space.tensors() {
            own.push(self.body.inner_layout(outer, self.body.program.containers.get(&tensor.data)?).ok()?);
        }
        let lock = || self.ranked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&(kernel, own.clone())) {
            return Some(known.clone());
        }
        let mut at = 0u64;
        for (tensor, layout) in space.tensors().iter().zip(&own) {
            let digit = tensor.layouts.iter().position(|l| l == layout)? as u64;
            at = at * tensor.layouts.len() as u64 + digit;
        }
        let knobs = (space.count() / layouts(space.tensors()).max(1)).max(1);
        let mut numbers: Vec<u64> = (0..knobs.min(CONSIDERED)).map(|knob| at * knobs + knob).collect();
        numbers.sort_by(|a, b| space.predicted_cost(*a).total_cmp(&space.predicted_cost(*b)));
        let mut seen = std::collections::BTreeSet::new();
        numbers.retain(|n| seen.len() < CHOICES && seen.insert(space.identity(*n)));
        let ranked = Arc::new(numbers);
        lock().insert((kernel, own), ranked.clone());
        (!ranked.is_empty()).then_some(ranked)
    }
}

/// The layouts that all kernels of the body have for a container that they read as a whole.
fn shared(body: &Body, spaces: &[Box<dyn ConfigSpace>], outer: &str) -> Option<Vec<Layout>> {
    let own = |space: &Box<dyn ConfigSpace>| {
        let found = space.tensors().iter().find(|t| body.outer(&t.data) == Some(outer));
        found.map(|t| t.layouts.clone())
    };
    let found = spaces.iter().filter_map(own).reduce(|mut all, more| {
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
        self.spaces.iter().map(|_| CHOICES as u64).collect()
    }

    fn config(&self, n: u64) -> KernelConfig {
        let Some((outer, numbers)) = self.choice(n) else { return KernelConfig::default() };
        let each: Vec<KernelConfig> = self.spaces.iter().zip(numbers).map(|(space, n)| space.config(n)).collect();
        KernelConfig { knobs: joined(&each), ..outer }
    }

    fn identity(&self, n: u64) -> String {
        let Some((outer, numbers)) = self.choice(n) else { return String::new() };
        let each: Vec<String> = self.spaces.iter().zip(numbers).map(|(space, n)| space.identity(n)).collect();
        let whole: Vec<String> = outer.layouts.iter().map(|(data, layout)| format!("{data}[{layout}]")).collect();
        format!("{} | {}", whole.join(" "), each.join(" | "))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        let Some((_, numbers)) = self.choice(n) else { return f64::INFINITY };
        let each = self.spaces.iter().zip(numbers).map(|(space, n)| space.predicted_cost(n));
        each.sum::<f64>() * self.body.trips as f64
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let configs = self.body.configs(config).unwrap_or_default();
        !configs.is_empty() && self.spaces.iter().zip(&configs).all(|(space, config)| space.matches_rule_of_thumb(config))
    }
}
