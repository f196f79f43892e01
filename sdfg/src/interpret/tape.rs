//! Scalar code as a flat list of instructions over a stack.

use super::subscript::{Integer, PointNames};
use super::{InterpretError, Run};
use crate::philox;
use crate::scalar::{Binary, Scalar, Unary};
use crate::symbol::Expr;

#[derive(Clone, Debug)]
pub(super) enum Instruction {
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

/// The largest magnitude that values may have, and one that is larger.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    pub limit: f64,
    pub beyond: Option<f64>,
}

impl Watched {
    /// Every value may pass.
    pub const NOTHING: Watched = Watched { limit: f64::INFINITY, beyond: None };
}

/// Code of one output connector.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    pub(super) instructions: Vec<Instruction>,
}

impl Tape {
    /// `connectors` are those of the tasklet's reads, in order.
    pub fn compile(user: &str, code: &Scalar, connectors: &[&str], names: &PointNames, run: &Run) -> Result<Tape, InterpretError> {
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
                Scalar::Keep { .. } | Scalar::Kept { .. } if !run.dropout => Ok(Instruction::Constant(1.0)),
                Scalar::Kept { rate, .. } => Ok(Instruction::Constant(philox::kept(*rate))),
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

    /// The value at a point; `None` where an index expression divides by zero. `stack` is scratch. The last value on the way that is finite
    /// and larger than `watched` allows is left there.
    pub fn eval(&self, reads: &[f64], at: &[i64], step: u64, stack: &mut Vec<f64>, watched: &mut Watched) -> Option<f64> {
        stack.clear();
        for instruction in &self.instructions {
            let value = match instruction {
                Instruction::Constant(value) => *value,
                Instruction::Read(n) => reads[*n],
                Instruction::Index(i) => i.eval(at)? as f64,
                Instruction::Unary(op) => op.of(stack.pop()?),
                Instruction::Binary(op) => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    op.of(a, b)
                }
                Instruction::Select => {
                    let (b, a, condition) = (stack.pop()?, stack.pop()?, stack.pop()?);
                    if condition != 0.0 { a } else { b }
                }
                Instruction::Keep { key, element, rate } => philox::keep(*key, step, element.eval(at)? as u64, *rate),
            };
            if value.abs() > watched.limit && value.is_finite() {
                watched.beyond = Some(value);
            }
            stack.push(value);
        }
        stack.pop()
    }
}
