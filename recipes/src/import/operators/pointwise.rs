//! Functions of elements at one place: arithmetic, comparisons, activations, casts.

use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::{Out, literal};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("Abs", |n| unary(n, |x| format!("abs({x})"))),
    ("Acosh", |n| unary(n, |x| format!("log({x} + sqrt({x} * {x} - 1))"))),
    ("Acos", |n| unary(n, |x| format!("acos({x})"))),
    ("Add", |n| pair(n, |a, b| format!("{a} + {b}"))),
    ("And", |n| truth(n, |a, b| format!("{a} * {b}"))),
    ("Asin", |n| unary(n, |x| format!("asin({x})"))),
    // Of the magnitude, whose logarithm loses no digits; the function is odd.
    ("Asinh", |n| {
        unary(n, |x| {
            let a = format!("abs({x})");
            format!("where({x} < 0, -1, 1) * log1p({a} + {a} * {a} / (1 + sqrt({a} * {a} + 1)))")
        })
    }),
    ("Atan", |n| unary(n, |x| format!("atan({x})"))),
    ("Atanh", |n| unary(n, |x| format!("0.5 * log1p(2 * {x} / (1 - {x}))"))),
    ("Cast", cast),
    ("CastLike", cast),
    ("Ceil", |n| unary(n, |x| format!("-floor(-{x})"))),
    ("Celu", |n| {
        let alpha = real(n, "alpha", 1.0);
        unary(n, |x| format!("max(0, {x}) + min(0, {alpha} * (exp(min({x}, 0) / {alpha}) - 1))"))
    }),
    ("Clip", clip),
    ("Cos", |n| unary(n, |x| format!("cos({x})"))),
    ("Cosh", |n| unary(n, |x| format!("0.5 * exp({x}) + 0.5 * exp(-{x})"))),
    ("Div", divide),
    ("Dropout", dropout),
    ("Elu", |n| {
        let alpha = real(n, "alpha", 1.0);
        unary(n, |x| format!("where({x} < 0, {alpha} * (exp(min({x}, 0)) - 1), {x})"))
    }),
    ("Equal", |n| truth(n, |a, b| format!("{a} == {b}"))),
    ("Erf", |n| unary(n, |x| format!("erf({x})"))),
    ("Exp", |n| unary(n, |x| format!("exp({x})"))),
    ("Floor", |n| unary(n, |x| format!("floor({x})"))),
    ("Gelu", |n| {
        let form = if n.string("approximate", "none") == "tanh" { "tanh" } else { "erf" };
        unary(n, |x| format!("gelu({x}, form: {form})"))
    }),
    ("Greater", |n| truth(n, |a, b| format!("{a} > {b}"))),
    ("GreaterOrEqual", |n| truth(n, |a, b| format!("{a} >= {b}"))),
    ("HardSigmoid", |n| {
        let (alpha, beta) = (real(n, "alpha", 0.2), real(n, "beta", 0.5));
        unary(n, |x| format!("max(0, min(1, {alpha} * {x} + {beta}))"))
    }),
    ("HardSwish", |n| unary(n, |x| format!("{x} * max(0, min(1, {x} / 6 + 0.5))"))),
    ("Identity", |n| Ok(vec![n.inputs.first().cloned().unwrap_or(GraphValue::Absent)])),
    ("IsInf", |n| {
        let (negative, positive) = (n.int("detect_negative", 1) != 0, n.int("detect_positive", 1) != 0);
        let x = n.view(0)?;
        one(n.pointwise(Out::Result(0), &[x], ElementType::Bool, |t| match (negative, positive) {
            (true, true) => format!("abs({}) == inf", t[0]),
            (true, false) => format!("{} == -inf", t[0]),
            (false, true) => format!("{} == inf", t[0]),
            (false, false) => format!("where({} == inf, 0, 0)", t[0]),
        }))
    }),
    ("IsNaN", |n| {
        let x = n.view(0)?;
        one(n.pointwise(Out::Result(0), &[x], ElementType::Bool, |t| format!("{0} != {0}", t[0])))
    }),
    ("LeakyRelu", |n| {
        let alpha = real(n, "alpha", 0.01);
        unary(n, |x| format!("where({x} < 0, {alpha} * {x}, {x})"))
    }),
    ("Less", |n| truth(n, |a, b| format!("{a} < {b}"))),
    ("LessOrEqual", |n| truth(n, |a, b| format!("{a} <= {b}"))),
    ("Log", |n| unary(n, |x| format!("log({x})"))),
    ("Max", |n| several(n, |a, b| format!("max({a}, {b})"))),
    ("Mean", |n| {
        let count = n.inputs.len();
        let operands = (0..count).map(|i| n.view(i)).collect::<Result<Vec<_>, _>>()?;
        let element = first(&operands);
        one(n.pointwise(Out::Result(0), &operands, element, |t| format!("({}) / {count}", t.join(" + "))))
    }),
    ("Min", |n| several(n, |a, b| format!("min({a}, {b})"))),
    ("Mish", |n| unary(n, |x| format!("{x} * tanh({})", softplus(x)))),
    ("Mod", modulo),
    ("Mul", |n| pair(n, |a, b| format!("{a} * {b}"))),
    ("Neg", |n| unary(n, |x| format!("-{x}"))),
    ("Not", |n| unary(n, |x| format!("1 - {x}"))),
    ("Or", |n| truth(n, |a, b| format!("max({a}, {b})"))),
    ("Pow", power),
    ("PRelu", |n| pair(n, |x, s| format!("where({x} < 0, {s} * {x}, {x})"))),
    ("Reciprocal", |n| unary(n, |x| format!("1 / {x}"))),
    ("Relu", |n| unary(n, |x| format!("relu({x})"))),
    ("Round", |n| unary(n, rounded)),
    ("Selu", |n| {
        let (alpha, gamma) = (real(n, "alpha", 1.673_263_2), real(n, "gamma", 1.050_701));
        unary(n, |x| format!("{gamma} * where({x} > 0, {x}, {alpha} * (exp(min({x}, 0)) - 1))"))
    }),
    ("Shrink", |n| {
        let (bias, lambda) = (real(n, "bias", 0.0), real(n, "lambd", 0.5));
        unary(n, |x| format!("where({x} < -{lambda}, {x} + {bias}, where({x} > {lambda}, {x} - {bias}, 0))"))
    }),
    ("Sigmoid", |n| unary(n, |x| format!("sigmoid({x})"))),
    ("Sign", |n| unary(n, |x| format!("where({x} > 0, 1, where({x} < 0, -1, {x}))"))),
    ("Sin", |n| unary(n, |x| format!("sin({x})"))),
    ("Sinh", |n| unary(n, |x| format!("0.5 * exp({x}) - 0.5 * exp(-{x})"))),
    ("Softplus", |n| unary(n, softplus)),
    ("Softsign", |n| unary(n, |x| format!("{x} / (1 + abs({x}))"))),
    ("Sqrt", |n| unary(n, |x| format!("sqrt({x})"))),
    ("Sub", |n| pair(n, |a, b| format!("{a} - {b}"))),
    ("Sum", |n| several(n, |a, b| format!("{a} + {b}"))),
    ("Swish", |n| {
        let alpha = real(n, "alpha", 1.0);
        unary(n, |x| if alpha == "1" { format!("silu({x})") } else { format!("{x} * sigmoid({alpha} * {x})") })
    }),
    ("Tan", |n| unary(n, |x| format!("sin({x}) / cos({x})"))),
    ("Tanh", |n| unary(n, |x| format!("tanh({x})"))),
    ("ThresholdedRelu", |n| {
        let alpha = real(n, "alpha", 1.0);
        unary(n, |x| format!("where({x} > {alpha}, {x}, 0)"))
    }),
    ("Where", |n| {
        let operands = [n.view(0)?, n.view(1)?, n.view(2)?];
        let element = operands[1].element;
        one(n.pointwise(Out::Result(0), &operands, element, |t| format!("where({}, {}, {})", t[0], t[1], t[2])))
    }),
    ("Xor", |n| truth(n, |a, b| format!("{a} != {b}"))),
];

