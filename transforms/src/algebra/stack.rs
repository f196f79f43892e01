//! Algebraic fusion: contractions that share an operand, or whose results are summed, become one contraction over
//! stacked operands.
//!
//! ```text
//! q[p,j] = wq[p,i]·x[i,j]                       w.stack = [wq; wk]        (wq, wk become slices)
//! k[p,j] = wk[p,i]·x[i,j]              →        q.stack[p',j] = w.stack[p',i]·x[i,j]
//!
//! s[i,j] = wq[p,i]·dq[p,j]; t[i,j] = wk[p,i]·dk[p,j]; dx = s + t
//!                                      →        dx.stack[i,j] = w.stack[p',i]·dq.stack[p',j]
//! ```
//!
//! *Legal when* the contractions agree in all indices but one, along which the operands that differ are stacked; each stacked container is
//! given from outside or written by one operation, and is no slice of another container; and no part of a stack is computed from another
//! part of it.
//! *Moves less because* the shared operand is read once (and the sum is never written in parts).
//! *Not handled*: operands with subscripts other than plain indices.
//! Which stacking wins is decided by measurement: callers build one program for each choice.
//! *Source*: "Data Movement Is All You Need", §IV-D and Table II.

use super::users::{Moved, Users};
use crate::pass::{Context, Facts, Pass, Rewritten, Stopped};
use crate::patch::{Edit, Patch};
use crate::refusal::{Reason, Refusal, Site};
use sdfg::data::View;
use sdfg::{Container, Expr, Node, NodeId, Op, Operand, Operation, Role, Scalar, Sdfg, StateId, Unit};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Stacks the contractions of these weights wherever that is possible, forward and backward.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    pub weights: Vec<String>,
}

/// Contractions of one state that can be stacked.
#[derive(Clone, Debug, PartialEq)]
pub struct StackableGroup {
    pub site: Site,
    /// Names of the operations.
    pub members: Vec<String>,
    /// For each member the container that tells it apart, without the prefix of gradients: `wq`, `wk`, `wv`.
    pub weights: Vec<String>,
}

/// Whether a group shares an operand or sums its results.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Shared,
    Summed,
}

fn contractions(program: &Sdfg, state: StateId) -> Vec<(NodeId, Operation)> {
    let Some(state) = program.state(state) else { return vec![] };
    let is_one = |node: &NodeId| matches!(state.node(*node), Some(Node::Library(l)) if matches!(l.op, Op::Contraction { .. }));
    let nodes = state.topological(None).unwrap_or_default().into_iter().filter(is_one);
    nodes.filter_map(|node| Some((node, state.operation(node)?))).collect()
}

/// The parameters by which a program's contractions are told apart.
struct Weights<'a> {
    program: &'a Sdfg,
    /// By the container that a cast of a parameter writes: at which offsets, and the parameter.
    casts: HashMap<String, Vec<(Vec<Expr>, String)>>,
    /// By stack, the containers that are slices of it.
    slices: HashMap<&'a str, Vec<&'a Container>>,
    /// Parameters that the step updates. It writes them as a whole, which a slice of a stack is not.
    updated: HashSet<&'a str>,
}

impl<'a> Weights<'a> {
    fn of(program: &'a Sdfg) -> Self {
        let updated = program.containers.values().filter_map(|c| c.replaces.as_deref()).collect();
        let mut weights = Weights { program, casts: HashMap::new(), slices: HashMap::new(), updated };
        for container in program.containers.values() {
            if let Some(view) = &container.view {
                weights.slices.entry(&view.of).or_default().push(container);
            }
        }
        for (_, state) in program.states() {
            for node in state.topological(None).unwrap_or_default() {
                let is_operation = matches!(state.node(node), Some(Node::Library(_)));
                if !is_operation || !state.edges_in(node).iter().any(|(_, _, edge)| weights.is_parameter(&edge.memlet.data)) {
                    continue;
                }
                let Some(cast) = state.operation(node) else { continue };
                let Some(from) = cast.cast_of(program).filter(|from| weights.is_parameter(&from.data)) else { continue };
                if let Some((data, offsets)) = cast.outputs.first().and_then(|out| Some((out.data.clone(), sliced(&cast, out)?.1))) {
                    weights.casts.entry(data).or_default().push((offsets, from.data.clone()));
                }
            }
        }
        weights
    }

    fn is_parameter(&self, name: &str) -> bool {
        let is_one = self.program.containers.get(name).is_some_and(|c| c.role == Role::Parameter);
        is_one && !self.slices.contains_key(name) && !self.updated.contains(name)
    }

