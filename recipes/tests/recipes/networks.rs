//! The convolutional networks: their layers and shapes, and small versions against values that PyTorch computes in f64.
//!
//! `bench/peers/networks.py --values` prints the values. Images and parameters are drawn by a formula that both have: see [`drawn`]. Of
//! each tensor the first element, the last, and the sum of all times their places are held.

use kernels::KernelSpecs;
use ndarray::{ArrayD, IxDyn};
use recipes::load::load;
use recipes::pipeline::oracle::operators::operators;
use recipes::pipeline::variants::programs::programs;
use recipes::pipeline::variants::variant::Variant;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Op, Role, Sdfg, Unit};
use std::path::Path;
use transforms::{DriverOptions, Expand, Fusion, run_pipeline};

const RUN: Run = Run { seed: 1, step: 0, dropout: true };
/// Channels of the small versions are fewer by this.
const DIVISOR: i64 = 8;

/// Recipe, rows and columns of its small version; of the whole one, flop of products and how many there are; what the softmax reads.
#[allow(clippy::excessive_precision)]
const NETWORKS: [(&str, i64, i64, usize, [f64; 3]); 8] = [
    ("vgg-19", 32, 39264124928, 19, [1.23788928603714083e+01, -8.93056368533381040e+00, 1.15220246359423782e+04]),
    ("googlenet", 64, 3165343744, 58, [-3.86410055252774853e+00, 3.22491668693127842e+00, 1.31729475357635101e+03]),
    ("inception-v3", 75, 11426432192, 95, [7.56290698205403844e-01, 1.34309211704918563e+00, 7.45186480456566824e+03]),
    ("resnet-18", 64, 3653836800, 22, [-1.47667271872996100e+01, 2.31619779738171765e+01, -1.65817593231693245e+04]),
    ("resnet-50", 64, 7715946496, 54, [2.63600763823422596e+02, 2.65947621032460916e+02, 5.39306568787631404e+04]),
    ("squeezenet-1.0", 67, 1665335872, 26, [4.75807070961347556e+00, 2.42829985788261666e+01, 7.16135573795218806e+04]),
    ("squeezenet-1.1", 67, 775495040, 26, [4.42037095503626531e+00, 1.98479670288408201e+01, 5.88364604061039354e+04]),
    ("mobilenet-v1", 64, 1137480704, 28, [5.41603715580994405e-01, 2.43986430610530336e+00, 8.54803508479547600e+03]),
];

/// Results of a step of the block in training: outputs, running statistics, gradients.
#[allow(clippy::excessive_precision)]
const BLOCK: [(&str, [f64; 3]); 12] = [
    ("y", [2.68066473276919681e-01, 1.15796736156049851e-01, 8.45471580106502224e+04]),
    ("one_mu2", [8.46662462286736694e-01, 1.07324723986427628e+00, 1.31261154257062405e+01]),
    ("one_var2", [6.12037756833806679e-01, 7.16617284056289883e-01, 1.22703848574061247e+01]),
    ("two_mu2", [6.16456924385512917e-01, 9.52421669491785305e-01, 1.14809084796779413e+01]),
    ("two_var2", [1.14311534758175060e+00, 1.04435628713808937e+00, 1.41739365740916945e+01]),
    ("d_x", [1.48882864539800530e+00, -1.87278000127134941e-01, 7.20910828926616205e+02]),
    ("d_one_k", [7.59516554030585656e-02, -4.10410795600543055e-01, 2.25006600155100068e+03]),
    ("d_one_g", [6.05138436828875914e-01, -3.43460010453440823e-01, -2.94594487436950914e+00]),
    ("d_one_b", [5.31401618872706094e-01, 3.25603724932772454e-01, -1.29399752678640345e+00]),
    ("d_two_k", [-5.66091678034290724e-01, -2.72574865236830000e-01, -5.13070583747353794e+03]),
    ("d_two_g", [6.19522747118689820e-01, 1.73098394375839515e-01, -3.66374144073204411e+00]),
    ("d_two_b", [1.13877561669635141e+00, 6.96278049503924468e-01, -2.83980189840405739e-01]),
];

/// The tensor `number`: kernels by the size of what they sum, all others around 1.
fn drawn(number: u64, shape: &[usize]) -> ArrayD<f64> {
    let factor = (6.0 / shape.iter().skip(1).product::<usize>() as f64).sqrt();
    let value = |at: u64| {
        let mut at = at.wrapping_mul(2_654_435_761).wrapping_add(number * 40_503 + 12_345) & 0xffff_ffff;
        at ^= at >> 16;
        at = at.wrapping_mul(0x045d_9f3b) & 0xffff_ffff;
        at ^= at >> 16;
        let uniform = at as f64 / 2f64.powi(31) - 1.0;
        if shape.len() == 1 { 1.0 + 0.5 * uniform } else { uniform * factor }
    };
    ArrayD::from_shape_vec(IxDyn(shape), (0..shape.iter().product::<usize>() as u64).map(value).collect()).unwrap()
}

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"))
}

/// The operators of a recipe with other sizes.
fn program(name: &str, sizes: &[(String, i64)]) -> Sdfg {
    let recipe = load(&path(name), sizes).unwrap_or_else(|errors| panic!("{errors}"));
    operators(&recipe).unwrap().0
}

/// Image and parameters in the order of the recipe; gradients that come in, last.
fn inputs(program: &Sdfg) -> Tensors {
    let given = |role: Role| program.containers.values().filter(move |c| c.role == role).map(|c| c.name.clone());
    let (upstream, images): (Vec<String>, Vec<String>) = given(Role::Input).partition(|name| name.starts_with("d_"));
    let names = images.into_iter().chain(given(Role::Parameter)).chain(upstream);
    names.enumerate().map(|(n, name)| (name.clone(), drawn(n as u64, &program.shape_of(&name).unwrap()))).collect()
}

