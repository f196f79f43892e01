//! A scatter as C, for programs without this crate.

use super::{COLUMNS, ScatterKernel, ScatterOperands};
use crate::c_form::ScatterC;
use crate::emit::functions;
use crate::emit::scalar::{self, NamePrinter, Reciprocal};
use sdfg::{Bindings, Dtype, Expr, Scalar};
use std::fmt::Write;

/// The numbers that the multiple of what is added reads.
struct Numbers<'a> {
    kernel: &'a ScatterKernel,
    kind: &'static str,
    sizes: &'a Bindings,
}

impl NamePrinter for Numbers<'_> {
    fn symbol(&mut self, name: &str) -> String {
        self.sizes.get(name).copied().unwrap_or_default().to_string()
    }

    fn element(&mut self, _: &str, _: &[Expr]) -> String {
        "-1".into()
    }

    fn input(&mut self, connector: &str) -> String {
        match self.kernel.numbers.iter().find(|(name, _)| name == connector) {
            Some((_, argument)) => format!("(real)*(const {} *)p[{argument}]", self.kind),
            None => "(real)1".into(),
        }
    }

    fn reciprocal(&mut self, _: &str) -> Option<Reciprocal> {
        None
    }

    // A scatter draws no numbers: its code is a constant once its inputs are known.
    fn keep(&mut self, _: &str, _: &Expr, _: f64) -> String {
        "1".into()
    }

    fn kept(&mut self, _: &str, _: f64) -> String {
        "1".into()
    }

    fn is_double(&self) -> bool {
        true
    }

    fn blends(&self, _: &Scalar) -> bool {
        false
    }

    fn extreme(&self, sign: char, a: &str, b: &str, number: bool) -> String {
        scalar::extreme(sign, a, b, number)
    }
}

/// Offsets of the elements of a row: an expression of `c`, and the table that it reads if they are not neighbours.
fn places(name: &str, offsets: &[usize]) -> (String, String) {
    let first = offsets.first().copied().unwrap_or_default();
    if offsets.windows(2).all(|pair| pair[1] == pair[0] + 1) {
        return (format!("{first} + c"), String::new());
    }
    let all: Vec<String> = offsets.iter().map(usize::to_string).collect();
    let mut table = format!("static const int64_t {name}[] = {{");
    for line in all.chunks(16) {
        let _ = write!(table, "\n    {},", line.join(", "));
    }
    (format!("{name}[c]"), table + "\n};\n")
}

impl ScatterKernel {
    pub(super) fn text(&self) -> ScatterC {
        let kind = if self.dtype == Dtype::F64 { "double" } else { "float" };
        let mut numbers = Numbers { kernel: self, kind, sizes: &self.sizes };
        let factor = scalar::value(&self.code, &mut numbers);
        let mut text = format!("/* {} */\n#define REAL_IS_DOUBLE\ntypedef double real;\n{}", self.name, functions::c_prelude());
        let (out, table) = places("out_places", &self.columns);
        text += &format!("#include <string.h>\n\n{table}");
        let mut sums = String::new();
        for (n, part) in self.parts.iter().enumerate() {
            let (x, table) = places(&format!("x_places_{n}"), &part.columns);
            text += &table;
            sums += &self.sums(part, [kind, &out, &x]);
        }
        let (elements, rows, columns) = (self.elements, self.rows, self.columns.len());
        text += &format!(
            "\n/* Worker number `worker`'s part of the copy of the table, or of the sums. */
void memlet_scatter(char *const *p, int64_t copies, int64_t worker, int64_t workers)
{{
    {kind} *const out = ({kind} *)p[{}];
    if (copies) {{
        const int64_t first = INT64_C({elements}) * worker / workers, count = INT64_C({elements}) * (worker + 1) / workers - first;
",
            self.out
        );
        text += &match self.base {
            Some(base) => format!("        memcpy(out + first, (const {kind} *)p[{base}] + first, count * sizeof(*out));\n"),
            None => "        memset(out + first, 0, count * sizeof(*out));\n".to_string(),
        };
        text += &format!(
            "        return;
    }}
    const {kind} by = ({kind})({factor});
    /* Workers own ranges of columns, or of rows where rows are short: sums do not depend on how many there are. */
    const int by_columns = INT64_C({columns}) >= {COLUMNS} * workers;
    const int64_t row_from = by_columns ? 0 : INT64_C({rows}) * worker / workers;
    const int64_t row_to = by_columns ? INT64_C({rows}) : INT64_C({rows}) * (worker + 1) / workers;
    const int64_t from = by_columns ? INT64_C({columns}) * worker / workers : 0;
    const int64_t to = by_columns ? INT64_C({columns}) * (worker + 1) / workers : INT64_C({columns});
{sums}}}
"
        );
        let phases = if self.in_place { vec![false] } else { vec![true, false] };
        ScatterC { text, phases }
    }

    /// The sums of one pair of operands.
    fn sums(&self, part: &ScatterOperands, [kind, out, x]: [&str; 3]) -> String {
        let (mut text, mut at, mut from) = (String::new(), vec!["0".to_string()], vec!["0".to_string()]);
        for (n, [size, at_step, x_step]) in part.loops.iter().enumerate() {
            let _ = writeln!(text, "    for (int64_t i{n} = 0; i{n} < {size}; ++i{n})");
            at.push(format!("i{n} * {at_step}"));
            from.push(format!("i{n} * {x_step}"));
        }
        let (at, from) = (at.join(" + "), from.join(" + "));
        let _ = writeln!(text, "    do {{");
        let whole = |type_name: &str| {
            format!(
                "        const double value = ((const {type_name} *)p[{}])[{at}];\n        if (!(value >= 0 && value < 9e15) || value != (double)(int64_t)value) continue;\n        const int64_t row = (int64_t)value;\n",
                part.at
            )
        };
        text += &match part.rows_in {
            Dtype::F64 => whole("double"),
            Dtype::F32 => whole("float"),
            rows => {
                let type_name = match rows {
                    Dtype::I64 => "int64_t",
                    Dtype::I16 => "int16_t",
                    Dtype::U8 => "uint8_t",
                    _ => "int32_t",
                };
                format!("        const int64_t row = ((const {type_name} *)p[{}])[{at}];\n", part.at)
            }
        };
        let _ = writeln!(text, "        if (row < row_from || row >= row_to) continue;");
        let _ = writeln!(text, "        {kind} *const sums = out + row * {};", self.row_stride);
        let _ = writeln!(text, "        const {kind} *const adds = (const {kind} *)p[{}] + {from};", part.x);
        let _ = writeln!(text, "        for (int64_t c = from; c < to; ++c) sums[{out}] += by * adds[{x}];");
        let _ = writeln!(text, "    }} while (0);");
        text
    }
}