    /// An operand that is a parameter, a cast of one, a parameter's gradient, or the slice of a stack that an earlier stacking moved one
    /// of these to.
    fn weight(&self, operation: &Operation) -> Option<String> {
        let cast = |operand: &Operand| {
            let offsets = sliced(operation, operand).map(|(_, offsets)| offsets)?;
            self.casts.get(&operand.data)?.iter().find(|(at, _)| *at == offsets).map(|(_, from)| from.clone())
        };
        let slice = |operand: &Operand| {
            let offsets = sliced(operation, operand).map(|(_, offsets)| offsets)?;
            let at_slice = |c: &&&Container| c.role == Role::Parameter && c.view.as_ref().is_some_and(|v| v.offsets == offsets);
            self.slices.get(operand.data.as_str())?.iter().find(at_slice).map(|c| c.name.clone())
        };
        let operands = || operation.inputs.iter().chain(&operation.outputs);
        let plain = operands().map(|o| o.data.strip_prefix("d_").unwrap_or(&o.data)).find(|d| self.is_parameter(d)).map(str::to_string);
        operands().find_map(slice).or(plain).or_else(|| operands().find_map(cast))
    }
}

/// Index and offset of every subscript; `None` if one is neither an index nor a shifted one, or elements lie outside.
fn sliced(operation: &Operation, operand: &Operand) -> Option<(Vec<String>, Vec<Expr>)> {
    if operand.fill.is_some() {
        return None;
    }
    let parts: Option<Vec<_>> = operand.subscripts.iter().map(|s| s.as_shifted_index(|i| operation.indices.contains_key(i))).collect();
    Some(parts?.into_iter().map(|(index, offset)| (index.to_string(), offset)).unzip())
}

/// All maximal groups, in program order; within a group in the order in which the weights are declared.
pub fn groups(program: &Sdfg) -> Vec<StackableGroup> {
    let users = Users::of(program);
    candidates(program).into_iter().filter(|group| plan(program, &users, &group.site).is_ok()).collect()
}

/// Groups that pass the tests that need no trial; whether they can be stacked is found by trying.
fn candidates(program: &Sdfg) -> Vec<StackableGroup> {
    let mut found: Vec<StackableGroup> = Vec::new();
    let mut known: BTreeSet<Site> = BTreeSet::new();
    let weights = Weights::of(program);
    for (state, _) in program.states() {
        let all = contractions(program, state);
        let mut readers: HashMap<&str, BTreeSet<usize>> = HashMap::new();
        let mut writers: HashMap<&str, BTreeSet<usize>> = HashMap::new();
        for (n, (_, operation)) in all.iter().enumerate() {
            operation.inputs.iter().for_each(|input| _ = readers.entry(&input.data).or_default().insert(n));
            operation.outputs.iter().for_each(|out| _ = writers.entry(&out.data).or_default().insert(n));
        }
        let mut pools: Vec<BTreeSet<usize>> = Vec::new();
        for (n, (_, operation)) in all.iter().enumerate() {
            for shared in &operation.inputs {
                pools.extend(readers.get(shared.data.as_str()).filter(|members| members.first() == Some(&n)).cloned());
            }
        }
        for sum in sums(program, state) {
            if is_sum(&sum) {
                pools.push(sum.inputs.iter().filter_map(|term| writers.get(term.data.as_str())).flatten().copied().collect());
            }
        }
        for pool in pools {
            let mut members: Vec<(usize, String, NodeId, String)> = Vec::new();
            for (node, operation) in pool.iter().map(|n| &all[*n]) {
                let Some(weight) = weights.weight(operation) else { continue };
                let place = program.containers.get_index_of(&weight).unwrap_or(usize::MAX);
                if !members.iter().any(|(_, w, _, _)| *w == weight) {
                    members.push((place, weight, *node, operation.name.clone()));
                }
            }
            members.sort();
            let site = Site { state, units: members.iter().map(|m| m.2).collect() };
            if members.len() >= 2 && known.insert(site.clone()) {
                found.push(StackableGroup {
                    site,
                    members: members.iter().map(|m| m.3.clone()).collect(),
                    weights: members.into_iter().map(|m| m.1).collect(),
                });
            }
        }
    }
    found
}

/// Whether the operation adds its inputs and does nothing else.
fn is_sum(operation: &Operation) -> bool {
    matches!(&operation.op, Op::Elementwise { code, .. } if adds(code) && operation.inputs.len() >= 2)
}

