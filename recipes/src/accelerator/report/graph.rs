//! The steps of a network from top to bottom, with their groups as bands.

use super::super::PlanComparison;
use super::super::steps::FusedSteps;
use bench::table::Text;
use bench::unit::Bytes;
use maud::{Markup, html};

const ROW: usize = 20;
const LANE: usize = 170;
const LEFT: usize = 90;
/// Letters of a step's name that fit into its box.
const LETTERS: usize = 24;

/// By step: the lane that it stands in. A step goes on in the lane of its first input if no step between stands there.
fn lanes(steps: &FusedSteps) -> Vec<usize> {
    let mut lanes = Vec::with_capacity(steps.steps.len());
    // By lane: the last step that needs what was made there last.
    let mut busy: Vec<usize> = Vec::new();
    for (at, step) in steps.steps.iter().enumerate() {
        let last = steps.tensors[step.output].readers.iter().max().copied().unwrap_or(at);
        let free = busy.iter().position(|until| *until <= at).unwrap_or(busy.len());
        if free == busy.len() {
            busy.push(last);
        } else {
            busy[free] = last;
        }
        lanes.push(free);
    }
    lanes
}

/// The figure.
pub fn groups(outcome: &PlanComparison) -> Markup {
    let steps = &outcome.partition.steps;
    let lanes = lanes(steps);
    let width = LEFT + LANE * (lanes.iter().max().copied().unwrap_or(0) + 1) + 200;
    let height = ROW * steps.steps.len() + 16;
    let (x, y) = (|step: usize| LEFT + LANE * lanes[step], |step: usize| 8 + ROW * step);
    let group_of = |step: usize| outcome.partition.groups.iter().position(|g| g.steps.begin <= step && step < g.steps.end);
    let mut lines = Vec::new();
    for (at, step) in steps.steps.iter().enumerate() {
        for tensor in step.inputs.iter().chain(&step.sides) {
            if let Some(from) = steps.tensors[*tensor].producer {
                lines.push((from, at, group_of(from) != group_of(at), steps.tensors[*tensor].name.clone()));
            }
        }
    }
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (width) " " (height) } width=(width) font-family="sans-serif" font-size="11" {
            @for (n, (group, summary)) in outcome.partition.groups.iter().zip(&outcome.groups).enumerate() {
                rect x="0" y=(y(group.steps.begin) - 2) width=(width) height=(ROW * group.steps.len() - 1)
                    fill=(if n % 2 == 0 { "#e8eef7" } else { "#f6f1e4" }) {}
                text x="6" y=(y(group.steps.begin) + 12) fill="#333" { (n + 1) ": " (Bytes(summary.bytes)) }
                text x=(width - 6) y=(y(group.steps.begin) + 12) fill="#333" text-anchor="end" { (summary.schedule) }
            }
            @for (from, to, moves, name) in &lines {
                line x1=(x(*from) + 75) y1=(y(*from) + 15) x2=(x(*to) + 75) y2=(y(*to)) stroke=(if *moves { "#d9741c" } else { "#7a8aa0" })
                    stroke-width=(if *moves { "2" } else { "1" }) { title { (Text(name)) } }
            }
            @for (at, step) in steps.steps.iter().enumerate() {
                rect x=(x(at)) y=(y(at)) width="150" height="15" rx="3" fill="#ffffff" stroke="#56657d" {
                    title { (Text(&step.name)) ", " (step.layers.len()) " layers" }
                }
                text x=(x(at) + 5) y=(y(at) + 11) fill="#222" { (Text(&step.name.chars().take(LETTERS).collect::<String>())) }
            }
        }
    }
}
