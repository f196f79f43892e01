//! The graph of a `.sdfg` file, of DaCe 1.x and 2.x: regions of blocks, states of nodes, and memlets between them.
//!
//! What has its usual value is left out of files by 2.x, and 1.x writes it all; every field is therefore optional here. Symbolic
//! numbers are texts: `N - 1` in 1.x and `-1 + $N` in 2.x.

use super::python::{self, PythonExpr, PythonStatement};
use indexmap::IndexMap;
use serde_json::Value as Json;

pub struct DaceSdfg {
    pub name: String,
    pub version: String,
    pub arrays: IndexMap<String, Array>,
    pub symbols: Vec<String>,
    pub region: ControlFlowRegion,
}

#[derive(Clone, Debug)]
pub struct Array {
    /// `Array`, `Scalar`, `ArrayView`, …
    pub kind: String,
    pub dtype: String,
    pub shape: Vec<PythonExpr>,
    pub strides: Vec<PythonExpr>,
    pub transient: bool,
}

impl Array {
    pub fn is_view(&self) -> bool {
        self.kind.contains("View")
    }

    pub fn is_whole(&self) -> bool {
        self.dtype.contains("int") || self.dtype == "bool"
    }
}

/// Blocks and what follows on what.
pub struct ControlFlowRegion {
    pub blocks: Vec<ControlBlock>,
    pub edges: Vec<InterstateEdge>,
    pub start: usize,
}

pub struct ControlBlock {
    pub label: String,
    pub kind: ControlBlockKind,
}

pub enum ControlBlockKind {
    State(DataflowState),
    Loop(Box<LoopRegion>),
    Branches(Vec<(Option<PythonExpr>, ControlFlowRegion)>),
    Region(ControlFlowRegion),
    /// `BreakBlock` and others that leave a region.
    Other(String),
}

pub struct LoopRegion {
    pub body: ControlFlowRegion,
    pub variable: String,
    pub begin: Option<PythonExpr>,
    pub condition: PythonExpr,
    pub next: Option<PythonExpr>,
    /// Whether the body runs once before the condition is asked.
    pub inverted: bool,
}

pub struct InterstateEdge {
    pub from: usize,
    pub to: usize,
    pub condition: Option<PythonExpr>,
    pub assignments: Vec<(String, Result<PythonExpr, String>)>,
}

pub struct DataflowState {
    pub label: String,
    pub nodes: Vec<DataflowNode>,
    pub edges: Vec<DataflowEdge>,
}

pub struct DataflowNode {
    pub label: String,
    pub scope: Option<usize>,
    pub kind: NodeKind,
}

pub enum NodeKind {
    Access(String),
    Tasklet { code: Result<Vec<PythonStatement>, String>, outputs: Vec<String> },
    Entry { params: Vec<String>, ranges: Vec<SubsetRange> },
    Exit(usize),
    Nested { sdfg: Box<DaceSdfg>, symbols: Vec<(String, Result<PythonExpr, String>)>, inputs: Vec<String>, outputs: Vec<String> },
    Library { class: String, attributes: Json },
    Other(String),
}

#[derive(Clone, Debug)]
pub struct SubsetRange {
    pub start: PythonExpr,
    /// The last place, which belongs to it.
    pub end: PythonExpr,
    pub step: PythonExpr,
    pub tile: PythonExpr,
}

pub struct DataflowEdge {
    pub from: (usize, Option<String>),
    pub to: (usize, Option<String>),
    pub memlet: DaceMemlet,
}

#[derive(Clone, Debug, Default)]
pub struct DaceMemlet {
    pub data: Option<String>,
    pub subset: Option<Vec<SubsetRange>>,
    pub other: Option<Vec<SubsetRange>>,
    pub source: Option<Vec<SubsetRange>>,
    pub destination: Option<Vec<SubsetRange>>,
    pub wcr: Option<String>,
}

type Read<T> = Result<T, String>;

fn text<'a>(json: &'a Json, key: &str) -> Option<&'a str> {
    json.get(key)?.as_str()
}

