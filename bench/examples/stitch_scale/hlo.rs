//! Reads unoptimised HLO text, as `jax.jit(f).lower(…).as_text(dialect="hlo")` prints it, as a graph of operators.
//!
//! Calls are inlined. Parameters, constants, tuples and views (broadcast, reshape, bitcast, iota) are no operators: what reads a broadcast
//! reads what was broadcast. Loops and branches are refused: unroll them.

use std::collections::HashMap;
use transforms::stitch::{AccessClass, GraphError, GraphOperator, GraphTensor, OperatorGraph};

#[derive(Debug, thiserror::Error)]
pub enum HloError {
    #[error("the text has no computation `{0}`")]
    NoComputation(String),
    #[error("line {line}: `{text}` is no instruction of the form `name = shape opcode(operands)`")]
    Instruction { line: usize, text: String },
    #[error("`{instruction}` reads `{operand}`, which is not defined before it")]
    Undefined { instruction: String, operand: String },
    #[error("`{instruction}` is a `{opcode}`: unroll loops and branches first")]
    Control { instruction: String, opcode: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
}

struct Instruction<'a> {
    name: &'a str,
    shape: &'a str,
    opcode: &'a str,
    operands: Vec<&'a str>,
    attributes: &'a str,
    is_root: bool,
}

/// What a name stands for.
#[derive(Clone)]
enum Value {
    /// A constant, or what follows from nothing: it moves no bytes.
    Constant,
    Tensor(u32),
    Tuple(Vec<(Value, String)>),
}

#[derive(Default)]
struct Reader<'a> {
    computations: HashMap<&'a str, Vec<Instruction<'a>>>,
    operators: Vec<GraphOperator>,
    tensors: Vec<GraphTensor>,
}

/// The graph of a module's entry computation.
pub fn read(text: &str) -> Result<OperatorGraph, HloError> {
    let mut reader = Reader::default();
    let mut entry = "";
    let mut current = "";
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("HloModule") || trimmed.is_empty() {
            continue;
        }
        if let Some(head) = trimmed.strip_suffix('{').filter(|head| !head.contains(" = ")) {
            let is_entry = head.starts_with("ENTRY");
            current = head.trim_start_matches("ENTRY").trim().trim_start_matches('%').split([' ', '(']).next().unwrap_or("");
            if is_entry {
                entry = current;
            }
            reader.computations.entry(current).or_default();
        } else if trimmed != "}" {
            let found =
                instruction(trimmed).ok_or_else(|| HloError::Instruction { line: number + 1, text: trimmed.chars().take(80).collect() })?;
            reader.computations.entry(current).or_default().push(found);
        }
    }
    let computations = std::mem::take(&mut reader.computations);
    let results = reader.inline(&computations, entry, None)?;
    reader.leave(&results);
    Ok(OperatorGraph::new(reader.operators, reader.tensors)?)
}

/// `ROOT name = shape opcode(operands), attributes`.
fn instruction(line: &str) -> Option<Instruction<'_>> {
    let (left, right) = line.split_once(" = ")?;
    let is_root = left.starts_with("ROOT ");
    let name = left.trim_start_matches("ROOT ").trim_start_matches('%');
    // A shape of a tuple holds spaces within parentheses.
    let mut depth = 0;
    let end = right.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        *c == ' ' && depth == 0
    })?;
    let (shape, rest) = right.split_at(end.0);
    let (opcode, rest) = rest.trim_start().split_once('(')?;
    let mut depth = 1;
    let close = rest.char_indices().find(|(_, c)| {
        depth += i32::from(matches!(c, '(' | '{')) - i32::from(matches!(c, ')' | '}'));
        depth == 0
    })?;
    let (inside, attributes) = rest.split_at(close.0);
    let operands = if matches!(opcode, "constant" | "parameter" | "iota") { vec![inside] } else { split(inside) };
    Some(Instruction { name, shape, opcode, operands, attributes: &attributes[1..], is_root })
}

fn split(operands: &str) -> Vec<&str> {
    operands.split(',').map(|o| o.trim().rsplit(' ').next().unwrap_or("").trim_start_matches('%')).filter(|o| !o.is_empty()).collect()
}

