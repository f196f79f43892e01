//! The operators that a step can call.

use super::names::nearest;
use super::parser::{Argument, Ast, Node};
use super::problem::{Place, Problem};
use super::resolve::{Resolver, binary, product, unary};
use super::value::{Factor, Value};
use sdfg::{Binary, Combine, Scalar, Unary};

/// One operator: how it is called.
struct Signature {
    name: &'static str,
    /// How many operands stand before the options: at least, at most.
    operands: (usize, usize),
    options: &'static [&'static str],
    /// What a person reads when a call does not fit.
    usage: &'static str,
}

const fn scalar(name: &'static str) -> Signature {
    Signature { name, operands: (1, 1), options: &[], usage: "one operand" }
}

const fn norm(name: &'static str) -> Signature {
    Signature {
        name,
        operands: (1, 1),
        options: &["over", "scale", "shift", "eps"],
        usage: "(x, over: i) or (x, over: i, scale: g[i], shift: b[i], eps: 1e-5)",
    }
}

const fn reduction(name: &'static str) -> Signature {
    Signature { name, operands: (1, 1), options: &["over"], usage: "(x, over: i) or (x, over: [i, j])" }
}

const fn extremum(name: &'static str) -> Signature {
    Signature { name, operands: (1, 2), options: &["over"], usage: "two operands, or (x, over: i)" }
}

const SIGNATURES: [Signature; 27] = [
    scalar("exp"),
    scalar("log"),
    scalar("sqrt"),
    scalar("rsqrt"),
    scalar("tanh"),
    scalar("erf"),
    scalar("sigmoid"),
    scalar("abs"),
    scalar("sin"),
    scalar("cos"),
    scalar("floor"),
    scalar("relu"),
    Signature { name: "gelu", operands: (1, 1), options: &["form"], usage: "(x), (x, form: erf) or (x, form: tanh)" },
    Signature { name: "pow", operands: (2, 2), options: &[], usage: "two operands: base and exponent" },
    Signature { name: "where", operands: (3, 3), options: &[], usage: "three operands: condition, value if true, value if not" },
    Signature { name: "size", operands: (1, 1), options: &[], usage: "the name of one dim" },
    Signature { name: "dropout", operands: (1, 1), options: &["rate"], usage: "(x, rate: 0.1)" },
    Signature { name: "softmax", operands: (1, 1), options: &["over"], usage: "(x, over: k)" },
    reduction("sum"),
    reduction("mean"),
    extremum("max"),
    extremum("min"),
    norm("layernorm"),
    norm("batchnorm"),
    norm("instancenorm"),
    norm("groupnorm"),
    norm("normalize"),
];

/// Every operator's name.
pub fn names() -> impl Iterator<Item = &'static str> {
    SIGNATURES.iter().map(|s| s.name)
}

/// The arguments that are expressions: all but `over`, `form` and the dim of `size`.
pub fn operands<'a>(name: &str, arguments: &'a [Argument]) -> impl Iterator<Item = &'a Node> {
    let none = name == "size";
    let plain = |a: &&Argument| a.option.as_ref().is_none_or(|o| !matches!(o.text.as_str(), "over" | "form"));
    arguments.iter().filter(move |a| !none && plain(a)).map(|a| &a.value)
}

/// The indices that a call binds for its operand: those that a reduction sums.
pub fn bound(name: &str, arguments: &[Argument]) -> Vec<String> {
    let reduces = matches!(name, "sum" | "mean" | "max" | "min");
    let over = arguments.iter().find(|a| reduces && a.option.as_ref().is_some_and(|o| o.text == "over"));
    match over.map(|a| &a.value.ast) {
        Some(Ast::Word(index)) => vec![index.clone()],
        Some(Ast::List(indices)) => indices.iter().map(|i| i.text.clone()).collect(),
        _ => Vec::new(),
    }
}

/// A call whose arguments have been sorted out, and who asks.
struct Call<'a, 'r, 'h> {
    resolver: &'r mut Resolver<'h>,
    place: Place,
    name: &'static str,
    operands: Vec<&'a Node>,
    options: &'a [Argument],
    kept: &'a [String],
}

