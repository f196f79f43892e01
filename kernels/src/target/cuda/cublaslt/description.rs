//! A contraction as calls of `cublasLtMatmul`: descriptors of the three matrices, operations, batches and launches.
//!
//! The library computes `D = α op(A) op(B) + β C` for matrices that lie in columns or in rows at a leading dimension, many of them at
//! a fixed stride or at addresses of their own. Everything else of a [`GemmNest`] becomes further launches.

use crate::contraction::{GemmNest, StridedLoop};
use crate::target::cuda::cublaslt::epilogue_desc::EpilogueDesc;
use std::fmt;
use std::str::FromStr;

/// In which order the elements of a matrix follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MajorOrder {
    Column,
    Row,
}

/// How matrices with contiguous rows are described to a library whose own order is by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixOrder {
    /// All orders are columns: what lies in rows is transposed, operands are exchanged if need be.
    Columns,
    /// All orders are rows, likewise.
    Rows,
    /// Every matrix in its own order, nothing transposed or exchanged.
    Own,
}

/// How the products of a batch are described to the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batching {
    /// One loop as a batch at fixed strides, the others as launches.
    Strided,
    /// All products of a batch at once, each with addresses of its own.
    Pointers,
    /// A launch for each product.
    Launches,
}

impl MatrixOrder {
    pub const ALL: [MatrixOrder; 3] = [MatrixOrder::Columns, MatrixOrder::Rows, MatrixOrder::Own];
}

impl Batching {
    pub const ALL: [Batching; 3] = [Batching::Strided, Batching::Pointers, Batching::Launches];
}

macro_rules! named {
    ($type:ident: $($value:ident = $name:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($type::$value => $name),* })
            }
        }

        impl FromStr for $type {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                match text { $($name => Ok($type::$value),)* _ => Err(()) }
            }
        }
    };
}

pub(crate) use named;

named!(MatrixOrder: Columns = "columns", Rows = "rows", Own = "own");
named!(Batching: Strided = "strided", Pointers = "pointers", Launches = "launches");

/// A matrix layout descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// As stored, before an operation transposes it.
    pub rows: usize,
    pub columns: usize,
    pub order: MajorOrder,
    /// Elements from one column to the next, or from one row to the next.
    pub leading: usize,
    /// Elements from one matrix of a batch to the next; 0 uses the same matrix again.
    pub stride: usize,
}

/// One launch: where the matrices begin, in elements, and whether the result accumulates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GemmLaunch {
    /// Of `a`, `b`, `out`; with [`Batching::Pointers`] one for each product of the batch.
    pub origins: Vec<[usize; 3]>,
    pub accumulate: bool,
}

/// The complete description of a contraction for the library, but for addresses and the algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Rows and columns of D, and the terms of each element.
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Matrix,
    pub b: Matrix,
    pub d: Matrix,
    pub transpose_a: bool,
    pub transpose_b: bool,
    /// Whether A is the second operand of the contraction.
    pub exchanged: bool,
    pub alpha: f64,
    /// Matrices of one launch.
    pub batch: usize,
    pub pointers: bool,
    pub launches: Vec<GemmLaunch>,
    pub epilogue: Option<EpilogueDesc>,
}

/// Why the library cannot be given a call in some form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionRefusal {
    #[error("neither rows nor columns of `{matrix}` are contiguous ({rows} and {columns} elements apart)")]
    Strides { matrix: char, rows: usize, columns: usize },
    #[error("columns or rows of `{matrix}` overlap")]
    Overlap { matrix: char },
    #[error("a product of no terms is no product")]
    Empty,
}

/// A matrix whose rows and columns are walked by loops, seen by tensor `t`.
struct Walk {
    name: char,
    rows: StridedLoop,
    columns: StridedLoop,
    t: usize,
}

impl Walk {
    fn strides(&self) -> (usize, usize) {
        (self.rows.strides[self.t], self.columns.strides[self.t])
    }

    /// The order in which the matrix lies; of a vector both are right, and `wanted` decides.
    fn order(&self, wanted: MajorOrder) -> Result<MajorOrder, DescriptionRefusal> {
        let (rows, columns) = self.strides();
        let column = rows == 1 || self.rows.extent == 1;
        let row = columns == 1 || self.columns.extent == 1;
        match (column, row) {
            (true, true) => Ok(self.vector(wanted)),
            (true, false) => Ok(MajorOrder::Column),
            (false, true) => Ok(MajorOrder::Row),
            (false, false) => Err(DescriptionRefusal::Strides { matrix: self.name, rows, columns }),
        }
    }

    /// A single row or column lies in the order in which its elements are neighbours, if they are.
    fn vector(&self, wanted: MajorOrder) -> MajorOrder {
        let (rows, columns) = self.strides();
        match wanted {
            MajorOrder::Column if rows != 1 && self.rows.extent > 1 => MajorOrder::Row,
            MajorOrder::Row if columns != 1 && self.columns.extent > 1 => MajorOrder::Column,
            _ => wanted,
        }
    }

    /// The descriptor in an order, and whether it describes the transpose.
    fn matrix(&self, own: MajorOrder, wanted: MajorOrder, stride: usize) -> Result<(Matrix, bool), DescriptionRefusal> {
        let (rows, columns) = self.strides();
        // Within a column of `length` elements, `count` columns; for rows likewise.
        let (length, count, step) = match own {
            MajorOrder::Column => (self.rows.extent, self.columns.extent, columns),
            MajorOrder::Row => (self.columns.extent, self.rows.extent, rows),
        };
        // A single column may be any distance from the next.
        let leading = if count == 1 { length } else { step };
        if leading < length {
            return Err(DescriptionRefusal::Overlap { matrix: self.name });
        }
        let (rows, columns) = match wanted {
            MajorOrder::Column => (length, count),
            MajorOrder::Row => (count, length),
        };
        Ok((Matrix { rows, columns, order: wanted, leading, stride }, own != wanted))
    }
}

