//! A stack of equal layers: one layer is searched, for any number of layers.
//!
//! Between two layers lie a few containers (the activation, and on the way back its gradient); a *state* is a way to
//! hold them. Given the states on both sides, layers do not know of each other: a stack is a shortest path through
//! states, and all its steps have the same lengths, each the optimum of a layer between two states.
//!
//! Those optima are never worked out one by one. Every state gets a *potential* π, about what the layers behind it cost;
//! if every step from s to t satisfies length + π(t) − π(s) ≥ m, then a path of n steps costs at least n·m and the
//! difference of potentials at its ends. Potentials are functions over the containers between layers, so the claim for
//! all steps at once is the optimum of one layer with two more functions ([`crate::solve::exact`]). Where it fails, the search
//! has found a shorter step; the path, and the potentials with it, are made again until it holds. In a stack that is
//! long enough, the same potentials serve between all layers; otherwise there are some for each depth.
//!
//! Source: potentials are the dual of the shortest path; steps are generated as columns are (Dantzig and Wolfe, 1960).

use crate::model::cost::{Cost, FORBIDDEN};
use crate::model::network::{CostFunction, Leg, Network, Subproblem};
use crate::model::selection_model::{Model, SelectError};
use crate::problem::{Access, SelectionProblem};
use crate::solve::dual::Dual;
use crate::solve::exact::{self, OnProgress, OptimalityProof, Optimum, SearchLimits, SolveOptions, WarmStart};
use sdfg::{Direction, Layout};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Containers of a layer, each with the one of the next layer that it is: `(y, x)`, `(d_y, d_x)`.
pub type Joins = Vec<(String, String)>;

/// A claim about every step between two states, and its proof.
#[derive(Clone, Debug)]
pub struct LayerBound {
    /// Positions of the potentials on the side of the layer before, and of the next.
    pub enters: usize,
    pub leaves: usize,
    /// Length + potential at the next layer − potential at the layer before is at least this; `proof` shows it.
    pub least: Cost,
    /// The cost from which on the proof drops parts.
    pub target: Cost,
    pub proof: OptimalityProof,
}

/// A choice for a stack of equal layers, in picoseconds. A single program is a stack of one, without joins.
#[derive(Clone, Debug)]
pub struct Stacked {
    pub joins: Joins,
    /// Layouts of the joined containers, by state.
    pub states: Vec<Vec<Layout>>,
    /// Tables of potentials, by state.
    pub potentials: Vec<Vec<Cost>>,
    pub steps: Vec<LayerBound>,
    /// Step of every layer: what one leaves to, the next enters from.
    pub chain: Vec<usize>,
    /// Values by layer: held layouts of the classes, then variants of the groups.
    pub layers: Vec<Vec<u16>>,
    pub total: Cost,
    /// No choice costs less.
    pub bound: Cost,
    /// Layers that were searched.
    pub searches: usize,
}

impl Stacked {
    pub fn proven(&self) -> bool {
        self.bound >= self.total
    }
}

impl From<Optimum> for Stacked {
    fn from(one: Optimum) -> Self {
        let step = LayerBound { enters: 0, leaves: 0, least: one.bound, target: one.total, proof: one.proof };
        Stacked {
            joins: Vec::new(),
            states: vec![Vec::new()],
            potentials: vec![vec![0]],
            steps: vec![step],
            chain: vec![0],
            layers: vec![[one.held, one.variants].concat()],
            total: one.total,
            bound: one.bound,
            searches: 1,
        }
    }
}

/// The joins of a program that is a layer: the one result of the forward pass and the one input that have the same
/// layouts, and their gradients.
pub fn joins(program: &SelectionProblem) -> Result<Joins, SelectError> {
    let touched = |data: &str, writes: bool, pass: Option<Direction>| {
        let kernels = program.kernels.iter().filter(|k| pass.is_none_or(|p| k.pass == p));
        kernels.flat_map(|k| &k.tensors).any(|(d, access)| d == data && (*access != Access::Read) == writes)
    };
    let natural = |data: &str| program.tensor(data).map(|t| &t.natural);
    let names = || program.boundary.keys();
    let given: Vec<&String> = names().filter(|d| !touched(d, true, None) && touched(d, false, Some(Direction::Forward))).collect();
    let made = names().filter(|d| touched(d, true, Some(Direction::Forward)));
    let pairs: Vec<(&String, &String)> =
        made.flat_map(|y| given.iter().map(move |x| (y, *x))).filter(|(y, x)| natural(y) == natural(x)).collect();
    let [(y, x)] = pairs.as_slice() else { return Err(SelectError::NoJoin(pairs.len())) };
    let gradients = (format!("d_{y}"), format!("d_{x}"));
    let both = [&gradients.0, &gradients.1].iter().all(|d| program.boundary.contains_key(*d));
    Ok(std::iter::once((y.to_string(), x.to_string())).chain(both.then_some(gradients)).collect())
}

