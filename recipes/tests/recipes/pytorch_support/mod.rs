//! The files of vectors, and the tolerance of results.

use ndarray::{ArrayD, IxDyn};
use recipes::pipeline::oracle::tensors::{given, results};
use safetensors::SafeTensors;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::tolerance::{Comparison, Tolerance, compare, unit_tolerance};
use sdfg::{Dtype, Sdfg};
use std::path::Path;

pub struct Vectors {
    pub name: String,
    pub tensors: Tensors,
    /// As overrides of the recipe's sizes.
    pub sizes: Vec<(String, i64)>,
}

impl Vectors {
    pub fn read(name: &str) -> Vectors {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let about: serde_json::Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["about"]).unwrap();
        let sizes = about["sizes"].as_object().unwrap().iter().map(|(dim, size)| (dim.clone(), size.as_i64().unwrap())).collect();
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors().into_iter().map(|(name, view)| {
            assert_eq!(view.dtype(), safetensors::Dtype::F64);
            let values = view.data().as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
            (name, ArrayD::from_shape_vec(IxDyn(view.shape()), values).unwrap())
        });
        Vectors { name: name.to_string(), tensors: tensors.collect(), sizes }
    }
}

/// Operations between an input and the last result, if they all stood in one chain: that of each operator, added up.
///
/// [`unit_tolerance`] bounds one operator with exact inputs; errors of a chain of operators add to first order.
pub fn chain(program: &Sdfg) -> u64 {
    let units = program.units();
    let each = units.iter().map(|(_, _, unit)| {
        let known = unit_tolerance(program, unit).unwrap();
        known.values().map(|t| t.length + t.depth).max().unwrap_or(0)
    });
    each.sum()
}

/// The worst output or gradient with its comparison. All tensors of the file take part.
pub fn worst(vectors: &Vectors, program: &Sdfg, length: u64) -> (String, Comparison) {
    let inputs: Tensors = given(program).iter().map(|c| (c.name.clone(), vectors.tensors[&c.name].clone())).collect();
    let got = interpret(program, &inputs, &Run { seed: 0, step: 0, dropout: false }).unwrap();
    let finite = |t: &ArrayD<f64>| t.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    // Where terms cancel a result is smaller than its terms: the largest of all intermediates stands for these.
    let magnitude = got.values().map(finite).fold(0.0, f64::max);
    // PyTorch's own rounding errors are bounded in the same way as ours, hence twice the length.
    let tolerance = Tolerance { dtype: Dtype::F64, length: 2 * length, depth: 0, stored: 0.0 };
    let names: Vec<String> = results(program).iter().map(|c| c.name.clone()).collect();
    let expected: Vec<&String> = vectors.tensors.keys().filter(|n| !inputs.contains_key(*n)).collect();
    for name in &expected {
        assert!(names.contains(name), "{}: `{name}` is not computed", vectors.name);
    }
    assert_eq!(expected.len(), names.len(), "{}: every result has its vector", vectors.name);
    let compared = expected.into_iter().map(|name| (name.clone(), compare(&got[name], &vectors.tensors[name], magnitude, &tolerance)));
    compared.max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio)).unwrap()
}

pub fn check(vectors: &Vectors, program: &Sdfg, length: u64, form: &str) {
    let (name, comparison) = worst(vectors, program, length);
    let Comparison { max_error, tolerance, ratio, at } = &comparison;
    println!("{} ({form}): `{name}` is off by {max_error:.2e}, {ratio:.2e} of the tolerance {tolerance:.2e}", vectors.name);
    assert!(comparison.passes(), "{} ({form}): `{name}` is off by {max_error:.2e} at {at:?}, more than {tolerance:.2e}", vectors.name);
}
