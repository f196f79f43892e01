//! Whether every choice that a certificate speaks of is a program: each one that it was made of was swept, and what one
//! site exchanges does not concern the others.

use super::{VerifyError, misfit};
use crate::certificate::Certificate;
use crate::problem::{Access, Kernel, Program};
use crate::store::Store;

/// Confirms that what the certificate chooses for is what was swept.
pub fn swept(certificate: &Certificate, store: &Store) -> Result<(), VerifyError> {
    let swept: Vec<Program> = store.sessions().filter_map(|s| s.program.as_ref()).flat_map(Program::each).collect();
    match certificate.program.each().iter().all(|program| swept.contains(program)) {
        true => exchangeable(&certificate.program),
        false => Err(VerifyError::OtherProgram),
    }
}

/// Confirms that sites can be chosen independently, given that every program that was put together is sound.
fn exchangeable(program: &Program) -> Result<(), VerifyError> {
    // Otherwise every combination is among those that were swept.
    if program.programs.is_empty() || program.alternatives.len() < 2 {
        return Ok(());
    }
    for (group, variants) in &program.alternatives {
        if let Some(variant) = variants.iter().find(|v| program.programs.values().all(|own| own.get(group) != Some(v))) {
            return misfit(format!("no program has the variant `{variant}` of `{group}`"));
        }
    }
    if let Some(kernel) = program.kernels.iter().find(|k| k.only.len() > 1) {
        return misfit(format!("`{}` belongs to several sites", kernel.name));
    }
    let site = |kernel: &Kernel| kernel.only.keys().next().cloned();
    let one_site = |kernels: &[&Kernel]| kernels.windows(2).all(|pair| site(pair[0]) == site(pair[1])) && site(kernels[0]).is_some();
    for kernel in &program.kernels {
        let namesakes: Vec<&Kernel> = program.kernels.iter().filter(|k| k.plain() == kernel.plain()).collect();
        if namesakes.len() > 1 && !one_site(&namesakes) {
            return misfit(format!("several sites have a kernel `{}`", kernel.plain()));
        }
    }
    for tensor in &program.tensors {
        let touches = |k: &&Kernel, data: &str| k.tensors.iter().any(|(d, _)| d == data);
        let namesakes = program.tensors.iter().filter(|t| t.plain() == tensor.plain());
        let concerned: Vec<&Kernel> = namesakes.clone().flat_map(|t| program.kernels.iter().filter(move |k| touches(k, &t.data))).collect();
        if namesakes.count() > 1 && !one_site(&concerned) {
            return misfit(format!("several sites have a container `{}` of their own", tensor.plain()));
        }
        let writes = |k: &&Kernel| k.tensors.iter().any(|(d, access)| *d == tensor.data && *access != Access::Read);
        let writers: Vec<&Kernel> = program.kernels.iter().filter(writes).collect();
        let mut sites = writers.iter().copied().filter_map(site);
        let Some(own) = sites.next() else { continue };
        if sites.any(|other| other != own) {
            return misfit(format!("several sites write `{}`", tensor.data));
        }
        let written = |variant: &String| writers.iter().any(|k| k.only.values().all(|runs| runs.contains(variant)));
        let elsewhere = program.kernels.iter().any(|k| touches(&k, &tensor.data) && site(k).as_ref() != Some(&own));
        if elsewhere && !program.alternatives.get(&own).is_some_and(|variants| variants.iter().all(written)) {
            return misfit(format!("`{}` is touched outside of `{own}`, which does not always write it", tensor.data));
        }
    }
    for (at, reader) in program.kernels.iter().enumerate() {
        let meets = |k: &Kernel| site(k) != site(reader) || k.only.iter().all(|(group, runs)| !runs.is_disjoint(&reader.only[group]));
        let hands = |k: &&Kernel| {
            let writes = |data: &String| k.tensors.iter().any(|(d, access)| d == data && *access != Access::Read);
            reader.tensors.iter().any(|(data, access)| *access == Access::Read && writes(data))
        };
        if let Some(writer) = program.kernels.iter().skip(at + 1).filter(hands).find(|k| meets(k)) {
            return misfit(format!("`{}` reads what `{}` writes after it", reader.name, writer.name));
        }
    }
    Ok(())
}
