//! A fault planted in what a pass makes is caught after that pass, and the pass and its rewrite are named.

use crate::every_pass::{differentiated, made, models, prepared, verified};
use sdfg::{Expr, Item, Memlet, NodeId, Op, Operation, Range, Scalar, Sdfg, StateId, Unit};
use std::cell::Cell;
use transforms::passes;
use transforms::{Context, DriverError, Edit, Pass, Patch, Promise, Rewritten, Stopped};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// One formula computes something else.
    Formula,
    /// One operand is read at a fixed place.
    Subscript,
}

/// A pass whose first rewrite is wrong in one place.
struct Wrong<'a> {
    pass: &'a dyn Pass,
    fault: Fault,
    /// Whether there was something to corrupt.
    planted: Cell<bool>,
}

impl Pass for Wrong<'_> {
    fn name(&self) -> &'static str {
        self.pass.name()
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let rewritten = self.pass.run(program, context)?;
        let (summary, facts) = (rewritten.summary().to_string(), rewritten.facts.clone());
        let mut changed = rewritten.applied(program)?;
        self.planted.set(corrupt(program, &mut changed, self.fault));
        Ok(Rewritten::program(summary, changed).with(facts))
    }

    fn promise(&self) -> Promise {
        self.pass.promise()
    }
}

/// Corrupts the last unit that a rewrite has changed and that can be corrupted so.
fn corrupt(before: &Sdfg, after: &mut Sdfg, fault: Fault) -> bool {
    let old: Vec<Unit> = before.units().into_iter().map(|(_, _, unit)| unit).collect();
    let mut changed: Vec<(StateId, NodeId, Unit)> = after.units().into_iter().filter(|(_, _, unit)| !old.contains(unit)).collect();
    while let Some((state, node, unit)) = changed.pop() {
        if let Some(wrong) = corrupted(unit, fault) {
            let edit = Edit { state, remove: vec![node], insert: vec![wrong] };
            let patch = Patch { summary: "a fault".into(), edits: vec![edit], containers: vec![], drop: vec![], dims: vec![] };
            patch.apply(after).expect("a unit in the place of one with the same operands");
            return true;
        }
    }
    false
}

fn corrupted(unit: Unit, fault: Fault) -> Option<Unit> {
    match unit {
        Unit::Operation(operation) => operation_with(operation, fault).map(Unit::Operation),
        Unit::Scope(mut scope) => item_with(&mut scope.body, fault).then_some(Unit::Scope(scope)),
        Unit::Nested(mut nested) => {
            let (state, node, inner) = nested.program.units().pop()?;
            let edit = Edit { state, remove: vec![node], insert: vec![corrupted(inner, fault)?] };
            let patch = Patch { summary: "a fault".into(), edits: vec![edit], containers: vec![], drop: vec![], dims: vec![] };
            patch.apply(&mut nested.program).ok()?;
            Some(Unit::Nested(nested))
        }
    }
}

/// What is positive stays positive by none of both: signs are wrong, too.
fn wrong(code: &Scalar) -> Scalar {
    code.clone() * Scalar::Const(1.5) + Scalar::Const(0.25)
}

fn operation_with(mut operation: Operation, fault: Fault) -> Option<Operation> {
    match (fault, &mut operation.op) {
        (Fault::Formula, Op::Elementwise { code, .. } | Op::Reduce { code, .. }) => *code = wrong(code),
        (Fault::Formula, Op::Contraction { scale }) => *scale = wrong(scale),
        (Fault::Formula, _) => return None,
        (Fault::Subscript, _) => {
            let mut subscripts = operation.inputs.iter_mut().flat_map(|input| &mut input.subscripts);
            *subscripts.find(|e| e.as_sym().is_some())? = Expr::Int(0);
        }
    }
    Some(operation)
}

/// Corrupts the last computation of a kernel.
fn item_with(items: &mut [Item], fault: Fault) -> bool {
    items.iter_mut().rev().any(|item| match item {
        Item::Scope(inner) => item_with(&mut inner.body, fault),
        Item::Operation(_) => false,
        Item::Tasklet(computation) => match fault {
            Fault::Formula => {
                computation.tasklet.code.iter_mut().for_each(|(_, code)| *code = wrong(code));
                true
            }
            Fault::Subscript => {
                let moving = |memlet: &mut Memlet| {
                    memlet
                        .subset
                        .iter_mut()
                        .find(|r| matches!(r, Range::At(e) if e.as_sym().is_some()))
                        .map(|r| *r = Range::At(Expr::Int(0)))
                };
                computation.reads.iter_mut().any(|(_, memlet)| moving(memlet).is_some())
            }
        },
    })
}

#[test]
fn a_wrong_rewrite_of_every_pass_is_caught_and_named() {
    for fault in [Fault::Formula, Fault::Subscript] {
        let mut caught = std::collections::BTreeSet::new();
        for model in models() {
            for (row, pass) in made(&differentiated(&model).expect("a derivative")) {
                let program = prepared(row, &model).expect("a derivative");
                let planted = Wrong { pass: pass.as_ref(), fault, planted: Cell::new(false) };
                let outcome = verified(&program, &[&planted]);
                if !planted.planted.get() {
                    continue;
                }
                match outcome {
                    Err(DriverError::Verification { transform, summary, .. }) => {
                        assert_eq!(transform, pass.name());
                        assert!(!summary.is_empty());
                        caught.insert(transform);
                    }
                    Err(error) => panic!("{fault:?} in {} of {}: {error}", pass.name(), model.name),
                    Ok(_) => panic!("{fault:?} in {} of {} was not seen", pass.name(), model.name),
                }
            }
        }
        assert_eq!(caught.len(), passes::all().count(), "{fault:?}: a fault was planted in every pass, and seen: {caught:?}");
    }
}
