//! Writes one unit as a state of DaCe's: nodes, edges, and the nodes that initialize its reductions.

use super::DaceError;
use super::code;
use super::loops::{ArrayPlace, Frames};
use super::names;
use sdfg::{Combine, Edge, Expr, Map, Memlet, Node, NodeId, Range, State, Tasklet};
use serde_json::{Map as Object, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes and edges of a state of DaCe's.
#[derive(Default)]
pub struct Drawn {
    pub nodes: Vec<Value>,
    pub edges: Vec<Value>,
}

impl Drawn {
    fn node(&mut self, kind: &str, label: &str, attributes: Value, entry: Option<usize>) -> usize {
        let id = self.nodes.len();
        let entry = entry.map(|e| e.to_string());
        self.nodes.push(json!({
            "type": kind, "label": label, "attributes": attributes, "id": id, "scope_entry": entry, "scope_exit": null,
        }));
        id
    }

    fn edge(&mut self, (from, output): (usize, Option<String>), (to, input): (usize, Option<String>), memlet: Value) {
        self.edges.push(json!({
            "type": "MultiConnectorEdge",
            "attributes": {"data": {"type": "Memlet", "attributes": memlet}},
            "src": from.to_string(), "dst": to.to_string(), "src_connector": output, "dst_connector": input,
        }));
    }

    fn access(&mut self, array: &str, entry: Option<usize>) -> usize {
        self.node("AccessNode", array, json!({"data": array}), entry)
    }
}

/// A range of DaCe's, whose end belongs to it.
fn range(start: &str, end: &str, step: &str) -> Value {
    json!({"start": start, "end": end, "step": step, "tile": "1"})
}

/// A memlet that orders two nodes and moves nothing.
fn nothing() -> Value {
    json!({"volume": "0", "num_accesses": "0"})
}

/// A unit that is written.
pub struct DrawnUnit<'a> {
    pub frames: &'a mut Frames,
    pub state: &'a State,
    /// Where each node of the state is drawn.
    drawn: BTreeMap<NodeId, usize>,
    /// Containers of which a tasklet picks elements itself.
    picked: BTreeSet<String>,
    pub into: Drawn,
}

impl<'a> DrawnUnit<'a> {
    /// # Errors
    /// What DaCe lacks.
    pub fn draw(frames: &'a mut Frames, state: &'a State) -> Result<Drawn, DaceError> {
        let mut unit = DrawnUnit { frames, state, drawn: BTreeMap::new(), picked: BTreeSet::new(), into: Drawn::default() };
        for (_, from, _, edge) in state.edges() {
            if !unit.is_write(from, edge) && unit.is_picked(&edge.memlet)? {
                unit.picked.insert(edge.memlet.data.clone());
            }
        }
        unit.nodes()?;
        for (_, from, to, edge) in state.edges() {
            unit.edge(from, to, edge)?;
        }
        unit.begin()?;
        Ok(unit.into)
    }

    /// Whether an edge moves what is written: it comes from a tasklet or leaves a map.
    fn is_write(&self, from: NodeId, _: &Edge) -> bool {
        matches!(self.state.node(from), Some(Node::Tasklet(_) | Node::MapExit { .. }))
    }

    /// Whether a memlet reads an element that may lie outside, or that other elements name.
    fn is_picked(&mut self, memlet: &Memlet) -> Result<bool, DaceError> {
        let named = memlet.subset.iter().any(|r| matches!(r, Range::At(e) if e.reads_elements()));
        Ok(named || memlet.fill.is_some() || self.frames.place(&memlet.data)?.fill.is_some())
    }

