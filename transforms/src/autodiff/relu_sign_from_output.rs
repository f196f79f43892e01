//! The sign of a ReLU's argument, read from its result: where backward needs only the sign of a rectifier's argument, it reads a result
//! that is in memory anyway.
//!
//! ```text
//! forward:   r = max(s, 0);  y = r · keep                (y is read by a contraction in backward)
//! backward:  d_r = d_y · keep;  d_s = s > 0 ? d_r : 0    (reads s)
//! becomes:   d_r = d_y · kept;  d_s = y > 0 ? d_r : 0    (reads y)
//! ```
//!
//! *Legal when*
//! 1. a backward element-wise operation reads `s` only in conditions `s > 0`;
//! 2. a *witness* `y` exists: `y = max(s, 0) · keep₁ · keep₂ …`, element by element, with any number of dropout masks and casts in
//!    between. Then `y > 0` exactly where `s > 0` and every mask keeps;
//! 3. if there are masks, the operation is `select(s > 0, v, 0)`, and `v` is 0 wherever a mask drops (it has each mask as a factor). Then
//!    the wrong answer of `y > 0` at dropped elements makes no difference;
//! 4. backward reads the witness from memory anyway (a contraction needs it), or the program returns it;
//! 5. the witness is stored in a type with the exponents of the arithmetic. Dropout scales by at least 1, so nothing positive is rounded
//!    to zero; in f16 it could be.
//!
//! Of several witnesses the nearest to `s` is read. The value `v` is then selected only where every mask keeps. So its masks need not be
//! drawn again: where no other operation reads `v`, the factor `keep` becomes the constant `kept` that it has at kept elements.
//!
//! *Moves less because* neither `s` nor the tensors that it would be recomputed from are stored and read.
//! *Not handled*: other comparisons than `> 0`; readers that also use the value of `s`.

use crate::autodiff::recompute::forward_and_backward;
use crate::pass::{Context, Facts, Pass, Rewritten, Stopped, refused_at};
use sdfg::{Binary, Dtype, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, library::Class};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Lets backward read the signs of a ReLU's argument from a result. A program without a state `backward` is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReluSignFromOutput;

impl Pass for ReluSignFromOutput {
    fn name(&self) -> &'static str {
        "relu sign from output"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let Some(backward) = program.state_named("backward") else {
            return Err(Stopped::at_program(self.name(), "the program has no state `backward`"));
        };
        let (forward, asking) = forward_and_backward(program, backward)?;
        let (readers, signs) = told_by_results(program, &forward, &asking);
        if readers == asking {
            let asks = |o: &&Operation| o.inputs.iter().any(|i| asks_sign(o, &i.connector));
            let why = "no result that is in memory in backward tells the sign that it asks for";
            let found = asking.iter().filter(asks).map(|o| (o, why.to_string()));
            return Err(refused_at(self.name(), program, found, "no operation of backward asks only for a sign"));
        }
        let changed = readers.iter().zip(&asking).filter(|(new, old)| new != old).map(|(_, old)| format!("`{}`", old.name));
        let summary = format!("signs for {} from results", changed.collect::<Vec<_>>().join(", "));
        let mut result = program.clone();
        let mut readers = readers.into_iter();
        result.map_operations(backward, |_, operation| vec![readers.next().unwrap_or(operation)])?;
        Ok(Rewritten::program(summary, result).with(Facts { signs, ..Facts::default() }))
    }
}

/// A container that is positive where another one is.
#[derive(Clone)]
struct Witness {
    data: String,
    /// The dropout masks on the way to it: it is positive only where every mask keeps.
    masks: Vec<Scalar>,
}