pub fn one(view: Result<DigitView, UnsupportedNode>) -> Results {
    Ok(vec![GraphValue::View(view?)])
}

/// A real attribute as a step writes it.
pub fn real(node: &OnnxNode, name: &str, default: f32) -> String {
    literal(node.float(name, default), ElementType::F64)
}

/// log(1 + exp(x)) without exponentials that overflow.
pub fn softplus(x: &str) -> String {
    format!("(max({x}, 0) + log1p(exp(-abs({x}))))")
}

/// To the nearest whole number, and to the even one of two.
pub fn rounded(x: &str) -> String {
    let up = format!("floor({x} + 0.5)");
    format!("{up} - where({x} + 0.5 == {up}, {up} - 2 * floor({up} / 2), 0)")
}

/// Without what stands after the point.
pub fn truncated(x: &str) -> String {
    format!("where({x} < 0, -floor(-({x})), floor({x}))")
}

fn first(operands: &[DigitView]) -> ElementType {
    operands.first().map_or(ElementType::F32, |view| view.element)
}

fn unary(node: &mut OnnxNode, f: impl FnOnce(&str) -> String) -> Results {
    let x = node.view(0)?;
    let element = x.element;
    one(node.pointwise(Out::Result(0), &[x], element, |t| f(&t[0])))
}