    fn nodes(&mut self) -> Result<(), DaceError> {
        let entry_of = |drawn: &BTreeMap<NodeId, usize>, scope: Option<NodeId>| scope.and_then(|s| drawn.get(&s).copied());
        // A map is drawn before what it holds.
        let mut waiting: Vec<(NodeId, Option<NodeId>)> = self.state.nodes().map(|(id, vertex)| (id, vertex.scope)).collect();
        while !waiting.is_empty() {
            let (ready, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(id, scope)| match self.state.node(*id) {
                Some(Node::MapExit { entry }) => self.drawn.contains_key(entry),
                _ => scope.is_none_or(|scope| self.drawn.contains_key(&scope)),
            });
            if ready.is_empty() {
                break;
            }
            waiting = later;
            for (id, scope) in ready {
                let Some(node) = self.state.node(id) else { continue };
                let entry = entry_of(&self.drawn, scope);
                let made = match node {
                    Node::Access(data) => {
                        let array = self.frames.place(data)?.array;
                        self.into.access(&array, entry)
                    }
                    Node::MapEntry(map) => self.entry(id, map, entry)?,
                    Node::MapExit { entry } => self.exit(id, *entry)?,
                    Node::Tasklet(tasklet) => self.tasklet(id, tasklet, entry)?,
                    Node::Library(library) => {
                        return Err(DaceError::Unsupported { name: library.name.clone(), what: "an operator stands within a map".into() });
                    }
                    Node::Nested(nested) => {
                        return Err(DaceError::Unsupported { name: nested.name.clone(), what: "a program stands within a map".into() });
                    }
                };
                self.drawn.insert(id, made);
            }
        }
        Ok(())
    }

    /// Connectors of a map's side, by the names of containers.
    fn connectors(&mut self, names: impl Iterator<Item = String>, prefix: &str) -> Object<String, Value> {
        let mut found = Object::new();
        for name in names {
            let name = self.connector_name(&name);
            found.insert(format!("{prefix}_{name}"), Value::Null);
        }
        found
    }

    fn connector_name(&mut self, text: &str) -> String {
        let data = text.strip_prefix("IN_").or_else(|| text.strip_prefix("OUT_")).unwrap_or(text);
        data.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
    }

    fn entry(&mut self, id: NodeId, map: &Map, around: Option<usize>) -> Result<usize, DaceError> {
        let inputs: BTreeSet<String> =
            self.state.edges_in(id).into_iter().map(|(_, _, e)| e.to.clone()).filter(|c| !c.is_empty()).collect();
        let outputs: BTreeSet<String> =
            self.state.edges_out(id).into_iter().map(|(_, _, e)| e.from.clone()).filter(|c| !c.is_empty()).collect();
        let mut ranges = Vec::new();
        for index in &map.indices {
            let text = |e: &Expr| self.frames.integer(e);
            let (start, stop, step) = (text(&index.start)?, text(&index.stop)?, text(&index.step)?);
            ranges.push(range(&start, &format!("({stop} - 1)"), &step));
        }
        let mut params: Vec<String> = map.indices.iter().map(|i| names::index(&i.name)).collect();
        // A map without indices is one point.
        if params.is_empty() {
            params.push("i_once".into());
            ranges.push(range("0", "0", "1"));
        }
        let label = self.connector_name(&map.label);
        let attributes = json!({
            "label": label, "params": params, "range": {"type": "Range", "ranges": ranges},
            "in_connectors": self.connectors(inputs.into_iter(), "IN"), "out_connectors": self.connectors(outputs.into_iter(), "OUT"),
        });
        Ok(self.into.node("MapEntry", &label, attributes, around))
    }

    fn exit(&mut self, id: NodeId, entry: NodeId) -> Result<usize, DaceError> {
        let inputs: BTreeSet<String> =
            self.state.edges_in(id).into_iter().map(|(_, _, e)| e.to.clone()).filter(|c| !c.is_empty()).collect();
        let outputs: BTreeSet<String> =
            self.state.edges_out(id).into_iter().map(|(_, _, e)| e.from.clone()).filter(|c| !c.is_empty()).collect();
        let at = self.drawn.get(&entry).copied();
        let label = match self.state.node(entry) {
            Some(Node::MapEntry(map)) => self.connector_name(&map.label),
            _ => String::new(),
        };
        let attributes = json!({
            "in_connectors": self.connectors(inputs.into_iter(), "IN"), "out_connectors": self.connectors(outputs.into_iter(), "OUT"),
        });
        let made = self.into.node("MapExit", &label, attributes, at);
        if let Some(at) = at {
            self.into.nodes[at]["scope_exit"] = json!(made.to_string());
        }
        Ok(made)
    }

