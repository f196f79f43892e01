//! The layout-configuration DAG with the chosen path (Fig. 6).

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, BEST, CHOSEN, GRID, INK, MUTED, figure, fitted, text_width};
use crate::model::{DrawnEdge, DrawnGraph};
use crate::unit::Milliseconds;
use plotters::style::Color;

const NAME: &str = "config_graph";
const ROW: i32 = 62;
const TOP: i32 = 92;
const RIGHT: i32 = 660;

/// Layers from top to bottom, a dot for each layout in its layer, a line for each measured configuration; the stronger a line, the faster
/// the configuration is within its layer. The shortest path is drawn in addition to the chosen one where they differ. References that
/// lead nowhere are not drawn.
///
/// # Errors
/// [`PlotError::Empty`] without nodes; [`PlotError::OffScale`] for a time that is negative or not a finite number.
pub fn config_graph(program: &str, graph: &DrawnGraph) -> Result<String, PlotError> {
    if graph.nodes.is_empty() || graph.layers.is_empty() {
        return Err(PlotError::Empty { figure: NAME });
    }
    // This only refuses invalid times; lines show times as shades.
    Axis::linear(NAME, graph.edges.iter().map(|e| e.time.0.0), 0, 1)?;
    let left = 24 + graph.layers.iter().map(|l| text_width(l, 13)).max().unwrap_or(0).clamp(40, 200) + 20;
    let places = places(graph, left);
    let y = |layer: usize| TOP + ROW * layer as i32;
    let bottom = y(graph.layers.len() - 1);
    figure(1000, bottom + 56, &format!("Layout configurations and the chosen path: {program}"), |canvas| {
        canvas.line(&[(24, 48), (48, 48)], CHOSEN, 3)?;
        canvas.text(56, 48, 12, MUTED, Anchor::Left, "chosen path, measured time of each kernel [ms]")?;
        canvas.line(&[(370, 48), (394, 48)], MUTED.mix(0.6), 1)?;
        canvas.text(402, 48, 12, MUTED, Anchor::Left, "other configurations, stronger is faster")?;
        if graph.edges.iter().any(|e| e.shortest) {
            canvas.line(&[(640, 48), (664, 48)], BEST, 2)?;
            canvas.text(672, 48, 12, MUTED, Anchor::Left, "shortest path, where it differs")?;
        }
        for (n, layer) in graph.layers.iter().enumerate() {
            canvas.line(&[(left, y(n)), (RIGHT, y(n))], GRID, 1)?;
            canvas.text(left - 20, y(n), 13, INK, Anchor::Right, &fitted(layer, 13, 200))?;
        }
        let best = best(graph);
        let ends = |edge: &DrawnEdge| Some((*places.get(edge.from)?, *places.get(edge.to)?));
        for edge in graph.edges.iter().filter(|e| !e.chosen) {
            let Some((from, to)) = ends(edge) else { continue };
            let best = graph.nodes.get(edge.from).and_then(|n| best.get(n.layer)).copied().unwrap_or(edge.time.0.0);
            let shade = if edge.time.0.0 > 0.0 { (best / edge.time.0.0).powi(2) } else { 1.0 };
            canvas.line(&[from, to], MUTED.mix(0.12 + 0.5 * shade), 1)?;
        }
        for edge in graph.edges.iter().filter(|e| e.shortest && !e.chosen) {
            let Some((from, to)) = ends(edge) else { continue };
            canvas.line(&[from, to], BEST, 2)?;
        }
        for edge in graph.edges.iter().filter(|e| e.chosen) {
            let Some((from, to)) = ends(edge) else { continue };
            canvas.line(&[from, to], CHOSEN, 3)?;
            let label = format!("{} · {}", fitted(&edge.label, 11, 200), Milliseconds(edge.time.0.0));
            canvas.text(RIGHT + 24, (from.1 + to.1) / 2, 11, MUTED, Anchor::Left, &label)?;
        }
        for (node, at) in graph.nodes.iter().zip(&places) {
            canvas.dot(*at, if node.chosen { 6 } else { 3 }, if node.chosen { CHOSEN } else { MUTED }, true)?;
            if node.chosen {
                canvas.text(RIGHT + 24, at.1, 12, INK, Anchor::Left, &fitted(&node.label, 12, 300))?;
            }
        }
        if graph.omitted_nodes + graph.omitted_edges > 0 {
            let note = format!("excerpt: {} more nodes and {} more edges are not drawn", graph.omitted_nodes, graph.omitted_edges);
            canvas.text(24, bottom + 36, 11, MUTED, Anchor::Left, &note)?;
        }
        Ok(())
    })
}

/// The fastest edge out of each layer.
fn best(graph: &DrawnGraph) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; graph.layers.len()];
    for edge in &graph.edges {
        if let Some(least) = graph.nodes.get(edge.from).and_then(|n| best.get_mut(n.layer)) {
            *least = least.min(edge.time.0.0);
        }
    }
    best
}

/// Nodes of a layer spread evenly over its line.
fn places(graph: &DrawnGraph, left: i32) -> Vec<(i32, i32)> {
    let size = |layer: usize| graph.nodes.iter().filter(|n| n.layer == layer).count().max(1) as i32;
    let mut seen = vec![0; graph.layers.len()];
    graph
        .nodes
        .iter()
        .map(|node| {
            let place = seen.get_mut(node.layer).map_or(0, |n| {
                *n += 1;
                *n - 1
            });
            (left + (RIGHT - left) * (2 * place + 1) / (2 * size(node.layer)), TOP + ROW * node.layer as i32)
        })
        .collect()
}