fn pair(node: &mut OnnxNode, f: impl FnOnce(&str, &str) -> String) -> Results {
    let operands = [node.view(0)?, node.view(1)?];
    let element = first(&operands);
    one(node.pointwise(Out::Result(0), &operands, element, |t| wrapped(f(&t[0], &t[1]), element)))
}

fn truth(node: &mut OnnxNode, f: impl FnOnce(&str, &str) -> String) -> Results {
    let operands = [node.view(0)?, node.view(1)?];
    one(node.pointwise(Out::Result(0), &operands, ElementType::Bool, |t| f(&t[0], &t[1])))
}

fn several(node: &mut OnnxNode, f: impl Fn(&str, &str) -> String) -> Results {
    let operands = (0..node.inputs.len()).map(|n| node.view(n)).collect::<Result<Vec<_>, _>>()?;
    let element = first(&operands);
    one(node.pointwise(Out::Result(0), &operands, element, |t| {
        let (head, rest) = t.split_first().map_or(("0".to_string(), &[][..]), |(head, rest)| (head.clone(), rest));
        rest.iter().fold(head, |all, next| f(&all, next))
    }))
}

/// A whole number as its type holds it: what is beyond starts again from the other end.
pub fn wrapped(value: String, element: ElementType) -> String {
    match element {
        ElementType::U8 => format!("({value}) - 256 * floor(({value}) / 256)"),
        ElementType::I8 => format!("({value}) - 256 * floor((({value}) + 128) / 256)"),
        ElementType::U16 => format!("({value}) - 65536 * floor(({value}) / 65536)"),
        ElementType::I16 => format!("({value}) - 65536 * floor((({value}) + 32768) / 65536)"),
        ElementType::U32 => format!("({value}) - 4294967296 * floor(({value}) / 4294967296)"),
        _ => value,
    }
}

/// Whole numbers are divided towards 0.
fn divide(node: &mut OnnxNode) -> Results {
    let element = node.view(0)?.element;
    pair(node, |a, b| match element {
        e if e.is_float() => format!("{a} / {b}"),
        e if e.is_signed() => truncated(&format!("{a} / {b}")),
        _ => format!("floor({a} / {b})"),
    })
}

