//! Steps of a plan: each anchor layer with the pointwise layers and the addition that run on its output while it is made.
//!
//! A pointwise layer that alone reads its input works in the place of that input. So it costs neither memory nor traffic beyond its
//! weights, and no plan gains by running it apart. A concatenation is no step: its readers read its parts.

use super::layers::{ImageShape, LayerGraph, LayerKind, SlidingWindow};
use super::shapes::Span;

/// What a step needs of its inputs' channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelDependence {
    /// Every output channel needs every input channel: convolutions and fully connected layers.
    Dense,
    /// An output channel needs the input channel of the same number: pooling, depthwise convolutions, pointwise layers.
    Channelwise,
    /// An output channel needs several input channels, and no weights: local response norms, softmax.
    AcrossChannels,
}

/// A value that a step makes or the network is given.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTensor {
    pub name: String,
    pub shape: ImageShape,
    pub producer: Option<usize>,
    /// The steps that read it, in order.
    pub readers: Vec<usize>,
    /// Whether it is a result of the network.
    pub result: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FusedStep {
    pub name: String,
    /// The layers that it runs, by number.
    pub layers: Vec<usize>,
    pub work: ChannelDependence,
    /// The tensors that it reads through its window, one after the other along channels.
    pub inputs: Vec<usize>,
    /// The tensors that are added to its output, each of the output's shape.
    pub sides: Vec<usize>,
    pub output: usize,
    pub window: SlidingWindow,
    /// Elements of the weights for the anchor: the same number for each pair of an output channel and an input channel that meet.
    pub filter: u64,
    /// Elements of further weights, those of biases, norms and scales: the same number for each output channel.
    pub rest: u64,
    pub flop: u64,
}

