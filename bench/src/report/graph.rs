//! The dataflow graph as an SVG to pan, zoom and click.

use crate::layered::{self, Point, Size};
use crate::model::{DataflowGraph, GraphNode, Report};
use crate::table::Text;
use crate::unit::Bytes;
use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

const HEIGHT: f64 = 42.0;

/// The drawing, and a JSON array with the facts of each node for the side panel, in the order of the nodes.
pub fn html(report: &Report) -> Markup {
    let graph = &report.graph;
    let place: BTreeMap<&str, usize> = graph.nodes.iter().enumerate().map(|(n, node)| (node.id.as_str(), n)).collect();
    let ends: Vec<(usize, usize)> = graph
        .edges
        .iter()
        .map(|e| {
            // The check has refused edges without ends; one that slipped through is a loop, which is not drawn.
            let end = |id: &str| place.get(id).copied().unwrap_or(0);
            (end(&e.from), end(&e.to))
        })
        .collect();
    let sizes: Vec<Size> = graph.nodes.iter().map(|n| Size { width: width(n), height: HEIGHT }).collect();
    let drawing = layered::draw(&sizes, &ends);
    let most = graph.edges.iter().map(|e| e.bytes.0).max().unwrap_or(0);
    html! {
        div.graph {
            svg #dataflow role="img" aria-label="dataflow graph" tabindex="0"
                viewBox={ "0 0 " (format!("{:.0}", drawing.width.max(1.0))) " " (format!("{:.0}", drawing.height.max(1.0))) } {
                g #camera {
                    @for ((edge, points), (from, to)) in graph.edges.iter().zip(&drawing.edges).zip(&ends) {
                        path.edge data-from=(from) data-to=(to) d=(curve(points)) stroke-width=(format!("{:.1}", thickness(edge.bytes, most))) {
                            title { (Text(&edge.tensor)) ": " (edge.bytes.to_string()) }
                        }
                    }
                    @for (n, ((node, size), at)) in graph.nodes.iter().zip(&sizes).zip(&drawing.nodes).enumerate() {
                        (drawn(n, node, size, at))
                    }
                }
            }
            div.controls {
                button type="button" data-zoom="1.3" title="zoom in" { "+" }
                button type="button" data-zoom="0.77" title="zoom out" { "−" }
                button type="button" data-zoom="fit" title="show all" { "fit" }
            }
            aside #facts {
                p {
                    "All of it is shown: zoom in to read. Click a node: operator, flop, bytes, kernel and memlets. Drag to move; after a "
                    "click, scroll to zoom. The width of a line is the square root of its bytes."
                }
            }
        }
        p.key {
            span.contraction {} "tensor contraction " span.normalization {} "statistical normalization " span.elementwise {}
            "element-wise " span.tensor {} "boundary tensor"
        }
        script #graph-facts type="application/json" { (PreEscaped(script_safe(&facts(graph, &ends)))) }
    }
}

/// A node: a kernel's operator, or a tensor of the boundary.
fn drawn(n: usize, node: &GraphNode, size: &Size, at: &Point) -> Markup {
    let class = node.class.map_or("tensor".to_string(), |c| c.to_string());
    let second = node.kernel.as_deref().unwrap_or_default();
    let short = |length: f64| format!("{length:.1}");
    html! {
        g.node.(class) data-node=(n) tabindex="0" transform={ "translate(" (short(at.x)) " " (short(at.y)) ")" } {
            rect x=(short(-size.width / 2.0)) y=(short(-HEIGHT / 2.0)) width=(short(size.width)) height=(HEIGHT)
                rx=(if node.class.is_some() { 6 } else { 20 }) {}
            text y=(if second.is_empty() { 5 } else { -2 }) { (Text(&node.label)) }
            text.kernel y="13" { (Text(second)) }
        }
    }
}

fn width(node: &GraphNode) -> f64 {
    let longest = node.label.chars().count().max(node.kernel.as_ref().map_or(0, |k| k.chars().count()));
    longest as f64 * 7.4 + 24.0
}

