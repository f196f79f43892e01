//! Values that are known without running the model: shapes, and what nodes compute from known tensors.
//!
//! Whole numbers are computed as i64 and real ones as f64, rounded to their type after each node. A node that is not here, or whose
//! operands are large, becomes a step although its operands are known.

use super::attribute::{axis, float, int, ints};
use super::constant::ConstantTensor;
use super::element::ElementType;
use super::error::UnsupportedNode;
use super::proto::NodeProto;
use super::value::{FOLDED, GraphValue};
use std::path::Path;

type Folded = Result<Option<Vec<ConstantTensor>>, UnsupportedNode>;

/// The results of a node that are known at import; `None` where it is for a step to compute them.
pub fn fold(proto: &NodeProto, inputs: &[GraphValue]) -> Folded {
    let one = |constant: ConstantTensor| Ok(Some(vec![constant]));
    match proto.op_type.as_str() {
        "Constant" => return one(stated(proto)?),
        "Shape" => return one(shape(proto, inputs)?),
        "Size" => {
            let elements = sizes(inputs.first()).map(|shape| shape.iter().product::<usize>()).ok_or(UnsupportedNode::Operator)?;
            return one(ConstantTensor::whole(ElementType::I64, vec![], vec![elements as i64]));
        }
        _ => {}
    }
    let mut known = Vec::new();
    // The second operand of a CastLike says a type alone, and the operand of an EyeLike a shape.
    let like = match (proto.op_type.as_str(), inputs) {
        ("CastLike", [x, GraphValue::View(view)]) => Some((x, ConstantTensor::of(view.element, vec![0], vec![]))),
        _ => None,
    };
    let eye = match (proto.op_type.as_str(), inputs) {
        ("EyeLike", [GraphValue::View(view)]) => {
            Some(ConstantTensor::of(view.element, view.shape(), vec![0.0; view.elements().min(FOLDED)]))
        }
        _ => None,
    };
    if let Some(eye) = eye.as_ref().filter(|eye| eye.elements() < FOLDED) {
        return Known { proto, known: vec![Some(eye)] }.results();
    }
    if let Some((x, like)) = &like {
        return match x {
            GraphValue::Known(x) if x.constant.elements() <= FOLDED => {
                Known { proto, known: vec![Some(&x.constant), Some(like)] }.results()
            }
            _ => Ok(None),
        };
    }
    for input in inputs {
        match input {
            GraphValue::Known(of) if of.constant.elements() <= FOLDED => known.push(Some(&of.constant)),
            GraphValue::Absent => known.push(None),
            _ => return Ok(None),
        }
    }
    if known.is_empty() {
        return Ok(None);
    }
    let of = Known { proto, known };
    of.results()
}

fn sizes(value: Option<&GraphValue>) -> Option<Vec<usize>> {
    match value? {
        GraphValue::Known(known) => Some(known.constant.shape.clone()),
        GraphValue::View(view) => Some(view.shape()),
        _ => None,
    }
}

fn shape(proto: &NodeProto, inputs: &[GraphValue]) -> Result<ConstantTensor, UnsupportedNode> {
    let sizes = sizes(inputs.first()).ok_or(UnsupportedNode::Earlier)?;
    let rank = sizes.len() as i64;
    let bound = |name: &str, default: i64| {
        let given = int(proto, name).unwrap_or(default);
        (if given < 0 { given + rank } else { given }).clamp(0, rank) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    Ok(ConstantTensor::list(sizes[start..end.max(start)].iter().map(|size| *size as i64).collect()))
}

/// The value of a `Constant`.
fn stated(proto: &NodeProto) -> Result<ConstantTensor, UnsupportedNode> {
    let Some(attribute) = proto.attribute.first() else { return UnsupportedNode::form("it has no value") };
    match attribute.name.as_str() {
        "value" => {
            let tensor = attribute.t.as_ref().ok_or_else(|| UnsupportedNode::Form("its value is no tensor".into()))?;
            ConstantTensor::read(tensor, Path::new("")).map_err(UnsupportedNode::Form)
        }
        "value_float" => Ok(ConstantTensor::real(ElementType::F32, vec![], vec![attribute.f.into()])),
        "value_int" => Ok(ConstantTensor::whole(ElementType::I64, vec![], vec![attribute.i])),
        "value_ints" => Ok(ConstantTensor::list(attribute.ints.clone())),
        "value_floats" => {
            let values: Vec<f64> = attribute.floats.iter().map(|v| f64::from(*v)).collect();
            Ok(ConstantTensor::real(ElementType::F32, vec![values.len()], values))
        }
        other => UnsupportedNode::form(format!("its `{other}` is no number or dense tensor of numbers")),
    }
}

struct Known<'a> {
    proto: &'a NodeProto,
    known: Vec<Option<&'a ConstantTensor>>,
}

