//! Ways to see a contraction as matrix products.
//!
//! Every index of `out = Σ a · b` belongs to one [`IndexGroup`]: rows (`a` and `out`), columns (`b` and `out`), depth (`a` and
//! `b`) or batch (all three). A [`Mapping`] says which rows, columns and depth indices one matrix product takes; they
//! must *fuse*: walking them together has to be one constant stride in every tensor. What is left over becomes loops
//! around the product: rows and columns like batches, depth with accumulation.
//!
//! Exchanging the operands (Cᵀ = BᵀAᵀ) is no further choice: the libraries turn every call so that the rows of the output
//! are the nearer ones. [`GemmNest::normal`] does the same, so that equal calls compare equal.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

/// The role of an index, by the tensors that it subscripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IndexGroup {
    /// In `a`, `b` and `out`.
    Batch,
    /// In `a` and `out`: m.
    Rows,
    /// In `b` and `out`: n.
    Columns,
    /// In `a` and `b`: k, summed.
    Depth,
}

/// One index together with where a step along it leads in each tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractionAxis {
    pub index: String,
    pub group: IndexGroup,
    pub extent: usize,
    /// Elements between neighbours in `a`, `b`, `out`; 0 in the tensor that lacks the index.
    pub strides: [usize; 3],
}

/// One or several axes walked as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StridedLoop {
    pub extent: usize,
    /// In `a`, `b`, `out`, in elements.
    pub strides: [usize; 3],
}

impl StridedLoop {
    /// A loop of one iteration.
    pub const ONCE: StridedLoop = StridedLoop { extent: 1, strides: [0; 3] };

    fn of(axis: &ContractionAxis) -> Self {
        StridedLoop { extent: axis.extent, strides: axis.strides }
    }

    /// `self` around `inner` as one loop, if `self` continues where `inner` ends in every tensor.
    fn around(self, inner: StridedLoop) -> Option<StridedLoop> {
        let continues = (0..3).all(|t| inner.strides[t].checked_mul(inner.extent) == Some(self.strides[t]));
        Some(StridedLoop { extent: self.extent.checked_mul(inner.extent)?, strides: inner.strides }).filter(|_| continues)
    }
}

/// All of `axes` as one loop, if they fuse. No axes are a loop of one iteration.
fn fuse(axes: &[&ContractionAxis]) -> Option<StridedLoop> {
    let mut axes = axes.to_vec();
    axes.sort_by_key(|a| a.strides);
    let mut inward = axes.into_iter().map(StridedLoop::of);
    let Some(first) = inward.next() else { return Some(StridedLoop::ONCE) };
    inward.try_fold(first, |inner, outer| outer.around(inner))
}

/// The fewest loops over `axes`, outer to inner, far strides of tensor `by` outermost.
fn nest(axes: &[&ContractionAxis], by: usize) -> Vec<StridedLoop> {
    let mut axes = axes.to_vec();
    axes.sort_by_key(|a| Reverse((a.strides[by], a.strides)));
    let mut nest: Vec<StridedLoop> = Vec::new();
    for axis in axes {
        let inner = StridedLoop::of(axis);
        match nest.last().and_then(|outer| outer.around(inner)) {
            Some(fused) => {
                nest.pop();
                nest.push(fused);
            }
            None => nest.push(inner),
        }
    }
    nest
}

/// Which indices one matrix product takes as rows, columns and depth.
///
/// The text form is `p,h/b,j/i`; a group without an index is written `-`. Indices of extent 1 are in no group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mapping {
    pub rows: Vec<String>,
    pub columns: Vec<String>,
    pub depth: Vec<String>,
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, group) in [&self.rows, &self.columns, &self.depth].into_iter().enumerate() {
            let text = if group.is_empty() { "-".to_string() } else { group.join(",") };
            write!(f, "{}{text}", if n > 0 { "/" } else { "" })?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a mapping; write rows/columns/depth, e.g. `p,h/b,j/i`, with `-` for none")]
pub struct MappingError(String);

impl FromStr for Mapping {
    type Err = MappingError;

    fn from_str(text: &str) -> Result<Self, MappingError> {
        let group = |part: &str| match part {
            "-" => Some(Vec::new()),
            _ => part.split(',').map(|i| (!i.is_empty()).then(|| i.to_string())).collect(),
        };
        let parts: Option<Vec<Vec<String>>> = text.split('/').map(group).collect();
        match parts.and_then(|parts| <[Vec<String>; 3]>::try_from(parts).ok()) {
            Some([rows, columns, depth]) => Ok(Mapping { rows, columns, depth }),
            None => Err(MappingError(text.to_string())),
        }
    }
}

/// A mapping worked out for given strides: one matrix product of `m`×`k` by `k`×`n`, and the loops around it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GemmNest {
    pub m: StridedLoop,
    pub n: StridedLoop,
    pub k: StridedLoop,
    /// Independent products, outer to inner. A stride of 0 uses the same matrix again.
    pub batch: Vec<StridedLoop>,
    /// Products that are added up, outer to inner.
    pub depth: Vec<StridedLoop>,
}