    fn tasklet(&mut self, id: NodeId, tasklet: &Tasklet, around: Option<usize>) -> Result<usize, DaceError> {
        let reads: Vec<(String, Memlet)> = self.state.edges_in(id).into_iter().map(|(_, _, e)| (e.to.clone(), e.memlet.clone())).collect();
        let mut texts: BTreeMap<String, String> = BTreeMap::new();
        for (connector, memlet) in &reads {
            let own = names::connector(connector, false);
            let text = if self.is_picked(memlet)? { self.pick(&own, memlet, &reads, &tasklet.name)? } else { own };
            texts.insert(connector.clone(), text);
        }
        let mut lines = Vec::new();
        for (output, scalar) in &tasklet.code {
            let input = |connector: &str| {
                let what = || format!("its code reads `{connector}`, which no memlet moves");
                texts.get(connector).cloned().ok_or_else(|| DaceError::Unsupported { name: tasklet.name.clone(), what: what() })
            };
            let text = code::value(scalar, &tasklet.name, &|symbol| self.frames.symbol(symbol), &input)?;
            lines.push(format!("{} = {text}", names::connector(output, true)));
        }
        let connectors = |all: &mut dyn Iterator<Item = String>| all.map(|c| (c, Value::Null)).collect::<Object<String, Value>>();
        let attributes = json!({
            "label": self.connector_name(&tasklet.name),
            "code": {"string_data": lines.join("\n"), "language": "Python"},
            "in_connectors": connectors(&mut reads.iter().map(|(c, _)| names::connector(c, false))),
            "out_connectors": connectors(&mut tasklet.code.iter().map(|(c, _)| names::connector(c, true))),
        });
        let label = self.connector_name(&tasklet.name);
        Ok(self.into.node("Tasklet", &label, attributes, around))
    }

    /// The code that picks an element of a whole container: its fill where it lies outside.
    fn pick(&mut self, own: &str, memlet: &Memlet, reads: &[(String, Memlet)], name: &str) -> Result<String, DaceError> {
        let point = memlet.point().ok_or_else(|| DaceError::Unsupported {
            name: name.to_string(),
            what: format!("it reads a range of `{}` that may lie outside", memlet.data),
        })?;
        let subscripts: Vec<Expr> = point.into_iter().cloned().collect();
        // What names a row is read by the same tasklet.
        let element = |e: &Expr| {
            let same = |m: &Memlet| m.point().is_some_and(|p| *e == Expr::Element(m.data.clone(), p.into_iter().cloned().collect()));
            reads.iter().find(|(_, m)| same(m)).map(|(c, _)| format!("int({})", names::connector(c, false)))
        };
        let ArrayPlace { at, fill, shape, offsets, .. } = self.frames.place(&memlet.data)?;
        let mut texts = Vec::new();
        for (n, e) in subscripts.iter().enumerate() {
            let text = code::index(e, &|symbol| self.frames.symbol(symbol), &element)?;
            texts.push(match offsets.get(n).filter(|o| o.as_str() != "0") {
                Some(by) => format!("{text} + {by}"),
                None => text,
            });
        }
        for (axis, place) in &at {
            texts.insert((*axis).min(texts.len()), place.clone());
        }
        if texts.is_empty() {
            texts.push("0".into());
        }
        let inside: Vec<String> = texts.iter().zip(&shape).map(|(at, size)| format!("(({at}) >= 0) and (({at}) < {size})")).collect();
        let read = format!("{own}[{}]", texts.join(", "));
        Ok(match memlet.fill.or(fill) {
            Some(fill) => format!("({read} if ({}) else {})", inside.join(" and "), code::number(fill)),
            None => read,
        })
    }

