//! Program → text.

use super::expression::print_scalar;
use super::lex::{name, number, quoted};
use crate::bounds::Bounds;
use crate::data::{Container, Lifetime, Origin, Role, Storage};
use crate::graph::{Relation, Sdfg, Transition};
use crate::library::Op;
use crate::library::operator::{Field, FieldKind};
use crate::memlet::Memlet;
use crate::node::{Direction, Index, IndexKind, Library, Loop, Node, NodeId, Port, Slice};
use crate::state::State;
use crate::symbol::Expr;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The program as text; [`super::parse`] gives the same program back.
pub fn print(program: &Sdfg) -> String {
    let mut text = String::new();
    show_program(program, 0, &mut text);
    text
}

pub(super) fn list<T>(items: impl IntoIterator<Item = T>, show: impl Fn(T) -> String) -> String {
    items.into_iter().map(show).collect::<Vec<_>>().join(", ")
}

fn show_program(program: &Sdfg, depth: usize, into: &mut String) {
    let pad = "  ".repeat(depth);
    let mut line = |text: String| _ = writeln!(into, "{pad}{text}");
    let about = if program.about.is_empty() { String::new() } else { format!(" about {}", quoted(&program.about)) };
    let tf32 = if program.tf32 { " tf32" } else { "" };
    let winograd = if program.winograd { " winograd" } else { "" };
    line(format!("program {}{about}{tf32}{winograd} {{", name(&program.name)));
    if !program.sizes.is_empty() {
        line(format!("  sizes {}", list(&program.sizes, |(symbol, value)| format!("{}={value}", name(symbol)))));
    }
    if !program.dims.is_empty() {
        let dim = |(dim, size): (&String, &Expr)| if size.as_sym() == Some(dim) { name(dim) } else { format!("{}={size}", name(dim)) };
        line(format!("  dims {}", list(&program.dims, dim)));
    }
    for container in program.containers.values() {
        line(format!("  {}", show_container(container)));
    }
    for (id, state) in program.states() {
        _ = writeln!(into, "{pad}  state {id} {} {{", name(&state.name));
        show_state(state, depth + 2, into);
        _ = writeln!(into, "{pad}  }}");
    }
    for (from, to, transition) in program.transitions() {
        _ = writeln!(into, "{pad}  {from} -> {to}{}", show_transition(transition));
    }
    _ = writeln!(into, "{pad}}}");
}

pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Input => "input",
        Role::Parameter => "parameter",
        Role::Output => "output",
        Role::Gradient => "gradient",
        Role::Transient => "transient",
    }
}

pub(super) fn storage_name(storage: Storage) -> &'static str {
    match storage {
        Storage::Heap => "heap",
        Storage::Local => "local",
        Storage::Shared => "shared",
        Storage::Register => "register",
    }
}

pub(super) fn lifetime_name(lifetime: Lifetime) -> &'static str {
    match lifetime {
        Lifetime::Scope => "scope",
        Lifetime::Program => "program",
        Lifetime::Persistent => "persistent",
    }
}

/// The lifetime that is not said.
pub(super) fn usual_lifetime(role: Role, storage: Storage) -> Lifetime {
    match (role, storage) {
        (Role::Parameter, _) => Lifetime::Persistent,
        (Role::Transient, Storage::Heap) => Lifetime::Program,
        (Role::Transient, _) => Lifetime::Scope,
        _ => Lifetime::Program,
    }
}

/// Whether a gradient is wanted where nothing is said.
pub(super) fn usual_grad(role: Role) -> bool {
    matches!(role, Role::Input | Role::Parameter)
}

