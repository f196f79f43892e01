//! Reduction: `out = scale · ⊕ code(inputs)` over the indices that `out` lacks.
//!
//! Flop: the code's arithmetic plus one (the combine) per point; the scale, once per result, is not counted.

use super::elementwise::{arithmetic, at, computation, indices, reads_of};
use super::operator::{Field, FieldKind};
use super::*;
use crate::scalar::Binary;
use crate::scope::Item;

/// `out = scale · ⊕ code(inputs)` over the indices that `out` lacks.
pub struct Reduce<'a> {
    pub label: &'a str,
    pub combine: &'a Combine,
    pub code: &'a Scalar,
    pub scale: &'a Scalar,
}

impl Reduce<'_> {
    pub(super) const DEFINITION: OperatorSyntax = OperatorSyntax {
        keyword: "reduce",
        shape: &[FieldKind::Label, FieldKind::Combine, FieldKind::Code("code"), FieldKind::Code("scale")],
        build: |fields| {
            Some(Op::Reduce { label: fields.label()?, combine: fields.combine()?, code: fields.code()?, scale: fields.code()? })
        },
    };
}

impl<'a> Operator<'a> for Reduce<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::Label(self.label.to_string()),
            Field::Combine(*self.combine),
            Field::Code(self.code.clone()),
            Field::Code(self.scale.clone()),
        ]
    }

    fn label(&self) -> &'a str {
        self.label
    }

    fn ports(&self) -> Ports {
        Ports { outputs: &["out"], free_inputs: true, ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(1 + arithmetic(self.code)) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        expand(operation, program, *self.combine, self.code, self.scale)
    }

    fn differentiate(&self, forward: &Operation, program: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
        derivative::reduce::differentiate(forward, program, (self.label, *self.combine), self.code, self.scale, wanted)
    }
}

/// A result that is scaled, as a mean is, or stored in less than what it is summed in, is made in a map of its own, from the container
/// `<name>.raw`: it is rounded once, at the end.
pub(super) fn expand(
    operation: &Operation,
    program: &Sdfg,
    combine: Combine,
    code: &Scalar,
    scale: &Scalar,
) -> Result<Expansion, OperatorError> {
    let out = operation.need_output("out")?;
    let map = indices(operation, program, &operation.reduced());
    let term = code.clone();
    let reads = reads_of(operation, &term)?;
    let sum = |write: Memlet| {
        Scope::new(operation.name.clone(), map.clone(), vec![Item::Tasklet(computation(operation, &operation.name, term, reads, write))])
    };
    combined(operation, program, &operation.name, (out, combine), scale, sum)
}

/// The maps of one reduction into `out`: `reduction` makes the map that combines into the memlet it is given, which is
/// `out` itself or, if that must be scaled or rounded once all is combined, the container `<name>.raw`.
pub(super) fn combined(
    operation: &Operation,
    program: &Sdfg,
    name: &str,
    (out, combine): (&Operand, Combine),
    scale: &Scalar,
    reduction: impl FnOnce(Memlet) -> Scope,
) -> Result<Expansion, OperatorError> {
    let declared = container(operation, program, &out.data)?;
    let sums = declared.dtype.accumulator();
    if *scale == Scalar::Const(1.0) && declared.dtype == sums {
        return Ok(Expansion { containers: vec![], scopes: vec![reduction(at(&out.data, &out.subscripts, Some(combine)))] });
    }
    let raw = Container { dtype: sums, ..declared.like(program.fresh_name(&format!("{name}.raw"))) };
    let map = indices(operation, program, &[]).into_iter().filter(|i| out.subscripts.iter().any(|s| s.symbols().contains(&i.name)));
    let reads = vec![("raw".to_string(), at(&raw.name, &out.subscripts, None))];
    let label = format!("{name}.scale");
    // A mean is a quotient: its count has no exact reciprocal.
    let code = match scale {
        Scalar::Binary(Binary::Div, one, count) if **one == Scalar::Const(1.0) => Scalar::input("raw") / (**count).clone(),
        scale => Scalar::input("raw") * scale.clone(),
    };
    let finish = computation(operation, &label, code, reads, at(&out.data, &out.subscripts, None));
    let scopes = vec![
        reduction(at(&raw.name, &out.subscripts, Some(combine))),
        Scope::new(label.clone(), map.collect(), vec![Item::Tasklet(finish)]),
    ];
    Ok(Expansion { containers: vec![raw], scopes })
}

pub(super) fn container<'a>(operation: &Operation, program: &'a Sdfg, data: &str) -> Result<&'a Container, OperatorError> {
    program
        .containers
        .get(data)
        .ok_or_else(|| OperatorError::UnknownContainer { operation: operation.name.clone(), data: data.to_string() })
}