impl Known<'_> {
    fn get(&self, n: usize) -> Result<&ConstantTensor, UnsupportedNode> {
        self.known.get(n).copied().flatten().ok_or_else(|| UnsupportedNode::Form(format!("its input number {} is left out", n + 1)))
    }

    /// Whole numbers of an optional input.
    fn numbers(&self, n: usize) -> Option<Vec<i64>> {
        self.known.get(n).copied().flatten().map(ConstantTensor::wholes)
    }

    fn axes(&self, input: usize, rank: usize) -> Result<Option<Vec<usize>>, UnsupportedNode> {
        let given = self.numbers(input).or_else(|| ints(self.proto, "axes").map(<[i64]>::to_vec));
        given.map(|axes| axes.into_iter().map(|a| axis(a, rank)).collect()).transpose()
    }

    fn results(&self) -> Folded {
        let one = |constant: ConstantTensor| Ok(Some(vec![constant]));
        let operator = self.proto.op_type.as_str();
        if let Some(f) = unary(operator) {
            let x = self.get(0)?;
            return one(ConstantTensor::of(x.element, x.shape.clone(), x.reals().into_iter().map(f).collect()));
        }
        if operator == "Mod" && int(self.proto, "fmod") == Some(1) {
            return self.pairs(|a, b, _| a % b, false).map(Some);
        }
        if let Some((f, compares)) = binary(operator) {
            return self.pairs(f, compares).map(Some);
        }
        match operator {
            "Identity" => one(self.get(0)?.clone()),
            "Cast" | "CastLike" => {
                let to = match operator {
                    "CastLike" => self.get(1)?.element,
                    _ => match ElementType::of(int(self.proto, "to").unwrap_or(0)) {
                        Ok(element) => element,
                        Err(_) => return Ok(None),
                    },
                };
                let x = self.get(0)?;
                one(match (to, x.element.is_float()) {
                    (ElementType::Bool, _) => {
                        ConstantTensor::of(to, x.shape.clone(), x.reals().iter().map(|v| f64::from(*v != 0.0)).collect())
                    }
                    (to, true) => ConstantTensor::of(to, x.shape.clone(), x.reals()),
                    (to, false) if to.is_float() => ConstantTensor::real(to, x.shape.clone(), x.reals()),
                    (to, false) => ConstantTensor::whole(to, x.shape.clone(), x.wholes()),
                })
            }
            "Not" => {
                let x = self.get(0)?;
                one(ConstantTensor::whole(ElementType::Bool, x.shape.clone(), x.wholes().iter().map(|v| i64::from(*v == 0)).collect()))
            }
            "ConstantOfShape" => {
                let shape = lengths(&self.get(0)?.wholes())?;
                if shape.iter().product::<usize>() > FOLDED {
                    return Ok(None);
                }
                let tensor = self.proto.attribute.iter().find(|a| a.name == "value").and_then(|a| a.t.as_ref());
                let value = tensor.map(|t| ConstantTensor::read(t, Path::new(""))).transpose().map_err(UnsupportedNode::Form)?;
                let (element, value) =
                    value.map_or((ElementType::F32, 0.0), |v| (v.element, v.reals().first().copied().unwrap_or_default()));
                one(ConstantTensor::of(element, shape.clone(), vec![value; shape.iter().product()]))
            }
            "Range" => self.range().map(Some),
            "Reshape" => {
                let x = self.get(0)?;
                let shape = reshaped(&x.shape, &self.get(1)?.wholes(), int(self.proto, "allowzero") == Some(1))?;
                one(x.reshaped(shape))
            }
            "Flatten" => {
                let x = self.get(0)?;
                let at = int(self.proto, "axis").unwrap_or(1);
                let at = if at == x.shape.len() as i64 { x.shape.len() } else { axis(at, x.shape.len().max(1))? };
                one(x.reshaped(vec![x.shape[..at].iter().product(), x.shape[at..].iter().product()]))
            }
            "Squeeze" => {
                let x = self.get(0)?;
                let axes = self.axes(1, x.shape.len())?;
                let gone = |(n, size): (usize, &usize)| axes.as_ref().map_or(*size == 1, |axes| axes.contains(&n));
                let kept = x.shape.iter().enumerate().filter(|at| !gone(*at)).map(|(_, size)| *size).collect();
                one(x.reshaped(kept))
            }
            "Unsqueeze" => {
                let x = self.get(0)?;
                let given = self.numbers(1).or_else(|| ints(self.proto, "axes").map(<[i64]>::to_vec)).unwrap_or_default();
                let rank = x.shape.len() + given.len();
                let mut axes = given.iter().map(|a| axis(*a, rank)).collect::<Result<Vec<_>, _>>()?;
                axes.sort_unstable();
                let mut shape = x.shape.clone();
                axes.into_iter().for_each(|a| shape.insert(a.min(shape.len()), 1));
                one(x.reshaped(shape))
            }
            "Transpose" => {
                let x = self.get(0)?;
                let rank = x.shape.len();
                let order: Vec<usize> = match ints(self.proto, "perm") {
                    Some(perm) => perm.iter().map(|p| axis(*p, rank)).collect::<Result<_, _>>()?,
                    None => (0..rank).rev().collect(),
                };
                let shape: Vec<usize> = order.iter().map(|n| x.shape[*n]).collect();
                one(picked(x, shape, |at| {
                    let mut from = vec![0; rank];
                    order.iter().zip(at).for_each(|(n, place)| from[*n] = *place);
                    from
                }))
            }
            "Concat" => self.concat().map(Some),
            "Slice" => self.slice().map(Some),
            "Gather" => {
                let (x, places) = (self.get(0)?, self.get(1)?);
                let along = axis(int(self.proto, "axis").unwrap_or(0), x.shape.len())?;
                let size = x.shape[along] as i64;
                let rows: Vec<i64> = places.wholes().into_iter().map(|p| if p < 0 { p + size } else { p }).collect();
                if let Some(bad) = rows.iter().find(|p| !(0..size).contains(*p)) {
                    return UnsupportedNode::form(format!("it reads place {bad} of an axis of {size}"));
                }
                let mut shape = x.shape.clone();
                shape.splice(along..=along, places.shape.iter().copied());
                let inner = places.shape.len();
                one(picked(x, shape, |at| {
                    let flat = at[along..along + inner].iter().zip(&places.shape).fold(0, |flat, (p, size)| flat * size + p);
                    let mut from = at[..along].to_vec();
                    from.push(rows[flat] as usize);
                    from.extend_from_slice(&at[along + inner..]);
                    from
                }))
            }
            "Expand" => {
                let (x, wanted) = (self.get(0)?, lengths(&self.get(1)?.wholes())?);
                let shape = broadcast(&x.shape, &wanted)?;
                if shape.iter().product::<usize>() > FOLDED {
                    return Ok(None);
                }
                one(expanded(x, &shape))
            }
            "Tile" => {
                let (x, times) = (self.get(0)?, lengths(&self.get(1)?.wholes())?);
                if times.len() != x.shape.len() {
                    return UnsupportedNode::form("its repeats are not one for each axis");
                }
                let shape: Vec<usize> = x.shape.iter().zip(&times).map(|(size, times)| size * times).collect();
                if shape.iter().product::<usize>() > FOLDED {
                    return Ok(None);
                }
                one(picked(x, shape, |at| at.iter().zip(&x.shape).map(|(place, size)| place % size).collect()))
            }
            "Where" => {
                let (c, a, b) = (self.get(0)?, self.get(1)?, self.get(2)?);
                let shape = broadcast(&broadcast(&c.shape, &a.shape)?, &b.shape)?;
                let [c, a, b] = [c, a, b].map(|x| expanded(x, &shape));
                let chosen = c.wholes().into_iter().map(|c| c != 0);
                if a.element.is_float() {
                    let values = chosen.zip(a.reals().into_iter().zip(b.reals())).map(|(c, (a, b))| if c { a } else { b }).collect();
                    return one(ConstantTensor::real(a.element, shape, values));
                }
                let values = chosen.zip(a.wholes().into_iter().zip(b.wholes())).map(|(c, (a, b))| if c { a } else { b }).collect();
                one(ConstantTensor::whole(a.element, shape, values))
            }
            "Split" => self.split(),
            "ReduceSum" | "ReduceProd" | "ReduceMax" | "ReduceMin" => self.reduce().map(Some),
            "EyeLike" => {
                let x = self.get(0)?;
                let [rows, columns] = x.shape[..] else { return UnsupportedNode::form("its input is no matrix") };
                let k = int(self.proto, "k").unwrap_or(0);
                let element = match int(self.proto, "dtype").map(ElementType::of) {
                    Some(Ok(element)) => element,
                    Some(Err(_)) => return Ok(None),
                    None => x.element,
                };
                let values = (0..rows * columns).map(|n| f64::from((n % columns) as i64 - (n / columns) as i64 == k));
                one(ConstantTensor::of(element, vec![rows, columns], values.collect()))
            }
            "Trilu" => {
                let x = self.get(0)?;
                let [.., rows, columns] = x.shape[..] else { return UnsupportedNode::form("its input is no matrix") };
                let k = self.numbers(1).and_then(|k| k.first().copied()).unwrap_or(0);
                let upper = int(self.proto, "upper").unwrap_or(1) != 0;
                let kept = |n: usize| {
                    let (row, column) = ((n / columns % rows) as i64, (n % columns) as i64);
                    if upper { column - row >= k } else { column - row <= k }
                };
                let values = x.reals().into_iter().enumerate().map(|(n, v)| if kept(n) { v } else { 0.0 });
                one(ConstantTensor::of(x.element, x.shape.clone(), values.collect()))
            }
            "NonZero" => {
                let x = self.get(0)?;
                let places: Vec<Vec<usize>> =
                    x.reals().iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(n, _)| unravel(n, &x.shape)).collect();
                let values = (0..x.shape.len()).flat_map(|axis| places.iter().map(move |at| at[axis] as i64)).collect();
                one(ConstantTensor::whole(ElementType::I64, vec![x.shape.len(), places.len()], values))
            }
            "Clip" => {
                let x = self.get(0)?;
                let bound = |n: usize, name: &str, default: f64| {
                    let given = self.known.get(n).copied().flatten().and_then(ConstantTensor::only);
                    given.or(float(self.proto, name).map(f64::from)).unwrap_or(default)
                };
                let (low, high) = (bound(1, "min", f64::NEG_INFINITY), bound(2, "max", f64::INFINITY));
                one(ConstantTensor::of(x.element, x.shape.clone(), x.reals().into_iter().map(|v| v.max(low).min(high)).collect()))
            }
            _ => Ok(None),
        }
    }

    fn pairs(&self, f: Pairwise, compares: bool) -> Result<Vec<ConstantTensor>, UnsupportedNode> {
        let mut whole = self.get(0)?.clone();
        for n in 1..self.known.len() {
            let other = self.get(n)?;
            let shape = broadcast(&whole.shape, &other.shape)?;
            let (a, b) = (expanded(&whole, &shape), expanded(other, &shape));
            let exact = !whole.element.is_float();
            let values = a.reals().iter().zip(b.reals()).map(|(a, b)| f(*a, b, exact)).collect();
            whole = ConstantTensor::of(if compares { ElementType::Bool } else { whole.element }, shape, values);
        }
        Ok(vec![whole])
    }

    fn range(&self) -> Result<Vec<ConstantTensor>, UnsupportedNode> {
        let [start, limit, delta] = [self.get(0)?, self.get(1)?, self.get(2)?].map(|c| c.only().unwrap_or(f64::NAN));
        let count = ((limit - start) / delta).ceil().max(0.0);
        if !count.is_finite() || count > FOLDED as f64 {
            return UnsupportedNode::form(format!("it has {count} elements"));
        }
        let values = (0..count as usize).map(|n| start + n as f64 * delta).collect();
        Ok(vec![ConstantTensor::of(self.get(0)?.element, vec![count as usize], values)])
    }

    fn concat(&self) -> Result<Vec<ConstantTensor>, UnsupportedNode> {
        let first = self.get(0)?;
        let along = axis(int(self.proto, "axis").unwrap_or(0), first.shape.len())?;
        let mut shape = first.shape.clone();
        shape[along] = 0;
        let inner: usize = shape[along + 1..].iter().product();
        let outer: usize = shape[..along].iter().product();
        let mut parts = vec![];
        for n in 0..self.known.len() {
            let part = self.get(n)?;
            if part.shape.len() != shape.len() || (0..shape.len()).any(|d| d != along && part.shape[d] != shape[d]) {
                return UnsupportedNode::form("its inputs' shapes do not fit each other");
            }
            shape[along] += part.shape[along];
            parts.push((part.shape[along] * inner, part));
        }
        if first.element.is_float() {
            let parts: Vec<(usize, Vec<f64>)> = parts.into_iter().map(|(row, part)| (row, part.reals())).collect();
            let values = (0..outer).flat_map(|n| parts.iter().flat_map(move |(row, v)| v[n * row..(n + 1) * row].to_vec())).collect();
            return Ok(vec![ConstantTensor::real(first.element, shape, values)]);
        }
        let parts: Vec<(usize, Vec<i64>)> = parts.into_iter().map(|(row, part)| (row, part.wholes())).collect();
        let values = (0..outer).flat_map(|n| parts.iter().flat_map(move |(row, v)| v[n * row..(n + 1) * row].to_vec())).collect();
        Ok(vec![ConstantTensor::whole(first.element, shape, values)])
    }

    fn slice(&self) -> Result<Vec<ConstantTensor>, UnsupportedNode> {
        let x = self.get(0)?;
        let (starts, ends) = (self.get(1)?.wholes(), self.get(2)?.wholes());
        let parts = slices(&x.shape, &starts, &ends, self.numbers(3).as_deref(), self.numbers(4).as_deref())?;
        let shape: Vec<usize> = parts.iter().map(|(_, _, count)| *count).collect();
        Ok(vec![picked(x, shape, |at| at.iter().zip(&parts).map(|(n, (start, step, _))| (start + step * *n as i64) as usize).collect())])
    }

    /// Parts of one axis.
    fn split(&self) -> Folded {
        let x = self.get(0)?;
        let along = axis(int(self.proto, "axis").unwrap_or(0), x.shape.len())?;
        let count = self.proto.output.len().max(1);
        let size = x.shape[along];
        let sizes = match self.numbers(1) {
            Some(sizes) => lengths(&sizes)?,
            None => (0..count).map(|n| size.div_ceil(count).min(size.saturating_sub(n * size.div_ceil(count)))).collect(),
        };
        if sizes.iter().sum::<usize>() != size {
            return UnsupportedNode::form(format!("parts of {sizes:?} are no split of {size}"));
        }
        let mut start = 0;
        let mut parts = vec![];
        for size in sizes {
            let shape: Vec<usize> = x.shape.iter().enumerate().map(|(a, own)| if a == along { size } else { *own }).collect();
            parts.push(picked(x, shape, |at| {
                let mut from = at.to_vec();
                from[along] += start;
                from
            }));
            start += size;
        }
        Ok(Some(parts))
    }

    fn reduce(&self) -> Result<Vec<ConstantTensor>, UnsupportedNode> {
        let x = self.get(0)?;
        let axes = self.axes(1, x.shape.len())?.filter(|axes| !axes.is_empty());
        let axes = match axes {
            Some(axes) => axes,
            None if int(self.proto, "noop_with_empty_axes") == Some(1) => return Ok(vec![x.clone()]),
            None => (0..x.shape.len()).collect(),
        };
        let kept: Vec<usize> = x.shape.iter().enumerate().map(|(n, size)| if axes.contains(&n) { 1 } else { *size }).collect();
        let (start, f): (f64, fn(f64, f64) -> f64) = match self.proto.op_type.as_str() {
            "ReduceSum" => (0.0, |a, b| a + b),
            "ReduceProd" => (1.0, |a, b| a * b),
            "ReduceMax" => (f64::NEG_INFINITY, f64::max),
            _ => (f64::INFINITY, f64::min),
        };
        let mut values = vec![start; kept.iter().product()];
        for (n, value) in x.reals().into_iter().enumerate() {
            let at = unravel(n, &x.shape);
            let place = at.iter().zip(&kept).fold(0, |flat, (p, size)| flat * size + if *size == 1 { 0 } else { *p });
            values[place] = f(values[place], value);
        }
        let keep = int(self.proto, "keepdims").unwrap_or(1) != 0;
        let shape = if keep { kept } else { x.shape.iter().enumerate().filter(|(n, _)| !axes.contains(n)).map(|(_, s)| *s).collect() };
        Ok(vec![ConstantTensor::of(x.element, shape, values)])
    }
}

