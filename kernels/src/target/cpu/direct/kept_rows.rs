//! Rows of intermediate results that a step of a strip takes over from the one before: they are moved to the beginning of their window.

use crate::emit::scalar::integer;
use crate::error::KernelError;
use crate::loopnest::{Element, KeptRows};
use crate::target::cpu::dialect::CPrinter;
use sdfg::Expr;

impl CPrinter<'_> {
    /// Prints what a step does before it makes anything.
    pub fn keep_rows(&mut self, level: usize) -> Result<(), KernelError> {
        let Some(strip) = self.nest.strip.clone() else { return Ok(()) };
        let moved: Vec<&KeptRows> = strip.rows.iter().filter(|rows| self.nest.keeps_rows(&rows.data) && self.is_stored(rows)).collect();
        if moved.is_empty() {
            return Ok(());
        }
        let step = integer(&strip.step(), self);
        self.line(level, format!("if ({step} > 0) {{"));
        for rows in moved {
            self.move_rows(rows, level + 1)?;
        }
        self.line(level, "}");
        Ok(())
    }

    fn is_stored(&self, rows: &KeptRows) -> bool {
        self.nest.tensors.get(&rows.data).is_some_and(|t| t.stored)
    }

    /// Moves rows by as many as the window does. All dims of smaller stride are one run of memory.
    fn move_rows(&mut self, rows: &KeptRows, level: usize) -> Result<(), KernelError> {
        let shape = self.tensor(&rows.data)?.shape.clone();
        let (strides, ..) = self.strides(&rows.data)?;
        let zeros = Element { data: rows.data.clone(), subscripts: vec![Expr::Int(0); shape.len()], fill: None };
        let place = self.place(&zeros)?;
        let row = strides[rows.dim];
        let around: Vec<usize> = (0..shape.len()).filter(|n| strides[*n] > row && shape[*n] > 1).collect();
        let (mut loops, mut at) = (String::new(), vec![(rows.first * row).to_string()]);
        for n in around {
            loops += &format!("for (int64_t e{n} = 0; e{n} < {}; ++e{n}) ", shape[n]);
            at.push(format!("e{n} * {}", strides[n]));
        }
        self.line(level, format!("/* rows {} to {} of {} */", rows.first, rows.count, rows.data.replace("*/", "")));
        self.line(level, "{");
        self.line(level + 1, format!("real *const to = &{place};"));
        let (at, apart, elements) = (at.join(" + "), rows.moves * row, (rows.count - rows.first) * row);
        self.line(level + 1, format!("{loops}__builtin_memmove(to + {at}, to + {at} + {apart}, {elements} * sizeof(real));"));
        self.line(level, "}");
        Ok(())
    }
}
