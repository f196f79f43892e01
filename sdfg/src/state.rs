//! A state: an acyclic multigraph of nodes, with memlets on its edges.

use crate::memlet::Memlet;
use crate::node::{Computation, Edge, EdgeId, Library, Map, Node, NodeId, Operand, Operation, Vertex};
use crate::scope::{Item, Scope, Unit};
use petgraph::Direction;
use petgraph::stable_graph::{EdgeIndex, NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Clone, Debug, Default)]
pub struct State {
    pub name: String,
    graph: StableDiGraph<Vertex, Edge, u32>,
    /// The nodes directly in each scope. Passes ask for them after every rewrite, and a state may have thousands of nodes.
    members: BTreeMap<Option<NodeId>, BTreeSet<NodeId>>,
    /// Map entry → its exit.
    exits: BTreeMap<NodeId, NodeId>,
    /// By a hash of the container's name, its access node at the top level; `None` where several nodes have the hash.
    accesses: HashMap<u64, Option<NodeId>>,
    /// By a hash of a unit's name, how many units at the top level have it.
    titles: HashMap<u64, u32>,
}

/// A hash that is the same in every process.
fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The name of what stands at the top level as a unit.
fn title(node: &Node) -> Option<&str> {
    match node {
        Node::MapEntry(map) => Some(&map.label),
        Node::Library(library) => Some(&library.name),
        Node::Nested(nested) => Some(&nested.name),
        Node::Access(_) | Node::Tasklet(_) | Node::MapExit { .. } => None,
    }
}

fn ix(node: NodeId) -> NodeIndex<u32> {
    NodeIndex::new(node.0 as usize)
}

fn id(index: NodeIndex<u32>) -> NodeId {
    NodeId(index.index() as u32)
}

/// States are equal if their names, nodes and edges are; all other fields follow from those.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.nodes().eq(other.nodes()) && self.edges().eq(other.edges())
    }
}

impl State {
    pub fn new(name: impl Into<String>) -> Self {
        State { name: name.into(), ..State::default() }
    }

    pub fn add_node(&mut self, node: Node, scope: Option<NodeId>) -> NodeId {
        let entry = if let Node::MapExit { entry } = node { Some(entry) } else { None };
        let (data, name) = match &node {
            Node::Access(data) if scope.is_none() => (Some(hash(data)), None),
            node if scope.is_none() => (None, title(node).map(hash)),
            _ => (None, None),
        };
        let added = id(self.graph.add_node(Vertex { node, scope }));
        if let Some(data) = data {
            self.accesses.entry(data).and_modify(|known| *known = None).or_insert(Some(added));
        }
        if let Some(name) = name {
            *self.titles.entry(name).or_default() += 1;
        }
        self.members.entry(scope).or_default().insert(added);
        if let Some(entry) = entry {
            self.exits.insert(entry, added);
        }
        added
    }

    pub fn add_edge(&mut self, from: NodeId, to: NodeId, edge: Edge) -> EdgeId {
        EdgeId(self.graph.add_edge(ix(from), ix(to), edge).index() as u32)
    }

    pub fn remove_node(&mut self, node: NodeId) -> Option<Vertex> {
        let removed = self.graph.remove_node(ix(node))?;
        if let Some(members) = self.members.get_mut(&removed.scope) {
            members.remove(&node);
            if members.is_empty() {
                self.members.remove(&removed.scope);
            }
        }
        if let Node::MapExit { entry } = &removed.node {
            self.exits.remove(entry);
        }
        if removed.scope.is_none() {
            if let Node::Access(data) = &removed.node
                && self.accesses.get(&hash(data)) == Some(&Some(node))
            {
                self.accesses.remove(&hash(data));
            }
            if let Some(count) = title(&removed.node).and_then(|name| self.titles.get_mut(&hash(name))) {
                *count = count.saturating_sub(1);
            }
        }
        Some(removed)
    }

    pub fn remove_edge(&mut self, edge: EdgeId) -> Option<Edge> {
        self.graph.remove_edge(EdgeIndex::new(edge.0 as usize))
    }

