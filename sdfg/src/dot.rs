//! Graphviz: a picture of a program. Clusters are states, scopes and nested programs; edges bear what they move.
//!
//! Colours: tensor contractions blue, statistical normalizations (maps with a reduction in them) orange, element-wise operators
//! green; what is given grey, what is handed back yellow, what lives on chip dashed.

use crate::data::{Role, Storage};
use crate::graph::Sdfg;
use crate::library::Class;
use crate::memlet::Memlet;
use crate::node::{Index, Loop, Node, NodeId};
use crate::scalar::Scalar;
use crate::state::State;
use crate::symbol::Expr;
use crate::text::print_scalar;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The program in the DOT language, the same for the same program. Volumes are in bytes where the sizes are bound.
pub fn dot(program: &Sdfg) -> String {
    let mut drawing = Drawing { text: String::new(), clusters: 0 };
    drawing.line(0, &format!("digraph {} {{", quoted(&program.name)));
    drawing.line(1, "compound=true; rankdir=TB; labeljust=l; fontname=\"Helvetica\";");
    drawing.line(1, "node [fontname=\"Helvetica\", fontsize=11, style=filled, fillcolor=white];");
    drawing.line(1, "edge [fontname=\"Helvetica\", fontsize=9];");
    drawing.program(program, "", 1);
    drawing.line(0, "}");
    drawing.text
}

/// A quoted identifier or label. Line feeds become line breaks of the label.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn class_colour(class: Class) -> &'static str {
    match class {
        Class::Contraction => "#a6c8ff",
        Class::Normalization => "#ffcc99",
        Class::Elementwise => "#b7e4b0",
    }
}

/// Whether a map, or one within it, reduces.
fn reduces(state: &State, map: NodeId) -> bool {
    let combines =
        state.edges().any(|(_, from, _, edge)| edge.memlet.wcr.is_some() && state.vertex(from).is_some_and(|v| v.scope == Some(map)));
    let inner = state.nodes().filter(|(_, v)| v.scope == Some(map) && matches!(v.node, Node::MapEntry(_)));
    combines || inner.map(|(n, _)| n).any(|n| reduces(state, n))
}

/// Bytes with a decimal unit.
fn bytes(value: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", value as f64 / *unit as f64),
        None => format!("{value} B"),
    }
}

/// What a memlet moves: the subset, its combine, and the volume in bytes.
fn movement(program: &Sdfg, memlet: &Memlet) -> String {
    let subset: Vec<String> = memlet.subset.iter().map(ToString::to_string).collect();
    let combine = memlet.wcr.map_or(String::new(), |wcr| format!(" {wcr}"));
    let most = if memlet.dynamic { "≤ " } else { "" };
    let elements = memlet.volume.eval(&program.sizes).ok().and_then(|n| u64::try_from(n).ok());
    let volume = match (elements, program.containers.get(&memlet.data)) {
        (Some(elements), Some(container)) => bytes(container.dtype.bytes(elements)),
        _ => format!("{} elements", memlet.volume),
    };
    format!("{}[{}]{combine}\n{most}{volume}", memlet.data, subset.join(", "))
}

fn range(index: &Index) -> String {
    let step = if index.step == Expr::Int(1) { String::new() } else { format!(":{}", index.step) };
    format!("{}={}:{}{step}", index.name, index.start, index.stop)
}

struct Drawing {
    text: String,
    clusters: usize,
}

impl Drawing {
    fn line(&mut self, depth: usize, text: &str) {
        _ = writeln!(self.text, "{}{text}", "  ".repeat(depth));
    }

    fn open_cluster(&mut self, depth: usize, label: &str, style: &str) {
        self.line(depth, &format!("subgraph cluster{} {{", self.clusters));
        self.clusters += 1;
        self.line(depth + 1, &format!("label={}; {style}", quoted(label)));
    }