    /// The subset of DaCe's that a memlet moves, and how much that is.
    fn memlet(&mut self, memlet: &Memlet, whole: bool) -> Result<Value, DaceError> {
        let ArrayPlace { array, at, shape, offsets, .. } = self.frames.place(&memlet.data)?;
        let mut ranges = Vec::new();
        if whole {
            ranges = shape.iter().map(|size| range("0", &format!("({size} - 1)"), "1")).collect();
        } else {
            for (n, part) in memlet.subset.iter().enumerate() {
                let by = offsets.get(n).filter(|o| o.as_str() != "0").map(|o| format!(" + {o}")).unwrap_or_default();
                ranges.push(match part {
                    Range::At(e) => {
                        let text = self.frames.integer(e)?;
                        range(&format!("{text}{by}"), &format!("{text}{by}"), "1")
                    }
                    Range::Span { start, stop, step } => {
                        let (start, stop, step) = (self.frames.integer(start)?, self.frames.integer(stop)?, self.frames.integer(step)?);
                        range(&format!("{start}{by}"), &format!("({stop} - 1){by}"), &step)
                    }
                });
            }
            for (axis, place) in &at {
                ranges.insert((*axis).min(ranges.len()), range(place, place, "1"));
            }
        }
        if ranges.is_empty() {
            ranges.push(range("0", "0", "1"));
        }
        let volume = self.frames.integer(&memlet.volume).unwrap_or_else(|_| "0".into());
        let mut attributes = json!({
            "data": array, "subset": {"type": "Range", "ranges": ranges}, "volume": volume, "num_accesses": volume,
            "dynamic": memlet.dynamic || whole,
        });
        if let Some(combine) = memlet.wcr {
            attributes["wcr"] = json!(format!("(lambda x, y: {})", combined(combine, &memlet.data)?));
        }
        Ok(attributes)
    }

    fn edge(&mut self, from: NodeId, to: NodeId, edge: &Edge) -> Result<(), DaceError> {
        let whole = match self.state.node(to) {
            // A tasklet may pick elements of a container beside the one that it is given.
            Some(Node::Tasklet(_)) => self.is_picked(&edge.memlet)?,
            _ => !self.is_write(from, edge) && self.picked.contains(&edge.memlet.data),
        };
        let memlet = self.memlet(&edge.memlet, whole)?;
        let end = |unit: &mut Self, node: NodeId, connector: &str, written: bool| match unit.state.node(node) {
            Some(Node::Tasklet(_)) => Some(names::connector(connector, written)),
            Some(Node::MapEntry(_) | Node::MapExit { .. }) => {
                let side = if written { "OUT" } else { "IN" };
                Some(format!("{side}_{}", unit.connector_name(connector)))
            }
            _ => None,
        };
        let (output, input) = (end(self, from, &edge.from, true), end(self, to, &edge.to, false));
        let (from, to) = (self.drawn[&from], self.drawn[&to]);
        self.into.edge((from, output), (to, input), memlet);
        Ok(())
    }