/// The value of a call where the indices `kept` are bound. `None` after an error, which has been reported.
pub fn call(resolver: &mut Resolver, place: Place, name: &str, arguments: &[Argument], kept: &[String]) -> Option<Value> {
    let Some(signature) = SIGNATURES.iter().find(|s| s.name == name) else {
        resolver.problems.add(place, Problem::UnknownOperator { name: name.into(), hint: nearest(name, names()) });
        return None;
    };
    let before = resolver.problems.failures();
    for option in arguments.iter().filter_map(|a| a.option.as_ref()) {
        if !signature.options.contains(&option.text.as_str()) {
            let hint = nearest(&option.text, signature.options.iter().copied());
            resolver.problems.add(option.place, Problem::UnknownOption { operator: name.into(), option: option.text.clone(), hint });
        }
    }
    let operands: Vec<&Node> = arguments.iter().filter(|a| a.option.is_none()).map(|a| &a.value).collect();
    let (least, most) = signature.operands;
    let twice = arguments.iter().enumerate().any(|(n, a)| a.option.is_some() && arguments.iter().take(n).any(|b| same_option(a, b)));
    if operands.len() < least || operands.len() > most || twice {
        resolver.problems.add(place, Problem::Arguments { operator: name.into(), expected: signature.usage.into() });
    }
    if resolver.problems.failures() > before {
        return None;
    }
    let mut call = Call { resolver, place, name: signature.name, operands, options: arguments, kept };
    let value = call.value();
    if value.is_none() && call.resolver.problems.failures() == before {
        call.resolver.problems.add(place, Problem::Arguments { operator: name.into(), expected: signature.usage.into() });
    }
    value
}

fn same_option(a: &Argument, b: &Argument) -> bool {
    matches!((&a.option, &b.option), (Some(a), Some(b)) if a.text == b.text)
}

