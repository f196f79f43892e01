//! How many values an index has.

use super::{Call, Operator};
use crate::load::parser::Ast;
use crate::load::value::StepValue;
use sdfg::Scalar;

pub const ALL: &[Operator] =
    &[Operator { name: "size", operands: (1, 1), options: &[], usage: "the name of one dim", binds: false, value: size }];

fn size(call: &mut Call) -> Option<StepValue> {
    let node = call.operands.first()?;
    let Ast::Word(dim) = &node.ast else { return None };
    match call.context.header().dims.get(dim) {
        Some(size) => Some(StepValue::Scalar(Scalar::Index(size.clone()))),
        None => {
            let problem = call.context.header().unknown_dim(dim);
            call.context.problems().add(node.place, problem);
            None
        }
    }
}
