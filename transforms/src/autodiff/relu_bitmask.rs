//! A bit mask for ReLU: where backward needs only the sign of a rectifier's argument, forward saves one bit for each element.
//!
//! ```text
//! forward:   r = max(s, 0)                      r = max(s, 0);  r.positive = s > 0
//! backward:  d_s = r > 0 ? d_r : 0        →     d_s = r.positive > 0 ? d_r : 0
//! ```
//!
//! *Legal when* a backward element-wise operation reads `s` or `r` in conditions `> 0` alone, element by element.
//! *Moves less because* a bit is read in the place of a value.
//! *Not handled*: rectifiers followed by dropout: the dropped-out result tells sign and mask at once. Generated kernels read and write
//! whole bytes, so the pass is for libraries whose GEMMs write and read such bits. Both the rectifier and its gradient have to be fused
//! with a GEMM.

use crate::autodiff::relu_sign_from_output::{asks_sign, positive, rectifies, same_elements, step};
use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
use sdfg::{Container, Direction, Dtype, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// Suffix of the names of containers of bits.
pub const SUFFIX: &str = ".positive";

/// Lets backward read bits for signs, the result's name and [`SUFFIX`] being theirs.
#[derive(Clone, Debug, Default)]
pub struct ReluBitmask {
    /// Results of rectifiers that keep no bits.
    pub except: BTreeSet<String>,
}

impl Pass for ReluBitmask {
    fn name(&self) -> &'static str {
        "relu bitmask"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let operations: Vec<Operation> =
            program.units().into_iter().filter_map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None }).collect();
        let rectifiers: Vec<Rectifier> = operations.iter().filter_map(Rectifier::of).collect();
        let found: Vec<&Rectifier> = rectifiers.iter().filter(|r| !self.except.contains(&r.to.data)).collect();
        // The rectifier whose bit a backward operation can read in place of an operand.
        let asked = |reader: &Operation, operand: &Operand| -> Option<&Rectifier> {
            let about = |r: &&&Rectifier| [&r.from, &r.to].iter().any(|o| o.data == operand.data && same_elements(&o.subscripts, operand));
            let backward = reader.pass == Direction::Backward && asks_sign(reader, &operand.connector);
            found.iter().find(about).copied().filter(|_| backward)
        };
        let mut bits: BTreeMap<String, &Rectifier> = BTreeMap::new();
        let mut readers = Vec::new();
        for operation in &operations {
            let mut reader = operation.clone();
            for n in 0..reader.inputs.len() {
                let Some(rectifier) = asked(&reader, &reader.inputs[n]) else { continue };
                let name = format!("{}{SUFFIX}", rectifier.to.data);
                reader.inputs[n].data = name.clone();
                bits.insert(name, rectifier);
            }
            readers.push(reader);
        }
        if bits.is_empty() {
            let why = |r: &Rectifier| match self.except.contains(&r.to.data) {
                true => "bits are not wanted for it".to_string(),
                false => "no operation of backward asks only for the sign of its argument".to_string(),
            };
            let refused = rectifiers.iter().map(|r| (r.operation, why(r)));
            return Err(refused_at(self.name(), program, refused, "there is no rectifier"));
        }
        let (mut result, mut readers) = (program.clone(), readers.into_iter());
        for (name, rectifier) in &bits {
            if let Some(like) = program.containers.get(&rectifier.to.data) {
                result.add_container(Container { name: name.clone(), dtype: Dtype::Bit, role: Role::Transient, ..like.clone() });
            }
        }
        for (id, _) in program.states() {
            result.map_operations(id, |_, operation| {
                let made = bits.iter().filter(|(_, r)| r.operation.name == operation.name).map(|(name, r)| r.bit(name));
                let made: Vec<Operation> = made.collect();
                [readers.next().unwrap_or(operation)].into_iter().chain(made).collect()
            })?;
        }
        let names: Vec<String> = bits.values().map(|r| format!("`{}`", r.to.data)).collect();
        Ok(Rewritten::program(format!("bits for the signs of {}", names.join(", ")), result))
    }
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
        (rectifies(code, from) && operation.pass == Direction::Forward).then_some(Rectifier { operation, from, to })
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