/// A layer, and the states on both of its sides.
struct Layer {
    network: Network,
    part: Subproblem,
    /// By join: the variable towards the next layer, and towards the one before.
    sides: Vec<(usize, usize)>,
    /// By state and join: values of these variables.
    states: Vec<Vec<(u16, u16)>>,
    /// States at both ends of the stack.
    first: usize,
    last: usize,
}

impl Layer {
    fn new(model: &Model, joins: &Joins) -> Result<Layer, SelectError> {
        let class = |data: &String| model.class_of.get(data).copied().ok_or_else(|| SelectError::UnknownTensor(data.clone()));
        let network = Network::new(model);
        let mut part = Subproblem::whole(model, &network);
        let (mut sides, mut states): (Vec<(usize, usize)>, _) = (Vec::new(), vec![Vec::new()]);
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for (near, far) in joins {
            let (a, b) = (class(near)?, class(far)?);
            if a == b || sides.iter().any(|(c, d)| [a, b].contains(c) || [a, b].contains(d)) {
                return Err(SelectError::Joined { near: near.clone(), far: far.clone() });
            }
            let layouts = |class: usize| model.classes[class].layouts.iter();
            let position = |layout: &Layout| layouts(b).position(|l| l == layout).map(|p| p as u16);
            let barred = |n: &u16| model.classes[a].barred.contains(n);
            let common: Vec<(u16, u16)> =
                layouts(a).enumerate().filter_map(|(n, l)| Some((n as u16, position(l)?))).filter(|(n, _)| !barred(n)).collect();
            // At the ends they are held as the boundary asks, or row-major.
            let nowhere = || SelectError::Exhausted(format!("{near}, which is {far} of the next layer"));
            let (wanted_a, wanted_b) = (model.classes[a].domain.first(), model.classes[b].domain.first());
            last.push(common.iter().find(|c| Some(&c.0) == wanted_a).copied().ok_or_else(nowhere)?);
            first.push(common.iter().find(|c| Some(&c.1) == wanted_b).copied().ok_or_else(nowhere)?);
            part.domains[a] = common.iter().map(|c| c.0).collect();
            part.domains[b] = common.iter().map(|c| c.1).collect();
            part.domains[b].sort_unstable();
            states = states.iter().flat_map(|s: &Vec<_>| common.iter().map(move |c| [s.as_slice(), &[*c]].concat())).collect();
            sides.push((a, b));
        }
        let at = |wanted: &Vec<(u16, u16)>| states.iter().position(|s| s == wanted).unwrap_or(0);
        let (first, last) = (at(&first), at(&last));
        Ok(Layer { network, part, sides, states, first, last })
    }

    /// The states on both sides of a choice.
    fn between(&self, values: &[u16]) -> Option<(usize, usize)> {
        let sides = |s: &Vec<(u16, u16)>| self.sides.iter().copied().zip(s.clone()).collect::<Vec<_>>();
        let from = self.states.iter().position(|s| sides(s).iter().all(|((_, b), (_, far))| values[*b] == *far))?;
        let to = self.states.iter().position(|s| sides(s).iter().all(|((a, _), (near, _))| values[*a] == *near))?;
        Some((from, to))
    }

    /// A choice with other states around it, adapted to them.
    fn moved(&self, values: &[u16], from: Option<usize>, to: Option<usize>) -> Vec<u16> {
        let (mut part, mut values) = (Subproblem { domains: self.part.domains.clone(), rows: Vec::new() }, values.to_vec());
        let mut changed = Vec::new();
        for (n, (a, b)) in self.sides.iter().enumerate() {
            for (variable, value) in [(*b, from.map(|s| self.states[s][n].1)), (*a, to.map(|s| self.states[s][n].0))] {
                changed.extend(value.is_some_and(|v| v != values[variable]).then_some(variable));
                values[variable] = value.unwrap_or(values[variable]);
                part.domains[variable] = vec![values[variable]];
            }
        }
        exact::descend(&self.network, &part, values, Some(&changed))
    }