    /// `prefix` keeps the nodes of nested programs apart.
    fn program(&mut self, program: &Sdfg, prefix: &str, depth: usize) {
        let mut clusters = BTreeMap::new();
        for (id, state) in program.states() {
            clusters.insert(id, self.clusters);
            self.open_cluster(depth, &format!("{id} {}", state.name), "color=\"#888888\";");
            let prefix = format!("{prefix}{id}_");
            // Transitions run between states, which may be empty: each has an invisible node to hold them.
            self.line(depth + 1, &format!("{} [style=invis, shape=point, label=\"\"];", quoted(&prefix)));
            self.members(program, state, None, &prefix, depth + 1);
            for (_, from, to, edge) in state.edges() {
                let ends = format!("{} -> {}", quoted(&format!("{prefix}{from}")), quoted(&format!("{prefix}{to}")));
                self.line(depth + 1, &format!("{ends} [label={}];", quoted(&movement(program, &edge.memlet))));
            }
            self.line(depth, "}");
        }
        for (from, to, transition) in program.transitions() {
            let sets: Vec<String> = transition.assignments.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
            let ends = format!("{} -> {}", quoted(&format!("{prefix}{from}_")), quoted(&format!("{prefix}{to}_")));
            let borders = match (clusters.get(&from), clusters.get(&to)) {
                (Some(from), Some(to)) if from != to => format!(", ltail=cluster{from}, lhead=cluster{to}"),
                _ => String::new(),
            };
            self.line(depth, &format!("{ends} [style=bold{borders}, label={}];", quoted(&sets.join("\n"))));
        }
    }

    /// The nodes directly in a scope, each map's inside in a cluster of its own.
    fn members(&mut self, program: &Sdfg, state: &State, scope: Option<NodeId>, prefix: &str, depth: usize) {
        for (node, vertex) in state.nodes().filter(|(_, v)| v.scope == scope) {
            let own = format!("{prefix}{node}");
            match &vertex.node {
                // Its cluster draws it.
                Node::MapExit { .. } => {}
                Node::MapEntry(map) => {
                    self.open_cluster(depth, &map.label, "style=rounded; color=\"#5577aa\";");
                    let ranges: Vec<String> = map.indices.iter().map(range).collect();
                    let colour = class_colour(if reduces(state, node) { Class::Normalization } else { Class::Elementwise });
                    let style = format!("shape=trapezium, fillcolor=\"{colour}\"");
                    self.node(depth + 1, &own, &ranges.join(", "), &style);
                    self.members(program, state, Some(node), prefix, depth + 1);
                    if let Some(exit) = state.exit_of(node) {
                        self.node(depth + 1, &format!("{prefix}{exit}"), "", &format!("shape=invtrapezium, fillcolor=\"{colour}\""));
                    }
                    self.line(depth, "}");
                }
                Node::Access(data) => self.node(depth, &own, data, &access_style(program, data)),
                Node::Tasklet(tasklet) => {
                    let show = |(to, code): &(String, Scalar)| format!("{to} = {}", print_scalar(code));
                    let code: Vec<String> = tasklet.code.iter().map(show).collect();
                    self.node(depth, &own, &format!("{}\n{}", tasklet.name, code.join("\n")), "shape=box");
                }
                Node::Library(library) => {
                    let colour = class_colour(library.op.class());
                    self.node(depth, &own, &library.name, &format!("shape=box, fillcolor=\"{colour}\""));
                }
                Node::Nested(nested) => {
                    let loops = |repeat: &Loop| {
                        let order = if repeat.reversed { "from the last to the first" } else { "from the first to the last" };
                        format!("{}\nfor each {}, {order}", nested.name, repeat.dim)
                    };
                    let label = nested.repeat.as_ref().map_or(nested.name.clone(), loops);
                    self.node(depth, &own, &label, "shape=component");
                    self.inner(&nested.name, &nested.program, &own, depth);
                }
            }
        }
    }

    fn inner(&mut self, name: &str, program: &Sdfg, prefix: &str, depth: usize) {
        self.open_cluster(depth, name, "style=dotted;");
        self.program(program, &format!("{prefix}_"), depth + 1);
        self.line(depth, "}");
    }

    fn node(&mut self, depth: usize, id: &str, label: &str, style: &str) {
        self.line(depth, &format!("{} [label={}, {style}];", quoted(id), quoted(label)));
    }
}

fn access_style(program: &Sdfg, data: &str) -> String {
    let container = program.containers.get(data);
    let colour = match container.map(|c| c.role) {
        Some(Role::Input | Role::Parameter) => "#dddddd",
        Some(Role::Output | Role::Gradient) => "#fff0a0",
        Some(Role::Transient) | None => "white",
    };
    let on_chip = container.is_some_and(|c| c.storage != Storage::Heap);
    format!("shape=ellipse, fillcolor=\"{colour}\"{}", if on_chip { ", style=\"filled,dashed\"" } else { "" })
}
