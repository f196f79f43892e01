//! Operations as nodes of a network: anchors, pointwise changes, and values of parameters alone, which are none.

use super::super::layers::{ImageShape, LayerKind, SlidingWindow};
use super::NoLayer;
use super::axes::{AffineSubscript, Indices};
use sdfg::{Combine, Container, Op, Operand, Operation, Sdfg, Unit};
use std::collections::BTreeMap;

/// What a node does to the value that it reads.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeRole {
    Anchor(LayerKind),
    /// An addition of parameters, of so many elements.
    Shift(u64),
    /// A multiplication by parameters, of so many elements.
    Factor(u64),
    Activation,
    /// A part of the layer that is read.
    Inside,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DerivedNode {
    pub name: String,
    pub role: NodeRole,
    pub inputs: Vec<usize>,
    pub shape: ImageShape,
    pub window: SlidingWindow,
    pub groups: usize,
    pub weights: u64,
    pub flop: u64,
    /// A factor that differs from place to place and not from channel to channel.
    pub per_place: bool,
    /// The end of a local response norm.
    pub closes: bool,
    pub result: bool,
}

/// All nodes of a program, in order.
pub struct Nodes<'a> {
    program: &'a Sdfg,
    pub nodes: Vec<DerivedNode>,
    /// By container: the node that makes it; containers of parameters alone have none.
    pub(super) made: BTreeMap<String, usize>,
    pub element_bytes: u64,
}

/// The axes of a container: which of its dims are channels, rows and columns.
fn axes(rank: usize, first: usize) -> Option<[Option<usize>; 3]> {
    Some(match (rank, first) {
        (4, 1) => [Some(1), Some(2), Some(3)],
        (3, 1) => [Some(1), Some(2), None],
        (3, _) => [Some(0), Some(1), Some(2)],
        (2, 1) => [Some(1), None, None],
        (2, _) => [Some(0), Some(1), None],
        (1, _) => [Some(0), None, None],
        _ => return None,
    })
}