    /// The layer with a cost for every state on each side.
    fn between_costs(&self, before: &[Cost], behind: &[Cost]) -> (Network, Subproblem) {
        let (mut network, mut part) = (self.network.clone(), self.part.clone());
        part.rows.extend([before, behind].map(|costs| (0..costs.len() as u32).collect::<Vec<_>>()));
        let side = |costs: &[Cost], variable: fn(&(usize, usize)) -> usize, value: fn(&(u16, u16)) -> u16| {
            let mut states: Vec<usize> = (0..costs.len()).collect();
            states.sort_by_key(|s| (costs[*s], *s));
            let mut function = CostFunction { rows: states.iter().map(|s| costs[*s]).collect(), ..CostFunction::default() };
            for join in &self.sides {
                // A state asks for its own values and forbids all others.
                let values = self.network.sizes[variable(join)];
                let ask = |own: usize| (0..values).map(move |v| if v == own { 0 } else { FORBIDDEN });
                function.legs.push(Leg { variable: variable(join), values, cost: (0..values).flat_map(ask).collect() });
            }
            function.patterns = states.iter().flat_map(|s| self.states[*s].iter().map(value)).collect();
            function
        };
        network.add(side(before, |join| join.1, |state| state.1));
        network.add(side(behind, |join| join.0, |state| state.0));
        (network, part)
    }
}

/// The best steps known: length and values by states, first the one before.
type Steps = Vec<Vec<(Cost, Rc<Vec<u16>>)>>;

/// Longer than any stack.
const LONGEST: Cost = Cost::MAX / 8;

/// Takes a choice into account, and what it becomes with other states around it.
fn spread(layer: &Layer, values: &[u16], steps: &mut Steps) {
    let states = layer.states.len();
    let froms: Vec<Vec<u16>> = (0..states).map(|s| layer.moved(values, Some(s), None)).collect();
    let tos: Vec<Vec<u16>> = (0..states).map(|s| layer.moved(values, None, Some(s))).collect();
    for (from, row) in froms.iter().zip(steps.iter_mut()) {
        for (to, known) in tos.iter().zip(row) {
            // What changes on one side hardly touches the other.
            let merged: Vec<u16> = values.iter().zip(from).zip(to).map(|((v, f), t)| if f == v { *t } else { *f }).collect();
            let merged = layer.sides.iter().fold(merged, |mut merged, (a, b)| {
                (merged[*a], merged[*b]) = (to[*a], from[*b]);
                merged
            });
            let total = layer.network.total(&merged);
            if total < known.0 {
                *known = (total, Rc::new(merged));
            }
        }
    }
    if let Some((from, to)) = layer.between(values) {
        let total = layer.network.total(values);
        if total < steps[from][to].0 {
            steps[from][to] = (total, Rc::new(values.to_vec()));
        }
    }
}

/// A path through states, its length, and potentials under which no known step is shorter than those on it.
struct Path {
    states: Vec<usize>,
    total: Cost,
    /// One table, or one for each depth.
    potentials: Vec<Vec<Cost>>,
}

/// Least lengths to a state; `steps` says what a step to one state from another costs.
fn relaxed(least: &[Cost], step: impl Fn(usize, usize) -> Cost) -> Vec<(Cost, usize)> {
    let to = |to: usize| (0..least.len()).map(|from| ((least[from] + step(from, to)).min(LONGEST), from)).min().unwrap_or((LONGEST, 0));
    (0..least.len()).map(to).collect()
}

/// Least lengths over any number of steps; none if a cycle is shorter than nothing.
fn settled(mut least: Vec<Cost>, step: impl Fn(usize, usize) -> Cost) -> Option<Vec<Cost>> {
    for _ in 0..=least.len() {
        let next: Vec<Cost> = relaxed(&least, &step).into_iter().zip(&least).map(|((new, _), old)| new.min(*old)).collect();
        if next == least {
            return Some(least);
        }
        least = next;
    }
    None
}

fn only(state: usize, states: usize) -> Vec<Cost> {
    (0..states).map(|s| if s == state { 0 } else { LONGEST }).collect()
}

