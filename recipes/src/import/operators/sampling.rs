//! Values between places: AffineGrid makes the places, and GridSample reads there.

use super::contraction::contraction;
use super::layout::part;
use super::places::{at_elements, whole_axes};
use super::pointwise::{one, rounded};
use crate::import::constant::ConstantTensor;
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::Out;
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

/// A place that is read, as the text of its index by axis, and the texts of its weights.
type WeightedPlace = (Vec<(usize, String)>, Vec<String>);

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("AffineGrid", affine_grid), ("GridSample", grid_sample)];

/// grid[n,p…,d] = Σ theta[n,d,k] · place[p…,k], where a place is x, y, (z,) 1.
fn affine_grid(node: &mut OnnxNode) -> Results {
    let theta = node.view(0)?;
    let sizes = node.numbers(1)?.unwrap_or_default();
    let sizes: Vec<usize> = sizes.iter().skip(2).map(|n| (*n).max(0) as usize).collect();
    let spatial = sizes.len();
    if theta.shape().get(1..) != Some(&[spatial, spatial + 1][..]) {
        return UnsupportedNode::form(format!("matrices of the shape {:?} do not fit {spatial} axes", theta.shape()));
    }
    let corners = node.int("align_corners", 0) != 0;
    let coordinate = |place: usize, size: usize| match (corners, size) {
        (true, 1) => 0.0,
        (true, size) => 2.0 * place as f64 / (size - 1) as f64 - 1.0,
        (false, size) => (2 * place + 1) as f64 / size as f64 - 1.0,
    };
    let count: usize = sizes.iter().product();
    let mut values = Vec::with_capacity(count * (spatial + 1));
    for n in 0..count {
        // Innermost first, as a grid has them.
        let mut left = n;
        for size in sizes.iter().rev() {
            values.push(coordinate(left % size, *size));
            left /= size;
        }
        values.push(1.0);
    }
    let name = format!("{}_places", node.proto.output.first().cloned().unwrap_or_default());
    let shape = [sizes.as_slice(), &[spatial + 1]].concat();
    let known = node.import.known(&name, ConstantTensor::real(theta.element, shape, values));
    let places = node.operand(known)?;
    let (direction, summed) = (spatial + 1, spatial + 2);
    let own: Vec<usize> = (1..=spatial).chain([summed]).collect();
    let kept: Vec<usize> = (0..=direction).collect();
    one(contraction(node, Out::Result(0), &[(places, own), (theta, vec![0, direction, summed])], &kept))
}

/// How a place between elements is read.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

impl Mode {
    /// Neighbours of a place rounded down.
    fn neighbours(self) -> &'static [i64] {
        match self {
            Mode::Nearest => &[0],
            Mode::Linear => &[0, 1],
            Mode::Cubic => &[-1, 0, 1, 2],
        }
    }

    /// The weight of a neighbour; `r` is how far the place lies behind what it is rounded down to.
    fn weight(self, neighbour: i64, r: &str) -> String {
        // Keys, "Cubic Convolution Interpolation for Digital Image Processing" (1981), with a = −0.75.
        let near = |t: &str| format!("((1.25 * ({t}) - 2.25) * ({t}) * ({t}) + 1)");
        let far = |t: &str| format!("(((3.75 - 0.75 * ({t})) * ({t}) - 6) * ({t}) + 3)");
        match (self, neighbour) {
            (Mode::Nearest, _) => "1".into(),
            (Mode::Linear, 0) => format!("(1 - {r})"),
            (Mode::Linear, _) => r.to_string(),
            (Mode::Cubic, -1) => far(&format!("1 + {r}")),
            (Mode::Cubic, 0) => near(r),
            (Mode::Cubic, 1) => near(&format!("1 - {r}")),
            (Mode::Cubic, _) => far(&format!("2 - {r}")),
        }
    }
}

/// What is read outside of a tensor.
#[derive(Clone, Copy, PartialEq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// An axis that is sampled: its size, and the ends at which places are reflected.
struct Sampled {
    size: usize,
    low: f64,
    high: f64,
}

impl Sampled {
    /// A place reflected at the ends as often as it takes.
    fn reflected(&self, place: &str) -> String {
        let (low, width) = (self.low, self.high - self.low);
        if width <= 0.0 {
            return format!("0 * {place}");
        }
        let period = 2.0 * width;
        let within = format!("(({place}) - {low:?} - {period:?} * floor((({place}) - {low:?}) / {period:?}))");
        format!("({low:?} + min({within}, {period:?} - {within}))").replace("- -", "+ ")
    }

    /// The place of an element that is read for this one, which may lie outside.
    fn inside(&self, place: &str, padding: Padding) -> String {
        let last = self.size - 1;
        let place = if padding == Padding::Reflection { self.reflected(place) } else { place.to_string() };
        format!("max(0, min({last}, {place}))")
    }
}

