//! The loss of a training run over its steps.

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, BEFORE, GRID, MUTED, OURS, figure};
use crate::unit::significant;

const NAME: &str = "losses";
const LEFT: i32 = 84;
const RIGHT: i32 = 960;
const TOP: i32 = 64;
const BOTTOM: i32 = 400;
/// The weight of a step in the mean that the heavy line shows, if the run has so many; shorter runs show their steps alone.
const RECENT: usize = 20;

/// A thin line for each step's own loss, and over it the mean of the last steps, which tells a trend from the noise of batches.
///
/// # Errors
/// [`PlotError::Empty`] without steps; [`PlotError::OffScale`] for a loss that is not finite.
pub fn losses(program: &str, steps: &[(u64, f64)]) -> Result<String, PlotError> {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Err(PlotError::Empty { figure: NAME }) };
    // A loss may be negative, as a log-likelihood: the axis then begins at the lowest one.
    let shift = steps.iter().map(|(_, loss)| *loss).fold(0.0, f64::min);
    if let Some((_, value)) = steps.iter().find(|(_, loss)| !loss.is_finite()) {
        return Err(PlotError::OffScale { figure: NAME, value: *value, scale: "linear" });
    }
    let across = Axis::linear(NAME, [last.0 as f64], LEFT, RIGHT)?;
    let up = Axis::linear(NAME, steps.iter().map(|(_, loss)| loss - shift), BOTTOM, TOP)?;
    let at = |step: u64, loss: f64| (across.at(step as f64), up.at(loss - shift));
    let own: Vec<(i32, i32)> = steps.iter().map(|(step, loss)| at(*step, *loss)).collect();
    let mean = |end: usize| {
        let recent = &steps[(end + 1).saturating_sub(RECENT)..=end];
        recent.iter().map(|(_, loss)| loss).sum::<f64>() / recent.len() as f64
    };
    let smooth = steps.len() > 2 * RECENT;
    let title = if shift < 0.0 { format!("loss, less the least ({})", significant(shift)) } else { "loss".to_string() };
    figure(1000, BOTTOM + 52, &format!("Training: {program}"), |canvas| {
        let text = format!("step {}: {}; step {}: {}", first.0, significant(first.1), last.0, significant(last.1));
        match smooth {
            true => canvas.legend(24, 44, &[("each step", BEFORE, true), ("mean of the last 20", OURS, true)])?,
            false => canvas.legend(24, 44, &[("each step", OURS, true)])?,
        }
        canvas.text(RIGHT, 44, 12, MUTED, Anchor::Right, &text)?;
        across.horizontal(canvas, TOP, BOTTOM, "steps")?;
        up.vertical(canvas, LEFT, RIGHT, &title)?;
        canvas.line(&[(LEFT, TOP), (LEFT, BOTTOM)], GRID, 1)?;
        if let [one] = own.as_slice() {
            return canvas.dot(*one, 3, OURS, true);
        }
        canvas.line(&own, if smooth { BEFORE } else { OURS }, if smooth { 1 } else { 2 })?;
        if smooth {
            let means: Vec<(i32, i32)> = steps.iter().enumerate().map(|(n, (step, _))| at(*step, mean(n))).collect();
            canvas.line(&means, OURS, 2)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_a_falling_line() {
        let steps: Vec<(u64, f64)> = (1..=100).map(|n| (n, 5.0 / n as f64)).collect();
        let svg = losses("m", &steps).unwrap();
        assert!(svg.contains("step 1: 5.00; step 100: 0.0500") && svg.contains("mean of the last 20"), "{svg}");
        assert!(!losses("m", &steps[..10]).unwrap().contains("mean of the last 20"));
        assert!(losses("m", &[(1, -3.0), (2, -4.0)]).unwrap().contains("less the least (-4.00)"));
        assert!(losses("m", &steps[..1]).unwrap().contains("circle"));
        assert!(matches!(losses("m", &[]), Err(PlotError::Empty { .. })));
        assert!(matches!(losses("m", &[(1, f64::NAN)]), Err(PlotError::OffScale { .. })));
    }
}
