//! A program as an SDFG of DaCe's, in JSON.

use super::DaceError;
use super::loops::{ArrayPlace, Frames};
use super::scopes::{Drawn, DrawnUnit as Drawing};
use super::{code, names};
use sdfg::{Nested, Operation, Role, Scope, Sdfg, State, Unit};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The version whose form is written; later ones read it.
const VERSION: &str = "1.0.2";

/// The SDFG of a program. Inputs, parameters and results are its arguments, and its sizes are symbols.
///
/// # Errors
/// Dropout, bits and bf16, values that are combined several at a time, states with conditions.
pub fn write(program: &Sdfg) -> Result<Value, DaceError> {
    if program.transitions().any(|(_, _, t)| t.condition.is_some() || !t.assignments.is_empty()) {
        let what = "its states follow one another under conditions".into();
        return Err(DaceError::Unsupported { name: program.name.clone(), what });
    }
    let mut writer = Writer { frames: Frames::new(program), states: vec![], edges: vec![], last: None };
    for container in program.containers.values().filter(|c| c.role != Role::Transient) {
        writer.frames.place(&container.name)?;
    }
    for (_, _, unit) in program.units() {
        writer.unit(&unit)?;
    }
    let Writer { frames, states, edges, .. } = writer;
    let (arrays, symbols) = (frames.arrays, frames.symbols);
    let own: serde_json::Map<String, Value> =
        frames.names.all().filter(|(made, name)| made != name).map(|(made, name)| (made.clone(), json!(name))).collect();
    let sizes: serde_json::Map<String, Value> = program.sizes.iter().map(|(s, value)| (names::size(s), json!(value))).collect();
    // Dims that have a size of their own: others are made of these.
    let (mut dims, mut made) = (serde_json::Map::new(), BTreeSet::new());
    for (dim, size) in &program.dims {
        if let Some((symbol, value)) = size.as_sym().and_then(|symbol| Some((symbol, program.sizes.get(symbol)?)))
            && made.insert(symbol.to_string())
        {
            dims.insert(dim.clone(), json!(value));
        }
    }
    let given: serde_json::Map<String, Value> = program
        .containers
        .values()
        .filter(|c| matches!(c.role, Role::Input | Role::Parameter))
        .map(|c| {
            let interval = c.range.as_ref().and_then(|range| range.under(&program.sizes).ok());
            let whole = !c.dtype.is_floating();
            let bounds = interval.map(|i| if whole { i.whole_numbers().unwrap_or((i.low, i.low)) } else { (i.low, i.high) });
            // Infinite bounds are `null`.
            (c.name.clone(), json!(bounds.map(|(low, high)| [low, high])))
        })
        .collect();
    let numbers: Vec<&String> = program.containers.values().filter(|c| c.dims.is_empty()).map(|c| &c.name).collect();
    let name: String = program.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    Ok(json!({
        "type": "SDFG",
        "attributes": {"name": name, "_arrays": arrays, "symbols": symbols, "constants_prop": {}},
        "nodes": states, "edges": edges, "start_block": 0, "collapsed": false, "label": "", "id": null, "cfg_list_id": 0,
        "dace_version": VERSION,
        // DaCe does not read it: names as Memlet has them, and the sizes and values that the recipe gives.
        "memlet": {"names": own, "sizes": sizes, "dims": dims, "given": given, "numbers": numbers},
    }))
}

struct Writer {
    frames: Frames,
    states: Vec<Value>,
    edges: Vec<Value>,
    /// The state after which the next one runs.
    last: Option<usize>,
}

impl Writer {
    fn unit(&mut self, unit: &Unit) -> Result<(), DaceError> {
        match unit {
            Unit::Scope(scope) => self.scope(scope),
            Unit::Operation(operation) => self.operation(operation),
            Unit::Nested(nested) => match nested.repeat {
                Some(_) => self.repeated(nested),
                None => Err(DaceError::Unsupported {
                    name: nested.name.clone(),
                    what: "it is a group of kernels; write the unfused program".into(),
                }),
            },
        }
    }