/// Sizes as they are given for a result.
pub fn lengths(sizes: &[i64]) -> Result<Vec<usize>, UnsupportedNode> {
    sizes.iter().map(|s| usize::try_from(*s).or_else(|_| UnsupportedNode::form(format!("{s} is no size")))).collect()
}

/// The shape that a Reshape asks for: 0 keeps a size and -1 takes what is left.
pub fn reshaped(old: &[usize], wanted: &[i64], zero_is_zero: bool) -> Result<Vec<usize>, UnsupportedNode> {
    let elements: usize = old.iter().product();
    let mut shape = vec![];
    let mut open = None;
    for (n, size) in wanted.iter().enumerate() {
        match *size {
            -1 if open.is_none() => {
                open = Some(n);
                shape.push(1);
            }
            0 if !zero_is_zero => shape.push(*old.get(n).ok_or_else(|| UnsupportedNode::Form(format!("there is no axis {n} to keep")))?),
            size if size >= 0 => shape.push(size as usize),
            size => return UnsupportedNode::form(format!("{size} is no size")),
        }
    }
    let rest = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size)).unwrap_or(0);
    if let Some(n) = open
        && rest > 0
    {
        shape[n] = elements / rest;
    }
    match shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size)) == Some(elements) {
        true => Ok(shape),
        false => UnsupportedNode::form(format!("the shape {old:?} has other elements than {wanted:?}")),
    }
}

