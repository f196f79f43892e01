//! Rows that elements of containers name, as in `e[ids[b,s],i]`: a kernel reads nothing where a number names no row, and writes nothing
//! there. The numbers are looked at as the kernel runs, and the first one that names no row is kept until somebody asks.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::phases::{AccessedPart, WorkerShare};
use sdfg::config::KernelConfig;
use sdfg::library::scatter::parts;
use sdfg::{Dtype, Expr, Index, Layout, Op, Unit};
use std::sync::{Mutex, PoisonError};

/// What a kernel is told of the rows that it reads or writes by number.
#[derive(Default)]
pub struct NamedRows {
    kernel: String,
    names: Vec<Names>,
    missing: Mutex<Option<MissingRow>>,
}

/// The elements of one container that name rows of another one.
struct Names {
    argument: usize,
    data: String,
    dtype: Dtype,
    table: String,
    rows: usize,
    /// How many subscripts an element has.
    rank: usize,
    /// The dim along which workers may read a range of their own.
    along: Option<usize>,
    /// Where each element lies, and its subscripts.
    offsets: Vec<usize>,
    subscripts: Vec<i64>,
}

#[derive(Clone)]
struct MissingRow {
    data: String,
    at: Vec<i64>,
    number: f64,
    table: String,
    rows: usize,
}

/// An element that names a row, as a program has it.
struct Reading<'a> {
    data: &'a str,
    subscripts: &'a [Expr],
    table: &'a str,
    axis: usize,
}

impl NamedRows {
    /// The rows that a kernel names under a configuration. `part` says which part of an argument a worker reads.
    ///
    /// # Errors
    /// Sizes without a value.
    pub fn new(spec: &KernelSpec, config: &KernelConfig, part: &dyn Fn(usize) -> AccessedPart) -> Result<Self, KernelError> {
        let mut found = NamedRows { kernel: spec.name.clone(), ..NamedRows::default() };
        match &spec.unit {
            Unit::Scope(scope) => {
                for (around, computation) in scope.computations() {
                    for (_, memlet) in computation.reads.iter().filter(|(_, memlet)| memlet.fill.is_none()) {
                        let Some(point) = memlet.point() else { continue };
                        for (axis, subscript) in point.into_iter().enumerate() {
                            if let Expr::Element(data, subscripts) = subscript {
                                found.add(spec, config, &around, Reading { data, subscripts, table: &memlet.data, axis }, part)?;
                            }
                        }
                    }
                }
            }
            Unit::Operation(operation) if matches!(operation.op, Op::Scatter { .. }) => {
                let Op::Scatter { over, .. } = &operation.op else { return Ok(found) };
                let Some(out) = operation.output("out") else { return Ok(found) };
                let Some(axis) = out.subscripts.iter().position(|s| over.first().is_some_and(|row| s.as_sym() == Some(row))) else {
                    return Ok(found);
                };
                let size = |dim: &String| Ok::<Expr, KernelError>(Expr::Int(spec.size(dim)? as i64));
                let indices: Vec<Index> = (operation.indices.iter())
                    .map(|(index, dim)| Ok(Index::over(index, dim, size(dim)?, sdfg::IndexKind::Independent)))
                    .collect::<Result<_, KernelError>>()?;
                let around: Vec<&Index> = indices.iter().collect();
                for each in parts(operation) {
                    let reading = Reading { data: &each.at.data, subscripts: &each.at.subscripts, table: &out.data, axis };
                    found.add(spec, config, &around, reading, part)?;
                }
            }
            _ => {}
        }
        Ok(found)
    }

