//! The templates of a kernel: those that the configurations of its space mean, and the configurations that mean one of them.

use super::grammar::{DimAttribute, ScheduleTemplate};
use super::operators::KernelOperators;
use super::{TemplateOf, TemplateSyntaxError};
use crate::config_space::ConfigSpace;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::mixed_radix::layouts;
use indexmap::IndexMap;
use rayon::prelude::*;
use sdfg::Layout;
use sdfg::config::KernelConfig;
use std::collections::{BTreeMap, BTreeSet};

/// Most configurations that are looked at. Each is printed in memory, which takes up to a millisecond.
const LOOKED: u64 = 4096;
/// The golden ratio of 64 bits: its multiples are spread evenly, in every digit of a number.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Templates that are named where one is not found.
const NEAREST: usize = 3;

/// Why a template is none of a kernel.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error(transparent)]
    Syntax(#[from] TemplateSyntaxError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error("`{kernel}` has no schedule template: {why}")]
    NoTemplate { kernel: String, why: String },
    #[error("`{kernel}` has no operator `{operator}` that writes memory; it has {known}")]
    UnknownOperator { kernel: String, operator: String, known: String },
    #[error("`{operator}` of `{kernel}` has {} ({}), and the template gives {given} attributes; give one for each", count(dims.len()), dims.join(", "))]
    Dims { kernel: String, operator: String, dims: Vec<String>, given: usize },
    #[error("no configuration of `{kernel}` means this template, of {looked_at} that were looked at{}; the nearest are\n{}", of(*looked_at, *all), nearest.join("\n"))]
    NotFound { kernel: String, looked_at: u64, all: u64, nearest: Vec<String> },
}

fn count(dims: usize) -> String {
    if dims == 1 { "one dim".into() } else { format!("{dims} dims") }
}

fn of(looked_at: u64, all: u64) -> String {
    if looked_at < all { format!(" (of {all})") } else { String::new() }
}

/// A template, and the configurations that mean it.
#[derive(Clone, Debug)]
pub struct MeantTemplate {
    pub template: ScheduleTemplate,
    /// Configurations that mean it, of those that were looked at; those that run the same code on the same addresses count once.
    pub configurations: u64,
    /// The most promising one of those that need no relayout in the plan, if there are any.
    pub config: KernelConfig,
    /// Its predicted cost in bytes, with the bytes of the relayouts that it needs in the plan.
    pub cost: f64,
    /// Containers that it holds in another layout than the plan does.
    pub relayouts: Vec<String>,
}

impl MeantTemplate {
    /// Whether a configuration is taken in the place of another one that means the same: layouts of the plan are kept where that is
    /// possible.
    fn is_better_than(&self, other: &MeantTemplate) -> bool {
        match (self.relayouts.is_empty(), other.relayouts.is_empty()) {
            (true, false) => true,
            (false, true) => false,
            _ => self.cost < other.cost,
        }
    }
}

/// The templates of a kernel.
#[derive(Clone, Debug)]
pub struct TemplateSpace {
    kernel: String,
    operators: KernelOperators,
    /// Each once, the most promising one first.
    pub templates: Vec<MeantTemplate>,
    /// Configurations of the space, and how many of them were looked at.
    pub all: u64,
    pub looked_at: u64,
    /// Of these, those of a library, or whose code is no loop nest of the grammar; and those that cannot be generated.
    pub without: u64,
    pub refused: u64,
}

/// Layouts in which containers are held, by name.
type Held = BTreeMap<String, Layout>;

/// What a configuration means.
enum Meaning {
    Template(ScheduleTemplate),
    None,
    Refused,
}