fn shortest(layer: &Layer, steps: &Steps, count: usize) -> Path {
    let states = layer.states.len();
    let mut ahead = vec![only(layer.last, states)];
    for _ in 0..count {
        let next = relaxed(&ahead[ahead.len() - 1], |behind, before| steps[before][behind].0);
        ahead.push(next.into_iter().map(|(length, _)| length).collect());
    }
    ahead.reverse();
    let (mut path, mut so_far) = (vec![layer.first], vec![only(layer.first, states)]);
    for (depth, ahead) in ahead.iter().enumerate().skip(1) {
        let at = path[depth - 1];
        let next = (0..states).min_by_key(|s| ((steps[at][*s].0 + ahead[*s]).min(LONGEST), *s)).unwrap_or(0);
        path.push(next);
        let next = relaxed(&so_far[depth - 1], |before, behind| steps[before][behind].0);
        so_far.push(next.into_iter().map(|(length, _)| length).collect());
    }
    let total = ahead[0][layer.first];
    // Halfway between the length ahead and what the length so far leaves: tight on shortest paths alone.
    let halfway = |ahead: &[Cost], so_far: &[Cost], meet: Cost| -> Vec<Cost> {
        let capped = |length: Cost| length.min(4 * total);
        ahead.iter().zip(so_far).map(|(a, f)| (capped(*a) + meet - capped(*f)).div_euclid(2)).collect()
    };
    let middle = path[count / 2];
    let usual = steps[middle][path[(count / 2 + 1).min(count)]].0;
    let (to_last, from_first) = (
        settled(only(layer.last, states), |behind, before| steps[before][behind].0 - usual),
        settled(only(layer.first, states), |before, behind| steps[before][behind].0 - usual),
    );
    let alike = to_last.zip(from_first).filter(|(to_last, _)| to_last[layer.first] + usual * count as Cost == total);
    let potentials = match alike {
        Some((to_last, from_first)) => vec![halfway(&to_last, &from_first, to_last[layer.first])],
        None => ahead.iter().zip(&so_far).map(|(ahead, so_far)| halfway(ahead, so_far, total)).collect(),
    };
    Path { states: path, total, potentials }
}

/// Share of the whole work for a first, short search that may fail.
const QUICK: u64 = 16;

/// What is asked of a layer between two tables of potentials: whether a step is shorter than those of the path.
#[derive(Clone, PartialEq, Eq)]
struct Claim {
    before: Vec<Cost>,
    behind: Vec<Cost>,
    /// Of the shortest step between them on the path, potentials included.
    length: Cost,
}

/// The claims that make a path a shortest one: distinct tables of potentials, distinct claims with the positions of
/// their tables, and the claim of every layer.
#[derive(Default)]
struct Claims {
    tables: Vec<Vec<Cost>>,
    kinds: Vec<(usize, usize, Claim)>,
    chain: Vec<usize>,
}

impl Claims {
    fn new(path: &Path, steps: &Steps) -> Claims {
        let mut claims = Claims::default();
        for (depth, pair) in path.states.windows(2).enumerate() {
            let (enters, leaves) = (claims.table(path, depth), claims.table(path, depth + 1));
            let (before, behind) = (&claims.tables[enters], &claims.tables[leaves]);
            let length = steps[pair[0]][pair[1]].0 + behind[pair[1]] - before[pair[0]];
            let claim = Claim { before: before.clone(), behind: behind.clone(), length };
            let kind = claims.kinds.iter().position(|k| (k.0, k.1) == (enters, leaves)).unwrap_or_else(|| {
                claims.kinds.push((enters, leaves, claim));
                claims.kinds.len() - 1
            });
            let least = &mut claims.kinds[kind].2.length;
            *least = length.min(*least);
            claims.chain.push(kind);
        }
        claims
    }

    /// The position of the potentials at a depth.
    fn table(&mut self, path: &Path, depth: usize) -> usize {
        let table = &path.potentials[depth.min(path.potentials.len() - 1)];
        // Only differences matter.
        let least = table.iter().min().copied().unwrap_or(0);
        let table: Vec<Cost> = table.iter().map(|p| p - least).collect();
        self.tables.iter().position(|known| *known == table).unwrap_or_else(|| {
            self.tables.push(table);
            self.tables.len() - 1
        })
    }
}

