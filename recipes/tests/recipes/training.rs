//! Training runs against NumPy's in f64 over twenty steps, and what a run that goes on from a checkpoint has in common with one that was
//! never interrupted. `bench/peers/training_vectors.py` documents how the runs in `tests/data/` were made.

use kernels::Toolchain;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::target::shim::ShimDevice;
use ndarray::ArrayD;
use recipes::load::load_str;
use recipes::pipeline::PipelineError;
use recipes::pipeline::choose::plan::{FORMAT, Plan};
use recipes::pipeline::run::{Candidate, Target};
use recipes::pipeline::variants::programs::programs;
use recipes::train::checkpoint::Folder;
use recipes::train::{TrainRequest, Training};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sdfg::config::Configuration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const PERCEPTRON: &str = "model: perceptron
dims: {b: 8, i: 5, u: 6, o: 3}
dtype: f64
inputs:
  x: {dims: [i, b], grad: false}
  label: {dims: [b], dtype: i32, grad: false}
  lr: {dims: [], grad: false}
parameters: {w1: [u, i], c1: [u], w2: [o, u], c2: [o]}
steps:
  - hidden[u,b] = relu(w1[u,i] * x[i,b] + c1[u])
  - score[b,o] = w2[o,u] * hidden[u,b] + c2[o]
  - \"loss[] = mean(cross_entropy(score, label, over: o), over: b)\"
  - \"right[] = mean(where(argmax(score, over: o) == label, 1, 0), over: b)\"
train: {loss: loss}
update: \"momentum(rate: lr, decay: 0.9)\"
";

const WORDS: &str = "model: words
dims: {b: 4, t: 4, o: 9, i: 4, u: 6, v: u, k: 3}
dtype: f64
inputs:
  tokens: {dims: [b, t], dtype: i32, grad: false, range: \"[0, size(o))\"}
  label: {dims: [b], dtype: i32, grad: false, range: \"[0, size(k))\"}
parameters: {e: [o, i], wx: [i, u], wh: [v, u], c: [u], wo: [u, k], co: [k]}
steps:
  - x[t,b,i] = e[tokens[b,t],i]
  - h[t,b,u] = tanh(x[t,b,i] * wx[i,u] + h[t-1,b,v else 0] * wh[v,u] + c[u])
  - score[b,k] = h[size(t)-1,b,u] * wo[u,k] + co[k]
  - \"loss[] = mean(cross_entropy(score, label, over: k), over: b)\"
train: {loss: loss}
update: \"adam(rate: 0.05)\"
";

fn cores() -> Result<Arc<dyn Device>, Failure> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    Ok(Arc::new(Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system()? } }))
}

/// A plan of the unfused program or of one of its variants, in the first configuration of each kernel.
fn plan(text: &str, variant: Option<usize>, device: &Arc<dyn Device>, target: Target) -> Result<Plan, Failure> {
    let programs = programs(&load_str("m.yaml", text, &[])?, false)?;
    let program = variant.map_or(&programs.unfused, |n| &programs.variants[n].program).clone();
    let mut configuration = Configuration::default();
    let specs = kernels::KernelSpecs::of(&program);
    for (_, _, unit) in program.units() {
        let spec = specs.spec(&unit)?;
        configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
    }
    let chosen = Candidate {
        name: "first".into(),
        program,
        configuration,
        predicted_ms: 0.0,
        streams: 1,
        packed: false,
        beside: recipes::pipeline::run::candidate::BESIDE,
        exchanges: vec![],
        measured_as: BTreeMap::new(),
    };
    Ok(Plan {
        format: FORMAT,
        recipe: "m.yaml".into(),
        text: text.into(),
        overrides: BTreeMap::new(),
        dtype: None,
        no_dropout: false,
        narrow: false,
        target,
        device: String::new(),
        toolchain: String::new(),
        threads: 2,
        command: String::new(),
        partial_fusion: None,
        barred: vec![],
        refused: None,
        choice: None,
        chosen,
        baselines: vec![],
    })
}

