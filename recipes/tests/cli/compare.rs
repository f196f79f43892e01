//! The comparison with peers, which are replaced by scripts: the peers that are timed, those that are not and why, and the order of
//! turns.
//!
//! With `MEMLET_TORCH`, `MEMLET_JAX` and `MEMLET_ONNX` set to Pythons, the real workers are checked too, at tiny sizes.

#[cfg(unix)]
use crate::command::memlet;
#[cfg(unix)]
use recipes::compare::environment::check_pythons;
use recipes::compare::worker::write_scripts;
use recipes::compare::{
    CompareError, ComparisonOutcome, ComparisonReport, OurBytes, Ours, PeerContender, PeerVariant, Precision, Pythons, Setup, StepTime,
    TensorBytes, compare, contenders,
};
use recipes::load::{Overrides, Recipe, load};
use recipes::pipeline::PipelineError;
use recipes::pipeline::oracle::operators::operators;
use recipes::pipeline::oracle::tensors::{random_inputs, results, write_as};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Dtype, Sdfg};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

/// The oracle in place of a plan; it notes its turns in the same file as the workers.
struct Oracle {
    program: Sdfg,
    given: Tensors,
    found: Tensors,
    folder: PathBuf,
}

impl Oracle {
    fn note(&self, what: &str) {
        let mut turns = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("turns")).unwrap();
        writeln!(turns, "ours {what}").unwrap();
    }
}

impl Ours for Oracle {
    fn load(&mut self, tensors: &Tensors) -> Result<(), PipelineError> {
        self.given = tensors.clone();
        Ok(())
    }

    fn step(&mut self, dropout: bool) -> Result<StepTime, PipelineError> {
        self.note("begins");
        self.found = interpret(&self.program, &self.given, &Run { seed: 1, step: 0, dropout })?;
        self.note("ends");
        Ok(StepTime { forward_ms: 2.0, backward_ms: 4.0, step_ms: 6.0 })
    }

    fn results(&mut self) -> Result<Tensors, PipelineError> {
        Ok(results(&self.program).iter().map(|c| (c.name.clone(), self.found[&c.name].clone())).collect())
    }

    fn memory(&self) -> OurBytes {
        OurBytes {
            tensors: TensorBytes { given_bytes: 1_000_000, peak_bytes: 3_000_000 },
            boundary_bytes: 2_000_000,
            working_bytes: 500_000,
        }
    }
}

fn recipe(name: &str) -> Recipe {
    stored(name, None, false)
}

/// A recipe stored in other types.
fn stored(name: &str, dtype: Option<Dtype>, narrow: bool) -> Recipe {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"));
    let sizes = [("b", 2), ("j", 5), ("h", 3), ("p", 4), ("i", 12), ("u", 10)].map(|(d, n)| (d.to_string(), n));
    let known = if name == "mha" { &sizes[..5] } else { &sizes[..] };
    load(&path, Overrides { sizes: known.to_vec(), dtype, narrow, ..Overrides::default() }).unwrap()
}

fn compared(recipe: &Recipe, contenders: &[PeerContender], folder: &Path, rounds: usize) -> Result<ComparisonReport, CompareError> {
    compared_until(recipe, contenders, folder, rounds, &AtomicBool::new(false))
}

fn compared_until(
    recipe: &Recipe,
    contenders: &[PeerContender],
    folder: &Path,
    rounds: usize,
    interrupt: &AtomicBool,
) -> Result<ComparisonReport, CompareError> {
    let (program, _) = operators(recipe).unwrap();
    let tensors = random_inputs(&program, 1).unwrap();
    let mut ours = Oracle { program, given: Tensors::new(), found: Tensors::new(), folder: folder.to_path_buf() };
    let origin = "memlet optimize".to_string();
    let setup = Setup {
        recipe,
        tensors: &tensors,
        seed: 1,
        contenders,
        origin,
        threads: 2,
        peak: Some(100.0),
        rounds,
        dropout: true,
        accuracy: false,
        interrupt,
        folder,
    };
    compare(&setup, &mut ours, &mut |_| {})
}

/// `python3`, if there is one.
fn python() -> Option<PathBuf> {
    let found = Command::new("python3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if !found {
        eprintln!("skipped: this test needs python3 in the path");
    }
    found.then(|| PathBuf::from("python3"))
}

