//! The layers of a network as the accelerator sees them: what each reads, through which window, and how much it computes.

use serde::Serialize;
use std::fmt;

/// What a layer does; the layers that Caffe counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    Input,
    Convolution,
    BatchNorm,
    Scale,
    Activation,
    Pooling,
    Add,
    Concat,
    FullyConnected,
    Softmax,
    LocalResponseNorm,
}

impl LayerKind {
    /// Whether an output element depends on one element of the first input at the same place, and on weights of its channel.
    pub fn is_pointwise(self) -> bool {
        matches!(self, LayerKind::BatchNorm | LayerKind::Scale | LayerKind::Activation)
    }

    /// The name in tables.
    pub fn label(self) -> &'static str {
        match self {
            LayerKind::Input => "input",
            LayerKind::Convolution => "convolution",
            LayerKind::BatchNorm => "batch norm",
            LayerKind::Scale => "scale",
            LayerKind::Activation => "activation",
            LayerKind::Pooling => "pooling",
            LayerKind::Add => "add",
            LayerKind::Concat => "concat",
            LayerKind::FullyConnected => "fully connected",
            LayerKind::Softmax => "softmax",
            LayerKind::LocalResponseNorm => "local response norm",
        }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Channels, rows and columns of a tensor of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ImageShape {
    pub channels: usize,
    pub rows: usize,
    pub columns: usize,
}

impl ImageShape {
    pub fn new(channels: usize, rows: usize, columns: usize) -> ImageShape {
        ImageShape { channels, rows, columns }
    }

    /// Elements of one channel.
    pub fn plane(self) -> u64 {
        (self.rows * self.columns) as u64
    }

    pub fn elements(self) -> u64 {
        self.channels as u64 * self.plane()
    }
}

/// How rows or columns of an output depend on those of the input: output `p` reads inputs `p·stride − pad` to `p·stride − pad + kernel`,
/// as far as they lie in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Reach {
    pub kernel: usize,
    pub stride: usize,
    pub pad: usize,
}

impl Reach {
    /// Each output reads the input at its own place.
    pub const POINT: Reach = Reach { kernel: 1, stride: 1, pad: 0 };

    pub fn new(kernel: usize, stride: usize, pad: usize) -> Reach {
        Reach { kernel, stride, pad }
    }
}

/// The reach along rows and along columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SlidingWindow {
    pub rows: Reach,
    pub columns: Reach,
}

impl SlidingWindow {
    pub const POINT: SlidingWindow = SlidingWindow { rows: Reach::POINT, columns: Reach::POINT };

    pub fn square(kernel: usize, stride: usize, pad: usize) -> SlidingWindow {
        SlidingWindow { rows: Reach::new(kernel, stride, pad), columns: Reach::new(kernel, stride, pad) }
    }

    /// Elements of one channel that an output reads, padding included.
    pub fn taps(&self) -> u64 {
        (self.rows.kernel * self.columns.kernel) as u64
    }
}

/// One layer and its output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    pub name: String,
    pub kind: LayerKind,
    /// The layers that it reads, by number.
    pub inputs: Vec<usize>,
    /// Shape of the output.
    pub shape: ImageShape,
    pub window: SlidingWindow,
    /// Groups of channels that do not meet; 1 is a dense layer.
    pub groups: usize,
    /// Elements of all parameters.
    pub weights: u64,
    pub flop: u64,
}

/// A network of one image: layers in an order in which each stands after what it reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerGraph {
    pub name: String,
    pub layers: Vec<Layer>,
    /// Bytes of an element, the same for all tensors.
    pub element_bytes: u64,
}

impl LayerGraph {
    /// By layer: the layers that read it.
    pub fn readers(&self) -> Vec<Vec<usize>> {
        let mut readers = vec![Vec::new(); self.layers.len()];
        for (at, layer) in self.layers.iter().enumerate() {
            for input in &layer.inputs {
                if readers[*input].last() != Some(&at) {
                    readers[*input].push(at);
                }
            }
        }
        readers
    }

    /// Elements that a layer moves if it runs alone: each of its tensors once. Parts of a concatenation are written where they belong.
    pub fn alone(&self, at: usize) -> u64 {
        let layer = &self.layers[at];
        if matches!(layer.kind, LayerKind::Input | LayerKind::Concat) {
            return 0;
        }
        layer.inputs.iter().map(|i| self.layers[*i].shape.elements()).sum::<u64>() + layer.shape.elements() + layer.weights
    }

