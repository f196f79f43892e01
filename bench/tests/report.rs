//! The report as a whole: the inputs it refuses, those it survives, and that the page is self-contained.

use bench::layer_form::LayerForm;
use bench::memory::{Life, MemoryMap};
use bench::model::*;
use bench::mue::TensorVolume;
use bench::plot;
use bench::report::{self, ReportError};
use bench::stitching::{RankedProgram, StitchedPattern, StitchedProgram};
use bench::{Bytes, Cache, Flop, Measured, Milliseconds, Provenance, Quantity, Timing};
use indexmap::IndexMap;
use proptest::prelude::*;
use sdfg::{Class, Direction};
use std::fs;

const HOSTILE: &str = "</title></script><script>alert('x')</script><img src=x onerror=\"y\">&amp;\u{1b}[2J";

fn ms(value: f64) -> Time {
    Quantity::Measured(Milliseconds(value))
}

/// A report with one or two entries of everything, each named `name`.
fn full(name: &str) -> Report {
    let text = || name.to_string();
    let timing = |value: f64| Some(Timing { name: text(), cache: Cache::Warm, samples: vec![value, value * 1.1, value * 0.9] });
    let row = OperatorRow {
        name: text(),
        class: Class::Normalization,
        pass: Direction::Forward,
        flop: Flop(1000),
        input_elements: 10,
        output_elements: 10,
        bytes: Bytes(80),
        unfused: Some(ms(2.0)),
        ours: Some(Quantity::Predicted(Milliseconds(1.0))),
        percent_of_peak: Some(1.0),
        mue: Some(MueFactors { io: 1.0, bandwidth: 0.5 }),
        moves: vec![TensorVolume { tensor: text(), bytes: Bytes(80) }],
        kernel: Some(text()),
        holds: vec![text()],
    };
    let node = |id: &str| GraphNode {
        id: text() + id,
        label: text(),
        class: Some(Class::Elementwise),
        pass: Some(Direction::Backward),
        kernel: Some(text()),
        flop: Flop(5),
        details: IndexMap::from([(text(), text())]),
    };
    let config = |layer| DrawnNode { layer, label: text(), chosen: true };
    Report {
        program: text(),
        about: text(),
        sizes: IndexMap::from([(text(), 8)]),
        provenance: Provenance { command: text(), compiler: text(), ..Provenance::default() },
        waterfall: vec![WaterfallStep {
            name: text(),
            launches: Some(3),
            bytes: Some(Quantity::Predicted(Bytes(100))),
            time: Some(ms(1.0)),
            note: text(),
        }],
        graph: DataflowGraph {
            nodes: vec![node("1"), node("2")],
            edges: vec![GraphEdge { from: text() + "1", to: text() + "2", tensor: text(), bytes: Bytes(40), memlet: text() }],
        },
        comparison: vec![KernelComparison {
            kernels: vec![text()],
            operators: vec![text(), text()],
            unfused: Some(ms(2.0)),
            ours: Some(ms(1.0)),
        }],
        operators: vec![row.clone()],
        kernels: vec![row],
        classes: vec![ClassShare { class: Class::Normalization, flop: Flop(1), unfused: Some(ms(1.0)), ours: None }],
        algebraic: vec![AlgebraicVariant { site: text(), variant: text(), forward: Some(ms(1.0)), backward: None, chosen: true }],
        stitched: Some(StitchedProgram {
            scores: text(),
            candidates: 7,
            proven: true,
            patterns: vec![StitchedPattern {
                kernel: text(),
                units: vec![text(), text()],
                saved_bytes: Bytes(40),
                saved_launches: 1,
                score: ms(0.5),
                model: None,
                separate: Some(ms(2.0)),
                stitched: Some(ms(1.0)),
            }],
            programs: vec![RankedProgram { name: text(), model: ms(1.0), kernels: Some(ms(1.5)), step: None }],
        }),
        compositions: vec![CompositionRow {
            subject: text(),
            holds: vec![text()],
            change: text(),
            with: vec![CompositionPart { kernel: text(), time: Some(ms(1.0)) }],
            instead: vec![CompositionPart { kernel: text(), time: Some(ms(2.0)) }, CompositionPart { kernel: text(), time: None }],
            changed: false,
            note: text(),
        }],
        products: vec![ProductRow {
            kernel: text(),
            measured: 9,
            descriptions: 2,
            best: ms(1.0),
            first: Some(ms(1.125)),
            worst: Some(1.25),
            plain: None,
        }],
        sweeps: vec![KernelSweep {
            kernel: text(),
            class: Class::Normalization,
            configurations: vec![SweptConfiguration { label: text(), median: Measured(Milliseconds(1.0)), intuitive: true }],
            chosen: Some(0),
        }],
        layer_forms: vec![LayerForm {
            kernel: text(),
            form: text(),
            measured: 1,
            best: Measured(Milliseconds(1.0)).into(),
            again: 0.0,
            label: text(),
        }],
        config_graph: DrawnGraph {
            layers: vec![text(), text()],
            nodes: vec![config(0), config(1)],
            edges: vec![DrawnEdge { from: 0, to: 1, label: text(), time: Measured(Milliseconds(1.0)), chosen: true, shortest: true }],
            omitted_nodes: 1,
            omitted_edges: 0,
        },
        roofline: Roofline {
            compute: vec![Ceiling { name: text(), value: Quantity::Predicted(100.0) }],
            bandwidth: vec![Ceiling { name: text(), value: Quantity::Measured(10.0) }],
            points: vec![RooflinePoint {
                name: text(),
                class: Class::Elementwise,
                flop_per_byte: 0.5,
                gigaflop_per_second: Quantity::Measured(3.0),
            }],
        },
        contenders: vec![
            ContenderTimes {
                name: text(),
                ours: true,
                baseline: false,
                forward: timing(1.0),
                backward: timing(2.0),
                step: timing(3.0),
                peak: Some(Bytes(319_000_000)),
            },
            ContenderTimes { name: text(), ours: false, baseline: true, forward: None, backward: None, step: timing(4.0), peak: None },
        ],
        movement: vec![MovementRow { definition: text(), unfused: Bytes(100), fused: Bytes(60), composed: Some(Bytes(40)) }],
        selection: vec![SelectionRow { method: text(), total: ms(1.02), lower_bound: ms(1.0), proven: true }],
        coverage: Some(Coverage { enumerated: 10, full: 10, ..Coverage::default() }),
        certainty: Some(Certainty { redraws: 50, best: 0.5, worst_regret: 0.125 }),
        memory: MemoryMap {
            given: vec![(text(), 1 << 20)],
            kernels: vec![text(), text()],
            lives: vec![
                Life { name: text(), bytes: 4 << 20, offset: 0, first: 0, last: 1, kept: false, over: None },
                Life { name: text() + "2", bytes: 4 << 20, offset: 0, first: 1, last: 1, kept: true, over: Some(text()) },
            ],
        },
        policy: vec![PolicyRow { tensor: text(), policy: ReportedPolicy::Recomputed, bytes: Bytes(1), reason: text() }],
        refusals: vec![FusionRefusal { first: text(), second: text(), reason: text(), kind: text() }],
        phases: vec![],
    }
}