/// A symbolic number: a text, or a number.
fn symbolic(json: &Json) -> Read<PythonExpr> {
    match json {
        Json::String(text) => python::expression(text),
        Json::Number(n) => Ok(PythonExpr::Number(n.as_f64().unwrap_or(f64::NAN))),
        Json::Object(object) => match object.get("main").or_else(|| object.get("expr")) {
            Some(main) => symbolic(main),
            None => Err(format!("`{json}` is no symbolic number")),
        },
        other => Err(format!("`{other}` is no symbolic number")),
    }
}

/// `{"string_data": …, "language": "Python"}`
fn code(json: Option<&Json>) -> Option<Read<String>> {
    let json = json.filter(|json| !json.is_null())?;
    if let Some(text) = json.as_str() {
        return Some(Ok(text.to_string()));
    }
    let text = text(json, "string_data")?.to_string();
    let language = json.get("language").and_then(Json::as_str).unwrap_or("Python");
    Some(match language {
        "Python" => Ok(text),
        // Assignments of C read as those of Python.
        "CPP" if !text.contains(['{', '?', '#', '&']) && !text.contains("->") => Ok(text),
        other => Err(format!("its code is {other}, and Python is read; write the tasklet in Python, or use the `pure` expansion")),
    })
}

fn condition(json: Option<&Json>) -> Read<Option<PythonExpr>> {
    match code(json) {
        None => Ok(None),
        Some(code) => {
            let code = code?;
            let code = code.trim();
            if code.is_empty() || code == "1" { Ok(None) } else { python::expression(code).map(Some) }
        }
    }
}

fn list<'a>(json: &'a Json, key: &str) -> &'a [Json] {
    json.get(key).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn keys(json: Option<&Json>) -> Vec<String> {
    json.and_then(Json::as_object).map(|o| o.keys().cloned().collect()).unwrap_or_default()
}

fn index(json: &Json, key: &str) -> Option<usize> {
    match json.get(key)? {
        Json::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|n| usize::try_from(n).ok()),
    }
}

/// Reads an SDFG; `version` is that of the one around it.
///
/// # Errors
/// What is not as DaCe writes it.
pub fn sdfg(json: &Json, version: &str) -> Read<DaceSdfg> {
    if text(json, "type") != Some("SDFG") {
        return Err("it is no SDFG: its `type` is another one".into());
    }
    let none = Json::Null;
    let attributes = json.get("attributes").unwrap_or(&none);
    let name = text(attributes, "name").unwrap_or("sdfg").to_string();
    let version = text(json, "dace_version").unwrap_or(version).to_string();
    let mut arrays = IndexMap::new();
    if let Some(declared) = attributes.get("_arrays").and_then(Json::as_object) {
        for (name, json) in declared.iter().filter(|(_, json)| json.is_object()) {
            arrays.insert(name.clone(), array(json).map_err(|why| format!("array `{name}`: {why}"))?);
        }
    }
    Ok(DaceSdfg { name, version, arrays, symbols: keys(attributes.get("symbols")), region: region(json)? })
}

fn array(json: &Json) -> Read<Array> {
    let none = Json::Null;
    let about = json.get("attributes").unwrap_or(&none);
    let kind = text(json, "type").unwrap_or_default().to_string();
    let dtype = match about.get("dtype") {
        Some(Json::String(name)) => name.clone(),
        Some(other) => text(other, "type").unwrap_or("another one").to_string(),
        None => "int32".into(),
    };
    let all = |key: &str| list(about, key).iter().map(symbolic).collect::<Read<Vec<_>>>();
    let shape = if kind == "Scalar" { vec![PythonExpr::Number(1.0)] } else { all("shape")? };
    let transient = about.get("transient").and_then(Json::as_bool).unwrap_or(false);
    Ok(Array { kind, dtype, shape, strides: all("strides").unwrap_or_default(), transient })
}

