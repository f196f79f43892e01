//! Element-wise operations as nodes: channels put together, sums of values, and pointwise changes of one value.

use super::super::layers::{ImageShape, LayerKind};
use super::axes::Indices;
use super::nodes::{DerivedNode, NodeRole, Nodes};
use sdfg::{Binary, Operand, Operation, Scalar};

impl Nodes<'_> {
    pub(super) fn elementwise(
        &mut self,
        operation: &Operation,
        code: &Scalar,
        active: &[&Operand],
        shape: ImageShape,
        indices: &Indices,
        own: &[Option<String>; 3],
    ) -> Result<(), String> {
        let out = &operation.outputs[0].data;
        let mut offsets = Vec::new();
        for operand in active {
            let reads = self.subscripts(operand, indices).ok_or("an input is subscripted by more than indices")?;
            let plain = |axis: usize| reads[axis].slopes.iter().map(|(i, s)| (Some(i), *s)).eq(own[axis].iter().map(|i| (Some(i), 1)));
            let of = self.nodes[self.made[&operand.data]].shape;
            if (1..3).any(|axis| !plain(axis) || reads[axis].constant != 0) || !plain(0) {
                return Err(format!("it reads `{}` at other places than it writes", operand.data));
            }
            offsets.push((-reads[0].constant, self.made[&operand.data], of.channels as i64));
        }
        if offsets.iter().any(|(offset, ..)| *offset != 0) {
            offsets.sort_unstable();
            let mut next = 0;
            for (offset, _, channels) in &offsets {
                if *offset != next {
                    return Err("it puts channels together that overlap or leave some out".into());
                }
                next += channels;
            }
            if next != shape.channels as i64 || !matches!(code, Scalar::Select(..)) {
                return Err("it puts channels together that overlap or leave some out".into());
            }
            let inputs = offsets.iter().map(|(_, node, _)| *node).collect();
            self.add(
                out,
                DerivedNode {
                    role: NodeRole::Anchor(LayerKind::Concat),
                    inputs,
                    ..DerivedNode::pointwise(out, NodeRole::Inside, 0, shape)
                },
            );
            return Ok(());
        }
        let changes = Changes { nodes: self, operation };
        let (inputs, changes) = changes.of(code)?;
        let per_place = |connectors: &[String]| {
            connectors.iter().filter_map(|c| operation.input(c)).all(|o| {
                let channel = own[0].as_deref();
                !o.subscripts.iter().any(|s| s.symbols().iter().any(|name| Some(name.as_str()) == channel))
            })
        };
        let mut last = match inputs[..] {
            [one] => one,
            _ => {
                let sum = DerivedNode {
                    role: NodeRole::Anchor(LayerKind::Add),
                    inputs: inputs.clone(),
                    ..DerivedNode::pointwise(out, NodeRole::Inside, inputs[0], shape)
                };
                self.add(out, sum);
                self.nodes.len() - 1
            }
        };
        for change in &changes {
            let weights: u64 = change.parameters.iter().filter_map(|c| operation.input(c)).map(|o| self.elements(o)).sum();
            // Until its quotient, what follows a sum of squares over channels is a part of a local response norm.
            let inside = self.belongs_to(last, LayerKind::LocalResponseNorm).is_some();
            let role = match change.kind {
                _ if inside => NodeRole::Inside,
                // A sum of a window is divided by how many elements it has.
                Change::FACTOR if change.parameters.is_empty() && self.belongs_to(last, LayerKind::Pooling).is_some() => NodeRole::Inside,
                Change::SHIFT => NodeRole::Shift(weights),
                Change::FACTOR => NodeRole::Factor(weights),
                Change::CLOSE => NodeRole::Inside,
                _ => NodeRole::Activation,
            };
            let closes = change.kind == Change::CLOSE;
            let node = DerivedNode { per_place: per_place(&change.parameters), closes, ..DerivedNode::pointwise(out, role, last, shape) };
            self.add(out, node);
            last = self.nodes.len() - 1;
        }
        self.made.insert(out.clone(), last);
        Ok(())
    }
}

/// A pointwise change of a value, and the connectors of the parameters in it.
struct Change {
    kind: u8,
    parameters: Vec<String>,
}