fn modulo(node: &mut OnnxNode) -> Results {
    let as_c = node.int("fmod", 0) != 0;
    let real = node.view(0)?.element.is_float();
    pair(node, |a, b| match as_c {
        true if real => format!("where(abs({b}) == inf, {a}, {a} - {b} * ({}))", truncated(&format!("{a} / {b}"))),
        true => format!("{a} - {b} * ({})", truncated(&format!("{a} / {b}"))),
        // A divisor without end leaves what has its sign.
        false if real => format!("where(abs({b}) == inf, where({a} * {b} < 0, {b}, {a}), {a} - {b} * floor({a} / {b}))"),
        false => format!("{a} - {b} * floor({a} / {b})"),
    })
}

fn power(node: &mut OnnxNode) -> Results {
    let operands = [node.view(0)?, node.view(1)?];
    let element = first(&operands);
    one(node.pointwise(Out::Result(0), &operands, element, |t| {
        let power = format!("pow({}, {})", t[0], t[1]);
        if element.is_float() { power } else { truncated(&power) }
    }))
}

fn clip(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let (low, high) = (node.optional(1)?, node.optional(2)?);
    let element = x.element;
    let mut operands = vec![x];
    let (has_low, has_high) = (low.is_some(), high.is_some());
    operands.extend(low.into_iter().chain(high).map(|bound| bound.squeezed(&(0..bound.axes.len()).collect::<Vec<_>>())));
    if operands.len() == 1 {
        return Ok(vec![GraphValue::View(operands.remove(0))]);
    }
    one(node.pointwise(Out::Result(0), &operands, element, |t| match (has_low, has_high) {
        (true, true) => format!("min(max({}, {}), {})", t[0], t[1], t[2]),
        (true, false) => format!("max({}, {})", t[0], t[1]),
        _ => format!("min({}, {})", t[0], t[1]),
    }))
}

/// A cast of real numbers to whole ones cuts fractions off; narrower floating types are not rounded to, since the recipe stores one type.
fn cast(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let to = match node.proto.op_type.as_str() {
        "CastLike" => match node.constant(1) {
            Some(constant) => constant.element,
            None => node.view(1)?.element,
        },
        _ => node.element("to", x.element)?,
    };
    let from = x.element;
    if to == from || to.is_float() || from == ElementType::Bool {
        return Ok(vec![GraphValue::View(x.typed(to))]);
    }
    one(node.pointwise(Out::Result(0), &[x], to, |t| match (to, from.is_float()) {
        (ElementType::Bool, _) => format!("{} != 0", t[0]),
        (_, true) => wrapped(truncated(&t[0]), to),
        (_, false) => wrapped(t[0].clone(), to),
    }))
}

/// Inference hands the operand on; a mask that is all ones is known.
fn dropout(node: &mut OnnxNode) -> Results {
    let training = match (node.given(2), node.constant(2)) {
        (false, _) => false,
        (true, Some(training)) => training.only() != Some(0.0),
        (true, None) => return Err(node.unknown(2)),
    };
    let ratio = if node.given(1) { node.constant(1).and_then(|c| c.only()) } else { Some(0.5) };
    if training && ratio != Some(0.0) {
        return UnsupportedNode::form("it is in training mode, whose random numbers ONNX does not fix; export the model for inference");
    }
    let x = node.view(0)?;
    let mask = DigitView::number(1.0, ElementType::Bool, &x.shape());
    Ok(vec![GraphValue::View(x), GraphValue::View(mask)])
}

/// |x|ᵖ
pub fn powered(x: &str, p: i64) -> String {
    match p {
        1 => format!("abs({x})"),
        2 => format!("pow({x}, 2)"),
        p => format!("pow(abs({x}), {p})"),
    }
}

/// The p-th root.
pub fn root(x: &str, p: i64) -> String {
    match p {
        1 => x.to_string(),
        2 => format!("sqrt({x})"),
        p => format!("pow({x}, 1 / {p})"),
    }
}
