//! The page: headline numbers, then every figure with its table, each captioned with machine and command.

use super::figures::{Figure, Section};
use super::{graph, headline, tables};
use crate::layer_form::layer_forms;
use crate::model::Report;
use crate::record::Provenance;
use crate::stitching::StitchedProgram;
use crate::table::{Table, Text};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The style of all reports.
pub const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

struct PagePart<'a> {
    id: &'static str,
    title: &'static str,
    intro: &'static str,
    figures: Option<Section>,
    tables: Vec<(&'a str, Table)>,
    extra: Option<Markup>,
}

pub fn html(report: &Report, figures: &[Figure]) -> String {
    let caption = caption(&report.provenance);
    let parts = parts(report);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                meta name="color-scheme" content="light dark";
                title { (Text(&report.program)) ": Memlet report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (Text(&report.program)) }
                    p.about { (Text(&report.about)) }
                    p.sizes { @for (dim, size) in &report.sizes { code { (Text(dim)) " = " (size) } " " } }
                }
                (headlines(report))
                nav { @for part in &parts { a href={ "#" (part.id) } { (part.title) } } a href="#provenance" { "Provenance" } }
                main { @for part in &parts { (section(part, figures, &caption)) } (provenance(&report.provenance)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string() + "\n"
}

/// A part of the page: what it shows, its figures and its tables, each with machine and command.
fn section(part: &PagePart, figures: &[Figure], caption: &Markup) -> Markup {
    let drawn: Vec<&Figure> = figures.iter().filter(|f| Some(f.section) == part.figures).collect();
    let tables: Vec<_> = part.tables.iter().filter(|(_, t)| !t.rows.is_empty()).collect();
    html! {
        section id=(part.id) {
            h2 { (part.title) }
            p.intro { (PreEscaped(part.intro)) }
            @if drawn.is_empty() && tables.is_empty() && part.extra.is_none() { p.absent { "Not part of this run." } }
            @for figure in drawn {
                figure id={ "figure-" (figure.file) } {
                    div.scroll { (PreEscaped(responsive(&figure.svg))) }
                    figcaption { (Text(figure.caption)) " " (caption) }
                }
            }
            @if let Some(extra) = &part.extra { figure { (extra) figcaption { (caption) } } }
            @for (title, table) in tables { h3 { (Text(title)) } (table.html()) p.caption { (caption) } }
        }
    }
}

/// Inline figures shrink with the page; the files keep their size.
fn responsive(svg: &str) -> String {
    let head = svg.find('>').unwrap_or(0);
    let (tag, rest) = svg.split_at(head);
    let tag: String = tag.split_inclusive(' ').filter(|a| !a.starts_with("width=") && !a.starts_with("height=")).collect();
    tag + rest
}

fn caption(provenance: &Provenance) -> Markup {
    // A device other than the cores stands first, since the times are the device's.
    let device = provenance.versions.get("device").map(|device| format!("{device}, beside ")).unwrap_or_default();
    html! {
        span { "Machine: " (Text(&(device + &provenance.machine.line()))) "." } " "
        span { "Again: " code { (Text(&provenance.command)) } }
    }
}

fn headlines(report: &Report) -> Markup {
    html! {
        div.headlines {
            @for h in headline::headlines(report) { div { b { (Text(&h.value)) } span { (Text(&h.label)) } small { (Text(&h.basis)) } } }
        }
    }
}

fn parts(report: &Report) -> Vec<PagePart<'_>> {
    let part = |id, title, intro, figures, tables| PagePart { id, title, intro, figures, tables, extra: None };
    let mut graph = part(
        "graph",
        "Dataflow",
        "Every operator and every tensor that flows between them; all volumes are distinct bytes for one kernel, counted from memlets.",
        None,
        vec![],
    );
    if !report.graph.nodes.is_empty() {
        graph.extra = Some(graph::html(report));
    }
    let mut parts = vec![
        part(
            "waterfall",
            "Waterfall",
            "What each stage brings, in bytes and in milliseconds. <i>p</i> behind a number: predicted, times from kernels alone. What was run as a whole step comes last; it was measured, and is compared with what was measured.",
            Some(Section::Waterfall),
            vec![("Stages", tables::waterfall(report))],
        ),
        part(
            "totals",
            "Training step",
            "Contenders were checked for equal results, then timed in turns. Of a ratio the lower end counts.",
            Some(Section::Totals),
            vec![("Totals", tables::totals(report))],
        ),
        graph,
        part(
            "operators",
            "Kernels and operators",
            "Before and after fusion. Like with like: every kernel of the plan beside all unfused kernels that compute the same, each \
             once; the sum is that of the times of kernels, between which a step takes a little more. Strong: the larger of % of peak and MUE, which names the limit. MUE = Q/D · B/B̂ · 100; \
             D is counted from the generated loops, each container once, not by hardware. Beyond 100 caches gave what memory could not. Unfused times are those of the baseline that is last under Training step. <i>p</i>: predicted.",
            Some(Section::Operators),
            vec![
                ("Like with like", tables::comparison(&report.comparison)),
                ("Kernels of the plan", tables::operators(&report.kernels, "holds")),
                ("What each kernel must move (Q)", tables::tensors(&report.kernels)),
                ("Operators, unfused", tables::operators(&report.operators, "kernel")),
            ],
        ),
        part(
            "classes",
            "Operator classes",
            "Which class of operators the flop are in, and which one takes the time. A kernel of the plan that holds a contraction counts there \
             with all that it holds, so that only the sums of both sides can be compared. <i>p</i>: predicted.",
            Some(Section::Classes),
            vec![("Classes", tables::classes(report))],
        ),
        part(
            "movement",
            "Data movement",
            "Bytes of a step. The first row is of the baseline that is timed as unfused; other definitions of it count otherwise, and a \
             reduction means nothing without its baseline. Fused: \
             contractions left alone; composed: with their neighbours in them. Predicted: counted from memlets.",
            None,
            vec![("Definitions", tables::movement(report))],
        ),
        part(
            "algebraic",
            "Algebraic fusion",
            "Contractions that share an operand, stacked or apart; composed with their neighbours or not. The time of all kernels that \
             not every program has, each in its fastest configuration.",
            None,
            vec![("Variants", tables::algebraic(report))],
        ),
        part(
            "compositions",
            "Compositions",
            "Each kernel that holds a contraction with its neighbours, against what runs in its place without it, or with less of it: \
             sums of the best times of all kernels that only one of both programs runs, each measured alone.",
            None,
            vec![("Compositions: measured", tables::compositions(&report.compositions))],
        ),
        part(
            "products",
            "Matrix products",
            "Every contraction in its fastest configuration, against the algorithm that the library would choose itself for the same \
             matrices; the largest loss is that of any layout. Plain units: the fastest that uses no tensor cores; one \
             that was given up for being slow counts with its fastest run.",
            None,
            vec![("Algorithms: measured", tables::products(&report.products))],
        ),
        part(
            "sweeps",
            "Configurations",
            "How long each kernel takes in every configuration that was measured, and where the plan's stands among them. Each was \
             checked against the oracle before it was timed.",
            Some(Section::Sweeps),
            vec![
                ("Kernels", tables::sweeps(report)),
                ("Layers that hand over on chip", layer_forms(&report.layer_forms)),
                ("Coverage", tables::coverage(report)),
            ],
        ),
        selection(report),
        part(
            "memory",
            "Memory",
            "What a step holds beside inputs and parameters is planned into one arena: the order of kernels that needs the least, \
             results in the place of what nobody reads any more.",
            Some(Section::Memory),
            vec![("Alive at the peak", report.memory.table())],
        ),
        part("roofline", "Roofline", "How near each kernel is to what the machine can do.", Some(Section::Roofline), vec![]),
        part(
            "decisions",
            "Decisions",
            "What the backward pass keeps or computes again, and which neighbours were not fused.",
            None,
            vec![("Saved or recomputed", tables::policy(report)), ("Fusions refused", tables::refusals(&report.refusals))],
        ),
    ];
    // Only libraries on GPUs have algorithms to choose from.
    parts.retain(|part| part.id != "products" || !report.products.is_empty());
    if let (Some(stitched), Some(at)) = (&report.stitched, parts.iter().position(|part| part.id == "products" || part.id == "sweeps")) {
        parts.insert(at, stitching(stitched));
    }
    if !report.phases.is_empty() {
        let intro =
            "Where the time of the command went until this page was made. Seconds of the processor are those of all threads and compilers.";
        parts.push(part("timings", "Time of the command", intro, None, vec![("Phases", tables::phases(report))]));
    }
    parts
}

/// The plan of fusion that the stitched program carries out, beside what was measured.
fn stitching(stitched: &StitchedProgram) -> PagePart<'_> {
    let lines = [stitched.plan(), stitched.ranks()].map(|line| format!("{}.", capital(&line)));
    PagePart {
        id: "stitching",
        title: "Stitching",
        intro: "Which operators became one kernel by a plan that was made of a model's scores before anything was built; what the model says \
                that each saves, and the difference of measured times, each kernel alone in its fastest configuration.",
        figures: None,
        tables: vec![("Patterns", stitched.patterns_table()), ("Programs by the model and measured", stitched.programs_table())],
        extra: Some(html! { @for line in &lines { p { (Text(line)) } } }),
    }
}