/// Start, step and number of places along each axis of a Slice.
pub fn slices(
    shape: &[usize],
    starts: &[i64],
    ends: &[i64],
    axes: Option<&[i64]>,
    steps: Option<&[i64]>,
) -> Result<Vec<(i64, i64, usize)>, UnsupportedNode> {
    let mut parts: Vec<(i64, i64, usize)> = shape.iter().map(|size| (0, 1, *size)).collect();
    if starts.len() != ends.len() {
        return UnsupportedNode::form("it has other numbers of starts than of ends");
    }
    for n in 0..starts.len() {
        let along = match axes {
            Some(axes) => axis(*axes.get(n).ok_or_else(|| UnsupportedNode::Form("it has too few axes".into()))?, shape.len())?,
            None => axis(n as i64, shape.len())?,
        };
        let size = shape[along] as i64;
        let step = steps.and_then(|steps| steps.get(n).copied()).unwrap_or(1);
        if step == 0 {
            return UnsupportedNode::form("its step is 0");
        }
        let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
        let place = |p: i64, low: i64, high: i64| (if p < 0 { p.saturating_add(size) } else { p }).clamp(low, high);
        let start = place(starts[n], low.max(0), if step > 0 { size } else { size - 1 });
        let end = place(ends[n], low, high);
        let span = if step > 0 { end - start } else { start - end };
        let count = if span <= 0 { 0 } else { (span + step.abs() - 1) / step.abs() };
        parts[along] = (start, step, count as usize);
    }
    Ok(parts)
}

