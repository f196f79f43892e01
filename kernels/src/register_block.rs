//! The register block of a direct product: how many rows and vectors a micro-kernel has.

use crate::processor::{PanelBlock, is_intel};

/// Rows along two axes and vectors of one micro-kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterBlock {
    pub rows: [i64; 2],
    pub vectors: i64,
    /// Whether rows are places one after the other that go on in the next row of the image, at most `rows[0]`, instead of a rectangle.
    pub is_run: bool,
}

/// Registers besides sums and vectors: one value of the other factor.
const OTHERS: i64 = 1;
/// Most vectors of a block.
const MOST_VECTORS: i64 = 12;

/// Vector registers of the processor.
fn registers(block: PanelBlock) -> i64 {
    if block.vector == 32 { 16 } else { 32 }
}

/// Multiply-adds that a core starts in a cycle: AMD's Zen 4 halves those of 512 bits.
fn units(block: PanelBlock) -> f64 {
    if block.vector == 64 && !is_intel() { 1.0 } else { 2.0 }
}

/// Values that are loaded in a cycle, and bytes of vectors that come from the second cache in one. Those of AVX2 were measured on Zen 3:
/// blocks of 4×3, 6×2, 14×1 and 7×1 of a 3×3 convolution take 7.1, 6.2, 8.3 and 4.5 cycles a step there.
fn rates(block: PanelBlock) -> (f64, f64) {
    if block.vector == 32 { (1.75, 14.5) } else { (2.0, 24.0) }
}

/// Cycles of one step of the depth, of `vectors` vectors and `rows` rows, in which sums wait four cycles for themselves.
fn cycles(block: PanelBlock, units: f64, vectors: i64, rows: i64) -> f64 {
    let (sums, loads) = ((vectors * rows) as f64, (vectors + rows) as f64);
    let ((loaded, near), bytes) = (rates(block), (vectors * block.vector as i64) as f64);
    (sums / units).max(loads / loaded).max(4.0).max(bytes / near) + 0.25
}

/// Pieces of `count` vectors by `size`: (vectors, how many of them).
fn pieces(count: i64, size: i64) -> Vec<(i64, i64)> {
    [(size, count / size), (count % size, 1)].into_iter().filter(|(n, times)| *n > 0 && *times > 0).collect()
}

/// The blocks of at most `size` rows that an axis of `count` rows is divided into, as few as there can be and as equal: rows of a block,
/// and how many blocks have them. A last block of two rows would take nearly as long as one of six, since vectors come no faster.
pub fn equal_blocks(count: i64, size: i64) -> Vec<(i64, i64)> {
    let blocks = (count + size - 1) / size.max(1);
    if blocks <= 0 {
        return Vec::new();
    }
    let (rows, more) = (count / blocks, count % blocks);
    [(rows + 1, more), (rows, blocks - more)].into_iter().filter(|(_, times)| *times > 0).collect()
}

/// The block that takes least time for so many rows along two axes and so many vectors, among rectangles and, where there may be
/// some, runs.
pub fn choose(block: PanelBlock, rows: [i64; 2], vectors: i64, may_run: bool) -> RegisterBlock {
    let (rectangle, cycles) = choose_for(block, units(block), rows, vectors);
    match runs_for(block, units(block), rows, vectors).filter(|(_, of_run)| may_run && *of_run < WORTH * cycles) {
        Some((run, _)) => run,
        None => rectangle,
    }
}

/// The share of a rectangle's time that runs must take at most: they have more micro-kernels, which take time to compile.
const WORTH: f64 = 0.97;

/// The best runs of places of a picture of two axes, and the cycles of a step of the depth.
fn runs_for(block: PanelBlock, units: f64, rows: [i64; 2], vectors: i64) -> Option<(RegisterBlock, f64)> {
    let all = (1..=vectors.min(MOST_VECTORS)).flat_map(|v| (1..=(registers(block) - OTHERS - v) / v).map(move |size| (v, size)));
    let of = |(v, size): (i64, i64)| {
        let places = equal_blocks(rows[0] * rows[1], size);
        let cycles = |n: i64| places.iter().map(|(rows, times)| *times as f64 * cycles(block, units, n, *rows)).sum::<f64>();
        let total: f64 = pieces(vectors, v).into_iter().map(|(n, times)| times as f64 * cycles(n)).sum();
        (RegisterBlock { rows: [size, 1], vectors: v, is_run: true }, total)
    };
    all.map(of).min_by(|(_, a), (_, b)| a.total_cmp(b))
}

/// Cycles that a core takes for one step of the depth of so many rows along two axes and so many vectors, in the best rectangles.
pub fn cycles_of_step(block: PanelBlock, rows: [i64; 2], vectors: i64) -> f64 {
    choose_for(block, units(block), rows, vectors).1
}