/// The value of `key=…` or `key={…}`.
fn attribute<'a>(attributes: &'a str, key: &str) -> Option<&'a str> {
    let rest = attributes.split_once(&format!("{key}="))?.1;
    match rest.strip_prefix('{') {
        Some(list) => list.split('}').next(),
        None => rest.split([',', ' ']).next().map(|name| name.trim_start_matches('%')),
    }
}

/// Sizes of `f32[100,256]{1,0}`, and bytes of an element.
fn extents(shape: &str) -> (Vec<u64>, u64) {
    let (dtype, rest) = shape.split_once('[').unwrap_or((shape, ""));
    let sizes = rest.split(']').next().unwrap_or("").split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let bytes = match dtype {
        "pred" | "s8" | "u8" => 1,
        "bf16" | "f16" | "s16" | "u16" => 2,
        "f64" | "s64" | "u64" | "c64" => 8,
        _ => 4,
    };
    (sizes, bytes)
}

fn bytes(shape: &str) -> u64 {
    let (sizes, element) = extents(shape);
    sizes.iter().product::<u64>() * element
}

impl<'a> Reader<'a> {
    fn tensor(&mut self, shape: &str) -> u32 {
        self.tensors.push(GraphTensor { bytes: bytes(shape), leaves: false });
        self.tensors.len() as u32 - 1
    }

    fn leave(&mut self, value: &Value) {
        match value {
            Value::Constant => {}
            Value::Tensor(tensor) => self.tensors[*tensor as usize].leaves = true,
            Value::Tuple(parts) => parts.iter().for_each(|(part, _)| self.leave(part)),
        }
    }

    /// Appends the operators of a computation: its result. `arguments` are `None` for the entry.
    fn inline(
        &mut self,
        all: &HashMap<&str, Vec<Instruction>>,
        name: &str,
        arguments: Option<&[(Value, String)]>,
    ) -> Result<Value, HloError> {
        let body = all.get(name).ok_or_else(|| HloError::NoComputation(name.to_string()))?;
        let mut values: HashMap<&str, (Value, String)> = HashMap::new();
        let mut result = Value::Constant;
        for found in body {
            let value = self.value(all, found, &values, arguments)?;
            if found.is_root {
                result = value.clone();
            }
            values.insert(found.name, (value, found.shape.to_string()));
        }
        Ok(result)
    }

    fn value(
        &mut self,
        all: &HashMap<&str, Vec<Instruction>>,
        found: &Instruction,
        values: &HashMap<&str, (Value, String)>,
        arguments: Option<&[(Value, String)]>,
    ) -> Result<Value, HloError> {
        let operand = |n: usize| -> Result<(Value, String), HloError> {
            let name = found.operands.get(n).copied().unwrap_or("");
            let undefined = || HloError::Undefined { instruction: found.name.to_string(), operand: name.to_string() };
            values.get(name).cloned().ok_or_else(undefined)
        };
        let operands = || (0..found.operands.len()).map(operand).collect::<Result<Vec<_>, _>>();
        Ok(match found.opcode {
            "parameter" => match arguments {
                Some(given) => {
                    found.operands[0].trim().parse().ok().and_then(|n: usize| given.get(n)).map_or(Value::Constant, |a| a.0.clone())
                }
                None => Value::Tensor(self.tensor(found.shape)),
            },
            "constant" | "iota" => Value::Constant,
            "broadcast" | "reshape" | "bitcast" | "optimization-barrier" => operand(0)?.0,
            "tuple" => Value::Tuple(operands()?),
            "get-tuple-element" => {
                let at: usize = attribute(found.attributes, "index").and_then(|n| n.parse().ok()).unwrap_or(0);
                match operand(0)?.0 {
                    Value::Tuple(parts) => parts.get(at).map_or(Value::Constant, |part| part.0.clone()),
                    other => other,
                }
            }
            "call" => {
                let given = operands()?;
                self.inline(all, attribute(found.attributes, "to_apply").unwrap_or(""), Some(&given))?
            }
            "while" | "conditional" => {
                return Err(HloError::Control { instruction: found.name.to_string(), opcode: found.opcode.to_string() });
            }
            _ => self.operator(all, found, &operands()?),
        })
    }

