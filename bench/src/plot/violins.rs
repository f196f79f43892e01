//! Distribution of the measured times over all configurations of each kernel (Figs. 4 and 5).

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, BEST, CHOSEN, Canvas, INK, MUTED, RULE, class_colour, figure, fitted, text_width};
use crate::model::KernelSweep;
use crate::stats::Samples;
use sdfg::Class;

const NAME: &str = "violins";
const ROW: i32 = 54;
const HALF: f64 = 20.0;
const TOP: i32 = 96;
const RIGHT: i32 = 880;
/// Marks of rule-following configurations beyond this number would only overlap.
const MARKS: usize = 400;

/// Fewer configurations have no density: each is a mark of its own.
const FEW: usize = 8;

/// One violin for each kernel that has configurations, on a common logarithmic axis. The density is that of log-time; of
/// a few each is a mark.
///
/// # Errors
/// [`PlotError::Empty`] when no kernel has a configuration; [`PlotError::OffScale`] for a time that is not positive.
pub fn violins(title: &str, sweeps: &[&KernelSweep]) -> Result<String, PlotError> {
    let sweeps: Vec<&KernelSweep> = sweeps.iter().copied().filter(|s| !s.configurations.is_empty()).collect();
    let left = 24 + sweeps.iter().map(|s| text_width(&s.kernel, 13)).max().unwrap_or(0).clamp(40, 220) + 14;
    let times = sweeps.iter().flat_map(|s| s.configurations.iter().map(|c| c.median.0.0));
    let axis = Axis::log(NAME, times, left, RIGHT)?;
    let bottom = TOP + ROW * sweeps.len() as i32;
    figure(1000, bottom + 52, title, |canvas| {
        legend(canvas)?;
        classes(canvas, &sweeps)?;
        axis.horizontal(canvas, TOP, bottom, "measured median time of one configuration [ms, logarithmic]")?;
        for (n, sweep) in sweeps.iter().enumerate() {
            let y = TOP + ROW * n as i32 + ROW / 2;
            canvas.text(left - 14, y, 13, INK, Anchor::Right, &fitted(&sweep.kernel, 13, 220))?;
            violin(canvas, &axis, y, sweep)?;
        }
        Ok(())
    })
}

fn legend(canvas: &Canvas<'_>) -> Result<(), PlotError> {
    let mut x = 30;
    let mut entry = |name: &str| {
        let at = x;
        x += 14 + text_width(name, 12) + 22;
        canvas.text(at + 12, 48, 12, MUTED, Anchor::Left, name).map(|()| at)
    };
    let at = entry("chosen in the plan")?;
    canvas.diamond((at, 48), 6, CHOSEN)?;
    let at = entry("fastest")?;
    canvas.line(&[(at, 40), (at, 56)], BEST, 3)?;
    let at = entry("median")?;
    canvas.line(&[(at, 42), (at, 54)], MUTED, 2)?;
    let at = entry("follows the rules: vector dim innermost, reduced dim vectorised")?;
    canvas.dot((at, 48), 3, RULE, true)
}

/// Only the classes that occur.
fn classes(canvas: &Canvas<'_>, sweeps: &[&KernelSweep]) -> Result<(), PlotError> {
    let kinds = [(Class::Contraction, "contraction"), (Class::Normalization, "normalization"), (Class::Elementwise, "elementwise")];
    let present = kinds.into_iter().filter(|(class, _)| sweeps.iter().any(|s| s.class == *class));
    canvas.legend(24, 70, &present.map(|(class, name)| (name, class_colour(class), true)).collect::<Vec<_>>())
}

fn violin(canvas: &Canvas<'_>, axis: &Axis, y: i32, sweep: &KernelSweep) -> Result<(), PlotError> {
    let times: Vec<f64> = sweep.configurations.iter().map(|c| c.median.0.0).collect();
    let count = times.len();
    let logs = Samples::new(times.iter().map(|t| t.ln()).collect()).map_err(|source| PlotError::Stats { figure: NAME, source })?;
    let density = if count < FEW { vec![] } else { logs.density(96) };
    let peak = density.iter().map(|d| d.1).fold(f64::MIN_POSITIVE, f64::max);
    let colour = class_colour(sweep.class);
    let edge = |sign: f64| {
        let point = move |(at, d): &(f64, f64)| (axis.at(at.exp()), y + (sign * HALF * d / peak).round() as i32);
        density.iter().map(point).collect::<Vec<_>>()
    };
    if density.len() > 1 {
        let (upper, lower) = (edge(-1.0), edge(1.0));
        canvas.polygon(upper.iter().chain(lower.iter().rev()).copied().collect(), plotters::style::Color::mix(&colour, 0.35))?;
        canvas.line(&upper, colour, 1)?;
        canvas.line(&lower, colour, 1)?;
        let median = axis.at(logs.median().exp());
        canvas.line(&[(median, y - 9), (median, y + 9)], colour, 2)?;
    } else {
        let at: Vec<i32> = times.iter().map(|t| axis.at(*t)).collect();
        let ends = at.iter().min().zip(at.iter().max());
        if let Some((first, last)) = ends {
            canvas.line(&[(*first, y), (*last, y)], colour, 1)?;
        }
        for x in at {
            canvas.line(&[(x, y - 9), (x, y + 9)], colour, 2)?;
        }
    }
    let rule: Vec<f64> = sweep.configurations.iter().filter(|c| c.intuitive).map(|c| c.median.0.0).collect();
    for time in rule.iter().step_by(rule.len() / MARKS + 1) {
        canvas.dot((axis.at(*time), y), 2, RULE, true)?;
    }
    if let Some(best) = sweep.best() {
        let x = axis.at(best.median.0.0);
        canvas.line(&[(x, y - 17), (x, y + 17)], BEST, 3)?;
    }
    if let Some(chosen) = sweep.chosen() {
        canvas.diamond((axis.at(chosen.median.0.0), y), 7, CHOSEN)?;
    }
    let plural = if count == 1 { "" } else { "s" };
    canvas.text(RIGHT + 12, y, 11, MUTED, Anchor::Left, &format!("{count} config{plural}"))
}
