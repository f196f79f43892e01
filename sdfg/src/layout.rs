//! Layouts: the order in which a container's elements lie in memory. A pure value; programs have none.

use crate::data::Container;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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
    pub fn natural(container: &Container) -> Self {
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