/// Where each iteration of a nest begins in the three tensors, the last loop fastest.
fn begins(nest: &[StridedLoop]) -> Vec<[usize; 3]> {
    nest.iter().fold(vec![[0; 3]], |starts, each| {
        let at = |start: [usize; 3], n: usize| std::array::from_fn(|t| start[t] + n * each.strides[t]);
        starts.into_iter().flat_map(|start| (0..each.extent).map(move |n| at(start, n))).collect()
    })
}

impl Description {
    /// Describes a call whose tensors begin at `origins`.
    ///
    /// # Errors
    /// Strides that the library has no words for.
    pub fn new(
        call: &GemmNest,
        origins: [usize; 3],
        alpha: f64,
        form: MatrixOrder,
        batching: Batching,
    ) -> Result<Self, DescriptionRefusal> {
        if call.k.extent == 0 || call.steps() == 0 {
            return Err(DescriptionRefusal::Empty);
        }
        let d = |call: &GemmNest| Walk { name: 'd', rows: call.m, columns: call.n, t: 2 };
        // D has no operation: if its order is not the wanted one, the whole product is transposed.
        let wanted = match form {
            MatrixOrder::Columns => Some(MajorOrder::Column),
            MatrixOrder::Rows => Some(MajorOrder::Row),
            MatrixOrder::Own => None,
        };
        let own = d(call).order(wanted.unwrap_or(MajorOrder::Column))?;
        let exchanged = wanted.is_some_and(|w| w != own);
        let call = if exchanged { call.transposed() } else { call.clone() };
        let walks =
            [Walk { name: 'a', rows: call.m, columns: call.k, t: 0 }, Walk { name: 'b', rows: call.k, columns: call.n, t: 1 }, d(&call)];
        // The innermost loop over independent products becomes the batch.
        let (strided, looped) = match (batching, call.batch.split_last()) {
            (Batching::Strided, Some((last, others))) => (*last, others.to_vec()),
            _ => (StridedLoop::ONCE, call.batch.clone()),
        };
        let mut matrices = Vec::new();
        for walk in &walks {
            let own = walk.order(wanted.unwrap_or(MajorOrder::Column))?;
            matrices.push(walk.matrix(own, wanted.unwrap_or(own), strided.strides[walk.t])?);
        }
        let turn = |o: [usize; 3]| if exchanged { [o[1], o[0], o[2]] } else { o };
        let origins = turn(origins);
        let add = |x: [usize; 3], y: [usize; 3]| std::array::from_fn(|t| x[t] + y[t]);
        let items: Vec<[usize; 3]> = begins(&looped).into_iter().map(|o| add(o, origins)).collect();
        let groups: Vec<Vec<[usize; 3]>> =
            if batching == Batching::Pointers { vec![items] } else { items.into_iter().map(|i| vec![i]).collect() };
        let mut launches = Vec::new();
        for group in &groups {
            for (n, step) in begins(&call.depth).into_iter().enumerate() {
                launches.push(GemmLaunch { origins: group.iter().map(|o| add(*o, step)).collect(), accumulate: n > 0 });
            }
        }
        let batch = if batching == Batching::Pointers { call.items() } else { strided.extent };
        let [(a, transpose_a), (b, transpose_b), (d, _)] = [matrices[0], matrices[1], matrices[2]];
        Ok(Description {
            m: call.m.extent,
            n: call.n.extent,
            k: call.k.extent,
            a,
            b,
            d,
            transpose_a,
            transpose_b,
            exchanged,
            alpha,
            batch,
            pointers: batching == Batching::Pointers && batch > 1,
            launches,
            epilogue: None,
        })
    }

    /// Every different description of a call, with the form and batching of the first of each.
    pub fn all(call: &GemmNest, origins: [usize; 3], alpha: f64) -> Vec<(MatrixOrder, Batching, Description)> {
        let mut found: Vec<(MatrixOrder, Batching, Description)> = Vec::new();
        for form in MatrixOrder::ALL {
            for batching in Batching::ALL {
                if let Ok(description) = Description::new(call, origins, alpha, form, batching)
                    && found.iter().all(|(_, _, d)| *d != description)
                {
                    found.push((form, batching, description));
                }
            }
        }
        found
    }

    /// Equal for equal descriptions, and short.
    pub fn digest(&self) -> [u8; 32] {
        let Description { m, n, k, a, b, d, transpose_a, transpose_b, exchanged, alpha, batch, pointers, launches, epilogue } = self;
        let mut hasher = blake3::Hasher::new();
        let alpha = alpha.to_bits();
        hasher.update(format!("{:?}", (m, n, k, a, b, d, transpose_a, transpose_b, exchanged, alpha, batch, pointers)).as_bytes());
        if let Some(epilogue) = epilogue {
            hasher.update(format!("{epilogue:?}").as_bytes());
        }
        for launch in launches {
            hasher.update(&[u8::from(launch.accumulate)]);
            for origin in launch.origins.iter().flatten() {
                hasher.update(&origin.to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// Multiplications and additions of all launches.
    pub fn flop(&self) -> f64 {
        let products = self.launches.iter().map(|l| l.origins.len().max(self.batch) as f64).sum::<f64>();
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * products
    }
}
