//! A transform with a fault: its patch is found before any measurement, left out, and named.

use rayon::prelude::*;
use recipes::load::load_str;
use recipes::pipeline::variants::checked_programs::checked_programs;
use recipes::pipeline::variants::programs::{Programs, programs_on};
use recipes::pipeline::variants::rewrite_options::RewriteOptions;
use sdfg::interpret::{Run, interpret};
use sdfg::{Item, Scalar, Sdfg, Unit};
use transforms::{Edit, Patch, Pattern, Refusal, Site};

type Failure = Box<dyn std::error::Error>;

/// Doubles the result of the first kernel that writes `y`, once.
struct Doubled;

const ONCE: &str = "y twice";

impl Pattern for Doubled {
    fn name(&self) -> &'static str {
        "doubled"
    }

    fn sites(&self, program: &Sdfg) -> Vec<Site> {
        let writes = |unit: &Unit| matches!(unit, Unit::Scope(scope) if scope.writes().contains_key("y") && scope.map.label != ONCE);
        let units = program.units().into_iter().filter(|(_, _, unit)| writes(unit));
        units.map(|(state, node, _)| Site { state, units: vec![node] }).collect()
    }

    fn plan(&self, program: &Sdfg, site: &Site) -> Result<Patch, Box<Refusal>> {
        let found = program.units().into_iter().find(|(_, node, _)| *node == site.units[0]);
        let Some((_, node, Unit::Scope(mut scope))) = found else { panic!("a site of this program") };
        fn double(items: &mut [Item]) {
            for item in items {
                match item {
                    Item::Tasklet(c) => c.tasklet.code.iter_mut().for_each(|(_, code)| *code = code.clone() * Scalar::Const(2.0)),
                    Item::Scope(inner) => double(&mut inner.body),
                    Item::Operation(_) => {}
                }
            }
        }
        double(&mut scope.body);
        scope.map.label = ONCE.into();
        let edit = Edit { state: site.state, remove: vec![node], insert: vec![Unit::Scope(scope)] };
        Ok(Patch { summary: "double `y`".into(), edits: vec![edit], containers: vec![], drop: vec![], dims: vec![] })
    }
}

const RECIPE: &str = "{model: planted, dims: {b: 3, i: 7}, inputs: {x: [b, i]}, \
                      steps: ['a[b,i] = exp(x[b,i])', 'y[b,i] = a[b,i] + 1'], outputs: [y]}";

/// The results of every program on the same x; the test computes the correct ones itself.
fn results(programs: &Programs) -> Result<Vec<Vec<f64>>, Failure> {
    let x = ndarray::ArrayD::from_shape_fn(ndarray::IxDyn(&[3, 7]), |at| 0.1 * (at[0] as f64) - 0.2 * (at[1] as f64));
    let given = [("x".to_string(), x)].into_iter().collect();
    let run = Run { seed: 1, step: 0, dropout: true };
    let each = programs.variants.iter().map(|v| Ok(interpret(&v.program, &given, &run)?["y"].iter().copied().collect()));
    each.collect()
}

#[test]
fn a_wrong_patch_is_left_out_by_name_and_the_rest_is_right() -> Result<(), Failure> {
    let recipe = load_str("planted.yaml", RECIPE, &[])?;
    let options = RewriteOptions { planted: Some(&Doubled), ..RewriteOptions::default() };
    let want: Vec<f64> = (0..21).map(|n| (0.1 * f64::from(n / 7) - 0.2 * f64::from(n % 7)).exp() + 1.0).collect();
    let far = |got: &Vec<f64>| got.iter().zip(&want).any(|(g, w)| (g - w).abs() > 1e-12);
    assert!(results(&programs_on(&recipe, &options, None)?)?.iter().all(far), "the fault is there");

    let mut told = String::new();
    let programs = checked_programs(&recipe, &options, None, &mut |text| told += text)?;
    assert!(told.contains("after `double `y`` the program computes something else"), "{told}");
    assert_eq!(programs.options.barred.summaries().collect::<Vec<_>>(), ["double `y`"]);
    let all = results(&programs)?;
    assert!(!all.is_empty() && !all.iter().any(far));
    // The refusals give the reason why the patch is left out.
    let refusals = programs.variants.iter().flat_map(|v| &v.refusals);
    assert!(refusals.into_iter().any(|r| r.transform == "doubled" && r.reason.to_string().contains("computes something else")));

    // Remaking the programs of such a plan leaves the patch out, too.
    let barred: Vec<String> = programs.options.barred.summaries().map(String::from).collect();
    let again = RewriteOptions { planted: Some(&Doubled), ..RewriteOptions::without(&barred) };
    assert!(!results(&programs_on(&recipe, again, None)?)?.iter().any(far));

    // Correct programs are compared once, without messages.
    told.clear();
    checked_programs(&recipe, false, None, &mut |text| told += text)?;
    assert_eq!(told, "");
    Ok(())
}

/// No program of a shipped recipe is suspected, on cores or on GPUs.
#[test]
fn correct_programs_give_no_message() -> Result<(), Failure> {
    let files = std::fs::read_dir(env!("CARGO_MANIFEST_DIR"))?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>, Failure>>()?;
    let recipes: Vec<_> = files.into_iter().filter(|file| file.extension().is_some_and(|e| e == "yaml")).collect();
    assert!(!recipes.is_empty());
    let on_gpus = Some(kernels::target::cuda::cublaslt::FusedContraction::has as fn(&_) -> _);
    let cases: Vec<_> = recipes.iter().flat_map(|file| [(file, None), (file, on_gpus)]).collect();
    let failed = cases.into_par_iter().find_map_any(|(file, epilogues)| {
        let mut told = String::new();
        let checked = recipes::load::load(file, &[])
            .map_err(|e| e.to_string())
            .and_then(|recipe| checked_programs(&recipe, false, epilogues, &mut |text| told += text).map_err(|e| e.to_string()));
        let wrong = match checked {
            Err(error) => error,
            Ok(programs) if programs.variants.is_empty() => "it has no program".into(),
            Ok(_) if told.is_empty() => return None,
            Ok(_) => told,
        };
        Some(format!("{}: {wrong}", file.display()))
    });
    assert_eq!(failed, None);
    Ok(())
}

/// Every rewrite in any program of a recipe keeps its promise, on cores and on GPUs; gradients agree with finite differences.
#[test]
fn every_rewrite_of_small_recipes_is_right() -> Result<(), Failure> {
    let on_gpus = Some(kernels::target::cuda::cublaslt::FusedContraction::has as fn(&_) -> _);
    for (name, epilogues) in [("mlp.yaml", None), ("mlp.yaml", on_gpus), ("mha.yaml", None), ("mha.yaml", on_gpus), ("gru.yaml", None)] {
        let recipe = recipes::load::load(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name), &[])?;
        let programs = programs_on(&recipe, true, epilogues)?;
        // All rewrites are logged, beginning with the recipe.
        let logged = |pass: &str| programs.variants.iter().any(|v| v.steps.iter().any(|step| step.transform == pass));
        assert!(["differentiate", "expand", "fusion"].iter().all(|pass| logged(pass)), "{name}");
    }
    Ok(())
}