/// The same Python for all frameworks.
fn everywhere(python: &Path) -> Pythons {
    let python = || Some(python.to_path_buf());
    Pythons { torch: python(), jax: python(), onnx: python(), openvino: None }
}

/// A folder with the stand-in for all workers and the results that it returns: ours, dropout off.
fn stage(recipe: &Recipe) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["torch_worker.py", "jax_worker.py", "onnx_worker.py"] {
        fs::write(folder.path().join(name), include_str!("compare_support/worker.py")).unwrap();
    }
    let (program, _) = operators(recipe).unwrap();
    let run = Run { seed: 1, step: 0, dropout: false };
    let found = interpret(&program, &random_inputs(&program, 1).unwrap(), &run).unwrap();
    let truth: Tensors = results(&program).iter().map(|c| (c.name.clone(), found[&c.name].clone())).collect();
    // The file is f32, as the workers' answers always are.
    write_as(&folder.path().join("truth.safetensors"), &truth, &|_| Dtype::F32).unwrap();
    folder
}

#[test]
fn only_peers_that_agree_are_timed_and_all_are_reported() {
    let Some(python) = python() else { return };
    let recipe = recipe("mha");
    let folder = stage(&recipe);
    let all = contenders(&PeerVariant::ALL, Dtype::F32, &everywhere(&python));
    let report = compared(&recipe, &all, folder.path(), 3).unwrap();
    let outcomes: Vec<String> = report
        .rows
        .iter()
        .map(|row| {
            let what = match &row.outcome {
                ComparisonOutcome::Timed { ratio, samples, .. } => format!("timed {} times, {}", samples.len(), ratio.median),
                ComparisonOutcome::Mismatch { .. } => "mismatch".to_string(),
                ComparisonOutcome::Failed { why } => why.clone(),
            };
            format!("{} {}: {what}", row.variant, row.precision)
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            "eager highest: timed 3 times, 0.5",
            "eager medium: timed 3 times, 0.5",
            "sdpa highest: mismatch",
            "sdpa medium: mismatch",
            "compile highest: compile, highest: RuntimeError: no compiler",
            "compile medium: compile, medium: RuntimeError: no compiler",
            "compile-sdpa highest: compile-sdpa, highest ended without an answer; the last it wrote: out of memory",
            "compile-sdpa medium: compile-sdpa, medium ended without an answer; the last it wrote: out of memory",
            "jax highest: jax, highest gave an answer that is none: expected value at line 1 column 1",
            "jax-rbg highest: jax-rbg, highest: gone",
            "onnx highest: timed 3 times, 0.5",
            "onnx-attention highest: mismatch",
        ]
    );
    assert_eq!(report.exit_code(), 3);
    assert_eq!(report.rows[0].versions["threads"], "2");
    let text = report.text(false);
    assert!(text.contains("best peer is eager, highest: its time ÷ ours is 0.500"), "{text}");
    // Half of our forward pass of 2 ms: dropout is off on both sides, and the row is separate from those with a whole step.
    let forward = report.rows.iter().find(|r| r.variant == "onnx").unwrap();
    assert!(forward.forward_only && text.contains("of the forward pass alone, dropout off"), "{text}");
    assert_eq!(report.ours.as_ref().unwrap().step_ms, 6.0);
    // Theirs has 6 MB, including 2 MB of inputs; ours has 3 and 1.
    assert_eq!(report.rows[0].memory, Some(TensorBytes { given_bytes: 2_000_000, peak_bytes: 6_000_000 }));
    let watched: Vec<String> = report.rows.iter().filter(|r| r.memory.is_some()).map(|r| r.variant.to_string()).collect();
    assert_eq!(watched, ["eager", "onnx"], "who was not admitted is not watched, nor eager in a second precision");
    let line = text.lines().rfind(|l| l.starts_with("eager")).unwrap();
    assert_eq!(line.split_whitespace().skip(2).collect::<Vec<_>>(), ["2.0", "4.0", "6.0", "0.500", "0.500"]);
    let record = folder.path().join("record.json");
    fs::write(&record, serde_json::to_string(&[&report]).unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/peers/table.py");
    let table = Command::new(&python).arg(script).arg(&record).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let row = table.lines().find(|l| l.starts_with("| mha")).unwrap_or_else(|| panic!("{table}"));
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    assert_eq!(cells[1..5], ["mha (b=2, h=3, i=12, j=5, p=4)", "f32", "on", "2"]);
    assert_eq!(cells[5..9], ["6.0", "eager, highest", "3.0", "0.500 (0.500–0.500)"]);
    assert_eq!(cells[10..13], ["onnx: 0.500 (0.500–0.500)", "0.500", "0.500"]);
    assert!(table.contains("compile, highest: compile, highest: RuntimeError: no compiler"), "{table}");
}

#[test]
fn peers_with_weights_of_our_type_are_distinguished() {
    let Some(python) = python() else { return };
    let both = contenders(&[PeerVariant::Eager], Dtype::Bf16, &everywhere(&python));
    for (narrow, alike, other, says) in [
        (false, "bf16", "bf16-native", "bf16, where ours are f32: it moves less"),
        (true, "bf16-native", "bf16", "f32, where ours are bf16: it moves more"),
    ] {
        let recipe = stored("mha", Some(Dtype::Bf16), narrow);
        let folder = stage(&recipe);
        let report = compared(&recipe, &both, folder.path(), 1).unwrap();
        let text = report.text(false);
        assert!(text.contains(&format!("eager, {other} holds weights and their gradients in {says} than ours")), "{text}");
        assert_eq!(report.best_alike().map(|(row, _)| row.precision), Some(alike), "{text}");
    }
}

#[test]
fn turns_alternate_and_never_overlap() {
    let Some(python) = python() else { return };
    let recipe = recipe("mha");
    let folder = stage(&recipe);
    let two = contenders(&[PeerVariant::Eager, PeerVariant::JaxRbg], Dtype::F32, &everywhere(&python));
    let two: Vec<PeerContender> = two.into_iter().filter(|c| c.precision == Precision::Highest).collect();
    let report = compared(&recipe, &two, folder.path(), 1).unwrap();
    assert_eq!(report.exit_code(), 0);
    let turns = fs::read_to_string(folder.path().join("turns")).unwrap();
    // Between our first two steps and the race, seven rounds measure how eager's threads wait best.
    let probed = 4..4 + 7 * 2 * 4;
    let (probes, lines): (Vec<_>, Vec<_>) = turns.lines().enumerate().partition(|(n, _)| probed.contains(n));
    assert!(probes.iter().all(|(_, line)| line.starts_with("eager")));
    let lines: Vec<&str> = lines.into_iter().map(|(_, line)| line).collect();
    // A step ends before the next one begins, whoever takes it.
    assert!(lines.chunks(2).all(|step| step[0].strip_suffix(" begins") == step[1].strip_suffix(" ends")), "{lines:?}");
    // Steps in a row by whom: a turn of a peer asks twice, untimed and timed; in ours short steps are repeated.
    let mut turns: Vec<(&str, usize)> = Vec::new();
    for who in lines.iter().filter_map(|line| line.strip_suffix(" begins")) {
        match turns.last_mut() {
            Some((last, steps)) if *last == who => *steps += 1,
            _ => turns.push((who, 1)),
        }
    }
    let [("ours", first), ("eager", 2), ("ours", second), ("jax-rbg", 2)] = turns[..] else { panic!("{turns:?}") };
    // Ours ran twice before the race, for its results and with dropout.
    assert!(first > 4 && second > 2, "{turns:?}");
}

#[test]
fn a_wrong_request_names_the_missing_parts() {
    let recipe = recipe("mha");
    let folder = tempfile::tempdir().unwrap();
    let nobody = compared(&recipe, &[], folder.path(), 3).unwrap_err();
    assert_eq!((nobody.exit_code(), nobody.to_string().contains("--torch")), (2, true));
    let nowhere = contenders(&[PeerVariant::Eager], Dtype::F32, &everywhere(Path::new("/no/such/python")));
    let missing = compared(&recipe, &nowhere, folder.path(), 3).unwrap_err();
    assert_eq!(missing.exit_code(), 4, "{missing}");
    assert_eq!(compared(&recipe, &nowhere, folder.path(), 0).unwrap_err().exit_code(), 2);
}

/// Missing modules are reported in a line with the command that installs them, for all peers at once.
#[cfg(unix)]
#[test]
fn peers_are_checked_before_anything_else() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    // A Python that sees no packages but stand-ins for the framework, and lacks the others.
    let bare = folder.path().join("bare");
    fs::write(&bare, format!("#!/bin/sh\nexec {} -I -S \"$@\"\n", python.display())).unwrap();
    let mut rights = fs::metadata(&bare).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o755);
    fs::set_permissions(&bare, rights).unwrap();
    let pythons =
        Pythons { torch: Some(bare.clone()), jax: Some("/no/such/python".into()), onnx: Some("/bin/true".into()), openvino: None };
    let lacking = check_pythons(&PeerVariant::ALL, &pythons).unwrap_err();
    assert_eq!(lacking.exit_code(), 4);
    let lines: Vec<String> = lacking.to_string().lines().map(str::to_string).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let install = format!("install with: {} -m pip install torch numpy safetensors", bare.display());
    assert!(
        lines[0].starts_with("--torch ") && lines[0].contains("lacks torch, numpy and safetensors") && lines[0].ends_with(&install),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("--jax /no/such/python cannot be run") && lines[2].contains("--onnx /bin/true is no Python"), "{lines:?}");
    // A framework that takes no part needs no modules.
    assert!(check_pythons(&[PeerVariant::Jax], &Pythons { torch: Some(bare), ..Pythons::default() }).is_err_and(|e| e.exit_code() == 2));
    // The command reports it before it reads the plan, and without a traceback.
    let output = memlet(&["compare", "no-such-plan.json", "--jax", "/no/such/python"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && error.lines().count() == 1 && error.contains("--jax"), "{error}");
}

