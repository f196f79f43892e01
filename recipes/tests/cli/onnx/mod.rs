//! Models in memory, written with the messages that an import reads.

use recipes::import::proto::{
    AttributeProto, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};

pub const FLOAT: i32 = 1;
pub const INT64: i32 = 7;

/// A node; its name is its first output's with `node_` before it.
pub fn node(operator: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<AttributeProto>) -> NodeProto {
    let words = |words: &[&str]| words.iter().map(|w| w.to_string()).collect();
    NodeProto {
        input: words(inputs),
        output: words(outputs),
        name: format!("node_{}", outputs[0]),
        op_type: operator.into(),
        attribute: attributes,
        ..NodeProto::default()
    }
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i, r#type: 2, ..AttributeProto::default() }
}

pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { name: name.into(), ints: ints.to_vec(), r#type: 7, ..AttributeProto::default() }
}

pub fn text_attribute(name: &str, s: &str) -> AttributeProto {
    AttributeProto { name: name.into(), s: s.into(), r#type: 3, ..AttributeProto::default() }
}

pub fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto { name: name.into(), dims: dims.to_vec(), data_type: FLOAT, float_data: values.to_vec(), ..TensorProto::default() }
}

pub fn wholes(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto { name: name.into(), dims: dims.to_vec(), data_type: INT64, int64_data: values.to_vec(), ..TensorProto::default() }
}

/// An input or output whose sizes are numbers or names.
pub fn value(name: &str, element: i32, sizes: &[&str]) -> ValueInfoProto {
    let dim =
        |size: &&str| Dimension { value: Some(size.parse().map_or_else(|_| DimensionValue::Name(size.to_string()), DimensionValue::Size)) };
    let shape = TensorShapeProto { dim: sizes.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: element, shape: Some(shape) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}

pub fn model(nodes: Vec<NodeProto>, weights: Vec<TensorProto>, inputs: Vec<ValueInfoProto>, outputs: Vec<ValueInfoProto>) -> ModelProto {
    let graph =
        GraphProto { node: nodes, name: "g".into(), initializer: weights, input: inputs, output: outputs, sparse_initializer: vec![] };
    ModelProto {
        ir_version: 10,
        producer_name: "a test".into(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 21 }],
        functions: vec![],
    }
}
