//! The linear relaxation of a 0/1 program: max w·x, A·x ≤ b, x ≥ 0, by the revised primal simplex method.
//!
//! Floating point: neither solution nor duals are trusted. [`super::branch`] rounds the duals to whole numbers and computes the bound that
//! they prove exactly.

/// A linear program by columns. Rows are numbered from 0.
#[derive(Clone, Debug, Default)]
pub struct Linear {
    pub weights: Vec<f64>,
    pub columns: Vec<Vec<(u32, f64)>>,
    pub bounds: Vec<f64>,
}

/// The solution of a linear program.
#[derive(Clone, Debug, Default)]
pub struct Relaxed {
    pub values: Vec<f64>,
    /// A price of each row, not negative.
    pub duals: Vec<f64>,
    pub pivots: usize,
}

/// Reduced costs and pivots below these shares of the largest weight and of one count as zero.
const COST: f64 = 1e-11;
const PIVOT: f64 = 1e-9;
/// Bounds are raised by up to this, by a different amount each: then few bases are degenerate.
const PERTURBATION: f64 = 1e-5;

struct Tableau<'a> {
    linear: &'a Linear,
    rows: usize,
    /// The inverse of the basis, by columns.
    inverse: Vec<f64>,
    /// What is basic in each row: a column, `columns + row` for the slack of a row, or [`ARTIFICIAL`].
    basic: Vec<usize>,
    is_basic: Vec<bool>,
    values: Vec<f64>,
    penalty: f64,
}

/// Stands for the variable that makes up for a row with a negative bound, at a penalty.
const ARTIFICIAL: usize = usize::MAX;

impl Linear {
    /// Solves the program; after `limit` pivots the duals so far are returned, which bound nothing well but bound.
    pub fn solve(&self, limit: usize) -> Relaxed {
        let rows = self.bounds.len();
        let largest = self.weights.iter().fold(0.0f64, |most, w| most.max(w.abs()));
        let penalty = 1.0 + self.weights.iter().map(|w| w.abs()).sum::<f64>();
        let mut tableau = Tableau {
            linear: self,
            rows,
            inverse: vec![0.0; rows * rows],
            basic: (0..rows).map(|row| if self.bounds[row] < 0.0 { ARTIFICIAL } else { self.columns.len() + row }).collect(),
            is_basic: vec![false; self.columns.len() + rows],
            values: (0..rows).map(|row| self.bounds[row].abs() + perturbation(row)).collect(),
            penalty,
        };
        for row in 0..rows {
            let artificial = tableau.basic[row] == ARTIFICIAL;
            tableau.inverse[row * rows + row] = if artificial { -1.0 } else { 1.0 };
            if !artificial {
                tableau.is_basic[self.columns.len() + row] = true;
            }
        }
        let mut duals = tableau.duals();
        let mut pivots = 0;
        while pivots < limit {
            let Some(enters) = tableau.entering(&duals, COST * largest) else { break };
            let Some(()) = tableau.pivot(enters, &mut duals) else { break };
            pivots += 1;
            if pivots % 64 == 0 {
                duals = tableau.duals();
            }
        }
        let mut values = vec![0.0; self.columns.len()];
        let basic = tableau.basic.iter().zip(&tableau.values).filter(|(column, _)| **column < self.columns.len());
        basic.for_each(|(column, value)| values[*column] = *value);
        let duals = tableau.duals().into_iter().map(|dual| dual.max(0.0)).collect();
        Relaxed { values, duals, pivots }
    }
}

/// Between a half and one [`PERTURBATION`], by the bits of the row's number.
fn perturbation(row: usize) -> f64 {
    let bits = (row as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    PERTURBATION * (0.5 + bits as f64 / (1u64 << 25) as f64)
}

impl Tableau<'_> {
    fn weight(&self, column: usize) -> f64 {
        if column == ARTIFICIAL { -self.penalty } else { self.linear.weights.get(column).copied().unwrap_or(0.0) }
    }

    fn duals(&self) -> Vec<f64> {
        let weights: Vec<f64> = self.basic.iter().map(|column| self.weight(*column)).collect();
        let price = |row: usize| self.inverse[row * self.rows..][..self.rows].iter().zip(&weights).map(|(a, w)| a * w).sum();
        (0..self.rows).map(price).collect()
    }

    /// The column with the largest gain by unit; a slack with a negative price gains as well.
    fn entering(&self, duals: &[f64], least: f64) -> Option<usize> {
        let columns = self.linear.columns.len();
        let mut best = (least, None);
        for (n, column) in self.linear.columns.iter().enumerate().filter(|(n, _)| !self.is_basic[*n]) {
            let gain = self.linear.weights[n] - column.iter().map(|(row, a)| duals[*row as usize] * a).sum::<f64>();
            if gain > best.0 {
                best = (gain, Some(n));
            }
        }
        for (row, dual) in duals.iter().enumerate() {
            if -dual > best.0 && !self.is_basic[columns + row] {
                best = (-dual, Some(columns + row));
            }
        }
        best.1
    }

    /// Brings a column into the basis; `None` where nothing leaves.
    fn pivot(&mut self, enters: usize, duals: &mut [f64]) -> Option<()> {
        let (rows, columns) = (self.rows, self.linear.columns.len());
        let mut step = vec![0.0; rows];
        let mut add = |row: usize, by: f64| {
            step.iter_mut().zip(&self.inverse[row * rows..][..rows]).for_each(|(step, a)| *step += by * a);
        };
        match self.linear.columns.get(enters) {
            Some(column) => column.iter().for_each(|(row, a)| add(*row as usize, *a)),
            None => add(enters - columns, 1.0),
        }
        let mut leaves: Option<(f64, usize)> = None;
        for row in (0..rows).filter(|row| step[*row] > PIVOT) {
            let ratio = self.values[row] / step[row];
            if leaves.is_none_or(|(least, at)| ratio < least - 1e-12 || (ratio < least + 1e-12 && step[row] > step[at])) {
                leaves = Some((ratio, row));
            }
        }
        let (ratio, at) = leaves?;
        let gain = self.weight(enters)
            - match self.linear.columns.get(enters) {
                Some(column) => column.iter().map(|(row, a)| duals[*row as usize] * a).sum::<f64>(),
                None => duals[enters - columns],
            };
        for (row, value) in self.values.iter_mut().enumerate() {
            *value = if row == at { ratio.max(0.0) } else { (*value - ratio * step[row]).max(0.0) };
        }
        for (column, dual) in self.inverse.chunks_exact_mut(rows).zip(duals.iter_mut()) {
            let share = column[at] / step[at];
            if share != 0.0 {
                column.iter_mut().zip(&step).for_each(|(a, step)| *a -= share * step);
                column[at] = share;
                *dual += gain * share;
            }
        }
        if let Some(out) = self.is_basic.get_mut(self.basic[at]) {
            *out = false;
        }
        self.is_basic[enters] = true;
        self.basic[at] = enters;
        Some(())
    }
}