/// Square root, so that a tenth of the bytes is still seen.
fn thickness(bytes: Bytes, most: u64) -> f64 {
    if most == 0 { 1.0 } else { 1.0 + 9.0 * (bytes.0 as f64 / most as f64).sqrt() }
}

/// Vertical tangents at every point.
fn curve(points: &[Point]) -> String {
    let mut path = String::new();
    for (n, p) in points.iter().enumerate() {
        match n.checked_sub(1).and_then(|before| points.get(before)) {
            None => {
                let _ = write!(path, "M{:.1} {:.1}", p.x, p.y);
            }
            Some(before) => {
                let middle = (before.y + p.y) / 2.0;
                let _ = write!(path, "C{:.1} {middle:.1} {:.1} {middle:.1} {:.1} {:.1}", before.x, p.x, p.x, p.y);
            }
        }
    }
    path
}

fn facts(graph: &DataflowGraph, ends: &[(usize, usize)]) -> Value {
    let edges = |n: usize, incoming: bool| -> Vec<Value> {
        let here = graph.edges.iter().zip(ends).filter(|(_, (from, to))| if incoming { *to == n } else { *from == n });
        here.map(|(e, _)| json!({"tensor": e.tensor, "bytes": e.bytes.to_string(), "memlet": e.memlet})).collect()
    };
    let nodes = graph.nodes.iter().enumerate().map(|(n, node)| {
        let mut rows: Vec<(String, String)> = Vec::new();
        match node.class {
            Some(class) => {
                rows.push(("class".into(), class.to_string()));
                rows.push(("flop".into(), node.flop.to_string()));
            }
            None => rows.push(("kind".into(), "boundary tensor".into())),
        }
        if let Some(pass) = node.pass {
            rows.push(("pass".into(), format!("{pass:?}").to_lowercase()));
        }
        if let Some(kernel) = &node.kernel {
            rows.push(("kernel".into(), kernel.clone()));
        }
        let total: Bytes = graph.edges.iter().zip(ends).filter(|(_, (f, t))| *f == n || *t == n).map(|(e, _)| e.bytes).sum();
        rows.push(("bytes in and out".into(), total.to_string()));
        rows.extend(node.details.iter().map(|(k, v)| (k.clone(), v.clone())));
        json!({"label": node.label, "rows": rows, "reads": edges(n, true), "writes": edges(n, false)})
    });
    Value::Array(nodes.collect())
}

/// Inside a script element only `</` and `<!--` end or change the parsing: no `<` at all is simplest.
fn script_safe(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GraphEdge;
    use sdfg::Class;

    fn node(id: &str, label: &str) -> GraphNode {
        GraphNode {
            id: id.into(),
            label: label.into(),
            class: Some(Class::Contraction),
            pass: None,
            kernel: None,
            flop: crate::unit::Flop(1),
            details: indexmap::IndexMap::new(),
        }
    }

    #[test]
    fn hostile_names_stay_text() {
        let hostile = "</script><script>alert(1)</script>";
        let graph = DataflowGraph {
            nodes: vec![node("a", hostile), node("b", "b")],
            edges: vec![GraphEdge {
                from: "a".into(),
                to: "b".into(),
                tensor: hostile.into(),
                bytes: Bytes(0),
                memlet: "x[0:n]\"><b>".into(),
            }],
        };
        let html = html(&Report { graph, ..Report::default() }).into_string();
        assert_eq!(html.matches("<script").count(), 1, "only the facts themselves: {html}");
        assert_eq!(html.matches("</script").count(), 1);
        let facts = html.split_once("type=\"application/json\">").unwrap().1.split_once("</script>").unwrap().0;
        let facts: Value = serde_json::from_str(facts).unwrap();
        assert_eq!(facts[0]["label"], hostile, "the facts are exact after parsing");
        assert_eq!(facts[0]["writes"][0]["memlet"], "x[0:n]\"><b>");
    }

    #[test]
    fn widths_follow_bytes() {
        assert_eq!((thickness(Bytes(0), 0), thickness(Bytes(0), 8), thickness(Bytes(8), 8)), (1.0, 1.0, 10.0));
    }
}
