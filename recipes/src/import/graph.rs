//! The walk over a graph's nodes, in their order: values that are known are computed, and all others become steps.

use super::constant::ConstantTensor;
use super::element::ElementType;
use super::error::{ImportProblem, UnsupportedNode};
use super::fold::fold;
use super::node::OnnxNode;
use super::operators;
use super::proto::{AttributeProto, DimensionValue, FunctionProto, GraphProto, NodeProto, ValueInfoProto};
use super::recipe::Declaration;
use super::state::Import;
use super::step::Out;
use super::value::{GraphValue, GraphValues};
use super::view::DigitView;
use indexmap::{IndexMap, IndexSet};
use sdfg::{Bindings, Expr};

/// Graphs within graphs, and functions within functions.
const DEEP: usize = 16;
impl Import<'_> {
    /// Writes the whole graph; the names of the recipe's outputs.
    pub fn run(&mut self, graph: &GraphProto) -> Vec<String> {
        let mut scope = GraphValues::new();
        for tensor in &graph.initializer {
            match ConstantTensor::read(tensor, &self.folder) {
                Ok(constant) => {
                    let known = self.known(&tensor.name, constant);
                    scope.insert(tensor.name.clone(), known);
                }
                Err(why) => self.problems.push(ImportProblem::Tensor { name: tensor.name.clone(), why }),
            }
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or_else(String::new, |values| values.name.clone());
            self.problems.push(ImportProblem::Tensor { name, why: "sparse tensors are not read; store it as a dense initializer".into() });
        }
        let inputs: Vec<&ValueInfoProto> = graph.input.iter().filter(|input| !scope.contains_key(&input.name)).collect();
        let shapes: Vec<Option<(ElementType, Vec<usize>)>> = inputs.iter().map(|input| self.declared(input)).collect();
        self.unknown_sizes();
        for (input, declared) in inputs.iter().zip(shapes) {
            let value = match declared {
                // What has no elements is known.
                Some((element, shape)) if shape.contains(&0) => self.known(&input.name, ConstantTensor::of(element, shape, vec![])),
                Some((element, shape)) => GraphValue::View(self.input(&input.name, element, &shape)),
                None => GraphValue::Refused,
            };
            scope.insert(input.name.clone(), value);
        }
        for output in &graph.output {
            let name = self.recipe.unique(&output.name);
            self.outputs.insert(output.name.clone(), (name, false));
        }
        let wanted: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
        self.walk(&graph.node, &wanted, &mut scope, false, 0);
        for problem in &mut self.problems {
            if let ImportProblem::Node { why: UnsupportedNode::Unknown { value, inputs }, .. } = problem {
                *inputs = depends(&graph.node, value).into_iter().filter(|name| self.inputs.iter().any(|(n, _)| n == name)).collect();
            }
        }
        graph.output.iter().map(|output| self.finish(&output.name, &scope)).collect()
    }

    /// The element type and sizes of an input; what is missing is reported.
    fn declared(&mut self, input: &ValueInfoProto) -> Option<(ElementType, Vec<usize>)> {
        let fault = |why: String| ImportProblem::Tensor { name: input.name.clone(), why };
        let Some(tensor) = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()) else {
            self.problems.push(fault("sequences, maps and optional values are not supported; give the tensor itself".into()));
            return None;
        };
        let element = ElementType::of(tensor.elem_type.into());
        let element = element.map_err(|name| self.problems.push(fault(format!("it is of type {name}, which recipes do not have")))).ok()?;
        let Some(shape) = &tensor.shape else {
            self.problems
                .push(fault("the model does not say how many axes it has; run onnx.shape_inference or export it with shapes".into()));
            return None;
        };
        let mut sizes = Some(vec![]);
        for (axis, dim) in shape.dim.iter().enumerate() {
            let name = match &dim.value {
                Some(DimensionValue::Size(size)) if *size >= 0 => {
                    sizes.iter_mut().for_each(|sizes| sizes.push(*size as usize));
                    continue;
                }
                Some(DimensionValue::Size(size)) => {
                    self.problems.push(fault(format!("its axis {axis} has the size {size}")));
                    sizes = None;
                    continue;
                }
                Some(DimensionValue::Name(name)) if !name.is_empty() => name.clone(),
                _ => format!("{}.{axis}", input.name),
            };
            match self.size(&name) {
                Some(size) => {
                    self.recipe.name_size(size, &name);
                    sizes.iter_mut().for_each(|sizes| sizes.push(size));
                }
                None => {
                    let open = ImportProblem::Open { input: input.name.clone(), size: name };
                    if !self.problems.contains(&open) {
                        self.problems.push(open);
                    }
                    sizes = None;
                }
            }
        }
        Some((element, sizes?))
    }

    /// The size that `--set` gives a name of the model, or an expression of such names.
    fn size(&mut self, name: &str) -> Option<usize> {
        self.used_sizes.insert(name.to_string());
        let given = self.sizes.iter().rev().find(|(n, _)| n == name).map(|(_, size)| *size);
        let computed = || {
            let expression: Expr = name.parse().ok()?;
            let bindings: Bindings = self.sizes.iter().cloned().collect();
            let value = expression.eval(&bindings).ok()?;
            Some((value, expression.symbols()))
        };
        let size = match given {
            Some(size) => Some(size),
            None => computed().map(|(value, symbols)| {
                self.used_sizes.extend(symbols);
                value
            }),
        };
        size.filter(|size| *size > 0).and_then(|size| usize::try_from(size).ok())
    }

    /// Reports sizes that `--set` gives and the model lacks.
    fn unknown_sizes(&mut self) {
        let known: Vec<String> = self.used_sizes.iter().map(|name| format!("`{name}`")).collect();
        let has = if known.is_empty() { "none that is open".to_string() } else { known.join(", ") };
        for (size, _) in self.sizes.iter().filter(|(name, _)| !self.used_sizes.contains(name)) {
            self.problems.push(ImportProblem::NoSuchSize { size: size.clone(), has: has.clone() });
        }
    }

    fn input(&mut self, of_model: &str, element: ElementType, shape: &[usize]) -> DigitView {
        let name = self.recipe.unique(of_model);
        self.inputs.push((of_model.to_string(), name.clone()));
        let mut used = IndexMap::new();
        shape.iter().for_each(|size| self.recipe.free(*size));
        let dims = shape.iter().map(|size| self.recipe.index(&mut used, *size).name).collect();
        let range = (element == ElementType::Bool).then(|| "[0, 1]".to_string());
        self.recipe.inputs.push(Declaration { name: name.clone(), dims, dtype: element.dtype(), range });
        DigitView::of(name, element, &shape.iter().map(|size| vec![*size]).collect::<Vec<_>>())
    }

    /// Makes sure that a step assigns an output; its name in the recipe.
    fn finish(&mut self, output: &str, scope: &GraphValues) -> String {
        let name = self.outputs[output].0.clone();
        let fault = |why: String| ImportProblem::Output { name: output.to_string(), why };
        let view = match scope.get(output) {
            Some(GraphValue::View(view)) => Ok(view.clone()),
            Some(GraphValue::Known(known)) => self.parameter(&known.clone()),
            Some(GraphValue::Refused) => return name,
            Some(GraphValue::Absent) | None => {
                self.problems.push(fault("no node makes it".into()));
                return name;
            }
        };
        let view = match view {
            Ok(view) => view,
            Err(why) => {
                self.problems.push(fault(why.to_string()));
                return name;
            }
        };
        if view.plain() == Some(&name) {
            return name;
        }
        if self.outputs[output].1 {
            self.problems.push(fault("its step was assigned twice, which is a fault of the import; please report it".into()));
            return name;
        }
        let proto = NodeProto { output: vec![output.to_string()], op_type: "output".into(), ..NodeProto::default() };
        let mut node = OnnxNode::new(self, &proto, vec![], format!("output {output}"), scope);
        if let Err(why) = node.copied_as(Out::Result(0), &view) {
            self.problems.push(fault(why.to_string()));
        }
        name
    }

    /// Writes nodes whose results are wanted, and adds these to `scope`.
    pub fn walk(&mut self, nodes: &[NodeProto], wanted: &[&str], scope: &mut GraphValues, inner: bool, depth: usize) {
        let needed = needed(nodes, wanted);
        for (proto, needed) in nodes.iter().zip(needed) {
            self.nodes += 1;
            if !needed {
                continue;
            }
            let outcome = self.node(proto, scope, inner, depth);
            let values = outcome.unwrap_or_else(|why| {
                if why != UnsupportedNode::Earlier {
                    let node = if proto.name.is_empty() { format!("number {}", self.nodes) } else { format!("`{}`", proto.name) };
                    self.problems.push(ImportProblem::Node { node, operator: titled(proto), why });
                }
                vec![GraphValue::Refused; proto.output.len()]
            });
            for (name, value) in proto.output.iter().zip(values).filter(|(name, _)| !name.is_empty()) {
                scope.insert(name.clone(), value);
            }
        }
    }

    fn node(&mut self, proto: &NodeProto, scope: &GraphValues, inner: bool, depth: usize) -> Result<Vec<GraphValue>, UnsupportedNode> {
        let value = |name: &String| match scope.get(name) {
            Some(value) => Ok(value.clone()),
            None if name.is_empty() => Ok(GraphValue::Absent),
            None => UnsupportedNode::form(format!("its input `{name}` is made by no node above it")),
        };
        let inputs: Vec<GraphValue> = proto.input.iter().map(value).collect::<Result<_, _>>()?;
        if inputs.iter().any(|value| matches!(value, GraphValue::Refused)) {
            return Err(UnsupportedNode::Earlier);
        }
        if depth > DEEP {
            return UnsupportedNode::form(format!("graphs and functions are nested more than {DEEP} deep"));
        }
        let called = |f: &&FunctionProto| f.name == proto.op_type && f.domain == proto.domain && f.overload == proto.overload;
        let functions: &[FunctionProto] = self.functions;
        if let Some(function) = functions.iter().find(called) {
            return self.function(function, proto, &inputs, depth);
        }
        if !matches!(proto.domain.as_str(), "" | "ai.onnx" | "ai.onnx.preview.training") {
            return UnsupportedNode::form(format!(
                "operators of `{}` are not supported, and the model has no function for it",
                proto.domain
            ));
        }
        if let Some(why) = operators::changed(&proto.op_type, self.opset) {
            return Err(why);
        }
        if let Some(results) = fold(proto, &inputs)? {
            let named = proto.output.iter().zip(results).map(|(name, constant)| self.known(name, constant));
            return Ok(named.collect());
        }
        let operator = operators::find(&proto.op_type).ok_or(UnsupportedNode::Operator)?;
        let comment = if proto.name.is_empty() { proto.op_type.clone() } else { format!("{} {}", proto.op_type, proto.name) };
        let mut node = OnnxNode::new(self, proto, inputs, comment, scope);
        node.inner = inner;
        node.depth = depth;
        let values = operator(&mut node)?;
        let empty = |value: &GraphValue| matches!(value, GraphValue::View(view) if view.axes.iter().any(|axis| axis.size == 0));
        if values.iter().any(empty) { Err(UnsupportedNode::Empty) } else { Ok(values) }
    }

    /// The nodes of a function in the place of a call.
    fn function(
        &mut self,
        function: &FunctionProto,
        call: &NodeProto,
        inputs: &[GraphValue],
        depth: usize,
    ) -> Result<Vec<GraphValue>, UnsupportedNode> {
        let given = inputs.iter().cloned().chain(std::iter::repeat(GraphValue::Absent));
        let mut scope: GraphValues = function.input.iter().cloned().zip(given).collect();
        let mut nodes = function.node.clone();
        for node in &mut nodes {
            for name in &mut node.input {
                // An input that the call leaves out is left out inside as well.
                if matches!(scope.get(name), Some(GraphValue::Absent)) {
                    name.clear();
                }
            }
            let attribute = |own: &AttributeProto| {
                if own.ref_attr_name.is_empty() {
                    return Some(own.clone());
                }
                let by_name = |a: &&AttributeProto| a.name == own.ref_attr_name;
                let meant = call.attribute.iter().find(by_name).or_else(|| function.attribute_proto.iter().find(by_name));
                meant.map(|meant| AttributeProto { name: own.name.clone(), ..meant.clone() })
            };
            node.attribute = node.attribute.iter().filter_map(attribute).collect();
        }
        let wanted: Vec<&str> = function.output.iter().map(String::as_str).collect();
        self.walk(&nodes, &wanted, &mut scope, true, depth + 1);
        Ok(function.output.iter().map(|name| scope.get(name).cloned().unwrap_or(GraphValue::Absent)).collect())
    }

    /// The results of a graph within the graph, whose inputs have these values.
    pub fn body(
        &mut self,
        graph: &GraphProto,
        inputs: Vec<GraphValue>,
        around: &GraphValues,
        depth: usize,
    ) -> Result<Vec<GraphValue>, UnsupportedNode> {
        let mut scope = around.clone();
        for tensor in &graph.initializer {
            let constant =
                ConstantTensor::read(tensor, &self.folder).map_err(|why| UnsupportedNode::Form(format!("`{}`: {why}", tensor.name)))?;
            let known = self.known(&tensor.name, constant);
            scope.insert(tensor.name.clone(), known);
        }
        scope.extend(graph.input.iter().map(|input| input.name.clone()).zip(inputs));
        let wanted: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
        self.walk(&graph.node, &wanted, &mut scope, true, depth + 1);
        let made = |name: &str| scope.get(name).cloned().ok_or_else(|| UnsupportedNode::Form(format!("no node makes its result `{name}`")));
        wanted.into_iter().map(made).collect()
    }
}

