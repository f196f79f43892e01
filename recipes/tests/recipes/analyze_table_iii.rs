//! Table III of "Data Movement Is All You Need", line by line: flop, input and output of every operator of the layer.
//!
//! `recipes/table-iii.md` is written from the same rows; `MEMLET_BLESS=1` rewrites it.

use recipes::analyze::{Analysis, OperatorEntry, analyze};
use recipes::load::load;
use sdfg::Class;
use std::path::PathBuf;

/// One printed line. Flop in 2³⁰ with three decimals, volumes in 10⁶ elements.
struct Printed {
    /// As in the paper; lines of the same name in the order of the paper.
    name: &'static str,
    /// Our operator, by the name of its result.
    ours: &'static str,
    flop: Option<&'static str>,
    input: &'static str,
    output: &'static str,
    /// Why a volume differs; empty where both agree.
    note: &'static str,
}

const fn line(
    name: &'static str,
    ours: &'static str,
    flop: &'static str,
    input: &'static str,
    output: &'static str,
    note: &'static str,
) -> Printed {
    Printed { name, ours, flop: Some(flop), input, output, note }
}

const fn free(name: &'static str, ours: &'static str, input: &'static str, output: &'static str) -> Printed {
    Printed { name, ours, flop: None, input, output, note: "" }
}

const STATISTICS: &str =
    "The operator also writes a mean and a deviation for each of the 4096 rows, 0.008 together, which the table leaves out.";
const LAYERNORM_INPUT: &str = "As (1). The input is one activation, 4.19, with scale and shift, 0.002; 8.3 would be two activations. The first of the two equal normalizations is printed with 4.1.";
const QKV_DW: &str = "It reads the layer's input once and three gradients: 4 · 4.19 = 16.8; it writes three weights of 1.05 each. The printed output is one weight; the printed input is no sum of the operands.";
const WEIGHTS_ONLY: &str = "The result is a few thousand elements.";

const LINES: &[Printed] = &[
    line("Q, K, V", "qq.dot+kk.dot+vv.dot", "24.000", "7.3", "12.5", ""),
    line("Input bias", "qq+kk+vv", "0.012", "12.5", "12.5", ""),
    line("QKᵀ", "beta", "4.000", "8.3", "33.5", ""),
    line("Scaled softmax", "alpha.softmax+alpha", "0.188", "33.5", "100.6", ""),
    line("Gamma", "gamma", "4.000", "37.7", "4.1", ""),
    line("Out", "attn.dot", "8.000", "5.2", "4.1", ""),
    line("Output bias", "attn", "0.004", "4.1", "4.1", ""),
    line("Dropout", "res1.dropout", "0.004", "4.1", "8.3", ""),
    line("Residual", "res1", "0.004", "8.3", "4.1", ""),
    line("LayerNorm", "norm1", "0.027", "4.1", "4.1", STATISTICS),
    line("Linear", "ff1.dot", "32.000", "8.3", "16.7", ""),
    line("Bias", "ff1.bias", "0.016", "16.7", "16.7", ""),
    free("ReLU", "ff1.relu", "16.7", "16.7"),
    line("Dropout", "ff1", "0.016", "16.7", "33.5", ""),
    line("Linear", "ff2.dot", "32.000", "20.9", "4.1", ""),
    line("Bias", "ff2", "0.004", "4.1", "4.1", ""),
    line("Dropout", "res2.dropout", "0.004", "4.1", "8.3", ""),
    line("Residual", "res2", "0.004", "8.3", "4.1", ""),
    line("LayerNorm", "y", "0.027", "8.3", "4.1", LAYERNORM_INPUT),
    line("LayerNorm dW", "d_g2", "0.016", "8.3", "<0.01", WEIGHTS_ONLY),
    line("LayerNorm dX", "d_res2", "0.035", "8.3", "4.1", ""),
    line("Dropout dX", "d_ff2", "0.004", "8.3", "4.1", ""),
    line("Linear+Bias dX", "d_ff1", "32.000", "8.3", "16.7", ""),
    line("Linear dW", "d_w2", "32.000", "20.9", "4.1", ""),
    line("Bias dW", "d_b2", "0.004", "4.1", "<0.1", WEIGHTS_ONLY),
    line("Dropout dX", "d_ff1.relu", "0.016", "33.5", "16.7", ""),
    free("ReLU dX", "d_ff1.bias", "33.5", "16.7"),
    line("Bias dW", "d_b1", "0.016", "16.7", "<0.1", WEIGHTS_ONLY),
    line("Linear+Bias dX", "d_norm1.ff1.dot", "32.000", "20.9", "4.1", ""),
    line("Linear dW", "d_w1", "32.000", "20.9", "4.1", ""),
    line("Residual", "d_norm1", "0.004", "8.3", "4.1", ""),
    line("LayerNorm dW", "d_g1", "0.016", "8.3", "<0.1", WEIGHTS_ONLY),
    line("LayerNorm dX", "d_res1", "0.035", "8.3", "4.1", ""),
    line("Dropout dX", "d_attn", "0.004", "8.3", "4.1", ""),
    line("Output bias dW", "d_bo", "0.004", "4.1", "<0.1", WEIGHTS_ONLY),
    line(
        "Out dX",
        "d_gamma",
        "8.000",
        "4.3",
        "4.1",
        "It reads a gradient (4.19) and the weights (1.05), as the line Out does, which is printed with 5.2; 4.3 leaves out most of the weights.",
    ),
    line("Out dW", "d_wo", "8.000", "8.3", "1.0", ""),
    line("Gamma dX1", "d_alpha", "4.000", "8.3", "33.5", ""),
    line(
        "Gamma dX2",
        "d_vv",
        "4.000",
        "67.1",
        "33.5",
        "It reads the softmax's result (33.6) and a gradient (4.19) and writes a gradient (4.19). The printed cells fit the next line, without its mask: two tensors of 33.6 in, one out.",
    ),
    line(
        "Scaled softmax dX",
        "d_alpha.softmax+d_beta",
        "0.156",
        "12.5",
        "4.1",
        "It reads its upstream gradient, the softmax's result and the stored mask, 33.6 each, and writes 33.6. The printed cells would be three activations of 4.19 in and one out, which no operator of the layer has.",
    ),
    line("QKᵀ dX1", "d_qq", "4.000", "37.7", "4.1", ""),
    line("QKᵀ dX2", "d_kk", "4.000", "37.7", "4.1", ""),
    line("Q, K, V dX", "d_x.vv.dot+d_x.kk.dot+d_x.qq.dot", "24.000", "15.7", "4.1", ""),
    line("Q, K, V dW", "d_wv+d_wk+d_wq", "24.000", "20.4", "1.0", QKV_DW),
    line("Input bias dW", "d_bv+d_bk+d_bq", "0.012", "12.5", "<0.1", WEIGHTS_ONLY),
    line("Residual", "d_x", "0.004", "8.3", "4.1", ""),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn encoder() -> Analysis {
    analyze(&load(&folder().join("bert-large-encoder.yaml"), &[]).expect("the recipe"), false).expect("the analysis")
}

fn find<'a>(analysis: &'a Analysis, printed: &Printed) -> &'a OperatorEntry {
    analysis.operators.iter().find(|o| o.name == printed.ours).unwrap_or_else(|| panic!("no operator {}", printed.ours))
}

