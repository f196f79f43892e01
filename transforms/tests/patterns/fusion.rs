//! The four patterns of fusion (Fig. 3 of "Data Movement Is All You Need"), each as a readable pair before → after, and
//! what is refused, with the place that the refusal points at.

use crate::builder::{Builder, flush, kernels, results};
use sdfg::Role;
use transforms::{DriverOptions, Fusion, Reason, Refusal, Stop, run_pipeline};

/// Fuses to a fixed point; both texts must match, and the results must be the same to the last bit: no pattern here
/// changes the order of a sum.
fn becomes(built: Builder, before: &str, after: &str) {
    assert_eq!(kernels(&built.program), flush(before));
    let outcome = run_pipeline(&built.program, &[&Fusion::default()], &DriverOptions::default()).expect("fusion");
    assert_eq!(outcome.stop, Stop::Fixpoint);
    assert_eq!(kernels(&outcome.program), flush(after));
    let (want, got) = (results(&built.program), results(&outcome.program));
    for output in built.program.containers.values().filter(|c| c.role == Role::Output) {
        assert_eq!(want[&output.name], got[&output.name], "{}", output.name);
    }
}

#[test]
fn producer_and_consumer_over_equal_spaces() {
    becomes(
        Builder::new(&["x[i,j]", "c[i]"], &["t[i,j]"], &["y[i,j]"]).map("bias", &["i", "j"], "t[i,j]", "a + b", &["x[i,j]", "c[i]"]).map(
            "relu",
            &["i", "j"],
            "y[i,j]",
            "max(a, 0.0)",
            &["t[i,j]"],
        ),
        "
        map i=0:i, j=0:j { t[i, j] = x[i, j] + c[i] }
        map i=0:i, j=0:j { y[i, j] = max(t[i, j], 0.0) }
        ",
        "
        map i=0:i, j=0:j {
          t[] = x[i, j] + c[i]
          y[i, j] = max(t[], 0.0)
        }
        ",
    );
}

#[test]
fn producer_and_consumer_that_reduces() {
    becomes(
        Builder::new(&["x[i,j]"], &["t[i,j]"], &["s[i]"]).map("square", &["i", "j"], "t[i,j]", "a * a", &["x[i,j]"]).sum(
            "sum",
            &["i", "j"],
            "s[i]",
            "a",
            &["t[i,j]"],
        ),
        "
        map i=0:i, j=0:j { t[i, j] = x[i, j]*x[i, j] }
        map i=0:i, j=0:j reduction { s[i] += t[i, j] }
        ",
        "
        map i=0:i, j=0:j {
          t[] = x[i, j]*x[i, j]
          s[i] += t[]
        }
        ",
    );
}

/// The reduction comes first: only the outer index is shared, and the sum stays in a register.
#[test]
fn reduction_and_consumer_share_the_outer_index() {
    becomes(
        Builder::new(&["x[i,j]"], &["s[i]"], &["y[i,j]"]).sum("sum", &["i", "j"], "s[i]", "a", &["x[i,j]"]).map(
            "scale",
            &["i", "j"],
            "y[i,j]",
            "a / b",
            &["x[i,j]", "s[i]"],
        ),
        "
        map i=0:i, j=0:j reduction { s[i] += x[i, j] }
        map i=0:i, j=0:j { y[i, j] = x[i, j]/s[i] }
        ",
        "
        map i=0:i {
          map j=0:j reduction { s[] += x[i, j] }
          map j=0:j { y[i, j] = x[i, j]/s[] }
        }
        ",
    );
}

/// The producer over both indices runs first. The loop that it opens comes after what the outer index has made, so that consumers of
/// both need no second loop, and no row between the two.
#[test]
fn outer_iterations_are_ready_before_a_loop_opens() {
    let built = Builder::new(&["x[i,j]", "z[i,j]", "c[i]"], &["t[i,j]", "s[i]", "u[i,j]"], &["y[i,j]"])
        .map("square", &["i", "j"], "t[i,j]", "a * a", &["x[i,j]"])
        .map("exp", &["i"], "s[i]", "exp(a)", &["c[i]"])
        .map("scale", &["i", "j"], "u[i,j]", "a / b", &["z[i,j]", "s[i]"])
        .map("add", &["i", "j"], "y[i,j]", "a + b", &["u[i,j]", "t[i,j]"]);
    becomes(
        built,
        "
        map i=0:i, j=0:j { t[i, j] = x[i, j]*x[i, j] }
        map i=0:i { s[i] = exp(c[i]) }
        map i=0:i, j=0:j { u[i, j] = z[i, j]/s[i] }
        map i=0:i, j=0:j { y[i, j] = u[i, j] + t[i, j] }
        ",
        "
        map i=0:i {
          s[] = exp(c[i])
          map j=0:j {
            t[] = x[i, j]*x[i, j]
            u[] = z[i, j]/s[]
            y[i, j] = u[] + t[]
          }
        }
        ",
    );
}

#[test]
fn siblings_read_their_input_once() {
    becomes(
        Builder::new(&["x[i,j]"], &[], &["y[i,j]", "s[j]"]).map("exp", &["i", "j"], "y[i,j]", "exp(a)", &["x[i,j]"]).sum(
            "sum",
            &["i", "j"],
            "s[j]",
            "a",
            &["x[i,j]"],
        ),
        "
        map i=0:i, j=0:j { y[i, j] = exp(x[i, j]) }
        map i=0:i reduction, j=0:j { s[j] += x[i, j] }
        ",
        "
        map i=0:i, j=0:j {
          y[i, j] = exp(x[i, j])
          s[j] += x[i, j]
        }
        ",
    );
}