/// A stored run: its data and parameters as files, its losses, and what it leaves.
struct Stored {
    data: PathBuf,
    weights: PathBuf,
    losses: Vec<f64>,
    after: BTreeMap<String, Vec<f64>>,
}

fn numbers(view: &TensorView) -> Vec<f64> {
    view.data().chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().expect("eight bytes"))).collect()
}

fn stored(name: &str, folder: &Path) -> Result<Stored, Failure> {
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name))?;
    let all = SafeTensors::deserialize(&bytes)?;
    let part = |prefix: &str| -> Vec<(String, TensorView)> {
        all.tensors().into_iter().filter_map(|(name, view)| Some((name.strip_prefix(prefix)?.to_string(), view))).collect()
    };
    let file = |name: &str, prefix: &str| -> Result<PathBuf, Failure> {
        let path = folder.join(name);
        safetensors::serialize_to_file(part(prefix), None, &path)?;
        Ok(path)
    };
    let after = part("after.").into_iter().map(|(name, view)| (name, numbers(&view))).collect();
    Ok(Stored {
        data: file("data.safetensors", "data.")?,
        weights: file("weights.safetensors", "before.")?,
        losses: numbers(&all.tensor("loss")?),
        after,
    })
}

fn asked(stored: &Stored, set: &[(&str, &str)]) -> TrainRequest {
    TrainRequest {
        data: vec![stored.data.clone()],
        set: set.iter().map(|(name, value)| (name.to_string(), value.parse().expect("a schedule"))).collect(),
        seed: 1,
        dropout: true,
        weights: Some(stored.weights.clone()),
        steps: 20,
        ..TrainRequest::default()
    }
}

const COSINE: [(&str, &str); 1] = [("lr", "cosine(0.2, warmup: 4, end: 0.02)")];

fn agrees(training: &Training, losses: &[f64], stored: &Stored) -> Result<(), Failure> {
    for (n, (got, want)) in losses.iter().zip(&stored.losses).enumerate() {
        assert!((got - want).abs() < 1e-12, "the loss of step {} is {got}, NumPy's {want}", n + 1);
    }
    for (name, want) in &stored.after {
        let got: ArrayD<f64> = training.execution().result(name)?.ok_or(format!("no `{name}`"))?;
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // Adam divides by roots of small sums, which makes rounding errors larger.
        assert!(got.len() == want.len() && off < 1e-10, "`{name}` is off by {off:e}");
    }
    Ok(())
}

#[test]
fn twenty_steps_are_those_of_numpy_in_every_program() -> Result<(), Failure> {
    let (cores, pool, folder) = (cores()?, Pool::new(2)?, tempfile::tempdir()?);
    for (text, name, set) in [(PERCEPTRON, "train-perceptron.safetensors", &COSINE[..]), (WORDS, "train-words.safetensors", &[][..])] {
        let stored = stored(name, folder.path())?;
        let variants = programs(&load_str("m.yaml", text, &[])?, false)?.variants.len();
        for variant in [None].into_iter().chain((0..variants).map(Some)) {
            let plan = plan(text, variant, &cores, Target::default())?;
            let mut training = Training::open((&plan, Path::new("plan.json")), &asked(&stored, set), None, &pool, &cores)?;
            let mut losses = vec![];
            while training.done() < 20 {
                let scalars = training.step(&pool)?;
                assert_eq!(scalars[0].0, "loss");
                losses.push(scalars[0].1);
            }
            assert!(losses[19] < 0.7 * losses[0], "{losses:?}");
            agrees(&training, &losses, &stored)?;
        }
    }
    Ok(())
}