/// The cheapest stack of `count` layers, at least one; at its ends the joined containers are held as the boundary asks.
///
/// `known` are choices for one layer to begin with. The watch gets the cost of the best stack found, and a lower bound of every stack's
/// cost, which is 0 as long as none is known.
pub fn solve(
    model: &Model,
    joins: &Joins,
    count: usize,
    known: &[Vec<u16>],
    limits: SearchLimits,
    watch: OnProgress,
) -> Result<Stacked, SelectError> {
    let layer = Layer::new(model, joins)?;
    let (count, states) = (count.max(1), layer.states.len());
    let mut steps: Steps = vec![vec![(LONGEST, Rc::default()); states]; states];
    for values in known.iter().cloned().chain(exact::starts(model)) {
        spread(&layer, &exact::descend(&layer.network, &layer.part, values, None), &mut steps);
    }
    // A claim often outlives its path.
    let mut proven: Vec<(Claim, LayerBound)> = Vec::new();
    // Shares of a claim like it, by whether it is about the first layer and about the last: with potentials of another
    // place they would take expensive states for cheap ones.
    let mut duals: BTreeMap<[bool; 2], Rc<Dual>> = BTreeMap::new();
    let (mut searches, mut reached) = (0, 0);
    let quick = SearchLimits { work: limits.work / QUICK, ..limits };
    'paths: loop {
        let path = shortest(&layer, &steps, count);
        let Claims { tables, kinds, chain } = Claims::new(&path, &steps);
        let ends = tables[kinds[chain[0]].0][layer.first] - tables[kinds[chain[count - 1]].1][layer.last];
        let count_of = |kind: usize| chain.iter().filter(|k| **k == kind).count() as Cost;
        let mut on_path: Vec<Vec<u16>> = path.states.windows(2).map(|pair| (*steps[pair[0]][pair[1]].1).clone()).collect();
        on_path.dedup();
        // What a short search refutes is refuted before anything is searched for long.
        for (thorough, limits) in [(false, quick), (true, limits)] {
            for (kind, (enters, leaves, claim)) in kinds.iter().enumerate() {
                if proven.iter().any(|(known, _)| known == claim) {
                    continue;
                }
                searches += 1;
                // Costs may not be negative: the most that a state is worth stands for nothing.
                let most = claim.before.iter().max().copied().unwrap_or(0);
                let before: Vec<Cost> = claim.before.iter().map(|p| most - p).collect();
                let (network, part) = layer.between_costs(&before, &claim.behind);
                let shown = |of: usize| proven.iter().find(|(known, _)| *known == kinds[of].2).map(|(_, step)| step.least);
                let others = (0..kinds.len()).filter(|of| *of != kind).map(|of| Some(shown(of)? * count_of(of)));
                let others = others.sum::<Option<Cost>>();
                let mut told = |p: exact::SearchProgress| {
                    if let Some(others) = others {
                        reached = reached.max((others + (p.bound - most) * count_of(kind) + ends).min(path.total));
                    }
                    watch(exact::SearchProgress { total: path.total, bound: reached, ..p })
                };
                let place = [chain[0], chain[count - 1]].map(|end| end == kind);
                let start = WarmStart { assignments: on_path.clone(), dual: duals.get(&place).cloned() };
                let found = exact::solve_part(&network, part, SolveOptions { limits, start, watch: Some(&mut told) });
                if let Some(dual) = found.proof.nodes.first().and_then(|n| n.duals.last()) {
                    duals.insert(place, dual.clone());
                }
                if found.total < claim.length + most {
                    spread(&layer, &[found.held, found.variants].concat(), &mut steps);
                    continue 'paths;
                }
                if found.proven() || thorough {
                    let (least, target) = (found.bound - most, found.total - most);
                    proven.push((claim.clone(), LayerBound { enters: *enters, leaves: *leaves, least, target, proof: found.proof }));
                }
            }
        }
        let step = |(enters, leaves, claim): &(usize, usize, Claim)| {
            let known = proven.iter().find(|(known, _)| known == claim)?;
            Some(LayerBound { enters: *enters, leaves: *leaves, ..known.1.clone() })
        };
        let proven: Vec<LayerBound> = kinds.iter().filter_map(step).collect();
        let bound = chain.iter().map(|kind| proven[*kind].least).sum::<Cost>() + ends;
        let layout = |s: &Vec<(u16, u16)>| {
            s.iter().zip(&layer.sides).map(|((near, _), (a, _))| model.classes[*a].layouts[*near as usize].clone()).collect()
        };
        return Ok(Stacked {
            joins: joins.clone(),
            states: layer.states.iter().map(layout).collect(),
            potentials: tables,
            steps: proven,
            chain,
            layers: path.states.windows(2).map(|pair| (*steps[pair[0]][pair[1]].1).clone()).collect(),
            total: path.total,
            bound: bound.min(path.total),
            searches,
        });
    }
}
