//! The reader of a program: what it has made, what it could not read, and which elements subsets are.

use super::evaluate::{self, Names};
use super::frame::SdfgFrame;
use super::graph::{Array, DaceMemlet, SubsetRange};
use super::integer::{AffineInteger, Id};
use super::python::PythonExpr;
use super::slot::{ContainerContent, Made, SlotRef, UnreadReason, stop};
use super::value::Value;
use std::cell::RefCell;
use std::rc::Rc;

/// One problem: where it is, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadNode {
    pub state: String,
    pub node: String,
    pub why: String,
}

/// An import under way.
#[derive(Default)]
pub struct Reader {
    pub made: Made,
    pub problems: Vec<UnreadNode>,
    /// Whether all loops are written out.
    pub unrolled: bool,
    /// Whether arrays of nested SDFGs begin where the whole array around them does, as in 2.x; in 1.x they begin where the memlet does.
    pub whole_arguments: bool,
}

impl Reader {
    pub fn problem(&mut self, state: &str, node: &str, why: impl Into<String>) {
        let problem = UnreadNode { state: state.to_string(), node: node.to_string(), why: why.into() };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    pub fn integer(&mut self, frame: &SdfgFrame, ast: &PythonExpr) -> Result<AffineInteger, UnreadReason> {
        evaluate::integer(&mut self.made, frame, &Names::default(), ast)
    }

    /// The largest value of a size, which may depend on indices.
    pub fn size(&mut self, frame: &SdfgFrame, ast: &PythonExpr) -> Result<i64, UnreadReason> {
        // The largest of the least of two is at most either's.
        if let PythonExpr::Call(name, of) = ast
            && matches!(name.as_str(), "Min" | "min")
        {
            let sizes: Vec<i64> = of.iter().filter_map(|ast| self.size(frame, ast).ok()).collect();
            return sizes.into_iter().min().ok_or_else(|| UnreadReason::Why("a size is not known".into()));
        }
        let integer = self.integer(frame, ast)?;
        match integer.bounds(&self.made.indices).1 {
            Some(most) => Ok(most),
            None => stop("a size depends on what a tensor holds"),
        }
    }

    pub fn shape(&mut self, frame: &SdfgFrame, array: &Array) -> Result<Vec<i64>, UnreadReason> {
        array.shape.iter().map(|ast| self.size(frame, ast)).collect()
    }

    /// Strides in elements; those of C where the file has none, or where they depend on indices.
    pub fn strides(&mut self, frame: &SdfgFrame, array: &Array, shape: &[i64]) -> Vec<i64> {
        let given: Option<Vec<i64>> = array.strides.iter().map(|ast| self.integer(frame, ast).ok().and_then(|i| i.constant())).collect();
        given.filter(|given| given.len() == shape.len()).unwrap_or_else(|| packed(shape))
    }

    /// A container with nothing in it.
    pub fn empty(&mut self, name: &str, shape: &[i64], whole_shape: bool) -> SlotRef {
        let axes = self.made.fresh(shape);
        let body = Some(Value::Undefined);
        Rc::new(RefCell::new(ContainerContent {
            axes,
            body,
            name: name.to_string(),
            comment: String::new(),
            prior: None,
            writes: None,
            whole_shape,
        }))
    }

    /// A container whose elements are those of another one.
    pub fn alias(
        &mut self,
        name: &str,
        shape: &[i64],
        f: impl FnOnce(&mut Self, &[AffineInteger]) -> Result<Value, UnreadReason>,
    ) -> Result<SlotRef, UnreadReason> {
        let slot = self.empty(name, shape, false);
        let places: Vec<AffineInteger> = slot.borrow().axes.iter().map(|id| AffineInteger::index(*id)).collect();
        let body = f(self, &places)?;
        slot.borrow_mut().body = Some(body);
        Ok(slot)
    }

    /// Where a subset begins, its steps, and which of its axes are one place.
    pub fn subset(&mut self, frame: &SdfgFrame, ranges: &[SubsetRange]) -> Result<Subset, UnreadReason> {
        let mut subset = Subset::default();
        for range in ranges {
            let begin = self.integer(frame, &range.start)?;
            let step = self.integer(frame, &range.step)?;
            let tile = self.integer(frame, &range.tile)?.constant().unwrap_or(1);
            let step =
                step.constant().filter(|s| *s != 0).ok_or_else(|| UnreadReason::Why("the step of a subset depends on an index".into()))?;
            if tile != 1 {
                return stop("a subset has tiles within its range, which is not read");
            }
            let count = match range.end == range.start {
                true => 1,
                // What goes up to the least of several ends where the first of them does.
                false => self
                    .ends(frame, &range.end)?
                    .iter()
                    .filter_map(|end| {
                        let extent = end.clone().minus(&begin);
                        extent.bounds(&self.made.indices).1.map(|most| most.div_euclid(step) + 1)
                    })
                    .min()
                    .unwrap_or(1),
            };
            subset.begins.push(begin);
            subset.steps.push(step);
            subset.counts.push(count.max(0));
        }
        Ok(subset)
    }

    /// The numbers of which an end is the least.
    pub fn ends(&mut self, frame: &SdfgFrame, ast: &PythonExpr) -> Result<Vec<AffineInteger>, UnreadReason> {
        self.extremes(frame, ast, "Min")
    }

    /// The numbers of which an expression is the least, or the greatest.
    pub fn extremes(&mut self, frame: &SdfgFrame, ast: &PythonExpr, function: &str) -> Result<Vec<AffineInteger>, UnreadReason> {
        match ast {
            PythonExpr::Call(name, of) if name.eq_ignore_ascii_case(function) => {
                let all = of.iter().map(|ast| self.extremes(frame, ast, function)).collect::<Result<Vec<_>, _>>()?;
                Ok(all.into_iter().flatten().collect())
            }
            PythonExpr::Binary(op @ ("+" | "-"), a, b) => {
                let (left, right) = (self.extremes(frame, a, function)?, self.integer(frame, b));
                match right {
                    Ok(right) => Ok(left.into_iter().map(|l| l.plus(&right, if *op == "+" { 1 } else { -1 })).collect()),
                    // A sum turned round.
                    Err(_) if *op == "+" => {
                        let (left, right) = (self.integer(frame, a)?, self.extremes(frame, b, function)?);
                        Ok(right.into_iter().map(|r| r.plus(&left, 1)).collect())
                    }
                    Err(why) => Err(why),
                }
            }
            ast => Ok(vec![self.integer(frame, ast)?]),
        }
    }

    /// Places of an array, by how many elements they lie behind a place of it.
    pub fn places(&self, begins: &[AffineInteger], strides: &[i64], offset: &AffineInteger) -> Vec<AffineInteger> {
        let mut address = begins.iter().zip(strides).fold(offset.clone(), |sum, (begin, stride)| sum.plus(begin, *stride));
        let mut order: Vec<usize> = (0..strides.len()).collect();
        order.sort_by_key(|n| std::cmp::Reverse(strides[*n]));
        let mut places = vec![AffineInteger::number(0); strides.len()];
        for (n, axis) in order.iter().enumerate() {
            let stride = strides[*axis].max(1);
            let last = n + 1 == order.len();
            let place = if last && stride == 1 { address.clone() } else { address.floor_div(stride, &self.made.indices) };
            address = address.minus(&place.times(stride));
            places[*axis] = place;
        }
        places
    }
}

/// Strides of C.
pub fn packed(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for n in (1..shape.len()).rev() {
        strides[n - 1] = strides[n] * shape[n].max(1);
    }
    strides
}

/// A subset: where it begins on each axis, how far its places are apart, and how many there are at most.
#[derive(Clone, Debug, Default)]
pub struct Subset {
    pub begins: Vec<AffineInteger>,
    pub steps: Vec<i64>,
    pub counts: Vec<i64>,
}

impl Subset {
    pub fn is_point(&self) -> bool {
        self.counts.iter().all(|count| *count == 1)
    }

    /// The place of a point of it.
    pub fn at(&self, points: &[AffineInteger]) -> Vec<AffineInteger> {
        self.begins.iter().zip(&self.steps).zip(points).map(|((begin, step), point)| begin.clone().plus(point, *step)).collect()
    }
}

impl DaceMemlet {
    /// The subset at one end of an edge, whose container this is; `other` is the one at the other end.
    pub fn side(&self, container: &str, other: Option<&str>, is_source: bool) -> Option<&Vec<SubsetRange>> {
        let own = if is_source { &self.source } else { &self.destination };
        let is_own = self.data.as_deref() == Some(container);
        match is_own {
            // One container at both ends.
            true if other == Some(container) => own.as_ref().or(if is_source { self.subset.as_ref() } else { self.other.as_ref() }),
            true => self.subset.as_ref().or(own.as_ref()),
            false => self.other.as_ref().or(own.as_ref()),
        }
    }
}

/// A write of all points of a subset.
pub fn points(made: &mut Made, subset: &Subset) -> (Vec<Id>, Vec<AffineInteger>) {
    let points = made.fresh(&subset.counts);
    let at: Vec<AffineInteger> = points.iter().map(|id| AffineInteger::index(*id)).collect();
    (points, subset.at(&at))
}
