//! Points along the innermost loop of a nest, computed together: each read as a column, each instruction on whole columns, so that looking
//! at the program costs once for many points.
//!
//! Each point computes what it does alone, and writes are combined in the order of the points, so results are the same bit for bit. What
//! needs more than that runs point by point: an element outside its container, a number that no index has, a value beyond a limit.

use super::subscript::{ElementAccess, ElementAddress, Integer, LocatedElement};
use super::tape::{Instruction, Tape};
use super::watch::Watch;
use crate::memlet::Combine;
use crate::philox;
use crate::scalar::Binary;

/// Points that are computed together.
pub const POINTS: usize = 128;
/// Fewer points take no longer one by one.
pub const LEAST: usize = 4;

/// Some iterations of a loop: which entry of the point it advances, its value at the first one, and what is added for each next one.
pub struct Row {
    pub index: usize,
    pub start: i64,
    pub step: i64,
    pub count: usize,
}

/// The places of a container's elements at the points of a row.
enum Places {
    /// The first, and the distance to each next one.
    Line(i64, i64),
    Each,
}

impl Row {
    /// Sets the point to iteration `n`.
    fn goto(&self, at: &mut [i64], n: usize) {
        at[self.index] = self.start + self.step * n as i64;
    }

    /// How an access moves along the row.
    fn places(&self, access: &ElementAccess, at: &[i64]) -> Places {
        let ElementAddress::Inside { base, terms } = &access.place else { return Places::Each };
        let along = terms.iter().find(|(index, _)| *index == self.index).map_or(0, |(_, coefficient)| *coefficient);
        Places::Line(base + terms.iter().map(|(index, coefficient)| coefficient * at[*index]).sum::<i64>(), along * self.step)
    }

    /// Reads an element for each point; `false` if one does not exist. The point is that of the first iteration, before and after.
    pub fn read(&self, access: &ElementAccess, at: &mut [i64], buffer: &[f64], to: &mut [f64]) -> bool {
        match self.places(access, at) {
            Places::Line(first, 0) => to.fill(buffer[first as usize]),
            Places::Line(first, 1) => to.copy_from_slice(&buffer[first as usize..first as usize + to.len()]),
            Places::Line(first, apart) => {
                let mut place = first;
                for value in to {
                    *value = buffer[place as usize];
                    place += apart;
                }
            }
            Places::Each => {
                for (n, value) in to.iter_mut().enumerate() {
                    self.goto(at, n);
                    *value = match access.locate(at, &[]) {
                        LocatedElement::At(position) => buffer[position],
                        LocatedElement::Fill(value) => value,
                        LocatedElement::Outside => return false,
                    };
                }
                self.goto(at, 0);
            }
        }
        true
    }

    /// Whether each point's element is inside of its container.
    pub fn is_inside(&self, access: &ElementAccess, at: &mut [i64]) -> bool {
        let inside = matches!(access.place, ElementAddress::Inside { .. })
            || (0..self.count).all(|n| {
                self.goto(at, n);
                matches!(access.locate(at, &[]), LocatedElement::At(_))
            });
        self.goto(at, 0);
        inside
    }

    /// Writes a value for each point, in their order; returns the first held value that the watch sees.
    pub fn write(
        &self,
        access: &ElementAccess,
        combine: Option<Combine>,
        at: &mut [i64],
        buffer: &mut [f64],
        from: &[f64],
        watch: &Watch,
    ) -> Option<f64> {
        let mut seen = None;
        let mut put = |held: &mut f64, value: f64| match combine {
            None => *held = value,
            Some(combine) => {
                combine.apply(std::slice::from_mut(held), &[value]);
                if seen.is_none() && watch.sees(*held) {
                    seen = Some(*held);
                }
            }
        };
        match self.places(access, at) {
            Places::Line(first, apart) => {
                let mut place = first;
                for value in from {
                    put(&mut buffer[place as usize], *value);
                    place += apart;
                }
            }
            Places::Each => {
                for (n, value) in from.iter().enumerate() {
                    self.goto(at, n);
                    if let LocatedElement::At(position) = access.locate(at, &[]) {
                        put(&mut buffer[position], *value);
                    }
                }
                self.goto(at, 0);
            }
        }
        seen
    }

    /// The number that an expression is at each point; `false` where it is none.
    fn numbers(&self, integer: &Integer, at: &mut [i64], mut put: impl FnMut(usize, i64)) -> bool {
        let found = (0..self.count).all(|n| {
            self.goto(at, n);
            integer.eval(at).map(|value| put(n, value)).is_some()
        });
        self.goto(at, 0);
        found
    }
}

impl Tape {
    /// The values at the points of a row, at the beginning of `stack`; `false` where a point must be computed alone. `reads` has a column
    /// of `row.count` values for each read.
    pub fn eval_row(&self, row: &Row, reads: &[f64], at: &mut [i64], step: u64, stack: &mut Vec<f64>, limit: f64) -> bool {
        let count = row.count;
        stack.clear();
        for instruction in &self.instructions {
            let depth = stack.len();
            match instruction {
                Instruction::Constant(value) => stack.resize(depth + count, *value),
                Instruction::Read(n) => stack.extend_from_slice(&reads[n * count..(n + 1) * count]),
                Instruction::Index(integer) => {
                    stack.resize(depth + count, 0.0);
                    if !row.numbers(integer, at, |n, value| stack[depth + n] = value as f64) {
                        return false;
                    }
                }
                Instruction::Keep { key, element, rate } => {
                    stack.resize(depth + count, 0.0);
                    if !row.numbers(element, at, |n, value| stack[depth + n] = philox::keep(*key, step, value as u64, *rate)) {
                        return false;
                    }
                }
                Instruction::Unary(op) => {
                    let Some(top) = depth.checked_sub(count) else { return false };
                    stack[top..].iter_mut().for_each(|x| *x = op.of(*x));
                }
                Instruction::Binary(op) => {
                    let Some(below) = depth.checked_sub(2 * count) else { return false };
                    let (a, b) = stack[below..].split_at_mut(count);
                    let pairs = a.iter_mut().zip(&*b);
                    match op {
                        Binary::Add => pairs.for_each(|(a, b)| *a += *b),
                        Binary::Sub => pairs.for_each(|(a, b)| *a -= *b),
                        Binary::Mul => pairs.for_each(|(a, b)| *a *= *b),
                        op => pairs.for_each(|(a, b)| *a = op.of(*a, *b)),
                    }
                    stack.truncate(depth - count);
                }
                Instruction::Select => {
                    let Some(below) = depth.checked_sub(3 * count) else { return false };
                    let (condition, values) = stack[below..].split_at_mut(count);
                    let (a, b) = values.split_at(count);
                    for ((condition, a), b) in condition.iter_mut().zip(a).zip(b) {
                        *condition = if *condition != 0.0 { *a } else { *b };
                    }
                    stack.truncate(depth - 2 * count);
                }
            }
            // Which point has it first, and what it holds on the way, is found point by point.
            if limit.is_finite() {
                let Some(top) = stack.len().checked_sub(count) else { return false };
                if stack[top..].iter().any(|value| value.abs() > limit && value.is_finite()) {
                    return false;
                }
            }
        }
        stack.len() == count
    }
}