impl Call<'_, '_, '_> {
    fn option(&self, name: &str) -> Option<&Node> {
        self.options.iter().find(|a| a.option.as_ref().is_some_and(|o| o.text == name)).map(|a| &a.value)
    }

    fn operand(&mut self, n: usize) -> Option<Value> {
        let node = *self.operands.get(n)?;
        self.resolver.value(node, self.kept)
    }

    fn value(&mut self) -> Option<Value> {
        let x = || Scalar::input("x");
        match self.name {
            "exp" => Some(unary(Unary::Exp, self.operand(0)?)),
            "log" => Some(unary(Unary::Log, self.operand(0)?)),
            "sqrt" => Some(unary(Unary::Sqrt, self.operand(0)?)),
            "rsqrt" => Some(unary(Unary::Rsqrt, self.operand(0)?)),
            "erf" => Some(unary(Unary::Erf, self.operand(0)?)),
            "abs" => Some(unary(Unary::Abs, self.operand(0)?)),
            "sin" => Some(unary(Unary::Sin, self.operand(0)?)),
            "cos" => Some(unary(Unary::Cos, self.operand(0)?)),
            "floor" => Some(unary(Unary::Floor, self.operand(0)?)),
            "tanh" => self.named("tanh", Scalar::unary(Unary::Tanh, x())),
            "sigmoid" => self.named("sigmoid", Scalar::unary(Unary::Sigmoid, x())),
            "relu" => self.named("relu", Scalar::binary(Binary::Max, x(), Scalar::Const(0.0))),
            "gelu" => self.gelu(),
            "pow" => self.pair(Binary::Pow),
            "max" | "min" if self.operands.len() == 2 && self.option("over").is_none() => {
                self.pair(if self.name == "max" { Binary::Max } else { Binary::Min })
            }
            "where" => {
                let (condition, a, b) = (self.operand(0), self.operand(1), self.operand(2));
                match (condition?, a?, b?) {
                    (Value::Scalar(c), Value::Scalar(a), Value::Scalar(b)) => Some(Value::Scalar(Scalar::select(c, a, b))),
                    (c, a, b) => Some(Value::Select(Box::new(c), Box::new(a), Box::new(b))),
                }
            }
            "size" => self.size(),
            "dropout" => self.dropout(),
            "softmax" => self.softmax(),
            "sum" | "mean" | "max" | "min" => self.reduce(),
            _ => self.normalize(),
        }
    }

    fn pair(&mut self, op: Binary) -> Option<Value> {
        let (a, b) = (self.operand(0), self.operand(1));
        Some(binary(op, a?, b?))
    }

    fn named(&mut self, label: &'static str, code: Scalar) -> Option<Value> {
        // Only a leaf is written into the code: longer arguments would be repeated as often as `x` is.
        Some(match self.operand(0)? {
            Value::Scalar(leaf @ (Scalar::Const(_) | Scalar::Index(_))) => Value::Scalar(code.inline("x", &leaf)),
            of => Value::Named { label, code, of: Box::new(of) },
        })
    }

    fn gelu(&mut self) -> Option<Value> {
        let x = || Scalar::input("x");
        let form = match self.option("form").map(|node| &node.ast) {
            None => "erf",
            Some(Ast::Word(word)) => word.as_str(),
            Some(_) => return None,
        };
        let inner = match form {
            "erf" => Scalar::unary(Unary::Erf, x() * Scalar::Const(std::f64::consts::FRAC_1_SQRT_2)),
            "tanh" => {
                let cubic = Scalar::Const(0.044715) * x() * x() * x();
                let slope = (2.0 / std::f64::consts::PI).sqrt();
                Scalar::unary(Unary::Tanh, Scalar::Const(slope) * (x() + cubic))
            }
            _ => return None,
        };
        self.named("gelu", Scalar::Const(0.5) * x() * (Scalar::Const(1.0) + inner))
    }

    fn size(&mut self) -> Option<Value> {
        let node = self.operands.first()?;
        let Ast::Word(dim) = &node.ast else { return None };
        match self.resolver.header.dims.get(dim) {
            Some(size) => Some(Value::Scalar(Scalar::Index(size.clone()))),
            None => {
                let problem = self.resolver.header.unknown_dim(dim);
                self.resolver.problems.add(node.place, problem);
                None
            }
        }
    }

    /// An option's value where it must be a number.
    fn number(&mut self, name: &str) -> Option<(Place, f64)> {
        let node = self.option(name)?.clone();
        let value = self.resolver.value(&node, self.kept)?;
        let number = if let Value::Scalar(s) = &value { constant(s) } else { None };
        if number.is_none() {
            self.resolver.problems.add(node.place, Problem::NotConstant(format!("`{name}`")));
        }
        number.map(|n| (node.place, n))
    }

    fn dropout(&mut self) -> Option<Value> {
        let of = self.operand(0);
        let (place, rate) = self.number("rate")?;
        if !(0.0..1.0).contains(&rate) {
            self.resolver.problems.add(place, Problem::Rate(rate));
            return None;
        }
        // What drops nothing is no operator: it would draw random numbers to no effect.
        if rate == 0.0 || !self.resolver.header.dropout {
            return of;
        }
        Some(Value::Dropout { rate, of: Box::new(of?) })
    }

    /// The indices after `over:`, each a dim, each once.
    fn over(&mut self) -> Option<Vec<(Place, String)>> {
        let node = self.option("over")?.clone();
        let names: Vec<(Place, String)> = match &node.ast {
            Ast::Word(name) => vec![(node.place, name.clone())],
            Ast::List(names) if !names.is_empty() => names.iter().map(|n| (n.place, n.text.clone())).collect(),
            _ => return None,
        };
        let before = self.resolver.problems.failures();
        for (n, (place, name)) in names.iter().enumerate() {
            if !self.resolver.is_index(name) {
                let problem = self.resolver.header.unknown_dim(name);
                self.resolver.problems.add(*place, problem);
            } else if names.iter().take(n).any(|(_, other)| other == name) {
                self.resolver.problems.add(*place, Problem::RepeatedIndex { tensor: "over".into(), index: name.clone() });
            }
        }
        (self.resolver.problems.failures() == before).then_some(names)
    }

    /// Every index of `over` must be one of the operand's.
    fn within(&mut self, over: Vec<(Place, String)>, of: &Value) -> Option<Vec<String>> {
        let before = self.resolver.problems.failures();
        let indices = of.indices(&|name| self.resolver.is_index(name));
        for (place, index) in &over {
            if !indices.contains(index) {
                let hint = nearest(index, indices.iter().map(String::as_str));
                self.resolver.problems.add(*place, Problem::NotInOperand { operator: self.name.into(), index: index.clone(), hint });
            }
        }
        (self.resolver.problems.failures() == before).then(|| over.into_iter().map(|(_, index)| index).collect())
    }

    fn softmax(&mut self) -> Option<Value> {
        let of = self.operand(0);
        let over = self.over();
        let of = of?;
        Some(Value::Softmax { over: self.within(over?, &of)?, of: Box::new(of) })
    }

    fn normalize(&mut self) -> Option<Value> {
        let of = self.operand(0);
        let over = self.over();
        let eps = match self.option("eps") {
            Some(_) => self.number("eps").and_then(|(place, eps)| {
                // Not finite, or below 0: there are rows without a square root then.
                let usable = (0.0..f64::INFINITY).contains(&eps);
                if !usable {
                    self.resolver.problems.add(place, Problem::Eps(eps));
                }
                usable.then_some(eps)
            }),
            None => Some(1e-5),
        };
        let mut weight = |name: &str| match self.option(name).cloned() {
            Some(node) => self.resolver.value(&node, self.kept).map(|v| Some(Box::new(v))),
            None => Some(None),
        };
        let (scale, shift) = (weight("scale"), weight("shift"));
        let (of, eps, scale, shift) = (of?, eps?, scale?, shift?);
        let over = self.within(over?, &of)?;
        let indices = of.indices(&|name| self.resolver.is_index(name));
        for weight in [&scale, &shift].into_iter().flatten() {
            for index in weight.indices(&|name| self.resolver.is_index(name)) {
                if !indices.contains(&index) {
                    let hint = nearest(&index, indices.iter().map(String::as_str));
                    self.resolver.problems.add(self.place, Problem::NotInOperand { operator: self.name.into(), index, hint });
                    return None;
                }
            }
        }
        Some(Value::Normalize { over, eps, of: Box::new(of), scale, shift })
    }

    fn reduce(&mut self) -> Option<Value> {
        let over = self.over()?;
        let before = self.resolver.problems.failures();
        for (place, index) in &over {
            if self.kept.contains(index) {
                self.resolver.problems.add(*place, Problem::ReducedOnLeft(index.clone()));
            }
        }
        if self.resolver.problems.failures() > before {
            return None;
        }
        let kept: Vec<String> = self.kept.iter().cloned().chain(over.iter().map(|(_, index)| index.clone())).collect();
        let node = *self.operands.first()?;
        let of = self.resolver.value(node, &kept)?;
        let over = self.within(over, &of)?;
        let count = over.iter().filter_map(|index| self.resolver.header.dims.get(index)).cloned();
        let (label, combine, scale) = match self.name {
            "mean" => ("mean", Combine::Sum, Scalar::Const(1.0) / Scalar::Index(sdfg::Expr::product(count))),
            "max" => ("max", Combine::Max, Scalar::Const(1.0)),
            "min" => ("min", Combine::Min, Scalar::Const(1.0)),
            _ => ("sum", Combine::Sum, Scalar::Const(1.0)),
        };
        Some(match of {
            Value::Product { scale: inner, factors, mut reduced } if combine == Combine::Sum && self.contracts(&factors, &over) => {
                reduced.extend(over);
                product(inner * scale, factors, reduced)
            }
            of => Value::Reduce { label, combine, scale, over, of: Box::new(of) },
        })
    }

    /// Whether a sum over a product is a contraction: two tensors, both with all summed indices, each with one of its own.
    fn contracts(&self, factors: &[Factor], over: &[String]) -> bool {
        let [Factor { value: a, below: false }, Factor { value: b, below: false }] = factors else { return false };
        let is_index = |name: &str| self.resolver.is_index(name);
        let (left, right) = (a.indices(&is_index), b.indices(&is_index));
        !matches!(a, Value::Scalar(_))
            && !matches!(b, Value::Scalar(_))
            && over.iter().all(|index| left.contains(index) && right.contains(index))
            && left.iter().any(|index| !right.contains(index))
            && right.iter().any(|index| !left.contains(index))
    }
}

/// The value of arithmetic on numbers.
fn constant(scalar: &Scalar) -> Option<f64> {
    match scalar {
        Scalar::Const(value) => Some(*value),
        Scalar::Unary(Unary::Neg, a) => Some(-constant(a)?),
        Scalar::Unary(Unary::Sqrt, a) => Some(constant(a)?.sqrt()),
        Scalar::Binary(op, a, b) => {
            let (a, b) = (constant(a)?, constant(b)?);
            match op {
                Binary::Add => Some(a + b),
                Binary::Sub => Some(a - b),
                Binary::Mul => Some(a * b),
                Binary::Div => Some(a / b),
                _ => None,
            }
        }
        _ => None,
    }
}
