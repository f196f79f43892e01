//! Plans that somebody has written to: what no kernel can be made of is bad input, with the reason.

use crate::command::{memlet, path, recipe, refused, text};
use serde_json::Value;
use std::path::Path;

#[test]
fn configurations_of_a_plan_that_no_kernel_has_are_bad_input() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("edited-plans");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (mlp, out, plan) = (recipe("mlp.yaml"), folder.display().to_string(), path(&folder, "plan.json"));
    text(&memlet(&["optimize", &mlp, "--budget", "0s", "--timing", "0s", "--threads", "1", "--out", &out]));
    let whole: Value = serde_json::from_str(&std::fs::read_to_string(&plan).expect("a plan")).expect("JSON");
    let kernels = whole["chosen"]["configuration"]["kernels"].as_object().expect("kernels");
    let product = kernels.iter().find(|(_, config)| config["knobs"].get("depth").is_some()).expect("a product").0.clone();
    for (knob, value, why) in [("form", "rows", "cannot be generated: it has no layers"), ("depth", "7", "no knob setting `depth=7`")] {
        let mut edited = whole.clone();
        edited["chosen"]["configuration"]["kernels"][&product]["knobs"][knob] = value.into();
        let file = path(&folder, &format!("{knob}.json"));
        std::fs::write(&file, edited.to_string()).expect("a file");
        refused(&memlet(&["run", &file, "--timing", "0s", "--threads", "1", "--force"]), why);
    }
}
