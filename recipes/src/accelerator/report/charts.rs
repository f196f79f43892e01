//! Memory over time, traffic by tensor, and bytes by capacity.

use super::super::PlanComparison;
use super::super::moves::{Move, volume};
use super::Bar;
use bench::table::Text;
use bench::unit::Bytes;
use maud::{Markup, html};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
/// Columns of the figure of memory.
const MOMENTS: usize = 860;

/// The most on chip at each moment, by the time of the model: a group takes its time evenly over what it moves.
fn moments(outcome: &PlanComparison) -> Vec<(u64, usize)> {
    let total: f64 = outcome.groups.iter().map(|g| g.seconds).sum();
    let mut columns = vec![(0, 0); MOMENTS];
    let (mut begin, mut passed) = (0, 0.0);
    for (n, (end, group)) in outcome.moves.ends.iter().zip(&outcome.groups).enumerate() {
        let size = |of: &Move| match of {
            Move::Load(piece) => volume(&outcome.moves.pieces[*piece].part),
            Move::Store { part, .. } => volume(part),
            Move::Compute(_) => 0,
        };
        let moved: u64 = outcome.moves.moves[begin..*end].iter().map(size).sum();
        let mut done = 0;
        let column = |done: u64| {
            let time = passed + group.seconds * done as f64 / moved.max(1) as f64;
            ((time / total * MOMENTS as f64) as usize).min(MOMENTS - 1)
        };
        for at in begin..*end {
            let from = column(done);
            done += size(&outcome.moves.moves[at]);
            for here in &mut columns[from..=column(done)] {
                *here = (here.0.max(outcome.moves.levels[at]), n);
            }
        }
        (begin, passed) = (*end, passed + group.seconds);
    }
    columns
}

pub fn memory(outcome: &PlanComparison) -> Markup {
    let capacity = outcome.device.on_chip_bytes / outcome.graph.element_bytes;
    let height = |level: u64| 200.0 * level as f64 / capacity as f64;
    let total: f64 = outcome.groups.iter().map(|g| g.seconds).sum();
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " 260" } width=(WIDTH) font-family="sans-serif" font-size="11" {
            @for (at, (level, group)) in moments(outcome).into_iter().enumerate() {
                rect x=(LEFT + at as f64) y=(format!("{:.1}", 220.0 - height(level))) width="1" height=(format!("{:.1}", height(level)))
                    fill=(if group % 2 == 0 { "#5b7db1" } else { "#c79a3c" }) {}
            }
            line x1=(LEFT) y1="20" x2=(LEFT + MOMENTS as f64) y2="20" stroke="#b03030" {}
            text x=(LEFT - 6.0) y="24" text-anchor="end" fill="#333" { (Bytes(outcome.device.on_chip_bytes)) }
            text x=(LEFT - 6.0) y="222" text-anchor="end" fill="#333" { "0" }
            text x=(LEFT) y="240" fill="#333" { "0 ms" }
            text x=(LEFT + MOMENTS as f64) y="240" text-anchor="end" fill="#333" { (bench::unit::significant(1e3 * total)) " ms" }
        }
    }
}

pub fn traffic(bars: &[Bar]) -> Markup {
    let most = bars.iter().map(|b| b.alone.max(b.loaded + b.stored)).max().unwrap_or(1).max(1);
    let length = |bytes: u64| format!("{:.1}", 560.0 * bytes as f64 / most as f64);
    let left = 280.0;
    let height = 18 * bars.len() + 40;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) font-family="sans-serif" font-size="11" {
            rect x=(left) y="6" width="11" height="11" fill="#5b7db1" {}
            text x=(left + 16.0) y="15" fill="#333" { "loaded" }
            rect x=(left + 70.0) y="6" width="11" height="11" fill="#c79a3c" {}
            text x=(left + 86.0) y="15" fill="#333" { "stored" }
            rect x=(left + 140.0) y="6" width="11" height="11" fill="none" stroke="#888" {}
            text x=(left + 156.0) y="15" fill="#333" { "every layer alone" }
            @for (at, bar) in bars.iter().enumerate() {
                @let y = 26 + 18 * at;
                text x=(left - 6.0) y=(y + 11) text-anchor="end" fill="#222" { (Text(&bar.name.chars().take(44).collect::<String>())) }
                rect x=(left) y=(y) width=(length(bar.loaded)) height="14" fill="#5b7db1" {}
                rect x=(format!("{:.1}", left + 560.0 * bar.loaded as f64 / most as f64)) y=(y) width=(length(bar.stored)) height="14" fill="#c79a3c" {}
                rect x=(left) y=(y) width=(length(bar.alone)) height="14" fill="none" stroke="#888" {}
                text x=(left + 568.0) y=(y + 11) fill="#333" { (Bytes(bar.loaded + bar.stored)) }
            }
        }
    }
}

pub fn capacity(curve: &[(u64, f64)], outcome: &PlanComparison) -> Markup {
    let (low, high) = (curve.first().map_or(1, |c| c.0) as f64, curve.last().map_or(2, |c| c.0) as f64);
    let x = |bytes: u64| LEFT + 20.0 + 820.0 * (bytes as f64 / low).ln() / (high / low).ln().max(1e-9);
    let y = |share: f64| 220.0 - 200.0 * share;
    let points: Vec<String> = curve.iter().map(|(bytes, share)| format!("{:.1},{:.1}", x(*bytes), y(*share))).collect();
    let bound = 1.0 - outcome.bound_bytes as f64 / outcome.baseline_bytes.max(1) as f64;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " 260" } width=(WIDTH) font-family="sans-serif" font-size="11" {
            @for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
                line x1=(LEFT) y1=(y(share)) x2=(WIDTH - 20.0) y2=(y(share)) stroke="#ddd" {}
                text x=(LEFT - 6.0) y=(y(share) + 4.0) text-anchor="end" fill="#333" { (100.0 * share) "%" }
            }
            line x1=(LEFT) y1=(format!("{:.1}", y(bound))) x2=(WIDTH - 20.0) y2=(format!("{:.1}", y(bound))) stroke="#b03030" stroke-dasharray="6 4" {}
            polyline points=(points.join(" ")) fill="none" stroke="#5b7db1" stroke-width="2" {}
            @for (bytes, share) in curve {
                circle cx=(format!("{:.1}", x(*bytes))) cy=(format!("{:.1}", y(*share))) r="4"
                    fill=(if *bytes == outcome.device.on_chip_bytes { "#d9741c" } else { "#5b7db1" }) {}
                text x=(format!("{:.1}", x(*bytes))) y=(format!("{:.1}", y(*share) - 9.0)) text-anchor="middle" fill="#222" { (format!("{:.1}", 100.0 * share)) }
                text x=(format!("{:.1}", x(*bytes))) y="240" text-anchor="middle" fill="#333" { (bytes / 1024) " KiB" }
            }
        }
    }
}
