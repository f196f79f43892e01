//! Shares of the operator classes in flop and in time (Table I as a picture).

use super::PlotError;
use super::canvas::{Anchor, Canvas, INK, MUTED, PAPER, class_colour, figure, text_width};
use crate::model::{ClassShare, Time};
use crate::unit::{Flop, Milliseconds};

const NAME: &str = "classes";
const LEFT: i32 = 130;
const RIGHT: i32 = 860;

/// One stacked bar each for flop, unfused time and our time, each scaled to 100%.
///
/// # Errors
/// [`PlotError::Empty`] without classes; [`PlotError::OffScale`] for a time that is not a finite number.
pub fn classes(program: &str, shares: &[ClassShare]) -> Result<String, PlotError> {
    if shares.is_empty() {
        return Err(PlotError::Empty { figure: NAME });
    }
    figure(1000, 252, &format!("Operator classes: {program}"), |canvas| {
        let names: Vec<String> = shares.iter().map(|s| s.class.to_string()).collect();
        let legend: Vec<_> = shares.iter().zip(&names).map(|(s, name)| (name.as_str(), class_colour(s.class), true)).collect();
        canvas.legend(24, 50, &legend)?;
        canvas.origins(760, 50)?;
        let flop: Flop = shares.iter().map(|s| s.flop).sum();
        stack(canvas, 86, "flop", &flop.to_string(), shares, |s| Some((s.flop.0 as f64, true)))?;
        time(canvas, 134, "unfused time", shares, |s| s.unfused)?;
        time(canvas, 182, "our time", shares, |s| s.ours)?;
        for percent in [0, 25, 50, 75, 100] {
            canvas.text(LEFT + (RIGHT - LEFT) * percent / 100, 216, 11, MUTED, Anchor::Middle, &percent.to_string())?;
        }
        canvas.text((LEFT + RIGHT) / 2, 236, 12, INK, Anchor::Middle, "share of the total [%]")
    })
}

fn time(
    canvas: &Canvas<'_>,
    y: i32,
    name: &str,
    shares: &[ClassShare],
    pick: impl Fn(&ClassShare) -> Option<Time>,
) -> Result<(), PlotError> {
    let total: Milliseconds = shares.iter().filter_map(&pick).map(|t| t.value()).sum();
    stack(canvas, y, name, &total.to_string(), shares, |s| pick(s).map(|t| (t.value().0, t.is_measured())))
}

fn stack(
    canvas: &Canvas<'_>,
    y: i32,
    name: &str,
    total: &str,
    shares: &[ClassShare],
    pick: impl Fn(&ClassShare) -> Option<(f64, bool)>,
) -> Result<(), PlotError> {
    canvas.text(LEFT - 12, y, 13, INK, Anchor::Right, name)?;
    let values: Vec<_> = shares.iter().map(&pick).collect();
    if let Some(value) = values.iter().flatten().map(|v| v.0).find(|v| !v.is_finite() || *v < 0.0) {
        return Err(PlotError::OffScale { figure: NAME, value, scale: "share" });
    }
    let sum: f64 = values.iter().flatten().map(|v| v.0).sum();
    if sum <= 0.0 {
        return canvas.text(LEFT, y, 12, MUTED, Anchor::Left, "not known");
    }
    let mut before = 0.0;
    let pixel = |part: f64| LEFT + (f64::from(RIGHT - LEFT) * part / sum).round() as i32;
    for (share, value) in shares.iter().zip(values) {
        let Some((value, measured)) = value else { continue };
        let (from, to) = (pixel(before), pixel(before + value));
        before += value;
        canvas.bar((from, y - 15), (to - from, 30), class_colour(share.class), measured)?;
        let label = format!("{:.1}%", 100.0 * value / sum);
        if text_width(&label, 12) + 8 < to - from {
            canvas.text((from + to) / 2, y, 12, if measured { PAPER } else { INK }, Anchor::Middle, &label)?;
        }
    }
    canvas.text(RIGHT + 12, y, 12, MUTED, Anchor::Left, total)
}
