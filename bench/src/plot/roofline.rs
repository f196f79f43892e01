//! Attained against attainable: flop per second over flop per byte, under the ceilings of the same run.

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, Canvas, INK, MUTED, class_colour, figure, fitted, text_width};
use crate::model::{Ceiling, Roofline, RooflinePoint};
use crate::unit::significant;
use sdfg::Class;

const NAME: &str = "roofline";
const LEFT: i32 = 84;
const RIGHT: i32 = 720;
const TOP: i32 = 76;
const ENTRY: i32 = 17;

/// A log–log roofline; points are numbered and named in a list next to it. Points without flop have no place on it and are only listed.
///
/// # Errors
/// [`PlotError::Empty`] without points or without any ceiling; [`PlotError::OffScale`] for NaN or infinite values.
pub fn roofline(program: &str, roofline: &Roofline) -> Result<String, PlotError> {
    if roofline.points.is_empty() || roofline.compute.is_empty() && roofline.bandwidth.is_empty() {
        return Err(PlotError::Empty { figure: NAME });
    }
    let placed = |p: &&RooflinePoint| p.flop_per_byte != 0.0 && p.gigaflop_per_second.value() != 0.0;
    let ridges = roofline.compute.iter().flat_map(|c| roofline.bandwidth.iter().map(|b| c.value.value() / b.value.value()));
    let entries = roofline.points.len() + 1 + roofline.compute.len() + roofline.bandwidth.len();
    let bottom = TOP + (ENTRY * entries as i32).max(420);
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
        canvas.text(420, 48, 12, MUTED, Anchor::Left, "filled or solid: measured · hollow or dashed: predicted")?;
        x.horizontal(canvas, TOP, bottom, "arithmetic intensity [flop / byte, logarithmic]")?;
        y.vertical(canvas, LEFT, RIGHT, "performance [Gflop/s, logarithmic]")?;
        ceilings(canvas, &x, &y, roofline)?;
        points(canvas, &x, &y, &roofline.points)
    })
}

/// Lines with a letter each; the letters are explained under the list of points.
fn ceilings(canvas: &Canvas<'_>, x: &Axis, y: &Axis, roofline: &Roofline) -> Result<(), PlotError> {
    let line = |ceiling: &Ceiling, from, to| match ceiling.value.is_measured() {
        true => canvas.line(&[from, to], INK, 2),
        false => canvas.dashes(from, to, INK, 2),
    };
    let mut letters = ('A'..='Z').cycle();
    let mut entry = TOP + 2 + ENTRY * roofline.points.len() as i32 + ENTRY;
    let mut explain = |ceiling: &Ceiling, unit: &str| {
        let letter = letters.next().unwrap_or('A').to_string();
        canvas.bold(RIGHT + 46, entry, 11, INK, Anchor::Right, &letter)?;
        let value = format!(": {} {unit}, {}", significant(ceiling.value.value()), ceiling.value.origin());
        let name = fitted(&ceiling.name, 11, 230 - text_width(&value, 11));
        canvas.text(RIGHT + 54, entry, 11, INK, Anchor::Left, &(name + &value))?;
        entry += ENTRY;
        Ok::<String, PlotError>(letter)
    };
    let steepest = roofline.bandwidth.iter().map(|b| b.value.value()).fold(0.0, f64::max);
    let mut letter_at = i32::MIN;
    let mut compute: Vec<&Ceiling> = roofline.compute.iter().collect();
    compute.sort_by(|a, b| b.value.value().total_cmp(&a.value.value()));
    for ceiling in compute {
        let peak = ceiling.value.value();
        let at = y.at(peak);
        let begin = if steepest > 0.0 { x.at(peak / steepest) } else { LEFT };
        line(ceiling, (begin, at), (RIGHT, at))?;
        letter_at = at.max(letter_at.saturating_add(13));
        canvas.bold(RIGHT + 10, letter_at, 11, INK, Anchor::Middle, &explain(ceiling, "Gflop/s")?)?;
    }
    let roof = roofline.compute.iter().map(|c| c.value.value()).fold(y.low(), f64::max).min(y.high());
    for ceiling in &roofline.bandwidth {
        let slope = ceiling.value.value();
        let letter = explain(ceiling, "GB/s")?;
        // Clipped to the frame: from where it enters at the left or from below to where it meets the roof.
        let begin = x.low().max(y.low() / slope);
        let end = if roofline.compute.is_empty() { x.high().min(y.high() / slope) } else { (roof / slope).min(x.high()) };
        if begin < end {
            line(ceiling, (x.at(begin), y.at(begin * slope)), (x.at(end), y.at(end * slope)))?;
            let part = begin * (end / begin).powf(0.15);
            canvas.bold(x.at(part) - 6, y.at(part * slope) - 10, 11, INK, Anchor::Middle, &letter)?;
        }
    }
    Ok(())
}

fn points(canvas: &Canvas<'_>, x: &Axis, y: &Axis, points: &[RooflinePoint]) -> Result<(), PlotError> {
    let mut taken: Vec<(i32, i32)> = Vec::new();
    let mut numbered: Vec<(usize, (i32, i32))> = Vec::new();
    for (n, point) in points.iter().enumerate() {
        let colour = class_colour(point.class);
        let entry = TOP + 2 + ENTRY * n as i32;
        canvas.text(RIGHT + 46, entry, 11, colour, Anchor::Right, &(n + 1).to_string())?;
        canvas.text(RIGHT + 54, entry, 12, INK, Anchor::Left, &fitted(&point.name, 12, 214))?;
        if point.flop_per_byte == 0.0 || point.gigaflop_per_second.value() == 0.0 {
            continue;
        }
        let at = (x.at(point.flop_per_byte), y.at(point.gigaflop_per_second.value()));
        canvas.dot(at, 5, colour, point.gigaflop_per_second.is_measured())?;
        taken.push(at);
        numbered.push((n, at));
    }
    for (n, at) in numbered {
        // The first free place around the point; crowded points keep their number in the list only.
        let free = |(px, py): &(i32, i32)| taken.iter().all(|(tx, ty)| (px - tx).abs() > 13 || (py - ty).abs() > 11);
        let around = [(15, 0), (-15, 0), (0, -14), (0, 14), (13, -12), (13, 12), (-13, -12), (-13, 12), (0, -27), (0, 27), (28, 0)];
        if let Some(place) = around.iter().map(|(dx, dy)| (at.0 + dx, at.1 + dy)).find(free) {
            let colour = points.get(n).map_or(INK, |p| class_colour(p.class));
            canvas.text(place.0, place.1, 11, colour, Anchor::Middle, &(n + 1).to_string())?;
            taken.push(place);
        }
    }
    Ok(())
}