/// The shape of two tensors that are broadcast together.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, UnsupportedNode> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], n: usize| if n + shape.len() < rank { 1 } else { shape[n + shape.len() - rank] };
    let joined = |n| match (size(a, n), size(b, n)) {
        (a, b) if a == b || b == 1 => Ok(a),
        (1, b) => Ok(b),
        (a, b) => UnsupportedNode::form(format!("sizes {a} and {b} do not fit each other")),
    };
    (0..rank).map(joined).collect()
}

fn expanded(x: &ConstantTensor, shape: &[usize]) -> ConstantTensor {
    if x.shape == shape {
        return x.clone();
    }
    let missing = shape.len() - x.shape.len();
    picked(x, shape.to_vec(), |at| at[missing..].iter().zip(&x.shape).map(|(p, size)| if *size == 1 { 0 } else { *p }).collect())
}

fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (place, size) in at.iter_mut().zip(shape).rev() {
        *place = flat % size;
        flat /= size;
    }
    at
}

/// The tensor of another shape whose element at a place is that of `x` at `from(place)`.
fn picked(x: &ConstantTensor, shape: Vec<usize>, from: impl Fn(&[usize]) -> Vec<usize>) -> ConstantTensor {
    let places = (0..shape.iter().product()).map(|n| {
        let at = from(&unravel(n, &shape));
        at.iter().zip(&x.shape).fold(0, |flat, (p, size)| flat * size + p)
    });
    if x.element.is_float() {
        let values = x.reals();
        let values = places.map(|n| values[n]).collect();
        return ConstantTensor::real(x.element, shape, values);
    }
    let values = x.wholes();
    let values = places.map(|n| values[n]).collect();
    ConstantTensor::whole(x.element, shape, values)
}