impl FusedStep {
    pub fn weights(&self) -> u64 {
        self.filter + self.rest
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FusedSteps {
    pub name: String,
    pub tensors: Vec<StepTensor>,
    pub steps: Vec<FusedStep>,
    pub element_bytes: u64,
}

impl FusedSteps {
    /// The steps of a network in the order of its layers, pointwise layers and additions in the steps before them.
    pub fn of(graph: &LayerGraph) -> FusedSteps {
        FusedSteps::new(graph, true)
    }

    /// A step for each layer.
    pub fn apart(graph: &LayerGraph) -> FusedSteps {
        FusedSteps::new(graph, false)
    }

    fn new(graph: &LayerGraph, joined: bool) -> FusedSteps {
        let readers = graph.readers();
        let mut made = FusedSteps { name: graph.name.clone(), tensors: vec![], steps: vec![], element_bytes: graph.element_bytes };
        // By layer: the tensors that hold its output, one after the other along channels.
        let mut held: Vec<Vec<usize>> = Vec::with_capacity(graph.layers.len());
        for (at, layer) in graph.layers.iter().enumerate() {
            let alone = |input: usize| readers[input].len() == 1 && graph.layers[input].kind != LayerKind::Input;
            // The step that makes a layer's output in one tensor that nothing else reads.
            let maker = |made: &FusedSteps, input: usize| match held[input][..] {
                [tensor] if joined && alone(input) => made.tensors[tensor].producer,
                _ => None,
            };
            let tensors = match layer.kind {
                LayerKind::Input => vec![made.tensor(layer.name.clone(), layer.shape, None)],
                LayerKind::Concat => layer.inputs.iter().flat_map(|i| held[*i].clone()).collect(),
                kind if kind.is_pointwise() && maker(&made, layer.inputs[0]).is_some() => {
                    let step = maker(&made, layer.inputs[0]).unwrap_or_default();
                    made.join(step, at, graph);
                    held[layer.inputs[0]].clone()
                }
                LayerKind::Add => {
                    let into = layer.inputs.iter().filter_map(|i| maker(&made, *i).map(|s| (s, *i))).max();
                    let sides: Option<Vec<usize>> = into.and_then(|(_, last)| {
                        let others = layer.inputs.iter().filter(|i| **i != last);
                        others.map(|i| if let [one] = held[*i][..] { Some(one) } else { None }).collect()
                    });
                    let fits = |step: usize, side: &usize| {
                        !made.steps[step].inputs.contains(side) && made.tensors[*side].producer.is_none_or(|p| p < step)
                    };
                    match (into, sides) {
                        (Some((step, last)), Some(sides)) if sides.iter().all(|s| fits(step, s)) => {
                            made.join(step, at, graph);
                            made.steps[step].sides.extend(sides);
                            held[last].clone()
                        }
                        _ => vec![made.sum(at, graph, &held)],
                    }
                }
                _ => vec![made.anchor(at, graph, &held)],
            };
            held.push(tensors);
        }
        for (at, _) in readers.iter().enumerate().filter(|(_, r)| r.is_empty()) {
            held[at].iter().for_each(|t| made.tensors[*t].result = true);
        }
        made.number();
        made
    }

    fn tensor(&mut self, name: String, shape: ImageShape, producer: Option<usize>) -> usize {
        self.tensors.push(StepTensor { name, shape, producer, readers: vec![], result: false });
        self.tensors.len() - 1
    }

    /// A step for a layer that no other step can run.
    fn anchor(&mut self, at: usize, graph: &LayerGraph, held: &[Vec<usize>]) -> usize {
        let layer = &graph.layers[at];
        let depthwise = layer.groups > 1 && layer.groups == layer.shape.channels;
        let work = match layer.kind {
            LayerKind::Convolution if depthwise => ChannelDependence::Channelwise,
            LayerKind::Convolution | LayerKind::FullyConnected => ChannelDependence::Dense,
            LayerKind::LocalResponseNorm | LayerKind::Softmax => ChannelDependence::AcrossChannels,
            _ => ChannelDependence::Channelwise,
        };
        let inputs: Vec<usize> = layer.inputs.iter().take(1).flat_map(|i| held[*i].clone()).collect();
        let channels = layer.shape.channels as u64;
        // What is left over after equal filters are biases.
        let each = match work {
            ChannelDependence::Dense => channels * inputs.iter().map(|t| self.tensors[*t].shape.channels as u64).sum::<u64>(),
            _ => channels,
        };
        // Grouped filters are spread evenly over all pairs of channels, whole elements for each output channel.
        let filter =
            if each > 0 && layer.weights >= each { layer.weights / each * each } else { layer.weights / channels.max(1) * channels };
        let output = self.tensor(layer.name.clone(), layer.shape, Some(self.steps.len()));
        self.steps.push(FusedStep {
            name: layer.name.clone(),
            layers: vec![at],
            work,
            inputs,
            sides: vec![],
            output,
            window: layer.window,
            filter,
            rest: (layer.weights - filter).next_multiple_of(channels.max(1)),
            flop: layer.flop,
        });
        output
    }

    /// A step for an addition that runs in no other step: the first operand is its input.
    fn sum(&mut self, at: usize, graph: &LayerGraph, held: &[Vec<usize>]) -> usize {
        let operands = &graph.layers[at].inputs;
        let sides = operands[1..].iter().map(|i| self.one_tensor(*i, graph, held)).collect();
        let sum = self.anchor(at, graph, held);
        let step = self.steps.len() - 1;
        self.steps[step].sides = sides;
        sum
    }

    /// Elements of all tensors and weights of a step.
    pub fn whole(&self, step: usize) -> u64 {
        let of = &self.steps[step];
        of.inputs.iter().chain(&of.sides).chain([&of.output]).map(|t| self.tensors[*t].shape.elements()).sum::<u64>() + of.weights()
    }

    /// The output of a layer as one tensor: a step puts the parts of a concatenation together.
    fn one_tensor(&mut self, at: usize, graph: &LayerGraph, held: &[Vec<usize>]) -> usize {
        if let [one] = held[at][..] {
            return one;
        }
        let layer = &graph.layers[at];
        let output = self.tensor(layer.name.clone(), layer.shape, Some(self.steps.len()));
        self.steps.push(FusedStep {
            name: layer.name.clone(),
            layers: vec![at],
            work: ChannelDependence::Channelwise,
            inputs: held[at].clone(),
            sides: vec![],
            output,
            window: SlidingWindow::POINT,
            filter: 0,
            rest: 0,
            flop: 0,
        });
        output
    }

    fn join(&mut self, step: usize, at: usize, graph: &LayerGraph) {
        let layer = &graph.layers[at];
        let step = &mut self.steps[step];
        step.layers.push(at);
        step.rest += layer.weights.next_multiple_of(layer.shape.channels.max(1) as u64);
        step.flop += layer.flop;
        let output = step.output;
        self.tensors[output].name = layer.name.clone();
    }

    /// Fills in who reads what.
    fn number(&mut self) {
        for (at, step) in self.steps.iter().enumerate() {
            for tensor in step.inputs.iter().chain(&step.sides) {
                self.tensors[*tensor].readers.push(at);
            }
        }
    }

    /// The tensors of a group of steps: those that come from outside, and those that are needed outside.
    pub fn boundary(&self, group: Span) -> (Vec<usize>, Vec<usize>) {
        let inside = |step: usize| group.begin <= step && step < group.end;
        let mut given: Vec<usize> = Vec::new();
        for step in &self.steps[group.begin..group.end] {
            for tensor in step.inputs.iter().chain(&step.sides) {
                if !self.tensors[*tensor].producer.is_some_and(inside) && !given.contains(tensor) {
                    given.push(*tensor);
                }
            }
        }
        let leaves = |t: &usize| self.tensors[*t].result || self.tensors[*t].readers.iter().any(|r| !inside(*r));
        let leaving = self.steps[group.begin..group.end].iter().map(|s| s.output).filter(leaves).collect();
        (given, leaving)
    }

    /// Elements that a group moves at least: all rows that are read from outside or needed outside, and its weights, once. Rows that
    /// strides leave out need not be made, and what only they read need not be loaded.
    pub fn floor(&self, group: Span) -> u64 {
        let (given, leaving) = self.boundary(group);
        let mut rows = vec![0; self.tensors.len()];
        let mut columns = vec![Span::default(); self.tensors.len()];
        for t in &leaving {
            rows[*t] = self.tensors[*t].shape.rows;
            columns[*t] = Span::new(0, self.tensors[*t].shape.columns);
        }
        for step in self.steps[group.begin..group.end].iter().rev() {
            let (made, all) = (rows[step.output], self.tensors[step.output].shape.rows);
            let reach = step.window.rows;
            for tensor in &step.inputs {
                let size = self.tensors[*tensor].shape.rows;
                // The windows of different rows begin at different rows. Padding takes some rows of windows away.
                let read = match (reach.kernel >= reach.stride, made == all) {
                    (true, true) => reach.deduce(Span::new(0, all), size).len(),
                    (true, false) => made.min(size),
                    (false, _) => (made * reach.kernel).min(size).saturating_sub(reach.pad),
                };
                rows[*tensor] = rows[*tensor].max(read);
                let across = step.window.columns.deduce(columns[step.output], self.tensors[*tensor].shape.columns);
                columns[*tensor] = columns[*tensor].hull(across);
            }
            for tensor in &step.sides {
                rows[*tensor] = rows[*tensor].max(made);
                columns[*tensor] = columns[*tensor].hull(columns[step.output]);
            }
        }
        let row = |t: &usize| (self.tensors[*t].shape.channels * columns[*t].len()) as u64;
        let read: u64 = given.iter().map(|t| rows[*t] as u64 * row(t)).sum();
        let made: u64 = leaving.iter().map(|t| self.tensors[*t].shape.elements()).sum();
        read + made + self.steps[group.begin..group.end].iter().map(FusedStep::weights).sum::<u64>()
    }
}
