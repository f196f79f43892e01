//! The choice as numbers: one variable per class of tied containers, one factor per kernel.
//!
//! A class is *held* in one of its layouts. An option of a kernel is a measured configuration; run while its containers
//! are held elsewhere it also pays their relayouts, so every kernel is usable in every held layout although only some
//! combinations were measured. Held layouts are those that a measured configuration of some kernel uses, the natural
//! one, and the one that the boundary asks for.
//!
//! Options of one kernel with the same layouts differ by knobs only; the fastest two are kept (the second one answers
//! "what if not this configuration").

use crate::problem::{Access, Program};
use crate::relayout::RelayoutCosts;
use crate::store::Store;
use sdfg::config::KernelConfig;
use sdfg::{Layout, Pass};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    #[error("the kernel `{0}` has no measured configuration; sweep it first (or longer)")]
    Unmeasured(String),
    #[error("the program names the container `{0}` in a tie, a boundary or a kernel, but does not describe it")]
    UnknownTensor(String),
    #[error("`{a}` and `{b}` are tied but have different dims (`{left}` and `{right}`); tie only containers of equal dims")]
    Tie { a: String, b: String, left: Layout, right: Layout },
    #[error("`{a}` is fixed to `{left}` and `{b}`, tied to it, to `{right}`; free one of them")]
    Boundary { a: String, b: String, left: Layout, right: Layout },
    #[error("forbidding `{0}` leaves no choice")]
    Exhausted(String),
}

/// Containers that share one layout.
#[derive(Clone, Debug)]
pub struct Class {
    pub members: Vec<String>,
    /// All layouts that occur: the natural one first, then in order.
    pub layouts: Vec<Layout>,
    /// Positions in `layouts` in which it may be held; ascending.
    pub domain: Vec<u16>,
    pub fixed: bool,
}

/// A container as used by one kernel.
#[derive(Clone, Debug)]
pub struct Use {
    pub data: String,
    pub class: usize,
    pub access: Access,
    /// `cost[held][wanted]` in milliseconds: before the kernel for a read, after it for a write.
    pub cost: Vec<Vec<f64>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub ms: f64,
    /// One layout per use, as a position in the class's layouts.
    pub layouts: Vec<u16>,
    pub config: KernelConfig,
}

#[derive(Clone, Debug)]
pub struct Factor {
    pub name: String,
    pub pass: Pass,
    pub uses: Vec<Use>,
    /// Fastest first; equal times in order of the configurations.
    pub choices: Vec<Choice>,
}

impl Factor {
    /// Time of a choice and of the relayouts it needs.
    pub fn cost(&self, choice: &Choice, held: &[u16]) -> f64 {
        let relayouts: f64 = self.uses.iter().zip(&choice.layouts).map(|(u, l)| u.cost[held[u.class] as usize][*l as usize]).sum();
        choice.ms + relayouts
    }

    /// The cheapest choice under these held layouts; the first one among equals.
    pub fn best(&self, held: &[u16]) -> (usize, f64) {
        let mut best = (0, f64::INFINITY);
        for (n, choice) in self.choices.iter().enumerate() {
            // Choices are sorted by time: none of the rest can be cheaper.
            if choice.ms >= best.1 {
                break;
            }
            let cost = self.cost(choice, held);
            if cost < best.1 {
                best = (n, cost);
            }
        }
        best
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    pub classes: Vec<Class>,
    pub factors: Vec<Factor>,
    /// Container → class.
    pub class_of: BTreeMap<String, usize>,
}

fn sorted_dims(layout: &Layout) -> Vec<&str> {
    let dims: BTreeSet<&str> = layout.pieces.iter().map(|p| p.dim.as_str()).collect();
    dims.into_iter().collect()
}

impl Model {
    pub fn new(program: &Program, store: &Store, costs: &RelayoutCosts) -> Result<Self, SelectError> {
        let (mut classes, class_of) = classes(program)?;
        let mut measured: Vec<Vec<(f64, &KernelConfig)>> = Vec::new();
        let mut found: Vec<BTreeSet<Layout>> = vec![BTreeSet::new(); classes.len()];
        for kernel in &program.kernels {
            let timed: Vec<_> = store.of(&kernel.key).filter_map(|m| Some((store.ms(m)?, &m.config))).collect();
            if timed.is_empty() {
                return Err(SelectError::Unmeasured(kernel.name.clone()));
            }
            for (data, _) in &kernel.tensors {
                let class = *class_of.get(data).ok_or_else(|| SelectError::UnknownTensor(data.clone()))?;
                found[class].extend(timed.iter().filter_map(|(_, config)| config.layouts.get(data)).cloned());
            }
            measured.push(timed);
        }
        for (class, found) in classes.iter_mut().zip(found) {
            class.layouts.extend(found.into_iter().filter(|l| !class.layouts.contains(l)).collect::<Vec<_>>());
            if !class.fixed {
                class.domain = (0..class.layouts.len() as u16).collect();
            }
        }
        let mut factors = Vec::new();
        for (kernel, timed) in program.kernels.iter().zip(measured) {
            let mut uses = Vec::new();
            for (data, access) in &kernel.tensors {
                let class = class_of[data];
                let layouts = &classes[class].layouts;
                let cost = |held: &Layout, wanted: &Layout| match access {
                    Access::Read => costs.cost(data, held, wanted).ms,
                    Access::Write => costs.cost(data, wanted, held).ms,
                };
                let cost = layouts.iter().map(|held| layouts.iter().map(|wanted| cost(held, wanted)).collect()).collect();
                uses.push(Use { data: data.clone(), class, access: *access, cost });
            }
            let mut choices: Vec<Choice> = Vec::new();
            for (ms, config) in timed {
                // A container without an entry (it has one layout only) is natural: position 0.
                let position = |u: &Use| {
                    let wanted = config.layouts.get(&u.data)?;
                    classes[u.class].layouts.iter().position(|l| l == wanted).map(|p| p as u16)
                };
                choices.push(Choice { ms, layouts: uses.iter().map(|u| position(u).unwrap_or(0)).collect(), config: config.clone() });
            }
            choices.sort_by(|a, b| a.ms.total_cmp(&b.ms).then_with(|| a.config.cmp(&b.config)));
            let mut kept: BTreeMap<Vec<u16>, u8> = BTreeMap::new();
            choices.retain(|c| {
                let n = kept.entry(c.layouts.clone()).or_default();
                *n += 1;
                *n <= 2
            });
            factors.push(Factor { name: kernel.name.clone(), pass: kernel.pass, uses, choices });
        }
        Ok(Model { classes, factors, class_of })
    }

