//! The commands on a small recipe, from the sweep to the report, as a user runs them.

use crate::command::{json, memlet, path, text};
use recipes::pipeline::choose::plan::Plan;
use sdfg::{Sdfg, Unit};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/mlp.yaml");

/// One run for all checks of its results: a sweep is the slow part.
#[test]
fn a_run_can_be_reported_explained_and_repeated() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let recipe = path(folder.path(), "recipe.yaml");
    std::fs::copy(RECIPE, &recipe).expect("a recipe");
    let sizes = ["--set", "b=16", "--set", "i=32", "--set", "u=64"];
    let mut optimize = vec!["optimize", &recipe, "--budget", "0s", "--timing", "1s", "--out", &out];
    optimize.extend(sizes);
    optimize.extend(["--json", "--timings"]);
    let first = json(&memlet(&optimize));
    where_time_went(&first["timings"], &out);
    assert!(first["report"].as_str().is_some_and(|page| page.ends_with("report.html")));
    assert!(first["choices"].as_array().expect("choices").iter().any(|c| c["method"] == "exact"));
    assert!(first["timed"].as_array().expect("plans").len() >= 3, "a plan and two baselines");
    assert!(first["timed"].as_array().expect("plans").iter().any(|t| t["plan"] == first["winner"]));
    assert!(first["verified"].as_array().expect("checks").iter().all(|v| v["worst"].as_f64().is_some_and(|w| w <= 1.0)));

    // The budget is spent and the plan stands: nothing is measured, verified or timed once more.
    let again = json(&memlet(&optimize));
    assert_eq!((&again["winner"], &again["plan"], &again["stored"]), (&first["winner"], &first["plan"], &first["stored"]));
    assert_eq!((again["timed"].as_array().map(Vec::len), again["verified"].as_array().map(Vec::len)), (Some(0), Some(0)));
    let mut sweep = vec!["sweep", &recipe, "--budget", "0s", "--out", &out, "--json"];
    sweep.extend(sizes);
    let swept = json(&memlet(&sweep));
    assert_eq!((&swept["stored"], &swept["coverage"]), (&first["stored"], &again["coverage"]));

    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a page");
    assert!(page.contains("id=\"waterfall\"") && page.contains("id=\"memory\""));
    // Self-contained: nothing is loaded, and the name spaces of SVG are the only addresses.
    assert!(!page.contains("src=") && !page.contains("<link") && page.matches("://").count() == page.matches("http://www.w3.org/").count());
    let values = json(&memlet(&["report", &out, "--json"]));
    for part in ["waterfall", "operators", "kernels", "classes", "sweeps", "contenders", "movement", "selection", "policy", "comparison"] {
        assert!(values[part].as_array().is_some_and(|rows| !rows.is_empty()), "{part} is empty");
    }
    times_add_up(&values);
    // The outcomes of the configurations add up, and every drawn configuration was measured.
    let count = |key: &str| values["coverage"][key].as_u64().expect("a count");
    let parts: u64 = ["identical", "bounded_out", "raced", "full", "unfit", "not_reached"].map(count).iter().sum();
    assert_eq!(parts, count("enumerated"));
    let chosen = values["sweeps"].as_array().expect("kernels").iter().filter(|s| s["chosen"].is_u64()).count();
    assert_eq!(chosen, values["sweeps"].as_array().expect("kernels").len(), "the plan runs a configuration that was not measured");
    // Fusion neither adds nor loses contractions: 2·u·i·b and 2·o·u·b forward, and as much for each weight and for each operand with a
    // gradient.
    let flop = |part: &str| -> u64 {
        let rows = values[part].as_array().expect("rows").iter().filter(|r| r["class"] == "contraction");
        rows.map(|r| r["flop"].as_u64().expect("flop")).sum()
    };
    assert_eq!(flop("operators"), 3 * 2 * 16 * (64 * 32 + 16 * 64));
    // A kernel that is fused with its neighbours counts their element-wise work as its own.
    let composed = values["kernels"]
        .as_array()
        .expect("rows")
        .iter()
        .any(|r| r["class"] == "contraction" && r["holds"].as_array().is_some_and(|o| o.len() > 1));
    assert!(if composed { flop("kernels") >= flop("operators") } else { flop("kernels") == flop("operators") });
    let records = std::fs::read_to_string(folder.path().join("records.csv")).expect("records");
    // One line for each, below the header: programs that share a kernel each count it, but the records hold it once.
    assert_eq!(records.lines().count() as u64, 1 + first["stored"].as_u64().expect("a count"));

    // The page redrawn from its values is the same.
    text(&memlet(&["report", &out]));
    assert_eq!(std::fs::read_to_string(folder.path().join("report.html")).expect("a page"), page);

    let plan = path(folder.path(), "plan.json");
    let kernel = values["kernels"][0]["name"].as_str().expect("a name");
    let answer = json(&memlet(&["explain", &plan, kernel, "--json"]));
    assert_eq!(answer["choice"]["name"], kernel);
    assert!(answer["choice"]["runner_up"]["more_ms"].as_f64().is_none_or(|ms| ms >= 0.0));
    // A plan contains its recipe, wherever the file is now.
    std::fs::remove_file(&recipe).expect("a recipe");
    // The records next to the plan explain the choice of the program.
    let program = json(&memlet(&["explain", &plan, "program", "--json"]));
    assert!(program["choice"]["total_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{program}");
    // The reason why two kernels are separate is given once, and it is the report's.
    for refused in values["refusals"].as_array().expect("refusals") {
        let (first, second) = (refused["first"].as_str().expect("a kernel"), refused["second"].as_str().expect("a kernel"));
        let answer = json(&memlet(&["explain", &plan, first, second, "--json"]));
        assert_eq!((answer["apart"].as_array().map(Vec::len), &answer["apart"][0]["reason"]), (Some(1), &refused["reason"]), "{answer}");
        let told = text(&memlet(&["explain", &plan, first, second]));
        assert_eq!(told.matches("are not one kernel").count(), 1, "{told}");
    }
    let told = memlet(&["explain", RECIPE, kernel]);
    assert!(String::from_utf8_lossy(&told.stderr).contains("this is a recipe and no plan; `memlet optimize"), "{told:?}");
    // A folder is explained by its plan; without a name the command lists all names.
    let told = text(&memlet(&["explain", &out]));
    assert!(told.contains(kernel) && told.contains(&format!("memlet explain {plan} NAME")), "{told}");
    assert_eq!(json(&memlet(&["explain", &out, kernel, "--json"]))["choice"]["name"], kernel);
    // Kernels of the cores are checked against the interpreter: in f32 they differ by rounding, within the tolerance.
    let checked = json(&memlet(&["run", &out, "--check", "--timing", "100ms", "--json"]));
    let checked = checked["checked"].as_array().expect("results").clone();
    assert!(checked.iter().all(|c| c["ratio"].as_f64().is_some_and(|ratio| ratio <= 1.0)), "{checked:?}");
    assert!(checked.iter().any(|c| c["max_error"].as_f64().is_some_and(|error| error > 0.0)), "{checked:?}");
    the_unfused_program_can_be_the_plan(&plan);
    selection_can_be_checked(folder.path());
    refused_plans_do_not_run(&plan);
    // An operator inside a kernel is explained by that kernel. The plan that wins may be the unfused one, so another is asked.
    let fused = path(folder.path(), "plans/gemm-fused-exact.json");
    let program = Plan::read(Path::new(&fused)).expect("a plan").chosen.program;
    let (held, operator) = held_operator(&program).expect("a fused kernel");
    let answer = json(&memlet(&["explain", &fused, &operator, "--json"]));
    assert_eq!(answer["place"]["inside"], held.as_str(), "{answer}");
    // The code that the plan runs for it.
    let code = text(&memlet(&["explain", &fused, &held, "--code"]));
    assert!(code.starts_with("/* ") && code.contains("memlet_kernel"), "{code}");
    let unknown = memlet(&["explain", &plan, "no-such-kernel", "--code"]);
    assert!(unknown.status.code() == Some(2) && String::from_utf8_lossy(&unknown.stderr).contains(kernel), "{unknown:?}");
    let unknown = memlet(&["explain", &plan, "no-such-kernel"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains(kernel), "known names are listed");
}

/// A kernel of several operators, and one of these by another name than the kernel's.
fn held_operator(program: &Sdfg) -> Option<(String, String)> {
    program.units().into_iter().find_map(|(_, _, unit)| {
        let Unit::Scope(scope) = &unit else { return None };
        let operators = scope.operators();
        let other = operators.iter().find(|operator| operators.len() > 1 && operator.as_str() != unit.name())?;
        Some((unit.name().to_string(), other.clone()))
    })
}

/// Where no fused program is faster, the unfused program is the plan: it is explained like any other.
fn the_unfused_program_can_be_the_plan(plan: &str) {
    let mut whole: Value = serde_json::from_slice(&std::fs::read(plan).expect("a plan")).expect("JSON");
    whole["chosen"] = whole["baselines"][1].clone();
    let unfused = plan.replace("plan.json", "unfused.json");
    std::fs::write(&unfused, whole.to_string()).expect("written");
    let kernels: Vec<String> = whole["chosen"]["configuration"]["kernels"].as_object().expect("kernels").keys().cloned().collect();
    assert_eq!(json(&memlet(&["explain", &unfused, &kernels[0], "--json"]))["choice"]["name"], *kernels[0]);
    let output = memlet(&["explain", &unfused, &kernels[0], &kernels[1]]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing in it is fused"), "{output:?}");
}

/// A plan that a check has refused reports it, and runs only with --force.
fn refused_plans_do_not_run(plan: &str) {
    let mut value: Value = serde_json::from_str(&std::fs::read_to_string(plan).expect("a plan")).expect("JSON");
    let file = plan.replace("plan.json", "refused.json");
    for (kind, code, said) in [("wrong", 3, "its result is wrong: `y` is off"), ("fails", 2, "it does not run: `y` is off")] {
        value["refused"] = serde_json::json!({ kind: "`y` is off" });
        std::fs::write(&file, value.to_string()).expect("written");
        let output = memlet(&["run", &file, "--timing", "10ms"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(said) && error.contains("--force to run it anyway"), "{error}");
        let forced = memlet(&["run", &file, "--timing", "10ms", "--force"]);
        assert!(forced.status.success() && String::from_utf8_lossy(&forced.stderr).contains("runs because of --force"), "{forced:?}");
    }
}

/// The phases of the command add up to the whole, those that work have taken time, and the report shows them.
fn where_time_went(timings: &Value, out: &str) {
    let seconds = |row: &Value, clock: &str| row[clock].as_f64().expect("seconds");
    let phases = timings["phases"].as_array().expect("phases");
    let names: Vec<&str> = phases.iter().filter_map(|row| row["phase"].as_str()).collect();
    let all = "load differentiate rewrite fuse compose check enumerate compile measure select race report other";
    assert_eq!(names.join(" "), all);
    for clock in ["wall_s", "cpu_s"] {
        let sum: f64 = phases.iter().map(|row| seconds(row, clock)).sum();
        assert!((sum - seconds(timings, clock)).abs() < 1e-6 * sum, "{clock}: {timings}");
    }
    let working = ["fuse", "check", "enumerate", "compile", "measure", "race", "report"];
    assert!(phases.iter().filter(|row| working.iter().any(|name| row["phase"] == *name)).all(|row| seconds(row, "wall_s") > 0.0));
    assert!(["nodes", "programs", "kernels", "configurations", "measurements"].iter().all(|count| timings[count].as_u64() > Some(0)));
    let page = std::fs::read_to_string(Path::new(out).join("report.html")).expect("the report");
    assert!(page.contains("Time of the command"));
}

/// Every kernel of the plan and of the unfused program is compared once, so that the sums are those of both programs.
fn times_add_up(report: &Value) {
    let rows = |part: &str| report[part].as_array().expect("rows").clone();
    let ms = |time: &Value| time["measured"].as_f64().unwrap_or(0.0);
    let sum = |part: &str, side: &str| rows(part).iter().map(|row| ms(&row[side])).sum::<f64>();
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.max(b);
    assert!(near(sum("comparison", "ours"), sum("kernels", "ours")), "{} {}", sum("comparison", "ours"), sum("kernels", "ours"));
    assert!(near(sum("comparison", "ours"), sum("classes", "ours")) && near(sum("comparison", "unfused"), sum("classes", "unfused")));
    let names = |side: &str| -> Vec<String> {
        let all = rows("comparison").iter().flat_map(|row| row[side].as_array().cloned().unwrap_or_default()).collect::<Vec<_>>();
        all.iter().map(|name| name.as_str().expect("a name").to_string()).collect()
    };
    let (kernels, operators) = (names("kernels"), names("operators"));
    assert_eq!(kernels.len(), rows("kernels").len());
    assert!([&kernels, &operators].iter().all(|names| names.iter().collect::<std::collections::BTreeSet<_>>().len() == names.len()));
    // Every row of operators is in the baseline: their times are its times.
    assert!(near(sum("comparison", "unfused"), sum("operators", "unfused")) || operators.iter().any(|name| name.starts_with("relayout")));
}

/// From the records alone: the choice, its certificate, and every change that invalidates it.
fn selection_can_be_checked(folder: &Path) {
    let (records, certificate) = (path(folder, "records.jsonl"), path(folder, "certificate.json"));
    // The certificate that `optimize` wrote.
    let confirmed = json(&memlet(&["verify-selection", &certificate, "--json"]));
    assert_eq!(confirmed["proven"], true);
    // Solving once more gives the same bytes.
    let solve = ["solve", &records, "--resamples", "5", "--json"];
    let first = text(&memlet(&solve));
    assert_eq!(text(&memlet(&solve)), first);
    let decisions: Value = serde_json::from_str(&first).expect("JSON");
    let recipe = decisions.as_array().expect("programs").iter().find(|d| !d["name"].as_str().unwrap_or_default().contains("unfused"));
    let selections = recipe.expect("the recipe")["selections"].as_array().expect("methods");
    assert_eq!(selections.len(), 6);
    let total = |s: &Value| s["total_ms"].as_f64().expect("a time");
    assert!(selections[0]["method"] == "exact" && selections[0]["proven"] == true);
    assert!(selections.iter().all(|s| total(s) >= total(&selections[0])));
    assert_eq!((total(&selections[0]) * 1e9).round() as i64, confirmed["total_ps"].as_i64().expect("a time"));

    let refused = |arguments: &[&str], why: &str| {
        let output = memlet(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(why), "{error}");
    };
    let changed = path(folder, "changed.json");
    let whole = std::fs::read_to_string(&certificate).expect("a certificate");
    std::fs::write(&changed, &whole[..whole.len() / 2]).expect("written");
    refused(&["verify-selection", &changed], "no whole certificate");
    let ps = confirmed["total_ps"].as_i64().expect("a time");
    std::fs::write(&changed, whole.replace(&format!("\"bound_ps\":{ps}"), &format!("\"bound_ps\":{}", ps - 1))).expect("written");
    refused(&["verify-selection", &changed], "was changed");
    refused(&["verify-selection", &path(folder, "no-such-file.json")], "no-such-file");

    let lines = std::fs::read_to_string(&records).expect("records");
    let fewer = path(folder, "fewer.jsonl");
    let sessions: String = lines.lines().filter(|l| l.contains("\"line\":\"session\"")).map(|l| format!("{l}\n")).collect();
    std::fs::write(&fewer, &sessions).expect("written");
    refused(&["solve", &fewer], "has no measured configuration");
    refused(&["verify-selection", &certificate, "--records", &fewer], "other measurements");
    let negative = lines.replacen("\"samples\":[", "\"samples\":[-1.0,", 1);
    std::fs::write(&fewer, &negative).expect("written");
    refused(&["solve", &fewer], "no time");
    let torn = lines.replacen("\"samples\":[", "\"samples\":[NaN,", 1);
    std::fs::write(&fewer, &torn).expect("written");
    refused(&["solve", &fewer], "damaged");
    let mut session: Value = serde_json::from_str(lines.lines().next().expect("a session")).expect("JSON");
    let names = session["program"]["tensors"].as_array().expect("containers").iter().map(|t| t["data"].clone()).collect::<Vec<_>>();
    session["program"]["ties"] = serde_json::json!([["no such container", names[0]]]);
    std::fs::write(&fewer, format!("{session}\n")).expect("written");
    refused(&["solve", &fewer], "does not describe it");
}

/// One fused kernel is made slow in the records, the others fast: its fusion is undone, the others stay, and the resulting program
/// competes.
#[test]
fn a_composition_that_does_not_pay_is_undone() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let common = [RECIPE, "--budget", "0s", "--out", &out, "--json", "--set", "b=16", "--set", "i=32", "--set", "u=64"];
    text(&memlet(&[&["sweep"], &common[..]].concat()));
    let records = path(folder.path(), "records.jsonl");
    let lines = std::fs::read_to_string(&records).expect("records");
    let parsed: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let keys = |variant: &str| -> Vec<(String, String)> {
        let session = parsed.iter().find(|l| l["variant"]["name"] == variant).expect("a session");
        let kernels = session["program"]["kernels"].as_array().expect("kernels").iter();
        kernels.map(|k| (k["name"].as_str().expect("a name").into(), k["key"].as_str().expect("a key").into())).collect()
    };
    let separate = keys("fused");
    let own: Vec<(String, String)> = keys("gemm-fused").into_iter().filter(|k| !separate.iter().any(|s| s.1 == k.1)).collect();
    assert!(own.len() > 1, "the recipe has several compositions: {own:?}");
    let (slow, key) = &own[0];
    let changed: Vec<String> = parsed
        .into_iter()
        .map(|mut line| {
            if let Some((_, found)) = own.iter().find(|(_, k)| line["key"] == k.as_str())
                && let Some(samples) = line["samples"].as_array_mut()
            {
                let factor = if found == key { 1e4 } else { 1e-4 };
                samples.iter_mut().for_each(|s| *s = (s.as_f64().expect("a time") * factor).into());
            }
            line.to_string()
        })
        .collect();
    std::fs::write(&records, changed.join("\n") + "\n").expect("written");

    let mut optimize = [&["optimize"], &common[..]].concat();
    optimize.extend(["--timing", "1s"]);
    let found = json(&memlet(&optimize));
    for part in ["choices", "coverage"] {
        assert!(found[part].as_array().expect("rows").iter().any(|c| c["program"] == "partially fused"), "{part}: {found:#}");
    }
    for part in ["verified", "timed"] {
        let mixed = |c: &Value| c["plan"].as_str().is_some_and(|p| p.starts_with("partially fused"));
        assert!(found[part].as_array().expect("rows").iter().any(mixed), "{part}: {found:#}");
    }
    let values = json(&memlet(&["report", &out, "--json"]));
    let rows = values["compositions"].as_array().expect("rows");
    let undone = rows.iter().find(|r| r["subject"] == slow.as_str() && r["changed"] == true).expect("the slow kernel is undone");
    let total = |parts: &Value| -> f64 {
        parts.as_array().expect("kernels").iter().map(|p| p["time"]["measured"].as_f64().unwrap_or(f64::NAN)).sum()
    };
    assert!(total(&undone["with"]) > total(&undone["instead"]), "{undone:#}");
    for row in rows {
        let names = |parts: &Value| parts.as_array().expect("kernels").iter().map(|p| p["kernel"].clone()).collect::<Vec<_>>();
        assert!(names(&row["with"]) != names(&row["instead"]) || row["note"].is_string() || !names(&row["with"]).is_empty());
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a page");
    assert!(page.contains("Compositions: measured") && page.contains(undone["change"].as_str().expect("a phrase")));
    // The decision stands as long as nothing new is measured.
    let again = json(&memlet(&optimize));
    assert_eq!((&again["winner"], again["timed"].as_array().map(Vec::len)), (&found["winner"], Some(0)));
    let plan = path(folder.path(), "plan.json");
    let kernel = values["kernels"][0]["name"].as_str().expect("a name");
    assert_eq!(json(&memlet(&["explain", &plan, kernel, "--json"]))["choice"]["name"], kernel);
}

#[test]
fn sizes_beyond_memory_are_bad_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = path(folder.path(), "out");
    let failed = memlet(&["optimize", RECIPE, "--set", "b=10000000000000", "--budget", "1s", "--out", &out]);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(2), "{said}");
    assert!(said.starts_with(RECIPE) && said.contains("of memory; use smaller sizes"), "{said}");
    assert!(!Path::new(&out).exists(), "nothing is written");
}

#[test]
fn devices_names_missing_libraries() {
    let devices = json(&memlet(&["devices", "--json"]));
    assert!(devices["machine"]["threads"].as_u64().is_some_and(|n| n > 0));
    let libraries: Vec<&str> = devices["cuda"].as_array().expect("libraries").iter().filter_map(|l| l["name"].as_str()).collect();
    assert_eq!(libraries, ["libcuda.so.1", "libnvrtc.so", "libcublasLt.so"]);
    for library in devices["cuda"].as_array().expect("libraries") {
        let advice = library["advice"].as_str().unwrap_or_default();
        assert_eq!(library["found"] == Value::Bool(true), !advice.contains("install"), "{library}");
    }
    let gpus = devices["gpus"]["gpus"].as_array().expect("GPUs");
    assert_eq!(gpus.is_empty(), devices["gpus"]["missing"].is_string(), "{}", devices["gpus"]);
    let without = Command::new(env!("CARGO_BIN_EXE_memlet")).args(["devices", "--json"]).env("CC", "/no/such/compiler").output();
    let without = without.expect("the command starts");
    assert_eq!(without.status.code(), Some(4));
    let printed: Value = serde_json::from_slice(&without.stdout).expect("JSON");
    assert!(printed["compiler"].is_null());
}

#[test]
fn a_folder_without_a_report_is_bad_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = memlet(&["report", &folder.path().display().to_string()]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("memlet optimize"));
}

#[test]
fn a_size_that_begins_with_a_zero_is_refused() {
    let failed = memlet(&["analyze", RECIPE, "--set", "b=010"]);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(2), "{said}");
    assert!(said.contains("`010` begins with a zero, which some read as octal; write 10"), "{said}");
}
