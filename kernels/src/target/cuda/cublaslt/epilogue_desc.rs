//! The epilogue of a matrix product, as cuBLASLt names it.

/// What happens to each element of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueFunction {
    /// Of its argument; where that is positive is written besides, a bit an element, if anyone asks.
    Relu,
    /// The product where a bit that is read is set, else zero.
    ReluGradient,
    /// Of its argument, which is written besides if anyone asks.
    Gelu,
    /// The product times GELU's derivative at an argument that is read.
    GeluGradient,
}

impl EpilogueFunction {
    /// Alignment of the columns of the auxiliary matrix, in its elements.
    pub fn column(self) -> i64 {
        if self.keeps_bits() { 128 } else { 8 }
    }

    /// Whether the auxiliary matrix is one of bits, in the order of Memlet's own: the first of a byte is its lowest.
    pub fn keeps_bits(self) -> bool {
        matches!(self, EpilogueFunction::Relu | EpilogueFunction::ReluGradient)
    }
}

/// What the vector beside a product is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bias {
    /// Added to every column of the result, before the function.
    Added,
    /// Sums along the rows of the first or second matrix, or of the result after the function; written.
    OfA,
    OfB,
    OfResult,
}

/// An epilogue in the library's terms: after operands have been exchanged or not, with the auxiliary matrix in columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpilogueDesc {
    pub function: Option<EpilogueFunction>,
    pub bias: Option<Bias>,
    /// Elements from one column of the auxiliary matrix to the next.
    pub aux: Option<usize>,
}
