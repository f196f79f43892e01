//! Kernels of several layers in the report: how they hand over what is between them, and what each form computes again.

use crate::table::{Align, Cell, Table};
use crate::unit::{Milliseconds, Quantity};
use serde::{Deserialize, Serialize};

/// The best measured configuration of one form of a kernel of several layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerForm {
    pub kernel: String,
    /// `overlapped tiles` or `rows kept`.
    pub form: String,
    /// Configurations of this form that were measured, and the median of the fastest.
    pub measured: u64,
    pub best: Quantity<Milliseconds>,
    /// Percent of the flop of its layers that the fastest one computes again.
    pub again: f64,
    /// Its layouts and knobs.
    pub label: String,
}

/// One row for each form of each kernel.
pub fn layer_forms(forms: &[LayerForm]) -> Table {
    let mut table = Table::new(&[
        ("kernel", "", Align::Left),
        ("layers hand over by", "", Align::Left),
        ("measured", "", Align::Right),
        ("best", "ms", Align::Right),
        ("computed again", "%", Align::Right),
        ("best configuration", "", Align::Left),
    ]);
    for form in forms {
        table.row(vec![
            Cell::text(&form.kernel),
            Cell::text(&form.form),
            Cell::count(form.measured),
            Cell::maybe(Some(form.best.value().0), 4),
            Cell::maybe(Some(form.again), 2),
            Cell::text(&form.label),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Measured;

    #[test]
    fn each_form_has_a_row() {
        let form = |form: &str, again: f64| LayerForm {
            kernel: "fire".into(),
            form: form.into(),
            measured: 12,
            best: Measured(Milliseconds(0.5)).into(),
            again,
            label: "tile=p:4".into(),
        };
        let text = layer_forms(&[form("overlapped tiles", 12.5), form("rows kept", 0.0)]).text(false);
        let row = |name: &str| text.lines().find(|line| line.contains(name)).map(str::to_string).unwrap_or_default();
        assert!(row("overlapped tiles").contains("12.50"), "{text}");
        assert!(row("rows kept").contains("0.00") && row("rows kept").contains("0.5000"), "{text}");
    }
}