fn unary(operator: &str) -> Option<fn(f64) -> f64> {
    Some(match operator {
        "Neg" => |v| -v,
        "Relu" => |v| v.max(0.0),
        "Abs" => f64::abs,
        "Sqrt" => f64::sqrt,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Round" => f64::round_ties_even,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Sin" => f64::sin,
        "Cos" => f64::cos,
        "Reciprocal" => |v| 1.0 / v,
        "Sign" => |v| {
            if v > 0.0 {
                1.0
            } else if v < 0.0 {
                -1.0
            } else {
                v
            }
        },
        _ => return None,
    })
}

/// A function of two, of which the last argument says whether they are whole numbers.
type Pairwise = fn(f64, f64, bool) -> f64;

/// A function of two, and whether it compares; its last argument says that the operands are whole numbers.
fn binary(operator: &str) -> Option<(Pairwise, bool)> {
    Some(match operator {
        "Add" | "Sum" => (|a, b, _| a + b, false),
        "Sub" => (|a, b, _| a - b, false),
        "Mul" => (|a, b, _| a * b, false),
        "Div" => (|a, b, whole| if whole { (a / b).trunc() } else { a / b }, false),
        "Mod" => (|a, b, _| a - b * (a / b).floor(), false),
        "Pow" => (|a, b, _| a.powf(b), false),
        "Min" => (|a, b, _| a.min(b), false),
        "Max" => (|a, b, _| a.max(b), false),
        "Equal" => (|a, b, _| f64::from(a == b), true),
        "Less" => (|a, b, _| f64::from(a < b), true),
        "LessOrEqual" => (|a, b, _| f64::from(a <= b), true),
        "Greater" => (|a, b, _| f64::from(a > b), true),
        "GreaterOrEqual" => (|a, b, _| f64::from(a >= b), true),
        "And" => (|a, b, _| f64::from(a != 0.0 && b != 0.0), true),
        "Or" => (|a, b, _| f64::from(a != 0.0 || b != 0.0), true),
        "Xor" => (|a, b, _| f64::from((a != 0.0) != (b != 0.0)), true),
        _ => return None,
    })
}
