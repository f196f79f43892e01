//! Attained against attainable: flop per second over flop per byte, under the ceilings of the same run.

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, Canvas, INK, MUTED, class_colour, figure, fitted};
use crate::model::{Ceiling, Roofline, RooflinePoint};
use sdfg::Class;

const NAME: &str = "roofline";
const LEFT: i32 = 84;
const RIGHT: i32 = 720;
const TOP: i32 = 76;
const ENTRY: i32 = 17;

/// A log–log roofline; points are numbered and named in a list beside it. Points without flop have no place on it and are
/// left out of the picture but listed.
///
/// # Errors
/// [`PlotError::Empty`] without points or without any ceiling; [`PlotError::OffScale`] for NaN or infinite values.
pub fn roofline(program: &str, roofline: &Roofline) -> Result<String, PlotError> {
    if roofline.points.is_empty() || roofline.compute.is_empty() && roofline.bandwidth.is_empty() {
        return Err(PlotError::Empty { figure: NAME });
    }
    let placed = |p: &&RooflinePoint| p.flop_per_byte != 0.0 && p.gigaflop_per_second.value() != 0.0;
    let ridges = roofline.compute.iter().flat_map(|c| roofline.bandwidth.iter().map(|b| c.value.value() / b.value.value()));
    let bottom = TOP + (ENTRY * roofline.points.len() as i32 - 40).max(420);
    let x = Axis::log(NAME, roofline.points.iter().filter(placed).map(|p| p.flop_per_byte).chain(ridges), LEFT, RIGHT)?;
    let heights = roofline.points.iter().filter(placed).map(|p| p.gigaflop_per_second.value());
    let y = Axis::log(NAME, heights.chain(roofline.compute.iter().map(|c| c.value.value())), bottom, TOP + 10)?;
    figure(1000, bottom + 52, &format!("Roofline: {program}"), |canvas| {
        let entry = |class: Class, name| (name, class_colour(class), true);
        let classes = [
            entry(Class::Contraction, "contraction"),
            entry(Class::Normalization, "normalization"),
            entry(Class::Elementwise, "elementwise"),
        ];
        canvas.legend(24, 48, &classes)?;
        canvas.text(360, 48, 12, MUTED, Anchor::Left, "filled, solid: measured    hollow, dashed: predicted")?;
        x.horizontal(canvas, TOP, bottom, "arithmetic intensity [flop / byte, logarithmic]")?;
        y.vertical(canvas, LEFT, RIGHT, "performance [Gflop/s, logarithmic]")?;
        ceilings(canvas, &x, &y, roofline)?;
        points(canvas, &x, &y, &roofline.points)
    })
}

fn ceilings(canvas: &Canvas<'_>, x: &Axis, y: &Axis, roofline: &Roofline) -> Result<(), PlotError> {
    let line = |ceiling: &Ceiling, from, to| match ceiling.value.is_measured() {
        true => canvas.line(&[from, to], INK, 2),
        false => canvas.dashes(from, to, INK, 2),
    };
    let roof = roofline.compute.iter().map(|c| c.value.value()).fold(y.low(), f64::max).min(y.high());
    for ceiling in &roofline.compute {
        let at = y.at(ceiling.value.value());
        line(ceiling, (LEFT, at), (RIGHT, at))?;
        let label = format!("{}: {:.0} Gflop/s {}", ceiling.name, ceiling.value.value(), ceiling.value.origin());
        canvas.text(RIGHT - 8, at + 12, 11, INK, Anchor::Right, &label)?;
    }
    for (n, ceiling) in roofline.bandwidth.iter().enumerate() {
        let slope = ceiling.value.value();
        // Clipped to the frame: from where it enters at the left or from below to where it meets the roof.
        let begin = x.low().max(y.low() / slope);
        let end = (roof / slope).min(x.high());
        if begin >= end {
            continue;
        }
        line(ceiling, (x.at(begin), y.at(begin * slope)), (x.at(end), y.at(end * slope)))?;
        // Labels go down the lines in turn, so that those of neighbouring ceilings keep apart.
        let part = begin * (end / begin).powf(0.55 - 0.2 * (n % 3) as f64);
        let label = format!("{}: {slope:.1} GB/s {}", ceiling.name, ceiling.value.origin());
        canvas.text(x.at(part) - 10, y.at(part * slope) - 8, 11, INK, Anchor::Right, &label)?;
    }
    Ok(())
}

fn points(canvas: &Canvas<'_>, x: &Axis, y: &Axis, points: &[RooflinePoint]) -> Result<(), PlotError> {
    let mut taken: Vec<(i32, i32)> = Vec::new();
    for (n, point) in points.iter().enumerate() {
        let number = (n + 1).to_string();
        let colour = class_colour(point.class);
        let entry = TOP + 2 + ENTRY * n as i32;
        canvas.text(RIGHT + 46, entry, 11, colour, Anchor::Right, &number)?;
        canvas.text(RIGHT + 54, entry, 12, INK, Anchor::Left, &fitted(&point.name, 12, 214))?;
        if point.flop_per_byte == 0.0 || point.gigaflop_per_second.value() == 0.0 {
            continue;
        }
        let at = (x.at(point.flop_per_byte), y.at(point.gigaflop_per_second.value()));
        canvas.dot(at, 5, colour, point.gigaflop_per_second.is_measured())?;
        // The first free place around the point; crowded points keep their number in the list only.
        let free = |(px, py): &(i32, i32)| taken.iter().all(|(tx, ty)| (px - tx).abs() > 16 || (py - ty).abs() > 12);
        let around = [(12, 0), (-12, 0), (0, -13), (0, 13), (11, -11), (11, 11), (-11, -11), (-11, 11)];
        if let Some(place) = around.iter().map(|(dx, dy)| (at.0 + dx, at.1 + dy)).find(free) {
            canvas.text(place.0, place.1, 11, colour, Anchor::Middle, &number)?;
            taken.push(place);
        }
        taken.push(at);
    }
    Ok(())
}
