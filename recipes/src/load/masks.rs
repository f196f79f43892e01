//! Which elements of a tensor are neighbours to the mask of its dropout.
//!
//! One block of random numbers decides about eight neighbours. A kernel that computes all eight draws the block once; a kernel that
//! computes them in different places draws it for each, which takes ten rounds of multiplications for one bit. The next operation after a
//! dropout usually sums its result: a product along its inner dim, a normalization along its rows. Fast kernels write and read the
//! tensor along that dim, so neighbours run along it; if no operation sums the tensor, they run along the last dim. A mask depends on the
//! recipe alone, not on later rewrites of the program. Where a recipe names the stream, elements are numbered row by row, so that dropouts
//! of the same stream have the same mask in any recipe.

use super::header::Header;
use super::operators::GIVEN_STREAM;
use sdfg::{Expr, Op, Operation, Scalar};
use std::collections::HashMap;

/// Numbers the elements of every dropout so that neighbours run along the dim that is summed next.
pub fn settle(header: &Header, operations: &mut [Operation]) {
    for at in 0..operations.len() {
        let (before, after) = operations.split_at_mut(at + 1);
        let Some(operation) = before.last_mut() else { continue };
        let [out] = operation.outputs.as_slice() else { continue };
        let Op::Elementwise { code: Scalar::Binary(.., factor), .. } = &mut operation.op else { continue };
        let Scalar::Keep { element, stream, .. } = factor.as_mut() else { continue };
        if stream.starts_with(GIVEN_STREAM) {
            continue;
        }
        let indices: Vec<&str> = out.subscripts.iter().filter_map(Expr::as_sym).collect();
        let axes = indices.iter().map(|index| Some(*index)).collect();
        let summed = summed_next(&out.data, axes, after);
        let (others, last): (Vec<&str>, Vec<&str>) = indices.iter().partition(|index| summed.as_deref() != Some(**index));
        let size = |index: &str| header.dims.get(index).cloned().unwrap_or(Expr::Int(1));
        *element = others.into_iter().chain(last).fold(Expr::Int(0), |element, index| element * size(index) + Expr::sym(index));
    }
}

/// The dim that is summed next: the last index that the first summing operation sums, of the tensor or of an element-wise result of it.
/// `axes` are the names of its dims.
fn summed_next(data: &str, axes: Vec<Option<&str>>, after: &[Operation]) -> Option<String> {
    let mut followed = HashMap::from([(data, axes)]);
    for operation in after {
        let Some(out) = operation.outputs.first() else { continue };
        let written = |index: &str| out.subscripts.iter().position(|s| s.as_sym() == Some(index));
        for input in &operation.inputs {
            let Some(axes) = followed.get(input.data.as_str()) else { continue };
            let read = input.subscripts.iter().zip(axes).filter_map(|(subscript, axis)| Some((subscript.as_sym()?, (*axis)?)));
            let over = operation.op.over();
            let summed = |(index, _): &(&str, &str)| written(index).is_none() || over.iter().any(|o| o == index);
            if let Some((_, axis)) = read.clone().rfind(summed) {
                return Some(axis.to_string());
            }
            if matches!(operation.op, Op::Elementwise { .. }) {
                let name = |subscript: &Expr| read.clone().find(|(index, _)| subscript.as_sym() == Some(*index)).map(|(_, axis)| axis);
                let made = out.subscripts.iter().map(name).collect();
                followed.insert(&out.data, made);
                break;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::load::load_str;
    use sdfg::{Op, Scalar, Unit};

    /// How the elements of every mask of a recipe are numbered.
    fn numbered(steps: &[&str]) -> Vec<String> {
        let head = "model: m\ndims: {b: 2, j: 16, k: j, i: 32, u: 24}\ndtype: f32\ninputs:\n  x: [i, b, j]\n  s: [b, j, k]\n";
        let steps: String = steps.iter().map(|step| format!("  - \"{step}\"\n")).collect();
        let text = format!("{head}parameters:\n  w: [u, i]\n  g: [i]\nsteps:\n{steps}");
        let recipe = load_str("m.yaml", &text, &[]).unwrap_or_else(|e| panic!("{e}"));
        let mut found = Vec::new();
        for (_, _, unit) in recipe.program.units() {
            let Unit::Operation(operation) = unit else { continue };
            let Op::Elementwise { code, .. } = &operation.op else { continue };
            code.walk(&mut |s| {
                if let Scalar::Keep { element, .. } = s {
                    found.push(element.to_string());
                }
            });
        }
        found
    }

    #[test]
    fn elements_of_a_given_stream_are_numbered_as_they_stand_on_the_left() {
        let steps = ["d[j,b,i] = dropout(x[i,b,j], rate: 0.1, stream: 4)", "y[b,i] = g[i] * sum(d[j,b,i], over: j)"];
        assert_eq!(numbered(&steps), ["(j*B+b)*I+i"]);
    }

    #[test]
    fn neighbours_run_along_what_is_summed_next() {
        for (steps, numbers) in [
            // By a product, however it names the dim.
            (&["d[i,b,j] = dropout(x, rate: 0.1)", "y[u,b,j] = w[u,i] * d[i,b,j]"][..], "(b*J+j)*I+i"),
            (&["d[b,j,k] = dropout(s, rate: 0.1)", "y[i,b,k] = d[b,j,k] * x[i,b,j]"], "(b*J+k)*J+j"),
            (&["d[i,b,j] = dropout(x, rate: 0.1)", "y[b,k] = g[i] * d[i,b,k]"], "(b*J+j)*I+i"),
            // By a normalization of what it is added to.
            (&["r[i,b,j] = x[i,b,j] + dropout(x, rate: 0.1)", "y[i,b,j] = layernorm(r, over: i, eps: 1e-5)"], "(b*J+j)*I+i"),
            // Along the last of several, and along the last dim where that is summed or nothing is.
            (&["d[i,b,j] = dropout(x, rate: 0.1)", "y[j] = sum(d, over: [i, b])"], "(i*J+j)*B+b"),
            (&["d[b,j,k] = dropout(softmax(s, over: k), rate: 0.1)", "y[b,j,i] = d[b,j,k] * x[i,b,k]"], "(b*J+j)*J+k"),
            (&["d[i,b,j] = dropout(x, rate: 0.1)", "y[i,b,j] = relu(d)"], "(i*B+b)*J+j"),
        ] {
            assert_eq!(numbered(steps), [numbers], "{steps:?}");
        }
    }
}
