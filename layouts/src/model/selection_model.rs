//! The choice as numbers: one variable per class of tied containers, one factor per kernel.
//!
//! A class is *held* in one of its layouts. An option of a kernel is a measured configuration; run while its containers
//! are held elsewhere it also pays their relayouts, so every kernel is usable in every held layout although only some
//! combinations were measured. Held layouts are those that a measured configuration of some kernel uses, the natural
//! one, and the one that the boundary asks for.
//!
//! Options of one kernel with the same layouts differ by knobs only; the fastest two are kept (the second one answers
//! "what if not this configuration").
//!
//! Alternatives are variables too: a kernel is guarded by the variants in which it runs. A variant that was not swept to
//! the point where each of its kernels has a time cannot be chosen yet and is left out, by name.

use crate::measure::record::{Measurement, Outcome};
use crate::measure::relayout::RelayoutCosts;
use crate::measure::store::Store;
use crate::model::cost::{Cost, FORBIDDEN, picoseconds};
use crate::problem::{Access, Kernel, SelectionProblem, Variants};
use petgraph::unionfind::UnionFind;
use sdfg::config::KernelConfig;
use sdfg::{Direction, Layout};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    #[error("the kernel `{kernel}` has no measured configuration; {why}")]
    Unmeasured { kernel: String, why: String },
    #[error("`{what}` has a time of {ms} ms; a time is a number from 0 to about a million milliseconds: delete that record")]
    Time { what: String, ms: String },
    #[error("the times of this program add up to more than 20 hours, which is beyond exact arithmetic")]
    TooLong,
    #[error("the kernel `{kernel}` runs only in `{variant}` of `{group}`, which is no alternative of the program")]
    UnknownVariant { kernel: String, group: String, variant: String },
    #[error("a variant needs something of `{0}`, which is no group of alternatives of the program, or has no such variant")]
    UnknownNeed(String),
    #[error("the program names the container `{0}` in a tie, a boundary or a kernel, but does not describe it")]
    UnknownTensor(String),
    #[error("`{a}` and `{b}` are tied but have different dims (`{left}` and `{right}`); tie only containers of equal dims")]
    Tie { a: String, b: String, left: Layout, right: Layout },
    #[error("`{a}` is fixed to `{left}` and `{b}`, tied to it, to `{right}`; free one of them")]
    Boundary { a: String, b: String, left: Layout, right: Layout },
    #[error("a layer is joined to the next by one result and one input of equal layouts; this program has {0} such pairs: name them")]
    NoJoin(usize),
    #[error("`{near}` cannot be `{far}` of the next layer: one of them is tied to the other, or joined already")]
    Joined { near: String, far: String },
    #[error("forbidding `{0}` leaves no choice")]
    Exhausted(String),
}

/// Why a kernel has no time: it was not tried, or it failed.
fn unmeasured(kernel: &Kernel, store: &Store) -> SelectError {
    let tried: Vec<&Measurement> = store.of(&kernel.key).collect();
    let failed = tried.iter().find_map(|m| if let Outcome::Failed { reason } = &m.outcome { Some(reason) } else { None });
    let wrong = tried.iter().filter(|m| matches!(m.outcome, Outcome::Mismatch)).filter_map(|m| m.check).reduce(f64::min);
    let why = match (failed, wrong) {
        // Of a compiler's words the first ones tell.
        (Some(reason), _) => format!("it was tried, and failed: {}", reason.lines().take(2).collect::<Vec<_>>().join(" ")),
        (None, Some(f64::MAX)) => "it was tried, and its results are no numbers where the oracle has some, or the other way round".into(),
        (None, Some(ratio)) => format!("it was tried, and its results are wrong, by {ratio:.3} times their tolerance at least"),
        (None, None) => "sweep it first (or longer)".into(),
    };
    SelectError::Unmeasured { kernel: kernel.name.clone(), why }
}

/// Containers that share one layout.
#[derive(Clone, Debug)]
pub struct LayoutClass {
    pub members: Vec<String>,
    /// All layouts that occur: the natural one first, then in order.
    pub layouts: Vec<Layout>,
    /// Positions in `layouts` in which it may be held; ascending.
    pub domain: Vec<u16>,
    pub fixed: bool,
    /// Positions in which it may not be held where layers of a stack meet.
    pub barred: Vec<u16>,
}