/// The page and the figures (name, text), sorted by name.
fn written(report: &Report) -> (String, Vec<(String, String)>) {
    let dir = tempfile::tempdir().unwrap();
    report::write(dir.path(), report).unwrap();
    let mut figures: Vec<_> = fs::read_dir(dir.path().join("figures"))
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), fs::read_to_string(e.path()).unwrap()))
        .collect();
    figures.sort();
    (fs::read_to_string(dir.path().join("report.html")).unwrap(), figures)
}

#[test]
fn the_model_survives_json_exactly() {
    let report = full("mha");
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    assert_eq!(serde_json::from_str::<Report>(&serde_json::to_string(&Report::default()).unwrap()).unwrap(), Report::default());
}

#[test]
fn every_part_has_its_figure() {
    let (_, figures) = written(&full("mha"));
    let names: Vec<&str> = figures.iter().map(|f| f.0.as_str()).collect();
    let expected = [
        "classes.svg",
        "config-graph.svg",
        "memory.svg",
        "operators.svg",
        "roofline.svg",
        "sweep-fused-1.svg",
        "totals.svg",
        "waterfall.svg",
    ];
    assert_eq!(names, expected);
}

#[test]
fn an_empty_report_says_so() {
    let (html, figures) = written(&Report::default());
    assert!(figures.is_empty());
    assert_eq!(html.matches("Not part of this run.").count(), 13, "one for each part: {html}");
}

#[test]
fn the_same_report_is_the_same_page() {
    assert_eq!(written(&full("mha")), written(&full("mha")));
}