    /// Bytes of the network if every layer runs alone.
    pub fn baseline_bytes(&self) -> u64 {
        (0..self.layers.len()).map(|at| self.alone(at)).sum::<u64>() * self.element_bytes
    }

    /// Bytes of the network if batch norms, scales, activations and local response norms run in the layer before them and everything else
    /// alone: all that works on one pixel at a time.
    pub fn pointwise_fused_bytes(&self) -> u64 {
        let readers = self.readers();
        let joins = |at: usize| {
            let layer = &self.layers[at];
            let before = layer.inputs.first().map(|i| (*i, self.layers[*i].kind));
            let joinable = layer.kind.is_pointwise() || layer.kind == LayerKind::LocalResponseNorm;
            joinable && before.is_some_and(|(i, kind)| readers[i].len() == 1 && kind != LayerKind::Input && kind != LayerKind::Concat)
        };
        // The output of the layer before is neither written nor read.
        let saved = |at: usize| 2 * self.layers[self.layers[at].inputs[0]].shape.elements();
        let saved: u64 = (0..self.layers.len()).filter(|at| joins(*at)).map(saved).sum();
        self.baseline_bytes() - saved * self.element_bytes
    }

    /// Bytes that any plan moves: parameters, inputs and results once.
    pub fn bound_bytes(&self) -> u64 {
        let readers = self.readers();
        let ends = |at: &usize| self.layers[*at].kind == LayerKind::Input || readers[*at].is_empty();
        let ends: u64 = (0..self.layers.len()).filter(ends).map(|at| self.layers[at].shape.elements()).sum();
        (ends + self.weights()) * self.element_bytes
    }

    /// Elements of all parameters.
    pub fn weights(&self) -> u64 {
        self.layers.iter().map(|l| l.weights).sum()
    }

    pub fn flop(&self) -> u64 {
        self.layers.iter().map(|l| l.flop).sum()
    }

    /// By kind of layer: its share of all flop and of all elements that are moved when every layer runs alone, the network's input not
    /// counted. (Deep Fusion, Table 1.)
    pub fn shares(&self) -> Vec<(LayerKind, f64, f64)> {
        let counted = |at: usize| {
            let given = |i: &&usize| self.layers[**i].kind == LayerKind::Input;
            self.alone(at) - self.layers[at].inputs.iter().filter(given).map(|i| self.layers[*i].shape.elements()).sum::<u64>()
        };
        let flop = self.flop() as f64;
        let moved = (0..self.layers.len()).map(counted).sum::<u64>() as f64;
        let mut kinds: Vec<LayerKind> =
            self.layers.iter().map(|l| l.kind).filter(|k| !matches!(k, LayerKind::Input | LayerKind::Concat)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let share = |kind: LayerKind| {
            let of: Vec<usize> = (0..self.layers.len()).filter(|at| self.layers[*at].kind == kind).collect();
            let part = of.iter().map(|at| self.layers[*at].flop).sum::<u64>() as f64 / flop;
            (kind, part, of.iter().map(|at| counted(*at)).sum::<u64>() as f64 / moved)
        };
        kinds.into_iter().map(share).collect()
    }

    /// The same network with its layers in a depth-first order from its results: a layer's inputs one after the other, from the first to
    /// the last or from the last to the first.
    pub fn depth_first(&self, from_last: bool) -> LayerGraph {
        let mut order: Vec<usize> = Vec::new();
        let mut place = vec![None; self.layers.len()];
        let readers = self.readers();
        for result in (0..self.layers.len()).filter(|at| readers[*at].is_empty()) {
            let mut open = vec![(result, 0)];
            while let Some((at, next)) = open.pop() {
                if place[at].is_some() {
                    continue;
                }
                let inputs = &self.layers[at].inputs;
                if next < inputs.len() {
                    open.push((at, next + 1));
                    open.push((inputs[if from_last { inputs.len() - 1 - next } else { next }], 0));
                } else {
                    place[at] = Some(order.len());
                    order.push(at);
                }
            }
        }
        let renumbered = |at: &usize| place[*at].unwrap_or(0);
        let layer = |at: &usize| Layer { inputs: self.layers[*at].inputs.iter().map(renumbered).collect(), ..self.layers[*at].clone() };
        LayerGraph { name: self.name.clone(), layers: order.iter().map(layer).collect(), element_bytes: self.element_bytes }
    }
}