/// Whether an expression consists of inputs and additions.
fn adds(code: &Scalar) -> bool {
    match code {
        Scalar::Input(_) => true,
        Scalar::Binary(sdfg::Binary::Add, a, b) => adds(a) && adds(b),
        _ => false,
    }
}

/// The name of a stack of `count` operations.
fn stack_name(first: &str, count: usize) -> String {
    format!("{first}.stack{count}")
}

impl Pass for Stack {
    fn name(&self) -> &'static str {
        "stack"
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let all: HashSet<&String> = self.weights.iter().collect();
        let wanted = |weight: &String| all.contains(weight);
        let users = Users::of(program);
        let mut refusals = Vec::new();
        // Whether a group can be stacked is found by stacking it: those without two of the weights need no such trial.
        for group in candidates(program).into_iter().filter(|g| g.weights.iter().filter(|w| wanted(w)).count() >= 2) {
            let units: Vec<NodeId> = group.site.units.iter().zip(&group.weights).filter(|(_, w)| wanted(w)).map(|(n, _)| *n).collect();
            let names: Vec<String> = group.members.iter().zip(&group.weights).filter(|(_, w)| wanted(w)).map(|(m, _)| m.clone()).collect();
            let part = Site { units: units.clone(), ..group.site };
            // A part of a group may be stacked where the whole cannot be: of queries a pass before may have left a row, of keys all.
            let planned = plan(program, &users, &part);
            let site = Site { units, ..group.site };
            let patch = match planned {
                Ok(patch) if context.barred.has(&patch.summary) => {
                    refusals.push(context.barred.refusal(self.name(), program, &site));
                    break;
                }
                Ok(patch) => patch,
                Err(refusal) => {
                    refusals.push(*refusal);
                    continue;
                }
            };
            let known = &context.facts.stacks;
            let own = names.iter().flat_map(|name| known.get(name).cloned().unwrap_or_else(|| vec![name.clone()])).collect();
            let stacks = names.first().map(|first| (stack_name(first, names.len()), own)).into_iter().collect();
            return Ok(Rewritten::patch(patch).with(Facts { stacks, ..Facts::default() }));
        }
        if refusals.is_empty() {
            return Err(Stopped::at_program(self.name(), "no two contractions of these weights read or make one tensor"));
        }
        Err(Stopped::refused(refusals))
    }

    fn repeats(&self) -> bool {
        true
    }
}

/// Stacks a group of contractions, given in stacking order.
fn plan(program: &Sdfg, users: &Users, site: &Site) -> Result<Patch, Box<Refusal>> {
    let state = program.state(site.state);
    let operation = |node: &NodeId| state?.operation(*node).filter(|o| matches!(o.op, Op::Contraction { .. }));
    let members: Vec<Operation> = site.units.iter().filter_map(operation).collect();
    let refuse = |why: &str| {
        let units = members.iter().map(|o| o.name.clone()).collect();
        Box::new(Refusal {
            transform: "stack",
            site: site.clone(),
            units,
            reason: Reason::Unsupported(why.into()),
            origin: members.first().and_then(|o| o.origin.clone()),
        })
    };
    if members.len() < 2 || members.len() != site.units.len() {
        return Err(refuse("stacking takes at least two contractions"));
    }
    if members.iter().any(|o| o.op != members[0].op) {
        return Err(refuse("the contractions are scaled differently"));
    }
    let window = |o: &Operation| o.inputs.iter().chain(&o.outputs).find(|operand| sliced(o, operand).is_none()).map(|i| i.data.clone());
    if let Some(data) = members.iter().find_map(window) {
        return Err(refuse(&format!("`{data}` is read through a window, and contractions over windows are not stacked")));
    }
    // Shared is what all read in the same place; slices of one stack are different operands.
    let offsets = |o: &Operation, i: &Operand| sliced(o, i).map(|(_, offsets)| offsets);
    let reads = |o: &Operation, of: &Operation, i: &Operand| o.inputs.iter().any(|j| j.data == i.data && offsets(o, j) == offsets(of, i));
    let shared = members[0].inputs.iter().find(|i| members.iter().all(|o| reads(o, &members[0], i))).map(|i| i.data.clone());
    let form = if shared.is_some() { Form::Shared } else { Form::Summed };
    let aligned: Option<Vec<Operation>> = members.iter().map(|o| align(&members[0], o, shared.as_deref())).collect();
    let Some(aligned) = aligned else { return Err(refuse("the contractions have different forms")) };
    let Some(index) = stack_index(program, &aligned, form) else {
        return Err(refuse("no single index exists along which the operands can be stacked while all others have equal sizes"));
    };
    let (patch, moved) = plan_stack(program, users, site, &aligned, &index, form).map_err(|why| refuse(&why))?;
    // The gradient of a gate depends on that of the gated tensor. If both were parts of one stack, its kernel would read what it writes.
    let waits = users.wait_for_themselves(site, &moved);
    debug_assert_eq!(waits, !is_acyclic(program, &patch), "{}", patch.summary);
    if waits {
        return Err(refuse("what is stacked would be needed to make another part of the same stack"));
    }
    Ok(patch)
}

