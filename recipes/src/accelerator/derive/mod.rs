//! From a program to its layers: what an operation is follows from its operator, its subscripts and its scalar code, never from its name.
//!
//! Each operation becomes a *node*: an anchor (contraction, windowed reduction, softmax, addition, concatenation) or a pointwise change of
//! one value (a shift or a factor by parameters, an activation). Then nodes become layers as Caffe counts them: a shift right behind a
//! contraction is its bias; a shift and a factor are a batch norm, `(x − mean) · rsqrt(var + eps)`; a factor and a shift are a scale.

mod axes;
mod nodes;
mod pointwise;

use super::layers::{ImageShape, Layer, LayerGraph, LayerKind, SlidingWindow};
use nodes::{DerivedNode, NodeRole, Nodes};
use sdfg::{Origin, Sdfg};

/// An operation that is no layer of a network of one image.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}`{name}` is no layer that the accelerator knows: {why}", origin.as_ref().map(|o| format!("{o}: ")).unwrap_or_default())]
pub struct NoLayer {
    pub name: String,
    pub why: String,
    pub origin: Option<Origin>,
}

/// The layers of a program's forward pass.
///
/// # Errors
/// The first operation that is no layer, with its place in the recipe.
pub fn layers(program: &Sdfg) -> Result<LayerGraph, NoLayer> {
    let nodes = Nodes::of(program)?;
    let readers = nodes.readers();
    let mut graph = LayerGraph { name: program.name.clone(), layers: Vec::new(), element_bytes: nodes.element_bytes };
    let mut held: Vec<usize> = Vec::with_capacity(nodes.nodes.len());
    // By layer: a batch norm or scale that has its factor and its shift.
    let mut complete: Vec<bool> = Vec::new();
    for (at, node) in nodes.nodes.iter().enumerate() {
        let before = node.inputs.first().copied();
        let alone = |of: usize| readers[of].len() == 1 && !nodes.nodes[of].result;
        let next = readers[at].first().filter(|_| alone(at)).map(|n| &nodes.nodes[*n].role);
        let behind = before.filter(|b| alone(*b)).map(|b| (&nodes.nodes[b].role, held[b]));
        let anchor = behind.map(|(_, layer)| graph.layers[layer].kind);
        let layer = match (&node.role, behind) {
            (NodeRole::Shift(weights), Some((NodeRole::Anchor(LayerKind::Convolution | LayerKind::FullyConnected), layer)))
                if !matches!(next, Some(NodeRole::Factor(_))) =>
            {
                absorb(&mut graph, layer, *weights, &node.name)
            }
            // A mean of a padded window divides by the number of elements at each place.
            (NodeRole::Factor(_), Some((NodeRole::Anchor(LayerKind::Pooling), layer))) if node.per_place => {
                absorb(&mut graph, layer, 0, &node.name)
            }
            (NodeRole::Factor(weights), Some((NodeRole::Shift(_), layer))) if anchor == Some(LayerKind::Scale) && !complete[layer] => {
                graph.layers[layer].kind = LayerKind::BatchNorm;
                complete[layer] = true;
                absorb(&mut graph, layer, *weights, &node.name)
            }
            (NodeRole::Shift(weights), Some((NodeRole::Factor(_), layer))) if anchor == Some(LayerKind::Scale) && !complete[layer] => {
                complete[layer] = true;
                absorb(&mut graph, layer, *weights, &node.name)
            }
            (NodeRole::Inside, _) => absorb(&mut graph, held[before.unwrap_or(0)], 0, &node.name),
            (role, _) => {
                let (kind, weights) = match role {
                    NodeRole::Anchor(kind) => (*kind, node.weights),
                    NodeRole::Shift(weights) | NodeRole::Factor(weights) => (LayerKind::Scale, *weights),
                    NodeRole::Activation | NodeRole::Inside => (LayerKind::Activation, 0),
                };
                let inputs = node.inputs.iter().map(|i| held[*i]).collect();
                graph.layers.push(layer(node, kind, inputs, weights));
                complete.push(false);
                graph.layers.len() - 1
            }
        };
        held.push(layer);
    }
    Ok(graph)
}

/// Adds a node to a layer: the layer gives its output.
fn absorb(graph: &mut LayerGraph, layer: usize, weights: u64, name: &str) -> usize {
    let of = &mut graph.layers[layer];
    of.weights += weights;
    of.name = name.to_string();
    layer
}

fn layer(node: &DerivedNode, kind: LayerKind, inputs: Vec<usize>, weights: u64) -> Layer {
    let elements = node.shape.elements();
    let flop = match kind {
        LayerKind::Input | LayerKind::Concat => 0,
        LayerKind::Convolution | LayerKind::FullyConnected => node.flop,
        LayerKind::BatchNorm | LayerKind::Scale => 2 * elements,
        LayerKind::Activation => elements,
        LayerKind::Add => elements * (inputs.len() as u64 - 1),
        LayerKind::Pooling => elements * node.window.taps(),
        LayerKind::LocalResponseNorm => 8 * elements,
        LayerKind::Softmax => 3 * elements,
    };
    Layer { name: node.name.clone(), kind, inputs, shape: node.shape, window: node.window, groups: node.groups, weights, flop }
}

impl DerivedNode {
    fn pointwise(name: &str, role: NodeRole, input: usize, shape: ImageShape) -> DerivedNode {
        DerivedNode {
            name: name.to_string(),
            role,
            inputs: vec![input],
            shape,
            window: SlidingWindow::POINT,
            groups: 1,
            weights: 0,
            flop: 0,
            per_place: false,
            closes: false,
            result: false,
        }
    }
}