    fn operation(&mut self, operation: &Operation) -> Result<(), DaceError> {
        let expansion = operation.expand(&self.frames.top().program)?;
        let depth = self.frames.stack.len() - 1;
        for container in expansion.containers {
            self.frames.stack[depth].added.insert(container.name.clone(), container);
        }
        expansion.scopes.iter().try_for_each(|scope| self.scope(scope))
    }

    /// A scope as a state of its own.
    fn scope(&mut self, scope: &Scope) -> Result<(), DaceError> {
        let top = self.frames.top();
        let mut around = top.program.without_states();
        top.added.values().for_each(|container| around.add_container(container.clone()));
        let at = around.add_state("unit");
        around.insert_scope(at, scope)?;
        let state = around.state(at).cloned().unwrap_or_else(|| State::new("unit"));
        let Drawn { nodes, edges } = Drawing::draw(&mut self.frames, &state)?;
        self.state(&scope.map.label, nodes, edges);
        Ok(())
    }

    fn state(&mut self, wish: &str, nodes: Vec<Value>, edges: Vec<Value>) -> usize {
        let id = self.states.len();
        let label: String = wish.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        self.states.push(json!({
            "type": "SDFGState", "label": format!("s{id}_{label}"), "id": id, "collapsed": false, "scope_dict": {},
            "nodes": nodes, "edges": edges, "attributes": {},
        }));
        if let Some(last) = self.last {
            self.between(last, id, None, None);
        }
        self.last = Some(id);
        id
    }

    fn between(&mut self, from: usize, to: usize, condition: Option<String>, assigned: Option<(&str, String)>) {
        let condition = condition.unwrap_or_else(|| "1".into());
        let assignments: serde_json::Map<String, Value> =
            assigned.map(|(symbol, value)| (symbol.to_string(), json!(value))).into_iter().collect();
        self.edges.push(json!({
            "type": "Edge",
            "attributes": {"data": {"type": "InterstateEdge", "attributes": {
                "condition": {"string_data": condition, "language": "Python"}, "assignments": assignments,
            }}},
            "src": from.to_string(), "dst": to.to_string(),
        }));
    }

    /// A loop: a state that decides, the states of the body, and back.
    fn repeated(&mut self, nested: &Nested) -> Result<(), DaceError> {
        let Some(repeat) = &nested.repeat else { return Ok(()) };
        let renamed = nested.symbols.iter().any(|(inner, outer)| outer.as_sym() != Some(inner));
        if renamed {
            return Err(DaceError::Unsupported { name: nested.name.clone(), what: "its body has sizes of its own".into() });
        }
        let trips = self.frames.integer(&self.frames.top().program.size_of(&repeat.dim))?;
        let before = self.state(&format!("before_{}", nested.name), vec![], vec![]);
        self.frames.push((*nested.program).clone(), Some(repeat.clone()));
        let time = self.frames.top().repeat.as_ref().map(|(_, symbol)| symbol.clone()).unwrap_or_default();
        let (first, condition, next) = match repeat.reversed {
            true => (format!("{trips} - 1"), format!("{time} >= 0"), format!("{time} - 1")),
            false => ("0".to_string(), format!("{time} < {trips}"), format!("{time} + 1")),
        };
        self.last = None;
        let guard = self.state(&format!("guard_{}", nested.name), vec![], vec![]);
        self.between(before, guard, None, Some((&time, first.clone())));
        self.last = None;
        let body = self.state(&format!("time_{}", nested.name), vec![], vec![]);
        self.between(guard, body, Some(condition.clone()), None);
        for (inner, slice) in nested.states() {
            self.snapshot(inner, &slice.data, slice.fill.map_or(0.0, |fill| fill.0), &format!("{time} == {first}"))?;
        }
        for (_, _, unit) in nested.program.units() {
            self.unit(&unit)?;
        }
        if let Some(last) = self.last {
            self.between(last, guard, None, Some((&time, next)));
        }
        self.frames.stack.pop();
        self.last = None;
        let after = self.state(&format!("after_{}", nested.name), vec![], vec![]);
        self.between(guard, after, Some(format!("not ({condition})")), None);
        self.last = Some(after);
        Ok(())
    }

