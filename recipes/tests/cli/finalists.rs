//! Plans that trade time for memory: `optimize --finalists`, and what the plan, its explanation and a library say of them.

use crate::command::{json, memlet, path, recipe, text};
use recipes::pipeline::choose::plan::Plan;
use serde_json::Value;

#[test]
fn finalists_need_less_memory_than_every_faster_one_and_can_be_built() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, mlp) = (folder.path().display().to_string(), recipe("mlp.yaml"));
    // Tensors between the layers have 2 MB.
    let sizes = ["--set", "b=512", "--set", "i=16", "--set", "u=1024", "--budget", "0s", "--timing", "0s", "--threads", "1"];
    let optimize = |finalists: &[&str]| {
        let own = [&["optimize", &mlp, "--out", &out, "--json", "--memory-slack", "5%"], &sizes[..], finalists].concat();
        json(&memlet(&own))
    };
    let first = optimize(&["--finalists", "1000%"]);
    let written = std::fs::read_to_string(folder.path().join("finalists.json")).expect("a file");
    let written: Value = serde_json::from_str(&written).expect("JSON");
    assert_eq!((&written["finalists"], &written["memory_slack"]), (&first["finalists"], &first["memory_slack"]));
    assert_eq!((&written["taken"], written["threads"].as_u64(), written["slower"].as_f64()), (&first["winner"], Some(1), Some(10.0)));
    let finalists = written["finalists"].as_array().expect("finalists");
    let number = |finalist: &Value, of: &str| finalist[of].as_f64().unwrap_or_else(|| panic!("{of} of {finalist}"));
    assert!(!finalists.is_empty());
    for pair in finalists.windows(2) {
        assert!(number(&pair[0], "step_ms") <= number(&pair[1], "step_ms"), "{written:#}");
        assert!(number(&pair[0], "workspace_bytes") >= number(&pair[1], "workspace_bytes") + 1e6, "{written:#}");
    }
    for finalist in finalists {
        let file = path(folder.path(), finalist["file"].as_str().expect("a file"));
        let library = path(folder.path(), "library");
        let built = json(&memlet(&["build", &file, "--out", &library, "--threads", "1", "--json"]));
        // A line more than the parts: the context's caller may give memory that begins anywhere in one.
        assert_eq!(number(finalist, "workspace_bytes"), built["workspace_bytes"][0].as_f64().expect("bytes") + 64.0, "{finalist}");
        let checked = first["verified"].as_array().expect("checks").iter().filter(|check| check["plan"] == finalist["plan"]);
        let (name, plainest) = (finalist["plan"].as_str().expect("a name"), "unfused · PyTorch's layout");
        let whole = checked.filter(|check| check["against"].as_str().is_some_and(|against| against.contains("at full size"))).count();
        assert!(whole > 0 || name == plainest, "{name} was not compared at full size: {:#}", first["verified"]);
    }

    let choice = Plan::read(&folder.path().join("plan.json")).expect("a plan").choice.expect("why it was taken");
    assert_eq!((choice.memory_slack, Value::from(choice.fastest)), (0.05, first["fastest"].clone()));
    assert!(choice.step_ms <= 1.05 * choice.fastest_ms && choice.peak_bytes > 0);
    assert!(text(&memlet(&["explain", &out])).contains("taken with --memory-slack 5% of the plans that were timed"));

    // What was chosen stands, unless other finalists are asked for.
    for (asked, timed) in [(&["--finalists", "1000%"][..], false), (&[], false), (&["--finalists", "50%"], true)] {
        let again = optimize(asked);
        assert_eq!(again["timed"].as_array().is_some_and(|plans| !plans.is_empty()), timed, "{asked:?}");
    }
}
