//! Draws a report from invented numbers in the shape of a BERT encoder layer, to look at the drawing itself.
//!
//! `cargo run -p bench --example sample_report [DIR]`

use bench::machine::{CacheLevel, Machine};
use bench::memory::{Life, MemoryMap};
use bench::model::*;
use bench::mue::TensorVolume;
use bench::{Bytes, Cache, Flop, Measured, Milliseconds, Provenance, Quantity, Timing};
use indexmap::IndexMap;
use sdfg::{Class, Direction};
use std::path::PathBuf;

/// Name, class, pass, Gflop, input and output in 10⁶ elements, unfused ms, kernel.
type Line = (&'static str, Class, Direction, f64, f64, f64, f64, &'static str);

use Class::{Contraction as C, Elementwise as E, Normalization as N};
use Direction::{Backward as B, Forward as F};

const LINES: &[Line] = &[
    ("Q, K, V", C, F, 7.2, 2.5, 2.4, 26.0, "qkv"),
    ("input bias", E, F, 0.002, 2.4, 2.4, 2.1, "AIB"),
    ("QKT", C, F, 1.6, 1.6, 1.5, 7.9, "qkt"),
    ("scaled softmax", N, F, 0.012, 1.5, 1.5, 4.4, "SM"),
    ("dropout attention", E, F, 0.002, 1.5, 1.5, 2.5, "SM"),
    ("gamma", C, F, 1.6, 2.3, 0.8, 7.1, "gamma"),
    ("out", C, F, 2.4, 1.4, 0.8, 8.8, "out"),
    ("output bias", E, F, 0.001, 0.8, 0.8, 0.9, "BDRLN1"),
    ("dropout 1", E, F, 0.001, 0.8, 0.8, 1.2, "BDRLN1"),
    ("residual 1", E, F, 0.001, 1.6, 0.8, 1.4, "BDRLN1"),
    ("layernorm 1", N, F, 0.007, 0.8, 0.8, 2.2, "BDRLN1"),
    ("linear 1", C, F, 9.7, 3.1, 3.1, 35.0, "linear1"),
    ("bias 1, GELU", E, F, 0.03, 3.1, 3.1, 6.5, "BRD"),
    ("linear 2", C, F, 9.7, 5.5, 0.8, 34.0, "linear2"),
    ("bias 2, dropout, residual", E, F, 0.003, 2.4, 0.8, 2.9, "BDRLN2"),
    ("layernorm 2", N, F, 0.007, 0.8, 0.8, 2.2, "BDRLN2"),
    ("layernorm 2 dW", N, B, 0.005, 1.6, 0.002, 1.9, "BSB"),
    ("layernorm 2 dX", N, B, 0.01, 1.6, 0.8, 2.6, "BLNRD1"),
    ("dropout dX", E, B, 0.001, 0.8, 0.8, 1.3, "BLNRD1"),
    ("linear 2 dX", C, B, 9.7, 3.1, 3.1, 35.5, "linear2_dx"),
    ("linear 2 dW", C, B, 9.7, 3.9, 2.4, 36.5, "linear2_dw"),
    ("GELU dX", E, B, 0.05, 6.2, 3.1, 8.2, "BDRB"),
    ("bias 1 dW", N, B, 0.003, 3.1, 0.003, 1.6, "BDRB"),
    ("linear 1 dX", C, B, 9.7, 5.5, 0.8, 34.8, "linear1_dx"),
    ("linear 1 dW", C, B, 9.7, 3.9, 2.4, 36.1, "linear1_dw"),
    ("layernorm 1 dX", N, B, 0.01, 2.4, 0.8, 2.9, "BLNRD2"),
    ("out dX", C, B, 2.4, 1.4, 0.8, 8.7, "out_dx"),
    ("gamma dX 1", C, B, 1.6, 2.3, 1.5, 7.7, "gamma_dx1"),
    ("scaled softmax dX", N, B, 0.016, 3.0, 1.5, 5.9, "BS"),
    ("QKT dX", C, B, 3.2, 3.1, 1.6, 15.0, "qkt_dx"),
    ("Q, K, V dX", C, B, 7.2, 4.1, 0.8, 25.5, "qkv_dx"),
    ("Q, K, V dW", C, B, 7.2, 3.1, 1.8, 26.5, "qkv_dw"),
    ("residual dX", E, B, 0.001, 1.6, 0.8, 1.3, "BEI"),
];

