//! Contractions and their neighbours: each pattern as a readable pair before → after, and what is refused.
//!
//! Sizes are those of [`Builder::sized`]; what is composed depends on them, because composition must move fewer bytes.

use crate::builder::{Builder, flush, kernels, results};
use sdfg::{Combine, Role, Scalar};
use transforms::{Cluster, Composition, DriverOptions, FusionKind, PipelineOutcome, Reason, Site, WantedKernels, clusters, run_pipeline};

fn composed(built: &Builder, accept: &dyn Fn(&Cluster) -> bool) -> PipelineOutcome {
    run_pipeline(&built.program, &[&Composition { wanted: accept.into() }], &DriverOptions::default()).expect("composition")
}

/// Composes; both texts must match, and the results agree: f64 sums of a few terms, in the same order or another.
fn becomes(built: &Builder, before: &str, after: &str) {
    assert_eq!(kernels(&built.program), flush(before));
    let composed = composed(built, &|_| true);
    assert_eq!(kernels(&composed.program), flush(after));
    assert_eq!(sdfg::validate::validate(&composed.program), vec![]);
    for step in &composed.steps {
        assert!(step.bytes_after < step.bytes_before, "{step:?}");
    }
    let (want, got) = (results(&built.program), results(&composed.program));
    for output in built.program.containers.values().filter(|c| c.role == Role::Output) {
        let (want, got) = (&want[&output.name], &got[&output.name]);
        assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e-12 * w.abs().max(1.0)), "{}: {want} became {got}", output.name);
    }
}