    fn operator(&mut self, all: &HashMap<&str, Vec<Instruction>>, found: &Instruction, operands: &[(Value, String)]) -> Value {
        let shapes: Vec<&str> =
            if found.shape.starts_with('(') { found.shape.trim_matches(['(', ')']).split(", ").collect() } else { vec![found.shape] };
        let written: u64 = shapes.iter().map(|shape| bytes(shape)).sum();
        let takes_part = matches!(found.opcode, "slice" | "dynamic-slice" | "gather");
        let mut reads: Vec<(u32, u64)> = Vec::new();
        for (n, (value, _)) in operands.iter().enumerate() {
            if let Value::Tensor(tensor) = value {
                let whole = self.tensors[*tensor as usize].bytes;
                let moved = if takes_part && n == 0 { whole.min(written) } else { whole };
                match reads.iter_mut().find(|(known, _)| known == tensor) {
                    Some((_, known)) => *known = (*known + moved).min(whole),
                    None => reads.push((*tensor, moved)),
                }
            }
        }
        let writes: Vec<(u32, u64)> = shapes.iter().map(|shape| (self.tensor(shape), bytes(shape))).collect();
        let from = operands.first().map_or("", |(_, shape)| shape.as_str());
        let (class, on_chip) = class(found, from);
        let combine =
            attribute(found.attributes, "to_apply").and_then(|name| all.get(name)?.iter().find(|i| i.is_root)).map_or("", |i| i.opcode);
        let plain = found.attributes.split("metadata=").next().unwrap_or("").split("to_apply=").next().unwrap_or("");
        let kind = format!(
            "{} {}({}){plain}{combine}",
            found.opcode,
            found.shape,
            operands.iter().map(|o| o.1.as_str()).collect::<Vec<_>>().join(",")
        );
        let results = writes.iter().map(|(tensor, _)| Value::Tensor(*tensor)).collect::<Vec<_>>();
        self.operators.push(GraphOperator { name: found.name.to_string(), class, kind, reads, writes, on_chip });
        match <[Value; 1]>::try_from(results) {
            Ok([single]) => single,
            Err(several) => Value::Tuple(several.into_iter().zip(shapes).map(|(value, shape)| (value, shape.to_string())).collect()),
        }
    }
}

/// The class of an instruction, and bytes that a block must have seen before a reader goes on. HLO has no names of dims: sums over the last
/// dims are of rows.
fn class(found: &Instruction, from: &str) -> (AccessClass, u64) {
    match found.opcode {
        "dot" => {
            let batched = attribute(found.attributes, "lhs_batch_dims").is_some_and(|dims| !dims.is_empty());
            (if batched { AccessClass::BatchedGemm } else { AccessClass::Gemm }, 0)
        }
        "reduce" => {
            let (sizes, element) = extents(from);
            let over: Vec<usize> =
                attribute(found.attributes, "dimensions").unwrap_or("").split(',').filter_map(|n| n.trim().parse().ok()).collect();
            let kept: Vec<usize> = (0..sizes.len()).filter(|n| !over.contains(n) && sizes[*n] > 1).collect();
            let summed: Vec<usize> = over.iter().copied().filter(|n| sizes.get(*n).is_some_and(|size| *size > 1)).collect();
            let whole = sizes.iter().product::<u64>() * element;
            match (kept.last(), summed.first()) {
                (_, None) => (AccessClass::Elementwise, 0),
                (None, _) => (AccessClass::ScalarReduction, whole),
                (Some(last), Some(first)) if last < first => {
                    (AccessClass::RowReduction, summed.iter().map(|n| sizes[*n]).product::<u64>() * element)
                }
                _ => (AccessClass::ColumnReduction, whole),
            }
        }
        "scatter" | "sort" | "custom-call" | "reduce-window" | "rng" | "rng-bit-generator" | "convolution" => (AccessClass::Opaque, 0),
        _ => (AccessClass::Elementwise, 0),
    }
}
