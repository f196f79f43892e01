//! Whether every choice that a certificate speaks of is a program: each one that it was made of was swept, and kernels of
//! several of them run together only where each finds what it reads.

use super::{VerifyError, misfit};
use crate::certify::certificate::Certificate;
use crate::measure::store::Store;
use crate::problem::Variants;
use crate::problem::{Access, Kernel, SelectionProblem, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// Confirms that what the certificate chooses for is what was swept.
pub fn swept(certificate: &Certificate, store: &Store) -> Result<(), VerifyError> {
    let swept: Vec<SelectionProblem> = store.sessions().filter_map(|s| s.program.as_ref()).flat_map(SelectionProblem::each).collect();
    match certificate.program.each().iter().all(|program| swept.contains(program)) {
        true => sound(&certificate.program),
        false => Err(VerifyError::OtherProgram),
    }
}

/// Who reads and who writes a container, by position among kernels and then callers, ascending.
#[derive(Default)]
struct Users {
    readers: BTreeSet<usize>,
    writers: BTreeSet<usize>,
}

fn users<'a>(all: &[&'a Kernel]) -> BTreeMap<&'a str, Users> {
    let mut users: BTreeMap<&str, Users> = BTreeMap::new();
    for (at, kernel) in all.iter().enumerate() {
        for (data, access) in &kernel.tensors {
            let of = users.entry(data).or_default();
            if *access == Access::Read { &mut of.readers } else { &mut of.writers }.insert(at);
        }
    }
    users
}

fn runs(kernel: &Kernel, own: &Variants) -> bool {
    kernel.only.iter().all(|(group, variants)| own.get(group).is_some_and(|v| variants.contains(v)))
}

fn site(kernel: &Kernel) -> Option<&String> {
    kernel.only.keys().next()
}