/// The time that the kernel of a line takes, relative to its operators.
fn gain(class: Class) -> f64 {
    if class == C { 0.93 } else { 0.52 }
}

fn measured(ms: f64) -> Option<Time> {
    Some(Quantity::Measured(Milliseconds(ms)))
}

fn elements(millions: f64) -> u64 {
    (millions * 1e6) as u64
}

/// A small linear congruential generator, so that the sample is the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }
}

fn row(name: &str, lines: &[&Line], fused: bool) -> OperatorRow {
    let sum = |f: fn(&Line) -> f64| lines.iter().map(|l| f(l)).sum::<f64>();
    let class = lines.iter().map(|l| l.1).min().unwrap_or(E);
    let (input, output) = if fused { (lines[0].4, lines[lines.len() - 1].5) } else { (lines[0].4, lines[0].5) };
    let before = sum(|l| l.6);
    let ours = before * gain(class);
    let flop = sum(|l| l.3) * 1e9;
    let alone = !fused && LINES.iter().filter(|l| l.7 == lines[0].7).count() > 1;
    OperatorRow {
        name: name.into(),
        class,
        pass: lines[0].2,
        flop: Flop(flop as u64),
        input_elements: elements(input),
        output_elements: elements(output),
        bytes: Bytes(4 * elements(input + output)),
        unfused: measured(before),
        ours: if alone { None } else { measured(ours) },
        percent_of_peak: (!alone).then_some(flop / ours / 1e6 / 330.0 * 100.0),
        mue: (!alone).then_some(MueFactors { io: if fused { 0.97 } else { 0.8 }, bandwidth: 4.0 * (input + output) / ours / 24.0 * 1.45 }),
        moves: [("x", input), ("y", output)].map(|(t, m)| TensorVolume { tensor: t.into(), bytes: Bytes(4 * elements(m)) }).to_vec(),
        kernel: (!fused).then(|| lines[0].7.into()),
        holds: if fused { lines.iter().map(|l| l.0.into()).collect() } else { vec![] },
    }
}

fn kernels() -> Vec<(&'static str, Vec<&'static Line>)> {
    let mut kernels: IndexMap<&str, Vec<&Line>> = IndexMap::new();
    for line in LINES {
        kernels.entry(line.7).or_default().push(line);
    }
    kernels.into_iter().collect()
}

fn graph() -> DataflowGraph {
    let tensor = |id: &str| GraphNode {
        id: id.into(),
        label: id.into(),
        class: None,
        pass: None,
        kernel: None,
        flop: Flop(0),
        details: IndexMap::new(),
    };
    let mut nodes: Vec<GraphNode> = LINES
        .iter()
        .map(|l| GraphNode {
            id: l.0.into(),
            label: l.0.into(),
            class: Some(l.1),
            pass: Some(l.2),
            kernel: Some(l.7.into()),
            flop: Flop((l.3 * 1e9) as u64),
            details: IndexMap::from([("recipe".to_string(), "bert-base-encoder.yaml:18".to_string())]),
        })
        .collect();
    nodes.extend(["x", "w_qkv", "w_o", "w_1", "w_2", "y", "d_y", "d_x"].map(tensor));
    let edge = |from: &str, to: &str, name: &str, millions: f64| GraphEdge {
        from: from.into(),
        to: to.into(),
        tensor: name.into(),
        bytes: Bytes(4 * elements(millions)),
        memlet: format!("{name}[0:i, 0:b, 0:j]"),
    };
    let mut edges: Vec<GraphEdge> =
        LINES.windows(2).map(|w| edge(w[0].0, w[1].0, "t", w[0].5)).filter(|e| e.from != "layernorm 2").collect();
    edges.extend([
        edge("x", "Q, K, V", "x", 0.8),
        edge("w_qkv", "Q, K, V", "w_qkv", 1.8),
        edge("w_o", "out", "w_o", 0.6),
        edge("w_1", "linear 1", "w_1", 2.4),
        edge("w_2", "linear 2", "w_2", 2.4),
        edge("x", "residual 1", "x", 0.8),
        edge("input bias", "gamma", "vv", 0.8),
        edge("layernorm 1", "bias 2, dropout, residual", "n1", 0.8),
        edge("layernorm 2", "y", "y", 0.8),
        edge("d_y", "layernorm 2 dX", "d_y", 0.8),
        edge("d_y", "layernorm 2 dW", "d_y", 0.8),
        edge("scaled softmax", "scaled softmax dX", "alpha", 1.5),
        edge("bias 1, GELU", "GELU dX", "u", 3.1),
        edge("bias 1, GELU", "linear 2 dW", "u", 3.1),
        edge("layernorm 1", "linear 1 dW", "n1", 0.8),
        edge("layernorm 1", "layernorm 1 dX", "n1", 0.8),
        edge("x", "Q, K, V dW", "x", 0.8),
        edge("residual dX", "d_x", "d_x", 0.8),
    ]);
    DataflowGraph { nodes, edges }
}

