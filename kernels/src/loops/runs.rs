//! Kernels of a loop's body that are divided alike in runs: a product along the heads that it makes and what works on each head after
//! it, or a product along its columns and the activation of these. Within a run no worker needs another one's work, so barriers come
//! between runs alone. What is small between two runs, such as the norm of a few rows, the caller does before the workers begin the
//! next one.
//!
//! Unlike a division of all kernels along one dim, where every worker reads all weights at each time, each reads its part of them.
//!
//! Source: "FusionStitching" (Long, Yang, Lin), section 5.1: block composition, whose operations share their outer parallel loop; and the
//! packing of independent ones.

use super::body::Body;
use crate::kernel::{ArgumentAccess, KernelSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of arguments up to which the caller does a kernel by itself while it cuts a body into runs.
pub(super) const SMALL: usize = 64 << 10;

/// The dim along which each kernel of a body is divided, if it is; and the number of runs.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Runs {
    pub along: Vec<Option<String>>,
    pub count: usize,
}

/// What cutting a body into runs needs to know of a kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    /// The dims along which it can be divided, so that each worker writes its own part.
    pub dims: Vec<String>,
    /// Whether the caller may do it by itself.
    pub is_small: bool,
    /// What it reads, and the dims along which a worker finds its own part there; and what it writes.
    pub reads: BTreeMap<String, BTreeSet<String>>,
    pub writes: BTreeSet<String>,
}

/// Cuts kernels, in their order, into the fewest runs that are divided alike, from the first one on as many as go together.
pub(super) fn runs(links: &[Link]) -> Runs {
    let mut found = Runs { along: vec![None; links.len()], count: 0 };
    let mut from = 0;
    while from < links.len() {
        // What is small before a run is done before it.
        let first = (from..links.len()).find(|n| !links[*n].is_small).unwrap_or(links.len());
        let tried = links.get(first).map(|link| link.dims.iter().map(Some).chain([None])).into_iter().flatten();
        let (until, dim) = tried
            .map(|dim| (length(links, first, dim), dim))
            // Of equally long runs the one along a dim that was named first.
            .rev()
            .max_by_key(|(until, _)| *until)
            .unwrap_or((links.len(), None));
        for (n, link) in links.iter().enumerate().take(until).skip(first) {
            found.along[n] = dim.filter(|dim| link.dims.contains(dim)).cloned();
        }
        found.count += 1;
        from = until.max(from + 1);
    }
    found
}

/// Where the run of kernels that begins with one ends, if it is divided along a dim.
fn length(links: &[Link], first: usize, dim: Option<&String>) -> usize {
    let mut made: BTreeSet<&String> = BTreeSet::new();
    for (n, link) in links.iter().enumerate().skip(first) {
        let needs = |data: &String| made.contains(data);
        let meets = link.reads.keys().chain(&link.writes).any(needs);
        let is_divided = dim.is_some_and(|dim| link.dims.contains(dim));
        let own = |(data, dims): (&String, &BTreeSet<String>)| !needs(data) || dim.is_some_and(|dim| dims.contains(dim));
        if meets && !(is_divided && link.reads.iter().all(own)) {
            return n;
        }
        made.extend(&link.writes);
    }
    links.len()
}

/// The names under which a kernel reads and writes what the body holds: those of the outside, where it is given them.
pub(super) fn names<'a>(body: &'a Body, kernel: &'a KernelSpec) -> impl Iterator<Item = (String, ArgumentAccess)> + 'a {
    kernel.arguments().into_iter().map(|a| (body.outer(&a.data).unwrap_or(&a.data).to_string(), a.access))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that can be divided along dims, reads (with the dims that it finds its own part along), and writes.
    fn link(dims: &[&str], reads: &[(&str, &[&str])], writes: &str) -> Link {
        let names = |all: &[&str]| all.iter().map(|each| each.to_string()).collect::<Vec<_>>();
        Link {
            dims: names(dims),
            is_small: false,
            reads: reads.iter().map(|(data, dims)| (data.to_string(), names(dims).into_iter().collect())).collect(),
            writes: BTreeSet::from([writes.to_string()]),
        }
    }

    /// A norm, three products by heads, a cache of keys by heads, attention by heads and batch, a product over all heads.
    #[test]
    fn attention_is_one_run_by_heads() {
        let norm = Link { is_small: true, ..link(&["b"], &[("x", &["b"])], "n") };
        let product = |of: &str| link(&["b", "h"], &[("n", &["b"])], of);
        let keys = link(&["b", "h"], &[("k", &["b", "h"]), ("cache", &["b", "h"])], "cache");
        let mixed = link(&["b", "h"], &[("q", &["b", "h"]), ("cache", &["b", "h"]), ("v", &["b", "h"])], "mixed");
        let out = link(&["b", "i"], &[("mixed", &["b"])], "out");
        let all = [norm, product("q"), product("k"), product("v"), keys, mixed, out];
        // Along the batch everything is one run; without it there are two.
        assert_eq!(runs(&all).count, 1);
        let mut apart = all.clone();
        apart.iter_mut().for_each(|link| link.dims.retain(|dim| dim != "b"));
        let found = runs(&apart);
        let along: Vec<&str> = found.along.iter().map(|dim| dim.as_deref().unwrap_or("-")).collect();
        assert_eq!((found.count, along), (2, vec!["-", "h", "h", "h", "h", "h", "i"]));
    }

    #[test]
    fn what_cannot_be_divided_ends_a_run() {
        let makes = link(&["h"], &[], "a");
        let sums = link(&[], &[("a", &["h"])], "b");
        let beside = link(&[], &[("z", &[])], "c");
        assert_eq!(runs(&[makes.clone(), beside, sums]).count, 2);
        assert_eq!(runs(&[makes]), Runs { along: vec![Some("h".into())], count: 1 });
        assert_eq!(runs(&[]), Runs::default());
    }
}
