//! Several units of one state put together as one scope: contractions expanded, indices aligned, intermediates local.

use crate::fusion::alignment::align;
use crate::fusion::iteration_space::{Statement, range_symbols, rebuild, shared_indices, statements};
use crate::fusion::local_copies::unify_copies;
use crate::patch::{Edit, Patch};
use crate::refusal::Reason;
use crate::unit_graph::needed_outside;
use indexmap::{IndexMap, IndexSet};
use sdfg::{
    Combine, Computation, Container, Dtype, Expr, Index, IndexKind, Item, Lifetime, Memlet, NodeId, Op, Operation, Role, Scalar, Scope,
    Sdfg, State, StateId, Tasklet, Unit,
};
use std::collections::BTreeSet;

/// Rows of one outer iteration must stay in a core's second-level cache: a few rows of 16,384 numbers.
const ROW_LIMIT: u64 = 1 << 20;

/// The units of a state, contractions expanded, and the containers that the expansion introduced.
struct Expanded<'a> {
    /// The program that the units are in.
    of: &'a Sdfg,
    /// The containers that the units touch, and the program's dims and sizes, with what the expansion added; it has no states.
    program: Sdfg,
    /// Statements of each scope, in execution order.
    scopes: Vec<Vec<Statement>>,
    /// Containers written so far: a later contraction that reads one takes its operand from inside.
    written: IndexSet<String>,
    /// The result of each contraction, in order.
    products: Vec<String>,
    /// Operands multiplied by a scale already.
    scaled: Vec<(String, Scalar, String)>,
    /// Whether there is a single unit.
    alone: bool,
}

/// One scope for these units, given in execution order.
pub(super) fn build(program: &Sdfg, (id, state): (StateId, &State), members: &[NodeId]) -> Result<Patch, Reason> {
    let (Expanded { program: around, mut scopes, products, .. }, names) = Expanded::of(program, state, members)?;
    align(&mut scopes);
    let mut all: Vec<Statement> = scopes.into_iter().flatten().collect();
    unify_copies(&mut all, &around);
    let shared = outer(&all, &products, &around, &names)?;
    written_once(&all, &around)?;
    let label = names.last().cloned().unwrap_or_default();
    let kept = |data: &str| program.containers.contains_key(data) && needed_outside(program, id, members, data);
    let rebuilt = rebuild(&label, all, &shared, &kept, &around)
        .ok_or_else(|| Reason::Unsupported("an intermediate result is subscripted in a way that has no local form".into()))?;
    if rebuilt.local_bytes > ROW_LIMIT {
        return Err(Reason::TooLarge { bytes: rebuilt.local_bytes, limit: ROW_LIMIT });
    }
    let indices: Vec<&str> = shared.iter().map(|i| i.name.as_str()).collect();
    let summary = format!("compose `{}` over [{}]", names.join("` with `"), indices.join(","));
    let edits = vec![Edit { state: id, remove: members.to_vec(), insert: vec![Unit::Scope(rebuilt.scope)] }];
    Ok(Patch { summary, edits, containers: rebuilt.containers, drop: vec![], dims: vec![] })
}

/// A program with what the expansion of units added, their statements scope by scope, and their names.
pub(in crate::fusion) type ExpandedUnits = (Sdfg, Vec<Vec<Statement>>, Vec<String>);

/// The units of a state as statements, contractions expanded, scope by scope: the program with what the expansion added, the statements,
/// and the names of the units.
///
/// # Errors
/// Units that are neither scopes nor contractions, and scopes with sequential indices.
pub(in crate::fusion) fn expanded(program: &Sdfg, state: &State, members: &[NodeId]) -> Result<ExpandedUnits, Reason> {
    let (Expanded { program: around, scopes, .. }, names) = Expanded::of(program, state, members)?;
    // The caller sees all containers, in the program's order.
    let mut whole = program.without_states();
    for (name, container) in around.containers {
        whole.containers.insert(name, container);
    }
    Ok((whole, scopes, names))
}

