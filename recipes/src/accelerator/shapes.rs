//! Shape deduction and transfer (Deep Fusion, 3.1): which rows or columns of its inputs a range of outputs reads.
//!
//! Deduction is memlet propagation: `x[p·stride + r − pad]` over `p` of the range and `r` of the kernel, cut to the rows that there are.
//! The numbers here are those of `sdfg::propagate` without symbols; a test compares both.

use super::layers::Reach;

/// Rows or columns from `begin` to `end`, which is not one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    pub begin: usize,
    pub end: usize,
}

impl Span {
    pub fn new(begin: usize, end: usize) -> Span {
        Span { begin, end }
    }

    pub fn len(self) -> usize {
        self.end.saturating_sub(self.begin)
    }

    pub fn is_empty(self) -> bool {
        self.end <= self.begin
    }

    /// The least range that holds both; an empty range adds nothing.
    pub fn hull(self, other: Span) -> Span {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            _ => Span { begin: self.begin.min(other.begin), end: self.end.max(other.end) },
        }
    }

    pub fn meet(self, other: Span) -> Span {
        Span { begin: self.begin.max(other.begin), end: self.end.min(other.end) }
    }

    pub fn holds(self, other: Span) -> bool {
        other.is_empty() || (self.begin <= other.begin && other.end <= self.end)
    }
}

impl Reach {
    /// The inputs that the outputs of a range read, of `size` inputs.
    ///
    /// The paper writes `end·stride + kernel` for the end, which is one stride too far for an `end` that is not in the range.
    pub fn deduce(self, outputs: Span, size: usize) -> Span {
        if outputs.is_empty() {
            return Span::default();
        }
        let begin = (outputs.begin * self.stride).saturating_sub(self.pad);
        let end = ((outputs.end - 1) * self.stride + self.kernel).saturating_sub(self.pad).min(size);
        Span { begin: begin.min(end), end }
    }

    /// The first input that output `next` or a later one reads, of `size` inputs and `outputs` outputs.
    pub fn first_needed(self, next: usize, outputs: usize, size: usize) -> usize {
        if next >= outputs { size } else { (next * self.stride).saturating_sub(self.pad).min(size) }
    }
}