/// A container as used by one kernel.
#[derive(Clone, Debug)]
pub struct ContainerUse {
    pub data: String,
    pub class: usize,
    pub access: Access,
    /// `cost[held][wanted]` in picoseconds: before the kernel for a read, after it for a write, both for an update.
    pub cost: Vec<Vec<Cost>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Picoseconds.
    pub ps: Cost,
    /// One layout per use, as a position in the class's layouts.
    pub layouts: Vec<u16>,
    pub config: KernelConfig,
}

#[derive(Clone, Debug)]
pub struct Factor {
    pub name: String,
    /// Its name in its own variant.
    pub plain: String,
    pub pass: Direction,
    pub uses: Vec<ContainerUse>,
    /// Group and the variants in which it runs; it runs if all agree.
    pub guards: Vec<(usize, Vec<u16>)>,
    /// Fastest first; equal times in order of the configurations.
    pub choices: Vec<Choice>,
}

impl Factor {
    /// Time of a choice and of the relayouts it needs.
    pub fn cost(&self, choice: &Choice, held: &[u16]) -> Cost {
        let relayouts: Cost = self.uses.iter().zip(&choice.layouts).map(|(u, l)| u.cost[held[u.class] as usize][*l as usize]).sum();
        choice.ps + relayouts
    }