/// A linear layer with a rectifier and a column sum, of which the unrectified form is saved.
#[test]
fn an_epilogue_takes_bias_activation_and_column_sums() {
    let built = Builder::new(&["x[i,k]", "w[k,j]", "c[j]"], &["t[i,j]"], &["s[i,j]", "y[i,j]", "g[j]"])
        .contraction("dot", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
        .map("bias", &["i", "j"], "s[i,j]", "a + b", &["t[i,j]", "c[j]"])
        .map("relu", &["i", "j"], "y[i,j]", "max(a, 0.0)", &["s[i,j]"])
        .sum("columns", &["i", "j"], "g[j]", "a", &["y[i,j]"]);
    becomes(
        &built,
        "
        dot
        map i=0:i, j=0:j { s[i, j] = t[i, j] + c[j] }
        map i=0:i, j=0:j { y[i, j] = max(s[i, j], 0.0) }
        map i=0:i reduction, j=0:j { g[j] += y[i, j] }
        ",
        "
        map i=0:i, j=0:j {
          map k=0:k reduction { t[] += x[i, k]*w[k, j] }
          s[i, j] = t[] + c[j]
          s.here[] = t[] + c[j]
          y[i, j] = max(s.here[], 0.0)
          y.here[] = max(s.here[], 0.0)
          g[j] += y.here[]
        }
        ",
    );
}

#[test]
fn a_row_epilogue_keeps_the_row() {
    let built = Builder::new(&["x[i,k]", "w[k,j]"], &["t[i,j]", "n[i]"], &["y[i,j]"])
        .contraction("dot", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
        .sum("norm", &["i", "j"], "n[i]", "a * a", &["t[i,j]"])
        .map("divide", &["i", "j"], "y[i,j]", "a / b", &["t[i,j]", "n[i]"]);
    becomes(
        &built,
        "
        dot
        map i=0:i, j=0:j reduction { n[i] += t[i, j]*t[i, j] }
        map i=0:i, j=0:j { y[i, j] = t[i, j]/n[i] }
        ",
        "
        map i=0:i {
          map j=0:j, k=0:k reduction { t[j] += x[i, k]*w[k, j] }
          map j=0:j reduction { n[] += t[j]*t[j] }
          map j=0:j { y[i, j] = t[j]/n[] }
        }
        ",
    );
}

/// The product stands alone with its operand: what it sums over stays inside.
#[test]
fn a_prologue_makes_the_operand() {
    let built = Builder::new(&["x[i,k]", "w[k,j]"], &["t[i,k]"], &["y[i,j]"])
        .map("exp", &["i", "k"], "t[i,k]", "exp(a)", &["x[i,k]"])
        .contraction("dot", &["i", "j", "k"], "y[i,j]", "t[i,k]", "w[k,j]");
    becomes(
        &built,
        "
        map i=0:i, k=0:k { t[i, k] = exp(x[i, k]) }
        dot
        ",
        "
        map i=0:i {
          map k=0:k { t[k] = exp(x[i, k]) }
          map j=0:j, k=0:k reduction { y[i, j] += t[k]*w[k, j] }
        }
        ",
    );
}

/// Scores, their normalization and the weighted sum of values, under names that say nothing; keys of another length than
/// queries; the product is scaled.
fn attention() -> Builder {
    Builder::new(&["q[i,j]", "m[k,j]", "v[k,l]"], &["s[i,k]", "r[i]", "e[i,k]", "z[i]", "a[i,k]"], &["o[i,l]"])
        .sized(&[("i", 4), ("j", 3), ("k", 7), ("l", 2)])
        .scaled_contraction("score", &["i", "k", "j"], "s[i,k]", "q[i,j]", "m[k,j]", Scalar::Const(0.5))
        .kernel("top", &["i", "k"], "r[i]", Some(Combine::Max), "a", &["s[i,k]"])
        .map("power", &["i", "k"], "e[i,k]", "exp(a - b)", &["s[i,k]", "r[i]"])
        .sum("total", &["i", "k"], "z[i]", "a", &["e[i,k]"])
        .map("weight", &["i", "k"], "a[i,k]", "a / b", &["e[i,k]", "z[i]"])
        .contraction("mix", &["i", "l", "k"], "o[i,l]", "a[i,k]", "v[k,l]")
}

#[test]
fn attention_stays_on_chip() {
    becomes(
        &attention(),
        "
        score
        map i=0:i, k=0:k reduction { r[i] max= s[i, k] }
        map i=0:i, k=0:k { e[i, k] = exp(s[i, k] - r[i]) }
        map i=0:i, k=0:k reduction { z[i] += e[i, k] }
        map i=0:i, k=0:k { a[i, k] = e[i, k]/z[i] }
        mix
        ",
        "
        map i=0:i {
          map k=0:k, j=0:j reduction { s.raw[k] += q[i, j]*m[k, j] }
          map k=0:k {
            s[k] = s.raw[k]*0.5
            r[] max= s[k]
          }
          map k=0:k {
            e[k] = exp(s[k] - r[])
            z[] += e[k]
          }
          map k=0:k { a[k] = e[k]/z[] }
          map l=0:l, k=0:k reduction { o[i, l] += a[k]*v[k, l] }
        }
        ",
    );
}

/// Two products of a row and the product that sums over the rows, batch by batch: the core of attention backward. The scale
/// of both goes to the row that they share.
#[test]
fn a_sum_over_rows_needs_batches() {
    let built = |batch: bool| {
        let b = |text: &str| if batch { text.to_string() } else { text.replace("l,", "") };
        let names = |all: &[&'static str]| -> Vec<&'static str> { all.iter().copied().filter(|n| batch || *n != "l").collect() };
        let mut built = Builder::new(
            &[&b("q[l,i,j]"), &b("m[l,k,j]"), &b("c[l,i,k]")],
            &[&b("s[l,i,k]"), &b("d[l,i,k]")],
            &[&b("dq[l,i,j]"), &b("dm[l,k,j]")],
        )
        .sized(&[("l", 2), ("i", 4), ("j", 3), ("k", 7)]);
        built = built.contraction("score", &names(&["l", "i", "k", "j"]), &b("s[l,i,k]"), &b("q[l,i,j]"), &b("m[l,k,j]"));
        built = built.map("weigh", &names(&["l", "i", "k"]), &b("d[l,i,k]"), "a * b * 2.0", &[&b("s[l,i,k]"), &b("c[l,i,k]")]);
        for (name, out, by, over) in [("left", "dq[l,i,j]", "m[l,k,j]", "i"), ("right", "dm[l,k,j]", "q[l,i,j]", "k")] {
            let indices = if over == "i" { ["l", "i", "j", "k"] } else { ["l", "k", "j", "i"] };
            built = built.scaled_contraction(name, &names(&indices), &b(out), &b("d[l,i,k]"), &b(by), Scalar::Const(0.5));
        }
        built
    };
    becomes(
        &built(true),
        "
        score
        map l=0:l, i=0:i, k=0:k { d[l, i, k] = s[l, i, k]*c[l, i, k]*2.0 }
        left
        right
        ",
        "
        map l=0:l, i=0:i, k=0:k {
          map j=0:j reduction { s[] += q[l, i, j]*m[l, k, j] }
          d[] = s[]*c[l, i, k]*2.0
          d.scaled[] = d[]*0.5
          map j=0:j {
            dq[l, i, j] += d.scaled[]*m[l, k, j]
            dm[l, k, j] += d.scaled[]*q[l, i, j]
          }
        }
        ",
    );
    let alone = built(false);
    let reason = refusal(&alone, "weigh", "right");
    assert!(matches!(&reason, Reason::SummedOutside { data, .. } if data == "dq" || data == "dm"), "{reason}");
}

/// Why two kernels stay apart.
fn refusal(built: &Builder, first: &str, second: &str) -> Reason {
    let refusals = clusters(&built.program, WantedKernels { accept: &|_| true, form: None, chains: false, known: None }).1;
    let found =
        refusals.iter().find(|r| r.units == [first, second]).unwrap_or_else(|| panic!("no refusal of {first}, {second}: {refusals:?}"));
    assert_eq!(found.origin.as_ref().map(|o| o.file.as_str()), Some("pattern.yaml"));
    found.reason.clone()
}

#[test]
fn an_operand_that_is_needed_elsewhere_is_no_prologue() {
    let built = Builder::new(&["x[i,k]", "w[k,j]"], &[], &["t[i,k]", "y[i,j]"])
        .map("exp", &["i", "k"], "t[i,k]", "exp(a)", &["x[i,k]"])
        .contraction("dot", &["i", "j", "k"], "y[i,j]", "t[i,k]", "w[k,j]");
    let want = Reason::Stored { data: "t".into(), contraction: "dot".into(), reader: "the caller".into() };
    assert_eq!(refusal(&built, "exp", "dot"), want);
    assert!(composed(&built, &|_| true).facts.kernels.is_empty());
}

/// With chains, alone: batches of products that do little with what they move; not one that does much, nor one without a batch.
#[test]
fn batches_of_small_products_become_kernels_alone() {
    for (size, batch, alone) in [(7, true, true), (4000, true, false), (7, false, false)] {
        let l = if batch { "l," } else { "" };
        let over: Vec<&str> = ["l", "i", "j", "k"].into_iter().filter(|index| batch || *index != "l").collect();
        let at = |name: &str, dims: &str| format!("{name}[{l}{dims}]");
        let (a, b, c) = (at("a", "i,k"), at("b", "k,j"), at("c", "i,j"));
        let built = Builder::new(&[&a, &b], &[], &[&c])
            .sized(&[("l", 3), ("i", size), ("j", size), ("k", size)])
            .contraction("product", &over, &c, &a, &b);
        let wanted = WantedKernels { chains: true, ..WantedKernels::default() };
        let found = run_pipeline(&built.program, &[&Composition { wanted }], &DriverOptions::default()).expect("composes");
        assert_eq!(found.facts.kernels.len(), usize::from(alone), "{size} {batch}");
        if alone {
            let (want, got) = (results(&built.program), results(&found.program));
            assert!(want["c"].iter().zip(&got["c"]).all(|(w, g)| (w - g).abs() <= 1e-12 * w.abs().max(1.0)), "{want:?} became {got:?}");
        }
    }
}

/// Chains alone: what both products have between them, and no other neighbour; what the second multiplies may be needed elsewhere.
#[test]
fn chains_take_what_lies_between_two_products() {
    let given = ["q[l,i,p]", "m[l,k,p]", "v[l,k,j]", "c[l,i,k]"];
    let built = Builder::new(&given, &["s[l,i,k]", "t[l,i,k]", "r[l,i,j]"], &["d[l,i,k]", "o[l,i,j]"])
        .sized(&[("l", 3), ("i", 5), ("j", 2), ("k", 7), ("p", 2)])
        .contraction("score", &["l", "i", "k", "p"], "s[l,i,k]", "q[l,i,p]", "m[l,k,p]")
        .map("weigh", &["l", "i", "k"], "t[l,i,k]", "a * b", &["s[l,i,k]", "c[l,i,k]"])
        .map("bend", &["l", "i", "k"], "d[l,i,k]", "exp(a)", &["t[l,i,k]"])
        .contraction("mix", &["l", "i", "j", "k"], "r[l,i,j]", "d[l,i,k]", "v[l,k,j]")
        .map("after", &["l", "i", "j"], "o[l,i,j]", "exp(a)", &["r[l,i,j]"]);
    let chains = |chains: bool| {
        run_pipeline(
            &built.program,
            &[&Composition { wanted: WantedKernels { chains, ..WantedKernels::default() } }],
            &DriverOptions::default(),
        )
        .expect("composes")
    };
    let found = chains(true);
    let members: Vec<&Vec<String>> = found.facts.kernels.iter().map(|c| &c.members).collect();
    assert_eq!(members, [&["score", "weigh", "bend", "mix"]]);
    let (want, got) = (results(&built.program), results(&found.program));
    for data in ["o", "d"] {
        assert!(want[data].iter().zip(&got[data]).all(|(w, g)| (w - g).abs() <= 1e-12 * w.abs().max(1.0)), "{want:?} became {got:?}");
    }
    assert!(chains(false).facts.kernels.iter().all(|c| c.contractions.len() < 2), "what is needed elsewhere is no chain otherwise");
}

/// What lies between two products is no larger than what the first reads.
#[test]
fn two_ordinary_products_stay_apart() {
    let built = Builder::new(&["x[i,k]", "w[k,j]", "u[j,k]"], &["t[i,j]"], &["y[i,k]"])
        .contraction("first", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
        .contraction("second", &["i", "k", "j"], "y[i,k]", "t[i,j]", "u[j,k]");
    assert!(
        matches!(refusal(&built, "first", "second"), Reason::Outweighed { data, contraction, .. } if data == "t" && contraction == "first")
    );
}

/// first → dot → last, and first → last.
#[test]
fn what_runs_between_is_not_jumped_over() {
    let built = Builder::new(&["x[i,k]", "w[k,j]", "u[j,k]"], &["t[i,j]", "s[i,k]", "r[i,j]"], &["y[i,j]"])
        .contraction("first", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
        .map("side", &["i", "j"], "r[i,j]", "exp(a)", &["t[i,j]"])
        .contraction("dot", &["i", "k", "j"], "s[i,k]", "r[i,j]", "u[j,k]")
        .sum("last", &["i", "j", "k"], "y[i,j]", "a * b * 2.0", &["t[i,j]", "s[i,k]"]);
    let units = built.program.units();
    let node = |name: &str| units.iter().find(|(_, _, u)| u.name() == name).map(|(state, node, _)| (*state, *node)).expect("a unit");
    let site = Site { state: node("first").0, units: vec![node("first").1, node("last").1] };
    let refusal = Composition::default().plan(&built.program, &site).expect_err("a cycle");
    assert_eq!(refusal.reason, Reason::Cycle { between: "side".into() });
}

/// A row of a million numbers and its exponentials.
#[test]
fn a_row_must_fit_a_cache() {
    let built = Builder::new(&["x[i,k]", "w[k,j]"], &["t[i,j]", "n[i]"], &["y[i,j]"])
        .sized(&[("i", 3), ("j", 1 << 20), ("k", 5)])
        .contraction("dot", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
        .kernel("top", &["i", "j"], "n[i]", Some(Combine::Max), "a", &["t[i,j]"])
        .map("shift", &["i", "j"], "y[i,j]", "a - b", &["t[i,j]", "n[i]"]);
    let composed = composed(&built, &|_| true);
    assert_eq!(held(&composed), [("top", vec![FusionKind::Epilogue])], "the maximum needs no row");
    assert_eq!(refusal(&built, "top", "shift"), Reason::TooLarge { bytes: 8 << 20, limit: 1 << 20 });
}

/// One row of a batch: its softmax shares no other index with the product before it, and one core would read all weights. Few bytes may
/// have a single point.
#[test]
fn a_kernel_of_many_bytes_has_several_points() {
    let built = |k: i64| {
        Builder::new(&["x[i,k]", "w[k,j]"], &["t[i,j]", "n[i]"], &["y[i,j]"])
            .sized(&[("i", 1), ("j", 64), ("k", k)])
            .contraction("dot", &["i", "j", "k"], "t[i,j]", "x[i,k]", "w[k,j]")
            .kernel("top", &["i", "j"], "n[i]", Some(Combine::Max), "a", &["t[i,j]"])
            .map("shift", &["i", "j"], "y[i,j]", "a - b", &["t[i,j]", "n[i]"])
    };
    assert_eq!(held(&composed(&built(8), &|_| true)), [("shift", vec![FusionKind::Epilogue, FusionKind::Rows])]);
    let many = built(1024);
    assert_eq!(held(&composed(&many, &|_| true)), [("top", vec![FusionKind::Epilogue])], "the maximum alone has a point for each column");
    assert!(matches!(refusal(&many, "top", "shift"), Reason::SinglePoint { limit: 131_072, .. }));
}

/// Names of the composed kernels, each with its kinds.
fn held(composed: &PipelineOutcome) -> Vec<(&str, Vec<FusionKind>)> {
    composed.facts.kernels.iter().map(|c| (c.name.as_str(), c.kinds.iter().copied().collect())).collect()
}

#[test]
fn a_kernel_that_is_not_wanted_stays_smaller() {
    let built = attention();
    let whole = composed(&built, &|_| true);
    assert_eq!(held(&whole), [("mix", FusionKind::ALL[..4].to_vec())]);
    assert_eq!(whole.facts.kernels[0].contractions, ["score", "mix"]);
    let apart = composed(&built, &|cluster| !cluster.kinds.contains(&FusionKind::Chain));
    assert_eq!(held(&apart), [("weight", vec![FusionKind::Epilogue, FusionKind::Rows])]);
    let (want, got) = (results(&built.program), results(&apart.program));
    assert!(want["o"].iter().zip(&got["o"]).all(|(w, g)| (w - g).abs() <= 1e-12 * w.abs().max(1.0)), "{want:?} became {got:?}");
    let found = apart.refusals.iter().find(|r| r.units == ["weight", "mix"]).expect("a refusal");
    assert_eq!(found.reason, Reason::NotWanted { kernel: "mix".into(), why: String::new() });
    let none = composed(&built, &|_| false);
    assert!(none.facts.kernels.is_empty());
    assert_eq!(kernels(&none.program), kernels(&built.program));
}
