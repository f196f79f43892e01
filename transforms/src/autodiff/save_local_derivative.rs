//! Local derivatives saved: where backward multiplies a gradient by a factor that depends on one forward tensor, forward computes that
//! factor (the *slope*) and saves it in place of the tensor.
//!
//! ```text
//! forward:   s = Σ w·x + c;  a = gelu(s) · keep             s = …;  a = gelu(s) · keep;  s.slope = keep · gelu′(s)
//! backward:  d_g = d_a · keep;  d_s = d_g · gelu′(s)   →    d_s = d_a · s.slope
//! ```
//!
//! *Legal when* a backward element-wise operation reads two tensors at equal subscripts, a gradient `g` and a forward transient `s`, and
//! its formula is linear in `g`.
//! *Worthwhile when* the slope replaces a tensor in memory:
//! 1. no other backward operation reads `s`;
//! 2. `s` follows by element-wise operations from the result of one contraction, and only element-wise operations read that result and
//!    `s`. Without the slope, one of the two would be saved;
//! 3. of the tensors that forward computes from `s` element by element, backward reads only operands of contractions.
//!
//! If only this operation reads `g`, and `g` is another gradient times constants or masks, then these factors become part of the slope,
//! and `g` is not computed.
//! *Moves no more because* the slope is as large as `s`. *Computes less because* forward has the activation's parts at hand, and masks
//! are not drawn again.
//! *Not handled*: rectifiers, which ask for signs (see `relu_sign_from_output`); several forward tensors; f16, in which slopes of large
//! arguments would be subnormal.
//!
//! The pass is meant for programs whose contractions are fused with the operations that follow. Elsewhere the results of contractions are
//! in memory anyway, and the slope would be one more tensor.

use crate::autodiff::recompute::{RecomputeError, RecomputePolicy, Saved};
use crate::autodiff::relu_sign_from_output::{asks_sign, same_elements};
use crate::pass::{Context, Facts, Rewritten, Stopped, refused_at};
use sdfg::library::{Class, calculus::fold_inline};
use sdfg::{Binary, Container, Direction, Dtype, Op, Operand, Operation, Role, Scalar, Sdfg, Unary, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// Suffix of the names of slopes.
const SUFFIX: &str = ".slope";

/// Lets backward read saved local derivatives (slopes) where the rule holds. A program without a state `backward` is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaveLocalDerivative;

impl crate::pass::Pass for SaveLocalDerivative {
    fn name(&self) -> &'static str {
        "save local derivative"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let Some(backward) = program.state_named("backward") else {
            return Err(Stopped::at_program(self.name(), "the program has no state `backward`"));
        };
        let mut all = Vec::new();
        for (state, _, unit) in program.units() {
            match unit {
                Unit::Operation(operation) => all.push((state, operation)),
                other => return Err(RecomputeError::Expanded { unit: other.name().to_string() }.into()),
            }
        }
        let operations: Vec<&Operation> = all.iter().map(|(_, o)| o).collect();
        let search = Search::new(program, &operations);
        let found: Vec<Slope> = operations.iter().filter_map(|reader| search.slope(reader)).collect();
        if found.is_empty() {
            let forward = |data: &str| search.makers.get(data).is_some_and(|m| m.pass == Direction::Forward);
            let multiplies = |o: &&&Operation| {
                let elementwise = matches!(o.op, Op::Elementwise { .. });
                elementwise && o.pass == Direction::Backward && o.inputs.len() == 2 && o.inputs.iter().any(|i| forward(&i.data))
            };
            let why = "the forward tensor that it multiplies a gradient with is in memory for others, too, or asked only for its sign";
            let refused = operations.iter().filter(multiplies).map(|o| (*o, why.to_string()));
            return Err(refused_at(
                self.name(),
                program,
                refused,
                "backward multiplies no gradient with what follows from one forward tensor",
            ));
        }
        let mut result = program.clone();
        let mut saved = Vec::new();
        let mut made: BTreeMap<&str, Operation> = BTreeMap::new();
        let mut rewritten: BTreeMap<&str, Operation> = BTreeMap::new();
        for slope in &found {
            let Some(like) = program.containers.get(&slope.of.data) else { continue };
            let name = result.fresh_name(&format!("{}{SUFFIX}", slope.of.data));
            result.add_container(Container { name: name.clone(), view: None, grad: false, ..like.clone() });
            let bytes = result.bytes(&name).map_err(|source| RecomputeError::Size { container: name.clone(), source })?;
            let why =
                format!("`{}` multiplies with it, in place of computing it from `{}`, which is as large", slope.reader.name, slope.of.data);
            saved.push(Saved { container: name.clone(), bytes, policy: RecomputePolicy::Saved, why });
            made.insert(&slope.maker.name, slope.made(&name));
            rewritten.insert(&slope.reader.name, slope.read(&name));
        }
        let swallowed: BTreeSet<&str> = found.iter().flat_map(|s| &s.swallowed).map(String::as_str).collect();
        for (id, _) in program.states() {
            if id == backward {
                result.map_operations(id, |_, operation| match rewritten.get(operation.name.as_str()) {
                    _ if swallowed.contains(operation.name.as_str()) => vec![],
                    Some(reader) => vec![reader.clone()],
                    None => vec![operation],
                })?;
                continue;
            }
            let mut late = Vec::new();
            result.map_operations(id, |_, operation| {
                late.extend(made.get(operation.name.as_str()));
                vec![operation]
            })?;
            for slope in late {
                result.insert_operation(id, slope)?;
            }
        }
        for slope in found.iter().flat_map(|s| &s.gradients) {
            result.containers.shift_remove(slope);
        }
        let names: Vec<String> = found.iter().map(|s| format!("`{}`", s.of.data)).collect();
        let summary = format!("save the local derivative at {}", names.join(", "));
        let products = found.iter().map(|s| s.product.to_string()).collect();
        Ok(Rewritten::program(summary, result).with(Facts { saved, products, ..Facts::default() }))
    }
}