/// Whether each container has one writer inside, which writes all of it if it is read inside as well: only then has it a
/// local form.
fn written_once(all: &[Statement], program: &Sdfg) -> Result<(), Reason> {
    let mut writers: IndexSet<&str> = IndexSet::new();
    for statement in all {
        let targets: IndexSet<&str> = statement.computation.writes.iter().map(|(_, m)| m.data.as_str()).collect();
        if let Some(data) = targets.iter().find(|d| writers.contains(*d)) {
            return Err(Reason::SeveralWriters { data: data.to_string() });
        }
        writers.extend(targets);
        for (_, write) in &statement.computation.writes {
            let read = || all.iter().flat_map(|s| &s.computation.reads).any(|(_, m)| m.data == write.data);
            if !whole(statement, write, program) && read() {
                return Err(Reason::Unsupported(format!("`{}` is written in slices, which has no local form", write.data)));
            }
        }
    }
    Ok(())
}

/// Whether a statement writes every element of a container, subscripting it by plain indices.
fn whole(statement: &Statement, write: &Memlet, program: &Sdfg) -> bool {
    let Some(container) = program.containers.get(&write.data) else { return false };
    let sizes = program.shape(container);
    let covers = |(range, size): (&sdfg::Range, &Expr)| {
        let name = if let sdfg::Range::At(e) = range { e.as_sym() } else { None };
        name.and_then(|name| statement.indices.iter().find(|i| i.name == name)).is_some_and(|i| i.count() == *size)
    };
    // Locals of a scope taken apart carry the indices around them in front.
    let own = write.subset.len().saturating_sub(sizes.len());
    write.point().is_some() && write.subset[own..].iter().zip(&sizes).all(covers)
}

/// The outer indices: those that all statements share. A lone contraction keeps its sum inside.
///
/// Among several contractions, one may sum over outer indices only if all of them are the same problem many times over:
/// then each core takes problems of its own and walks the summed indices in order. Otherwise each would need a copy of the
/// result, and that is as large as a weight.
fn outer(all: &[Statement], products: &[String], program: &Sdfg, names: &[String]) -> Result<Vec<Index>, Reason> {
    let mut shared = shared_indices(all);
    let is_product = |s: &&Statement| s.computation.writes.iter().any(|(_, m)| m.wcr == Some(Combine::Sum) && products.contains(&m.data));
    let sums: Vec<&Statement> = all.iter().filter(is_product).collect();
    let over: IndexSet<String> = sums.iter().flat_map(|s| s.reduced()).filter(|name| shared.iter().any(|i| i.name == *name)).collect();
    if !over.is_empty() && sums.len() == 1 {
        shared.retain(|i| !over.contains(&i.name));
    } else if let Some(first) = sums.iter().find(|s| s.reduced().iter().any(|i| over.contains(i))) {
        let subscripted = |m: &Memlet, name: &str| m.subset.iter().flat_map(range_symbols).any(|s| s == name);
        let memlets = |s: &Statement| s.computation.reads.iter().chain(&s.computation.writes).map(|(_, m)| m.clone()).collect::<Vec<_>>();
        let batch = |i: &Index| !over.contains(&i.name) && sums.iter().all(|s| memlets(s).iter().all(|m| subscripted(m, &i.name)));
        if !shared.iter().any(batch) {
            let data = first.computation.writes.first().map(|(_, m)| m.data.clone()).unwrap_or_default();
            let bytes = program.bytes(&data).unwrap_or(u64::MAX);
            return Err(Reason::SummedOutside { data, over: over.into_iter().collect::<Vec<_>>().join(","), bytes });
        }
    }
    if shared.is_empty() {
        let space = |s: &Statement| s.indices.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(",");
        let (first, last) = (all.first().map(space).unwrap_or_default(), all.last().map(space).unwrap_or_default());
        let name = |n: Option<&String>| n.cloned().unwrap_or_default();
        let (first_name, second_name) = (name(names.first()), name(names.last()));
        return Err(Reason::NoSharedIndex { first: first_name, first_space: first, second: second_name, second_space: last });
    }
    Ok(shared)
}

