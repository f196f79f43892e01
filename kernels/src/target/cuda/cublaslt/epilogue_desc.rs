//! The words in which the library is told of an epilogue.

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
    /// Columns of the auxiliary matrix begin at multiples of so many of its elements.
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

/// An epilogue as the library is told it: with operands exchanged or not, and the auxiliary matrix in columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpilogueDesc {
    pub function: Option<EpilogueFunction>,
    pub bias: Option<Bias>,
    /// Elements from one column of the auxiliary matrix to the next.
    pub aux: Option<usize>,
}
