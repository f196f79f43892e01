//! The program: containers, named dims, and a graph of states.

use crate::data::{Container, Role, Storage};
use crate::memlet::{Memlet, Range};
use crate::node::{Computation, Edge, Index, IndexKind, Library, Nested, Node, NodeId, Operation, StateId};
use crate::propagate;
use crate::scope::{Item, Scope, Unit};
use crate::state::State;
use crate::symbol::{Bindings, Expr, SymbolError};
use indexmap::IndexMap;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A comparison of symbolic integers: when a transition is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub left: Expr,
    pub relation: Relation,
    pub right: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Relation {
    Lt,
    Le,
    Eq,
    Ne,
    Ge,
    Gt,
}

/// Host control between states: taken when the condition holds (always, without one); then symbols are assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    pub condition: Option<Condition>,
    pub assignments: Vec<(String, Expr)>,
}

/// A stateful dataflow multigraph.
#[derive(Clone, Debug, Default)]
pub struct Sdfg {
    pub name: String,
    pub about: String,
    /// Whether factors of f32 may lose all but 10 bits of their fractions (TF32) where a device multiplies them faster so.
    pub tf32: bool,
    /// Whether convolutions by windows of 3×3 may be computed by Winograd's minimal filtering, whose sums round more
    /// ([`crate::tolerance`]).
    pub winograd: bool,
    /// Values of size symbols, bound late; `--set` changes them. Symbols and map indices meet in one expression, so a
    /// symbol is never called like an index: recipes and random programs use upper case.
    pub sizes: Bindings,
    /// Named dims and their symbolic sizes, in the recipe's order.
    pub dims: IndexMap<String, Expr>,
    /// By name, in order of appearance.
    pub containers: IndexMap<String, Container>,
    pub(crate) states: StableDiGraph<State, Transition, u32>,
}

impl PartialEq for Sdfg {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.about == other.about
            && self.tf32 == other.tf32
            && self.winograd == other.winograd
            && self.sizes == other.sizes
            && self.dims.iter().eq(other.dims.iter())
            && self.containers.iter().eq(other.containers.iter())
            && self.states().eq(other.states())
            && self.transitions().eq(other.transitions())
    }
}

/// Why something could not be put into a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error("`{user}` uses the container `{data}`, which the program `{program}` does not declare")]
    UnknownContainer { program: String, user: String, data: String },
    #[error("the container `{data}` uses the dim `{dim}`, which the program `{program}` does not declare")]
    UnknownDim { program: String, data: String, dim: String },
    #[error("the program `{program}` has no state {state}")]
    UnknownState { program: String, state: StateId },
    #[error("`{unit}` of the program `{program}` is no operator any more; rewrite operators before expanding or fusing them")]
    NoOperation { program: String, unit: String },
    #[error(
        "`{user}` reads `{data}` from memory and writes it too, which would make a cycle in `{program}`; write to a container of its own, or carry the value from step to step in one that lives on chip"
    )]
    InPlace { program: String, user: String, data: String },
}

impl Sdfg {
    pub fn new(name: impl Into<String>) -> Self {
        Sdfg { name: name.into(), ..Sdfg::default() }
    }

    /// What it declares, without what it does.
    pub fn without_states(&self) -> Self {
        let Sdfg { name, about, tf32, winograd, sizes, dims, containers, states: _ } = self;
        Sdfg {
            name: name.clone(),
            about: about.clone(),
            tf32: *tf32,
            winograd: *winograd,
            sizes: sizes.clone(),
            dims: dims.clone(),
            containers: containers.clone(),
            states: StableDiGraph::default(),
        }
    }

    pub fn add_state(&mut self, name: impl Into<String>) -> StateId {
        StateId(self.states.add_node(State::new(name)).index() as u32)
    }

    pub fn add_transition(&mut self, from: StateId, to: StateId, transition: Transition) {
        self.states.add_edge(NodeIndex::new(from.0 as usize), NodeIndex::new(to.0 as usize), transition);
    }

    pub fn state(&self, state: StateId) -> Option<&State> {
        self.states.node_weight(NodeIndex::new(state.0 as usize))
    }