/// The name of a node's operator, with its domain where it has one.
fn titled(proto: &NodeProto) -> String {
    if proto.domain.is_empty() { proto.op_type.clone() } else { format!("{}.{}", proto.domain, proto.op_type) }
}

/// Which nodes some wanted value needs.
fn needed(nodes: &[NodeProto], wanted: &[&str]) -> Vec<bool> {
    let mut names: IndexSet<String> = wanted.iter().map(|name| name.to_string()).collect();
    let mut found = vec![false; nodes.len()];
    for (node, found) in nodes.iter().zip(&mut found).rev() {
        if node.output.iter().any(|name| !name.is_empty() && names.contains(name)) {
            *found = true;
            reads(node, &mut names);
        }
    }
    found
}

/// The values that a value is computed from, but for their shapes, which are known.
fn depends(nodes: &[NodeProto], value: &str) -> IndexSet<String> {
    let mut names = IndexSet::from([value.to_string()]);
    for node in nodes.iter().rev() {
        if !matches!(node.op_type.as_str(), "Shape" | "Size") && node.output.iter().any(|name| names.contains(name)) {
            reads(node, &mut names);
        }
    }
    names
}

/// The names that a node and the graphs within it read.
fn reads(node: &NodeProto, names: &mut IndexSet<String>) {
    names.extend(node.input.iter().cloned());
    for graph in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
        names.extend(graph.output.iter().map(|output| output.name.clone()));
        graph.node.iter().for_each(|node| reads(node, names));
    }
}