/// 2³⁰ flop, rounded to three decimals as printed.
fn gibi(flop: u64) -> String {
    format!("{:.3}", flop as f64 / (1u64 << 30) as f64)
}

/// 10⁶ elements, cut after one decimal: 16 777 216 is printed as 16.7.
fn millions(elements: u64) -> String {
    let tenths = elements / 100_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Whether a count agrees with a printed cell; `<0.1` is a bound.
fn agrees(elements: u64, cell: &str) -> bool {
    match cell.strip_prefix('<') {
        Some(bound) => (elements as f64) < bound.parse::<f64>().expect("a bound") * 1e6,
        None => millions(elements) == cell,
    }
}

#[test]
fn every_operator_of_ours_has_a_line() {
    let analysis = encoder();
    let mut lines: Vec<&str> = LINES.iter().map(|l| l.ours).collect();
    let mut ours: Vec<&str> = analysis.operators.iter().map(|o| o.name.as_str()).collect();
    lines.sort_unstable();
    ours.sort_unstable();
    assert_eq!(lines, ours);
}

#[test]
fn flop_are_those_of_the_table() {
    let analysis = encoder();
    for printed in LINES {
        assert_eq!(gibi(find(&analysis, printed).flop), printed.flop.unwrap_or("0.000"), "{} ({})", printed.name, printed.ours);
    }
    let of = |class: Class| -> u64 { analysis.operators.iter().filter(|o| o.class == class).map(|o| o.flop).sum() };
    assert_eq!(gibi(of(Class::Contraction)), "312.000");
    assert_eq!(gibi(of(Class::Normalization)), "0.535");
    assert_eq!(gibi(of(Class::Elementwise)), "0.098");
    assert_eq!(gibi(analysis.totals.contraction.flop + analysis.totals.normalization.flop + analysis.totals.elementwise.flop), "312.633");
}

/// A line agrees in both volumes, or its note says why not.
#[test]
fn volumes_are_those_of_the_table_or_explained() {
    let analysis = encoder();
    let mut wrong = Vec::new();
    for printed in LINES {
        let ours = find(&analysis, printed);
        let same = agrees(ours.input_elements, printed.input) && agrees(ours.output_elements, printed.output);
        let explained = !printed.note.is_empty() && printed.note != WEIGHTS_ONLY;
        if same == explained {
            let counts = (millions(ours.input_elements), millions(ours.output_elements));
            wrong.push(format!("{} ({}): ours {counts:?}, printed {:?}", printed.name, printed.ours, (printed.input, printed.output)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The values that lines in disagreement with the table must have, from the shapes alone.
#[test]
fn errors_of_the_table_follow_from_the_shapes() {
    let analysis = encoder();
    let (b, j, i, h) = (8u64, 512, 1024, 16);
    let (activation, scores, weight) = (i * b * j, h * b * j * j, i * i);
    let of = |name: &str| {
        let found = analysis.operators.iter().find(|o| o.name == name).unwrap_or_else(|| panic!("no operator {name}"));
        (found.input_elements, found.output_elements)
    };
    assert_eq!(of("d_gamma"), (activation + weight, activation));
    assert_eq!(of("d_vv"), (scores + activation, activation));
    assert_eq!(of("d_alpha.softmax+d_beta"), (3 * scores, scores));
    assert_eq!(of("d_wv+d_wk+d_wq"), (4 * activation, 3 * weight));
    let statistics = 2 * b * j;
    assert_eq!(of("y"), (activation + 2 * i, activation + statistics));
}

fn page(analysis: &Analysis) -> String {
    let mut out = String::from(
        "# Table III, line by line\n\n\
         Written by `recipes/tests/recipes/analyze_table_iii.rs` from `memlet analyze recipes/bert-large-encoder.yaml`; do not edit it.\n\
         \"Printed\" is Table III of \"Data Movement Is All You Need\" (Ivanov, Dryden, Ben-Nun, Li, Hoefler; MLSys 2021).\n\n\
         Conventions that make the numbers agree:\n\n\
         - a Gflop of the table is 2³⁰ flop; volumes are 10⁶ elements, cut after one decimal;\n\
         - an operator reads each distinct element once and writes each once;\n\
         - dropout stores its mask, one element each: written forward, read backward; the dropout of the attention weights and its\n  \
         gradient belong to the scaled softmax, whose scaling is part of the contraction before it;\n\
         - Q, K and V are one contraction, and one bias; so are their gradients. Contractions that are only added up write the sum;\n\
         - ReLU counts no flop.\n\n\
         | operator | ours | flop, ours | printed | input, ours | printed | output, ours | printed | |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n",
    );
    let mut notes: Vec<&str> = Vec::new();
    for printed in LINES {
        let ours = find(analysis, printed);
        let mark = if printed.note.is_empty() {
            String::new()
        } else {
            let known = notes.iter().position(|n| *n == printed.note);
            let n = known.unwrap_or_else(|| {
                notes.push(printed.note);
                notes.len() - 1
            });
            format!("({})", n + 1)
        };
        out += &format!(
            "| {} | `{}` | {} | {} | {} | {} | {} | {} | {mark} |\n",
            printed.name,
            printed.ours,
            gibi(ours.flop),
            printed.flop.unwrap_or("–"),
            millions(ours.input_elements),
            printed.input,
            millions(ours.output_elements),
            printed.output,
        );
    }
    out.push('\n');
    for (n, note) in notes.iter().enumerate() {
        out += &format!("{}. {note}\n", n + 1);
    }
    let of = |class: Class| gibi(analysis.operators.iter().filter(|o| o.class == class).map(|o| o.flop).sum());
    out += &format!(
        "\n| class | flop, ours | printed |\n| --- | ---: | ---: |\n| contraction | {} | 312 |\n| normalization | {} | 0.535 |\n| element-wise | {} | 0.098 |\n",
        of(Class::Contraction),
        of(Class::Normalization),
        of(Class::Elementwise)
    );
    out += "\n## Bytes moved in a step\n\n\
        The reduction by fusion depends on the definition of the unfused program; the paper's figure names no baseline. The table has each\n\
        definition, for f32. Our fused program stacks no contractions; Table III's operators do (Q, K and V at once).\n\n\
        | unfused program | unfused bytes | fused bytes | reduction |\n| --- | ---: | ---: | ---: |\n";
    for row in &analysis.movement {
        out += &format!("| {} | {} | {} | {:.2} % |\n", row.definition, row.unfused_bytes, row.fused_bytes, 100.0 * row.reduction);
    }
    out
}

#[test]
fn the_page_is_up_to_date() {
    let (path, page) = (folder().join("table-iii.md"), page(&encoder()));
    if std::env::var_os("MEMLET_BLESS").is_some() {
        std::fs::write(&path, &page).expect("the page");
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(known == page, "recipes/table-iii.md is out of date; run this test with MEMLET_BLESS=1 and look at the difference");
}