/// A gradient times a slope.
struct Slope<'a> {
    reader: &'a Operation,
    /// The forward operation that makes `of`.
    maker: &'a Operation,
    /// The result of the contraction that `of` follows from.
    product: &'a str,
    /// The forward tensor of the slope, and the gradient that the slope multiplies, as `reader` reads them.
    of: Operand,
    gradient: Operand,
    /// The slope from `of`.
    code: Scalar,
    /// Backward operations whose factor is in the slope, and the gradients that they made.
    swallowed: Vec<String>,
    gradients: Vec<String>,
}

impl Slope<'_> {
    /// The forward operation that computes it.
    fn made(&self, name: &str) -> Operation {
        Operation {
            name: name.into(),
            op: Op::Elementwise { label: "slope".into(), code: self.code.clone() },
            indices: self.reader.indices.clone(),
            inputs: vec![self.of.clone()],
            outputs: self.reader.outputs.iter().map(|o| Operand { data: name.into(), ..o.clone() }).collect(),
            pass: Direction::Forward,
            origin: self.maker.origin.clone(),
        }
    }

    /// The backward operation that multiplies with it.
    fn read(&self, name: &str) -> Operation {
        let slope = Operand { data: name.into(), ..self.of.clone() };
        let code = Scalar::input(&self.gradient.connector) * Scalar::input(&slope.connector);
        let op = Op::Elementwise { label: self.reader.label().into(), code };
        Operation { op, inputs: vec![self.gradient.clone(), slope], ..self.reader.clone() }
    }
}

struct Search<'a> {
    program: &'a Sdfg,
    makers: BTreeMap<&'a str, &'a Operation>,
    readers: BTreeMap<&'a str, Vec<&'a Operation>>,
}