impl<'a> Expanded<'a> {
    /// Units of a state, given in execution order, and their names.
    fn of(program: &'a Sdfg, state: &State, members: &[NodeId]) -> Result<(Self, Vec<String>), Reason> {
        let mut expanded = Expanded::new(program, state, members);
        expanded.alone = members.len() == 1;
        let mut names = Vec::new();
        for node in members {
            if let Some(operation) = state.operation(*node) {
                names.push(operation.name.clone());
                expanded.contraction(&operation)?;
            } else {
                let scope =
                    state.scope(*node).ok_or_else(|| Reason::Unsupported(format!("{node} is neither a scope nor a contraction")))?;
                names.push(scope.map.label.clone());
                expanded.scope(&scope)?;
            }
        }
        Ok((expanded, names))
    }

    fn new(program: &'a Sdfg, state: &State, members: &[NodeId]) -> Self {
        let mut around = Sdfg::new(program.name.clone());
        around.sizes = program.sizes.clone();
        around.dims = program.dims.clone();
        let mut touched: BTreeSet<usize> = BTreeSet::new();
        for node in members {
            let (reads, writes) = state.boundary(*node);
            let mut names: Vec<String> = reads.into_iter().chain(writes).map(|memlet| memlet.data.clone()).collect();
            names.extend(state.scope(*node).iter().flat_map(|scope| scope.reads().into_keys().chain(scope.writes().into_keys())));
            for name in names {
                let mut next = program.containers.get_full(&name);
                // A view adds the container that it is a view of.
                while let Some((_, _, container)) = next.filter(|(place, ..)| touched.insert(*place)) {
                    next = container.view.as_ref().and_then(|view| program.containers.get_full(&view.of));
                }
            }
        }
        for (name, container) in touched.into_iter().filter_map(|place| program.containers.get_index(place)) {
            around.containers.insert(name.clone(), container.clone());
        }
        Expanded { of: program, program: around, scopes: vec![], written: IndexSet::new(), products: vec![], scaled: vec![], alone: false }
    }

    fn scope(&mut self, scope: &Scope) -> Result<(), Reason> {
        let taken = statements(scope, &self.program)
            .ok_or_else(|| Reason::Unsupported(format!("`{}` has a sequential index or holds a contraction", scope.map.label)))?;
        self.written.extend(scope.writes().into_keys());
        self.scopes.push(taken);
        Ok(())
    }

    /// A contraction as a plain sum of products. Its scale goes to an operand that is made inside, or else to the sum.
    fn contraction(&mut self, operation: &Operation) -> Result<(), Reason> {
        let Op::Contraction { scale } = &operation.op else {
            return Err(Reason::Unsupported(format!("`{}` has not been expanded into a map", operation.name)));
        };
        let mut plain = Operation { op: Op::Contraction { scale: Scalar::Const(1.0) }, ..operation.clone() };
        let mut after = None;
        let inside = |o: &sdfg::Operand| self.written.contains(&o.data) && o.index_names().is_some();
        // A sum begins with all of its container: one that goes to a part is made inside.
        let part = |o: &sdfg::Operand| Unit::Operation(operation.clone()).writes_part(&self.program, &o.data);
        if (self.alone || operation.inputs.iter().any(inside))
            && let Some(out) = plain.outputs.first_mut().filter(|o| part(o))
        {
            let whole = out.clone();
            let index = |e: &Expr| e.symbols().into_iter().find(|name| operation.indices.contains_key(name));
            let own: Option<Vec<String>> = out.subscripts.iter().map(index).collect();
            let own = own.ok_or_else(|| Reason::Unsupported(format!("`{}` is written at fixed places", out.data)))?;
            let raw = self.transient(&out.data, "raw")?;
            if let Some(container) = self.program.containers.get_mut(&raw) {
                container.dims = own.iter().filter_map(|name| operation.indices.get(name).cloned()).collect();
            }
            (out.data, out.subscripts) = (raw.clone(), own.iter().map(|name| Expr::sym(name.as_str())).collect());
            after = Some(scaling(operation, &self.program, (&raw, &out.subscripts), (&whole.data, &whole.subscripts), scale));
        } else if *scale != Scalar::Const(1.0) {
            match operation.inputs.iter().position(inside) {
                Some(n) => plain.inputs[n].data = self.scaled(operation, n, scale)?,
                None => {
                    let Some(out) = plain.outputs.first_mut() else { return Ok(()) };
                    let raw = self.transient(&out.data, "raw")?;
                    after = Some(scaling(operation, &self.program, (&raw, &out.subscripts), (&out.data, &out.subscripts), scale));
                    out.data = raw;
                }
            }
        }
        // A sum that leaves for narrower storage is rounded where it is stored: no container stands between.
        let sums: Vec<(String, Dtype)> =
            plain.outputs.iter().filter_map(|o| Some((o.data.clone(), self.program.containers.get(&o.data)?.dtype))).collect();
        self.store(&sums, Dtype::accumulator);
        let expansion = plain.expand(&self.program).map_err(|e| Reason::Unsupported(e.to_string()));
        self.store(&sums, |dtype| dtype);
        let expansion = expansion?;
        self.products.extend(plain.outputs.first().map(|o| o.data.clone()));
        for scope in expansion.scopes.iter().chain(&after) {
            self.scope(scope)?;
        }
        Ok(())
    }