    pub fn state_mut(&mut self, state: StateId) -> Option<&mut State> {
        self.states.node_weight_mut(NodeIndex::new(state.0 as usize))
    }

    /// States in order of their handles; the first one starts.
    pub fn states(&self) -> impl Iterator<Item = (StateId, &State)> {
        self.states.node_indices().map(|i| (StateId(i.index() as u32), &self.states[i]))
    }

    pub fn transitions(&self) -> impl Iterator<Item = (StateId, StateId, &Transition)> {
        self.states.edge_indices().filter_map(|e| {
            let (a, b) = self.states.edge_endpoints(e)?;
            Some((StateId(a.index() as u32), StateId(b.index() as u32), &self.states[e]))
        })
    }

    pub fn state_named(&self, name: &str) -> Option<StateId> {
        self.states().find(|(_, s)| s.name == name).map(|(id, _)| id)
    }

    /// Every top-level unit of every state, in execution order of straight-line programs.
    pub fn units(&self) -> Vec<(StateId, NodeId, Unit)> {
        self.states().flat_map(|(id, state)| state.units().into_iter().map(move |(node, unit)| (id, node, unit))).collect()
    }

    pub fn add_container(&mut self, mut container: Container) {
        // What is made like something that is given is not given itself.
        container.range = container.range.filter(|_| matches!(container.role, Role::Input | Role::Parameter));
        container.initial = container.initial.filter(|_| container.role == Role::Parameter);
        container.replaces = container.replaces.filter(|_| container.role == Role::Output);
        self.containers.insert(container.name.clone(), container);
    }

    /// A name not yet taken by a container, starting from `wish`.
    pub fn fresh_name(&self, wish: &str) -> String {
        if !self.containers.contains_key(wish) {
            return wish.to_string();
        }
        (2..).map(|n| format!("{wish}.{n}")).find(|name| !self.containers.contains_key(name)).unwrap_or_default()
    }

    /// Symbolic size of a dim. A dim that is not declared is a symbol of its own.
    pub fn size_of(&self, dim: &str) -> Expr {
        self.dims.get(dim).cloned().unwrap_or_else(|| Expr::sym(dim))
    }

    /// Symbolic sizes of a container's dimensions.
    pub fn shape(&self, container: &Container) -> Vec<Expr> {
        container.dims.iter().map(|d| self.size_of(d)).collect()
    }

    /// Sizes of a container's dimensions under the program's bindings.
    pub fn shape_of(&self, data: &str) -> Result<Vec<usize>, SymbolError> {
        let container = self.containers.get(data).ok_or_else(|| SymbolError::Unbound(data.to_string()))?;
        self.shape(container).iter().map(|e| e.eval(&self.sizes).map(|v| v.max(0) as usize)).collect()
    }

    /// Number of elements of a container under the program's bindings.
    pub fn elements(&self, data: &str) -> Result<u64, SymbolError> {
        self.shape_of(data)?.iter().try_fold(1u64, |n, s| n.checked_mul(*s as u64)).ok_or_else(|| SymbolError::Overflow(data.to_string()))
    }

    /// Bytes of a container under the program's bindings.
    pub fn bytes(&self, data: &str) -> Result<u64, SymbolError> {
        let elements = self.elements(data)?;
        Ok(self.containers.get(data).map_or(0, |c| c.dtype.bytes(elements)))
    }

    /// The memlet that moves a whole container.
    pub fn whole(&self, data: &str) -> Option<Memlet> {
        let container = self.containers.get(data)?;
        Some(Memlet::new(data, self.shape(container).into_iter().map(Range::full).collect()))
    }

    fn known(&self, user: &str, data: &str) -> Result<&Container, BuildError> {
        self.containers.get(data).ok_or_else(|| BuildError::UnknownContainer {
            program: self.name.clone(),
            user: user.to_string(),
            data: data.to_string(),
        })
    }