/// The simulator of a GPU runs its kernels on cores; a run there does the same steps.
#[test]
fn a_gpu_kernel_trains_as_cores_do() -> Result<(), Failure> {
    let shim: Arc<dyn Device> = Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into()));
    let (pool, folder) = (Pool::new(1)?, tempfile::tempdir()?);
    let stored = stored("train-perceptron.safetensors", folder.path())?;
    let plan = plan(PERCEPTRON, None, &shim, "shim".parse::<Target>()?)?;
    let mut training = Training::open((&plan, Path::new("plan.json")), &asked(&stored, &COSINE), None, &pool, &shim)?;
    let losses: Vec<f64> = (0..20).map(|_| Ok(training.step(&pool)?[0].1)).collect::<Result<_, PipelineError>>()?;
    agrees(&training, &losses, &stored)
}

const DROPPING: &str = "model: dropping
dims: {b: 6, i: 5, u: 16, o: 3}
inputs:
  x: {dims: [b, i], grad: false}
  label: {dims: [b], dtype: i32, grad: false, range: \"[0, size(o))\"}
parameters:
  w1: {dims: [u, i], initial: normal(0.4)}
  c1: {dims: [u], initial: 0}
  w2: {dims: [o, u], initial: uniform(1 / sqrt(size(u)))}
state: {mean: [u]}
steps:
  - \"hidden[b,u] = dropout(relu(w1[u,i] * x[b,i] + c1[u]), rate: 0.3)\"
  - \"loss[] = mean(cross_entropy(w2[o,u] * hidden[b,u], label, over: o), over: b)\"
train: {loss: loss}
update:
  - \"adam(rate: 0.02)\"
  - \"mean[u] = 0.9 * mean + 0.1 * mean(hidden[b,u], over: b)\"
";

/// Samples of two clouds and a half: rows of `x`, and `label`.
fn clouds(folder: &Path, samples: usize, name: &str) -> Result<PathBuf, Failure> {
    let label: Vec<i32> = (0..samples as i32).map(|n| n % 3).collect();
    let noise = sdfg::random::tensor(4, "x", samples * 5);
    let x: Vec<f32> =
        noise.iter().enumerate().map(|(n, v)| (*v + f64::from(2 * label[n / 5] - 2) * ((n % 5) as f64 - 2.0)) as f32).collect();
    let bytes =
        (x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(), label.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    let path = folder.join(name);
    let views =
        [("x", TensorView::new(Dtype::F32, vec![samples, 5], &bytes.0)?), ("label", TensorView::new(Dtype::I32, vec![samples], &bytes.1)?)];
    safetensors::serialize_to_file(views, None, &path)?;
    Ok(path)
}

fn shuffled(data: PathBuf) -> TrainRequest {
    TrainRequest { data: vec![data], shuffle: true, seed: 5, dropout: true, steps: 30, ..TrainRequest::default() }
}

#[test]
fn a_run_that_goes_on_ends_with_the_bytes_of_one_that_was_not_interrupted() -> Result<(), Failure> {
    let (cores, pool, folder) = (cores()?, Pool::new(2)?, tempfile::tempdir()?);
    let plan = (&plan(DROPPING, Some(0), &cores, Target::default())?, Path::new("plan.json"));
    let asked = shuffled(clouds(folder.path(), 20, "data.safetensors")?);
    let whole = Folder { path: folder.path().join("whole"), keep: 2 };
    whole.open()?;
    let mut training = Training::open(plan, &asked, None, &pool, &cores)?;
    let mut losses = vec![];
    for step in 1..=30 {
        losses.push(training.step(&pool)?[0].1);
        if step % 10 == 0 || step == 13 {
            whole.write(training.execution(), step, &training.identity)?;
        }
    }
    assert!(losses[20..].iter().sum::<f64>() < 0.7 * losses[..10].iter().sum::<f64>(), "{losses:?}");
    let names = |folder: &Folder| -> Result<Vec<u64>, Failure> { Ok(folder.all()?.into_iter().map(|(step, _)| step).collect()) };
    assert_eq!(names(&whole)?, [20, 30], "the newest two are kept");
    // From the middle of an epoch, in a process that has done nothing before.
    let parts = Folder { path: folder.path().join("parts"), keep: 9 };
    parts.open()?;
    let mut first = Training::open(plan, &asked, None, &pool, &cores)?;
    (0..13).try_for_each(|_| first.step(&pool).map(|_| ()))?;
    let from = parts.write(first.execution(), 13, &first.identity)?;
    drop(first);
    let mut second = Training::open(plan, &asked, Some(&from), &pool, &cores)?;
    assert_eq!(second.done(), 13);
    for step in 14..=30 {
        let loss = second.step(&pool)?[0].1;
        assert_eq!(loss.to_bits(), losses[step - 1].to_bits(), "step {step}");
    }
    let last = parts.write(second.execution(), 30, &second.identity)?;
    assert_eq!(std::fs::read(last)?, std::fs::read(whole.path.join("step-000030.safetensors"))?);
    // What other programs read: parameters and state under the recipe's names.
    let bytes = std::fs::read(&from)?;
    let mut tensors: Vec<String> = SafeTensors::deserialize(&bytes)?.names().into_iter().map(String::from).collect();
    tensors.sort();
    assert_eq!(tensors, ["adam_t", "c1", "c1_m", "c1_v", "mean", "w1", "w1_m", "w1_v", "w2", "w2_m", "w2_v"]);
    Ok(())
}

#[test]
fn a_run_is_not_mixed_with_another() -> Result<(), Failure> {
    let (cores, pool, folder) = (cores()?, Pool::new(2)?, tempfile::tempdir()?);
    let file = Path::new("plan.json");
    let own = plan(DROPPING, Some(0), &cores, Target::default())?;
    let asked = shuffled(clouds(folder.path(), 20, "data.safetensors")?);
    let checkpoints = Folder { path: folder.path().to_path_buf(), keep: 1 };
    let mut training = Training::open((&own, file), &asked, None, &pool, &cores)?;
    training.step(&pool)?;
    let from = checkpoints.write(training.execution(), 1, &training.identity)?;
    let refused = |plan: &Plan, asked: &TrainRequest, why: &str| -> Result<(), Failure> {
        let error = Training::open((plan, file), asked, Some(&from), &pool, &cores).err().ok_or(format!("not refused: {why}"))?;
        assert!(error.exit_code() == 2 && error.to_string().contains(why), "{error}");
        assert!(error.to_string().contains("step-000001.safetensors: this run cannot go on from the checkpoint"), "{error}");
        Ok(())
    };
    refused(&plan(&DROPPING.replace("0.3", "0.4"), Some(0), &cores, Target::default())?, &asked, "it is of another recipe")?;
    refused(&plan(DROPPING, None, &cores, Target::default())?, &asked, "it is of another plan of this recipe; train with the plan")?;
    let other = TrainRequest { data: vec![clouds(folder.path(), 21, "other.safetensors")?], ..asked.clone() };
    refused(&own, &other, "it is of other data; give the files that it was made with")?;
    refused(&own, &TrainRequest { seed: 6, ..asked.clone() }, "it was made with --seed 5; give that")?;
    refused(&own, &TrainRequest { shuffle: false, ..asked.clone() }, "it was made with --shuffle; do that")?;
    refused(&own, &TrainRequest { dropout: false, ..asked.clone() }, "it was made without --no-dropout; do that")?;
    // Parameters alone can be taken into any run.
    let begun = Training::open((&own, file), &TrainRequest { seed: 6, weights: Some(from.clone()), ..asked.clone() }, None, &pool, &cores)?;
    assert_eq!(begun.execution().result("w1")?, training.execution().result("w1")?);
    // A file that was cut off says so.
    let bytes = std::fs::read(&from)?;
    std::fs::write(&from, &bytes[..bytes.len() - 9])?;
    let error = Training::open((&own, file), &asked, Some(&from), &pool, &cores).err().ok_or("a damaged file")?;
    assert!(error.to_string().contains("this is no whole checkpoint") && error.exit_code() == 2, "{error}");
    Ok(())
}

#[test]
fn data_that_do_not_fit_are_refused_with_their_place() -> Result<(), Failure> {
    let (cores, pool, folder) = (cores()?, Pool::new(1)?, tempfile::tempdir()?);
    let plan = plan(DROPPING, None, &cores, Target::default())?;
    let file = folder.path().join("bad.safetensors");
    let (floats, labels): (Vec<u8>, Vec<u8>) =
        ([1f32; 200].iter().flat_map(|v| v.to_le_bytes()).collect(), [0i32; 40].iter().flat_map(|v| v.to_le_bytes()).collect());
    let x = |shape: &[usize]| -> Result<_, Failure> {
        Ok(("x", Dtype::F32, shape.to_vec(), floats[..4 * shape.iter().product::<usize>()].to_vec()))
    };
    let label = |samples: usize| ("label", Dtype::I32, vec![samples], labels[..4 * samples].to_vec());
    let mut far = label(8);
    far.3[20] = 7;
    let cases = [
        (vec![x(&[8, 5])?], "the input `label` [b] has no data: add a tensor `label` whose first axis counts samples"),
        (
            vec![x(&[8, 4])?, label(8)],
            "`x` of FILE has the shape [8, 4] and must have [samples, 5] with `i`: a sample is the recipe's `x` without `b`",
        ),
        (vec![x(&[8])?, label(8)], "has the shape [8] and must have [samples, 5]"),
        (vec![x(&[8, 5])?, label(7)], "`label` has 7 samples and `x` 8; all inputs need the same number"),
        (vec![x(&[4, 5])?, label(4)], "there are 4 samples, and one step takes 6 (`b: 6`); add samples, or take fewer with --set b=4"),
        (
            vec![x(&[8, 5])?, label(8), ("lable", Dtype::I32, vec![1], vec![0; 4])],
            "`lable` is no input of the recipe, whose inputs are `x`, `label`",
        ),
        (vec![x(&[8, 5])?, far], "`label` of FILE at [5] is 7, but the recipe says that its values are in [0, 3)"),
    ];
    for (tensors, why) in cases {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)));
        let views: Vec<(&str, TensorView)> = views.collect::<Result<_, Failure>>()?;
        safetensors::serialize_to_file(views, None, &file)?;
        let error = Training::open((&plan, Path::new("plan.json")), &shuffled(file.clone()), None, &pool, &cores).err().ok_or(why)?;
        let why = why.replace("FILE", &file.display().to_string());
        assert!(error.exit_code() == 2 && error.to_string().contains(&why), "{error}\n{why}");
    }
    let mut set = shuffled(clouds(folder.path(), 20, "data.safetensors")?);
    set.set = vec![("rate".into(), "1".parse()?)];
    let error = Training::open((&plan, Path::new("plan.json")), &set, None, &pool, &cores).err().ok_or("no such input")?;
    assert!(error.exit_code() == 2 && error.to_string().contains("`rate` is no input of the recipe"), "{error}");
    Ok(())
}