fn holds(what: &str, tensor: &ArrayD<f64>, expected: [f64; 3]) {
    let values: Vec<f64> = tensor.iter().copied().collect();
    let found = [values[0], values[values.len() - 1], values.iter().enumerate().map(|(place, value)| place as f64 * value).sum()];
    for (found, expected) in found.iter().zip(expected) {
        // Sums of some hundred thousand products, in another order.
        assert!((found - expected).abs() <= 1e-10 * expected.abs().max(1e-3), "{what}: {found} is not {expected}");
    }
}

/// The program as operators, and fused.
fn forms(program: Sdfg) -> [Sdfg; 2] {
    let expanded = run_pipeline(&program, &[&Expand], &DriverOptions::default()).unwrap().program;
    let fused = run_pipeline(&expanded, &[&Fusion::default()], &DriverOptions::default()).unwrap().program;
    [program, fused]
}

/// The cases of "Cross-Layer Data Reuse": flop of products, how many there are, and the result's shape.
const CASES: [(&str, i64, usize, [usize; 4]); 4] = [
    ("cross-layer/a1", 24_887_296, 2, [1, 32, 28, 28]),
    ("cross-layer/a2", 5_120_000, 2, [1, 16, 80, 80]),
    ("cross-layer/b1", 70_647_808, 3, [1, 128, 56, 56]),
    ("cross-layer/c1", 308_281_344, 3, [1, 64, 56, 56]),
];

#[test]
fn networks_have_the_products_of_their_layers() {
    let networks = NETWORKS.map(|(name, _, flop, count, _)| (name, flop, count, vec![1, 1000]));
    let cases = CASES.map(|(name, flop, count, shape)| (name, flop, count, shape.to_vec()));
    for (name, flop, count, shape) in networks.into_iter().chain(cases) {
        let program = program(name, &[]);
        let mut found = (0, 0);
        for (_, _, unit) in program.units() {
            let Unit::Operation(operation) = unit else { continue };
            if matches!(operation.op, Op::Contraction { .. }) {
                found = (found.0 + 2 * operation.points(&program).eval(&program.sizes).unwrap(), found.1 + 1);
            }
        }
        assert_eq!(found, (flop, count), "{name}");
        let result = program.containers.values().find(|c| c.role == Role::Output).unwrap();
        assert_eq!(program.shape_of(&result.name).unwrap(), shape, "{name}");
    }
}

#[test]
fn small_networks_compute_what_pytorch_does() {
    for (name, side, _, _, expected) in NETWORKS {
        let whole = load(&path(name), &[]).unwrap().program;
        // Every size that is given as a number; the others follow.
        let mut sizes = Vec::new();
        for (dim, size) in &whole.dims {
            let value = size.as_sym().and_then(|symbol| whole.sizes.get(symbol)).copied().unwrap_or(1);
            match dim.as_str() {
                "h" | "w" => sizes.push((dim.clone(), side)),
                _ if value >= DIVISOR && whole.dims.values().position(|s| s == size) == whole.dims.get_index_of(dim) => {
                    sizes.push((dim.clone(), value / DIVISOR));
                }
                _ => {}
            }
        }
        let [plain, fused] = forms(program(name, &sizes));
        // What the softmax reads.
        let scores = ["prob_fc", "fc8", "prob_pool"].into_iter().find(|name| plain.containers.contains_key(*name)).unwrap();
        let results = interpret(&plain, &inputs(&plain), &RUN).unwrap();
        holds(name, &results[scores], expected);
        // The scores of a fused program may be no tensor.
        let again = interpret(&fused, &inputs(&fused), &RUN).unwrap();
        for (found, expected) in again["prob"].iter().zip(&results["prob"]) {
            assert!((found - expected).abs() < 1e-12, "{name}: {found} is not {expected}");
        }
    }
}

#[test]
fn a_block_is_trained_as_pytorch_does() {
    let sizes = [("n", 2), ("c", 6), ("h", 7), ("w", 5)].map(|(dim, size)| (dim.to_string(), size));
    for program in forms(program("resnet-18-block", &sizes)) {
        let results = interpret(&program, &inputs(&program), &RUN).unwrap();
        for (name, expected) in BLOCK {
            holds(name, &results[name], expected);
        }
    }
}

/// Layouts and schedules of images are for programs that convolve. A composed kernel of a transformer holds a tile of attention on chip,
/// which must not count as a matrix that multiplies an image.
#[test]
fn transformers_are_no_programs_of_images() -> Result<(), Box<dyn std::error::Error>> {
    let convolves = |name: &str| -> Result<Vec<(String, bool)>, Box<dyn std::error::Error>> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"));
        let programs = programs(&load(&path, &[])?, false)?;
        let one = |variant: &Variant| -> Result<(String, bool), Box<dyn std::error::Error>> {
            let (_, _, unit) = variant.program.units().into_iter().next().ok_or("no kernel")?;
            Ok((format!("{name}: {}", variant.key), KernelSpecs::of(&variant.program).spec(&unit)?.images))
        };
        programs.variants.iter().map(one).collect()
    };
    for name in ["mha", "mha-cross", "bert-base-encoder", "gpt2-decoder", "llama-decoder"] {
        let wrong: Vec<String> = convolves(name)?.into_iter().filter(|(_, images)| *images).map(|(name, _)| name).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
    assert!(convolves("squeezenet-1.1")?.iter().all(|(_, images)| *images));
    Ok(())
}
