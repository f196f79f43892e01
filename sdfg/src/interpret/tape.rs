//! Scalar code as a flat list of instructions over a stack.

use super::subscript::{Integer, Names};
use super::{InterpretError, Run, erf};
use crate::philox;
use crate::scalar::{Binary, Scalar, Unary};
use crate::symbol::Expr;

#[derive(Clone, Debug)]
enum Instruction {
    Constant(f64),
    /// A value read by the tasklet, by its place among the reads.
    Read(usize),
    Index(Integer),
    Unary(Unary),
    Binary(Binary),
    Select,
    Keep {
        key: [u32; 2],
        element: Integer,
        rate: f64,
    },
}

/// Code of one output connector.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    instructions: Vec<Instruction>,
}

impl Tape {
    /// `connectors` are those of the tasklet's reads, in order.
    pub fn compile(user: &str, code: &Scalar, connectors: &[&str], names: &Names, run: &Run) -> Result<Tape, InterpretError> {
        let mut tape = Tape::default();
        let mut failure = None;
        let integer = |e: &Expr| Integer::compile(e, names).map_err(|source| InterpretError::Symbol { user: user.into(), source });
        code.walk(&mut |node| {
            let instruction = match node {
                Scalar::Const(value) => Ok(Instruction::Constant(*value)),
                Scalar::Input(connector) => connectors
                    .iter()
                    .position(|c| c == connector)
                    .map(Instruction::Read)
                    .ok_or_else(|| InterpretError::UnboundConnector { user: user.into(), connector: connector.clone() }),
                Scalar::Index(e) => integer(e).map(|i| match i.constant() {
                    Some(value) => Instruction::Constant(value as f64),
                    None => Instruction::Index(i),
                }),
                Scalar::Unary(op, _) => Ok(Instruction::Unary(*op)),
                Scalar::Binary(op, _, _) => Ok(Instruction::Binary(*op)),
                Scalar::Select(..) => Ok(Instruction::Select),
                Scalar::Keep { .. } if !run.dropout => Ok(Instruction::Constant(1.0)),
                Scalar::Keep { stream, element, rate } => {
                    integer(element).map(|element| Instruction::Keep { key: philox::key(run.seed, stream), element, rate: *rate })
                }
            };
            match instruction {
                Ok(instruction) => tape.instructions.push(instruction),
                Err(error) => failure = failure.take().or(Some(error)),
            }
        });
        match failure {
            Some(error) => Err(error),
            None => Ok(tape),
        }
    }

    /// The value at a point; `None` where an index expression divides by zero. `stack` is scratch.
    pub fn eval(&self, reads: &[f64], at: &[i64], step: u64, stack: &mut Vec<f64>) -> Option<f64> {
        stack.clear();
        for instruction in &self.instructions {
            let value = match instruction {
                Instruction::Constant(value) => *value,
                Instruction::Read(n) => reads[*n],
                Instruction::Index(i) => i.eval(at)? as f64,
                Instruction::Unary(op) => unary(*op, stack.pop()?),
                Instruction::Binary(op) => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    binary(*op, a, b)
                }
                Instruction::Select => {
                    let (b, a, condition) = (stack.pop()?, stack.pop()?, stack.pop()?);
                    if condition != 0.0 { a } else { b }
                }
                Instruction::Keep { key, element, rate } => philox::keep(*key, step, element.eval(at)? as u64, *rate),
            };
            stack.push(value);
        }
        stack.pop()
    }
}

pub fn unary(op: Unary, a: f64) -> f64 {
    match op {
        Unary::Neg => -a,
        Unary::Exp => a.exp(),
        Unary::Log => a.ln(),
        Unary::Sqrt => a.sqrt(),
        Unary::Rsqrt => 1.0 / a.sqrt(),
        Unary::Tanh => a.tanh(),
        Unary::Erf => erf::erf(a),
        Unary::Sigmoid => 1.0 / (1.0 + (-a).exp()),
        Unary::Abs => a.abs(),
        Unary::Sin => a.sin(),
        Unary::Cos => a.cos(),
        Unary::Floor => a.floor(),
    }
}

pub fn binary(op: Binary, a: f64, b: f64) -> f64 {
    let truth = |t: bool| if t { 1.0 } else { 0.0 };
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Pow => a.powf(b),
        Binary::Lt => truth(a < b),
        Binary::Le => truth(a <= b),
        Binary::Gt => truth(a > b),
        Binary::Ge => truth(a >= b),
        Binary::Eq => truth(a == b),
        Binary::Ne => truth(a != b),
        Binary::And => truth(a != 0.0 && b != 0.0),
        Binary::Or => truth(a != 0.0 || b != 0.0),
    }
}
