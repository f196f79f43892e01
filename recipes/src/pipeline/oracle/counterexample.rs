//! The smallest pair of programs that shows a wrong patch, saved as text.
//!
//! 1. Sizes are small to begin with (see [`super::small_sizes::with_small_sizes`]).
//! 2. Units that the patch left alone are dropped; their results become inputs.
//! 3. Every size is reduced as far as the difference remains.
//!
//! A step is kept only if the two still differ.

use super::equivalence::{Difference, difference};
use super::small_sizes::{small_sizes_of_all, with_sizes};
use sdfg::{NodeId, Role, Sdfg, StateId, Unit};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A program before and after a patch, and how their results differ.
pub struct Counterexample {
    pub before: Sdfg,
    pub after: Sdfg,
    pub difference: Difference,
}

/// The smallest pair that still differs; `None` if the two agree at small sizes.
pub fn find(before: &Sdfg, after: &Sdfg) -> Option<Counterexample> {
    let sizes = small_sizes_of_all(&[before, after]);
    let (before, after) = (with_sizes(before, &sizes), with_sizes(after, &sizes));
    let difference = difference(&before, &after)?;
    let mut smallest = Counterexample { before, after, difference };
    smallest.take(only_changed(&smallest.before, &smallest.after));
    let symbols: Vec<(String, i64)> = smallest.before.sizes.iter().map(|(symbol, size)| (symbol.clone(), *size)).collect();
    for (symbol, size) in symbols {
        for less in 1..size {
            let resized = |program: &Sdfg| {
                let mut program = program.clone();
                program.sizes.insert(symbol.clone(), less);
                program
            };
            if smallest.take((resized(&smallest.before), resized(&smallest.after))) {
                break;
            }
        }
    }
    Some(smallest)
}

impl Counterexample {
    /// Takes over a smaller pair if it differs in the same way: a pair that cannot be run shows nothing about results.
    fn take(&mut self, (before, after): (Sdfg, Sdfg)) -> bool {
        let Some(difference) = difference(&before, &after) else { return false };
        if std::mem::discriminant(&difference) != std::mem::discriminant(&self.difference) {
            return false;
        }
        *self = Counterexample { before, after, difference };
        true
    }

    /// Writes both programs in the text form into a folder: the paths.
    pub fn save(&self, folder: &Path) -> std::io::Result<[PathBuf; 2]> {
        std::fs::create_dir_all(folder)?;
        let paths = ["before", "after"].map(|when| folder.join(format!("wrong-patch-{when}.sdfg")));
        for (path, program) in paths.iter().zip([&self.before, &self.after]) {
            bench::atomic::write(path, sdfg::text::print(program).as_bytes())?;
        }
        Ok(paths)
    }
}

/// Both programs with nothing but the units that differ between them.
fn only_changed(before: &Sdfg, after: &Sdfg) -> (Sdfg, Sdfg) {
    let (old, new) = (before.units(), after.units());
    let alike = |unit: &Unit, others: &[(StateId, NodeId, Unit)]| others.iter().any(|(_, _, other)| other == unit);
    let kept_old: Vec<&Unit> = old.iter().map(|(_, _, u)| u).filter(|u| !alike(u, &new)).collect();
    let kept_new: Vec<&Unit> = new.iter().map(|(_, _, u)| u).filter(|u| !alike(u, &old)).collect();
    // Results of these units that other units read, or that the program returns.
    let seen: BTreeSet<String> = {
        let read_elsewhere = old.iter().filter(|(_, _, u)| alike(u, &new)).flat_map(|(_, _, u)| touched(u).0);
        let results = before.containers.values().filter(|c| matches!(c.role, Role::Output | Role::Gradient)).map(|c| c.name.clone());
        read_elsewhere.chain(results).collect()
    };
    (restricted(before, &kept_old, &seen), restricted(after, &kept_new, &seen))
}

/// Containers that a unit reads and writes.
fn touched(unit: &Unit) -> (Vec<String>, Vec<String>) {
    match unit {
        Unit::Scope(scope) => (scope.reads().into_keys().collect(), scope.writes().into_keys().collect()),
        Unit::Operation(operation) => {
            (operation.inputs.iter().map(|o| o.data.clone()).collect(), operation.outputs.iter().map(|o| o.data.clone()).collect())
        }
        _ => (vec![], vec![]),
    }
}