fn sweeps() -> Vec<KernelSweep> {
    let mut noise = Noise(11);
    let sweep = |(n, (name, lines)): (usize, (&str, Vec<&Line>))| {
        let row = row(name, &lines, true);
        let best = row.ours.map_or(1.0, |t| t.value().0);
        let count = if row.class == C { 72 } else { [320, 1200, 24, 1][n % 4] };
        let configurations: Vec<SweptConfiguration> = (0..count)
            .map(|c| {
                let slow = (noise.next() * noise.next() * 3.2).exp() + if noise.next() > 0.7 { 1.2 } else { 0.0 };
                let median = Measured(Milliseconds(best * if c == 0 { 1.02 } else { slow.max(1.0) }));
                SweptConfiguration { label: format!("x[h,b,j,k] y[b,h,j,k] vector=k thread={c}"), median, intuitive: noise.next() > 0.8 }
            })
            .collect();
        KernelSweep { kernel: name.into(), class: row.class, configurations, chosen: Some(0) }
    };
    kernels().into_iter().enumerate().map(sweep).collect()
}

fn config_graph() -> DrawnGraph {
    let mut noise = Noise(3);
    let layers = ["x", "qq kk vv", "beta", "alpha", "gamma", "out.dot", "n1", "u", "f2.dot", "y"];
    let kernels = ["qkv + AIB", "qkt", "SM", "gamma", "out", "BDRLN1", "linear1 + BRD", "linear2", "BDRLN2"];
    let sizes = [1usize, 6, 12, 12, 8, 6, 6, 8, 6, 1];
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    let mut begin = vec![0];
    for (layer, size) in sizes.iter().enumerate() {
        for place in 0..*size {
            nodes.push(DrawnNode { layer, label: "h,b,j,k · k innermost".into(), chosen: place == (layer * 5) % size });
        }
        begin.push(nodes.len());
    }
    for layer in 0..sizes.len() - 1 {
        for from in begin[layer]..begin[layer + 1] {
            for to in begin[layer + 1]..begin[layer + 2] {
                let chosen = nodes[from].chosen && nodes[to].chosen;
                let time = Measured(Milliseconds(if chosen { 3.1 } else { 3.2 + 20.0 * noise.next() * noise.next() }));
                edges.push(DrawnEdge { from, to, label: kernels[layer].into(), time, chosen, shortest: false });
            }
        }
    }
    DrawnGraph { layers: layers.map(String::from).to_vec(), nodes, edges, omitted_nodes: 1240, omitted_edges: 20981 }
}

fn contenders() -> Vec<ContenderTimes> {
    let mut noise = Noise(5);
    let mut timing = |name: &str, ms: f64| {
        Some(Timing { name: name.into(), cache: Cache::Warm, samples: (0..30).map(|_| ms * (0.99 + 0.05 * noise.next())).collect() })
    };
    let list = [
        ("Memlet", true, 84.0, 180.0),
        ("PyTorch 2.9 torch.compile", false, 93.0, 190.0),
        ("PyTorch 2.9 eager", false, 108.0, 224.0),
        ("JAX 0.8", false, 97.0, 215.0),
        ("unfused, best uniform layout", false, 103.0, 214.0),
        ("unfused, PyTorch's layout", false, 117.0, 242.0),
    ];
    list.into_iter()
        .map(|(name, ours, forward, backward)| ContenderTimes {
            name: name.into(),
            ours,
            baseline: !ours,
            forward: timing(name, forward),
            backward: timing(name, backward),
            step: timing(name, forward + backward),
            peak: None,
        })
        .collect()
}