impl GemmNest {
    /// The call of a mapping for these axes; `None` if some group does not fuse or names an unknown index.
    pub fn new(mapping: &Mapping, axes: &[ContractionAxis]) -> Option<GemmNest> {
        let taken = |group: IndexGroup, names: &[String]| -> Option<Vec<&ContractionAxis>> {
            names
                .iter()
                .filter(|name| !axes.iter().any(|a| a.index == **name && a.extent == 1))
                .map(|name| axes.iter().find(|a| a.index == *name && a.group == group))
                .collect()
        };
        let rows = taken(IndexGroup::Rows, &mapping.rows)?;
        let columns = taken(IndexGroup::Columns, &mapping.columns)?;
        let depth = taken(IndexGroup::Depth, &mapping.depth)?;
        let all: Vec<&ContractionAxis> = [&rows[..], &columns[..], &depth[..]].concat();
        let left = |depth: bool| -> Vec<&ContractionAxis> {
            axes.iter()
                .filter(|a| a.extent != 1 && (a.group == IndexGroup::Depth) == depth && !all.iter().any(|t| t.index == a.index))
                .collect()
        };
        Some(GemmNest { m: fuse(&rows)?, n: fuse(&columns)?, k: fuse(&depth)?, batch: nest(&left(false), 2), depth: nest(&left(true), 0) })
    }

    /// Products that are independent of each other.
    pub fn items(&self) -> usize {
        self.batch.iter().map(|l| l.extent).product()
    }

    /// Products that are added up for each item.
    pub fn steps(&self) -> usize {
        self.depth.iter().map(|l| l.extent).product()
    }

    /// Multiplications and additions of the whole contraction.
    pub fn flop(&self) -> f64 {
        2.0 * [self.m.extent, self.n.extent, self.k.extent, self.items(), self.steps()].iter().map(|e| *e as f64).product::<f64>()
    }

    /// The same numbers in the same places with the operands exchanged: Cᵀ = BᵀAᵀ.
    pub fn transposed(&self) -> GemmNest {
        let turn = |l: &StridedLoop| StridedLoop { extent: l.extent, strides: [l.strides[1], l.strides[0], l.strides[2]] };
        GemmNest {
            m: turn(&self.n),
            n: turn(&self.m),
            k: turn(&self.k),
            batch: self.batch.iter().map(turn).collect(),
            depth: self.depth.iter().map(turn).collect(),
        }
    }

    /// The call or its transpose: the one whose output rows are closer together; of equals the smaller.
    pub fn normal(self) -> GemmNest {
        let other = self.transposed();
        match self.m.strides[2].cmp(&self.n.strides[2]) {
            std::cmp::Ordering::Less => self,
            std::cmp::Ordering::Greater => other,
            std::cmp::Ordering::Equal => self.min(other),
        }
    }

    /// Whether each of the three matrices has unit stride along its rows or columns.
    pub fn is_unit_stride(&self) -> bool {
        let unit = |x: &StridedLoop, y: &StridedLoop, t: usize| [x, y].iter().any(|l| l.extent == 1 || l.strides[t] == 1);
        unit(&self.m, &self.k, 0) && unit(&self.k, &self.n, 1) && unit(&self.m, &self.n, 2)
    }

    /// Whether one BLAS call with a fixed batch stride computes everything: nothing but indices common to the three tensors
    /// is looped over, as one loop, and every matrix has a unit stride.
    pub fn is_single(&self) -> bool {
        let common = |l: &StridedLoop| l.strides.iter().all(|s| *s > 0);
        self.depth.is_empty() && self.batch.len() <= 1 && self.batch.iter().all(common) && self.is_unit_stride()
    }
}

/// `768×1024×768 a(1,768) b(1024,1) c(1,768)`, then batch loops `×8(0,6,6)` and summed loops `+8(1,1,0)` with their strides in
/// `a`, `b`, `c`.
impl fmt::Display for GemmNest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GemmNest { m, n, k, batch, depth } = self;
        write!(f, "{}×{}×{}", m.extent, n.extent, k.extent)?;
        for (name, rows, columns, t) in [("a", m, k, 0), ("b", k, n, 1), ("c", m, n, 2)] {
            write!(f, " {name}({},{})", rows.strides[t], columns.strides[t])?;
        }
        for (sign, nest) in [("×", batch), ("+", depth)] {
            for StridedLoop { extent, strides: [a, b, c] } in nest {
                write!(f, " {sign}{extent}({a},{b},{c})")?;
            }
        }
        Ok(())
    }
}

/// Nonempty sets of the group's axes that fuse, the largest first; the one empty set if the group is empty.
///
/// Only the strides of the two tensors that have the group matter.
pub fn choices(axes: &[ContractionAxis], group: IndexGroup) -> Vec<Vec<String>> {
    let members: Vec<&ContractionAxis> = axes.iter().filter(|a| a.group == group && a.extent != 1).collect();
    if members.is_empty() {
        return vec![Vec::new()];
    }
    (1usize..1 << members.len())
        .rev()
        .map(|bits| members.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1).map(|(_, a)| *a).collect::<Vec<_>>())
        .filter(|chosen| fuse(chosen).is_some())
        .map(|chosen| chosen.iter().map(|a| a.index.clone()).collect())
        .collect()
}

/// Every mapping that these strides allow, in a fixed order. Never empty.
pub fn mappings(axes: &[ContractionAxis]) -> Vec<Mapping> {
    let mut found = Vec::new();
    for rows in choices(axes, IndexGroup::Rows) {
        for columns in choices(axes, IndexGroup::Columns) {
            for depth in choices(axes, IndexGroup::Depth) {
                found.push(Mapping { rows: rows.clone(), columns: columns.clone(), depth });
            }
        }
    }
    found
}

/// Whether one (batched) BLAS call with unit strides computes everything: what a GPU library would accept.
pub fn is_feasible(axes: &[ContractionAxis]) -> bool {
    let whole = |group: IndexGroup| axes.iter().filter(|a| a.group == group).map(|a| a.index.clone()).collect();
    let mapping = Mapping { rows: whole(IndexGroup::Rows), columns: whole(IndexGroup::Columns), depth: whole(IndexGroup::Depth) };
    GemmNest::new(&mapping, axes).is_some_and(|call| call.is_single())
}
