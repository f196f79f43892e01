//! Whether a program draws the same dropout masks as a recipe.

use super::operators::operators;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use sdfg::{Op, Scalar, Sdfg, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// Whether a plan's program draws the masks of a recipe. A recipe that changed since the plan was made may number mask elements
/// differently.
///
/// # Errors
/// A recipe that cannot be differentiated.
pub fn draws_alike(recipe: &Recipe, plan: &Sdfg) -> Result<bool, PipelineError> {
    let (program, _) = operators(recipe)?;
    let (here, there) = (masks(&program), masks(plan));
    Ok(there.iter().all(|(stream, steps)| here.get(stream).is_none_or(|known| steps.is_subset(known))))
}

/// By random stream: the strides along each index in the numbering of mask elements, in ascending order, because programs name indices
/// differently.
fn masks(program: &Sdfg) -> BTreeMap<String, BTreeSet<Vec<i64>>> {
    let mut found: BTreeMap<String, BTreeSet<Vec<i64>>> = BTreeMap::new();
    let mut of = |code: &Scalar| {
        code.walk(&mut |s| {
            let Scalar::Keep { stream, element, .. } = s else { return };
            let indices: Vec<String> = element.symbols().into_iter().filter(|name| !program.sizes.contains_key(name)).collect();
            let number = |unit: Option<&String>| {
                let mut all = program.sizes.clone();
                all.extend(indices.iter().map(|index| (index.clone(), i64::from(Some(index) == unit))));
                element.eval(&all).unwrap_or(0)
            };
            let mut steps: Vec<i64> = indices.iter().map(|index| number(Some(index)) - number(None)).collect();
            steps.sort_unstable();
            found.entry(stream.clone()).or_default().insert(steps);
        });
    };
    for (_, _, unit) in program.units() {
        match &unit {
            Unit::Operation(operation) => {
                if let Op::Elementwise { code, .. } | Op::Reduce { code, .. } = &operation.op {
                    of(code);
                }
            }
            Unit::Scope(scope) => {
                scope.computations().iter().flat_map(|(_, computation)| &computation.tasklet.code).for_each(|(_, code)| of(code));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::load_str;
    use crate::pipeline::variants::programs::programs;

    /// All programs of a recipe draw its masks, also where a dim has one element. A recipe whose next step sums another dim draws other
    /// masks.
    #[test]
    fn plans_draw_the_masks_of_their_recipe() {
        let recipe = |next: &str, b: usize| {
            let head = format!("model: m\ndims: {{b: {b}, i: 8, u: 4}}\ninputs:\n  x: [i, b]\nparameters:\n  w: [u, i]\n  v: [u, b]\n");
            let text = format!("{head}steps:\n  - \"h[i,b] = dropout(relu(x), rate: 0.5)\"\n  - {next}\ntrain: {{upstream: y}}\n");
            load_str("m.yaml", &text, &[]).unwrap_or_else(|e| panic!("{e}"))
        };
        for b in [1, 6] {
            let along = recipe("y[u,b] = w[u,i] * h[i,b]", b);
            let programs = programs(&along, false).unwrap();
            assert!(programs.variants.len() > 1);
            for variant in &programs.variants {
                assert!(draws_alike(&along, &variant.program).unwrap(), "{} with b={b}", variant.key);
                let across = recipe("y[u,i] = v[u,b] * h[i,b]", b);
                assert!(b == 1 || !draws_alike(&across, &variant.program).unwrap(), "{}", variant.key);
            }
        }
    }
}
