//! The paper's fused kernels are found in ours, whatever the recipe calls its tensors and however it orders its steps.

use recipes::analyze::{Analysis, OccurrenceIndex, PaperKernel, analyze};
use recipes::load::load_str;
use std::collections::{BTreeMap, BTreeSet};

fn analysis(text: &str, sizes: &[(&str, i64)]) -> Analysis {
    let sizes: Vec<(String, i64)> = sizes.iter().map(|(name, size)| (name.to_string(), *size)).collect();
    let recipe = load_str("recipe.yaml", text, &sizes).expect("the recipe");
    analyze(&recipe, false).expect("the analysis")
}

fn recipe(name: &str) -> String {
    std::fs::read_to_string(format!("{}/{name}.yaml", env!("CARGO_MANIFEST_DIR"))).expect("the recipe's file")
}

fn covered(analysis: &Analysis) -> BTreeSet<PaperKernel> {
    analysis.kernels.iter().flat_map(|k| k.covers.iter().copied()).collect()
}

/// Kernel of the paper → ours, each by its operators.
fn held(analysis: &Analysis) -> BTreeMap<PaperKernel, BTreeSet<BTreeSet<String>>> {
    let mut held: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for kernel in &analysis.kernels {
        for covers in &kernel.covers {
            held.entry(*covers).or_default().insert(kernel.operators.iter().cloned().collect());
        }
    }
    held
}

#[test]
fn the_encoder_layer_has_all_thirteen() {
    let analysis = analysis(&recipe("bert-large-encoder"), &[]);
    assert_eq!(covered(&analysis), BTreeSet::from(PaperKernel::ALL));
    // Every occurrence in the program, not only one of each kind.
    for occurrence in &analysis.occurrences {
        let whole = analysis.kernels.iter().any(|k| occurrence.operators.iter().all(|o| k.operators.contains(o)));
        assert!(whole, "{occurrence:?} is spread over several kernels");
    }
}

/// The operators of each, written down by hand.
#[test]
fn each_is_found_in_its_place() {
    let analysis = analysis(&recipe("bert-large-encoder"), &[]);
    let mut found: BTreeMap<PaperKernel, Vec<String>> = BTreeMap::new();
    for o in &analysis.occurrences {
        found.entry(o.kernel).or_default().push(o.operators.iter().cloned().collect::<Vec<_>>().join(" "));
    }
    let want = [
        (PaperKernel::Aib, vec!["kk qq vv"]),
        (PaperKernel::Baob, vec!["d_bo"]),
        (PaperKernel::Baib, vec!["d_bk d_bq d_bv"]),
        (PaperKernel::Sm, vec!["alpha alpha.softmax"]),
        (PaperKernel::Brd, vec!["ff1 ff1.bias ff1.relu"]),
        (PaperKernel::Bdrln, vec!["ff2 res2 res2.dropout y"]),
        (PaperKernel::Drln, vec!["attn norm1 res1 res1.dropout"]),
        (PaperKernel::Bsb, vec!["d_g2"]),
        (PaperKernel::Blnrd, vec!["d_attn d_res1", "d_ff2 d_res2"]),
        (PaperKernel::Bdrb, vec!["d_b1 d_ff1.bias d_ff1.relu"]),
        (PaperKernel::Ebsb, vec!["d_g1 d_norm1"]),
        (PaperKernel::Bs, vec!["d_alpha.softmax d_beta"]),
        (PaperKernel::Bei, vec!["d_x"]),
    ];
    let want: BTreeMap<PaperKernel, Vec<String>> = want.into_iter().map(|(k, v)| (k, v.into_iter().map(String::from).collect())).collect();
    assert_eq!(found, want);
}

#[test]
fn gelu_and_other_sizes_change_nothing() {
    assert_eq!(covered(&analysis(&recipe("bert-base-encoder"), &[])), BTreeSet::from(PaperKernel::ALL));
    assert_eq!(covered(&analysis(&recipe("bert-large-encoder"), &[("b", 96), ("j", 128)])), BTreeSet::from(PaperKernel::ALL));
}

/// `name` as a whole word becomes `to`.
fn rename(text: &str, name: &str, to: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        out.push_str(before);
        let whole = !out.ends_with(is_word) && !after.starts_with(is_word);
        out.push_str(if whole { to } else { name });
        rest = after;
    }
    out + rest
}

