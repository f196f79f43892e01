//! The page of a plan: its figures with their tables, in one file.

mod charts;
mod graph;

use super::PlanComparison;
use super::device::Accelerator;
use super::moves::ElementOwner;
use super::outcome::AcceleratorError;
use bench::report::STYLE;
use bench::table::{Table, Text};
use bench::unit::Bytes;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// On-chip memories of the curve, in KiB.
const CAPACITIES: [u64; 7] = [256, 384, 512, 768, 1024, 2048, 4096];

/// Tensors that the figure of traffic names, at most.
const NAMED: usize = 30;

/// The share of bytes that plans of a network spare against every layer alone, by bytes of the on-chip memory. A memory that some layer
/// does not fit into is left out.
///
/// # Errors
/// Faults of the planner.
pub fn capacity_curve(outcome: &PlanComparison) -> Result<Vec<(u64, f64)>, AcceleratorError> {
    let mut curve = Vec::new();
    let mut sizes: Vec<u64> = CAPACITIES.iter().map(|k| k * 1024).chain([outcome.device.on_chip_bytes]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for on_chip_bytes in sizes {
        let device = Accelerator { on_chip_bytes, ..outcome.device.clone() };
        match PlanComparison::of(outcome.graph.clone(), &device) {
            Ok(found) => curve.push((on_chip_bytes, found.less_than(found.baseline_bytes))),
            Err(AcceleratorError::Unplanned(_)) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(curve)
}

/// The page. `tables` are the comparison of plans and the groups; `command` makes the page again.
pub fn page(model: &str, outcome: &PlanComparison, curve: &[(u64, f64)], tables: [&Table; 2], command: &str) -> String {
    let device = &outcome.device;
    let caption = html! {
        span {
            "Model: " (Text(&device.name)) ", " (Bytes(device.on_chip_bytes)) " on chip, " (device.bytes_per_second / 1e9) " GB/s, "
            (device.flop_per_second / 1e9) " GFLOP/s; nothing was run."
        } " "
        span { "Again: " code { (Text(command)) } }
    };
    let section = |id: &str, title: &str, intro: &str, content: Markup| {
        html! {
            section id=(id) { h2 { (title) } p.intro { (PreEscaped(intro)) } (content) }
        }
    };
    let figure = |drawn: Markup| html! { figure { div.scroll { (drawn) } figcaption { (caption) } } };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (Text(model)) " on " (Text(&device.name)) ": Memlet plan" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (Text(model)) " on " (Text(&device.name)) }
                    p.about { "A plan for one image: which layers run together, and what moves between the memories." }
                }
                main {
                    (section("plans", "Plans", "Bytes that move for one image. The first baseline runs every layer of Caffe alone, each tensor once; the \
                        second has norms, scales and activations in the layer before them, and what is spared against it is reuse across layers. \
                        A speedup is the time of every layer alone, first moving and then computing, over that of a plan, which does both at once.",
                        html! { (tables[0].html()) p.caption { (caption) } }))
                    (section("groups", "Groups", "Each band is a group: its steps hand over on chip. A step is an anchor layer with what runs on its output. \
                        Orange lines leave their group and move.", html! { (figure(graph::groups(outcome))) (tables[1].html()) }))
                    (section("memory", "On-chip memory", "Elements on chip over the time of the model, group after group; the highest of each moment. The line is \
                        the capacity.", figure(charts::memory(outcome))))
                    (section("traffic", "Traffic by tensor", "What the simulator counted, for the tensors and weights that move most. The outline is what moves where \
                        every layer runs alone.", figure(charts::traffic(&traffic(outcome)))))
                    (section("capacity", "Capacity", "Bytes spared against every layer alone, for other sizes of the on-chip memory. The dashed line is the bound: \
                        weights, inputs and results once.", figure(charts::capacity(curve, outcome))))
                }
            }
        }
    };
    page.into_string() + "\n"
}

/// A bar of the figure of traffic: bytes.
pub struct Bar {
    pub name: String,
    pub loaded: u64,
    pub stored: u64,
    /// What moves where every layer runs alone.
    pub alone: u64,
}

/// The tensors that move most, and all others together.
fn traffic(outcome: &PlanComparison) -> Vec<Bar> {
    let steps = &outcome.partition.steps;
    let element = steps.element_bytes;
    let mut bars: Vec<Bar> = Vec::new();
    for (source, loaded, stored) in &outcome.traffic.sources {
        let (name, alone) = match source {
            ElementOwner::Tensor(t) => {
                let of = &steps.tensors[*t];
                let times = of.readers.len() as u64 + u64::from(of.producer.is_some());
                (of.name.clone(), of.shape.elements() * times)
            }
            ElementOwner::Filter(s) => (format!("weights of {}", steps.steps[*s].name), steps.steps[*s].filter),
            ElementOwner::Rest(s) => (format!("biases and scales of {}", steps.steps[*s].name), steps.steps[*s].rest),
        };
        bars.push(Bar { name, loaded: loaded * element, stored: stored * element, alone: alone * element });
    }
    bars.sort_by(|a, b| (b.loaded + b.stored).cmp(&(a.loaded + a.stored)).then_with(|| a.name.cmp(&b.name)));
    if bars.len() > NAMED {
        let rest = bars.split_off(NAMED);
        let sum = |of: fn(&Bar) -> u64| rest.iter().map(of).sum();
        bars.push(Bar {
            name: format!("{} others", rest.len()),
            loaded: sum(|b| b.loaded),
            stored: sum(|b| b.stored),
            alone: sum(|b| b.alone),
        });
    }
    bars
}
