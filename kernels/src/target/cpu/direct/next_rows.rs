//! What a later micro-kernel reads of images: rows that an earlier one asks for.
//!
//! Images in blocks of channels (nChw8c) have the rows of a register block in one short piece for each block of channels, and these pieces
//! lie tens of kilobytes from one another. No processor foresees that a product comes to them next. In a sweep they are in a cache near by,
//! since the kernel has just run; in a step another kernel has written them some time ago.

use super::product_axis::ProductAxis;

/// Elements of a cache line, of f32.
pub const LINE: i64 = 16;
/// Elements between blocks of channels from which on their pieces are apart: a processor asks for the next lines of one piece itself.
const APART: i64 = 1024;

/// Elements between rows of a block in one piece, at most: two blocks of channels of sixteen where windows move by two.
const MOST_BETWEEN: i64 = 32;

/// Lines of the factor that gives single values, which a later call reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextRows {
    /// By their distance in elements from where the factor is.
    pub lines: Vec<i64>,
    /// Whether each round of the outermost loop over the depth has such lines, or they are those of the whole call.
    pub in_each_round: bool,
}

impl NextRows {
    /// Of factor `s`, for a block of `height` rows along the first two axes of `rows`, summed over `depth` from outer to inner, of which
    /// those for which `is_window` holds move windows.
    ///
    /// A product without windows reads the rows behind its own. With windows these are near already, and what is new lies in the rows of
    /// the image that the next row of windows reaches.
    pub fn of(
        s: usize,
        height: [i64; 2],
        rows: &[ProductAxis],
        depth: &[ProductAxis],
        is_window: impl Fn(&ProductAxis) -> bool,
    ) -> NextRows {
        let (Some(row), Some(outermost)) = (rows.first(), depth.first()) else { return NextRows::default() };
        let between = row.stride(s);
        if !(1..=MOST_BETWEEN).contains(&between) {
            return NextRows::default();
        }
        let in_each_round = depth.len() > 1 && outermost.stride(s) >= APART && !is_window(outermost);
        let windows: Vec<&ProductAxis> = depth.iter().filter(|d| d.most > 1 && is_window(d)).collect();
        let tall = windows.iter().filter(|window| window.stride(s) > between).max_by_key(|window| window.stride(s));
        let starts: Vec<i64> = match (tall, rows.get(1)) {
            (Some(window), Some(outer)) if outer.stride(s) >= window.stride(s) => {
                let step = height[1] * outer.stride(s);
                let new = (step / window.stride(s)).min(window.most);
                (window.most - new..window.most).map(|n| step + n * window.stride(s)).collect()
            }
            (None, _) if windows.is_empty() && in_each_round => vec![height[0] * between],
            _ => Vec::new(),
        };
        let piece = (0..height[0] * between).step_by(LINE as usize);
        let lines = starts.into_iter().flat_map(|start| piece.clone().map(move |at| start + at)).collect();
        NextRows { lines, in_each_round }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(index: &str, most: i64, stride: i64) -> ProductAxis {
        ProductAxis {
            indices: vec![index.into()],
            most,
            count: most.to_string(),
            last: most,
            strides: vec![None, Some(stride)],
            is_alone: false,
        }
    }

    /// Images of 56×56 places in blocks of 8 channels.
    const PLANE: i64 = 56 * 56 * 8;

    #[test]
    fn products_without_windows_ask_for_the_rows_behind_theirs() {
        let (rows, depth) = ([axis("q", 3136, 8)], [axis("c", 32, PLANE), axis("d", 8, 1)]);
        let next = NextRows::of(1, [6, 1], &rows, &depth, |_| false);
        assert_eq!(next, NextRows { lines: vec![48, 64, 80], in_each_round: true });
        // With channels innermost, rows are one piece with all their channels.
        let (rows, depth) = ([axis("q", 3136, 256)], [axis("c", 256, 1)]);
        assert_eq!(NextRows::of(1, [6, 1], &rows, &depth, |_| false), NextRows::default());
    }

    #[test]
    fn windows_ask_for_the_rows_that_the_next_row_of_windows_reaches() {
        let is_window = |axis: &ProductAxis| ["r", "t"].contains(&axis.indices[0].as_str());
        let depth = [axis("c", 8, PLANE), axis("r", 3, 56 * 8), axis("t", 3, 8), axis("d", 8, 1)];
        let next = NextRows::of(1, [6, 1], &[axis("q", 56, 8), axis("p", 56, 56 * 8)], &depth, is_window);
        assert_eq!(next, NextRows { lines: vec![3 * 448, 3 * 448 + 16, 3 * 448 + 32], in_each_round: true });
        // Windows that move by two reach two rows.
        let next = NextRows::of(1, [2, 1], &[axis("q", 28, 16), axis("p", 28, 2 * 56 * 8)], &depth, is_window);
        assert_eq!(next.lines, [3 * 448, 3 * 448 + 16, 4 * 448, 4 * 448 + 16]);
        // Depthwise: one block of channels, and so one piece for the whole call.
        let next = NextRows::of(1, [4, 1], &[axis("q", 56, 8), axis("p", 56, 56 * 8)], &depth[1..3], is_window);
        assert_eq!(next, NextRows { lines: vec![3 * 448, 3 * 448 + 16], in_each_round: false });
    }
}