impl<'a> Nodes<'a> {
    pub fn of(program: &'a Sdfg) -> Result<Nodes<'a>, NoLayer> {
        let mut found = Nodes { program, nodes: Vec::new(), made: BTreeMap::new(), element_bytes: 4 };
        let mut operations = Vec::new();
        for (_, _, unit) in program.units() {
            match unit {
                Unit::Operation(operation) => operations.push(operation),
                other => {
                    let why = "it is a map already; layers are derived before operators are expanded".into();
                    return Err(NoLayer { name: other.name().to_string(), why, origin: None });
                }
            }
        }
        // What the first contraction or reduction reads beside parameters is given.
        for container in program.containers.values().filter(|c| c.role == sdfg::Role::Input) {
            let shape = found.shape(container)?;
            found.element_bytes = container.dtype.bits().div_ceil(8).max(1);
            found.add(
                &container.name,
                DerivedNode {
                    role: NodeRole::Anchor(LayerKind::Input),
                    inputs: vec![],
                    ..DerivedNode::pointwise(&container.name, NodeRole::Inside, 0, shape)
                },
            );
        }
        for operation in &operations {
            found.operation(operation)?;
        }
        for container in program.containers.values().filter(|c| c.role == sdfg::Role::Output) {
            if let Some(node) = found.made.get(&container.name) {
                found.nodes[*node].result = true;
            }
        }
        Ok(found)
    }

    pub fn readers(&self) -> Vec<Vec<usize>> {
        let mut readers = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|i| readers[*i].push(at));
        }
        readers
    }

    pub(super) fn add(&mut self, container: &str, node: DerivedNode) {
        self.made.insert(container.to_string(), self.nodes.len());
        self.nodes.push(node);
    }

    fn shape(&self, container: &Container) -> Result<ImageShape, NoLayer> {
        let fault = |why: String| NoLayer { name: container.name.clone(), why, origin: container.origin.clone() };
        let sizes = self.program.shape_of(&container.name).map_err(|e| fault(e.to_string()))?;
        let first = sizes.first().copied().unwrap_or(1);
        if sizes.is_empty() {
            return Ok(ImageShape::new(1, 1, 1));
        }
        let Some(axes) = axes(sizes.len(), first) else {
            let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
            return Err(fault(format!(
                "it has the sizes {}; one image has channels, rows and columns, with a batch of 1 before",
                sizes.join("×")
            )));
        };
        let [channels, rows, columns] = axes.map(|axis| axis.map_or(1, |a| sizes[a]));
        Ok(ImageShape::new(channels, rows, columns))
    }

    /// The subscripts of an operand's channels, rows and columns.
    pub(super) fn subscripts(&self, operand: &Operand, indices: &Indices) -> Option<[AffineSubscript; 3]> {
        let sizes = self.program.shape_of(&operand.data).ok()?;
        let axes = axes(sizes.len(), sizes.first().copied().unwrap_or(1))?;
        let affine = |axis: Option<usize>| axis.map_or(Some(AffineSubscript::default()), |a| indices.affine(&operand.subscripts[a]));
        Some([affine(axes[0])?, affine(axes[1])?, affine(axes[2])?])
    }

    fn operation(&mut self, operation: &Operation) -> Result<(), NoLayer> {
        let fault = |why: &str| NoLayer { name: operation.name.clone(), why: why.to_string(), origin: operation.origin.clone() };
        let [out] = &operation.outputs[..] else { return Err(fault("it writes several tensors")) };
        let active: Vec<&Operand> = operation.inputs.iter().filter(|o| self.made.contains_key(&o.data)).collect();
        if active.is_empty() {
            return Ok(());
        }
        let container = self.program.containers.get(&out.data).ok_or_else(|| fault("its result is not declared"))?;
        let shape = self.shape(container)?;
        let indices = Indices::of(self.program, operation).ok_or_else(|| fault("its sizes have no values"))?;
        let own = self.subscripts(out, &indices).ok_or_else(|| fault("its result is subscripted by more than indices"))?;
        let own = own.map(|a| a.slopes.into_keys().next());
        match &operation.op {
            Op::Contraction { .. } => self.contraction(operation, &active, shape, &indices, &own).map_err(|why| fault(&why)),
            Op::Reduce { combine, .. } => self.reduction(operation, *combine, &active, shape, &indices, &own).map_err(|why| fault(&why)),
            Op::Softmax { .. } => {
                let input = self.made[&active[0].data];
                let node = DerivedNode {
                    role: NodeRole::Anchor(LayerKind::Softmax),
                    ..DerivedNode::pointwise(&out.data, NodeRole::Inside, input, shape)
                };
                self.add(&out.data, node);
                Ok(())
            }
            Op::Elementwise { code, .. } => self.elementwise(operation, code, &active, shape, &indices, &own).map_err(|why| fault(&why)),
            _ => Err(fault("the accelerator runs no such operator; it runs the forward pass of inference")),
        }
    }

    fn window(&self, reads: &[AffineSubscript; 3], indices: &Indices, own: &[Option<String>; 3]) -> Result<SlidingWindow, String> {
        let reach = |axis: usize| {
            let reach = indices.reach(&reads[axis], own[axis].as_deref());
            reach.ok_or_else(|| "its window runs backwards or begins inside the tensor".to_string())
        };
        Ok(SlidingWindow { rows: reach(1)?, columns: reach(2)? })
    }

    pub(super) fn elements(&self, operand: &Operand) -> u64 {
        self.program.elements(&operand.data).unwrap_or(0)
    }

    fn contraction(
        &mut self,
        operation: &Operation,
        active: &[&Operand],
        shape: ImageShape,
        indices: &Indices,
        own: &[Option<String>; 3],
    ) -> Result<(), String> {
        let [input] = active else { return Err("it multiplies two values of the network".into()) };
        let reads = self.subscripts(input, indices).ok_or("its input is subscripted by more than indices")?;
        let window = self.window(&reads, indices, own)?;
        let (node, out) = (self.made[&input.data], &operation.outputs[0].data);
        let weights = operation.inputs.iter().filter(|o| o.data != input.data).map(|o| self.elements(o)).sum();
        // Depthwise: the channel that is read is the channel that is written.
        let channels = self.nodes[node].shape.channels;
        let depthwise = own[0].is_some() && reads[0].slopes.len() == 1 && reads[0].slopes.keys().next() == own[0].as_ref();
        let dense = !depthwise && own[0].as_ref().is_none_or(|o| !reads[0].slopes.contains_key(o));
        if !depthwise && !dense {
            return Err("it has groups of several channels each; write depthwise or dense convolutions".into());
        }
        let whole = window.rows.kernel == self.nodes[node].shape.rows && window.columns.kernel == self.nodes[node].shape.columns;
        let kind = if shape.plane() == 1 && whole { LayerKind::FullyConnected } else { LayerKind::Convolution };
        let flop = operation.flop(self.program).eval(&self.program.sizes).ok().and_then(|f| u64::try_from(f).ok()).unwrap_or(0);
        let groups = if depthwise { channels } else { 1 };
        let anchor = DerivedNode {
            role: NodeRole::Anchor(kind),
            window,
            groups,
            weights,
            flop,
            ..DerivedNode::pointwise(out, NodeRole::Inside, node, shape)
        };
        self.add(out, anchor);
        Ok(())
    }

    fn reduction(
        &mut self,
        operation: &Operation,
        combine: Combine,
        active: &[&Operand],
        shape: ImageShape,
        indices: &Indices,
        own: &[Option<String>; 3],
    ) -> Result<(), String> {
        let first = active[0];
        if active.iter().any(|o| o.data != first.data) || !matches!(combine, Combine::Max | Combine::Sum | Combine::Min) {
            return Err("it reduces several values of the network at once".into());
        }
        let reads = self.subscripts(first, indices).ok_or("its input is subscripted by more than indices")?;
        let window = self.window(&reads, indices, own)?;
        let channelwise = reads[0].slopes.keys().eq(own[0].as_ref()) && reads[0].constant == 0;
        let kind = if channelwise { LayerKind::Pooling } else { LayerKind::LocalResponseNorm };
        if kind == LayerKind::LocalResponseNorm && (window != SlidingWindow::POINT || own[0].is_none()) {
            return Err("it reduces channels together with rows or columns".into());
        }
        let (input, out) = (self.made[&first.data], &operation.outputs[0].data);
        self.add(out, DerivedNode { role: NodeRole::Anchor(kind), window, ..DerivedNode::pointwise(out, NodeRole::Inside, input, shape) });
        Ok(())
    }

    /// The anchor of a kind that a node is a part of, unless the part is the last.
    pub(super) fn belongs_to(&self, mut node: usize, kind: LayerKind) -> Option<usize> {
        while self.nodes[node].role == NodeRole::Inside && !self.nodes[node].closes {
            node = *self.nodes[node].inputs.first()?;
        }
        (self.nodes[node].role == NodeRole::Anchor(kind)).then_some(node)
    }
}