/// Every tensor and dim renamed, the steps in another order, sums and products written the other way round.
fn disguised() -> String {
    let text = recipe("bert-large-encoder");
    let (head, steps) = text.split_once("steps:\n").expect("steps");
    let (steps, train) = steps.split_once("train:").expect("train");
    let mut lines: Vec<&str> = steps.lines().filter(|l| l.trim_start().starts_with('-')).collect();
    // The projections stand before what reads them; among themselves their order is free.
    assert!(lines.iter().take(3).all(|l| l.contains("* x[")), "{lines:?}");
    lines[..3].reverse();
    let mut text = format!("{head}steps:\n{}\ntrain:{train}", lines.join("\n"));
    for (old, new) in [
        ("kk[p,h,b,k] * qq[p,h,b,j]", "qq[p,h,b,j] * kk[p,h,b,k]"),
        ("vv[p,h,b,k] * alpha[h,b,j,k]", "alpha[h,b,j,k] * vv[p,h,b,k]"),
        ("x[i,b,j] + dropout(attn[i,b,j], rate: 0.1)", "dropout(attn[i,b,j], rate: 0.1) + x[i,b,j]"),
        ("w2[i,u] * ff1[u,b,j] + b2[i]", "b2[i] + ff1[u,b,j] * w2[i,u]"),
    ] {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    let tensors = ["x", "wq", "bq", "wk", "bk", "wv", "bv", "wo", "bo", "g1", "s1", "w1", "b1", "w2", "b2", "g2", "s2", "qq", "kk", "vv"];
    let results = ["beta", "alpha", "gamma", "attn", "res1", "norm1", "ff1", "ff2", "res2", "y"];
    for (n, name) in tensors.into_iter().chain(results).enumerate() {
        text = rename(&text, name, &format!("t{}", (n * 7) % 31));
    }
    for (dim, new) in [("b", "rows"), ("j", "left"), ("k", "right"), ("h", "heads"), ("p", "part"), ("i", "wide"), ("u", "inner")] {
        text = rename(&text, dim, new);
    }
    text
}

#[test]
fn names_order_and_sizes_do_not_matter() {
    let analysis = analysis(&disguised(), &[("rows", 3), ("left", 40), ("heads", 5), ("part", 12), ("wide", 60), ("inner", 100)]);
    assert_eq!(covered(&analysis), BTreeSet::from(PaperKernel::ALL), "{:#?}", analysis.occurrences);
    let sizes = |a: &Analysis| -> Vec<usize> { held(a).values().flatten().map(BTreeSet::len).collect() };
    assert_eq!(sizes(&analysis), sizes(&self::analysis(&recipe("bert-large-encoder"), &[])));
}

/// A kernel that holds only a part of one of the paper's does not cover it.
#[test]
fn a_part_covers_nothing() {
    let analysis = analysis(&recipe("bert-large-encoder"), &[]);
    for occurrence in &analysis.occurrences {
        for left_out in &occurrence.operators {
            let part: Vec<String> = occurrence.operators.iter().filter(|o| *o != left_out).cloned().collect();
            assert!(
                !OccurrenceIndex::of(&analysis.occurrences).covered(&part).contains(&occurrence.kernel),
                "{occurrence:?} without {left_out}"
            );
        }
    }
}

/// Attention alone: its own kernels, and none of the feed-forward part or of a residual.
#[test]
fn attention_alone_has_its_five() {
    let want = BTreeSet::from([PaperKernel::Aib, PaperKernel::Baob, PaperKernel::Baib, PaperKernel::Sm, PaperKernel::Bs]);
    assert_eq!(covered(&analysis(&recipe("mha"), &[])), want);
}

/// A multilayer perceptron has no attention.
#[test]
fn no_attention_is_found_where_there_is_none() {
    let attention =
        BTreeSet::from([PaperKernel::Aib, PaperKernel::Baob, PaperKernel::Baib, PaperKernel::Sm, PaperKernel::Bs, PaperKernel::Bei]);
    assert_eq!(covered(&analysis(&recipe("mlp"), &[])).intersection(&attention).count(), 0);
    assert_eq!(covered(&analysis(&recipe("softmax"), &[])).intersection(&attention).count(), 0);
}