/// Confirms that every choice of variants that their needs allow makes a program, given that every program that was put
/// together is one.
fn sound(program: &SelectionProblem) -> Result<(), VerifyError> {
    // Otherwise every combination is among those that were swept.
    if program.programs.is_empty() || program.alternatives.len() < 2 {
        return Ok(());
    }
    for (group, variants) in &program.alternatives {
        if let Some(variant) = variants.iter().find(|v| program.programs.values().all(|own| own.get(group) != Some(v))) {
            return misfit(format!("no program has the variant `{variant}` of `{group}`"));
        }
    }
    let all: Vec<&Kernel> = program.kernels.iter().chain(&program.callers).collect();
    if let Some(kernel) = all.iter().find(|k| k.only.len() > 1) {
        return misfit(format!("`{}` belongs to several sites", kernel.name));
    }
    // Every variant is of some program, in which a name means one thing and a container has all of its writers.
    let together = |kernels: &[&Kernel]| kernels.windows(2).all(|pair| site(pair[0]) == site(pair[1]) && site(pair[0]).is_some());
    for kernel in &all {
        if !together(&all.iter().copied().filter(|k| k.plain() == kernel.plain()).collect::<Vec<_>>()) {
            return misfit(format!("several sites have a kernel `{}`", kernel.plain()));
        }
    }
    if let Some(tensor) = program.tensors.iter().find(|t| t.meaning.is_empty()) {
        return misfit(format!("it is not known whether `{}` holds the same in all programs", tensor.data));
    }
    let (users, nobody) = (users(&all), Users::default());
    let of = |data: &str| users.get(data).unwrap_or(&nobody);
    let mut named: BTreeMap<&str, Vec<&Tensor>> = BTreeMap::new();
    program.tensors.iter().for_each(|tensor| named.entry(tensor.plain()).or_default().push(tensor));
    for name in all.iter().flat_map(|k| k.names.keys()).collect::<BTreeSet<_>>() {
        let own = named.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let writes = |at: usize| own.iter().any(|t| of(&t.data).writers.contains(&at));
        let marks: BTreeSet<&String> = all.iter().filter_map(|k| k.names.get(name)).collect();
        let knows = |at: usize, k: &Kernel| site(k).is_some() && (k.names.contains_key(name) || writes(at));
        let knowing = || all.iter().enumerate().filter(|(at, k)| knows(*at, k)).map(|(_, k)| *k).collect::<Vec<&Kernel>>();
        if (marks.len() > 1 || !own.is_empty()) && !together(&knowing()) {
            return misfit(format!("`{name}` is not the same in several sites"));
        }
    }
    let calls = |at: &&usize| **at >= program.kernels.len();
    for tensor in program.tensors.iter().filter(|t| users.contains_key(t.data.as_str())) {
        let Users { readers: reading, writers: writing } = of(&tensor.data);
        let namesakes = || named[tensor.plain()].iter().filter(|t| users.contains_key(t.data.as_str()));
        let together_written: BTreeSet<usize> = namesakes().flat_map(|t| &of(&t.data).writers).copied().collect();
        let mut writers: Vec<&Kernel> = together_written.into_iter().map(|at| all[at]).collect();
        let several = namesakes().count() > 1;
        writers.retain(|k| several || site(k).is_some());
        if !together(&writers) {
            return misfit(format!("several sites write `{}`", tensor.plain()));
        }
        let readers = || reading.iter().map(|at| all[*at]);
        let written = |own: &Variants| writing.iter().any(|at| runs(all[*at], own));
        let always = program.programs.values().all(written);
        let given = writing.is_empty();
        let read = |own: &Variants| readers().any(|k| runs(k, own));
        if given && (several || !program.programs.values().all(read)) {
            return misfit(format!("only some programs are given `{}`, and the caller is not asked for it", tensor.data));
        }
        let gives = |own: &Variants| writing.iter().filter(calls).any(|at| runs(all[*at], own));
        let made = !writing.iter().all(|at| calls(&at));
        if program.programs.values().any(|own| gives(own) && (made || !read(own))) {
            return misfit(format!("the caller does not give `{}`", tensor.data));
        }
        let taken = |own: &Variants| reading.iter().filter(calls).any(|at| runs(all[*at], own));
        let result = |own: &Variants| program.boundary.contains_key(&tensor.data) || !read(own);
        if made && !always && program.programs.values().any(|own| written(own) && result(own) && !taken(own)) {
            return misfit(format!("only some programs result in `{}`, and the caller does not take it", tensor.data));
        }
        if given || always {
            continue;
        }
        let Some(maker) = writers.iter().find_map(|k| site(k)) else { continue };
        for reader in readers().filter(|k| site(k) != Some(maker)) {
            let Some((own, variants)) = reader.only.iter().next() else {
                return misfit(format!("`{}` always reads `{}`, which is not always written", reader.name, tensor.data));
            };
            for variant in variants {
                let needs = program.needs.iter().filter(|n| n.when.0 == *own && n.when.1.contains(variant) && n.then.0 == *maker);
                let mut left: BTreeSet<&String> = program.alternatives.get(maker).into_iter().flatten().collect();
                needs.for_each(|need| left.retain(|v| need.then.1.contains(*v)));
                let writes = |v: &&String| writing.iter().any(|at| all[*at].only.get(maker).is_some_and(|own| own.contains(*v)));
                if !left.iter().all(writes) {
                    return misfit(format!("`{}` of `{own}` reads `{}`, and does not need it", variant, tensor.data));
                }
            }
        }
    }
    for (at, reader) in program.kernels.iter().enumerate() {
        let meets =
            |k: &Kernel| site(k) != site(reader) || k.only.iter().all(|(group, variants)| !variants.is_disjoint(&reader.only[group]));
        let reads = reader.tensors.iter().filter(|(_, access)| *access == Access::Read);
        let after: BTreeSet<usize> = reads.flat_map(|(data, _)| of(data).writers.range(at + 1..)).copied().collect();
        if let Some(writer) = after.iter().filter_map(|writer| program.kernels.get(*writer)).find(|k| meets(k)) {
            return misfit(format!("`{}` reads what `{}` writes after it", reader.name, writer.name));
        }
    }
    Ok(())
}
