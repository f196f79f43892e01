//! Whole training steps of all contenders, with the 95% interval of their medians (Tables IV and V as a picture).

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, BEFORE, GRID, INK, MUTED, OURS, figure, fitted, text_width};
use crate::model::ContenderTimes;
use crate::protocol::Timing;
use crate::stats::Summary;
use crate::unit::significant;
use plotters::style::Color;

const NAME: &str = "totals";
const ROW: i32 = 48;
const TOP: i32 = 72;
const RIGHT: i32 = 800;
/// The most pixels that a plan's name takes, as `merged · exact, chosen again · in the step` fits; longer names are cut.
const LONGEST: i32 = 360;

/// One bar for each contender: forward and backward where they were timed separately, else the step as a whole.
///
/// # Errors
/// [`PlotError::Empty`] if no contender has a time; [`PlotError::Stats`] for empty or NaN samples.
pub fn totals(program: &str, contenders: &[ContenderTimes]) -> Result<String, PlotError> {
    let summary = |timing: &Option<Timing>| {
        timing.as_ref().map(Timing::summary).transpose().map_err(|source| PlotError::Stats { figure: NAME, source })
    };
    let mut rows: Vec<(&ContenderTimes, [Option<Summary>; 3])> = Vec::new();
    for contender in contenders {
        let times = [summary(&contender.forward)?, summary(&contender.backward)?, summary(&contender.step)?];
        if times.iter().any(Option::is_some) {
            rows.push((contender, times));
        }
    }
    if rows.is_empty() {
        return Err(PlotError::Empty { figure: NAME });
    }
    let left = 24 + rows.iter().map(|(c, _)| text_width(&c.name, 13)).max().unwrap_or(0).clamp(60, LONGEST) + 12;
    let bottom = TOP + ROW * rows.len() as i32;
    let median = |s: &Option<Summary>| s.map_or(0.0, |s| s.median);
    let ends = rows.iter().flat_map(|(_, [f, b, s])| [median(f) + median(b), s.map_or(0.0, |s| s.interval.upper)]);
    let axis = Axis::linear(NAME, ends, left, RIGHT)?;
    figure(1000, bottom + 52, &format!("Training step: {program}"), |canvas| {
        canvas.legend(24, 48, &[("forward", BEFORE, true), ("backward or whole step", BEFORE, false)])?;
        canvas.line(&[(300, 48), (324, 48)], INK, 1)?;
        let said = "95% interval of the step's median; palest: between kernels; ours in blue; all measured, interleaved";
        canvas.text(332, 48, 12, MUTED, Anchor::Left, said)?;
        axis.horizontal(canvas, TOP, bottom, "measured median time [ms]")?;
        for (n, (contender, [forward, backward, step])) in rows.iter().enumerate() {
            let y = TOP + ROW * n as i32 + ROW / 2;
            let colour = if contender.ours { OURS } else { BEFORE };
            canvas.text(left - 12, y, 13, INK, Anchor::Right, &fitted(&contender.name, 13, LONGEST))?;
            let apart = median(forward) + median(backward);
            let whole = if apart > 0.0 { apart } else { median(step) };
            let (middle, end) = (axis.at(median(forward)), axis.at(whole));
            canvas.rect((left, y - 13), (middle - left, 26), colour)?;
            canvas.rect((middle, y - 13), ((end - middle).max(1), 26), colour.mix(0.55))?;
            // A step takes a little more than its launches.
            let rest = axis.at(median(step)) - end;
            if rest > 0 {
                canvas.rect((end, y - 13), (rest, 26), colour.mix(0.2))?;
            }
            let mut label = format!("{} ms", significant(step.map_or(whole, |s| s.median)));
            if let Some(interval) = step.map(|s| s.interval) {
                let (lower, upper) = (axis.at(interval.lower), axis.at(interval.upper));
                canvas.line(&[(lower, y), (upper, y)], INK, 1)?;
                canvas.line(&[(lower, y - 5), (lower, y + 5)], INK, 1)?;
                canvas.line(&[(upper, y - 5), (upper, y + 5)], INK, 1)?;
                label += &format!(" [{}, {}]", significant(interval.lower), significant(interval.upper));
            }
            canvas.text(RIGHT + 14, y, 12, INK, Anchor::Left, &label)?;
        }
        canvas.line(&[(left, TOP), (left, bottom)], GRID, 1)
    })
}