#[test]
fn hostile_names_stay_text() {
    let (html, figures) = written(&full(HOSTILE));
    assert_eq!(html.matches("<script").count(), 2, "the facts of the graph and the page's own script");
    assert_eq!(html.matches("</script").count(), 2);
    assert_eq!(html.matches("</title>").count(), 1 + 1, "the page's, and that of the only edge");
    for text in figures.iter().map(|f| &f.1).chain([&html]) {
        assert!(!text.contains("<img") && !text.contains("onerror=\""), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "control characters have no place in SVG or HTML");
    }
}

#[test]
fn the_page_stands_alone() {
    let (html, _) = written(&full("mha"));
    let without_namespaces = html.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "//cdn", " src=", "<link", "url(", "@import"] {
        assert!(!without_namespaces.contains(outside), "{outside}");
    }
}

#[test]
fn captions_name_machine_and_command() {
    let mut report = full("mha");
    report.provenance.machine.cpu = "Example CPU".into();
    report.provenance.command = "memlet optimize mha.yaml".into();
    let (html, figures) = written(&report);
    let caption = "Machine: Example CPU.</span> <span>Again: <code>memlet optimize mha.yaml</code>";
    assert!(html.matches(caption).count() > figures.len(), "under each figure, the graph and each table");
}

/// Compared times add up to all kernels of both sides; a kernel without a partner counts in its own sum alone.
#[test]
fn compared_times_add_up() {
    let row = |kernels: &[&str], operators: &[&str], unfused: Option<f64>, ours: Option<f64>| KernelComparison {
        kernels: kernels.iter().map(|k| k.to_string()).collect(),
        operators: operators.iter().map(|o| o.to_string()).collect(),
        unfused: unfused.map(ms),
        ours: ours.map(ms),
    };
    let rows = [
        row(&["qkv"], &["q", "k", "v"], Some(6.0), Some(4.0)),
        row(&["relayout x"], &[], None, Some(1.0)),
        row(&[], &["sum"], Some(0.5), None),
    ];
    let table = bench::report::tables::comparison(&rows);
    let total: Vec<&str> = table.total.iter().flatten().map(|cell| cell.text.as_str()).collect();
    assert_eq!(total, ["all", "6.50", "5.00", "1.30", ""]);
    let text = table.text(false);
    let line = text.lines().find(|line| line.starts_with("qkv")).map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(line, Some(vec!["qkv", "6.00", "4.00", "1.50", "q", "+", "k", "+", "v"]), "{text}");
    let html = table.html().into_string();
    assert!(html.contains("</tbody><tfoot><tr><td><strong>all</strong></td>"), "{html}");
    // A missing time leaves no sum.
    let table = bench::report::tables::comparison(&[row(&["a"], &["b"], None, Some(1.0))]);
    assert_eq!(table.total.iter().flatten().nth(1).map(|cell| cell.text.as_str()), Some("–"));
}

/// The same reason is one row, with a count and the names it applies to.
#[test]
fn refusals_of_a_kind_are_one_row() {
    let refusal = |first: &str, second: &str, reason: &str, kind: &str| FusionRefusal {
        first: first.into(),
        second: second.into(),
        reason: reason.into(),
        kind: kind.into(),
    };
    let rows = [
        refusal("n", "y", "`a` runs between them", "another kernel runs between them"),
        refusal("a", "h", "`a` is a contraction", "one of them is a contraction"),
        refusal("c", "h", "`c` is a contraction", "one of them is a contraction"),
    ];
    let table = bench::report::tables::refusals(&rows);
    let cells: Vec<Vec<&str>> = table.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect()).collect();
    assert_eq!(cells, [["2", "one of them is a contraction", "a – h, c – h"], ["1", "`a` runs between them", "n – y"]]);
}

#[test]
fn nan_is_refused_and_nothing_written() {
    let mut report = full("mha");
    report.sweeps[0].configurations[0].median = Measured(Milliseconds(f64::NAN));
    let dir = tempfile::tempdir().unwrap();
    let error = report::write(dir.path(), &report).unwrap_err();
    assert!(error.to_string().contains("sweeps[0].configurations[0].median"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_contender_without_samples_is_refused() {
    let mut report = full("mha");
    report.contenders[1].step.as_mut().unwrap().samples.clear();
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(report::write(dir.path(), &report), Err(ReportError::Plot(plot::PlotError::Stats { .. }))));
}

#[test]
fn an_unwritable_place_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let error = report::write(&file, &full("mha")).unwrap_err();
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "in the way");
}