/// A chain in which every third buffer takes the place of the one before it, and a result.
fn memory() -> MemoryMap {
    let kernels: Vec<String> = LINES.iter().map(|l| l.0.to_string()).collect();
    let last = kernels.len() - 1;
    let life = |n: usize| Life {
        name: format!("t{n}"),
        bytes: 12_582_912,
        offset: 12_582_912 * [0, 1, 1][n % 3] as u64,
        first: n,
        last: (n + 1).min(last),
        kept: n == last,
        over: (n % 3 == 2).then(|| format!("t{}", n - 1)),
    };
    MemoryMap { given: vec![("w".into(), 31_500_000)], lives: (0..=last).map(life).collect(), kernels }
}

fn waterfall() -> Vec<WaterfallStep> {
    let step = |name: &str, launches, bytes, time, note: &str| WaterfallStep {
        name: name.into(),
        launches: Some(launches),
        bytes: Some(Quantity::Predicted(Bytes(bytes))),
        time: Some(time),
        note: note.into(),
    };
    let (measured, predicted) = (|ms| Quantity::Measured(Milliseconds(ms)), |ms| Quantity::Predicted(Milliseconds(ms)));
    vec![
        step("unfused", 62, 812_000_000, measured(359.0), "one operator per kernel, PyTorch's layout"),
        step("fused", 27, 531_000_000, measured(312.0), "35 launches fewer"),
        step("algebraic", 23, 520_000_000, measured(301.0), "Q, K and V stacked"),
        step("layouts", 23, 520_000_000, predicted(262.0), "sum of the per-kernel minima"),
        step("selection", 25, 526_000_000, measured(264.0), "two relayouts inserted"),
    ]
}