    /// What an operand moves: its subscripts over all values of the operation's indices, each element once.
    fn operand_memlet(&self, operation: &Operation, operand: &crate::node::Operand, container: &Container) -> Memlet {
        let over = |(name, dim): (&String, &String)| Index::over(name, dim, self.size_of(dim), IndexKind::Independent);
        let indices: Vec<Index> = operation.indices.iter().map(over).collect();
        let shape = self.shape(container);
        let mut moved = propagate::propagate(&operand.memlet(), &indices, &shape);
        // Elements outside the container are not moved.
        if moved.fill.take().is_some() {
            moved.subset = moved.subset.iter().zip(&shape).map(|(range, size)| range.clamped(size)).collect();
        }
        Memlet { volume: Expr::product(moved.subset.iter().map(Range::count)), ..moved }
    }

    /// Adds a library node at the top level of a state, with access nodes and whole-container memlets.
    pub fn insert_operation(&mut self, state: StateId, operation: &Operation) -> Result<NodeId, BuildError> {
        self.insert_operation_in(state, operation, None)
    }

    fn insert_operation_in(&mut self, state: StateId, operation: &Operation, scope: Option<NodeId>) -> Result<NodeId, BuildError> {
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for (operands, into) in [(&operation.inputs, &mut reads), (&operation.outputs, &mut writes)] {
            for operand in operands {
                let container = self.known(&operation.name, &operand.data)?;
                into.push((operand.connector.clone(), self.operand_memlet(operation, operand, container)));
            }
        }
        let program = self.name.clone();
        let target = self.state_mut(state).ok_or(BuildError::UnknownState { program, state })?;
        let node = target.add_node(Node::Library(Library::from(operation)), scope);
        if scope.is_none() {
            for (connector, memlet) in reads {
                let access = access_or_new(target, &memlet.data, None);
                target.add_edge(access, node, Edge { from: String::new(), to: connector, memlet });
            }
            for (connector, memlet) in writes {
                let access = access_or_new(target, &memlet.data, None);
                target.add_edge(node, access, Edge { from: connector, to: String::new(), memlet });
            }
        }
        Ok(node)
    }

    /// Replaces the operations of a state. `with` is given each one in execution order, and what it answers stands in its place, in
    /// that order; it may declare containers for it. The state keeps its handle, its nodes get new ones.
    ///
    /// # Errors
    /// A state that does not exist or holds other units than operations, and containers that are not declared.
    pub fn map_operations(
        &mut self,
        state: StateId,
        mut with: impl FnMut(&mut Sdfg, Operation) -> Vec<Operation>,
    ) -> Result<(), BuildError> {
        let program = self.name.clone();
        let found = self.state_mut(state).ok_or(BuildError::UnknownState { program, state })?;
        let mut operations = Vec::new();
        for (_, unit) in found.units() {
            match unit {
                Unit::Operation(operation) => operations.push(operation),
                other => return Err(BuildError::NoOperation { program: self.name.clone(), unit: other.name().to_string() }),
            }
        }
        *found = State::new(found.name.clone());
        for operation in operations {
            for replacement in with(self, operation) {
                self.insert_operation(state, &replacement)?;
            }
        }
        Ok(())
    }

    /// Adds a nested program at the top level of a state, with access nodes and whole-container memlets for what it is given and what
    /// it makes, by their roles inside.
    ///
    /// # Errors
    /// Containers that are not declared.
    pub fn insert_nested(&mut self, state: StateId, nested: &Nested) -> Result<NodeId, BuildError> {
        let whole = |data: &String| {
            let unknown = || BuildError::UnknownContainer { program: self.name.clone(), user: nested.name.clone(), data: data.clone() };
            self.whole(data).ok_or_else(unknown)
        };
        let (given, made) = nested.boundary();
        let reads = given.iter().map(whole).collect::<Result<Vec<_>, BuildError>>()?;
        let writes = made.iter().map(whole).collect::<Result<Vec<_>, BuildError>>()?;
        let program = self.name.clone();
        let target = self.state_mut(state).ok_or(BuildError::UnknownState { program, state })?;
        let node = target.add_node(Node::Nested(nested.clone()), None);
        for memlet in reads {
            let access = access_or_new(target, &memlet.data, None);
            target.add_edge(access, node, Edge { from: String::new(), to: memlet.data.clone(), memlet });
        }
        for memlet in writes {
            let access = access_or_new(target, &memlet.data, None);
            target.add_edge(node, access, Edge { from: memlet.data.clone(), to: String::new(), memlet });
        }
        Ok(node)
    }

