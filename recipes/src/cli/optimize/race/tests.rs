//! Wrong plans: another plan is taken, and refused plans are recorded as refused.

use super::*;
use crate::pipeline::choose::sweep_all::choose;
use clap::Parser;
use layouts::problem::Access;
use layouts::solve::selection::PlannedRelayout;
use sdfg::config::Relayout;
use sdfg::{Item, Scalar, Sdfg, Unit};

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: OptimizeArgs,
}

/// The program with one of its results doubled.
fn spoilt(program: &Sdfg) -> Sdfg {
    fn double(items: &mut [Item]) {
        for item in items {
            match item {
                Item::Tasklet(c) => c.tasklet.code.iter_mut().for_each(|(_, code)| *code = code.clone() * Scalar::Const(2.0)),
                Item::Scope(inner) => double(&mut inner.body),
                Item::Operation(_) => {}
            }
        }
    }
    let mut spoilt = program.clone();
    let found = program.units().into_iter().find_map(|(state, node, unit)| match unit {
        Unit::Scope(scope) => Some((state, node, scope)),
        _ => None,
    });
    let (state, node, mut scope) = found.expect("a kernel that is generated");
    double(&mut scope.body);
    let edit = transforms::Edit { state, remove: vec![node], insert: vec![Unit::Scope(scope)] };
    let patch = transforms::Patch { summary: "double it".into(), edits: vec![edit], containers: vec![], drop: vec![], dims: vec![] };
    patch.apply(&mut spoilt).expect("a patch");
    spoilt
}

/// The correct plans of the softmax recipe, if the programs that `wrong` accepts compute wrong results; with all messages.
fn taken(wrong: impl Fn(&str) -> bool, folder: &Path) -> Result<(Vec<String>, String), Failure> {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/softmax.yaml");
    let out = folder.display().to_string();
    let sizes = ["--set", "b=2", "--set", "j=4", "--set", "h=2", "--budget", "0s", "--timing", "0s", "--threads", "1"];
    let line = Line::parse_from([&["memlet", recipe, "--out", &out], &sizes[..]].concat());
    let mut session = line.args.measure.open()?;
    let mut sweeps = line.args.measure.sweep(&mut session, 1.0, None)?;
    let choices = choose(&sweeps, &session.store)?.0;
    for swept in sweeps.variants.iter_mut().chain(&mut sweeps.unfused).filter(|swept| wrong(&swept.name)) {
        swept.program = spoilt(&swept.program);
    }
    let said = std::cell::RefCell::new(String::new());
    let say = |text: &str| *said.borrow_mut() += &format!("{text}\n");
    let contending = contenders(&sweeps, &choices, &session, (Duration::from_secs(1), None))?;
    let reserve = reserve(&sweeps, &choices, &session, &contending);
    let mut contest = PlanRace::new(&line.args, &session, &sweeps, Duration::ZERO, &say)?;
    let right = contest.right(contending, reserve)?;
    let names: Vec<String> = right.iter().map(|c| c.name.clone()).collect();
    let warning = contest.warning(names.first().map_or("", String::as_str)).unwrap_or_default();
    drop(contest);
    Ok((names, said.into_inner() + &warning))
}

#[test]
fn another_plan_is_taken_where_one_is_wrong() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    // All fused programs are wrong: the unfused one remains, and the command succeeds.
    let (names, said) = taken(|name| name != "unfused", folder.path())?;
    assert_eq!(names, ["unfused · exact"]);
    assert!(said.contains("REFUSED: fused · exact is left out, its result is wrong"), "{said}");
    assert!(said.contains("WARNING") && said.contains("The plan that is handed out is `unfused · exact`"), "{said}");

    // The plan's file records the refusal, and running it reports it.
    let file = folder.path().join("plans/fused-exact.json");
    let plan = Plan::read(&file)?;
    assert!(matches!(plan.refused, Some(PlanRefusal::Wrong(_))));
    let refused = plan.usable(&file).expect_err("it is refused");
    assert!(refused.exit_code() == 3 && refused.to_string().contains("--force to run it anyway"), "{refused}");
    let kept = Plan::read(&folder.path().join("plans/unfused-exact.json"))?;
    assert!(kept.refused.is_none() && kept.usable(&file).is_ok());
    Ok(())
}

#[test]
fn the_command_fails_only_where_nothing_is_right() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let failed = taken(|_| true, folder.path()).err().ok_or("nothing is right")?;
    let failed = failed.downcast::<PipelineError>()?;
    assert!(failed.exit_code() == 3 && failed.to_string().contains("no plan could be verified"), "{failed}");
    let folder = tempfile::tempdir()?;
    assert!(taken(|_| false, folder.path())?.1.lines().all(|line| !line.contains("WARNING")));
    Ok(())
}

/// Where the best selection relays a large tensor out, another one does without; where it does not, there is none to look for.
#[test]
fn a_selection_without_large_relayouts_is_found() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (recipe, out) = (concat!(env!("CARGO_MANIFEST_DIR"), "/softmax.yaml"), folder.path().display().to_string());
    let sizes = ["--set", "b=2", "--set", "j=4", "--set", "h=2", "--budget", "0s", "--timing", "0s", "--threads", "1"];
    let line = Line::parse_from([&["memlet", recipe, "--out", &out], &sizes[..]].concat());
    let mut session = line.args.measure.open()?;
    let sweeps = line.args.measure.sweep(&mut session, 1.0, None)?;
    let choices = choose(&sweeps, &session.store)?.0;
    let (best, mut selection) = (&sweeps.variants[choices[0].swept], choices[0].selections[0].clone());
    selection.relayouts.clear();
    assert!(best.without_large_relayouts(&session.store, &selection)?.is_none());
    let large = best.problem.tensors.iter().max_by_key(|tensor| tensor.bytes).expect("a tensor");
    let (data, from, to) = (large.plain().to_string(), large.natural.clone(), large.natural.clone());
    let kernel = selection.kernels[0].kernel.clone();
    let relayout = Relayout { data: data.clone(), from, to };
    selection.relayouts.push(PlannedRelayout { kernel, access: Access::Read, relayout, ms: 1.0, measured: true });
    let found = best.without_large_relayouts(&session.store, &selection)?.expect("a selection");
    assert!(found.relayouts.iter().all(|planned| planned.relayout.data != data));
    assert_eq!(found.configuration.kernels.keys().collect::<Vec<_>>(), selection.configuration.kernels.keys().collect::<Vec<_>>());
    Ok(())
}
