//! Every layout and mapping of one contraction, decoded from a number: what all libraries have in common.

use super::error::ContractionError;
use super::mapping::{IndexGroup, Mapping, choices, is_feasible};
use super::problem::ContractionProblem;
use crate::config_space::TensorChoice;
use sdfg::Layout;

/// All plain permutations of the tensors × all sets of rows, columns and depth.
#[derive(Clone, Debug)]
pub struct MappedSpace {
    problem: ContractionProblem,
    /// The distinct containers with their layouts, and for `a`, `b`, `out` which of them it is.
    tensors: Vec<TensorChoice>,
    which: [usize; 3],
}

impl MappedSpace {
    pub fn new(problem: ContractionProblem) -> Self {
        let mut tensors: Vec<TensorChoice> = Vec::new();
        let which = problem.tensors.each_ref().map(|tensor| match tensors.iter().position(|t| t.data == tensor.data) {
            Some(at) => at,
            None => {
                tensors.push(TensorChoice { data: tensor.data.clone(), layouts: Layout::permutations(&tensor.dims) });
                tensors.len() - 1
            }
        });
        MappedSpace { problem, tensors, which }
    }

    /// With tensors that are no operands, each in any of its layouts.
    pub fn beside(mut self, others: Vec<TensorChoice>) -> Self {
        self.tensors.extend(others);
        self
    }

    pub fn problem(&self) -> &ContractionProblem {
        &self.problem
    }

    pub fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    /// Values of each digit, slowest first: layouts, then sets of rows, columns and depth.
    pub fn radices(&self) -> Vec<u64> {
        let sets = |group: IndexGroup| {
            let members = self.problem.indices.iter().filter(|(_, g, e)| *g == group && *e != 1).count();
            ((1u64 << members) - 1).max(1)
        };
        let layouts = self.tensors.iter().map(|t| t.layouts.len() as u64);
        let groups = [IndexGroup::Rows, IndexGroup::Columns, IndexGroup::Depth].map(sets);
        layouts.chain(groups).collect()
    }

    fn layouts_at(&self, digits: &[usize]) -> Vec<&Layout> {
        self.tensors.iter().zip(digits).map(|(t, digit)| &t.layouts[*digit]).collect()
    }

    /// From layouts by container to those of `a`, `b`, `out`.
    pub fn triple<'a>(&self, layouts: &[&'a Layout]) -> [&'a Layout; 3] {
        self.which.map(|w| layouts[w])
    }

    /// Layouts (by distinct container) and mapping of a number of [`MappedSpace::radices`]; larger ones wrap around.
    pub fn at(&self, mut number: u64) -> Result<(Vec<&Layout>, Mapping), ContractionError> {
        let mut digits: Vec<usize> = Vec::new();
        for radix in self.radices().into_iter().rev() {
            digits.push((number % radix) as usize);
            number /= radix;
        }
        digits.reverse();
        let (layouts, knobs) = digits.split_at(self.tensors.len());
        let layouts = self.layouts_at(layouts);
        let axes = self.problem.axes(self.triple(&layouts))?;
        let pick = |group: IndexGroup, digit: usize| {
            let mut sets = choices(&axes, group);
            let at = digit % sets.len().max(1);
            sets.swap_remove(at)
        };
        let mapping = Mapping {
            rows: pick(IndexGroup::Rows, knobs[0]),
            columns: pick(IndexGroup::Columns, knobs[1]),
            depth: pick(IndexGroup::Depth, knobs[2]),
        };
        Ok((layouts, mapping))
    }

    /// Combinations of layouts under which one (batched) BLAS call with unit strides does everything, of all combinations.
    pub fn feasible(&self) -> Result<(u64, u64), ContractionError> {
        let radices: Vec<usize> = self.tensors.iter().map(|t| t.layouts.len()).collect();
        let combinations: usize = radices.iter().product();
        let mut feasible = 0;
        for combination in 0..combinations {
            let mut rest = combination;
            let digits: Vec<usize> = radices.iter().map(|r| (rest % r, rest /= r).0).collect();
            feasible += u64::from(is_feasible(&self.problem.axes(self.triple(&self.layouts_at(&digits)))?));
        }
        Ok((feasible, combinations as u64))
    }
}
