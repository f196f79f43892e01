//! Schedule templates through the command line: explained, listed, and run.

use crate::command::{json, memlet, path, recipe, refused, text};
use std::path::Path;

#[test]
fn templates_are_explained_listed_and_run() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schedule-templates");
    std::fs::create_dir_all(&folder).expect("a folder");
    let plan = path(&folder, "plan.json");
    let mut optimize = vec!["optimize", "", "--set", "b=2", "--set", "j=64", "--budget", "1s", "--timing", "1s", "--threads", "2"];
    let (softmax, out) = (recipe("softmax.yaml"), folder.display().to_string());
    optimize[1] = &softmax;
    optimize.extend(["--out", &out]);
    text(&memlet(&optimize));

    let told = text(&memlet(&["explain", &plan, "y"]));
    assert!(told.contains("schedule template of y: ") && told.contains("y[h:16, b:2, j:64, k:64]"), "{told}");
    let answer = json(&memlet(&["explain", &plan, "y", "--json"]));
    let own = answer["templates"][0]["template"].as_str().expect("a template").to_string();
    assert!(told.contains(&own), "{own}: {told}");

    let listed = json(&memlet(&["explain", &plan, "y", "--templates=1000", "--json"]));
    let all = listed["templates"].as_array().expect("templates");
    assert!(all.len() > 3 && listed["all_templates"].as_u64() == Some(all.len() as u64), "{listed}");
    assert_eq!(all.iter().filter(|t| t["plan"] == true).count(), 1, "{listed}");
    assert!(all.iter().any(|t| t["template"] == own.as_str() && t["plan"] == true), "{listed}");
    let costs: Vec<f64> = all.iter().map(|t| t["cost_bytes"].as_f64().unwrap_or(f64::INFINITY)).collect();
    assert!(costs.is_sorted(), "{costs:?}");
    let shown = text(&memlet(&["explain", &plan, "y", "--templates=2"]));
    assert!(shown.contains(&format!("2 of {} templates", all.len())) && shown.contains("configurations were looked at"), "{shown}");

    // The plan's own template is the plan's own configuration.
    let asked = format!("y={own}");
    let ran = json(&memlet(&["run", &plan, "--template", &asked, "--timing", "300ms", "--threads", "2", "--json"]));
    let templated = &ran["templates"][0];
    assert_eq!((&templated["config"], &templated["template"]), (&templated["plan_config"], &own.as_str().into()), "{ran}");
    // Another one is checked, and timed beside it.
    let other = all.iter().find(|t| t["plan"] == false && t["relayouts"].as_array().is_some_and(Vec::is_empty)).expect("another template");
    let other = other["template"].as_str().expect("a text");
    let asked = format!("y={other}");
    let ran = json(&memlet(&["run", &plan, "--template", &asked, "--check", "--timing", "300ms", "--threads", "2", "--json"]));
    let templated = &ran["templates"][0];
    assert!(templated["template"] == other && templated["config"] != templated["plan_config"], "{templated}");
    assert!(templated["ratio"].as_f64().is_some_and(|ratio| ratio <= 1.0), "{templated}");
    assert!(["alone_ms", "plan_alone_ms"].iter().all(|key| templated[key].as_f64() > Some(0.0)), "{templated}");
    assert!(ran["step_ms"].as_f64() > Some(0.0) && ran["plan"]["step_ms"].as_f64() > Some(0.0), "{ran}");
    // At full size, too.
    assert!(ran["checked"].as_array().expect("results").iter().all(|c| c["ratio"].as_f64().is_some_and(|ratio| ratio <= 1.0)), "{ran}");
    let shown = text(&memlet(&["run", &plan, "--template", &asked, "--timing", "300ms", "--threads", "2"]));
    assert!(shown.contains(&format!("y as {other}")) && shown.contains("the plan's own configuration") && shown.contains(&own), "{shown}");

    let run = |template: &str| memlet(&["run", &plan, "--template", template, "--timing", "100ms"]);
    refused(&run("y=y[GRID,LANES];"), "column 8");
    refused(&run("y[GRID];"), "names no kernel");
    refused(&run("nothing=y[GRID];"), "there is no kernel `nothing` in the plan");
    refused(&run("y=y[GRID];"), "4 dims (h, b, j, k)");
    refused(&run("y=z[GRID];"), "no operator `z`");
    refused(&run("y=y[WARP,WARP,WARP,WARP];"), "the nearest are");
    refused(&memlet(&["explain", &plan, "--templates"]), "name the kernel");
    refused(&memlet(&["explain", &plan, "nothing", "--templates"]), "there is no kernel `nothing`");
}