fn region(json: &Json) -> Read<ControlFlowRegion> {
    let blocks = list(json, "nodes").iter().map(block).collect::<Read<Vec<_>>>()?;
    let mut edges = vec![];
    for edge in list(json, "edges") {
        let (Some(from), Some(to)) = (index(edge, "src"), index(edge, "dst")) else {
            return Err("an edge between states lacks its ends".into());
        };
        let none = Json::Null;
        let about = edge.pointer("/attributes/data/attributes").unwrap_or(&none);
        let assigned = about.get("assignments").and_then(Json::as_object);
        let assignments = assigned
            .into_iter()
            .flatten()
            .map(|(name, value)| {
                (name.clone(), code(Some(value)).unwrap_or_else(|| Ok(value.to_string())).and_then(|text| python::expression(&text)))
            })
            .collect();
        edges.push(InterstateEdge { from, to, condition: condition(about.get("condition"))?, assignments });
    }
    if let Some(edge) = edges.iter().find(|e| e.from >= blocks.len() || e.to >= blocks.len()) {
        return Err(format!("an edge joins states {} and {}, of {}", edge.from, edge.to, blocks.len()));
    }
    // The block that nothing leads to; the number in the file counts where there are several, or none, as in DaCe.
    let sources: Vec<usize> = (0..blocks.len()).filter(|n| !edges.iter().any(|e| e.to == *n)).collect();
    let start = match sources.as_slice() {
        [only] => *only,
        _ => index(json, "start_block").or_else(|| index(json, "start_state")).filter(|n| *n < blocks.len()).unwrap_or(0),
    };
    Ok(ControlFlowRegion { blocks, edges, start })
}

fn block(json: &Json) -> Read<ControlBlock> {
    let label = text(json, "label").unwrap_or_default().to_string();
    let none = Json::Null;
    let about = json.get("attributes").unwrap_or(&none);
    let kind = match text(json, "type").unwrap_or_default() {
        "SDFGState" => ControlBlockKind::State(state(json, &label)?),
        "LoopRegion" => {
            let statement = |key: &str| match code(about.get(key)) {
                None => Ok(None),
                Some(code) => match python::statements(&code?)?.as_slice() {
                    [] => Ok(None),
                    [PythonStatement::Assign(_, at, value)] if at.is_empty() => Ok(Some(value.clone())),
                    _ => Err(format!("the {key} of the loop `{label}` is no assignment")),
                },
            };
            ControlBlockKind::Loop(Box::new(LoopRegion {
                body: region(json)?,
                variable: text(about, "loop_variable").unwrap_or_default().to_string(),
                begin: statement("init_statement")?,
                condition: condition(about.get("loop_condition"))?.unwrap_or(PythonExpr::Number(1.0)),
                next: statement("update_statement")?,
                inverted: about.get("inverted").and_then(Json::as_bool).unwrap_or(false),
            }))
        }
        "ConditionalBlock" => {
            let mut branches = vec![];
            for branch in list(json, "branches") {
                let (case, body) = (branch.get(0), branch.get(1).ok_or("a branch has no body")?);
                branches.push((condition(case)?.or(case.filter(|c| !c.is_null()).map(|_| PythonExpr::Number(1.0))), region(body)?));
            }
            ControlBlockKind::Branches(branches)
        }
        "ControlFlowRegion" | "NamedRegion" | "FunctionCallRegion" => ControlBlockKind::Region(region(json)?),
        other => ControlBlockKind::Other(other.to_string()),
    };
    Ok(ControlBlock { label, kind })
}

fn state(json: &Json, label: &str) -> Read<DataflowState> {
    let named = |why: String| format!("state `{label}`: {why}");
    let mut nodes = list(json, "nodes").iter().map(node).collect::<Read<Vec<_>>>().map_err(named)?;
    let mut edges = vec![];
    for edge in list(json, "edges") {
        let (Some(from), Some(to)) = (index(edge, "src"), index(edge, "dst")) else { return Err(named("an edge lacks its ends".into())) };
        if from >= nodes.len() || to >= nodes.len() {
            return Err(named(format!("an edge joins nodes {from} and {to}, of {}", nodes.len())));
        }
        let connector = |key: &str| text(edge, key).map(str::to_string);
        let data = edge.pointer("/attributes/data");
        let memlet = data.and_then(|data| data.get("attributes")).map_or(Ok(DaceMemlet::default()), memlet).map_err(named)?;
        edges.push(DataflowEdge { from: (from, connector("src_connector")), to: (to, connector("dst_connector")), memlet });
    }
    let count = nodes.len();
    for node in &mut nodes {
        node.scope = node.scope.filter(|scope| *scope < count);
    }
    Ok(DataflowState { label: label.to_string(), nodes, edges })
}

