//! Bytes and milliseconds after each stage of the optimisation.

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, BEFORE, Canvas, INK, MUTED, OURS, figure, fitted, text_width};
use crate::model::WaterfallStep;
use crate::unit::{Bytes, Milliseconds, Quantity};

const NAME: &str = "waterfall";
const ROW: i32 = 36;
const TOP: i32 = 78;

/// Two panels of bars over the same steps: bytes moved and time of a step.
///
/// # Errors
/// [`PlotError::Empty`] without steps; [`PlotError::OffScale`] for a time that is not a finite number.
pub fn waterfall(program: &str, steps: &[WaterfallStep]) -> Result<String, PlotError> {
    if steps.is_empty() {
        return Err(PlotError::Empty { figure: NAME });
    }
    let left = 24 + steps.iter().map(|s| text_width(&s.name, 13)).max().unwrap_or(0).clamp(60, 200) + 12;
    let bottom = TOP + ROW * steps.len() as i32;
    figure(1000, bottom + 52, &format!("From unfused to selected: {program}"), |canvas| {
        canvas.origins(24, 48)?;
        for (n, step) in steps.iter().enumerate() {
            canvas.text(left - 12, row(n), 13, INK, Anchor::Right, &fitted(&step.name, 13, 200))?;
        }
        let middle = left + (1000 - left) / 2;
        let (unit, bytes_in) = unit(steps.iter().filter_map(|s| s.bytes).map(|b| b.value().0).max().unwrap_or(0));
        let bytes: Vec<_> = steps.iter().map(|s| s.bytes.map(|b| scaled(b, |b: Bytes| b.0 as f64 / bytes_in))).collect();
        let title = format!("bytes moved per step [{unit}]");
        panel(canvas, &bytes, left, middle - 96, bottom, &title, |v| Bytes((v * bytes_in).round() as u64).to_string())?;
        let times: Vec<_> = steps.iter().map(|s| s.time.map(|t| scaled(t, |ms: Milliseconds| ms.0))).collect();
        panel(canvas, &times, middle + 10, 1000 - 110, bottom, "time per step [ms]", |v| Milliseconds(v).to_string())
    })
}

/// A unit in which this many bytes are a readable number, and its size in bytes.
fn unit(largest: u64) -> (&'static str, f64) {
    match largest {
        0..1_000_000 => ("kB", 1e3),
        1_000_000..10_000_000_000 => ("MB", 1e6),
        _ => ("GB", 1e9),
    }
}

/// (value, whether it was measured).
fn scaled<T: Copy>(quantity: Quantity<T>, value: impl Fn(T) -> f64) -> (f64, bool) {
    (value(quantity.value()), quantity.is_measured())
}

fn row(n: usize) -> i32 {
    TOP + ROW * n as i32 + ROW / 2
}

fn panel(
    canvas: &Canvas<'_>,
    values: &[Option<(f64, bool)>],
    from: i32,
    to: i32,
    bottom: i32,
    title: &str,
    label: impl Fn(f64) -> String,
) -> Result<(), PlotError> {
    let axis = Axis::linear(NAME, values.iter().flatten().map(|v| v.0), from, to)?;
    axis.horizontal(canvas, TOP, bottom, title)?;
    let mut firsts: [Option<f64>; 2] = [None; 2];
    for (n, value) in values.iter().enumerate() {
        let Some((value, measured)) = value else {
            canvas.text(from + 6, row(n), 12, MUTED, Anchor::Left, "not known")?;
            continue;
        };
        let last = n + 1 == values.len();
        let end = axis.at(*value);
        canvas.bar((from, row(n) - 11), ((end - from).max(1), 22), if last { OURS } else { BEFORE }, *measured)?;
        // Measured times are compared with measured ones only: kernels alone do not add up to a step.
        let change = match firsts[usize::from(*measured)] {
            Some(base) if base > 0.0 => format!(" · {:+.0}%", 100.0 * (value / base - 1.0)).replace('-', "−"),
            _ => String::new(),
        };
        firsts[usize::from(*measured)].get_or_insert(*value);
        canvas.text(end + 7, row(n), 12, INK, Anchor::Left, &format!("{}{change}", label(*value)))?;
    }
    Ok(())
}