    pub fn vertex(&self, node: NodeId) -> Option<&Vertex> {
        self.graph.node_weight(ix(node))
    }

    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.vertex(node).map(|v| &v.node)
    }

    /// A node to be changed in place; its kind, its name and its scope stay.
    pub fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.graph.node_weight_mut(ix(node)).map(|v| &mut v.node)
    }

    pub fn edge_mut(&mut self, edge: EdgeId) -> Option<&mut Edge> {
        self.graph.edge_weight_mut(EdgeIndex::new(edge.0 as usize))
    }

    /// All nodes in order of their handles.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Vertex)> {
        self.graph.node_indices().map(|i| (id(i), &self.graph[i]))
    }

    /// All edges in order of their handles: (handle, source, target, edge).
    pub fn edges(&self) -> impl Iterator<Item = (EdgeId, NodeId, NodeId, &Edge)> {
        self.graph.edge_indices().filter_map(|e| {
            let (from, to) = self.graph.edge_endpoints(e)?;
            Some((EdgeId(e.index() as u32), id(from), id(to), &self.graph[e]))
        })
    }

    /// Edges into a node, in order of their handles: (handle, source, edge).
    pub fn edges_in(&self, node: NodeId) -> Vec<(EdgeId, NodeId, &Edge)> {
        let mut found: Vec<_> = self
            .graph
            .edges_directed(ix(node), Direction::Incoming)
            .map(|e| (EdgeId(e.id().index() as u32), id(e.source()), e.weight()))
            .collect();
        found.sort_by_key(|(e, _, _)| *e);
        found
    }

    /// Edges out of a node, in order of their handles: (handle, target, edge).
    pub fn edges_out(&self, node: NodeId) -> Vec<(EdgeId, NodeId, &Edge)> {
        let mut found: Vec<_> = self
            .graph
            .edges_directed(ix(node), Direction::Outgoing)
            .map(|e| (EdgeId(e.id().index() as u32), id(e.target()), e.weight()))
            .collect();
        found.sort_by_key(|(e, _, _)| *e);
        found
    }

    /// The exit of a map entry.
    pub fn exit_of(&self, entry: NodeId) -> Option<NodeId> {
        self.exits.get(&entry).copied()
    }

    /// The nodes directly in `scope` (`None`: top level), in order of their handles.
    pub fn members(&self, scope: Option<NodeId>) -> impl Iterator<Item = NodeId> {
        self.members.get(&scope).into_iter().flatten().copied()
    }

    /// The access node of a container directly in `scope` (`None`: top level).
    pub fn access(&self, data: &str, scope: Option<NodeId>) -> Option<NodeId> {
        let is_it = |node: &NodeId| matches!(self.node(*node), Some(Node::Access(d)) if d == data);
        if scope.is_none() {
            match self.accesses.get(&hash(data)) {
                None => return None,
                Some(Some(node)) => return Some(*node).filter(is_it),
                Some(None) => {}
            }
        }
        self.members(scope).find(is_it)
    }

    /// Whether a unit at the top level has this name.
    pub fn has_unit(&self, name: &str) -> bool {
        let is_it = |node: NodeId| self.node(node).and_then(title) == Some(name);
        self.titles.get(&hash(name)).is_some_and(|count| *count > 0) && self.members(None).any(is_it)
    }

    /// The nodes directly in `scope` in topological order, ties by handle. A map exit directly follows what it closes:
    /// the exit of an inner map is listed, as its entry is. `None` if there is a cycle.
    pub fn topological(&self, scope: Option<NodeId>) -> Option<Vec<NodeId>> {
        let members: Vec<NodeId> = self.members(scope).collect();
        self.ordered(&members)
    }

    /// As [`State::topological`], of nodes that are given in order of their handles.
    fn ordered(&self, members: &[NodeId]) -> Option<Vec<NodeId>> {
        let place = |node: &NodeId| members.binary_search(node).ok();
        let mut waiting = vec![0usize; members.len()];
        let mut after: Vec<Vec<usize>> = vec![vec![]; members.len()];
        for (n, node) in members.iter().enumerate() {
            let targets = self.graph.edges(ix(*node)).filter_map(|e| place(&id(e.target())));
            after[n].extend(targets);
            if let Some(Node::MapExit { entry }) = self.node(*node)
                && let Some(entry) = place(entry)
            {
                after[entry].push(n);
            }
        }
        after.iter().flatten().for_each(|next| waiting[*next] += 1);
        let mut ready: BinaryHeap<Reverse<usize>> = (0..members.len()).filter(|n| waiting[*n] == 0).map(Reverse).collect();
        let mut order = Vec::with_capacity(members.len());
        while let Some(Reverse(n)) = ready.pop() {
            order.push(members[n]);
            for next in &after[n] {
                waiting[*next] -= 1;
                if waiting[*next] == 0 {
                    ready.push(Reverse(*next));
                }
            }
        }
        (order.len() == members.len()).then_some(order)
    }

    /// The scope that a map entry opens, read as a tree. `None` if the node is no map entry or its inside has a cycle.
    pub fn scope(&self, entry: NodeId) -> Option<Scope> {
        let Some(Node::MapEntry(map)) = self.node(entry) else { return None };
        let map: Map = map.clone();
        let mut body = Vec::new();
        for node in self.topological(Some(entry))? {
            match self.node(node)? {
                Node::MapEntry(_) => body.push(Item::Scope(self.scope(node)?)),
                Node::Tasklet(_) => body.push(Item::Tasklet(self.computation(node)?)),
                Node::Library(_) => body.push(Item::Operation(self.operation(node)?)),
                Node::Access(_) | Node::MapExit { .. } | Node::Nested(_) => {}
            }
        }
        Some(Scope { map, body })
    }

    /// A tasklet together with its memlets.
    pub fn computation(&self, node: NodeId) -> Option<Computation> {
        let Some(Node::Tasklet(tasklet)) = self.node(node) else { return None };
        let mut reads = self.edges_in(node).into_iter().map(|(_, _, e)| (e.to.clone(), e.memlet.clone())).collect();
        let writes = self.edges_out(node).into_iter().map(|(_, _, e)| (e.from.clone(), e.memlet.clone())).collect();
        indices_first(&mut reads);
        Some(Computation { tasklet: tasklet.clone(), reads, writes })
    }

    /// A library node together with the containers it is bound to. `None` if a port has no edge.
    pub fn operation(&self, node: NodeId) -> Option<Operation> {
        let Some(Node::Library(Library { name, op, indices, inputs, outputs, pass, origin })) = self.node(node) else { return None };
        let (reads, writes) = (self.edges_in(node), self.edges_out(node));
        let inputs = inputs.iter().map(|p| {
            reads.iter().find(|(_, _, e)| e.to == p.connector).map(|(_, _, e)| Operand {
                connector: p.connector.clone(),
                data: e.memlet.data.clone(),
                subscripts: p.subscripts.clone(),
                fill: p.fill,
            })
        });
        let outputs = outputs.iter().map(|p| {
            writes.iter().find(|(_, _, e)| e.from == p.connector).map(|(_, _, e)| Operand {
                connector: p.connector.clone(),
                data: e.memlet.data.clone(),
                subscripts: p.subscripts.clone(),
                fill: p.fill,
            })
        });
        Some(Operation {
            name: name.clone(),
            op: op.clone(),
            indices: indices.clone(),
            inputs: inputs.collect::<Option<_>>()?,
            outputs: outputs.collect::<Option<_>>()?,
            pass: *pass,
            origin: origin.clone(),
        })
    }

    /// What stands at the top level, in topological order: map entries, library nodes, nested programs.
    /// Empty if the state has a cycle (validation reports it).
    pub fn units(&self) -> Vec<(NodeId, Unit)> {
        let mut units = Vec::new();
        for node in self.topological(None).unwrap_or_default() {
            let unit = match self.node(node) {
                Some(Node::MapEntry(_)) => self.scope(node).map(Unit::Scope),
                Some(Node::Library(_)) => self.operation(node).map(Unit::Operation),
                Some(Node::Nested(nested)) => Some(Unit::Nested(nested.clone())),
                _ => None,
            };
            units.extend(unit.map(|u| (node, u)));
        }
        units
    }

    /// Removes a top-level unit with everything inside it, and access nodes that no edge touches afterwards.
    pub fn remove_unit(&mut self, node: NodeId) {
        let mut doomed = vec![node];
        let mut next = 0;
        while next < doomed.len() {
            let entry = doomed[next];
            next += 1;
            if matches!(self.node(entry), Some(Node::MapEntry(_))) {
                doomed.extend(self.members(Some(entry)));
                doomed.extend(self.exit_of(entry));
            }
        }
        let neighbours: BTreeSet<NodeId> = doomed.iter().flat_map(|n| self.graph.neighbors_undirected(ix(*n)).map(id)).collect();
        for node in doomed {
            self.remove_node(node);
        }
        for node in neighbours {
            if matches!(self.node(node), Some(Node::Access(_))) && self.graph.neighbors_undirected(ix(node)).next().is_none() {
                self.remove_node(node);
            }
        }
    }

    /// Containers that the top-level unit `node` reads and writes, by the memlets at its boundary.
    pub fn boundary(&self, node: NodeId) -> (Vec<&crate::memlet::Memlet>, Vec<&crate::memlet::Memlet>) {
        let out = match self.node(node) {
            Some(Node::MapEntry(_)) => self.exit_of(node).unwrap_or(node),
            _ => node,
        };
        let reads = self.edges_in(node).into_iter().map(|(_, _, e)| &e.memlet).collect();
        let writes = self.edges_out(out).into_iter().map(|(_, _, e)| &e.memlet).collect();
        (reads, writes)
    }
}

/// Puts what other reads take their subscripts from before these. A graph hands out the handles of removed edges again, so the order of
/// handles does not say it.
fn indices_first(reads: &mut Vec<(String, Memlet)>) {
    let takes = |memlet: &Memlet| {
        let mut found = BTreeSet::new();
        memlet.point().into_iter().flatten().for_each(|subscript| subscript.collect_indexing_containers(&mut found));
        found
    };
    let mut n = 0;
    while n < reads.len() {
        let wanted = takes(&reads[n].1);
        let is_index = |(_, memlet): &(String, Memlet)| wanted.contains(&memlet.data) && takes(memlet).is_empty();
        match reads[n..].iter().position(is_index) {
            Some(after) => {
                let index = reads.remove(n + after);
                reads.insert(n, index);
            }
            None => n += 1,
        }
    }
}