/// The program with only the `kept` units. Containers that they read but do not write become inputs; those that they write and that are
/// `seen` become outputs.
fn restricted(program: &Sdfg, kept: &[&Unit], seen: &BTreeSet<String>) -> Sdfg {
    let mut small = program.clone();
    for (state, node, unit) in program.units() {
        if !kept.contains(&&unit)
            && let Some(state) = small.state_mut(state)
        {
            state.remove_unit(node);
        }
    }
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
    for unit in kept {
        let (read, written) = touched(unit);
        reads.extend(read);
        writes.extend(written);
    }
    // The storage behind a view is needed with it.
    let mut needed: BTreeSet<String> = reads.union(&writes).cloned().collect();
    let mut given: BTreeSet<String> = reads.difference(&writes).cloned().collect();
    for name in needed.clone() {
        let mut at = name.as_str();
        while let Some(view) = program.containers.get(at).and_then(|c| c.view.as_ref()) {
            if given.contains(&name) {
                given.insert(view.of.clone());
            }
            needed.insert(view.of.clone());
            at = &view.of;
        }
    }
    small.containers.retain(|name, _| needed.contains(name));
    for (name, container) in &mut small.containers {
        if given.contains(name) && !matches!(container.role, Role::Input | Role::Parameter) {
            container.role = Role::Input;
        } else if writes.contains(name) && seen.contains(name) && container.role == Role::Transient {
            container.role = Role::Output;
        }
    }
    small
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::load;
    use crate::pipeline::oracle::operators::differentiated;
    use crate::pipeline::variants::rewriting::rewritten;
    use sdfg::{Item, Scalar};
    use transforms::{Edit, Expand, Patch, Pattern, Refusal, Site};

    /// A pass that is wrong: it doubles what the first scope named `unit` computes.
    struct Doubled(&'static str);

    impl Pattern for Doubled {
        fn name(&self) -> &'static str {
            "doubled"
        }

        fn sites(&self, program: &Sdfg) -> Vec<Site> {
            let scopes = program.units().into_iter().filter(|(_, _, u)| matches!(u, Unit::Scope(_)) && u.name() == self.0);
            scopes.map(|(state, node, _)| Site { state, units: vec![node] }).collect()
        }

        fn plan(&self, program: &Sdfg, site: &Site) -> Result<Patch, Box<Refusal>> {
            let found = program.units().into_iter().find(|(_, node, _)| *node == site.units[0]);
            let Some((_, node, Unit::Scope(mut scope))) = found else { panic!("a site of this program") };
            fn double(items: &mut [Item]) {
                for item in items {
                    match item {
                        Item::Tasklet(c) => c.tasklet.code.iter_mut().for_each(|(_, code)| *code = code.clone() * Scalar::Const(2.0)),
                        Item::Scope(inner) => double(&mut inner.body),
                        Item::Operation(_) => {}
                    }
                }
            }
            double(&mut scope.body);
            let edit = Edit { state: site.state, remove: vec![node], insert: vec![Unit::Scope(scope)] };
            Ok(Patch { summary: "double it".into(), edits: vec![edit], containers: vec![], drop: vec![], dims: vec![] })
        }
    }

    #[test]
    fn a_wrong_patch_leaves_a_small_program_that_shows_it() -> Result<(), Box<dyn std::error::Error>> {
        let recipe = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("mlp.yaml"), &[])?;
        let program = rewritten(&differentiated(&recipe)?, &[&Expand], None)?.program;
        let units = program.units().len();
        let name = program.units().iter().find_map(|(_, _, u)| matches!(u, Unit::Scope(_)).then(|| u.name().to_string()));
        let name: &'static str = name.ok_or("the program has a scope")?.leak();
        let folder = tempfile::tempdir()?;
        let why = rewritten(&program, &[&Doubled(name)], Some(folder.path())).err().ok_or("the patch is wrong")?.to_string();
        assert!(why.contains("double it") && why.contains(&folder.path().join("wrong-patch-before.sdfg").display().to_string()), "{why}");
        let read = |when: &str| -> Result<Sdfg, Box<dyn std::error::Error>> {
            Ok(sdfg::text::parse(&std::fs::read_to_string(folder.path().join(format!("wrong-patch-{when}.sdfg")))?)?)
        };
        let (before, after) = (read("before")?, read("after")?);
        assert_eq!(sdfg::validate::validate(&before), []);
        assert!(units > 1 && before.units().len() == 1 && after.units().len() == 1, "{units} units are cut to the one that is wrong");
        assert!(before.sizes.values().all(|size| *size <= 3), "{:?}", before.sizes);
        assert!(difference(&before, &after).is_some(), "what was saved shows the difference");
        assert!(find(&before, &before).is_none());
        Ok(())
    }
}
