//! Local copies of values that a kernel also has in a container: readers inside read one of them.

use crate::fusion::iteration_space::Statement;
use sdfg::{Sdfg, Storage};
use std::collections::BTreeMap;

/// Where one statement writes a value to several containers, readers inside all read the same one of them: an earlier
/// fusion may have left a local copy beside the container itself.
pub(crate) fn unify_copies(statements: &mut [Statement], program: &Sdfg) {
    let is_local = |m: &sdfg::Memlet| m.wcr.is_none() && program.containers.get(&m.data).is_some_and(|c| c.storage != Storage::Heap);
    let mut same: BTreeMap<String, (String, Vec<usize>)> = BTreeMap::new();
    for statement in statements.iter() {
        let writes = &statement.computation.writes;
        for (connector, local) in writes.iter().filter(|(_, m)| is_local(m)) {
            let Some((_, whole)) = writes.iter().find(|(c, m)| c == connector && !is_local(m) && m.wcr.is_none()) else { continue };
            let (Some(ours), Some(theirs)) = (local.point(), whole.point()) else { continue };
            // For each dimension of the container, the dimension of the local copy with the same index.
            let places: Option<Vec<usize>> = theirs.iter().map(|t| ours.iter().position(|o| o == t && o.as_sym().is_some())).collect();
            if let Some(places) = places {
                same.insert(local.data.clone(), (whole.data.clone(), places));
            }
        }
    }
    for statement in statements.iter_mut() {
        for (_, memlet) in &mut statement.computation.reads {
            if let Some((data, places)) = same.get(&memlet.data) {
                let subset = places.iter().map(|p| memlet.subset[*p].clone()).collect();
                *memlet = sdfg::Memlet { fill: memlet.fill, ..sdfg::Memlet::new(data.clone(), subset) };
            }
        }
        statement.computation.writes.retain(|(_, m)| !same.contains_key(&m.data));
    }
}