impl TemplateSpace {
    /// Looks at the configurations of a space: at all of a small one; of a large one at those with the layouts of `held`, and at some that
    /// are spread over the others. `held` are the layouts in which the plan holds containers, and `own` is the configuration that it runs,
    /// which is looked at in any case.
    ///
    /// # Errors
    /// Kernels that have no operators with dims; a configuration of the plan that cannot be generated.
    pub fn new(
        spec: &KernelSpec,
        space: &dyn ConfigSpace,
        (own, held): (&KernelConfig, &Held),
        template_of: TemplateOf,
    ) -> Result<Self, KernelError> {
        let operators = KernelOperators::of(spec)?;
        let numbers = numbers(space, held);
        let look = |n: &u64| {
            let config = space.config(*n);
            let meaning = match template_of(spec, &config) {
                Ok(Some(template)) => Meaning::Template(template),
                Ok(None) => Meaning::None,
                Err(_) => Meaning::Refused,
            };
            (space.identity(*n), meaning, config)
        };
        let costs = space.predicted_costs(&numbers);
        let looked: Vec<(String, Meaning, KernelConfig)> = numbers.par_iter().map(look).collect();
        let mut found = TemplateSpace {
            kernel: spec.name.clone(),
            operators,
            templates: vec![],
            all: space.count(),
            looked_at: numbers.len() as u64,
            without: 0,
            refused: 0,
        };
        let (mut seen, mut templates): (BTreeSet<String>, IndexMap<ScheduleTemplate, MeantTemplate>) = Default::default();
        for ((identity, meaning, config), predicted) in looked.into_iter().zip(costs) {
            let template = match meaning {
                Meaning::Template(template) => template,
                Meaning::None => {
                    found.without += 1;
                    continue;
                }
                Meaning::Refused => {
                    found.refused += 1;
                    continue;
                }
            };
            let new = u64::from(seen.insert(identity));
            let (relayouts, bytes) = relayouts(spec, &config, held);
            let meant = MeantTemplate { template: template.clone(), configurations: new, config, cost: predicted + bytes, relayouts };
            match templates.get_mut(&template) {
                None => drop(templates.insert(template, meant)),
                Some(best) => {
                    let configurations = best.configurations + new;
                    if meant.is_better_than(best) {
                        *best = meant;
                    }
                    best.configurations = configurations;
                }
            }
        }
        // What the plan runs may be no configuration of the space: packing divides kernels in other tiles.
        if let Some(template) = template_of(spec, own)? {
            let (relayouts, _) = relayouts(spec, own, held);
            let meant =
                || MeantTemplate { template: template.clone(), configurations: 1, config: own.clone(), cost: f64::INFINITY, relayouts };
            templates.entry(template.clone()).or_insert_with(meant);
        }
        found.templates = templates.into_values().collect();
        found.templates.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        Ok(found)
    }

    /// The operators that templates of the kernel may name, with their dims.
    pub fn operators(&self) -> &KernelOperators {
        &self.operators
    }

    /// The template of the kernel that a text means, with the configurations that mean it. Launch parameters that are absent may have any
    /// value.
    ///
    /// # Errors
    /// Operators and dims that the kernel does not have; templates that no configuration means, with the nearest that some do.
    pub fn find(&self, asked: &ScheduleTemplate, own: Option<&ScheduleTemplate>) -> Result<&MeantTemplate, TemplateError> {
        if self.templates.is_empty() {
            let why = format!("none of {} configurations is a loop nest that is generated here", self.looked_at);
            return Err(TemplateError::NoTemplate { kernel: self.kernel.clone(), why });
        }
        // Of an operator that lowering adds, the number of dims is that of its schedules.
        let among = |operator: &str| self.templates.iter().flat_map(|t| &t.template.schedules).find(|s| s.operator == *operator);
        let mut wanted = asked.clone();
        for schedule in &mut wanted.schedules {
            let Some(other) = among(&schedule.operator) else {
                let mut known: Vec<&str> = Vec::new();
                for schedule in self.templates.iter().flat_map(|t| &t.template.schedules) {
                    if !known.contains(&schedule.operator.as_str()) {
                        known.push(&schedule.operator);
                    }
                }
                let known = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                return Err(TemplateError::UnknownOperator { kernel: self.kernel.clone(), operator: schedule.operator.clone(), known });
            };
            let dims = self.operators.get(&schedule.operator).map(|o| o.dims.clone()).unwrap_or_default();
            let (given, needed) = (schedule.attributes.len(), other.attributes.len());
            if given != needed {
                let dims = dims.into_iter().map(|(index, _)| index).collect();
                return Err(TemplateError::Dims { kernel: self.kernel.clone(), operator: schedule.operator.clone(), dims, given });
            }
            for (attribute, (_, extent)) in schedule.attributes.iter_mut().zip(&dims) {
                *attribute = attribute.canonical(*extent);
            }
        }
        let mut ranked: Vec<(usize, &MeantTemplate)> = self.templates.iter().map(|t| (distance(&wanted, &t.template), t)).collect();
        // Among equals the plan's own comes first, then what needs no relayout, then what costs least.
        ranked.sort_by_key(|(distance, t)| (*distance, own != Some(&t.template), !t.relayouts.is_empty()));
        match ranked.first() {
            Some((0, found)) => Ok(found),
            _ => {
                let nearest = ranked.iter().take(NEAREST).map(|(_, t)| format!("  {}", t.template)).collect();
                Err(TemplateError::NotFound { kernel: self.kernel.clone(), looked_at: self.looked_at, all: self.all, nearest })
            }
        }
    }
}