    /// Adds a scope at the top level of a state: entry, inside, exit, access nodes, and propagated memlets.
    ///
    /// # Errors
    /// Containers and dims that are not declared; a container in memory that the scope both reads and writes. The state is
    /// then as it was.
    pub fn insert_scope(&mut self, state: StateId, scope: &Scope) -> Result<NodeId, BuildError> {
        for data in scope.reads().keys().chain(scope.writes().keys()) {
            let container = self.known(&scope.map.label, data)?;
            for dim in &container.dims {
                if !self.dims.contains_key(dim) {
                    return Err(BuildError::UnknownDim { program: self.name.clone(), data: data.clone(), dim: dim.clone() });
                }
            }
        }
        let mut target = match self.state_mut(state) {
            Some(s) => std::mem::take(s),
            None => return Err(BuildError::UnknownState { program: self.name.clone(), state }),
        };
        let uses = accesses(scope);
        let (entry, exit, reads, writes) = self.write_scope(&mut target, scope, None, &uses);
        let twice = writes.iter().find(|w| reads.iter().any(|r| r.data == w.data)).map(|w| w.data.clone());
        if let Some(data) = twice {
            target.remove_unit(entry);
            if let Some(s) = self.state_mut(state) {
                *s = target;
            }
            return Err(BuildError::InPlace { program: self.name.clone(), user: scope.map.label.clone(), data });
        }
        for memlet in reads {
            let access = access_or_new(&mut target, &memlet.data, None);
            let to = format!("IN_{}", memlet.data);
            target.add_edge(access, entry, Edge { from: String::new(), to, memlet });
        }
        for memlet in writes {
            let access = access_or_new(&mut target, &memlet.data, None);
            let from = format!("OUT_{}", memlet.data);
            target.add_edge(exit, access, Edge { from, to: String::new(), memlet });
        }
        if let Some(s) = self.state_mut(state) {
            *s = target;
        }
        Ok(entry)
    }

