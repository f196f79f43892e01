//! Each kernel before and after: the sum of its operators unfused against the kernel in the plan.

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, BEFORE, INK, MUTED, class_colour, figure, fitted, text_width};
use crate::model::OperatorRow;
use sdfg::Class;

const NAME: &str = "operators";
const ROW: i32 = 40;
const TOP: i32 = 72;
const RIGHT: i32 = 880;

/// Two bars for each row that has both times, with the speedup.
///
/// # Errors
/// [`PlotError::Empty`] when no row has both times; [`PlotError::OffScale`] for a time that is not a finite number.
pub fn operators(program: &str, rows: &[OperatorRow]) -> Result<String, PlotError> {
    let rows: Vec<_> = rows.iter().filter_map(|r| Some((r, r.unfused?, r.ours?))).collect();
    if rows.is_empty() {
        return Err(PlotError::Empty { figure: NAME });
    }
    let left = 24 + rows.iter().map(|(r, ..)| text_width(&r.name, 13)).max().unwrap_or(0).clamp(40, 260) + 12;
    let bottom = TOP + ROW * rows.len() as i32;
    let times = rows.iter().flat_map(|(_, before, after)| [before.value().0, after.value().0]);
    let axis = Axis::linear(NAME, times, left, RIGHT)?;
    figure(1000, bottom + 52, &format!("Kernels before and after: {program}"), |canvas| {
        canvas.legend(
            24,
            48,
            &[
                ("unfused", BEFORE, true),
                ("contraction", class_colour(Class::Contraction), true),
                ("normalization", class_colour(Class::Normalization), true),
                ("elementwise", class_colour(Class::Elementwise), true),
            ],
        )?;
        canvas.origins(620, 48)?;
        axis.horizontal(canvas, TOP, bottom, "time [ms]")?;
        for (n, (row, before, after)) in rows.iter().enumerate() {
            let y = TOP + ROW * n as i32 + ROW / 2;
            canvas.text(left - 12, y, 13, INK, Anchor::Right, &fitted(&row.name, 13, 260))?;
            let width = |time: f64| (axis.at(time) - left).max(1);
            canvas.bar((left, y - 14), (width(before.value().0), 12), BEFORE, before.is_measured())?;
            canvas.bar((left, y + 1), (width(after.value().0), 12), class_colour(row.class), after.is_measured())?;
            let speedup = row.speedup().map_or("–".to_string(), |s| format!("{s:.2}×"));
            canvas.text(RIGHT + 16, y, 12, MUTED, Anchor::Left, &speedup)?;
        }
        canvas.text(RIGHT + 16, TOP - 10, 11, MUTED, Anchor::Left, "speedup")
    })
}
