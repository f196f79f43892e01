//! Merged variants: a selection by sites takes kernels from several programs of a recipe, which become one program.

use super::table::VariantId;
use super::variant::Variant;
use crate::pipeline::PipelineError;
use kernels::KernelSpecs;
use layouts::problem::Kernel;
use layouts::problem::Variants;
use sdfg::{Container, Role, Sdfg, StateId, Unit};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A program that lends its kernels, under its name in the records.
pub struct KernelSource<'a> {
    pub name: &'a str,
    pub variant: &'a Variant,
}

/// A kernel of the merged program, its lender, and the state that it belongs to.
struct Taken {
    unit: Unit,
    lender: usize,
    state: String,
}

/// The kernels of one lender by their names, each with its state.
type Lent = HashMap<String, (StateId, Unit)>;

/// Containers that a unit names, inside and out.
fn named(unit: &Unit) -> BTreeSet<String> {
    let names: BTreeSet<&String> = match unit {
        Unit::Operation(operation) => operation.inputs.iter().chain(&operation.outputs).map(|o| &o.data).collect(),
        Unit::Scope(scope) => {
            let computations = scope.computations();
            computations.iter().flat_map(|(_, c)| c.reads.iter().chain(&c.writes)).map(|(_, memlet)| &memlet.data).collect::<Vec<_>>()
        }
        .into_iter()
        .collect(),
        Unit::Nested(nested) if nested.repeat.is_some() => {
            let (given, made) = nested.boundary();
            return given.into_iter().chain(made).collect();
        }
        Unit::Nested(nested) => nested.program.containers.keys().collect(),
    };
    names.into_iter().cloned().collect()
}

fn fault(why: String) -> PipelineError {
    PipelineError::Combined(why)
}

/// The program that runs the selected variant at each site of `among`. The first lender is the unfused program without stacking: it
/// defines the inputs and results.
///
/// # Errors
/// A kernel that no lender has, or that would differ in the merged program; containers of one name that differ. Sites are built so that
/// neither happens.
pub fn merge_variants(among: &layouts::SelectionProblem, variants: &Variants, lenders: &[KernelSource]) -> Result<Variant, PipelineError> {
    let runs = |k: &&Kernel| k.only.iter().all(|(group, names)| variants.get(group).is_some_and(|v| names.contains(v)));
    let mut taken = Vec::new();
    let lent: Vec<OnceCell<Lent>> = lenders.iter().map(|_| OnceCell::new()).collect();
    for kernel in among.kernels.iter().filter(runs) {
        taken.push(take(kernel, variants, (lenders, &lent))?);
    }
    let Some(first) = lenders.first() else { return Err(fault("there are none".into())) };
    let like = &first.variant.program;
    let mut program = Sdfg::new(&like.name);
    (program.about, program.sizes) = (like.about.clone(), like.sizes.clone());
    (program.tf32, program.winograd) = (like.tf32, like.winograd);
    let states: Vec<_> = like.states().map(|(id, state)| (id, state.name.clone(), program.add_state(&state.name))).collect();
    for (from, to, transition) in like.transitions() {
        let new = |old| states.iter().find(|(id, ..)| *id == old).map_or(old, |(.., new)| *new);
        program.add_transition(new(from), new(to), transition.clone());
    }
    for lender in lenders.iter().filter(|l| l.name == first.name || taken.iter().any(|t| lenders[t.lender].name == l.name)) {
        for (dim, size) in &lender.variant.program.dims {
            program.dims.entry(dim.clone()).or_insert_with(|| size.clone());
        }
    }
    for container in containers(&taken, lenders)? {
        program.add_container(container);
    }
    for Taken { unit, state, .. } in &taken {
        let Some((.., id)) = states.iter().find(|(_, name, _)| name == state) else { return Err(fault(format!("no state `{state}`"))) };
        let inserted = match unit {
            Unit::Operation(operation) => program.insert_operation(*id, operation),
            Unit::Scope(scope) => program.insert_scope(*id, scope),
            Unit::Nested(nested) => program.insert_nested(*id, nested),
        };
        inserted.map_err(|e| fault(e.to_string()))?;
    }
    if let Some(first) = sdfg::validate::validate(&program).first() {
        return Err(fault(first.to_string()));
    }
    let mut keys = BTreeMap::new();
    let specs = KernelSpecs::of(&program);
    for (_, _, unit) in program.units() {
        keys.insert(unit.name().to_string(), specs.spec(&unit)?.key());
    }
    if let Some(other) = among.kernels.iter().filter(runs).find(|k| keys.get(k.plain()) != Some(&k.key)) {
        return Err(fault(format!("`{}` would be another kernel", other.plain())));
    }
    Ok(describe(program, &taken, lenders))
}

