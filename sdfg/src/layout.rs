//! Layouts: the order in which a container's elements lie in memory. A pure value; programs have none.

use crate::data::Container;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// One piece of a layout, from outer to inner: a whole dim, or a block of it.
///
/// `block: None` is what remains of the dim after its inner blocks are taken out. A dim may occur as one unblocked
/// piece plus any number of blocks inside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Piece {
    pub dim: String,
    pub block: Option<u32>,
}

/// Pieces from outer to inner, plus padding of the innermost extent, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Layout {
    pub pieces: Vec<Piece>,
    pub padding: u32,
}

impl Layout {
    /// The plain permutation with these dims from outer to inner.
    pub fn of<S: AsRef<str>>(dims: &[S]) -> Self {
        Layout { pieces: dims.iter().map(|d| Piece { dim: d.as_ref().to_string(), block: None }).collect(), padding: 0 }
    }

    /// Row-major in the recipe's dim order: the boundary layout.
    pub fn row_major(container: &Container) -> Self {
        Layout::of(&container.dims)
    }

    /// Whether it is a plain permutation without padding.
    pub fn is_plain(&self) -> bool {
        self.padding == 0 && self.pieces.iter().all(|p| p.block.is_none())
    }

    /// The innermost dim.
    pub fn innermost(&self) -> Option<&str> {
        self.pieces.last().map(|p| p.dim.as_str())
    }

    /// Strides in elements, one for each of `dims` (sizes `shape`), for a plain layout. `None` for blocked layouts or if
    /// the dims do not match.
    pub fn strides(&self, dims: &[String], shape: &[usize]) -> Option<Vec<usize>> {
        if self.pieces.len() != dims.len() || self.pieces.iter().any(|p| p.block.is_some()) {
            return None;
        }
        let mut strides = vec![0; dims.len()];
        let mut next = 1usize;
        for (n, piece) in self.pieces.iter().rev().enumerate() {
            let at = dims.iter().position(|d| *d == piece.dim)?;
            strides[at] = next;
            next *= shape[at] + if n == 0 { self.padding as usize } else { 0 };
        }
        Some(strides)
    }

    /// The layout in panels: blocks of `block` neighbours along a dim, the blocks one after the other, all other dims between
    /// them. `None` if the dim is not among `dims`.
    ///
    /// `i,b,j,i%32` holds for every b and j the first 32 of i, then for every b and j the next 32, and so on: what a product
    /// packs its columns into.
    pub fn panels<S: AsRef<str>>(dims: &[S], dim: &str, block: u32) -> Option<Self> {
        let own = dims.iter().position(|d| d.as_ref() == dim)?;
        let others = dims.iter().enumerate().filter(|(n, _)| *n != own).map(|(_, d)| d);
        let mut layout = Layout::of(&[&dims[own]].into_iter().chain(others).map(AsRef::as_ref).collect::<Vec<&str>>());
        layout.pieces.push(Piece { dim: dim.to_string(), block: Some(block) });
        Some(layout)
    }

    /// The blocks that it cuts dims into, by dim. `None` if a dim is cut into blocks of blocks.
    pub fn blocks(&self) -> Option<BTreeMap<&str, u32>> {
        let mut found = BTreeMap::new();
        for (piece, block) in self.pieces.iter().filter_map(|p| Some((p, p.block?))) {
            let whole = self.pieces.iter().filter(|p| p.dim == piece.dim && p.block.is_none()).count();
            if whole != 1 || block == 0 || found.insert(piece.dim.as_str(), block).is_some() {
                return None;
            }
        }
        Some(found)
    }

    /// Where the elements of an array lie, for dims of the given sizes; blocks at the end of a dim may be incomplete. `None` for
    /// blocks of blocks, or if the dims do not match.
    pub fn steps(&self, dims: &[String], shape: &[usize]) -> Option<Vec<BlockedStride>> {
        let blocks = self.blocks()?;
        if self.pieces.len() != dims.len() + blocks.len() || shape.len() != dims.len() {
            return None;
        }
        let size = |dim: &str| blocks.get(dim).map_or(1, |b| *b as usize);
        let mut steps: Vec<BlockedStride> = dims.iter().map(|d| BlockedStride { block: size(d), across: 0, within: 0 }).collect();
        let mut next = 1usize;
        for (n, piece) in self.pieces.iter().rev().enumerate() {
            let at = dims.iter().position(|d| *d == piece.dim)?;
            let extent = match piece.block {
                Some(block) => {
                    steps[at].within = next;
                    block as usize
                }
                None => {
                    steps[at].across = next;
                    shape[at].div_ceil(steps[at].block)
                }
            };
            next = next.checked_mul(extent + if n == 0 { self.padding as usize } else { 0 })?;
        }
        Some(steps)
    }