    fn add(
        &mut self,
        spec: &KernelSpec,
        config: &KernelConfig,
        around: &[&Index],
        reading: Reading,
        part: &dyn Fn(usize) -> AccessedPart,
    ) -> Result<(), KernelError> {
        let Reading { data, subscripts, table, axis } = reading;
        // A view and what is held on chip lie inside of another kernel's argument, or of none.
        let Some(argument) = spec.arguments().iter().position(|a| a.data == data) else { return Ok(()) };
        let Some(container) = spec.containers.get(data) else { return Ok(()) };
        let shape = spec.shape(data)?;
        let layout = config.layouts.get(data).cloned().unwrap_or_else(|| Layout::row_major(container));
        let (Some(strides), Some(rows)) = (layout.strides(&container.dims, &shape), spec.shape(table)?.get(axis).copied()) else {
            return Ok(());
        };
        let known = |n: &Names| n.data == data && n.table == table && n.rows == rows;
        let used: Vec<&&Index> = around.iter().filter(|index| subscripts.iter().any(|s| s.symbols().contains(&index.name))).collect();
        let mut ranges: Vec<(&str, Vec<i64>)> = Vec::new();
        for index in used {
            let size = |e: &Expr| e.eval(&spec.sizes);
            // Ranges that depend on an outer index, as those of tiles, are walked by another form of the kernel.
            let (Ok(start), Ok(stop), Ok(step)) = (size(&index.start), size(&index.stop), size(&index.step)) else { return Ok(()) };
            ranges.push((&index.name, (start..stop).step_by(step.max(1) as usize).collect()));
        }
        let along = match part(argument) {
            AccessedPart::Along(axis) => Some(axis),
            AccessedPart::Whole | AccessedPart::Own => None,
        };
        let mut names = Names {
            argument,
            data: data.to_string(),
            dtype: container.dtype,
            table: table.to_string(),
            rows,
            rank: subscripts.len(),
            along,
            offsets: vec![],
            subscripts: vec![],
        };
        for point in 0..ranges.iter().map(|(_, values)| values.len()).product::<usize>() {
            let mut rest = point;
            let mut places = vec![0; ranges.len()];
            for (place, (_, values)) in places.iter_mut().zip(&ranges).rev() {
                *place = values[rest % values.len()];
                rest /= values.len();
            }
            let value = |name: &str| {
                let of_index = ranges.iter().position(|(index, _)| *index == name).map(|n| places[n]);
                of_index.or_else(|| spec.sizes.get(name).copied())
            };
            let at: Result<Vec<i64>, _> = subscripts.iter().map(|s| s.eval_with(&value)).collect();
            let Ok(at) = at else { return Ok(()) };
            if at.iter().zip(&shape).all(|(at, size)| (0..*size as i64).contains(at)) {
                names.offsets.push(at.iter().zip(&strides).map(|(at, stride)| *at as usize * stride).sum());
                names.subscripts.extend(at);
            }
        }
        match self.names.iter_mut().find(|n| known(n)) {
            Some(same) if same.offsets == names.offsets => {}
            _ => self.names.push(names),
        }
        Ok(())
    }

    /// Looks at the numbers of a worker's share of the points.
    ///
    /// # Safety
    /// As for [`crate::Executable::work`].
    pub unsafe fn check(&self, worker: usize, share: WorkerShare, arguments: &[*mut u8]) {
        for names in &self.names {
            let mine = |n: usize| match (share, names.along) {
                (WorkerShare::Along { from, to }, Some(axis)) => (from..to).contains(&names.subscripts[n * names.rank + axis]),
                _ => worker == 0,
            };
            if worker != 0 && !matches!((share, names.along), (WorkerShare::Along { .. }, Some(_))) {
                continue;
            }
            for (n, offset) in names.offsets.iter().enumerate().filter(|(n, _)| mine(*n)) {
                // SAFETY: the offset is that of an element of the argument.
                let number = unsafe { number(arguments[names.argument], names.dtype, *offset) };
                if number >= 0.0 && number < names.rows as f64 && number.fract() == 0.0 {
                    continue;
                }
                let at = names.subscripts[n * names.rank..(n + 1) * names.rank].to_vec();
                let missing = MissingRow { data: names.data.clone(), at, number, table: names.table.clone(), rows: names.rows };
                self.missing.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(missing);
                break;
            }
        }
    }

    /// The first number since it was asked that names no row.
    pub fn missing(&self) -> Option<KernelError> {
        if self.names.is_empty() {
            return None;
        }
        let MissingRow { data, at, number, table, rows } = self.missing.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(KernelError::MissingRow { kernel: self.kernel.clone(), data, at, number, table, last: rows.saturating_sub(1) })
    }

    /// Whether no rows are named.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// # Safety
/// `at` is an element of the container at `from`.
unsafe fn number(from: *const u8, dtype: Dtype, at: usize) -> f64 {
    // SAFETY: as promised by the caller.
    unsafe {
        match dtype {
            Dtype::F64 => *from.cast::<f64>().add(at),
            Dtype::F32 => f64::from(*from.cast::<f32>().add(at)),
            Dtype::Bf16 => f64::from(half::bf16::from_bits(*from.cast::<u16>().add(at))),
            Dtype::F16 => f64::from(half::f16::from_bits(*from.cast::<u16>().add(at))),
            Dtype::I64 => *from.cast::<i64>().add(at) as f64,
            Dtype::I32 => f64::from(*from.cast::<i32>().add(at)),
            Dtype::I16 => f64::from(*from.cast::<i16>().add(at)),
            Dtype::U8 => f64::from(*from.add(at)),
            Dtype::Bit => f64::from(*from.add(at / 8) >> (at % 8) & 1),
        }
    }
}
