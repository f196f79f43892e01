//! The axes of a direct product, and the blocks of vectors and rows that micro-kernels take of them.

use crate::register_block::equal_blocks;
use std::cmp::Reverse;

/// An index of a product, or several that are walked as one.
#[derive(Clone, Debug)]
pub struct ProductAxis {
    /// From inner to outer.
    pub indices: Vec<String>,
    /// Most iterations, and C text of how many there are.
    pub most: i64,
    pub count: String,
    /// Iterations of the last tile, if it is smaller.
    pub last: i64,
    /// Elements between neighbours in the factors, in the result and in what an epilogue touches; `None` where it does not occur.
    pub strides: Vec<Option<i64>>,
    /// Whether it is walked by itself: windows that leave a container move along it.
    pub is_alone: bool,
}

impl ProductAxis {
    pub fn is_ragged(&self) -> bool {
        self.last != self.most
    }

    pub fn stride(&self, t: usize) -> i64 {
        self.strides[t].unwrap_or(0)
    }

    /// `self` around `inner` as one axis, if it continues where that ends wherever they occur.
    pub fn around(&self, inner: &ProductAxis) -> Option<ProductAxis> {
        let continues = self.strides.iter().zip(&inner.strides).all(|(outer, inner_step)| *outer == inner_step.map(|s| s * inner.most));
        (continues && !inner.is_ragged() && !self.is_alone && !inner.is_alone).then(|| ProductAxis {
            indices: inner.indices.iter().chain(&self.indices).cloned().collect(),
            most: self.most * inner.most,
            count: format!("{} * {}", self.count, inner.most),
            last: self.last * inner.most,
            strides: inner.strides.clone(),
            is_alone: false,
        })
    }
}

/// Axes with those walked as one that can be, by descending stride of a tensor.
pub fn joined(mut axes: Vec<ProductAxis>, by: usize) -> Vec<ProductAxis> {
    axes.sort_by_key(|a| Reverse(a.stride(by).abs()));
    let mut found: Vec<ProductAxis> = Vec::new();
    for axis in axes {
        match found.last().and_then(|outer| outer.around(&axis)) {
            Some(one) => {
                found.pop();
                found.push(one);
            }
            None => found.push(axis),
        }
    }
    found
}

/// Vectors that blocks of `size` of an axis can have.
pub fn widths(axis: &ProductAxis, size: i64) -> Vec<i64> {
    // The number of iterations is known when the kernel runs.
    if axis.last == 0 {
        return (1..=size.min(axis.most)).rev().collect();
    }
    in_descending_order([axis.most, axis.last].into_iter().flat_map(|count| [size.min(count), count % size]).filter(|n| *n > 0).collect())
}

/// Rows that blocks of at most `size` of an axis can have.
pub fn heights(axis: Option<&ProductAxis>, size: i64) -> Vec<i64> {
    let Some(axis) = axis else { return vec![1] };
    // The number of iterations is known when the kernel runs.
    if axis.last == 0 {
        return (1..=size.min(axis.most)).rev().collect();
    }
    let blocks = [axis.most, axis.last].into_iter().flat_map(|count| equal_blocks(count, size));
    in_descending_order(blocks.map(|(rows, _)| rows).collect())
}

fn in_descending_order(mut sizes: Vec<i64>) -> Vec<i64> {
    sizes.sort_unstable_by_key(|n| Reverse(*n));
    sizes.dedup();
    sizes
}