    /// Elements of storage, blocks rounded up and padding included.
    pub fn extent(&self, dims: &[String], shape: &[usize]) -> Option<usize> {
        let mut total = 1usize;
        for (n, piece) in self.pieces.iter().rev().enumerate() {
            let at = dims.iter().position(|d| *d == piece.dim)?;
            let inner: usize = self.pieces.iter().filter(|p| p.dim == piece.dim).filter_map(|p| p.block).map(|b| b as usize).product();
            let extent = match piece.block {
                Some(block) => block as usize,
                None => shape[at].div_ceil(inner.max(1)),
            };
            total = total.checked_mul(extent + if n == 0 { self.padding as usize } else { 0 })?;
        }
        Some(total)
    }

    /// All plain permutations of the dims, in lexicographic order of positions; the recipe's order comes first.
    pub fn permutations(dims: &[String]) -> Vec<Layout> {
        fn extend(dims: &[String], taken: &mut Vec<usize>, found: &mut Vec<Layout>) {
            if taken.len() == dims.len() {
                let order: Vec<&String> = taken.iter().map(|t| &dims[*t]).collect();
                found.push(Layout::of(&order));
                return;
            }
            for n in 0..dims.len() {
                if !taken.contains(&n) {
                    taken.push(n);
                    extend(dims, taken, found);
                    taken.pop();
                }
            }
        }
        let mut found = Vec::new();
        extend(dims, &mut Vec::new(), &mut found);
        found
    }
}

/// How far apart elements lie along one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedStride {
    /// Neighbours in a block; 1 where the dim is not cut.
    pub block: usize,
    /// Elements from one block to the next.
    pub across: usize,
    /// Elements from one neighbour within a block to the next.
    pub within: usize,
}

impl BlockedStride {
    /// Elements before index `at`.
    pub fn offset(&self, at: usize) -> usize {
        at / self.block * self.across + at % self.block * self.within
    }
}

/// `h,b,j,k`; a block is written `k%16`, padding `+8` at the end.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, piece) in self.pieces.iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            f.write_str(&piece.dim)?;
            if let Some(block) = piece.block {
                write!(f, "%{block}")?;
            }
        }
        if self.padding > 0 {
            write!(f, "+{}", self.padding)?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a layout; write dims from outer to inner, e.g. `h,b,j,k` or `i,b,i%16+8`")]
pub struct LayoutError(String);

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let error = || LayoutError(text.to_string());
        let (body, padding) = match text.rsplit_once('+') {
            Some((body, padding)) => (body, padding.parse().map_err(|_| error())?),
            None => (text, 0),
        };
        let mut pieces = Vec::new();
        for piece in body.split(',').filter(|p| !p.is_empty()) {
            pieces.push(match piece.split_once('%') {
                Some((dim, block)) => Piece { dim: dim.to_string(), block: Some(block.parse().map_err(|_| error())?) },
                None => Piece { dim: piece.to_string(), block: None },
            });
        }
        Ok(Layout { pieces, padding })
    }
}

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| n.to_string()).collect()
    }

    #[test]
    fn panels_hold_blocks_of_a_dim_one_after_the_other() {
        let dims = dims(&["b", "j", "i"]);
        let layout = Layout::panels(&dims, "i", 4).expect("i is one of them");
        assert_eq!(layout.to_string(), "i,b,j,i%4");
        assert_eq!(layout.to_string().parse(), Ok(layout.clone()));
        let steps = layout.steps(&dims, &[2, 3, 8]).expect("they fit");
        let at = |b, j, i| steps.iter().zip([b, j, i]).map(|(step, n)| step.offset(n)).sum::<usize>();
        assert_eq!((at(0, 0, 3), at(0, 1, 0), at(1, 0, 0), at(0, 0, 4)), (3, 4, 12, 24));
        assert_eq!(layout.extent(&dims, &[2, 3, 8]), Some(48));
        assert_eq!((layout.is_plain(), layout.strides(&dims, &[2, 3, 8])), (false, None));
        assert_eq!(Layout::panels(&dims, "u", 4), None);
    }

    #[test]
    fn every_element_has_a_place_of_its_own() {
        let dims = dims(&["a", "b", "c"]);
        let shape = [3, 10, 5];
        for text in ["a,b,c", "c,a,b", "b,a,c,b%4", "a,c,b,c%2,b%3", "c,b,a+3"] {
            let layout: Layout = text.parse().expect("a layout");
            let (steps, extent) = (layout.steps(&dims, &shape).expect("they fit"), layout.extent(&dims, &shape).expect("they fit"));
            let mut seen = vec![false; extent];
            for n in 0..150 {
                let at = [n / 50, n / 5 % 10, n % 5];
                let place: usize = steps.iter().zip(at).map(|(step, n)| step.offset(n)).sum();
                assert!(!std::mem::replace(&mut seen[place], true), "{text}: {at:?}");
            }
        }
        for text in ["a,b", "a,b,c,d", "a,b,c,b%4,b%2", "a,c,b%4"] {
            let layout: Layout = text.parse().expect("a layout");
            assert_eq!(layout.steps(&dims, &shape), None, "{text}");
        }
    }
}
