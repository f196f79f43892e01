//! Patterns of a plan as kernels, also where one unit is in several of them.

use crate::builder::{Builder, results};
use transforms::stitch::Stitch;
use transforms::{DriverOptions, run_pipeline};

fn names(of: &[&[&str]]) -> Vec<Vec<String>> {
    of.iter().map(|each| each.iter().map(|name| name.to_string()).collect()).collect()
}

/// A chain of two that a map over pairs and a sum read: each computes it for itself, and it is never in memory.
#[test]
fn a_unit_that_several_patterns_hold_is_computed_in_each() {
    let built = Builder::new(&["x[i,j]", "y[i,j]", "z[i,j]"], &["d[i,j]", "e[i,j]"], &["a[i,j]", "b[j]"])
        .map("d", &["i", "j"], "d[i,j]", "2.0*a", &["x[i,j]"])
        .map("e", &["i", "j"], "e[i,j]", "exp(a)", &["d[i,j]"])
        .map("a", &["i", "j"], "a[i,j]", "a + b", &["e[i,j]", "y[i,j]"])
        .sum("b", &["i", "j"], "b[j]", "a*b", &["e[i,j]", "z[i,j]"]);
    let patterns = names(&[&["d", "e", "a"], &["d", "e", "b"]]);
    let stitch = Stitch { patterns: patterns.clone(), again: names(&[&["d", "e"], &["d", "e"]]) };
    let made = run_pipeline(&built.program, &[&stitch], &DriverOptions::default()).expect("two kernels");
    assert_eq!(sdfg::validate::validate(&made.program), vec![]);
    let units = made.program.units();
    assert_eq!(units.len(), 2, "{:?}", units.iter().map(|(_, _, unit)| unit.name()).collect::<Vec<_>>());
    let of: Vec<&Vec<String>> = made.facts.stitched.iter().map(|stitched| &stitched.units).collect();
    assert_eq!(of, patterns.iter().collect::<Vec<_>>());
    for (_, _, unit) in &units {
        let sdfg::Unit::Scope(scope) = unit else { panic!("a map") };
        let reads = scope.computations().into_iter().flat_map(|(_, c)| c.reads.iter().map(|(_, m)| m.data.clone()).collect::<Vec<_>>());
        let heap = |name: &String| made.program.containers.get(name).is_some_and(|c| c.storage == sdfg::Storage::Heap);
        assert!(reads.filter(heap).all(|name| ["x", "y", "z"].contains(&name.as_str())), "{unit:?}");
    }
    let (want, got) = (results(&built.program), results(&made.program));
    for output in ["a", "b"] {
        assert!(want[output].iter().zip(&got[output]).all(|(w, g)| (w - g).abs() <= 1e-12 * w.abs().max(1.0)), "{output}");
    }
    // Where others need it in memory all the same, they have it from there.
    let alone = Stitch { patterns: patterns[..1].to_vec(), again: names(&[&["d", "e"]]) };
    let made = run_pipeline(&built.program, &[&alone], &DriverOptions::default()).expect("one kernel");
    let mut left: Vec<String> = made.program.units().iter().map(|(_, _, unit)| unit.name().to_string()).collect();
    left.sort();
    assert_eq!(left.len(), 4, "{left:?}");
    assert!(["b", "d", "e"].iter().all(|name| left.iter().any(|unit| unit == name)), "{left:?}");
}
