//! The plan to train with: the one that is given, the one that an earlier command made of the recipe, or a new one.

use super::super::optimize::OptimizeArgs;
use super::super::out::errln;
use super::super::{INTERRUPT, RecipeArgs, default_out};
use super::TrainArgs;
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::run::target::Target;
use clap::Parser;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A plan, where it stands, and the device to run it on.
pub struct TrainedPlan {
    pub plan: Plan,
    pub file: PathBuf,
    pub target: Target,
}

/// The arguments of `memlet optimize`, alone.
#[derive(Parser)]
struct Optimize {
    #[command(flatten)]
    args: OptimizeArgs,
}

/// The plan; `None` if making one was interrupted.
///
/// # Errors
/// A plan that cannot be read, that is refused, or that is for another device; those of `memlet optimize`.
pub fn of(args: &TrainArgs) -> Result<Option<TrainedPlan>, PipelineError> {
    let given = &args.recipe.recipe;
    let (plan, file) = match is_plan(given) {
        true => {
            alone(&args.recipe, given)?;
            (Plan::read(given)?, given.clone())
        }
        false => match of_recipe(args)? {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    match (&plan.refused, args.force) {
        (Some(refusal), true) => errln!("this plan was refused, {refusal}; it runs because of --force"),
        _ => plan.usable(&file)?,
    }
    let target = args.device.clone().unwrap_or_else(|| plan.target.clone());
    if target.kind() != plan.target.kind() {
        let why = format!("its kernels are made for {}, not for {}; optimize the recipe with --device {target}", plan.target, target);
        return Err(PipelineError::Plan { file: file.display().to_string(), why });
    }
    Ok(Some(TrainedPlan { plan, file, target }))
}

fn is_plan(path: &Path) -> bool {
    path.is_dir() || path.extension().is_some_and(|end| end == "json")
}

/// Refuses options of a recipe beside a plan, whose sizes and types are fixed.
fn alone(args: &RecipeArgs, file: &Path) -> Result<(), PipelineError> {
    if args.sizes.is_empty() && args.dtype.is_none() && !args.narrow {
        return Ok(());
    }
    let why =
        "the sizes and types of a plan are fixed; give --set, --dtype and --narrow with the recipe, or optimize it with them".to_string();
    Err(PipelineError::Plan { file: file.display().to_string(), why })
}

/// The plan of a recipe: of an earlier command if that was made of the same text with the same options, else a new one.
fn of_recipe(args: &TrainArgs) -> Result<Option<(Plan, PathBuf)>, PipelineError> {
    let target = args.device.clone().unwrap_or_default();
    let recipe = args.recipe.load()?;
    let folder = args.out.clone().unwrap_or_else(|| default_out(&recipe, &args.recipe, &target));
    let file = folder.join("plan.json");
    let is_same = |plan: &Plan| {
        let sizes = args.recipe.sizes.iter().cloned().collect();
        let options = (&sizes, args.recipe.dtype, args.recipe.no_dropout, args.recipe.narrow);
        plan.text == recipe.text && (&plan.overrides, plan.dtype, plan.no_dropout, plan.narrow) == options && plan.target == target
    };
    if let Some(plan) = file.is_file().then(|| Plan::read(&file).ok()).flatten().filter(is_same) {
        errln!("plan: {}, of an earlier command", file.display());
        return Ok(Some((plan, file)));
    }
    crate::train::check(&recipe, &args.recipe.recipe, &args.asked())?;
    errln!("there is no plan of this recipe in {}: making one in about {:.0} s", folder.display(), args.budget.as_secs_f64());
    let mut optimize = optimize(args, &folder, &target)?;
    optimize.measure.quiet = true;
    optimize.run()?;
    if INTERRUPT.load(Ordering::SeqCst) {
        return Ok(None);
    }
    Ok(Some((Plan::read(&file)?, file)))
}

/// `memlet optimize` with what both commands have in common.
fn optimize(args: &TrainArgs, folder: &Path, target: &Target) -> Result<OptimizeArgs, PipelineError> {
    let text = |path: &Path| path.as_os_str().to_os_string();
    let mut words = vec!["optimize".into(), text(&args.recipe.recipe), "--out".into(), text(folder)];
    let mut option = |name: &str, value: String| words.extend([name.into(), value.into()]);
    option("--budget", format!("{}s", args.budget.as_secs_f64()));
    option("--threads", args.threads.to_string());
    option("--device", target.to_string());
    for (dim, size) in &args.recipe.sizes {
        option("--set", format!("{dim}={size}"));
    }
    if let Some(dtype) = args.recipe.dtype {
        option("--dtype", dtype.to_string());
    }
    for (flag, is_set) in [("--narrow", args.recipe.narrow), ("--no-dropout", args.recipe.no_dropout)] {
        words.extend(is_set.then(|| flag.into()));
    }
    let parsed = Optimize::try_parse_from(words).map_err(|e| PipelineError::Internal(e.to_string()))?;
    Ok(parsed.args)
}
