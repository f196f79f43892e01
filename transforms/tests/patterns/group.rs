//! Which contractions become one kernel.

use crate::builder::{Builder, results};
use sdfg::Unit;
use transforms::{DriverOptions, GroupedGemm, run_pipeline};

/// The program with its group; `None` if the pass refuses.
fn grouped(program: &sdfg::Sdfg) -> Option<sdfg::Sdfg> {
    let outcome = run_pipeline(program, &[&GroupedGemm], &DriverOptions::default()).expect("a patch that fits");
    (!outcome.steps.is_empty()).then_some(outcome.program)
}

/// Units by name; those inside of a group in brackets.
fn units(program: &sdfg::Sdfg) -> Vec<String> {
    let inside = |unit: &Unit| match unit {
        Unit::Nested(nested) => format!(" [{}]", units(&nested.program).join(", ")),
        _ => String::new(),
    };
    program.units().iter().map(|(_, _, unit)| format!("{}{}", unit.name(), inside(unit))).collect()
}

#[test]
fn results_that_nobody_waits_for_are_made_together() {
    let built = Builder::new(&["x[i,k]", "w[k,j]", "g[i,j]"], &["t[i,j]"], &["y[i,j]", "dw[k,j]", "dx[i,k]"])
        .contraction("dw", &["i", "j", "k"], "dw[k,j]", "x[i,k]", "g[i,j]")
        .contraction("t", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
        .contraction("dx", &["i", "j", "k"], "dx[i,k]", "g[i,j]", "w[k,j]")
        .map("y", &["i", "j"], "y[i,j]", "max(a, 0.0)", &["t[i,j]"]);
    let program = grouped(&built.program).expect("a group");
    // What `t` makes is read: it stays apart.
    assert_eq!(units(&program), ["t", "dw+dx [dw, dx]", "y"]);
    assert_eq!(sdfg::validate::validate(&program), vec![]);
    let (want, got) = (results(&built.program), results(&program));
    assert!(["y", "dw", "dx"].iter().all(|name| want[*name] == got[*name]));
    // One kernel, in which what both read moves once.
    let moved = sdfg::movement::movement(&program).expect("bound sizes");
    let group = moved.iter().find(|m| m.name == "dw+dx").expect("the group");
    assert_eq!(group.reads.iter().map(|t| t.data.as_str()).collect::<Vec<_>>(), ["x", "g", "w"]);
    assert_eq!((group.flop, group.operators.len()), (2 * 2 * 60, 2));
}

#[test]
fn one_alone_is_no_group() {
    let built = Builder::new(&["x[i,k]", "w[k,j]"], &[], &["y[i,j]"]).contraction("y", &["i", "j", "k"], "y[i,j]", "x[i,k]", "w[k,j]");
    assert_eq!(grouped(&built.program), None);
}

/// A product without rows has no tile that fills a block.
#[test]
fn what_multiplies_no_matrices_stays_apart() {
    let built = Builder::new(&["x[i,k]", "w[k,j]", "g[i,j]", "e[i,j,k]"], &[], &["dw[k,j]", "dx[i,k]", "dv[i,k]"])
        .contraction("dw", &["i", "j", "k"], "dw[k,j]", "x[i,k]", "g[i,j]")
        .contraction("dv", &["i", "j", "k"], "dv[i,k]", "e[i,j,k]", "g[i,j]")
        .contraction("dx", &["i", "j", "k"], "dx[i,k]", "g[i,j]", "w[k,j]");
    let program = grouped(&built.program).expect("a group");
    assert_eq!(units(&program), ["dv", "dw+dx [dw, dx]"]);
}