fn ranges(json: Option<&Json>) -> Read<Option<Vec<SubsetRange>>> {
    let Some(json) = json.filter(|json| !json.is_null()) else { return Ok(None) };
    if text(json, "type") == Some("Indices") {
        let one = PythonExpr::Number(1.0);
        let point = |json: &Json| {
            let at = symbolic(json)?;
            Ok(SubsetRange { start: at.clone(), end: at, step: one.clone(), tile: one.clone() })
        };
        return list(json, "indices").iter().map(point).collect::<Read<_>>().map(Some);
    }
    if text(json, "type") != Some("Range") {
        return Err(format!("a subset is a {}, and ranges and indices are read", text(json, "type").unwrap_or("value of no type")));
    }
    let part = |json: &Json, key: &str, usual: &str| match json.get(key) {
        Some(value) if !value.is_null() => symbolic(value),
        _ => python::expression(usual),
    };
    let range = |json: &Json| {
        Ok(SubsetRange {
            start: part(json, "start", "0")?,
            end: part(json, "end", "0")?,
            step: part(json, "step", "1")?,
            tile: part(json, "tile", "1")?,
        })
    };
    list(json, "ranges").iter().map(range).collect::<Read<_>>().map(Some)
}

fn memlet(json: &Json) -> Read<DaceMemlet> {
    Ok(DaceMemlet {
        data: text(json, "data").map(str::to_string),
        subset: ranges(json.get("subset"))?,
        other: ranges(json.get("other_subset"))?,
        source: ranges(json.get("src_subset"))?,
        destination: ranges(json.get("dst_subset"))?,
        wcr: match json.get("wcr") {
            Some(Json::String(text)) => Some(text.clone()),
            _ => None,
        },
    })
}

fn node(json: &Json) -> Read<DataflowNode> {
    let none = Json::Null;
    let about = json.get("attributes").unwrap_or(&none);
    let label = text(json, "label").or_else(|| text(about, "label")).unwrap_or_default().to_string();
    let kind = match text(json, "type").unwrap_or_default() {
        "AccessNode" => NodeKind::Access(text(about, "data").ok_or("an access node names no data")?.to_string()),
        "Tasklet" => NodeKind::Tasklet {
            code: code(about.get("code")).unwrap_or(Ok(String::new())).and_then(|code| python::statements(&code)),
            outputs: keys(about.get("out_connectors")),
        },
        "MapEntry" => NodeKind::Entry {
            params: list(about, "params").iter().filter_map(|p| p.as_str().map(str::to_string)).collect(),
            ranges: ranges(about.get("range"))?.unwrap_or_default(),
        },
        "MapExit" => NodeKind::Exit(index(json, "scope_entry").ok_or("a map's exit names no entry")?),
        "NestedSDFG" => {
            let inner = about.get("sdfg").filter(|json| json.is_object());
            match inner {
                None => NodeKind::Other("a nested SDFG in a file of its own".into()),
                Some(inner) => NodeKind::Nested {
                    sdfg: Box::new(sdfg(inner, "")?),
                    symbols: about
                        .get("symbol_mapping")
                        .and_then(Json::as_object)
                        .into_iter()
                        .flatten()
                        .map(|(name, value)| (name.clone(), symbolic(value)))
                        .collect(),
                    inputs: keys(about.get("in_connectors")),
                    outputs: keys(about.get("out_connectors")),
                },
            }
        }
        "LibraryNode" => {
            let class = text(json, "classpath").or_else(|| text(about, "classpath")).unwrap_or_default();
            NodeKind::Library { class: class.rsplit('.').next().unwrap_or_default().to_string(), attributes: about.clone() }
        }
        other => NodeKind::Other(format!("a {other}")),
    };
    let scope = index(json, "scope_entry");
    Ok(DataflowNode { label, scope, kind })
}
