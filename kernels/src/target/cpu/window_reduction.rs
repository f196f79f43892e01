//! Extrema and sums under small windows, as pooling takes them: the elements of a window are combined in registers, for a vector of results
//! at a time.
//!
//! ```text
//! for p, q: for lanes c: { acc = -inf; acc = max(acc, x[2p+0, 2q+0, c]); … acc = max(acc, x[2p+2, 2q+2, c]); y[p, q, c] = acc }
//! ```
//!
//! The loops over the window stand inside the loop over lanes and are written out. A maximum reads the nearest element of the image in the
//! place of one outside it, where every window has an element of the image: that element is in the window too, so no padded copy is made.

use crate::emit::printer::PrintedLoops;
use crate::emit::reduction::nan_seen;
use crate::emit::scalar::{constant, value};
use crate::error::KernelError;
use crate::loopnest::{Element, ForLoop, LoopGroup, MemorySpace, NestStatement, slope};
use crate::target::cpu::emit::CPrinter;
use sdfg::{Combine, Dtype, Expr, Scalar};
use std::collections::BTreeMap;

/// Most elements of a window that is written out.
const MOST: i64 = 64;

/// The loops of a group that reduces windows: over results, with the lanes last, and over the elements of a window.
struct WindowLoops {
    results: Vec<ForLoop>,
    taps: Vec<ForLoop>,
    combine: Combine,
}