fn show_container(container: &Container) -> String {
    let Container { name: data, dims, dtype, role, storage, lifetime, grad, view, range, initial, replaces, origin } = container;
    let mut text = format!("{} {}[{}] {dtype}", role_name(*role), name(data), list(dims, |d| name(d)));
    if *storage != Storage::Heap {
        _ = write!(text, " {}", storage_name(*storage));
    }
    if *lifetime != usual_lifetime(*role, *storage) {
        _ = write!(text, " lifetime {}", lifetime_name(*lifetime));
    }
    if *grad != usual_grad(*role) {
        text.push_str(if *grad { " grad" } else { " nograd" });
    }
    if let Some(view) = view {
        _ = write!(text, " view of {}[{}]", name(&view.of), list(&view.offsets, Expr::to_string));
    }
    if let Some(Bounds { low, high, open }) = range {
        let (opens, closes) = (if open[0] { '(' } else { '[' }, if open[1] { ')' } else { ']' });
        _ = write!(text, " within {opens}{}, {}{closes}", print_scalar(low), print_scalar(high));
    }
    if let Some(initial) = initial {
        _ = write!(text, " initially {initial}");
    }
    if let Some(parameter) = replaces {
        _ = write!(text, " replaces {}", name(parameter));
    }
    text + &show_origin(origin)
}

fn show_origin(origin: &Option<Origin>) -> String {
    origin.as_ref().map_or(String::new(), |o| format!(" from {}:{}:{}", quoted(&o.file), o.line, o.column))
}

fn show_transition(transition: &Transition) -> String {
    let mut text = String::new();
    if let Some(condition) = &transition.condition {
        _ = write!(text, " if {} {} {}", condition.left, relation_sign(condition.relation), condition.right);
    }
    if !transition.assignments.is_empty() {
        _ = write!(text, " set {}", list(&transition.assignments, |(symbol, value)| format!("{} = {value}", name(symbol))));
    }
    text
}

pub(super) fn relation_sign(relation: Relation) -> &'static str {
    match relation {
        Relation::Lt => "<",
        Relation::Le => "<=",
        Relation::Eq => "==",
        Relation::Ne => "!=",
        Relation::Ge => ">=",
        Relation::Gt => ">",
    }
}

/// Nodes with the number of scopes around them; each scope's members follow its entry. Nodes in no scope that is there
/// come last, so that a malformed state prints too.
fn nested_order(state: &State) -> Vec<(NodeId, usize)> {
    let mut inside: BTreeMap<Option<NodeId>, Vec<NodeId>> = BTreeMap::new();
    for (id, vertex) in state.nodes() {
        inside.entry(vertex.scope).or_default().push(id);
    }
    let mut order = Vec::new();
    let mut waiting: Vec<(NodeId, usize)> = Vec::new();
    let mut next = inside.remove(&None);
    while let Some(members) = next {
        waiting.extend(members.into_iter().rev().map(|n| (n, 0)));
        while let Some((node, level)) = waiting.pop() {
            order.push((node, level));
            waiting.extend(inside.remove(&Some(node)).into_iter().flatten().rev().map(|n| (n, level + 1)));
        }
        next = inside.pop_first().map(|(_, members)| members);
    }
    order
}

fn show_state(state: &State, depth: usize, into: &mut String) {
    for (id, level) in nested_order(state) {
        let Some(vertex) = state.vertex(id) else { continue };
        let pad = "  ".repeat(depth + level);
        let scope = vertex.scope.map_or(String::new(), |s| format!(" in {s}"));
        _ = write!(into, "{pad}{id}{scope} = ");
        show_node(&vertex.node, depth + level, into);
    }
    let pad = "  ".repeat(depth);
    let end = |node: NodeId, connector: &str| {
        if connector.is_empty() { node.to_string() } else { format!("{node}:{}", name(connector)) }
    };
    for (id, from, to, edge) in state.edges() {
        _ = writeln!(into, "{pad}{id} = {} -> {} moves {}", end(from, &edge.from), end(to, &edge.to), show_memlet(&edge.memlet));
    }
}

pub(super) fn show_memlet(memlet: &Memlet) -> String {
    let Memlet { data, subset, volume, wcr, dynamic, fill } = memlet;
    let mut text = format!("{}[{}]", name(data), list(subset, |r| r.to_string()));
    if *volume != Memlet::new("", subset.clone()).volume {
        _ = write!(text, " volume {volume}");
    }
    if let Some(wcr) = wcr {
        _ = write!(text, " wcr {wcr}");
    }
    if *dynamic {
        text.push_str(" dynamic");
    }
    if let Some(fill) = fill {
        _ = write!(text, " fill {}", number(*fill));
    }
    text
}