impl Change {
    const SHIFT: u8 = 0;
    const FACTOR: u8 = 1;
    const ACTIVATION: u8 = 2;
    /// The product of a local response norm's input with its factor.
    const CLOSE: u8 = 3;
}

/// Scalar code as a sum of values and changes of it.
struct Changes<'a, 'b> {
    nodes: &'a Nodes<'b>,
    operation: &'a Operation,
}

impl Changes<'_, '_> {
    fn node(&self, connector: &str) -> Option<usize> {
        self.operation.input(connector).and_then(|o| self.nodes.made.get(&o.data)).copied()
    }

    /// Whether code reads values of the network.
    fn reads(&self, code: &Scalar) -> Vec<usize> {
        let mut found: Vec<usize> = code.inputs().iter().filter_map(|c| self.node(c)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn of(&self, code: &Scalar) -> Result<(Vec<usize>, Vec<Change>), String> {
        let changed = |inner: &Scalar, kind: u8, by: Option<&Scalar>| {
            let (inputs, mut changes) = self.of(inner)?;
            changes.push(Change { kind, parameters: by.map(|b| b.inputs().into_iter().collect()).unwrap_or_default() });
            Ok((inputs, changes))
        };
        match code {
            Scalar::Input(connector) => {
                let node = self.node(connector).ok_or_else(|| format!("`{connector}` is no value of the network"))?;
                Ok((vec![node], vec![]))
            }
            Scalar::Binary(Binary::Add | Binary::Sub, a, b) => match (self.reads(a).is_empty(), self.reads(b).is_empty()) {
                (false, true) => changed(a, Change::SHIFT, Some(b)),
                (true, false) => changed(b, Change::SHIFT, Some(a)),
                _ => {
                    let ((mut left, changes), (right, others)) = (self.of(a)?, self.of(b)?);
                    if !changes.is_empty() || !others.is_empty() {
                        return Err("it adds values that are changed in the same step; write steps of their own for the changes".into());
                    }
                    left.extend(right);
                    Ok((left, vec![]))
                }
            },
            Scalar::Binary(Binary::Mul | Binary::Div, a, b) => {
                let (left, right) = (self.reads(a), self.reads(b));
                match (left.is_empty(), right.is_empty()) {
                    (false, true) => changed(a, Change::FACTOR, Some(b)),
                    (true, false) => changed(b, Change::FACTOR, Some(a)),
                    _ if left == right => Ok((left, vec![Change { kind: Change::ACTIVATION, parameters: vec![] }])),
                    _ => self.product(&left, &right),
                }
            }
            other => {
                let inputs = self.reads(other);
                match inputs[..] {
                    // An activation of changed values is a change behind the others.
                    [_] => match other.operands().into_iter().find(|o| !self.reads(o).is_empty()) {
                        Some(inner) if other.operands().iter().filter(|o| !self.reads(o).is_empty()).count() == 1 => {
                            changed(inner, Change::ACTIVATION, None)
                        }
                        _ => Ok((inputs, vec![Change { kind: Change::ACTIVATION, parameters: vec![] }])),
                    },
                    _ => match other.operands()[..] {
                        [a, b] if self.reads(b).is_empty() => changed(a, Change::ACTIVATION, None),
                        [a, b] if self.reads(a).is_empty() => changed(b, Change::ACTIVATION, None),
                        [a] => changed(a, Change::ACTIVATION, None),
                        _ => Err("it combines several values of the network by more than a sum".into()),
                    },
                }
            }
        }
    }

    /// The product of two values is the end of a local response norm, or no layer.
    fn product(&self, left: &[usize], right: &[usize]) -> Result<(Vec<usize>, Vec<Change>), String> {
        let both: Vec<usize> = left.iter().chain(right).copied().collect();
        for node in &both {
            if let Some(norm) = self.nodes.belongs_to(*node, LayerKind::LocalResponseNorm)
                && both.iter().all(|n| n == node || self.nodes.nodes[norm].inputs == [*n])
            {
                return Ok((vec![*node], vec![Change { kind: Change::CLOSE, parameters: vec![] }]));
            }
        }
        Err("it multiplies two values of the network".into())
    }
}