impl CPrinter<'_> {
    /// Prints a group that does nothing but reduce small windows; says whether it is one.
    pub fn window_reduction(&mut self, group: &LoopGroup, depth: usize) -> Result<bool, KernelError> {
        let [statement] = group.statements.as_slice() else { return Ok(false) };
        let Some(WindowLoops { results, taps, combine }) = self.window_loops(group, statement)? else { return Ok(false) };
        self.title(group, depth);
        self.loops.push(PrintedLoops {
            writes: vec![statement.write.data.clone()],
            lanes: results.last().iter().map(|l| l.index.clone()).collect(),
            packed: None,
        });
        if self.is_value(self.tensor(&statement.write.data)?) {
            self.declare_value(&statement.write.data, depth)?;
        }
        let nest = LoopGroup { loops: results, statements: vec![], is_gemm: false, last: false };
        for n in 0..nest.loops.len() {
            self.open_loop(&nest, n, &[], false, depth + n);
        }
        let level = depth + nest.loops.len();
        let (result, extremum) = (self.fresh("window"), combine != Combine::Sum);
        let identity = constant(combine.identity().first().copied().unwrap_or(0.0), self.double);
        self.line(level, format!("real {result} = {identity};"));
        if extremum {
            self.line(level, format!("int32_t {} = 0;", nan_seen(&result)));
        }
        let body = self.of_one_element(statement, &taps, combine, &result, level + 1)?;
        let all: i64 = taps.iter().map(|l| l.count).product();
        for tap in 0..all {
            let mut rest = tap;
            let mut places = Vec::new();
            for each in taps.iter().rev() {
                places.push(format!("{} = {}", self.index(&each.index), rest % each.count));
                rest /= each.count;
            }
            self.line(level, format!("{{ const int64_t {};", places.join(", ")));
            self.text += &body;
            self.line(level, "}");
        }
        if extremum {
            let nan = constant(f64::NAN, self.double);
            self.line(level, format!("{result} = {} ? {nan} : {result};", nan_seen(&result)));
        }
        let store = self.store(&statement.write, &result)?;
        self.line(level, store);
        for n in (0..nest.loops.len()).rev() {
            self.line(depth + n, "}");
        }
        self.known.clear();
        Ok(true)
    }

    /// The loops of a group; `None` if it is something else.
    fn window_loops(&self, group: &LoopGroup, statement: &NestStatement) -> Result<Option<WindowLoops>, KernelError> {
        let tensor = self.tensor(&statement.write.data)?;
        let real = if self.double { Dtype::F64 } else { Dtype::F32 };
        let combine = statement.combine.filter(|c| matches!(c, Combine::Max | Combine::Min | Combine::Sum));
        let mut masked = false;
        statement.code.walk(&mut |s| masked |= matches!(s, Scalar::Keep { .. } | Scalar::Kept { .. }));
        let Some(combine) = combine.filter(|_| tensor.dtype == real && !masked && !group.last) else { return Ok(None) };
        if matches!(tensor.space, MemorySpace::Private { .. }) {
            return Ok(None);
        }
        let named = |l: &ForLoop| {
            let lane = group.is_lane(&l.index) && self.nest.per_lane(tensor);
            lane || statement.write.subscripts.iter().any(|s| s.symbols().contains(&l.index))
        };
        let (results, taps): (Vec<ForLoop>, Vec<ForLoop>) = group.loops.iter().cloned().partition(named);
        let tiled = |l: &ForLoop| self.nest.tiles.iter().any(|t| t.index == l.index);
        let elements = taps.iter().try_fold(1i64, |n, l| n.checked_mul(l.count)).unwrap_or(i64::MAX);
        // Results are neighbours along the loop over lanes.
        let vectors = results.last().is_some_and(|l| group.is_lane(&l.index));
        let small = (2..=MOST).contains(&elements) && !taps.iter().any(tiled);
        Ok((vectors && small).then_some(WindowLoops { results, taps, combine }))
    }

    /// C that takes one element of the window into the result.
    fn of_one_element(
        &mut self,
        statement: &NestStatement,
        taps: &[ForLoop],
        combine: Combine,
        result: &str,
        depth: usize,
    ) -> Result<String, KernelError> {
        let start = self.text.len();
        self.connectors.clear();
        for (connector, element) in &statement.reads {
            let element = self.clamped(element, taps, combine).unwrap_or_else(|| element.clone());
            let (name, text) = (self.fresh("x"), self.load(&element)?);
            self.line(depth, format!("const real {name} = {text};"));
            self.connectors.insert(connector.clone(), name);
        }
        let (name, text) = (self.fresh("v"), value(&statement.code, self));
        self.line(depth, format!("const real {name} = {text};"));
        let line = match combine {
            Combine::Sum => format!("{result} += {name};"),
            _ => {
                let sign = if combine == Combine::Max { '>' } else { '<' };
                format!("{result} = {name} {sign} {result} ? {name} : {result}; {} |= {name} != {name};", nan_seen(result))
            }
        };
        self.line(depth, line);
        Ok(self.text.split_off(start))
    }

    /// The element nearest to one that may lie outside its container, if the fill is what an extremum begins with and every window, whose
    /// elements are neighbours along each dim, has an element inside: the nearest one is then in the same window.
    fn clamped(&self, element: &Element, taps: &[ForLoop], combine: Combine) -> Option<Element> {
        let fill = f64::from_bits(element.fill?);
        let least = match combine {
            Combine::Max => f64::NEG_INFINITY,
            Combine::Min => f64::INFINITY,
            _ => return None,
        };
        let shape = &self.tensor(&element.data).ok()?.shape;
        let mut subscripts = Vec::new();
        for (subscript, size) in element.subscripts.iter().zip(shape) {
            let (low, high, window) = self.places(subscript, taps)?;
            if low >= 0 && high + window <= *size {
                subscripts.push(subscript.clone());
            } else if low + window > 0 && high < *size {
                subscripts.push(subscript.clone().max(Expr::Int(0)).min(Expr::Int(size - 1)));
            } else {
                return None;
            }
        }
        (fill == least).then(|| Element { data: element.data.clone(), subscripts, fill: None })
    }

    /// The least and greatest place at which a window begins along a subscript, and how many neighbours it has from there on.
    fn places(&self, subscript: &Expr, taps: &[ForLoop]) -> Option<(i64, i64, i64)> {
        let subscript = &self.untiled(subscript);
        let (mut low, mut high, mut window) = (0, 0, 1);
        let mut zero = BTreeMap::new();
        for index in subscript.symbols() {
            let Some(count) = self.whole_count(&index) else { continue };
            let step = slope(subscript, &index).and_then(|s| s.eval(&self.symbols()).ok())?;
            if taps.iter().any(|l| l.index == index) {
                if step != 1 || window != 1 {
                    return None;
                }
                window = count;
            } else {
                (low, high) = (low + (step * (count - 1)).min(0), high + (step * (count - 1)).max(0));
            }
            zero.insert(index, Expr::Int(0));
        }
        let first = subscript.substitute(&zero).eval(&self.symbols()).ok()?;
        Some((first + low, first + high, window))
    }
}