    /// Cost of holding the classes so, with the best choice of every kernel.
    pub fn total(&self, held: &[u16]) -> f64 {
        self.factors.iter().map(|f| f.best(held).1).sum()
    }

    /// Sum over kernels of their fastest measured configuration, whatever its layouts: no choice costs less.
    pub fn sum_of_minima(&self) -> f64 {
        self.factors.iter().filter_map(|f| f.choices.first()).map(|c| c.ms).sum()
    }

    /// Row-major, except where the boundary asks for something else.
    pub fn natural(&self) -> Vec<u16> {
        self.classes.iter().map(|c| c.domain.first().copied().unwrap_or(0)).collect()
    }

    /// The model in which a container may not be held in a layout.
    pub fn without_layout(&self, data: &str, layout: &Layout) -> Result<Model, SelectError> {
        let class = *self.class_of.get(data).ok_or_else(|| SelectError::UnknownTensor(data.to_string()))?;
        let mut model = self.clone();
        let Class { domain, layouts, .. } = &mut model.classes[class];
        domain.retain(|l| layouts[*l as usize] != *layout);
        if domain.is_empty() { Err(SelectError::Exhausted(format!("{data}[{layout}]"))) } else { Ok(model) }
    }

    /// The model in which a kernel may not use a configuration.
    pub fn without_config(&self, kernel: &str, config: &KernelConfig) -> Result<Model, SelectError> {
        let mut model = self.clone();
        for factor in model.factors.iter_mut().filter(|f| f.name == kernel) {
            factor.choices.retain(|c| c.config != *config);
            if factor.choices.is_empty() {
                return Err(SelectError::Exhausted(format!("{kernel}: {config}")));
            }
        }
        Ok(model)
    }
}

/// Classes of tied containers, with the natural layout and the fixed one if there is one.
fn classes(program: &Program) -> Result<(Vec<Class>, BTreeMap<String, usize>), SelectError> {
    let position: BTreeMap<&str, usize> = program.tensors.iter().enumerate().map(|(n, t)| (t.data.as_str(), n)).collect();
    let at = |data: &String| position.get(data.as_str()).copied().ok_or_else(|| SelectError::UnknownTensor(data.clone()));
    // Union-find by smallest position, so that classes come in the order of the program.
    let mut parent: Vec<usize> = (0..program.tensors.len()).collect();
    fn root(parent: &[usize], mut n: usize) -> usize {
        while parent[n] != n {
            n = parent[n];
        }
        n
    }
    for (a, b) in &program.ties {
        let (left, right) = (&program.tensors[at(a)?].natural, &program.tensors[at(b)?].natural);
        if sorted_dims(left) != sorted_dims(right) {
            return Err(SelectError::Tie { a: a.clone(), b: b.clone(), left: left.clone(), right: right.clone() });
        }
        let (x, y) = (root(&parent, at(a)?), root(&parent, at(b)?));
        parent[x.max(y)] = x.min(y);
    }
    let mut classes: Vec<Class> = Vec::new();
    let mut class_of = BTreeMap::new();
    let mut of_root = BTreeMap::new();
    for (n, tensor) in program.tensors.iter().enumerate() {
        let class = *of_root.entry(root(&parent, n)).or_insert_with(|| {
            classes.push(Class { members: Vec::new(), layouts: vec![tensor.natural.clone()], domain: vec![0], fixed: false });
            classes.len() - 1
        });
        classes[class].members.push(tensor.data.clone());
        class_of.insert(tensor.data.clone(), class);
    }
    let mut fixed_by: BTreeMap<usize, &String> = BTreeMap::new();
    for (data, layout) in &program.boundary {
        let class = class_of[&program.tensors[at(data)?].data];
        if let Some(other) = fixed_by.insert(class, data)
            && program.boundary[other] != *layout
        {
            let left = program.boundary[other].clone();
            return Err(SelectError::Boundary { a: other.clone(), b: data.clone(), left, right: layout.clone() });
        }
        let Class { layouts, domain, fixed, .. } = &mut classes[class];
        if !layouts.contains(layout) {
            layouts.push(layout.clone());
        }
        *domain = layouts.iter().position(|l| l == layout).map(|p| p as u16).into_iter().collect();
        *fixed = true;
    }
    Ok((classes, class_of))
}