#[test]
fn zeros_are_drawn() {
    let mut report = full("mha");
    report.waterfall[0].bytes = Some(Quantity::Measured(Bytes(0)));
    report.waterfall[0].time = Some(ms(0.0));
    report.graph.edges[0].bytes = Bytes(0);
    report.kernels[0].bytes = Bytes(0);
    report.kernels[0].ours = Some(ms(0.0));
    report.classes[0].flop = Flop(0);
    report.classes[0].unfused = Some(ms(0.0));
    report.movement[0].unfused = Bytes(0);
    report.coverage = Some(Coverage::default());
    report.roofline.points[0].flop_per_byte = 0.0;
    report.config_graph.edges[0].time = Measured(Milliseconds(0.0));
    let (html, figures) = written(&report);
    for text in figures.iter().map(|f| &f.1).chain([&html]) {
        assert!(!text.contains("inf\"") && !text.contains(">NaN") && !text.contains("\"NaN"), "{text}");
    }
}

#[test]
fn a_time_of_zero_has_no_place_on_a_logarithmic_axis() {
    let mut report = full("mha");
    report.sweeps[0].configurations[0].median = Measured(Milliseconds(0.0));
    let sweeps: Vec<&KernelSweep> = report.sweeps.iter().collect();
    assert!(matches!(plot::violins("t", &sweeps), Err(plot::PlotError::OffScale { .. })));
    report.sweeps[0].configurations.clear();
    let sweeps: Vec<&KernelSweep> = report.sweeps.iter().collect();
    assert!(matches!(plot::violins("t", &sweeps), Err(plot::PlotError::Empty { .. })));
}

/// Two numbers have no density to draw.
#[test]
fn few_configurations_are_marks() {
    let configuration =
        |n: usize| SweptConfiguration { label: String::new(), median: Measured(Milliseconds(1.0 + n as f64)), intuitive: false };
    let drawn = |count: usize| {
        let (kernel, class) = ("k".to_string(), Class::Contraction);
        let sweep = KernelSweep { kernel, class, configurations: (0..count).map(configuration).collect(), chosen: Some(0) };
        plot::violins("t", &[&sweep]).unwrap()
    };
    // The mark of the chosen one is a polygon as well.
    let polygons = |count: usize| drawn(count).matches("<polygon").count();
    assert_eq!([2, 7, 8].map(polygons), [polygons(1), polygons(1), polygons(1) + 1]);
}

/// A kernel may have several trial changes, of which one is made: none of the others shows the kernel as it is in the partially fused
/// program.
#[test]
fn the_change_that_was_made_is_shown() {
    let rows = |changed: bool| {
        let mut report = full("y");
        let row = report.compositions.remove(0);
        let with = vec![CompositionPart { kernel: "y".into(), time: Some(ms(3.0)) }];
        let instead = vec![CompositionPart { kernel: "y.dot".into(), time: Some(ms(2.0)) }];
        let other = CompositionRow { change: "y without rows".into(), changed, with, instead, note: String::new(), ..row.clone() };
        vec![CompositionRow { note: String::new(), ..row }, other]
    };
    let told = |changed| bench::report::tables::compositions(&rows(changed)).text(false);
    assert_eq!(told(true).matches("no: y without rows").count(), 2, "{}", told(true));
    assert_eq!(told(false).matches("yes").count(), 2);
}

#[test]
fn small_programs_have_units_that_show_them() {
    let mut report = full("mha");
    let drawn = |report: &Report| plot::waterfall("p", &report.waterfall).unwrap();
    assert!(drawn(&report).contains("[kB]"));
    report.waterfall[0].bytes = Some(Quantity::Predicted(Bytes(724_000_000)));
    assert!(drawn(&report).contains("[MB]") && drawn(&report).contains("724 MB"));
    report.kernels[0].input_elements = 45;
    report.kernels[0].output_elements = 1_380_000;
    let table = bench::report::tables::operators(&report.kernels, "holds").text(false);
    assert!(table.contains(" 45 ") && table.contains("1.38 M"), "{table}");
}