/// The script for all shapes checks its peers first, too, before any sweep.
#[cfg(unix)]
#[test]
fn the_script_checks_its_peers_first() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/compare.sh");
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("bash")
        .arg(script)
        .args(["--quick", "--out"])
        .arg(folder.path().join("out"))
        .env("MEMLET", env!("CARGO_BIN_EXE_memlet"))
        .env("MEMLET_JAX", "/no/such/python")
        .env_remove("MEMLET_TORCH")
        .env_remove("MEMLET_ONNX")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("--jax /no/such/python cannot be run") && !said.contains("choosing a plan"), "{said}");
    assert!(!folder.path().join("out").exists());
}

#[test]
fn an_interrupted_run_is_no_comparison() {
    let recipe = recipe("mha");
    let folder = tempfile::tempdir().unwrap();
    let python = everywhere(Path::new("/no/such/python"));
    let one = contenders(&[PeerVariant::Jax], Dtype::F32, &python);
    let stopped = compared_until(&recipe, &one, folder.path(), 3, &AtomicBool::new(true)).unwrap_err();
    assert_eq!(stopped.exit_code(), 130, "{stopped}: nobody is started any more");
}

#[test]
fn frameworks_agree_with_the_oracle() {
    let named = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let pythons = Pythons { torch: named("MEMLET_TORCH"), jax: named("MEMLET_JAX"), onnx: named("MEMLET_ONNX"), openvino: None };
    let variants: &[PeerVariant] = match std::env::var("MEMLET_PEERS").as_deref() {
        Ok("all") => &PeerVariant::ALL,
        _ => &[PeerVariant::Eager, PeerVariant::Sdpa, PeerVariant::Jax, PeerVariant::JaxRbg, PeerVariant::Onnx, PeerVariant::OnnxAttention],
    };
    let all = contenders(variants, Dtype::F32, &pythons);
    if all.is_empty() {
        eprintln!("skipped: set MEMLET_TORCH, MEMLET_JAX or MEMLET_ONNX to the Python of an environment that has the framework");
        return;
    }
    for name in ["mha", "bert-base-encoder", "bert-large-encoder"] {
        let folder = tempfile::tempdir().unwrap();
        write_scripts(folder.path()).unwrap();
        let report = compared(&recipe(name), &all, folder.path(), 2).unwrap();
        println!("{}", report.text(false));
        assert_eq!(report.exit_code(), 0, "{name}");
        let memory = report.rows.iter().filter_map(|row| row.memory);
        assert!(memory.clone().all(|m| m.given_bytes < m.peak_bytes));
        assert_eq!(memory.count(), if pythons.torch.is_some() { 2 } else { 0 });
    }
}