/// The choice, and the scope and robustness of its proof.
fn selection(report: &Report) -> PagePart<'_> {
    let worth = [report.coverage.map(|c| format!("A proof is {}.", c.relative())), report.certainty.map(|c| format!("{c}."))];
    let worth: Vec<String> = worth.into_iter().flatten().map(|line| capital(&line)).collect();
    PagePart {
        id: "selection",
        title: "Selection",
        intro: "The choice of one layout for every tensor, against the sum of what each kernel could reach alone. <i>p</i>: predicted, \
                as a sum of measured parts.",
        figures: Some(Section::Selection),
        tables: vec![("Methods", tables::selection(report))],
        extra: (!worth.is_empty()).then(|| html! { @for line in &worth { p { (Text(line)) } } }),
    }
}

/// With its first letter large.
fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn provenance(p: &Provenance) -> Markup {
    let caches: Vec<String> = p.machine.caches.iter().map(|c| format!("{} {} × {}", c.name, c.bytes_each, c.count)).collect();
    let cores = format!("{} cores, {} hardware threads", p.machine.cores, p.machine.threads);
    let mut rows = vec![
        ("processor", p.machine.cpu.clone()),
        ("cores", cores),
        ("caches", caches.join(", ")),
        ("memory", p.machine.memory.to_string()),
        ("system", p.machine.os.clone()),
        ("compiler", p.compiler.clone()),
        ("commit", p.commit.clone().unwrap_or_else(|| "unknown".into())),
        ("command", p.command.clone()),
        ("date", p.date.clone()),
    ];
    rows.extend(p.versions.iter().map(|(name, version)| (name.as_str(), version.clone())));
    html! {
        section #provenance {
            h2 { "Provenance" }
            table.facts {
                tbody {
                    @for (name, value) in &rows {
                        tr { th { (Text(name)) } td { (Text(if value.is_empty() { "unknown" } else { value })) } }
                    }
                }
            }
        }
    }
}