/// Whether the program can be stacked so and its units still have an order: the slow way, for debug builds.
fn is_acyclic(program: &Sdfg, patch: &Patch) -> bool {
    let mut stacked = program.clone();
    patch.clone().apply(&mut stacked).is_ok() && stacked.states().all(|(_, state)| state.topological(None).is_some())
}

/// Element-wise operations of a state, in their order.
fn sums(program: &Sdfg, state: StateId) -> Vec<Operation> {
    let Some(state) = program.state(state) else { return vec![] };
    let is_one =
        |node: &NodeId| matches!(state.node(*node), Some(Node::Library(l)) if matches!(&l.op, Op::Elementwise { code, .. } if adds(code)));
    let nodes = state.topological(None).unwrap_or_default().into_iter().filter(is_one);
    nodes.filter_map(|node| state.operation(node)).collect()
}

/// A member with its operands in the order of the first and its indices called as in the first.
fn align(first: &Operation, member: &Operation, shared: Option<&str>) -> Option<Operation> {
    let mut member = member.clone();
    if let Some(shared) = shared {
        let place = |o: &Operation| o.inputs.iter().position(|i| i.data == shared);
        if place(first) != place(&member) {
            member.inputs.reverse();
            for (input, like) in member.inputs.iter_mut().zip(&first.inputs) {
                input.connector = like.connector.clone();
            }
        }
    }
    let mut names: BTreeMap<String, Expr> = BTreeMap::new();
    let pairs = member.inputs.iter().zip(&first.inputs).chain(member.outputs.iter().zip(&first.outputs));
    for (ours, like) in pairs {
        let ((a, _), (b, _)) = (sliced(&member, ours)?, sliced(first, like)?);
        if a.len() != b.len() {
            return None;
        }
        for (a, b) in a.iter().zip(&b) {
            let known = names.entry(a.to_string()).or_insert_with(|| Expr::sym(b.as_str()));
            if known.as_sym() != Some(b) {
                return None;
            }
        }
    }
    for operand in member.inputs.iter_mut().chain(member.outputs.iter_mut()) {
        operand.subscripts = operand.subscripts.iter().map(|s| s.substitute(&names)).collect();
    }
    member.indices = member
        .indices
        .iter()
        .filter_map(|(name, dim)| names.get(name).and_then(Expr::as_sym).map(|n| (n.to_string(), dim.clone())))
        .collect();
    Some(member)
}

fn uses(operand: &Operand, index: &str) -> bool {
    operand.subscripts.iter().any(|s| s.symbols().contains(index))
}

/// The index to stack along: present in everything that differs and in nothing that is shared; all others agree in size.
fn stack_index(program: &Sdfg, members: &[Operation], form: Form) -> Option<String> {
    let first = &members[0];
    let differs = |n: usize| members.iter().any(|o| o.inputs[n] != first.inputs[n]);
    let fits = |index: &str| {
        let inputs = first.inputs.iter().enumerate().all(|(n, operand)| uses(operand, index) == differs(n));
        let output = uses(&first.outputs[0], index) == (form == Form::Shared);
        let sizes = first.indices.iter().all(|(name, dim)| {
            name == index || members.iter().all(|o| o.indices.get(name).is_some_and(|d| program.size_of(d) == program.size_of(dim)))
        });
        inputs && output && sizes
    };
    first.indices.keys().find(|i| fits(i)).cloned()
}