    /// Copies what the last time has left in a container that is held for one time; at first it is the fill.
    fn snapshot(&mut self, inner: &str, outer: &str, fill: f64, first: &str) -> Result<(), DaceError> {
        let ArrayPlace { array: to, inner: sizes, .. } = self.frames.place(inner)?;
        let ArrayPlace { array: from, .. } = self.frames.place(outer)?;
        let params: Vec<String> = (0..sizes.len()).map(|n| format!("i_copy{n}")).collect();
        let part = |range: &dyn Fn(usize) -> (String, String)| -> Value {
            let ranges: Vec<Value> = (0..sizes.len().max(1))
                .map(|n| if sizes.is_empty() { ("0".to_string(), "0".to_string()) } else { range(n) })
                .map(|(start, end)| json!({"start": start, "end": end, "step": "1", "tile": "1"}))
                .collect();
            json!({"type": "Range", "ranges": ranges})
        };
        let whole = part(&|n| ("0".into(), format!("({} - 1)", sizes[n])));
        let point = part(&|n| (params[n].clone(), params[n].clone()));
        let map_ranges = if sizes.is_empty() { part(&|_| ("0".into(), "0".into())) } else { whole.clone() };
        let params = if params.is_empty() { vec!["i_copy".to_string()] } else { params };
        let text = format!("out_x = ({} if ({first}) else in_x)", code::number(fill));
        let node = |kind: &str, id: usize, label: &str, attributes: Value, entry: Option<&str>, exit: Option<&str>| json!({"type": kind, "label": label, "attributes": attributes, "id": id, "scope_entry": entry, "scope_exit": exit});
        let sides = |a: &str, b: &str| (json!({a: null}), json!({b: null}));
        let (inputs, outputs) = sides("IN_x", "OUT_x");
        let nodes = vec![
            node("AccessNode", 0, &from, json!({"data": from}), None, None),
            node(
                "MapEntry",
                1,
                "copy",
                json!({"label": "copy", "params": params, "range": map_ranges, "in_connectors": inputs, "out_connectors": outputs}),
                None,
                Some("3"),
            ),
            node(
                "Tasklet",
                2,
                "copy",
                json!({"label": "copy", "code": {"string_data": text, "language": "Python"}, "in_connectors": {"in_x": null}, "out_connectors": {"out_x": null}}),
                Some("1"),
                Some("3"),
            ),
            node("MapExit", 3, "copy", json!({"in_connectors": inputs, "out_connectors": outputs}), Some("1"), Some("3")),
            node("AccessNode", 4, &to, json!({"data": to}), None, None),
        ];
        let edge = |from: usize, output: Option<&str>, to: usize, input: Option<&str>, data: &str, subset: &Value| {
            json!({"type": "MultiConnectorEdge", "attributes": {"data": {"type": "Memlet", "attributes": {"data": data, "subset": subset}}},
                "src": from.to_string(), "dst": to.to_string(), "src_connector": output, "dst_connector": input})
        };
        let edges = vec![
            edge(0, None, 1, Some("IN_x"), &from, &whole),
            edge(1, Some("OUT_x"), 2, Some("in_x"), &from, &point),
            edge(2, Some("out_x"), 3, Some("IN_x"), &to, &point),
            edge(3, Some("OUT_x"), 4, None, &to, &whole),
        ];
        self.state(&format!("copy_{inner}"), nodes, edges);
        Ok(())
    }
}
