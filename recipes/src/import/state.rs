//! The state of an import: what the recipe has so far, and the names under which values of the graph stand in it.

use super::constant::ConstantTensor;
use super::error::{ImportProblem, UnsupportedNode};
use super::proto::FunctionProto;
use super::recipe::{Declaration, Weight, Writer};
use super::value::{GraphValue, Known};
use super::view::DigitView;
use indexmap::{IndexMap, IndexSet};
use std::path::PathBuf;
use std::rc::Rc;

/// An import under way.
pub struct Import<'m> {
    pub folder: PathBuf,
    pub functions: &'m [FunctionProto],
    pub opset: i64,
    /// Sizes that `--set` gives, by their names in the model.
    pub sizes: &'m [(String, i64)],
    pub recipe: Writer,
    pub problems: Vec<ImportProblem>,
    /// Inputs and their names in the recipe.
    pub inputs: Vec<(String, String)>,
    /// Outputs of the graph, the names that the recipe has for them, and whether a step assigns them.
    pub(super) outputs: IndexMap<String, (String, bool)>,
    /// Constants that are parameters of the recipe.
    parameters: IndexMap<usize, DigitView>,
    constants: usize,
    pub(super) nodes: usize,
    pub(super) used_sizes: IndexSet<String>,
}

impl<'m> Import<'m> {
    pub fn new(folder: PathBuf, functions: &'m [FunctionProto], opset: i64, sizes: &'m [(String, i64)]) -> Import<'m> {
        Import {
            folder,
            functions,
            opset,
            sizes,
            recipe: Writer::default(),
            problems: vec![],
            inputs: vec![],
            outputs: IndexMap::new(),
            parameters: IndexMap::new(),
            constants: 0,
            nodes: 0,
            used_sizes: IndexSet::new(),
        }
    }

    /// A constant as a value.
    pub fn known(&mut self, name: &str, constant: ConstantTensor) -> GraphValue {
        self.constants += 1;
        GraphValue::Known(Rc::new(Known { name: name.to_string(), constant, id: self.constants }))
    }

    /// A known value as an operand of steps: a number where all elements are equal, and else a parameter without its axes of size 1.
    pub fn parameter(&mut self, known: &Known) -> Result<DigitView, UnsupportedNode> {
        let Known { name, constant, id } = known;
        if constant.elements() == 0 {
            return Err(UnsupportedNode::Empty);
        }
        if let Some(value) = constant.uniform() {
            return Ok(DigitView::number(value, constant.element, &constant.shape));
        }
        if let Some(view) = self.parameters.get(id) {
            return Ok(view.clone());
        }
        let name = self.recipe.unique(name);
        let shape: Vec<usize> = constant.shape.iter().copied().filter(|size| *size != 1).collect();
        let mut used = IndexMap::new();
        let dims = shape.iter().map(|size| self.recipe.index(&mut used, *size).name).collect();
        let given = Declaration { name: name.clone(), dims, dtype: constant.element.dtype(), range: None };
        self.recipe.weights.push(Weight { given, shape, values: constant.clone() });
        let digits = |size: &usize| if *size == 1 { vec![] } else { vec![*size] };
        let view = DigitView::of(name, constant.element, &constant.shape.iter().map(digits).collect::<Vec<_>>());
        self.parameters.insert(*id, view.clone());
        Ok(view)
    }

    /// The name that the recipe has for an output of the graph, for the one step that assigns it.
    pub fn output_name(&mut self, value: &str) -> Option<String> {
        let (name, assigned) = self.outputs.get_mut(value)?;
        if std::mem::replace(assigned, true) { None } else { Some(name.clone()) }
    }
}
