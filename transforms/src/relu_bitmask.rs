//! A bit mask for ReLU: where backward asks only whether the argument of a rectifier is positive, forward keeps the answer.
//!
//! ```text
//! forward:   r = max(s, 0)                      r = max(s, 0);  r.positive = s > 0
//! backward:  d_s = r > 0 ? d_r : 0        →     d_s = r.positive > 0 ? d_r : 0
//! ```
//!
//! *Legal when* a backward element-wise operation reads `s` or `r` in conditions `> 0` alone, element by element.
//! *Moves less because* a bit is read in the place of a value.
//! *Not handled*: rectifiers with a dropout behind: what is positive after it answers for both. Generated kernels read and write
//! whole bytes, so this is for libraries whose products write and read such bits: a rectifier and its gradient both have to end
//! up beside a product.

use crate::relu_sign_from_output::{asks_sign, positive, rectifies, same_elements, step};
use sdfg::{BuildError, Container, Dtype, Op, Operand, Operation, Pass, Role, Scalar, Sdfg, State, Unit};
use std::collections::BTreeMap;

/// What the names of containers of bits end with.
pub const SUFFIX: &str = ".positive";

/// A program of operators in which backward reads bits for signs, the result's name and [`SUFFIX`] being theirs; `None` if there
/// are none. `wanted` is asked about the result of each rectifier.
///
/// # Errors
/// Operations that do not fit the program.
pub fn signs(program: &Sdfg, wanted: &dyn Fn(&str) -> bool) -> Result<Option<Sdfg>, BuildError> {
    let mut result = program.clone();
    let operations: Vec<Operation> =
        program.units().into_iter().filter_map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None }).collect();
    let found: Vec<Rectifier> = operations.iter().filter_map(Rectifier::of).filter(|r| wanted(&r.to.data)).collect();
    // What a backward operation reads, and the rectifier that answers.
    let asked = |reader: &Operation, operand: &Operand| -> Option<&Rectifier> {
        let about = |r: &&Rectifier| [&r.from, &r.to].iter().any(|o| o.data == operand.data && same_elements(&o.subscripts, operand));
        found.iter().find(about).filter(|_| reader.pass == Pass::Backward && asks_sign(reader, &operand.connector))
    };
    let mut bits: BTreeMap<String, &Rectifier> = BTreeMap::new();
    let mut readers = Vec::new();
    for reader in &operations {
        let mut reader = reader.clone();
        for n in 0..reader.inputs.len() {
            let Some(rectifier) = asked(&reader, &reader.inputs[n]) else { continue };
            let name = format!("{}{SUFFIX}", rectifier.to.data);
            reader.inputs[n].data = name.clone();
            bits.insert(name, rectifier);
        }
        readers.push(reader);
    }
    if bits.is_empty() {
        return Ok(None);
    }
    for (name, rectifier) in &bits {
        if let Some(like) = program.containers.get(&rectifier.to.data) {
            result.add_container(Container { name: name.clone(), dtype: Dtype::Bit, role: Role::Transient, ..like.clone() });
        }
    }
    let mut readers = readers.into_iter();
    for (id, state) in program.states() {
        let count = state.units().iter().filter(|(_, unit)| matches!(unit, Unit::Operation(_))).count();
        if let Some(state) = result.state_mut(id) {
            *state = State::new(state.name.clone());
        }
        for operation in readers.by_ref().take(count) {
            result.insert_operation(id, &operation)?;
            let made = bits.iter().filter(|(_, r)| r.operation.name == operation.name);
            for bit in made.map(|(name, rectifier)| rectifier.bit(name)).collect::<Vec<_>>() {
                result.insert_operation(id, &bit)?;
            }
        }
    }
    Ok(Some(result))
}

/// A forward operation max(s, 0).
struct Rectifier<'a> {
    operation: &'a Operation,
    from: &'a Operand,
    to: &'a Operand,
}

impl<'a> Rectifier<'a> {
    fn of(operation: &'a Operation) -> Option<Self> {
        let (code, from, to) = step(operation, &operation.inputs.first()?.data)?;
        (rectifies(code, from) && operation.pass == Pass::Forward).then_some(Rectifier { operation, from, to })
    }

    /// The operation that keeps the answer.
    fn bit(&self, name: &str) -> Operation {
        Operation {
            name: name.into(),
            op: Op::Elementwise { label: "sign".into(), code: positive(&Scalar::input(&self.from.connector)) },
            outputs: vec![Operand { data: name.into(), ..self.to.clone() }],
            ..self.operation.clone()
        }
    }
}