/// Backward operations, each reading witnesses where it can; and the witness of each container that is asked no more.
fn told_by_results(program: &Sdfg, forward: &[Operation], backward: &[Operation]) -> (Vec<Operation>, BTreeMap<String, String>) {
    let stored = stored(program, forward, backward);
    let mut takers: HashMap<&str, Vec<&Operation>> = HashMap::new();
    for operation in forward {
        if let [input] = &operation.inputs[..] {
            takers.entry(&input.data).or_default().push(operation);
        }
    }
    let mut told = BTreeMap::new();
    let mut rewritten = backward.to_vec();
    let mut kept = Vec::new();
    for (at, reader) in rewritten.iter_mut().enumerate() {
        for n in 0..reader.inputs.len() {
            let asked = reader.inputs[n].clone();
            let transient = |data: &str| program.containers.get(data).is_some_and(|c| c.role == Role::Transient);
            if stored.contains(&asked.data) || !transient(&asked.data) || !asks_sign(reader, &asked.connector) {
                continue;
            }
            let witnesses = witnesses(program, &takers, &asked);
            let stands_in = |w: &&Witness| stored.contains(&w.data) && w.masks.iter().all(|m| dropped_anyway(reader, &asked, m, backward));
            if let Some(found) = witnesses.iter().find(stands_in) {
                told.insert(asked.data.clone(), found.data.clone());
                reader.inputs[n].data = found.data.clone();
                kept.extend(found.masks.iter().map(|mask| (at, asked.clone(), mask.clone())));
            }
        }
    }
    for (reader, asked, mask) in kept {
        keep_all(program, &mut rewritten, reader, &asked, &mask);
    }
    let read: HashSet<&str> = rewritten.iter().flat_map(|o| &o.inputs).map(|input| input.data.as_str()).collect();
    told.retain(|data: &String, _| !read.contains(data.as_str()));
    (rewritten, told)
}

/// Replaces a mask by its value at kept elements: in the formula of `reader`, and in operations whose results only `reader` uses.
fn keep_all(program: &Sdfg, backward: &mut [Operation], reader: usize, asked: &Operand, mask: &Scalar) {
    let Scalar::Keep { stream, rate, .. } = mask else { return };
    let kept = Scalar::Kept { stream: stream.clone(), rate: *rate };
    let without = |operation: &mut Operation| {
        if let Op::Elementwise { code, .. } = &mut operation.op {
            *code = code.rewrite(&mut |s| if s == *mask { kept.clone() } else { s });
        }
    };
    let alone = |data: &str| {
        let readers = backward.iter().flat_map(|o| &o.inputs).filter(|i| i.data == data).count();
        readers == 1 && program.containers.get(data).is_some_and(|c| c.role == Role::Transient)
    };
    let read = |data: &str| backward[reader].inputs.iter().any(|i| i.data == data && same_elements(&i.subscripts, asked));
    let makes = |operation: &Operation| match (&operation.op, &operation.outputs[..]) {
        (Op::Elementwise { code, .. }, [output]) => {
            read(&output.data) && alone(&output.data) && same_elements(&output.subscripts, asked) && factors(code).contains(&mask)
        }
        _ => false,
    };
    let makers: Vec<usize> = (0..backward.len()).filter(|n| makes(&backward[*n])).collect();
    makers.into_iter().chain([reader]).for_each(|n| without(&mut backward[n]));
}

/// Results of forward that are in memory in backward whether or not they are recomputed.
fn stored(program: &Sdfg, forward: &[Operation], backward: &[Operation]) -> BTreeSet<String> {
    let contracted: BTreeSet<&str> =
        backward.iter().filter(|o| o.class() == Class::Contraction).flat_map(|o| &o.inputs).map(|i| i.data.as_str()).collect();
    let held = |data: &str| contracted.contains(data) || program.containers.get(data).is_some_and(|c| c.role != Role::Transient);
    forward.iter().flat_map(|o| &o.outputs).map(|o| o.data.clone()).filter(|d| held(d)).collect()
}

/// Whether an element-wise operation reads a connector in conditions `connector > 0` alone.
pub(crate) fn asks_sign(reader: &Operation, connector: &str) -> bool {
    let Op::Elementwise { code, .. } = &reader.op else { return false };
    let condition = positive(&Scalar::input(connector));
    let without = code.rewrite(&mut |s| if s == condition { Scalar::Const(1.0) } else { s });
    without != *code && !without.inputs().contains(connector)
}

pub(crate) fn positive(value: &Scalar) -> Scalar {
    Scalar::binary(Binary::Gt, value.clone(), Scalar::Const(0.0))
}

