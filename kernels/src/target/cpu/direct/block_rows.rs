//! The rows of a register block: a rectangle of places, or a run of places that goes on in the next row of the image.
//!
//! A picture of 7 columns has no good rectangle of six rows of a block or fewer: blocks of 4 and 3 multiply no faster than the vectors of
//! the other factor come. A run of 5 or 6 places from one row of the image into the next has as much to do as the registers hold.

use crate::register_block::equal_blocks;

/// Rows of a register block, along two axes of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockRows {
    /// So many along each axis.
    Rectangle([i64; 2]),
    /// Places one after the other along the first axis, which has `width`, from its place `from` on.
    Run { from: i64, count: i64, width: i64 },
}

/// Rows that a loop over the first axis walks for each place along the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Places along each axis, relative to the first row of the block: the first one and the one behind the last.
    pub places: [[i64; 2]; 2],
    /// Numbers of rows: of the first one, and between neighbours along each axis.
    pub first: i64,
    pub apart: [i64; 2],
}

impl BlockRows {
    pub fn count(self) -> i64 {
        match self {
            BlockRows::Rectangle([a, b]) => a * b,
            BlockRows::Run { count, .. } => count,
        }
    }

    /// The number of each row, and its places along the axes relative to the first one.
    pub fn each(self) -> Vec<(i64, i64, i64)> {
        match self {
            BlockRows::Rectangle([rows, columns]) => (0..rows).flat_map(|a| (0..columns).map(move |b| (a * columns + b, a, b))).collect(),
            BlockRows::Run { from, count, width } => (0..count).map(|n| (n, (from + n) % width - from, (from + n) / width)).collect(),
        }
    }

    /// The rows as loops.
    pub fn segments(self) -> Vec<Segment> {
        match self {
            BlockRows::Rectangle([rows, columns]) => {
                vec![Segment { places: [[0, rows], [0, columns]], first: 0, apart: [columns, 1] }]
            }
            BlockRows::Run { from, count, width } => {
                let (mut found, mut first) = (Vec::new(), 0);
                while first < count {
                    let (place, row) = ((from + first) % width - from, (from + first) / width);
                    let rows = (width - (from + first) % width).min(count - first);
                    found.push(Segment { places: [[place, place + rows], [row, row + 1]], first, apart: [1, 0] });
                    first += rows;
                }
                found
            }
        }
    }
}

impl Segment {
    /// C of the loops, over `a` and `b`, and of the number of a row.
    pub fn text(&self) -> [String; 3] {
        let [[from_a, until_a], [from_b, until_b]] = self.places;
        let over = |name: &str, from: i64, until: i64| format!("for (int64_t {name} = {from}; {name} < {until}; ++{name})");
        let [by_a, by_b] = self.apart;
        let base = self.first - from_a * by_a - from_b * by_b;
        [over("a", from_a, until_a), over("b", from_b, until_b), format!("(a * {by_a} + b * {by_b} + {base})")]
    }
}

/// The runs of at most `most` places that a picture is divided into: its places along both axes at which each begins, and its rows.
pub fn runs([width, height]: [i64; 2], most: i64) -> Vec<([i64; 2], BlockRows)> {
    let mut at = 0;
    let sizes = equal_blocks(width * height, most).into_iter().flat_map(|(count, times)| (0..times).map(move |_| count));
    sizes
        .map(|count| {
            let first = [at % width, at / width];
            at += count;
            (first, BlockRows::Run { from: first[0], count, width })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_every_row_once() {
        let blocks = [
            BlockRows::Rectangle([3, 2]),
            BlockRows::Run { from: 5, count: 6, width: 7 },
            BlockRows::Run { from: 0, count: 6, width: 7 },
            BlockRows::Run { from: 1, count: 6, width: 2 },
        ];
        for block in blocks {
            let mut found = Vec::new();
            for Segment { places: [[a0, a1], [b0, b1]], first, apart } in block.segments() {
                for (a, b) in (a0..a1).flat_map(|a| (b0..b1).map(move |b| (a, b))) {
                    found.push((first + (a - a0) * apart[0] + (b - b0) * apart[1], a, b));
                }
            }
            found.sort_unstable();
            assert_eq!(found, block.each(), "{block:?}");
            assert_eq!(block.count(), found.len() as i64);
        }
    }

    #[test]
    fn runs_cover_a_picture() {
        let found = runs([7, 7], 6);
        assert_eq!(found.len(), 9);
        let mut places: Vec<[i64; 2]> = Vec::new();
        for ([a, b], block) in found {
            places.extend(block.each().into_iter().map(|(_, x, y)| [b + y, a + x]));
        }
        assert_eq!(places, (0..7).flat_map(|b| (0..7).map(move |a| [b, a])).collect::<Vec<_>>());
    }
}