/// A kernel from the first program that has it in this variant of its site.
fn take(kernel: &Kernel, variants: &Variants, (lenders, lent): (&[KernelSource], &[OnceCell<Lent>])) -> Result<Taken, PipelineError> {
    let of = kernel.only.keys().next().and_then(|group| variants.get(group));
    let lender = lenders.iter().position(|l| of.is_none_or(|name| l.name == name));
    let missing = || fault(format!("no program lends `{}`", kernel.plain()));
    let lender = lender.ok_or_else(missing)?;
    let program = &lenders[lender].variant.program;
    let named = |(state, _, unit): (StateId, _, Unit)| (unit.name().to_string(), (state, unit));
    // The first of a name.
    let units = lent[lender].get_or_init(|| program.units().into_iter().rev().map(named).collect());
    let (state, unit) = units.get(kernel.plain()).ok_or_else(missing)?;
    Ok(Taken { unit: unit.clone(), lender, state: program.state(*state).map(|s| s.name.clone()).unwrap_or_default() })
}

/// The containers that the kernels name, as their lenders declare them, and those of the boundary. A view is taken from a lender whose
/// kernels use the viewed container.
fn containers(taken: &[Taken], lenders: &[KernelSource]) -> Result<Vec<Container>, PipelineError> {
    let of = |lender: usize| &lenders[lender].variant.program.containers;
    let mut found: BTreeMap<&String, &Container> = BTreeMap::new();
    for Taken { unit, lender, .. } in taken {
        let mut next: Vec<String> = named(unit).into_iter().collect();
        while let Some(data) = next.pop() {
            let Some(container) = of(*lender).get(&data) else { continue };
            next.extend(container.view.as_ref().map(|view| view.of.clone()));
            let same = |known: &Container| Container { origin: None, ..known.clone() } == Container { origin: None, ..container.clone() };
            match found.get(&container.name) {
                Some(known) if !same(known) => return Err(fault(format!("`{data}` is not the same everywhere"))),
                Some(_) => {}
                None => _ = found.insert(&container.name, container),
            }
        }
    }
    let mut all: Vec<Container> = Vec::new();
    let looked_into = |c: &&Container| c.view.as_ref().is_some_and(|view| found.contains_key(&view.of));
    for (data, own) in of(0) {
        let view = || taken.iter().filter_map(|t| of(t.lender).get(data)).find(looked_into);
        let seen = (own.role != Role::Transient).then_some(own);
        all.extend(found.get(data).copied().or_else(view).or(seen).cloned());
    }
    // The others in the order in which their programs name them.
    let mut known: BTreeSet<String> = all.iter().map(|c| c.name.clone()).collect();
    for data in lenders.iter().flat_map(|l| l.variant.program.containers.keys()) {
        if let Some(missing) = found.get(data).filter(|_| known.insert(data.clone())) {
            all.push((*missing).clone());
        }
    }
    Ok(all)
}

/// The program with what its lenders know about its kernels: which are fused, and why neighbours stay separate.
fn describe(program: Sdfg, taken: &[Taken], lenders: &[KernelSource]) -> Variant {
    let names: BTreeSet<&str> = taken.iter().map(|t| t.unit.name()).collect();
    let lent = || lenders.iter().enumerate().filter(|(n, _)| taken.iter().any(|t| t.lender == *n)).map(|(n, l)| (n, l.variant));
    let mut compositions = Vec::new();
    let mut refusals = Vec::new();
    for (n, variant) in lent() {
        let own = |name: &str| taken.iter().any(|t| t.lender == n && t.unit.name() == name);
        compositions.extend(variant.compositions.iter().filter(|c| own(&c.name)).cloned());
        let apart = variant.refusals.iter().filter(|r| r.units.iter().all(|u| names.contains(u.as_str())));
        refusals.extend(apart.filter(|r| r.units.iter().any(|u| own(u))).cloned());
    }
    // A lender with fused contractions knows more about what backward reads.
    let like = lent().find(|(_, v)| !v.compositions.is_empty()).or_else(|| lent().next()).map_or(lenders[0].variant, |(_, v)| v);
    Variant {
        key: VariantId::Merged.into(),
        operators: like.operators.clone(),
        program,
        steps: vec![],
        refusals,
        compositions,
        saved: like.saved.clone(),
        plan: None,
    }
}