/// Another plan that could have been taken is hardly slower, which is no merit.
#[test]
fn the_headline_compares_with_a_baseline() {
    let mut report = full("mha");
    let other = ContenderTimes { name: "second choice".into(), ours: false, baseline: false, ..report.contenders[0].clone() };
    let slow = ContenderTimes { name: "unfused, slow".into(), ..report.contenders[1].clone() };
    report.contenders.insert(1, other);
    report.contenders[2].name = "unfused".into();
    report.contenders.push(slow);
    report.contenders[3].step.as_mut().unwrap().samples.iter_mut().for_each(|ms| *ms *= 2.0);
    let (page, _) = written(&report);
    let label = page.split("<span>as fast as ").nth(1).and_then(|rest| rest.split('<').next());
    assert_eq!(label, Some("unfused"));
}

#[test]
fn sections_for_gpus_are_left_out_elsewhere() {
    let mut report = full("mha");
    assert!(written(&report).0.contains("Matrix products"));
    report.products.clear();
    assert!(!written(&report).0.contains("Matrix products"));
}

/// Every coordinate in the SVG lies within its own size.
fn inside(svg: &str) -> bool {
    let number = |key: &str| -> Option<f64> { svg.split_once(&format!("{key}=\""))?.1.split('"').next()?.parse().ok() };
    let (width, height) = (number("width").unwrap(), number("height").unwrap());
    let points = svg.split("points=\"").skip(1).flat_map(|rest| rest.split('"').next().unwrap_or_default().split_whitespace());
    points.filter_map(|p| p.split_once(',')).all(|(x, y)| {
        let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
        (0.0..=width).contains(&x) && (0.0..=height).contains(&y)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_sweep_is_drawn_inside_its_figure(exponents in prop::collection::vec(-12.0f64..12.0, 1..40), class in 0usize..3) {
        let configurations = exponents
            .iter()
            .map(|e| SweptConfiguration { label: String::new(), median: Measured(Milliseconds(10f64.powf(*e))), intuitive: *e > 0.0 })
            .collect();
        let class = [Class::Contraction, Class::Normalization, Class::Elementwise][class];
        let sweep = KernelSweep { kernel: "k".into(), class, configurations, chosen: Some(0) };
        prop_assert!(inside(&plot::violins("t", &[&sweep]).unwrap()));
    }

    #[test]
    fn any_waterfall_is_drawn_inside_its_figure(steps in prop::collection::vec((any::<u64>(), 0.0f64..1e12, any::<bool>()), 1..8)) {
        let steps: Vec<WaterfallStep> = steps
            .into_iter()
            .map(|(bytes, time, measured)| WaterfallStep {
                name: "a step with a rather long name".into(),
                launches: None,
                bytes: Some(Quantity::Predicted(Bytes(bytes))),
                time: measured.then(|| ms(time)),
                note: String::new(),
            })
            .collect();
        prop_assert!(inside(&plot::waterfall("p", &steps).unwrap()));
    }

    #[test]
    fn any_memory_is_drawn_inside_its_figure(
        given in 0u64..1 << 40,
        lives in prop::collection::vec((any::<u32>(), any::<u32>(), 0usize..60, 0usize..60, any::<bool>()), 1..40),
        kernels in 1usize..60,
    ) {
        let life = |(n, (bytes, offset, first, more, kept)): (usize, (u32, u32, usize, usize, bool))| {
            let (first, name) = (first % kernels, format!("a buffer with a name, {n}"));
            Life { name, bytes: bytes.into(), offset: offset.into(), first, last: (first + more).min(kernels - 1), kept, over: None }
        };
        let lives = lives.into_iter().enumerate().map(life).collect();
        let map = MemoryMap { given: vec![("x".into(), given)], kernels: vec!["k".repeat(99); kernels], lives };
        prop_assert!(inside(&plot::memory("p", &map).unwrap()));
    }

    #[test]
    fn any_roofline_is_drawn_inside_its_figure(points in prop::collection::vec((-6.0f64..6.0, -6.0f64..6.0), 1..40), peak in -3.0f64..5.0) {
        let points = points
            .into_iter()
            .map(|(x, y)| RooflinePoint {
                name: "k".into(),
                class: Class::Contraction,
                flop_per_byte: 10f64.powf(x),
                gigaflop_per_second: Quantity::Measured(10f64.powf(y)),
            })
            .collect();
        let ceiling = |value| vec![Ceiling { name: "c".into(), value: Quantity::Measured(value) }];
        let roofline = Roofline { compute: ceiling(10f64.powf(peak)), bandwidth: ceiling(20.0), points };
        prop_assert!(inside(&plot::roofline("p", &roofline).unwrap()));
    }
}
