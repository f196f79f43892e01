//! How a value of the graph lies in a tensor of the recipe.
//!
//! Each axis of a value is a number in a mixed radix: a list of *digits*, the last of which counts fastest. A merge of two axes puts
//! their digits into one list, and a split replaces a digit by two, so a Reshape moves nothing. Transpose, Slice, Squeeze and Expand change
//! lists and subscripts alone as well. An axis of size 1 may have no digit.

use super::element::ElementType;
use super::error::UnsupportedNode;

/// A part of an axis, with a name of its own within the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digit {
    pub id: usize,
    pub size: usize,
}

/// A constant and whole multiples of what `T` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffineSum<T> {
    pub constant: i64,
    pub terms: Vec<(T, i64)>,
}

impl<T: Clone + PartialEq> AffineSum<T> {
    pub fn number(constant: i64) -> AffineSum<T> {
        AffineSum { constant, terms: vec![] }
    }

    pub fn of(name: T) -> AffineSum<T> {
        AffineSum { constant: 0, terms: vec![(name, 1)] }
    }

    /// `self + factor · other`
    pub fn plus(mut self, other: &AffineSum<T>, factor: i64) -> AffineSum<T> {
        self.constant += factor * other.constant;
        for (name, coefficient) in &other.terms {
            match self.terms.iter_mut().find(|(n, _)| n == name) {
                Some((_, own)) => *own += factor * coefficient,
                None => self.terms.push((name.clone(), factor * coefficient)),
            }
        }
        self.terms.retain(|(_, coefficient)| *coefficient != 0);
        self
    }
}

/// Where the elements of a value come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ElementSource {
    /// One number everywhere.
    Number(f64),
    /// A tensor of the recipe, with its sizes, under a subscript of digits for each of its dims.
    Tensor { name: String, sizes: Vec<usize>, subscripts: Vec<AffineSum<usize>> },
}

/// A value of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct DigitView {
    pub element: ElementType,
    pub axes: Vec<DigitAxis>,
    pub source: ElementSource,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DigitAxis {
    pub size: usize,
    /// Their sizes multiply to the axis's.
    pub digits: Vec<Digit>,
}

impl DigitView {
    /// A tensor of the recipe whose dims are the digits of these axes, in order; an axis without digits has size 1.
    pub fn of(name: String, element: ElementType, axes: &[Vec<usize>]) -> DigitView {
        let mut next = 0;
        let mut digit = |size: &usize| {
            next += 1;
            Digit { id: next - 1, size: *size }
        };
        let axes: Vec<DigitAxis> =
            axes.iter().map(|sizes| DigitAxis { size: sizes.iter().product(), digits: sizes.iter().map(&mut digit).collect() }).collect();
        let digits: Vec<Digit> = axes.iter().flat_map(|axis| axis.digits.clone()).collect();
        let sizes = digits.iter().map(|d| d.size).collect();
        let subscripts = digits.iter().map(|d| AffineSum::of(d.id)).collect();
        DigitView { element, axes, source: ElementSource::Tensor { name, sizes, subscripts } }
    }

    /// A value that has one number everywhere.
    pub fn number(value: f64, element: ElementType, shape: &[usize]) -> DigitView {
        let digits = |(id, size): (usize, &usize)| if *size == 1 { vec![] } else { vec![Digit { id, size: *size }] };
        let axes = shape.iter().enumerate().map(|(id, size)| DigitAxis { size: *size, digits: digits((id, size)) }).collect();
        DigitView { element, axes, source: ElementSource::Number(value) }
    }