fn plan_stack(
    program: &Sdfg,
    users: &Users,
    site: &Site,
    members: &[Operation],
    index: &str,
    form: Form,
) -> Result<(Patch, Moved), String> {
    let first = &members[0];
    let lengths: Vec<Expr> = members.iter().map(|o| o.indices.get(index).map_or(Expr::Int(0), |d| program.size_of(d))).collect();
    let total = lengths.iter().cloned().fold(Expr::Int(0), |a, b| a + b);
    let dim = first.indices.get(index).cloned().unwrap_or_default();
    let stacked_dim = format!("{dim}.x{}", members.len());
    if program.dims.get(&stacked_dim).is_some_and(|size| *size != total) {
        return Err(format!("the dim `{stacked_dim}` exists with another size"));
    }
    let offsets: Vec<Expr> = (0..members.len()).map(|n| lengths[..n].iter().cloned().fold(Expr::Int(0), |a, b| a + b)).collect();
    let mut moved = Moved::new();
    let mut containers: Vec<Container> = Vec::new();
    let mut drop = Vec::new();
    let mut merged = Operation { name: stack_name(&first.name, members.len()), ..first.clone() };
    merged.indices.insert(index.to_string(), stacked_dim.clone());
    let operands = |o: &Operation| o.inputs.iter().chain(&o.outputs).cloned().collect::<Vec<_>>();
    for (n, operand) in operands(first).iter().enumerate() {
        if !uses(operand, index) {
            continue;
        }
        let axis = operand.subscripts.iter().position(|s| s.symbols().contains(index)).ok_or("an operand lacks the index")?;
        let names: Vec<String> = members.iter().map(|o| operands(o)[n].data.clone()).collect();
        let parent = existing_parent(program, members, n, axis, &offsets, &total)?;
        let parent = match parent {
            Some(parent) => parent,
            None => stack_containers(program, &names, axis, &stacked_dim, &offsets, &mut moved, &mut containers, &mut drop)?,
        };
        let place = if n < merged.inputs.len() { &mut merged.inputs[n] } else { &mut merged.outputs[n - first.inputs.len()] };
        place.data = parent;
        place.subscripts =
            sliced(first, operand).map(|(names, _)| names.iter().map(|i| Expr::sym(i.as_str())).collect()).unwrap_or_default();
    }
    let mut edits: Vec<Edit> = Vec::new();
    let mut summed = None;
    if form == Form::Summed {
        let results: Vec<String> = members.iter().map(|o| o.outputs[0].data.clone()).collect();
        summed = Some(replace_sum(program, users, site.state, &results)?);
        drop.extend(results.into_iter().skip(1));
    }
    if let Some(name) = &users.expanded {
        return Err(format!("`{name}` is a scope already; stack before expansion"));
    }
    let place = |node: &NodeId| users.places.get(&(site.state, *node)).copied();
    let (taken, begins) = (site.units.iter().filter_map(place).collect::<BTreeSet<usize>>(), site.units.first().and_then(place));
    let sum = summed.as_ref().and_then(|(node, _)| place(node));
    let touched: BTreeSet<usize> = taken.iter().copied().chain(sum).chain(moved.keys().flat_map(|data| users.users(data))).collect();
    for (state, _) in program.states() {
        let mut edit = Edit { state, remove: vec![], insert: vec![] };
        for at in touched.iter().copied().filter(|at| users.all[*at].0 == state) {
            if begins == Some(at) {
                edit.insert.push(Unit::Operation(merged.clone()));
            }
            edit.remove.push(users.all[at].1);
            if taken.contains(&at) {
                continue;
            }
            match summed.as_ref().filter(|_| sum == Some(at)) {
                Some((_, replacement)) => edit.insert.push(Unit::Operation(replacement.clone())),
                None => edit.insert.extend(users.operation(at).map(|operation| Unit::Operation(relocated(operation, &moved)))),
            }
        }
        edits.push(edit);
    }
    let summary = format!("stack `{}` along {index}", members.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join("`, `"));
    Ok((Patch { summary, edits, containers, drop, dims: vec![(stacked_dim, total)] }, moved))
}

/// An operation with its operands moved into stacked containers.
fn relocated(mut operation: Operation, moved: &Moved) -> Operation {
    for operand in operation.inputs.iter_mut().chain(operation.outputs.iter_mut()) {
        if let Some((parent, axis, offset)) = moved.get(&operand.data) {
            operand.data = parent.clone();
            if let Some(subscript) = operand.subscripts.get_mut(*axis) {
                *subscript = subscript.clone() + offset.clone();
            }
        }
    }
    operation
}