impl<'a> Search<'a> {
    fn new(program: &'a Sdfg, operations: &[&'a Operation]) -> Self {
        let (mut makers, mut readers) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
        for operation in operations {
            makers.extend(operation.outputs.iter().map(|o| (o.data.as_str(), *operation)));
            for data in operation.inputs.iter().map(|i| i.data.as_str()).collect::<BTreeSet<_>>() {
                readers.entry(data).or_default().push(*operation);
            }
        }
        Search { program, makers, readers }
    }

    /// The slope that a backward operation multiplies a gradient by, if it is to be saved.
    fn slope(&self, reader: &'a Operation) -> Option<Slope<'a>> {
        let (Op::Elementwise { code, .. }, [output], Direction::Backward) = (&reader.op, &reader.outputs[..], reader.pass) else {
            return None;
        };
        let [one, other] = &reader.inputs[..] else { return None };
        let forward = |operand: &Operand| self.makers.get(operand.data.as_str()).is_some_and(|m| m.pass == Direction::Forward);
        let (of, gradient) = if forward(one) { (one, other) } else { (other, one) };
        let maker = *self.makers.get(of.data.as_str())?;
        let apart = [of, gradient].iter().all(|o| same_elements(&o.subscripts, output));
        if !apart || forward(gradient) || maker.pass != Direction::Forward || asks_sign(reader, &of.connector) {
            return None;
        }
        let product = self.saved_for(reader, of)?;
        if !linear(code, &gradient.connector) {
            return None;
        }
        let mut code = fold_inline(code, &gradient.connector, &Scalar::Const(1.0));
        let (mut gradient, mut swallowed, mut gradients) = (gradient.clone(), Vec::new(), Vec::new());
        while let Some((maker, factor, from)) = self.factor(&gradient).filter(|(_, _, from)| !forward(from)) {
            code = code * factor;
            swallowed.push(maker.name.clone());
            gradients.push(std::mem::replace(&mut gradient.data, from.data.clone()));
        }
        // A slope that equals the tensor saves nothing.
        let copy = code == Scalar::input(&of.connector);
        (!copy).then(|| Slope { reader, maker, product, of: of.clone(), gradient, code, swallowed, gradients })
    }

    /// The contraction that a forward tensor follows from, if one of the two would be in memory for this reader alone.
    fn saved_for(&self, reader: &Operation, of: &'a Operand) -> Option<&'a str> {
        let mut data = of.data.as_str();
        loop {
            let container = self.program.containers.get(data).filter(|c| c.role == Role::Transient)?;
            let maker = *self.makers.get(data)?;
            let narrow = container.dtype == Dtype::F16 || container.dtype.roundoff() == 0.0;
            if narrow || !self.only_for(reader, data, &mut BTreeSet::new()) {
                return None;
            }
            match (&maker.op, maker.class()) {
                (_, Class::Contraction) => return Some(data),
                (Op::Elementwise { .. }, _) => {
                    // Of what it is made, one tensor is as large: the others, say biases, are in memory anyway.
                    let mut large = maker.inputs.iter().filter(|o| same_elements(&o.subscripts, of));
                    let (Some(next), None) = (large.next(), large.next()) else { return None };
                    data = &next.data;
                }
                _ => return None,
            }
        }
    }

    /// Whether a forward tensor is read by element-wise operations alone, in backward by this one alone, and the same holds of what
    /// forward makes of it element by element, but that contractions may read that.
    fn only_for(&self, reader: &Operation, data: &'a str, seen: &mut BTreeSet<&'a str>) -> bool {
        let first = seen.is_empty();
        !seen.insert(data)
            || self.readers.get(data).into_iter().flatten().all(|&other| match (&other.op, other.pass) {
                _ if other.class() == Class::Contraction => !first,
                (_, Direction::Backward) => other.name == reader.name,
                (Op::Elementwise { .. }, _) => other.outputs.iter().all(|o| self.only_for(reader, &o.data, seen)),
                // The result of a normalization is saved for its own sake.
                _ => !first,
            })
    }

    /// How a gradient that one operation reads follows from another one by a factor of constants and masks.
    fn factor(&self, gradient: &Operand) -> Option<(&'a Operation, Scalar, &'a Operand)> {
        let transient = self.program.containers.get(&gradient.data).is_some_and(|c| c.role == Role::Transient);
        let maker = *self.makers.get(gradient.data.as_str())?;
        let (Op::Elementwise { code, .. }, [from], [to]) = (&maker.op, &maker.inputs[..], &maker.outputs[..]) else { return None };
        let alone = self.readers.get(gradient.data.as_str()).is_some_and(|r| r.len() == 1);
        let same = same_elements(&from.subscripts, gradient) && same_elements(&to.subscripts, gradient);
        (transient && alone && same && maker.pass == Direction::Backward && linear(code, &from.connector))
            .then(|| (maker, fold_inline(code, &from.connector, &Scalar::Const(1.0)), from))
    }
}

/// Whether code is a connector's value times something that does not depend on it.
pub(crate) fn linear(code: &Scalar, connector: &str) -> bool {
    let free = |code: &Scalar| !code.inputs().contains(connector);
    match code {
        Scalar::Input(name) => name == connector,
        Scalar::Unary(Unary::Neg, a) => linear(a, connector),
        Scalar::Binary(Binary::Mul, a, b) => linear(a, connector) && free(b) || free(a) && linear(b, connector),
        Scalar::Binary(Binary::Div, a, b) => linear(a, connector) && free(b),
        Scalar::Binary(Binary::Add | Binary::Sub, a, b) => linear(a, connector) && linear(b, connector),
        Scalar::Select(condition, a, b) => {
            let part = |code: &Scalar| linear(code, connector) || *code == Scalar::Const(0.0);
            free(condition) && part(a) && part(b)
        }
        _ => false,
    }
}