    pub fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.size).collect()
    }

    pub fn elements(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    pub fn typed(mut self, element: ElementType) -> DigitView {
        self.element = element;
        self
    }

    /// The name of a tensor whose dims are exactly the axes of the view, each one digit.
    pub fn plain(&self) -> Option<&str> {
        let ElementSource::Tensor { name, sizes, subscripts } = &self.source else { return None };
        let own = |(axis, subscript): (&DigitAxis, &AffineSum<usize>)| match axis.digits.as_slice() {
            [digit] => *subscript == AffineSum::of(digit.id),
            _ => false,
        };
        let whole = sizes.len() == self.axes.len() && self.axes.iter().zip(subscripts).all(own);
        (whole && self.shape() == *sizes).then_some(name)
    }

    /// Whether an axis is a whole dim of the tensor, or one number: what is read outside of it lies outside of the tensor, too.
    pub fn is_whole(&self, axis: usize) -> bool {
        let DigitAxis { size, digits } = &self.axes[axis];
        match (&self.source, digits.as_slice()) {
            (ElementSource::Tensor { sizes, subscripts, .. }, [digit]) => {
                let mentions = |s: &&AffineSum<usize>| s.terms.iter().any(|(id, _)| *id == digit.id);
                subscripts.iter().filter(mentions).count() == 1
                    && subscripts.iter().zip(sizes).any(|(s, n)| *s == AffineSum::of(digit.id) && n == size)
            }
            _ => false,
        }
    }

    /// A new digit's name.
    fn fresh(&self) -> usize {
        self.axes.iter().flat_map(|axis| &axis.digits).map(|digit| digit.id + 1).max().unwrap_or(0)
    }

    /// Puts an expression of other digits in a digit's place.
    fn substitute(&mut self, id: usize, by: &AffineSum<usize>) {
        let ElementSource::Tensor { subscripts, .. } = &mut self.source else { return };
        for subscript in subscripts {
            let coefficient = subscript.terms.iter().find(|(n, _)| *n == id).map(|(_, c)| *c);
            if let Some(coefficient) = coefficient {
                subscript.terms.retain(|(n, _)| *n != id);
                *subscript = std::mem::replace(subscript, AffineSum::number(0)).plus(by, coefficient);
            }
        }
    }

    /// The axes in another order.
    ///
    /// # Errors
    /// Axes that it does not have.
    pub fn transposed(&self, order: &[usize]) -> Result<DigitView, UnsupportedNode> {
        let missing = || UnsupportedNode::Form(format!("an operand has {} axes, and axes {order:?} are wanted", self.axes.len()));
        let axes = order.iter().map(|n| self.axes.get(*n).cloned().ok_or_else(missing)).collect::<Result<_, _>>()?;
        Ok(DigitView { axes, ..self.clone() })
    }

    /// Splits a digit into two, the second of which has the size `inner`.
    fn split(&mut self, id: usize, size: usize, inner: usize) -> [Digit; 2] {
        let fresh = self.fresh();
        let parts = [Digit { id: fresh, size: size / inner }, Digit { id: fresh + 1, size: inner }];
        self.substitute(id, &AffineSum { constant: 0, terms: vec![(fresh, inner as i64), (fresh + 1, 1)] });
        for axis in &mut self.axes {
            if let Some(at) = axis.digits.iter().position(|d| d.id == id) {
                axis.digits.splice(at..=at, parts);
            }
        }
        parts
    }

    /// The same elements in the same order under another shape; `None` where digits would have to be cut across.
    pub fn reshaped(&self, shape: &[usize]) -> Option<DigitView> {
        let mut view = self.clone();
        let mut left: Vec<Digit> = view.axes.iter().flat_map(|axis| axis.digits.clone()).collect();
        left.reverse();
        let mut axes = Vec::new();
        for size in shape {
            let (mut open, mut digits) = (*size, Vec::new());
            while open > 1 {
                let digit = left.pop()?;
                if digit.size == 1 {
                    // A digit of size 1 stays where an axis of size 1 can take it, and has one value anyway.
                    view.substitute(digit.id, &AffineSum::number(0));
                } else if open % digit.size == 0 {
                    open /= digit.size;
                    digits.push(digit);
                } else if digit.size % open == 0 {
                    let [outer, inner] = view.split(digit.id, digit.size, digit.size / open);
                    left.push(inner);
                    digits.push(outer);
                    open = 1;
                } else {
                    return None;
                }
            }
            if *size == 1
                && let Some(digit) = left.pop_if(|digit| digit.size == 1)
            {
                digits.push(digit);
            }
            axes.push(DigitAxis { size: *size, digits });
        }
        for digit in left {
            if digit.size != 1 {
                return None;
            }
            view.substitute(digit.id, &AffineSum::number(0));
        }
        Some(DigitView { axes, ..view })
    }

    /// One axis as two, the first of `outer` places, while the others keep their digits; `None` where digits would have to be cut across.
    pub fn parted(&self, axis: usize, outer: usize) -> Option<DigitView> {
        let mut view = self.clone();
        let DigitAxis { size, digits } = view.axes.get(axis)?.clone();
        if outer == 0 || size % outer != 0 {
            return None;
        }
        digits.iter().filter(|digit| digit.size == 1).for_each(|digit| view.substitute(digit.id, &AffineSum::number(0)));
        view.axes[axis].digits.retain(|digit| digit.size != 1);
        let (mut open, mut at) = (outer, 0);
        while open > 1 {
            let digit = *view.axes[axis].digits.get(at)?;
            if open % digit.size == 0 {
                open /= digit.size;
            } else if digit.size % open == 0 {
                view.split(digit.id, digit.size, digit.size / open);
                open = 1;
            } else {
                return None;
            }
            at += 1;
        }
        let digits = view.axes[axis].digits.split_off(at);
        view.axes[axis].size = outer;
        view.axes.insert(axis + 1, DigitAxis { size: size / outer, digits });
        Some(view)
    }

    /// Every `step`-th of `count` places of an axis from `start` on; `None` where the axis is no single digit.
    pub fn sliced(&self, axis: usize, start: i64, step: i64, count: usize) -> Option<DigitView> {
        let mut view = self.clone();
        let size = view.axes[axis].size;
        if start == 0 && step == 1 && count == size {
            return Some(view);
        }
        let fresh = view.fresh();
        let digits = if count == 1 { vec![] } else { vec![Digit { id: fresh, size: count }] };
        let place = match count {
            1 => AffineSum::number(start),
            _ => AffineSum { constant: start, terms: vec![(fresh, step)] },
        };
        match (view.axes[axis].digits.as_slice(), &view.source) {
            ([], _) | (_, ElementSource::Number(_)) => {}
            ([digit], _) => {
                let id = digit.id;
                view.substitute(id, &place);
            }
            // One place of several digits: each of them is a number.
            (several, _) if count == 1 => {
                let mut rest = start;
                let digits = several.to_vec();
                for digit in digits.into_iter().rev() {
                    let size = digit.size as i64;
                    view.substitute(digit.id, &AffineSum::number(rest % size));
                    rest /= size;
                }
            }
            _ => return None,
        }
        view.axes[axis] = DigitAxis { size: count, digits };
        Some(view)
    }

    /// The same elements repeated along axes of size 1 and new axes in front, as `Expand` does.
    pub fn expanded(&self, shape: &[usize]) -> DigitView {
        let mut view = self.clone();
        let missing = shape.len() - view.axes.len();
        view.axes.splice(0..0, (0..missing).map(|_| DigitAxis { size: 1, digits: vec![] }));
        for (n, size) in shape.iter().enumerate() {
            if view.axes[n].size == 1 && *size != 1 {
                for digit in view.axes[n].digits.clone() {
                    view.substitute(digit.id, &AffineSum::number(0));
                }
                let id = view.fresh();
                view.axes[n] = DigitAxis { size: *size, digits: vec![Digit { id, size: *size }] };
            }
        }
        view
    }

    /// Without axes of size 1 at these places.
    pub fn squeezed(&self, axes: &[usize]) -> DigitView {
        let mut view = self.clone();
        for axis in axes {
            for digit in view.axes[*axis].digits.clone() {
                view.substitute(digit.id, &AffineSum::number(0));
            }
        }
        let kept = |(n, axis): (usize, DigitAxis)| if axes.contains(&n) { None } else { Some(axis) };
        view.axes = std::mem::take(&mut view.axes).into_iter().enumerate().filter_map(kept).collect();
        view
    }

    /// Without one axis, whatever its size: for the labels of the others.
    pub fn squeezed_out(&self, axis: usize) -> DigitView {
        let mut view = self.clone();
        view.axes.remove(axis);
        view
    }

    /// With axes of size 1 that stand at these places of the result.
    ///
    /// # Errors
    /// Axes beyond the last one.
    pub fn unsqueezed(&self, axes: &[usize]) -> Result<DigitView, UnsupportedNode> {
        let mut view = self.clone();
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        for axis in sorted {
            if axis > view.axes.len() {
                return Err(UnsupportedNode::Form(format!(
                    "an operand has {} axes, and axes of size 1 are wanted at {axes:?}",
                    self.axes.len()
                )));
            }
            view.axes.insert(axis, DigitAxis { size: 1, digits: vec![] });
        }
        Ok(view)
    }
}