/// Numbers of configurations to look at, each once, in ascending order.
fn numbers(space: &dyn ConfigSpace, held: &Held) -> Vec<u64> {
    let all = space.count();
    if all <= LOOKED {
        return (0..all).collect();
    }
    // The layouts are the slower digits of a number, that of the first tensor the slowest.
    let tensors = space.tensors();
    let knobs = (all / layouts(tensors).max(1)).max(1);
    let place = tensors.iter().fold(0u64, |n, t| {
        let own = held.get(&t.data).and_then(|layout| t.layouts.iter().position(|l| l == layout));
        n.saturating_mul(t.layouts.len() as u64).saturating_add(own.unwrap_or(0) as u64)
    });
    let spread = |n: u64, of: u64| ((u128::from(n.wrapping_mul(SPREAD)) * u128::from(of)) >> 64) as u64;
    let near = knobs.min(LOOKED / 2);
    let here = (0..near).map(|n| if near == knobs { n } else { spread(n, knobs) }).map(|knob| place.saturating_mul(knobs) + knob);
    let numbers: BTreeSet<u64> = here.chain((0..LOOKED - near).map(|n| spread(n, all))).filter(|n| *n < all).collect();
    numbers.into_iter().collect()
}

/// Containers that a configuration holds in another layout than `held`, and the bytes that are moved to give it these and to take them
/// back.
fn relayouts(spec: &KernelSpec, config: &KernelConfig, held: &Held) -> (Vec<String>, f64) {
    let other = |data: &&String| held.get(*data).is_some_and(|layout| Some(layout) != config.layouts.get(*data));
    let changed: Vec<String> = config.layouts.keys().filter(other).cloned().collect();
    let elements = |data: &String| spec.shape(data).map_or(0, |shape| shape.iter().product::<usize>());
    let bytes = |data: &String| spec.containers.get(data).map_or(0, |c| c.dtype.bytes(elements(data) as u64));
    let moved = changed.iter().map(|data| 2.0 * bytes(data) as f64).sum();
    (changed, moved)
}

/// How much two templates differ: a schedule that one lacks counts as all of its dims and one more, a dim that is walked otherwise as two
/// if others walk it, and as one if in other parts.
fn distance(asked: &ScheduleTemplate, other: &ScheduleTemplate) -> usize {
    let kinds = |attribute: &DimAttribute| match attribute {
        DimAttribute::Whole(kind) => vec![*kind],
        DimAttribute::Levels(levels) => levels.iter().map(|(kind, _)| *kind).collect(),
    };
    let find = |of: &ScheduleTemplate, operator: &str| of.schedules.iter().find(|s| s.operator == operator).cloned();
    let mut total = 0;
    for schedule in &asked.schedules {
        let Some(theirs) = find(other, &schedule.operator) else {
            total += 2 * schedule.attributes.len() + 1;
            continue;
        };
        total += usize::from(schedule.on_chip != theirs.on_chip);
        for (a, b) in schedule.attributes.iter().zip(&theirs.attributes) {
            total += usize::from(a != b) + usize::from(kinds(a) != kinds(b));
        }
    }
    let missing = other.schedules.iter().filter(|s| find(asked, &s.operator).is_none());
    total += missing.map(|s| 2 * s.attributes.len() + 1).sum::<usize>();
    let launch = |asked: Option<u64>, theirs: Option<u64>| usize::from(asked.is_some() && asked != theirs);
    total + launch(asked.cta_num, other.cta_num) + launch(asked.cta_size, other.cta_size)
}