/// Whether code is the larger of an operand and zero.
pub(crate) fn rectifies(code: &Scalar, operand: &Operand) -> bool {
    let (x, zero) = (Scalar::input(&operand.connector), Scalar::Const(0.0));
    [(&x, &zero), (&zero, &x)].iter().any(|(a, b)| *code == Scalar::binary(Binary::Max, (*a).clone(), (*b).clone()))
}

/// The element-wise operation of one input that makes a container from another one at equal subscripts.
pub(crate) fn step<'a>(operation: &'a Operation, from: &str) -> Option<(&'a Scalar, &'a Operand, &'a Operand)> {
    match (&operation.op, &operation.inputs[..], &operation.outputs[..]) {
        (Op::Elementwise { code, .. }, [input], [output]) if input.data == from && input.subscripts == output.subscripts => {
            Some((code, input, output))
        }
        _ => None,
    }
}

/// The witnesses of an operand's sign, nearest first; `takers` are the forward operations that read a container and nothing else.
fn witnesses(program: &Sdfg, takers: &HashMap<&str, Vec<&Operation>>, asked: &Operand) -> Vec<Witness> {
    let tells = |data: &str| program.containers.get(data).is_some_and(|c| matches!(c.dtype, Dtype::F64 | Dtype::F32 | Dtype::Bf16));
    let takers = |data: &str| takers.get(data).into_iter().flatten();
    let mut found: Vec<Witness> = Vec::new();
    for operation in takers(&asked.data) {
        let Some((code, input, output)) = step(operation, &asked.data).filter(|(_, i, _)| same_elements(&i.subscripts, asked)) else {
            continue;
        };
        if rectifies(code, input) && tells(&output.data) {
            found.push(Witness { data: output.data.clone(), masks: vec![] });
        }
    }
    let mut next = 0;
    while let Some(known) = found.get(next).cloned() {
        next += 1;
        for operation in takers(&known.data) {
            let Some((code, input, output)) = step(operation, &known.data).filter(|(_, i, _)| same_elements(&i.subscripts, asked)) else {
                continue;
            };
            let (values, masks): (Vec<&Scalar>, Vec<&Scalar>) = factors(code).into_iter().partition(|f| !matches!(f, Scalar::Keep { .. }));
            if values == [&Scalar::input(&input.connector)] && tells(&output.data) {
                let masks = known.masks.iter().chain(masks).cloned().collect();
                found.push(Witness { data: output.data.clone(), masks });
            }
        }
    }
    found
}

/// Masks are compared as they are written: elements must be, too.
pub(crate) fn same_elements(subscripts: &[Expr], asked: &Operand) -> bool {
    subscripts == asked.subscripts
}

fn factors(code: &Scalar) -> Vec<&Scalar> {
    match code {
        Scalar::Binary(Binary::Mul, a, b) => factors(a).into_iter().chain(factors(b)).collect(),
        other => vec![other],
    }
}

/// Whether an operation gives 0 wherever a mask drops, for either answer of its condition: it selects between 0 and a product that has
/// the mask as a factor, or a factor that an operation computed with the mask.
fn dropped_anyway(reader: &Operation, asked: &Operand, mask: &Scalar, backward: &[Operation]) -> bool {
    let Op::Elementwise { code: Scalar::Select(condition, value, otherwise), .. } = &reader.op else { return false };
    if **condition != positive(&Scalar::input(&asked.connector)) || **otherwise != Scalar::Const(0.0) {
        return false;
    }
    let made_with_it = |operand: &Operand| {
        backward.iter().any(|maker| match (&maker.op, &maker.outputs[..]) {
            (Op::Elementwise { code, .. }, [output]) => {
                output.data == operand.data && same_elements(&output.subscripts, asked) && factors(code).contains(&mask)
            }
            _ => false,
        })
    };
    let drops = |factor: &&Scalar| match factor {
        Scalar::Input(connector) => {
            let read = |i: &&Operand| i.connector == *connector && same_elements(&i.subscripts, asked);
            reader.inputs.iter().find(read).is_some_and(made_with_it)
        }
        other => *other == mask,
    };
    factors(value).iter().any(drops)
}