    /// The cheapest choice under these held layouts; the first one among equals.
    pub fn best(&self, held: &[u16]) -> (usize, Cost) {
        let mut best = (0, FORBIDDEN);
        for (n, choice) in self.choices.iter().enumerate() {
            // Choices are sorted by time: none of the rest can be cheaper.
            if choice.ps >= best.1 {
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

/// Alternatives of which one runs.
#[derive(Clone, Debug)]
pub struct AlternativeGroup {
    pub name: String,
    pub variants: Vec<String>,
    /// Variants that can be chosen; ascending.
    pub domain: Vec<u16>,
    /// Variants that cannot, each with a kernel that was not measured.
    pub left_out: Vec<(String, String)>,
}

/// Where a group has one of some variants, another one has one of others.
#[derive(Clone, Debug)]
pub struct VariantImplication {
    pub when: (usize, Vec<u16>),
    pub then: (usize, Vec<u16>),
}

#[derive(Clone, Debug)]
pub struct Model {
    pub classes: Vec<LayoutClass>,
    /// In order of their names.
    pub groups: Vec<AlternativeGroup>,
    pub factors: Vec<Factor>,
    /// In the order of the program.
    pub needs: Vec<VariantImplication>,
    /// Container → class.
    pub class_of: BTreeMap<String, usize>,
    /// Container → its name in its own variant.
    pub plain: BTreeMap<String, String>,
    /// Variants by group of the programs that it was made of, those that can be chosen.
    pub programs: Vec<Vec<u16>>,
}

/// Group, and the variants in which a kernel runs.
type Guards = Vec<(usize, Vec<u16>)>;

/// Configurations with their times in milliseconds.
type Timed<'a> = Vec<(f64, &'a KernelConfig)>;

/// The groups on which a kernel depends, by position, with the variants in which it runs.
fn guards(kernel: &Kernel, groups: &[AlternativeGroup]) -> Result<Guards, SelectError> {
    let mut found = Vec::new();
    for (group, wanted) in &kernel.only {
        let unknown =
            |variant: &String| SelectError::UnknownVariant { kernel: kernel.name.clone(), group: group.clone(), variant: variant.clone() };
        let at =
            groups.iter().position(|g| g.name == *group).ok_or_else(|| unknown(&wanted.iter().cloned().collect::<Vec<_>>().join(", ")))?;
        let position = |v: &String| groups[at].variants.iter().position(|known| known == v).map(|p| p as u16).ok_or_else(|| unknown(v));
        let mut variants = wanted.iter().map(position).collect::<Result<Vec<u16>, _>>()?;
        variants.sort_unstable();
        if variants.len() < groups[at].variants.len() {
            found.push((at, variants));
        }
    }
    Ok(found)
}

/// Positions of a group and of some of its variants.
fn positions(groups: &[AlternativeGroup], (name, variants): &(String, BTreeSet<String>)) -> Result<(usize, Vec<u16>), SelectError> {
    let unknown = || SelectError::UnknownNeed(name.clone());
    let at = groups.iter().position(|g| g.name == *name).ok_or_else(unknown)?;
    let position = |v: &String| groups[at].variants.iter().position(|known| known == v).map(|p| p as u16).ok_or_else(unknown);
    Ok((at, variants.iter().map(position).collect::<Result<_, _>>()?))
}

fn sorted_dims(layout: &Layout) -> Vec<&str> {
    let dims: BTreeSet<&str> = layout.pieces.iter().map(|p| p.dim.as_str()).collect();
    dims.into_iter().collect()
}

impl Model {
    pub fn new(program: &SelectionProblem, store: &Store, costs: &RelayoutCosts) -> Result<Self, SelectError> {
        let (mut classes, class_of) = classes(program)?;
        let mut groups: Vec<AlternativeGroup> = Vec::new();
        for (name, variants) in &program.alternatives {
            let domain = (0..variants.len() as u16).collect();
            groups.push(AlternativeGroup { name: name.clone(), variants: variants.clone(), domain, left_out: Vec::new() });
        }
        let mut measured: Vec<(&Kernel, Guards, Timed)> = Vec::new();
        let mut found: Vec<BTreeSet<&Layout>> = vec![BTreeSet::new(); classes.len()];
        let plain: BTreeMap<&str, &str> = program.tensors.iter().map(|t| (t.data.as_str(), t.plain())).collect();
        for kernel in &program.kernels {
            let guards = guards(kernel, &groups)?;
            let timed: Timed = store.of(&kernel.key).filter_map(|m| Some((kernel.price(store.ms(m)?), &m.config))).collect();
            for (data, _) in &kernel.tensors {
                let class = *class_of.get(data).ok_or_else(|| SelectError::UnknownTensor(data.clone()))?;
                found[class].extend(timed.iter().filter_map(|(_, config)| config.layouts.get(plain[data.as_str()])));
            }
            if timed.is_empty() {
                // With one guard, its variants can go; with several, no single variant is to blame.
                let [(group, variants)] = guards.as_slice() else { return Err(unmeasured(kernel, store)) };
                let AlternativeGroup { variants: names, domain, left_out, .. } = &mut groups[*group];
                domain.retain(|v| !variants.contains(v));
                left_out.extend(variants.iter().map(|v| (names[*v as usize].clone(), kernel.plain().to_string())));
                if domain.is_empty() {
                    return Err(unmeasured(kernel, store));
                }
            }
            measured.push((kernel, guards, timed));
        }
        measured.retain(|(_, guards, timed)| {
            !timed.is_empty() && guards.iter().all(|(g, variants)| groups[*g].domain.iter().any(|v| variants.contains(v)))
        });
        for (class, found) in classes.iter_mut().zip(found) {
            class.layouts.extend(found.into_iter().filter(|l| !class.layouts.contains(l)).cloned().collect::<Vec<_>>());
            if !class.fixed {
                class.domain = (0..class.layouts.len() as u16).collect();
            }
        }
        let time = |what: &str, ms: f64| picoseconds(ms).ok_or_else(|| SelectError::Time { what: what.to_string(), ms: ms.to_string() });
        let mut factors = Vec::new();
        let mut most: Cost = 0;
        for (kernel, guards, timed) in measured {
            let mut uses = Vec::new();
            for (data, access) in &kernel.tensors {
                let class = class_of[data];
                let layouts = &classes[class].layouts;
                let mut cost = vec![vec![0; layouts.len()]; layouts.len()];
                for (h, held) in layouts.iter().enumerate() {
                    for (w, wanted) in layouts.iter().enumerate() {
                        let before = || time(data, costs.cost(data, held, wanted).ms);
                        let after = || time(data, costs.cost(data, wanted, held).ms);
                        cost[h][w] = match access {
                            Access::Read => before()?,
                            Access::Write => after()?,
                            Access::Update => before()? + after()?,
                        };
                    }
                }
                uses.push(ContainerUse { data: data.clone(), class, access: *access, cost });
            }
            let of_class = |u: &ContainerUse| (0..).zip(&classes[u.class].layouts).map(|(p, l)| (l, p)).collect::<BTreeMap<&Layout, u16>>();
            let known: Vec<(&str, BTreeMap<&Layout, u16>)> = uses.iter().map(|u| (plain[u.data.as_str()], of_class(u))).collect();
            let mut ranked: Vec<(Cost, Vec<u16>, &KernelConfig)> = Vec::new();
            for (ms, config) in timed {
                // A container without an entry (it has one layout only) is natural: position 0.
                let position = |(data, known): &(&str, BTreeMap<&Layout, u16>)| known.get(config.layouts.get(*data)?).copied();
                let layouts = known.iter().map(|k| position(k).unwrap_or(0)).collect();
                ranked.push((time(&kernel.name, ms)?, layouts, config));
            }
            ranked.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.2.cmp(b.2)));
            let mut kept: BTreeMap<Vec<u16>, u8> = BTreeMap::new();
            ranked.retain(|(_, layouts, _)| {
                let n = kept.entry(layouts.clone()).or_default();
                *n = n.saturating_add(1);
                *n <= 2
            });
            let choice = |(ps, layouts, config): (Cost, Vec<u16>, &KernelConfig)| Choice { ps, layouts, config: config.clone() };
            let choices: Vec<Choice> = ranked.into_iter().map(choice).collect();
            let slowest = choices.last().map_or(0, |c| c.ps);
            let dearest = |u: &ContainerUse| u.cost.iter().flatten().max().copied().unwrap_or(0);
            most = uses.iter().fold(most.saturating_add(slowest), |most, u| most.saturating_add(dearest(u)));
            let (name, plain) = (kernel.name.clone(), kernel.plain().to_string());
            factors.push(Factor { name, plain, pass: kernel.pass, uses, guards, choices });
        }
        if most >= FORBIDDEN {
            return Err(SelectError::TooLong);
        }
        let plain = program.tensors.iter().map(|t| (t.data.clone(), t.plain().to_string())).collect();
        let position =
            |group: &AlternativeGroup, variant: &String| group.domain.iter().copied().find(|v| group.variants[*v as usize] == *variant);
        let of_groups = |own: &Variants| groups.iter().map(|g| position(g, own.get(&g.name)?)).collect::<Option<Vec<u16>>>();
        let mut programs: Vec<Vec<u16>> = program.programs.values().filter_map(of_groups).collect();
        programs.sort();
        programs.dedup();
        let mut needs = Vec::new();
        for need in &program.needs {
            needs.push(VariantImplication { when: positions(&groups, &need.when)?, then: positions(&groups, &need.then)? });
        }
        let missing = groups.iter().flat_map(|g| &g.left_out).next();
        if let Some((_, name)) = missing.filter(|_| !needs.is_empty() && programs.is_empty())
            && let Some(kernel) = program.kernels.iter().find(|kernel| kernel.plain() == name)
        {
            // What is left of the programs may not fit together.
            return Err(unmeasured(kernel, store));
        }
        Ok(Model { classes, groups, factors, needs, class_of, plain, programs })
    }

    /// The program in which these variants run: without groups, with the same classes.
    pub fn variant(&self, variants: &[u16]) -> Model {
        let runs = |f: &&Factor| f.guards.iter().all(|(g, allowed)| allowed.contains(&variants[*g]));
        let unguarded = |f: &Factor| Factor { guards: Vec::new(), ..f.clone() };
        let factors = self.factors.iter().filter(runs).map(unguarded).collect();
        let (classes, class_of, plain) = (self.classes.clone(), self.class_of.clone(), self.plain.clone());
        Model { classes, groups: Vec::new(), factors, needs: Vec::new(), class_of, plain, programs: Vec::new() }
    }

    /// Every combination of variants in which each finds what it needs, the last group fastest; `None` if there are more than `most`.
    pub fn combinations(&self, most: usize) -> Option<Vec<Vec<u16>>> {
        let count = self.groups.iter().try_fold(1usize, |n, g| n.checked_mul(g.domain.len()))?;
        if count > most {
            return None;
        }
        let extend = |found: Vec<Vec<u16>>, group: &AlternativeGroup| {
            found.iter().flat_map(|c| group.domain.iter().map(move |v| [c.as_slice(), &[*v]].concat())).collect()
        };
        let mut all = self.groups.iter().fold(vec![Vec::new()], extend);
        let among = |own: &[u16], (group, variants): &(usize, Vec<u16>)| variants.contains(&own[*group]);
        all.retain(|own| self.needs.iter().all(|need| !among(own, &need.when) || among(own, &need.then)));
        Some(all)
    }

    /// The choice of variants alone, as if every container had one layout.
    pub fn without_layouts(&self) -> Model {
        let fastest = |f: &Factor| f.choices.iter().take(1).map(|c| Choice { layouts: Vec::new(), ..c.clone() }).collect();
        let factors = self.factors.iter().map(|f| Factor { uses: Vec::new(), choices: fastest(f), ..f.clone() }).collect();
        Model { classes: Vec::new(), factors, class_of: BTreeMap::new(), ..self.clone() }
    }

    /// Combinations of variants to try one by one: all, if that is at most `most`, or whole programs.
    pub fn tried(&self, most: usize) -> Vec<Vec<u16>> {
        let first = || vec![self.groups.iter().map(|g| g.domain.first().copied().unwrap_or(0)).collect()];
        let programs = || self.programs.iter().take(most).cloned().collect::<Vec<_>>();
        self.combinations(most).unwrap_or_else(|| if self.programs.is_empty() { first() } else { programs() })
    }

    /// Cost in picoseconds of holding the classes so, with the best choice of every kernel.
    pub fn total(&self, held: &[u16]) -> Cost {
        self.factors.iter().map(|f| f.best(held).1).sum()
    }

    /// Sum over kernels of their fastest measured configuration in any layouts: no choice costs less.
    pub fn sum_of_minima(&self) -> Cost {
        self.factors.iter().filter_map(|f| f.choices.first()).map(|c| c.ps).sum()
    }

    /// Row-major, except where the boundary asks for something else.
    pub fn natural(&self) -> Vec<u16> {
        self.classes.iter().map(|c| c.domain.first().copied().unwrap_or(0)).collect()
    }

    /// The model in which a container may not be held in a layout.
    pub fn without_layout(&self, data: &str, layout: &Layout) -> Result<Model, SelectError> {
        let class = *self.class_of.get(data).ok_or_else(|| SelectError::UnknownTensor(data.to_string()))?;
        let mut model = self.clone();
        let LayoutClass { domain, layouts, .. } = &mut model.classes[class];
        domain.retain(|l| layouts[*l as usize] != *layout);
        if domain.is_empty() { Err(SelectError::Exhausted(format!("{data}[{layout}]"))) } else { Ok(model) }
    }

    /// The model in which classes may not be held in a layout where layers meet.
    pub fn barring(&self, classes: &[usize], layout: &Layout) -> Model {
        let mut model = self.clone();
        for class in classes {
            let LayoutClass { layouts, barred, .. } = &mut model.classes[*class];
            barred.extend(layouts.iter().position(|l| l == layout).map(|p| p as u16));
        }
        model
    }

    /// The model in which a variant may not run.
    pub fn without_variant(&self, group: usize, variant: u16) -> Result<Model, SelectError> {
        let mut model = self.clone();
        let AlternativeGroup { name, variants, domain, .. } = &mut model.groups[group];
        domain.retain(|v| *v != variant);
        if domain.is_empty() {
            return Err(SelectError::Exhausted(format!("{name}: {}", variants[variant as usize])));
        }
        model.programs.retain(|own| own[group] != variant);
        Ok(model)
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
fn classes(program: &SelectionProblem) -> Result<(Vec<LayoutClass>, BTreeMap<String, usize>), SelectError> {
    let position: BTreeMap<&str, usize> = program.tensors.iter().enumerate().map(|(n, t)| (t.data.as_str(), n)).collect();
    let at = |data: &String| position.get(data.as_str()).copied().ok_or_else(|| SelectError::UnknownTensor(data.clone()));
    let mut tied: UnionFind<usize> = UnionFind::new(program.tensors.len());
    for (a, b) in &program.ties {
        let (left, right) = (&program.tensors[at(a)?].natural, &program.tensors[at(b)?].natural);
        if sorted_dims(left) != sorted_dims(right) {
            return Err(SelectError::Tie { a: a.clone(), b: b.clone(), left: left.clone(), right: right.clone() });
        }
        tied.union(at(a)?, at(b)?);
    }
    let mut classes: Vec<LayoutClass> = Vec::new();
    let mut class_of = BTreeMap::new();
    let mut of_root = BTreeMap::new();
    for (n, tensor) in program.tensors.iter().enumerate() {
        let class = *of_root.entry(tied.find(n)).or_insert_with(|| {
            classes.push(LayoutClass {
                members: Vec::new(),
                layouts: vec![tensor.natural.clone()],
                domain: vec![0],
                fixed: false,
                barred: Vec::new(),
            });
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
        let LayoutClass { layouts, domain, fixed, .. } = &mut classes[class];
        if !layouts.contains(layout) {
            layouts.push(layout.clone());
        }
        *domain = layouts.iter().position(|l| l == layout).map(|p| p as u16).into_iter().collect();
        *fixed = true;
    }
    Ok((classes, class_of))
}