    /// Writes one scope; returns entry, exit, and the propagated memlets that must come in and go out.
    fn write_scope(
        &self,
        state: &mut State,
        scope: &Scope,
        around: Option<NodeId>,
        uses: &IndexMap<String, usize>,
    ) -> (NodeId, NodeId, Vec<Memlet>, Vec<Memlet>) {
        let entry = state.add_node(Node::MapEntry(scope.map.clone()), around);
        let exit = state.add_node(Node::MapExit { entry }, around);
        let inside = Some(entry);
        // A container gets an access node inside if an item reads what an item before it wrote.
        let mut written: BTreeSet<String> = BTreeSet::new();
        let mut handed_on: BTreeSet<String> = BTreeSet::new();
        for item in &scope.body {
            let (reads, writes) = item_memlets(item);
            handed_on.extend(reads.into_iter().filter(|d| written.contains(d)));
            written.extend(writes);
        }
        let is_local = |data: &str| self.containers.get(data).is_some_and(|c| c.storage != Storage::Heap);
        // A local container belongs to the innermost scope that holds all its uses.
        let mine = accesses(scope);
        let declared_here = |data: &str| is_local(data) && mine.get(data) == uses.get(data);
        // The scope is new: its access nodes are those that are added here.
        let mut accessed: BTreeMap<String, NodeId> = BTreeMap::new();
        let mut incoming: IndexMap<String, Memlet> = IndexMap::new();
        let mut outgoing: IndexMap<String, Memlet> = IndexMap::new();
        for item in &scope.body {
            let (first, last, reads, writes): (NodeId, NodeId, Moved, Moved) = match item {
                Item::Tasklet(Computation { tasklet, reads, writes }) => {
                    let node = state.add_node(Node::Tasklet(tasklet.clone()), inside);
                    (node, node, reads.clone(), writes.clone())
                }
                Item::Scope(inner) => {
                    let (first, last, reads, writes) = self.write_scope(state, inner, inside, uses);
                    let name = |prefix: &str, m: Memlet| (format!("{prefix}_{}", m.data), m);
                    (first, last, reads.into_iter().map(|m| name("IN", m)).collect(), writes.into_iter().map(|m| name("OUT", m)).collect())
                }
                Item::Operation(operation) => {
                    let node = state.add_node(Node::Library(Library::from(operation)), inside);
                    let whole = |o: &crate::node::Operand| self.whole(&o.data).map(|m| (o.connector.clone(), m));
                    (node, node, operation.inputs.iter().filter_map(whole).collect(), operation.outputs.iter().filter_map(whole).collect())
                }
            };
            for (connector, memlet) in reads {
                match accessed.get(&memlet.data) {
                    Some(access) => {
                        state.add_edge(*access, first, Edge { from: String::new(), to: connector, memlet });
                    }
                    None => {
                        merge(&mut incoming, self.propagated(&memlet, scope));
                        let from = format!("OUT_{}", memlet.data);
                        state.add_edge(entry, first, Edge { from, to: connector, memlet });
                    }
                }
            }
            for (connector, memlet) in writes {
                let to = format!("IN_{}", memlet.data);
                if !declared_here(&memlet.data) {
                    merge(&mut outgoing, self.propagated(&memlet, scope));
                }
                if declared_here(&memlet.data) || handed_on.contains(&memlet.data) {
                    let fresh = !accessed.contains_key(&memlet.data);
                    let access =
                        *accessed.entry(memlet.data.clone()).or_insert_with(|| state.add_node(Node::Access(memlet.data.clone()), inside));
                    if !declared_here(&memlet.data) && fresh {
                        state.add_edge(access, exit, Edge { from: String::new(), to, memlet: memlet.clone() });
                    }
                    state.add_edge(last, access, Edge { from: connector, to: String::new(), memlet });
                } else {
                    state.add_edge(last, exit, Edge { from: connector, to, memlet });
                }
            }
        }
        (entry, exit, incoming.into_values().collect(), outgoing.into_values().collect())
    }

    fn propagated(&self, memlet: &Memlet, scope: &Scope) -> Memlet {
        let sizes = self.containers.get(&memlet.data).map(|c| self.shape(c)).unwrap_or_default();
        propagate::propagate(memlet, &scope.map.indices, &sizes)
    }
}

/// Memlets with the connectors that they enter or leave by.
type Moved = Vec<(String, Memlet)>;

fn merge(into: &mut IndexMap<String, Memlet>, memlet: Memlet) {
    match into.get_mut(&memlet.data) {
        Some(known) => *known = propagate::union(known, &memlet),
        None => {
            into.insert(memlet.data.clone(), memlet);
        }
    }
}

fn access_or_new(state: &mut State, data: &str, scope: Option<NodeId>) -> NodeId {
    state.access(data, scope).unwrap_or_else(|| state.add_node(Node::Access(data.to_string()), scope))
}

/// How often each container is named by a memlet inside a scope.
fn accesses(scope: &Scope) -> IndexMap<String, usize> {
    let mut counts = IndexMap::new();
    for item in &scope.body {
        let (reads, writes) = item_memlets(item);
        for data in reads.into_iter().chain(writes) {
            *counts.entry(data).or_default() += 1;
        }
    }
    counts
}

/// Names of the containers that an item reads and writes.
fn item_memlets(item: &Item) -> (Vec<String>, Vec<String>) {
    match item {
        Item::Tasklet(c) => (c.reads.iter().map(|(_, m)| m.data.clone()).collect(), c.writes.iter().map(|(_, m)| m.data.clone()).collect()),
        Item::Operation(o) => (o.inputs.iter().map(|o| o.data.clone()).collect(), o.outputs.iter().map(|o| o.data.clone()).collect()),
        Item::Scope(s) => {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for item in &s.body {
                let (r, w) = item_memlets(item);
                reads.extend(r);
                writes.extend(w);
            }
            (reads, writes)
        }
    }
}
