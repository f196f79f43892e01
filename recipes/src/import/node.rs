//! One node while it is written: its inputs, attributes and results.

use super::attribute::{attribute, axis, float, int, ints, string};
use super::constant::ConstantTensor;
use super::element::ElementType;
use super::error::UnsupportedNode;
use super::proto::{GraphProto, NodeProto};
use super::state::Import;
use super::value::{GraphValue, GraphValues};
use super::view::DigitView;
use indexmap::IndexMap;

pub struct OnnxNode<'n, 'm> {
    pub import: &'n mut Import<'m>,
    pub proto: &'n NodeProto,
    pub inputs: Vec<GraphValue>,
    /// What stands above the node's steps.
    pub comment: String,
    /// How many indices of each size the step under way has.
    pub used: IndexMap<usize, usize>,
    /// Whether the node is part of a graph within the graph, whose outputs are none of the model's.
    pub inner: bool,
    pub scope: &'n GraphValues,
    pub depth: usize,
}

/// Writes a node's steps; its results.
pub type OperatorWriter = fn(&mut OnnxNode) -> Result<Vec<GraphValue>, UnsupportedNode>;

impl<'n, 'm> OnnxNode<'n, 'm> {
    pub fn new(
        import: &'n mut Import<'m>,
        proto: &'n NodeProto,
        inputs: Vec<GraphValue>,
        comment: String,
        scope: &'n GraphValues,
    ) -> OnnxNode<'n, 'm> {
        OnnxNode { import, proto, inputs, comment, used: IndexMap::new(), inner: false, scope, depth: 0 }
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        int(self.proto, name).unwrap_or(default)
    }

    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        ints(self.proto, name).map(<[i64]>::to_vec)
    }

    pub fn string(&self, name: &str, default: &'n str) -> &'n str {
        string(self.proto, name).unwrap_or(default)
    }

    /// A real attribute as a step writes it: as short as f32 allows.
    pub fn float(&self, name: &str, default: f32) -> f64 {
        let value = float(self.proto, name).unwrap_or(default);
        format!("{value:?}").parse().unwrap_or(f64::from(value))
    }

    pub fn graph(&self, name: &str) -> Option<&'n GraphProto> {
        attribute(self.proto, name).and_then(|a| a.g.as_ref())
    }

    /// Whether an optional input is given.
    pub fn given(&self, n: usize) -> bool {
        !matches!(self.inputs.get(n), None | Some(GraphValue::Absent))
    }

    /// Whether a result is asked for.
    pub fn wanted(&self, n: usize) -> bool {
        self.proto.output.get(n).is_some_and(|name| !name.is_empty())
    }

    /// An input as an operand.
    ///
    /// # Errors
    /// An input that is left out.
    pub fn view(&mut self, n: usize) -> Result<DigitView, UnsupportedNode> {
        match self.inputs.get(n) {
            Some(GraphValue::View(view)) => Ok(view.clone()),
            Some(GraphValue::Known(known)) => {
                let known = known.clone();
                self.import.parameter(&known)
            }
            Some(GraphValue::Refused) => Err(UnsupportedNode::Earlier),
            Some(GraphValue::Absent) | None => UnsupportedNode::form(format!("its input number {} is left out", n + 1)),
        }
    }

    pub fn optional(&mut self, n: usize) -> Result<Option<DigitView>, UnsupportedNode> {
        if self.given(n) { self.view(n).map(Some) } else { Ok(None) }
    }

    /// An input whose elements are known.
    pub fn constant(&self, n: usize) -> Option<&ConstantTensor> {
        match self.inputs.get(n) {
            Some(GraphValue::Known(known)) => Some(&known.constant),
            _ => None,
        }
    }

    /// The whole numbers of an input that says shapes, axes or places; `None` where it is left out.
    ///
    /// # Errors
    /// Numbers that the model does not know.
    pub fn numbers(&self, n: usize) -> Result<Option<Vec<i64>>, UnsupportedNode> {
        match self.inputs.get(n) {
            None | Some(GraphValue::Absent) => Ok(None),
            Some(GraphValue::Known(known)) => Ok(Some(known.constant.wholes())),
            _ => Err(self.unknown(n)),
        }
    }

    /// A value without elements, which is known.
    pub fn empty(&mut self, element: ElementType, shape: Vec<usize>) -> GraphValue {
        let name = self.proto.output.first().cloned().unwrap_or_default();
        self.import.known(&name, ConstantTensor::of(element, shape, vec![]))
    }

    pub fn unknown(&self, n: usize) -> UnsupportedNode {
        UnsupportedNode::Unknown { value: self.proto.input.get(n).cloned().unwrap_or_default(), inputs: vec![] }
    }

    /// Axes of an attribute or, since it became one, of an input; `None` where neither is given.
    pub fn axes(&self, input: usize, rank: usize) -> Result<Option<Vec<usize>>, UnsupportedNode> {
        let given = match self.numbers(input)? {
            Some(numbers) => Some(numbers),
            None => self.ints("axes"),
        };
        given.map(|axes| axes.into_iter().map(|a| axis(a, rank)).collect()).transpose()
    }

    /// The element type that an attribute names.
    pub fn element(&self, name: &str, default: ElementType) -> Result<ElementType, UnsupportedNode> {
        match int(self.proto, name) {
            None => Ok(default),
            Some(number) => ElementType::of(number).or_else(|name| UnsupportedNode::form(format!("recipes have no type {name}"))),
        }
    }
}
