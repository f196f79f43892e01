//! Refuses reports whose numbers cannot be shown: NaN, infinite, negative, or references to nothing.

use crate::model::Report;
use serde_json::Value;
use std::collections::BTreeSet;

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("report value {path} is not a finite number; look for a division by zero or a failed measurement behind it")]
    NotFinite { path: String },
    #[error("report value {path} is {value}; nothing in a report can be negative")]
    Negative { path: String, value: f64 },
    #[error("report value {path} names {name}, which does not exist; list it among {among}")]
    Dangling { path: String, name: String, among: &'static str },
    #[error("report value {path} repeats the id {name}; ids of graph nodes are unique")]
    Repeated { path: String, name: String },
    #[error("the report has no JSON form")]
    Json(#[from] serde_json::Error),
}

/// Checks every number of the report and every reference in it.
///
/// # Errors
/// The first fault, with its path in the JSON form.
pub fn check(report: &Report) -> Result<(), CheckError> {
    // Absent options are left out of the JSON form, so a null there can only be a number that JSON cannot express.
    numbers("", &serde_json::to_value(report)?)?;
    let mut ids = BTreeSet::new();
    for (n, node) in report.graph.nodes.iter().enumerate() {
        if !ids.insert(node.id.as_str()) {
            return Err(CheckError::Repeated { path: format!("graph.nodes[{n}].id"), name: node.id.clone() });
        }
    }
    for (n, edge) in report.graph.edges.iter().enumerate() {
        for (end, id) in [("from", &edge.from), ("to", &edge.to)] {
            if !ids.contains(id.as_str()) {
                return Err(dangling(format!("graph.edges[{n}].{end}"), id, "graph.nodes"));
            }
        }
    }
    let graph = &report.config_graph;
    for (n, node) in graph.nodes.iter().enumerate() {
        if node.layer >= graph.layers.len() {
            return Err(dangling(format!("config_graph.nodes[{n}].layer"), node.layer, "config_graph.layers"));
        }
    }
    for (n, edge) in graph.edges.iter().enumerate() {
        for (end, index) in [("from", edge.from), ("to", edge.to)] {
            if index >= graph.nodes.len() {
                return Err(dangling(format!("config_graph.edges[{n}].{end}"), index, "config_graph.nodes"));
            }
        }
    }
    for (n, sweep) in report.sweeps.iter().enumerate() {
        if let Some(chosen) = sweep.chosen.filter(|c| *c >= sweep.configurations.len()) {
            return Err(dangling(format!("sweeps[{n}].chosen"), chosen, "its configurations"));
        }
    }
    Ok(())
}

fn dangling(path: String, name: impl ToString, among: &'static str) -> CheckError {
    CheckError::Dangling { path, name: name.to_string(), among }
}

fn numbers(path: &str, value: &Value) -> Result<(), CheckError> {
    match value {
        Value::Null => Err(CheckError::NotFinite { path: path.to_string() }),
        Value::Number(number) => match number.as_f64() {
            Some(value) if value < 0.0 => Err(CheckError::Negative { path: path.to_string(), value }),
            _ => Ok(()),
        },
        Value::Array(items) => items.iter().enumerate().try_for_each(|(n, item)| numbers(&format!("{path}[{n}]"), item)),
        Value::Object(fields) => fields.iter().try_for_each(|(key, item)| {
            let dot = if path.is_empty() { "" } else { "." };
            numbers(&format!("{path}{dot}{key}"), item)
        }),
        Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DrawnNode, GraphEdge, KernelSweep, WaterfallStep};
    use crate::unit::{Bytes, Milliseconds, Quantity};
    use sdfg::Class;

    fn step(ms: f64) -> WaterfallStep {
        let time = Some(Quantity::Measured(Milliseconds(ms)));
        WaterfallStep { name: "fused".into(), launches: None, bytes: None, time, note: String::new() }
    }

    fn message(report: &Report) -> String {
        check(report).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_report_is_fine() {
        check(&Report::default()).unwrap();
    }

    #[test]
    fn numbers_are_located() {
        for (ms, word) in [(f64::NAN, "not a finite"), (f64::INFINITY, "not a finite"), (-1.0, "negative")] {
            let text = message(&Report { waterfall: vec![step(1.0), step(ms)], ..Report::default() });
            assert!(text.contains("waterfall[1].time.measured") && text.contains(word), "{text}");
        }
    }

    #[test]
    fn references_must_lead_somewhere() {
        let mut report = Report::default();
        report.graph.edges.push(GraphEdge { from: "a".into(), to: "b".into(), tensor: "x".into(), bytes: Bytes(1), memlet: String::new() });
        assert!(message(&report).starts_with("report value graph.edges[0].from names a"));
        let mut report = Report::default();
        report.config_graph.nodes.push(DrawnNode { layer: 0, label: "x".into(), chosen: true });
        assert!(message(&report).starts_with("report value config_graph.nodes[0].layer names 0"));
        let sweep = KernelSweep { kernel: "SM".into(), class: Class::Normalization, configurations: vec![], chosen: Some(0) };
        let report = Report { sweeps: vec![sweep], ..Report::default() };
        assert!(message(&report).starts_with("report value sweeps[0].chosen names 0"));
    }
}
