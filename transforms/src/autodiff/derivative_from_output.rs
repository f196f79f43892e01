//! Derivatives from results: where backward needs only the value of a function of a saved tensor, it reads the function's result instead of
//! computing it again.
//!
//! ```text
//! forward:   y = tanh(x)                      (y is read in backward anyway, or takes the place of x)
//! backward:  d_x = d_y · (1 − tanh(x)²)       (reads x)
//! becomes:   d_x = d_y · (1 − y²)             (reads y)
//! ```
//!
//! *Legal when* an operation of forward computes `y = f(x)` element by element, both are stored in f32 or f64, and readers of `x` in
//! backward use it in `f(x)` alone. The value that was stored is then the value that would be computed again; in bf16 or f16 it would be
//! rounded, and `1 − y²` of a rounded `y` near 1 is inexact. *Wanted where* nothing in backward reads `x` any more, so that it need not be
//! saved, and `y` is in memory in backward in any case: a contraction of backward reads it or the program hands it back. In programs with
//! loops over time everything that backward reads is saved; there `y` may also take the place of `x`. *Moves less because* `x` is neither
//! saved nor read; and no function is computed twice. *Not handled*: results that also depend on something else (`y = g · f(x)`); reads at
//! other times that have a value outside of the loop. *Source*: what deep-learning frameworks do by hand for tanh and sigmoid, whose
//! derivatives are functions of their results.

use sdfg::{Dtype, Op, Operand, Operation, Role, Scalar, Sdfg, Unary, library::Class};

/// A container that holds a function of another one, element by element.
struct Evaluation<'a> {
    argument: &'a str,
    function: Unary,
    data: &'a str,
}

/// The operations of backward, which read results of forward in the place of their arguments. `looped` says whether the program has loops
/// over time.
pub(crate) fn from_outputs(program: &Sdfg, forward: &[Operation], mut backward: Vec<Operation>, looped: bool) -> Vec<Operation> {
    for result in forward.iter().filter_map(|operation| result(program, operation)) {
        let reads = |o: &Operation, data: &str| o.inputs.iter().any(|i| i.data == data);
        let contracted = backward.iter().any(|o| o.class() == Class::Contraction && reads(o, result.data));
        let held = contracted || program.containers.get(result.data).is_some_and(|c| c.role != Role::Transient);
        let transient = program.containers.get(result.argument).is_some_and(|c| c.role == Role::Transient);
        if !transient || !(held || looped) {
            continue;
        }
        let readers: Vec<usize> = (0..backward.len()).filter(|n| reads(&backward[*n], result.argument)).collect();
        let rewritten: Option<Vec<Operation>> = readers.iter().map(|n| reading_result(&backward[*n], &result)).collect();
        for (n, operation) in readers.iter().zip(rewritten.into_iter().flatten()) {
            backward[*n] = operation;
        }
    }
    backward
}

/// What an operation of forward computes as a function of one container at equal elements.
fn result<'a>(program: &Sdfg, operation: &'a Operation) -> Option<Evaluation<'a>> {
    let (Op::Elementwise { code, .. }, [input], [output]) = (&operation.op, &operation.inputs[..], &operation.outputs[..]) else {
        return None;
    };
    let Scalar::Unary(function, argument) = code else { return None };
    let (from, to) = (program.containers.get(&input.data)?, program.containers.get(&output.data)?);
    let elements = input.subscripts == output.subscripts && input.fill.is_none() && from.dims == to.dims && from.dtype == to.dtype;
    let exact = matches!(to.dtype, Dtype::F32 | Dtype::F64);
    let plain = exact && **argument == Scalar::input(&input.connector) && output.subscripts.iter().all(|s| s.as_sym().is_some());
    (elements && plain).then_some(Evaluation { argument: &input.data, function: *function, data: &output.data })
}

/// The operation with a result of a function in the place of the function's argument; `None` where it uses the argument in another way.
fn reading_result(reader: &Operation, result: &Evaluation<'_>) -> Option<Operation> {
    let Op::Elementwise { code, .. } = &reader.op else { return None };
    let mut code = code.clone();
    let mut inputs: Vec<Operand> = Vec::new();
    for input in &reader.inputs {
        if input.data != result.argument {
            inputs.push(input.clone());
            continue;
        }
        if input.fill.is_some() {
            return None;
        }
        let computed = Scalar::unary(result.function, Scalar::input(&input.connector));
        // The connector stays the same: only its data changes.
        let value = Scalar::input(&input.connector);
        let mark = Scalar::input("\u{0}");
        let marked = code.rewrite(&mut |s| if s == computed { mark.clone() } else { s });
        if marked.inputs().contains(&input.connector) {
            return None;
        }
        code = marked.rewrite(&mut |s| if s == mark { value.clone() } else { s });
        inputs.push(Operand { data: result.data.to_string(), ..input.clone() });
    }
    let mut found = reader.clone();
    found.inputs = inputs;
    if let Op::Elementwise { code: own, .. } = &mut found.op {
        *own = code;
    }
    Some(found)
}