pub(super) fn show_index(index: &Index) -> String {
    let Index { name: own, dim, start, stop, step, kind } = index;
    let mut text = format!("{}={start}:{stop}", name(own));
    if *step != Expr::Int(1) {
        _ = write!(text, ":{step}");
    }
    if dim != own {
        _ = write!(text, " over {}", name(dim));
    }
    text.push_str(match kind {
        IndexKind::Independent => "",
        IndexKind::Reduction => " reduction",
        IndexKind::Sequential => " sequential",
    });
    text
}

fn show_node(node: &Node, depth: usize, into: &mut String) {
    match node {
        Node::Access(data) => _ = writeln!(into, "access {}", name(data)),
        Node::MapExit { entry } => _ = writeln!(into, "exit {entry}"),
        Node::MapEntry(map) => _ = writeln!(into, "map {} [{}]", name(&map.label), list(&map.indices, show_index)),
        Node::Tasklet(tasklet) => {
            let code = tasklet.code.iter().map(|(to, code)| format!("{} = {}", name(to), print_scalar(code)));
            _ = write!(into, "tasklet {} {{ {} }}", name(&tasklet.name), code.collect::<Vec<_>>().join("; "));
            if tasklet.operator != tasklet.name {
                _ = write!(into, " of {}", name(&tasklet.operator));
            }
            _ = writeln!(into, "{}", show_origin(&tasklet.origin));
        }
        Node::Library(library) => _ = writeln!(into, "{}", show_library(library)),
        Node::Nested(nested) => {
            let symbols = list(&nested.symbols, |(inner, outer)| format!("{}={outer}", name(inner)));
            let repeat = nested.repeat.as_ref().map_or(String::new(), show_loop);
            _ = writeln!(into, "nested {} [{symbols}]{repeat}", name(&nested.name));
            show_program(&nested.program, depth + 1, into);
        }
    }
}

/// ` for t over t reversed (h.before is h[0 at t-1 else 0])`.
fn show_loop(repeat: &Loop) -> String {
    let Loop { index, dim, reversed, slices } = repeat;
    let slice = |(inner, slice): (&String, &Slice)| {
        let at = slice.at.as_ref().map_or(String::new(), |(axis, at)| format!("{axis} at {at}"));
        let fill = slice.fill.map_or(String::new(), |fill| format!(" else {fill}"));
        format!("{} is {}[{at}{fill}]", name(inner), name(&slice.data))
    };
    let reversed = if *reversed { " reversed" } else { "" };
    format!(" for {} over {}{reversed} ({})", name(index), name(dim), list(slices, slice))
}

fn show_library(library: &Library) -> String {
    let Library { name: own, op, indices, inputs, outputs, pass, origin } = library;
    let pass = match pass {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    };
    let index = |(index, dim): (&String, &String)| if index == dim { name(index) } else { format!("{}={}", name(index), name(dim)) };
    let port = |port: &Port| {
        let fill = port.fill.map_or(String::new(), |fill| format!(" else {fill}"));
        format!("{}[{}{fill}]", name(&port.connector), list(&port.subscripts, Expr::to_string))
    };
    format!(
        "library {} {pass} [{}] ({}) -> ({}) {}{}",
        name(own),
        list(indices, index),
        list(inputs, port),
        list(outputs, port),
        show_op(op),
        show_origin(origin)
    )
}

fn show_op(op: &Op) -> String {
    let shown = |(shape, field): (FieldKind, Field)| {
        let word = match shape {
            FieldKind::Code(word) | FieldKind::Number(word) => format!("{word} "),
            FieldKind::Label | FieldKind::Combine | FieldKind::Over => String::new(),
        };
        let value = match field {
            Field::Label(label) => name(&label),
            Field::Combine(combine) => combine.to_string(),
            Field::Code(code) => print_scalar(&code),
            Field::Over(over) => format!("over [{}]", list(&over, |index| name(index))),
            Field::Number(value) => number(value),
        };
        word + &value
    };
    [op.keyword().to_string()].into_iter().chain(op.fields().into_iter().map(shown)).collect::<Vec<_>>().join(" ")
}