/// The stack that operand `n` of all members already is a slice of, in this order and without gaps: an earlier stacking
/// moved them there.
fn existing_parent(
    program: &Sdfg,
    members: &[Operation],
    n: usize,
    axis: usize,
    offsets: &[Expr],
    total: &Expr,
) -> Result<Option<String>, String> {
    let operand = |o: &Operation| o.inputs.iter().chain(&o.outputs).nth(n).cloned();
    let all: Vec<Operand> = members.iter().filter_map(operand).collect();
    let plain = |o: &Operand| o.index_names().is_some();
    let parent = all[0].data.clone();
    if all.iter().all(plain) && all.iter().any(|o| o.data != parent) {
        return Ok(None);
    }
    let container = program.containers.get(&parent).ok_or("an operand is not declared")?;
    let consecutive = all.iter().zip(members).zip(offsets).all(|((o, member), offset)| {
        o.data == parent
            && sliced(member, o)
                .is_some_and(|(_, at)| at.iter().enumerate().all(|(d, e)| *e == if d == axis { offset.clone() } else { Expr::Int(0) }))
    });
    let covers = container.dims.get(axis).is_some_and(|d| program.size_of(d) == *total);
    if consecutive && covers {
        Ok(Some(parent))
    } else {
        Err(format!("the operands are slices of `{parent}`, but not all of it in this order"))
    }
}

/// Makes the stacked container; the members become views of it if a person sees them, and vanish otherwise.
#[allow(clippy::too_many_arguments)] // one call; a struct of eight borrowed things would only rename them
fn stack_containers(
    program: &Sdfg,
    names: &[String],
    axis: usize,
    stacked_dim: &str,
    offsets: &[Expr],
    moved: &mut Moved,
    containers: &mut Vec<Container>,
    drop: &mut Vec<String>,
) -> Result<String, String> {
    let parent = program.fresh_name(&format!("{}.stack{}", names[0], names.len()));
    let mut all = Vec::new();
    for name in names {
        let container = program.containers.get(name).ok_or_else(|| format!("`{name}` is not declared"))?;
        if container.view.is_some() || names.iter().filter(|n| *n == name).count() > 1 {
            return Err(format!("`{name}` is a slice already"));
        }
        all.push(container);
    }
    if all.iter().any(|c| c.dtype != all[0].dtype || c.role != all[0].role || c.dims.len() != all[0].dims.len()) {
        return Err("the operands differ in element type, role or rank".into());
    }
    let mut dims = all[0].dims.clone();
    dims[axis] = stacked_dim.to_string();
    containers.push(Container { name: parent.clone(), dims, origin: None, view: None, ..all[0].clone() });
    for (container, offset) in all.iter().zip(offsets) {
        if container.role == Role::Transient {
            drop.push(container.name.clone());
        } else {
            let place = (0..container.dims.len()).map(|d| if d == axis { offset.clone() } else { Expr::Int(0) }).collect();
            containers.push(Container { view: Some(View { of: parent.clone(), offsets: place }), ..(*container).clone() });
        }
        moved.insert(container.name.clone(), (parent.clone(), axis, offset.clone()));
    }
    Ok(parent)
}

/// The sum that reads these results, with only the first operand left. Refused if another operation reads one of them.
fn replace_sum(program: &Sdfg, users: &Users, state: StateId, results: &[String]) -> Result<(NodeId, Operation), String> {
    let reading = results.iter().filter_map(|data| users.readers.get(data.as_str())).flatten().copied().collect::<BTreeSet<usize>>();
    let readers: Vec<(StateId, NodeId, Operation)> =
        reading.into_iter().filter_map(|at| Some((users.all[at].0, users.all[at].1, users.operation(at)?))).collect();
    let [(id, node, sum)] = readers.as_slice() else { return Err("the results are used by more than one operation".into()) };
    let Op::Elementwise { label, code } = &sum.op else { return Err("the results are not simply added".into()) };
    if *id != state || !is_sum(sum) || results.iter().any(|r| program.containers.get(r).is_none_or(|c| c.role != Role::Transient)) {
        return Err("the results are not simply added".into());
    }
    let gone: Vec<&str> = sum.inputs.iter().filter(|i| results[1..].contains(&i.data)).map(|i| i.connector.as_str()).collect();
    let code = code.rewrite(&mut |s| match s {
        Scalar::Input(c) if gone.contains(&c.as_str()) => Scalar::Const(0.0),
        Scalar::Binary(sdfg::Binary::Add, a, b) => *a + *b,
        other => other,
    });
    let inputs = sum.inputs.iter().filter(|i| !gone.contains(&i.connector.as_str())).cloned().collect();
    Ok((*node, Operation { op: Op::Elementwise { label: label.clone(), code }, inputs, ..sum.clone() }))
}