#[test]
fn independent_kernels_over_equal_spaces_save_a_launch() {
    becomes(
        Builder::new(&["x[i,j]", "u[i,j]"], &[], &["y[i,j]", "v[i,j]"]).map("exp", &["i", "j"], "y[i,j]", "exp(a)", &["x[i,j]"]).map(
            "neg",
            &["i", "j"],
            "v[i,j]",
            "-a",
            &["u[i,j]"],
        ),
        "
        map i=0:i, j=0:j { y[i, j] = exp(x[i, j]) }
        map i=0:i, j=0:j { v[i, j] = -u[i, j] }
        ",
        "
        map i=0:i, j=0:j {
          y[i, j] = exp(x[i, j])
          v[i, j] = -u[i, j]
        }
        ",
    );
}

#[test]
fn long_independent_kernels_keep_loops_of_their_own() {
    let built = Builder::new(&["x[i,j]", "u[i,j]"], &[], &["y[i,j]", "v[i,j]"]).map("y", &["i", "j"], "y[i,j]", "exp(a)", &["x[i,j]"]).map(
        "v",
        &["i", "j"],
        "v[i,j]",
        "-a",
        &["u[i,j]"],
    );
    let touched = 2 * built.program.bytes("y").expect("a size");
    for (independent, kernels) in [(touched, 1), (touched - 1, 2), (0, 2)] {
        let fusion = Fusion { independent, ..Fusion::default() };
        let outcome = run_pipeline(&built.program, &[&fusion], &DriverOptions::default()).expect("fusion");
        assert_eq!(outcome.program.units().len(), kernels, "{independent} bytes");
    }
}

/// What is refused in the program as it stands.
fn refusals(built: &Builder) -> Vec<Refusal> {
    let outcome = run_pipeline(&built.program, &[&Fusion::default()], &DriverOptions::default()).expect("fusion");
    assert!(outcome.steps.is_empty(), "{:?}", outcome.steps);
    outcome.refusals
}

/// The refusal of a pair: its reason, after its place has been checked.
fn refused<'a>(refusals: &'a [Refusal], first: &str, second: &str, line: u32) -> &'a Reason {
    let found =
        refusals.iter().find(|r| r.units == [first, second]).unwrap_or_else(|| panic!("no refusal of {first}, {second}: {refusals:?}"));
    assert_eq!(found.origin.as_ref().map(|o| (o.file.as_str(), o.line)), Some(("pattern.yaml", line)));
    assert!(found.to_string().contains(&format!("pattern.yaml:{line}:3")), "{found}");
    &found.reason
}

#[test]
fn contractions_stay_kernels_of_their_own() {
    let built = Builder::new(&["x[i,k]", "w[k,j]", "c[j]"], &["t[i,j]"], &["y[i,j]"])
        .contraction("dot", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
        .map("bias", &["i", "j"], "y[i,j]", "a + b", &["t[i,j]", "c[j]"]);
    let refusals = refusals(&built);
    assert_eq!(refused(&refusals, "dot", "bias", 2), &Reason::Contraction { unit: "dot".into() });
}

/// first → dot → last, and first → last: fused, dot would need the kernel that needs dot.
#[test]
fn what_runs_between_is_not_jumped_over() {
    let built = Builder::new(&["x[i,k]", "w[k,j]"], &["t[i,k]", "s[i,j]"], &["y[i,j]"])
        .map("first", &["i", "k"], "t[i,k]", "exp(a)", &["x[i,k]"])
        .contraction("dot", &["i", "j", "k"], "s[i,j]", "t[i,k]", "w[k,j]")
        .map("last", &["i", "j"], "y[i,j]", "a + b", &["s[i,j]", "t[i,j]"]);
    let refusals = refusals(&built);
    assert_eq!(refused(&refusals, "first", "last", 3), &Reason::Cycle { between: "dot".into() });
}

/// Iteration i reads what iteration i-1 wrote.
#[test]
fn a_shifted_read_is_not_local() {
    let built = Builder::new(&["x[i]"], &["t[i]"], &["y[i]"]).map("exp", &["i"], "t[i]", "exp(a)", &["x[i]"]).map(
        "difference",
        &["i"],
        "y[i]",
        "a - b",
        &["t[i]", "t[i-1]"],
    );
    let refusals = refusals(&built);
    let space = || "i".to_string();
    let want = Reason::NoSharedIndex { first: "exp".into(), first_space: space(), second: "difference".into(), second_space: space() };
    assert_eq!(refused(&refusals, "exp", "difference", 2), &want);
}

/// The sum over everything is complete only after all iterations.
#[test]
fn a_whole_sum_shares_no_index_with_its_reader() {
    let built = Builder::new(&["x[i]"], &["s[]"], &["y[i]"]).sum("sum", &["i"], "s[]", "a", &["x[i]"]).map(
        "scale",
        &["i"],
        "y[i]",
        "a / b",
        &["x[i]", "s[]"],
    );
    let refusals = refusals(&built);
    assert!(matches!(refused(&refusals, "sum", "scale", 2), Reason::NoSharedIndex { .. }));
}

#[test]
fn strangers_over_different_spaces_stay_apart() {
    let built = Builder::new(&["x[i,j]", "u[i,k]"], &[], &["y[i,j]", "v[i,k]"])
        .map("exp", &["i", "j"], "y[i,j]", "exp(a)", &["x[i,j]"])
        .map("neg", &["i", "k"], "v[i,k]", "-a", &["u[i,k]"]);
    let refusals = refusals(&built);
    let want = Reason::SpacesDiffer { first_space: "i,j".into(), second_space: "i,k".into() };
    assert_eq!(refused(&refusals, "exp", "neg", 2), &want);
}
