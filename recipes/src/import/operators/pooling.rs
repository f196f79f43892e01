//! Pooling: maxima, means and norms over windows.

use super::convolution::{AxisWindow, reached, windows};
use super::pointwise::{one, powered, root};
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Out, literal, reduced};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("AveragePool", average),
    ("GlobalAveragePool", |n| global(n, |x, over| reduced("mean", x, over))),
    ("GlobalLpPool", |n| {
        let p = n.int("p", 2);
        global(n, |x, over| root(&reduced("sum", &powered(x, p), over), p))
    }),
    ("GlobalMaxPool", |n| global(n, |x, over| reduced("max", x, over))),
    ("LpPool", |n| {
        let p = n.int("p", 2);
        let pooled = pool(n, "0")?;
        let over: Vec<&StepIndex> = pooled.over.iter().collect();
        let expression = root(&reduced("sum", &powered(&pooled.read, p), &over), p);
        Ok(vec![GraphValue::View(n.define(Out::Result(0), pooled.left, &expression, pooled.element))])
    }),
    ("MaxPool", max),
];

/// An operand under its windows.
struct Pooled {
    read: String,
    left: Vec<Vec<StepIndex>>,
    over: Vec<StepIndex>,
    windows: Vec<AxisWindow>,
    /// The indices of the result's places and of the windows' ones.
    places: Vec<(Option<StepIndex>, Option<StepIndex>)>,
    element: ElementType,
    shape: Vec<usize>,
}

fn pool(node: &mut OnnxNode, fill: &str) -> Result<Pooled, UnsupportedNode> {
    let x = node.view(0)?;
    let shape = x.shape();
    if shape.len() < 3 {
        return UnsupportedNode::form(format!("its operand has {} axes", shape.len()));
    }
    let widths: Vec<usize> = node.ints("kernel_shape").unwrap_or_default().iter().map(|w| *w as usize).collect();
    let windows = windows(node, &shape[2..], &widths)?;
    let x = reached(node, &x, &windows)?;
    let labelled = node.labelled(&[(DigitView { axes: x.axes[..2].to_vec(), ..x.clone() }, vec![0, 1])], &[0, 1])?;
    let mut at = node.places(&x, &[0, 1], &labelled);
    let mut left = vec![labelled.indices[&0].clone(), labelled.indices[&1].clone()];
    let (mut over, mut places) = (vec![], vec![]);
    for (axis, window) in x.axes[2..].iter().zip(&windows) {
        let p = if window.count == 1 { None } else { Some(node.index(window.count)) };
        let r = if window.width == 1 { None } else { Some(node.index(window.width)) };
        if let [digit] = axis.digits.as_slice() {
            at.insert(digit.id, window.place(p.as_ref(), r.as_ref()));
        }
        left.push(p.iter().cloned().collect());
        over.extend(r.clone());
        places.push((p, r));
    }
    let fill = if windows.iter().all(AxisWindow::inside) { None } else { Some(fill) };
    Ok(Pooled { read: node.text(&x, &at, fill), left, over, windows, places, element: x.element, shape })
}

fn max(node: &mut OnnxNode) -> Results {
    let pooled = pool(node, "-inf")?;
    let over: Vec<&StepIndex> = pooled.over.iter().collect();
    let expression = reduced("max", &pooled.read, &over);
    let result = node.define(Out::Result(0), pooled.left.clone(), &expression, pooled.element);
    if !node.wanted(1) {
        return Ok(vec![GraphValue::View(result)]);
    }
    // The place of the first largest element, counted over the whole tensor.
    let again = pool(node, "-inf")?;
    let over: Vec<&StepIndex> = again.over.iter().collect();
    let labels: Vec<usize> = (0..again.left.len()).collect();
    let labelled = crate::import::step::Labelled { indices: labels.iter().copied().zip(again.left.clone()).collect(), texts: vec![] };
    let largest = node.text(&result, &node.places(&result, &labels, &labelled), None);
    let sizes = &again.shape;
    let rows = node.int("storage_order", 0) == 0;
    let spatial = sizes.len() - 2;
    let mut strides = vec![1usize; spatial];
    for n in 1..spatial {
        let (to, from) = if rows { (spatial - 1 - n, spatial - n) } else { (n, n - 1) };
        strides[to] = strides[from] * sizes[2 + from];
    }
    let image: usize = sizes[2..].iter().product();
    let mut terms = vec![];
    let mut below = image * sizes[1];
    for axis in 0..2 {
        let mut inner = if axis == 0 { below } else { image };
        for index in again.left[axis].iter().rev() {
            terms.push(format!("{inner} * {}", index.name));
            inner *= index.size;
        }
        below = image;
    }
    for (n, ((p, r), window)) in again.places.iter().zip(&again.windows).enumerate() {
        let mut parts = vec![];
        parts.extend(p.iter().map(|p| format!("{} * {}", window.stride, p.name)));
        parts.extend(r.iter().map(|r| format!("{} * {}", window.dilation, r.name)));
        let start = if parts.is_empty() { "0".into() } else { parts.join(" + ") };
        terms.push(format!("{} * ({start} - {})", strides[n], window.before));
    }
    let operand = format!("where({} == {largest}, {}, inf)", again.read, terms.join(" + "));
    let expression = reduced("min", &operand, &over);
    let places = node.define(Out::Result(1), again.left, &expression, ElementType::I64);
    Ok(vec![GraphValue::View(result), GraphValue::View(places)])
}

fn average(node: &mut OnnxNode) -> Results {
    let pooled = pool(node, "0")?;
    let over: Vec<&StepIndex> = pooled.over.iter().collect();
    let counts_padding = node.int("count_include_pad", 0) != 0;
    let mut divisors = vec![];
    for (window, (p, r)) in pooled.windows.iter().zip(&pooled.places) {
        let (low, high) = match counts_padding {
            true => (-window.before, window.size as i64 + window.after),
            false => (0, window.size as i64),
        };
        let start = |n: i64| n * window.stride - window.before;
        let end = |n: i64| start(n) + (window.width as i64 - 1) * window.dilation;
        let last = window.count as i64 - 1;
        if start(0) >= low && end(last) < high {
            divisors.push(window.width.to_string());
            continue;
        }
        let from = match p {
            Some(p) => format!("{} * {} - {}", window.stride, p.name, window.before),
            None => format!("0 - {}", window.before),
        };
        divisors.push(match (window.dilation, r) {
            (_, None) => "1".into(),
            (1, _) => format!("(min({from} + {}, {high}) - max({from}, {}))", window.width, literal(low as f64, ElementType::I64)),
            (dilation, Some(r)) => {
                let place = format!("{from} + {dilation} * {}", r.name);
                format!(
                    "sum(where({place} >= {}, where({place} < {high}, 1, 0), 0), over: {})",
                    literal(low as f64, ElementType::I64),
                    r.name
                )
            }
        });
    }
    let all_inside = divisors.iter().all(|d| d.parse::<usize>().is_ok());
    let expression = match all_inside {
        true => reduced("mean", &pooled.read, &over),
        false => format!("{} / ({})", reduced("sum", &pooled.read, &over), divisors.join(" * ")),
    };
    Ok(vec![GraphValue::View(node.define(Out::Result(0), pooled.left, &expression, pooled.element))])
}

fn global(node: &mut OnnxNode, f: impl FnOnce(&str, &[&StepIndex]) -> String) -> Results {
    let x = node.view(0)?;
    let axes: Vec<usize> = (2..x.axes.len()).collect();
    one(super::reduction::over(node, Out::Result(0), &x, &axes, true, f))
}
