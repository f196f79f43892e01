//! Lifetimes of buffers: kernels from left to right, memory from bottom to top.

use super::PlotError;
use super::axis::Axis;
use super::canvas::{Anchor, BEFORE, BEST, CHOSEN, Canvas, INK, MUTED, OURS, figure, fitted, text_width};
use crate::memory::{Life, MemoryMap};
use plotters::style::Color;

const NAME: &str = "memory";
const WIDTH: i32 = 1000;
const LEFT: i32 = 96;
const RIGHT: i32 = WIDTH - 24;
const TOP: i32 = 72;
const BOTTOM: i32 = 460;
/// Kernels whose numbers fit below the axis.
const NUMBERS: usize = 24;

/// Each buffer as a rectangle from its first kernel to its last, at its place in memory; inputs at the bottom.
///
/// # Errors
/// [`PlotError::Empty`] without kernels.
pub fn memory(program: &str, map: &MemoryMap) -> Result<String, PlotError> {
    let Some(fullest) = map.fullest() else { return Err(PlotError::Empty { figure: NAME }) };
    figure(WIDTH, BOTTOM + 52, &format!("Memory of a step: {program}"), |canvas| {
        canvas.legend(24, 48, &[("inputs and parameters", BEFORE, true), ("intermediate", BEST, true), ("result", OURS, true)])?;
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let given = map.given_bytes();
        let axis = Axis::linear(NAME, [megabytes(given.saturating_add(map.arena_bytes()))], BOTTOM, TOP)?;
        axis.vertical(canvas, LEFT, RIGHT, "memory [MB]")?;
        let kernels = map.kernels.len();
        let column = |kernel: usize| LEFT + ((RIGHT - LEFT) as i64 * kernel.min(kernels) as i64 / kernels as i64) as i32;
        let height = |bytes: u64| axis.at(megabytes(bytes));
        canvas.rect((LEFT, height(given)), (RIGHT - LEFT, BOTTOM - height(given)), BEFORE)?;
        for life in &map.lives {
            let (from, to) = (column(life.first), column(map.until(life) + 1));
            let (low, high) = (height(given + life.offset), height(given + life.offset + life.bytes));
            buffer(canvas, life, (from, high), ((to - from).max(1), low - high))?;
        }
        for (n, kernel) in (0..kernels).step_by(kernels.div_ceil(NUMBERS)).enumerate() {
            let middle = (column(kernel) + column(kernel + 1)) / 2;
            let text = if n == 0 { "kernel 1".to_string() } else { (kernel + 1).to_string() };
            canvas.text(middle, BOTTOM + 14, 11, MUTED, Anchor::Middle, &text)?;
        }
        let peak = given + map.alive_bytes(fullest);
        canvas.dashes((LEFT, height(peak)), (RIGHT, height(peak)), CHOSEN, 2)?;
        let name = fitted(&map.kernels[fullest], 12, 400);
        let text = format!("peak {:.1} MB, at kernel {}, {name}", megabytes(peak), fullest + 1);
        canvas.text(RIGHT, BOTTOM + 36, 12, INK, Anchor::Right, &text)
    })
}

/// A gap of a pixel separates neighbours, and the name is written where it fits.
fn buffer(canvas: &Canvas<'_>, life: &Life, (x, y): (i32, i32), (width, height): (i32, i32)) -> Result<(), PlotError> {
    let colour = if life.kept { OURS } else { BEST };
    let gap = |length: i32| if length > 3 { length - 1 } else { length };
    canvas.rect((x, y), (gap(width), gap(height)), colour.mix(0.7))?;
    if height >= 13 && width >= text_width("abc…", 10) {
        canvas.text(x + 3, y + height / 2, 10, INK, Anchor::Left, &fitted(&life.name, 10, width - 6))?;
    }
    Ok(())
}