fn sample() -> Report {
    let kernels = kernels();
    let rows: Vec<OperatorRow> = kernels.iter().map(|(name, lines)| row(name, lines, true)).collect();
    let share = |class: Class| ClassShare {
        class,
        flop: LINES.iter().filter(|l| l.1 == class).map(|l| Flop((l.3 * 1e9) as u64)).sum(),
        unfused: measured(LINES.iter().filter(|l| l.1 == class).map(|l| l.6).sum()),
        ours: measured(LINES.iter().filter(|l| l.1 == class).map(|l| l.6 * gain(class)).sum()),
    };
    let point = |r: &OperatorRow| RooflinePoint {
        name: r.name.clone(),
        class: r.class,
        flop_per_byte: r.flop_per_byte().unwrap_or(0.0),
        gigaflop_per_second: Quantity::Measured(r.flop.0 as f64 / r.ours.map_or(1.0, |t| t.value().0) / 1e6),
    };
    let ceiling = |name: &str, value| Ceiling { name: name.into(), value };
    let policy = |tensor: &str, policy, millions: f64, reason: &str| PolicyRow {
        tensor: tensor.into(),
        policy,
        bytes: Bytes(4 * elements(millions)),
        reason: reason.into(),
    };
    let composition = |subject: &str, change: &str, with, instead: &[f64], changed| CompositionRow {
        subject: subject.into(),
        holds: vec!["epilogue".into()],
        change: change.into(),
        with: vec![CompositionPart { kernel: subject.into(), time: measured(with) }],
        instead: instead.iter().map(|ms| CompositionPart { kernel: format!("{subject}.part"), time: measured(*ms) }).collect(),
        changed,
        note: String::new(),
    };
    let variant = |variant: &str, forward, backward, chosen| AlgebraicVariant {
        site: "Q, K, V projections".into(),
        variant: variant.into(),
        forward: measured(forward),
        backward: measured(backward),
        chosen,
    };
    Report {
        program: "bert-base-encoder".into(),
        about: "Invented numbers in the shape of a BERT-base encoder layer, to look at the drawing itself.".into(),
        sizes: [("b", 8), ("j", 128), ("i", 768), ("h", 12), ("p", 64), ("u", 3072)].map(|(d, s)| (d.to_string(), s)).into(),
        provenance: Provenance {
            machine: Machine {
                cpu: "Example CPU at 2.6 GHz".into(),
                threads: 2,
                cores: 2,
                caches: vec![CacheLevel { name: "L3".into(), bytes_each: Bytes(33_554_432), count: 1 }],
                memory: Bytes(8_200_000_000),
                os: "Debian GNU/Linux 12, Linux 6.1".into(),
            },
            compiler: "cc (Debian 12.2.0-14) 12.2.0".into(),
            versions: IndexMap::from([("memlet".to_string(), "0.1.0".to_string()), ("gemm".to_string(), "0.19.0".to_string())]),
            commit: Some("0123456789ab".into()),
            command: "memlet optimize recipes/bert-base-encoder.yaml --budget 30m".into(),
            date: "2026-01-01T12:00:00Z".into(),
        },
        waterfall: waterfall(),
        memory: memory(),
        graph: graph(),
        comparison: rows
            .iter()
            .map(|r| KernelComparison { kernels: vec![r.name.clone()], operators: r.holds.clone(), unfused: r.unfused, ours: r.ours })
            .collect(),
        operators: LINES.iter().map(|l| row(l.0, &[l], false)).collect(),
        roofline: Roofline {
            compute: vec![ceiling("GEMM peak", Quantity::Measured(330.0)), ceiling("2 × 512-bit FMA", Quantity::Predicted(410.0))],
            bandwidth: vec![ceiling("copy", Quantity::Measured(24.0)), ceiling("L3 copy", Quantity::Measured(110.0))],
            points: rows.iter().map(point).collect(),
        },
        kernels: rows,
        classes: [C, N, E].map(share).to_vec(),
        algebraic: vec![
            variant("separate", 28.1, 55.7, false),
            variant("Q with K", 27.0, 54.1, false),
            variant("all three", 26.0, 52.0, true),
        ],
        stitched: None,
        compositions: vec![
            composition("norm1", "norm1 apart", 4.1, &[3.2, 1.4], false),
            composition("ff1", "ff1 apart", 9.0, &[7.9, 0.8], true),
        ],
        products: vec![],
        sweeps: sweeps(),
        layer_forms: vec![],
        config_graph: config_graph(),
        contenders: contenders(),
        movement: vec![
            MovementRow {
                definition: "one operator per kernel, masks not stored".into(),
                unfused: Bytes(812e6 as u64),
                fused: Bytes(526e6 as u64),
                composed: Some(Bytes(287e6 as u64)),
            },
            MovementRow {
                definition: "Table III's operators, masks stored in both".into(),
                unfused: Bytes(790e6 as u64),
                fused: Bytes(561e6 as u64),
                composed: None,
            },
        ],
        selection: vec![
            SelectionRow {
                method: "SSSP, forward order".into(),
                total: Quantity::Predicted(Milliseconds(264.1)),
                lower_bound: Quantity::Predicted(Milliseconds(257.9)),
                proven: false,
            },
            SelectionRow {
                method: "exact".into(),
                total: Quantity::Predicted(Milliseconds(261.3)),
                lower_bound: Quantity::Predicted(Milliseconds(257.9)),
                proven: true,
            },
        ],
        coverage: Some(Coverage {
            enumerated: 48120,
            identical: 9120,
            bounded_out: 8000,
            raced: 18200,
            full: 10400,
            unfit: 0,
            not_reached: 2400,
        }),
        certainty: Some(Certainty { redraws: 50, best: 0.84, worst_regret: 0.012 }),
        policy: vec![
            policy("alpha.softmax", ReportedPolicy::Saved, 1.5, "its gradient needs the value itself"),
            policy("alpha.mask", ReportedPolicy::Recomputed, 1.5, "Philox makes it again from seed, step and name"),
        ],
        refusals: vec![FusionRefusal {
            first: "scaled softmax".into(),
            second: "gamma".into(),
            reason: "contractions are left alone: gamma sums over k, which the softmax iterates independently".into(),
            kind: String::new(),
        }],
        phases: vec![],
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("target/memlet/sample"), PathBuf::from);
    let report = sample();
    bench::report::write(&dir, &report)?;
    print!("{}", bench::report::tables::totals(&report).text(bench::table::colour()));
    println!("{}", dir.join("report.html").display());
    Ok(())
}