#[test]
fn recipes_that_train_nothing_are_refused() -> Result<(), Failure> {
    let (cores, pool) = (cores()?, Pool::new(1)?);
    let base = "model: m\ndims: {b: 4, i: 3}\ninputs: {x: [b, i]}\nparameters: {w: [i]}\nsteps:\n  - \"y[b] = x[b,i] * w[i]\"\n";
    let loss = "  - \"loss[] = sum(y * y, over: b)\"\n";
    for (text, why) in [
        (base.to_string(), "the recipe has no loss to train by; give it `train: {loss: NAME}`"),
        (format!("{base}{loss}train: {{loss: loss}}\n"), "the recipe has no `update`, so no step changes a parameter"),
    ] {
        let plan = plan(&text, None, &cores, Target::default())?;
        let error = Training::open((&plan, Path::new("plan.json")), &TrainRequest::default(), None, &pool, &cores).err().ok_or(why)?;
        assert!(error.exit_code() == 2 && error.to_string().contains(why), "{error}");
    }
    Ok(())
}

/// What parameters begin with is said in the recipe, in blocks as well, and is no part of the program.
#[test]
fn parameters_begin_as_the_recipe_says() -> Result<(), Failure> {
    let text = "model: m\ndims: {b: 4, i: 30}\nconstants: {layers: 2}\ninputs: {x: {dims: [b, i], grad: false}}\nparameters:\n  \
                scale: {dims: [i], initial: 1}\n  free: [i]\nblocks:\n  dense:\n    constants: {deviation: 0.5}\n    dims: {o: }\n    inputs: {x: [b, i]}\n    \
                parameters: {w: {dims: [i, o], initial: normal(deviation / sqrt(size(i)))}}\n    steps: [\"y[b,o] = w[i,o] * x[b,i]\"]\nsteps:\n  \
                - \"z = dense(x, o: 40)\"\n  - \"v = dense(x, o: 10, deviation: 4)\"\n  \
                - \"loss[] = sum(z * z, over: [b, z_o]) + sum(v * v, over: [b, v_o]) + sum(scale * free, over: i)\"\n\
                train: {loss: loss}\nupdate: \"sgd(rate: 0.1)\"\n";
    let recipe = load_str("m.yaml", text, &[])?;
    let drawn = |name: &str, shape: &[usize]| recipe.initial[name].drawn(1, name, shape);
    assert!(drawn("scale", &[30]).iter().all(|v| *v == 1.0) && !recipe.initial.contains_key("free"));
    for (name, shape, deviation) in [("z_w", [30, 40], 0.5), ("v_w", [30, 10], 4.0)] {
        let values = drawn(name, &shape);
        let found = (values.mapv(|v| v * v).sum() / values.len() as f64).sqrt() * 30f64.sqrt();
        assert!((found / deviation - 1.0).abs() < 0.15, "{name}: {found}");
    }
    let plain = text.replace(", initial: normal(deviation / sqrt(size(i)))", "").replace(", initial: 1", "");
    let origins = |mut program: sdfg::Sdfg| {
        program.containers.values_mut().for_each(|c| c.origin = None);
        program.containers
    };
    assert_eq!(origins(recipe.program), origins(load_str("m.yaml", &plain, &[])?.program));
    let errors = |initial: &str| {
        load_str("m.yaml", &text.replace("initial: 1}", &format!("initial: {initial}}}")), &[]).expect_err(initial).to_string()
    };
    for wrong in ["normal", "normal()", "normal(0)", "normal(-1)", "beta(1)", "[1]", "uniform(x)"] {
        assert!(errors(wrong).starts_with("m.yaml:6:"), "{wrong}: {}", errors(wrong));
    }
    assert!(
        errors("gauss(1)").contains("`initial` of `scale` must be a number, normal(0.02) with a standard deviation, or uniform(0.1)"),
        "{}",
        errors("gauss(1)")
    );
    let input = text.replace("x: {dims: [b, i], grad: false}", "x: {dims: [b, i], initial: 0}");
    assert!(load_str("m.yaml", &input, &[]).expect_err("an input").to_string().contains("the input `x` is given anew each step"));
    Ok(())
}

/// The shipped models load, and say why they are there and what each of their parameters begins with.
#[test]
fn shipped_models_say_what_they_begin_with() -> Result<(), Failure> {
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("models"))? {
        let file = entry?.path();
        let recipe = recipes::load::load(&file, &[])?;
        assert!(recipe.text.starts_with("# ") && recipe.text.contains("\n# Expect: "), "{}", file.display());
        let of_steps = recipe.program.containers.values().filter(|c| c.role == sdfg::Role::Parameter && c.initial.is_none());
        assert!(of_steps.clone().count() > 0 && of_steps.into_iter().all(|c| recipe.initial.contains_key(&c.name)), "{}", file.display());
    }
    Ok(())
}