    /// Gives containers the types made of those given.
    fn store(&mut self, all: &[(String, Dtype)], made: impl Fn(Dtype) -> Dtype) {
        for (data, dtype) in all {
            if let Some(container) = self.program.containers.get_mut(data) {
                container.dtype = made(*dtype);
            }
        }
    }

    /// The container that holds operand `n` times the scale.
    fn scaled(&mut self, operation: &Operation, n: usize, scale: &Scalar) -> Result<String, Reason> {
        let operand = &operation.inputs[n];
        if let Some((_, _, made)) = self.scaled.iter().find(|(data, by, _)| *data == operand.data && by == scale) {
            return Ok(made.clone());
        }
        let made = self.transient(&operand.data, "scaled")?;
        let scope = scaling(operation, &self.program, (&operand.data, &operand.subscripts), (&made, &operand.subscripts), scale);
        self.scope(&scope)?;
        self.scaled.push((operand.data.clone(), scale.clone(), made.clone()));
        Ok(made)
    }

    /// A new container shaped like `like`.
    fn transient(&mut self, like: &str, suffix: &str) -> Result<String, Reason> {
        let wish = format!("{like}.{suffix}");
        let taken = |name: &String| self.of.containers.contains_key(name) || self.program.containers.contains_key(name);
        let all = std::iter::once(wish.clone()).chain((2..).map(|n| format!("{wish}.{n}")));
        let name = all.into_iter().find(|name| !taken(name)).unwrap_or_default();
        let like = self.program.containers.get(like).ok_or_else(|| Reason::Unsupported(format!("`{like}` is not declared")))?;
        let made = Container {
            name: name.clone(),
            role: Role::Transient,
            lifetime: Lifetime::Program,
            storage: sdfg::Storage::Heap,
            grad: false,
            view: None,
            ..like.clone()
        };
        self.program.add_container(made);
        Ok(name)
    }
}

/// `to = from · scale` at every point of these subscripts, which have the same indices.
fn scaling(
    operation: &Operation,
    program: &Sdfg,
    (from, there): (&str, &[Expr]),
    (to, subscripts): (&str, &[Expr]),
    scale: &Scalar,
) -> Scope {
    let mut indices: IndexMap<String, Index> = IndexMap::new();
    for name in subscripts.iter().flat_map(Expr::symbols) {
        if let Some(dim) = operation.indices.get(&name) {
            indices.insert(name.clone(), Index::over(&name, dim, program.size_of(dim), IndexKind::Independent));
        }
    }
    let name = format!("{}.scale", operation.name);
    let computation = Computation {
        tasklet: Tasklet {
            name: name.clone(),
            code: vec![("out".into(), Scalar::input("value") * scale.clone())],
            operator: operation.name.clone(),
            origin: operation.origin.clone(),
        },
        reads: vec![("value".into(), Memlet::at(from, there.iter().cloned()))],
        writes: vec![("out".into(), Memlet::at(to, subscripts.iter().cloned()))],
    };
    Scope::new(name, indices.into_values().collect(), vec![Item::Tasklet(computation)])
}