/// y[n,c,p…] = Σ w[n,p…] · x[n,c,q[n,p…]…] over the neighbours q of the place that the grid has.
fn grid_sample(node: &mut OnnxNode) -> Results {
    let (x, grid) = (node.view(0)?, node.view(1)?);
    let spatial = x.axes.len().saturating_sub(2);
    if spatial == 0 || grid.axes.len() != spatial + 2 || grid.axes[spatial + 1].size != spatial {
        return UnsupportedNode::form(format!("a grid of the shape {:?} does not fit an operand of {:?}", grid.shape(), x.shape()));
    }
    let mode = match node.string("mode", "linear") {
        "nearest" => Mode::Nearest,
        "linear" | "bilinear" => Mode::Linear,
        "cubic" | "bicubic" => Mode::Cubic,
        other => return UnsupportedNode::form(format!("the mode `{other}` is not supported; nearest, linear and cubic are")),
    };
    let padding = match node.string("padding_mode", "zeros") {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => return UnsupportedNode::form(format!("the padding `{other}` is not supported; zeros, border and reflection are")),
    };
    let corners = node.int("align_corners", 0) != 0;
    let x = whole_axes(node, &x, 2..2 + spatial)?;
    // For each axis and neighbour: its place, and its weight if it is not 1.
    let mut each: Vec<Vec<(DigitView, Option<DigitView>)>> = vec![];
    for s in 0..spatial {
        let size = x.axes[2 + s].size;
        let edge = if corners { 0.0 } else { 0.5 };
        let along = Sampled { size, low: -edge, high: size as f64 - 1.0 + edge };
        // The innermost axis stands first in the grid.
        let parts: Vec<(i64, i64, usize)> = (grid.shape().iter().enumerate())
            .map(|(a, size)| if a == spatial + 1 { ((spatial - 1 - s) as i64, 1, 1) } else { (0, 1, *size) })
            .collect();
        let own = part(node, grid.clone(), &parts)?.squeezed(&[spatial + 1]);
        let element = grid.element;
        let step = |node: &mut OnnxNode, from: &DigitView, f: &dyn Fn(&str) -> String| {
            node.pointwise(Out::Part("place"), std::slice::from_ref(from), element, |t| f(&t[0]))
        };
        let mut place = step(node, &own, &|g| match corners {
            true => format!("({g} + 1) / 2 * {}", size - 1),
            false => format!("(({g} + 1) * {size} - 1) / 2"),
        })?;
        if mode == Mode::Nearest {
            place = step(node, &place, &rounded)?;
        }
        // Places beyond the ends, and these alone, are moved as a whole before neighbours are looked for.
        let (low, high) = (along.low, along.high);
        place = match padding {
            Padding::Zeros => place,
            Padding::Border => step(node, &place, &|p| format!("where({p} < {low:?}, 0, where({p} > {high:?}, {}, {p}))", size - 1))?,
            Padding::Reflection => step(node, &place, &|p| along.reflected(p))?,
        };
        let mut neighbours = vec![];
        for neighbour in mode.neighbours() {
            let at = |p: &str| format!("(floor({p}) + {neighbour})").replace("+ -", "- ").replace(" + 0)", ")");
            let from = std::slice::from_ref(&place);
            let index = node.pointwise(Out::Part("at"), from, ElementType::I64, |t| along.inside(&at(&t[0]), padding))?;
            let weighed = mode != Mode::Nearest || padding == Padding::Zeros;
            let weight = weighed.then(|| {
                node.pointwise(Out::Part("weight"), from, x.element, |t| {
                    let p = &t[0];
                    let weight = mode.weight(*neighbour, &format!("({p} - floor({p}))"));
                    match padding {
                        Padding::Zeros => format!("where({0} < 0, 0, where({0} > {1}, 0, {weight}))", at(p), size - 1),
                        _ => weight,
                    }
                })
            });
            neighbours.push((index, weight.transpose()?));
        }
        each.push(neighbours);
    }
    // Labels: batch, channel, the axes of the result, and those that are sampled.
    let kept: Vec<usize> = (0..2 + spatial).collect();
    let of_places: Vec<usize> = std::iter::once(0).chain(2..2 + spatial).collect();
    let own: Vec<usize> = [0, 1].into_iter().chain((0..spatial).map(|s| 50 + s)).collect();
    let others = (0..spatial).fold(x.clone(), |view, _| view.squeezed_out(2));
    let mut operands = vec![(others, vec![0, 1])];
    for (index, weight) in each.iter().flatten() {
        operands.push((index.clone(), of_places.clone()));
        operands.extend(weight.iter().map(|weight| (weight.clone(), of_places.clone())));
    }
    let labelled = node.labelled(&operands, &kept)?;
    let mut texts = labelled.texts.iter().skip(1).cloned();
    let each: Vec<Vec<(String, Option<String>)>> = (each.iter())
        .map(|of| of.iter().map(|(_, w)| (texts.next().unwrap_or_default(), w.as_ref().and_then(|_| texts.next()))).collect())
        .collect();
    let mut terms: Vec<WeightedPlace> = vec![(vec![], vec![])];
    for (s, neighbours) in each.iter().enumerate() {
        terms = (terms.iter())
            .flat_map(|(places, weights)| {
                neighbours.iter().map(move |(index, weight)| {
                    let weights = weights.iter().chain(weight).cloned().collect();
                    ([places.as_slice(), &[(2 + s, index.clone())]].concat(), weights)
                })
            })
            .collect();
    }
    let products: Vec<String> = (terms.iter())
        .map(|(places, weights)| {
            let read = at_elements(node, &x, &own, &labelled, places);
            weights.iter().chain([&read]).cloned().collect::<Vec<_>>().join(" * ")
        })
        .collect();
    let axes = kept.iter().map(|label| labelled.indices[label].clone()).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &products.join(" + "), x.element))])
}