fn choose_for(block: PanelBlock, units: f64, rows: [i64; 2], vectors: i64) -> (RegisterBlock, f64) {
    let mut best = (RegisterBlock { rows: [1, 1], vectors: 1, is_run: false }, f64::INFINITY);
    for v in 1..=vectors.min(MOST_VECTORS) {
        let most = (registers(block) - OTHERS - v) / v;
        let mut sizes: Vec<i64> = (1..=rows[0]).map(|n| (rows[0] + n - 1) / n).filter(|t| *t <= most).collect();
        sizes.dedup();
        for first in sizes {
            for second in 1..=(most / first).min(rows[1]) {
                // A second axis is for where the first one is whole.
                if second > 1 && first < rows[0] {
                    break;
                }
                let mut total = 0.0;
                for (n, times) in pieces(vectors, v) {
                    for (a, of_a) in equal_blocks(rows[0], first) {
                        for (b, of_b) in equal_blocks(rows[1], second) {
                            total += (times * of_a * of_b) as f64 * cycles(block, units, n, a * b);
                        }
                    }
                }
                if total < best.1 {
                    best = (RegisterBlock { rows: [first, second], vectors: v, is_run: false }, total);
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: PanelBlock = PanelBlock { vector: 64, height: 14, vectors: 2 };
    const HALF: PanelBlock = PanelBlock { vector: 32, height: 6, vectors: 2 };

    #[test]
    fn blocks_fill_the_registers() {
        // One value of the other factor serves one vector where multiply-adds are slow, and two where loads would be.
        assert_eq!(choose_for(WIDE, 1.0, [56, 56], 4).0, RegisterBlock { rows: [28, 1], vectors: 1, is_run: false });
        assert_eq!(choose_for(WIDE, 2.0, [56, 56], 4).0, RegisterBlock { rows: [14, 1], vectors: 2, is_run: false });
        assert_eq!(choose_for(HALF, 2.0, [48, 56], 8).0, RegisterBlock { rows: [6, 1], vectors: 2, is_run: false });
        assert_eq!(choose_for(HALF, 2.0, [56, 56], 8).0, RegisterBlock { rows: [6, 1], vectors: 2, is_run: false });
        assert_eq!(choose_for(HALF, 2.0, [14, 14], 8).0, RegisterBlock { rows: [5, 1], vectors: 2, is_run: false });
        assert_eq!(choose_for(HALF, 2.0, [7, 7], 8).0, RegisterBlock { rows: [7, 2], vectors: 1, is_run: false });
        // Whole rows of seven.
        assert_eq!(choose_for(WIDE, 1.0, [7, 7], 32).0.rows[0], 7);
        assert_eq!(choose_for(WIDE, 1.0, [1, 1], 1).0, RegisterBlock { rows: [1, 1], vectors: 1, is_run: false });
    }

    #[test]
    fn small_pictures_have_runs_of_places() {
        let run = |rows: i64| RegisterBlock { rows: [rows, 1], vectors: 2, is_run: true };
        assert_eq!(choose(HALF, [7, 7], 8, true), run(6));
        assert_eq!(choose(HALF, [13, 13], 8, true), run(6));
        assert!(!choose(HALF, [7, 7], 8, false).is_run && !choose(HALF, [48, 48], 8, true).is_run);
    }

    #[test]
    fn rows_are_divided_equally() {
        assert_eq!(equal_blocks(56, 6), [(6, 6), (5, 4)]);
        assert_eq!(equal_blocks(13, 5), [(5, 1), (4, 2)]);
        assert_eq!(equal_blocks(12, 6), [(6, 2)]);
        assert_eq!(equal_blocks(3, 6), [(3, 1)]);
        assert_eq!(equal_blocks(0, 6), []);
        for (count, size) in (1..60).flat_map(|count| (1..30).map(move |size| (count, size))) {
            let blocks = equal_blocks(count, size);
            assert_eq!(blocks.iter().map(|(rows, times)| rows * times).sum::<i64>(), count);
            assert_eq!(blocks.iter().map(|(_, times)| times).sum::<i64>(), (count + size - 1) / size, "no more blocks than there must be");
            assert!(blocks.iter().all(|(rows, _)| (1..=size).contains(rows)));
        }
    }

    #[test]
    fn a_block_has_no_more_sums_than_registers() {
        for (block, registers) in [(WIDE, 32), (HALF, 16)] {
            for rows in [[1, 1], [5, 3], [7, 7], [13, 2], [55, 55], [1000, 1]] {
                for vectors in [1, 2, 3, 5, 64] {
                    let RegisterBlock { rows: [a, b], vectors: v, .. } = choose_for(block, 2.0, rows, vectors).0;
                    assert!(a * b * v + v + OTHERS <= registers, "{block:?} {rows:?} {vectors}");
                    assert!(a <= rows[0] && b <= rows[1] && v <= vectors);
                }
            }
        }
    }
}