    /// Writes the neutral values of all reductions before they begin.
    fn begin(&mut self) -> Result<(), DaceError> {
        let mut begun: BTreeMap<usize, (Combine, String, BTreeSet<NodeId>)> = BTreeMap::new();
        for (_, from, to, edge) in self.state.edges() {
            if let (Some(combine), Some(Node::Access(_))) = (edge.memlet.wcr, self.state.node(to)) {
                begun.entry(self.drawn[&to]).or_insert((combine, edge.memlet.data.clone(), BTreeSet::new())).2.insert(from);
            }
        }
        for (access, (combine, data, writers)) in begun {
            let entry = self.into.nodes[access]["scope_entry"].as_str().and_then(|e| e.parse::<usize>().ok());
            let ArrayPlace { array, at, inner, .. } = self.frames.place(&data)?;
            let value = code::number(combine.identity()[0]);
            let first = self.into.access(&array, entry);
            let label = format!("begin_{array}");
            let params: Vec<String> = (0..inner.len()).map(|n| format!("i_begin{n}")).collect();
            let point = |params: &[String]| {
                let mut ranges: Vec<Value> = params.iter().map(|p| range(p, p, "1")).collect();
                for (axis, place) in &at {
                    ranges.insert((*axis).min(ranges.len()), range(place, place, "1"));
                }
                if ranges.is_empty() {
                    ranges.push(range("0", "0", "1"));
                }
                json!({"data": array, "subset": {"type": "Range", "ranges": ranges}, "volume": "1", "num_accesses": "1"})
            };
            let whole = || {
                let mut ranges: Vec<Value> = inner.iter().map(|size| range("0", &format!("({size} - 1)"), "1")).collect();
                for (axis, place) in &at {
                    ranges.insert((*axis).min(ranges.len()), range(place, place, "1"));
                }
                json!({"data": array, "subset": {"type": "Range", "ranges": ranges}})
            };
            let code = json!({"string_data": format!("out_x = {value}"), "language": "Python"});
            let tasklet = json!({"label": label, "code": code, "in_connectors": {}, "out_connectors": {"out_x": null}});
            let begins = if inner.is_empty() {
                let tasklet = self.into.node("Tasklet", &label, tasklet, entry);
                self.into.edge((tasklet, Some("out_x".into())), (first, None), point(&[]));
                tasklet
            } else {
                let ranges: Vec<Value> = inner.iter().map(|size| range("0", &format!("({size} - 1)"), "1")).collect();
                let attributes = json!({
                    "label": label, "params": params, "range": {"type": "Range", "ranges": ranges}, "in_connectors": {}, "out_connectors": {},
                });
                let map = self.into.node("MapEntry", &label, attributes, entry);
                let tasklet = self.into.node("Tasklet", &label, tasklet, Some(map));
                let side = json!({"in_connectors": {"IN_x": null}, "out_connectors": {"OUT_x": null}});
                let exit = self.into.node("MapExit", &label, side, Some(map));
                self.into.nodes[map]["scope_exit"] = json!(exit.to_string());
                self.into.edge((map, None), (tasklet, None), nothing());
                self.into.edge((tasklet, Some("out_x".into())), (exit, Some("IN_x".into())), point(&params));
                self.into.edge((exit, Some("OUT_x".into())), (first, None), whole());
                map
            };
            if let Some(entry) = entry {
                self.into.edge((entry, None), (begins, None), nothing());
            }
            for writer in writers {
                let begins_at = match self.state.node(writer) {
                    Some(Node::MapExit { entry }) => self.drawn[entry],
                    _ => self.drawn[&writer],
                };
                self.into.edge((first, None), (begins_at, None), nothing());
            }
        }
        // What a map holds and nothing enters is held by an edge from its entry.
        let has_input: BTreeSet<String> = self.into.edges.iter().filter_map(|e| e["dst"].as_str().map(str::to_string)).collect();
        for n in 0..self.into.nodes.len() {
            let node = &self.into.nodes[n];
            let inside = node["scope_entry"].as_str().and_then(|e| e.parse::<usize>().ok());
            if let Some(entry) = inside.filter(|_| node["type"] != "MapExit" && !has_input.contains(&n.to_string())) {
                self.into.edge((entry, None), (n, None), nothing());
            }
        }
        Ok(())
    }
}

/// The code that combines `x` and `y`.
fn combined(combine: Combine, name: &str) -> Result<&'static str, DaceError> {
    Ok(match combine {
        Combine::Sum => "(x + y)",
        Combine::Product => "(x * y)",
        Combine::Max => "max(x, y)",
        Combine::Min => "min(x, y)",
        Combine::OnlineSoftmax | Combine::Moments => {
            let what = "it combines several values together, as fused statistics do; write the unfused program";
            return Err(DaceError::Unsupported { name: name.to_string(), what: what.into() });
        }
    })
}
