//! Who uses which container of a program of operations, found once for all contractions that might be stacked; and whether units would
//! wait for one another once some of them are one.

use crate::refusal::Site;
use crate::unit_graph::kind_of;
use sdfg::{Expr, Memlet, Node, NodeId, Operation, Sdfg, StateId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Old container → (stacked container, dimension, offset), for every container that is stacked.
pub(super) type Moved = BTreeMap<String, (String, usize, Expr)>;

/// The units of a program and who uses which container, found once for all groups.
pub(super) struct Users<'a> {
    program: &'a Sdfg,
    /// In execution order, state by state.
    pub all: Vec<(StateId, NodeId)>,
    pub places: HashMap<(StateId, NodeId), usize>,
    /// By unit: what it reads, and what it writes.
    reads: Vec<Vec<&'a str>>,
    writes: Vec<Vec<&'a str>>,
    pub readers: HashMap<&'a str, Vec<usize>>,
    writers: HashMap<&'a str, Vec<usize>>,
    /// The first unit that is no operation.
    pub expanded: Option<String>,
}

impl<'a> Users<'a> {
    pub fn of(program: &'a Sdfg) -> Self {
        let (all, places, expanded) = (vec![], HashMap::new(), None);
        let (reads, writes, readers, writers) = (vec![], vec![], HashMap::new(), HashMap::new());
        let mut users = Users { program, all, places, reads, writes, readers, writers, expanded };
        for (id, state) in program.states() {
            for node in state.topological(None).unwrap_or_default() {
                let Some((name, _)) = kind_of(state, node) else { continue };
                if users.expanded.is_none() && !matches!(state.node(node), Some(Node::Library(_))) {
                    users.expanded = Some(name.to_string());
                }
                let at = users.all.len();
                let (read, written) = state.boundary(node);
                let names = |memlets: Vec<&'a Memlet>| {
                    memlets.into_iter().map(|m| m.data.as_str()).collect::<BTreeSet<&str>>().into_iter().collect::<Vec<&str>>()
                };
                let (read, written) = (names(read), names(written));
                read.iter().for_each(|data| users.readers.entry(data).or_default().push(at));
                written.iter().for_each(|data| users.writers.entry(data).or_default().push(at));
                users.places.insert((id, node), at);
                users.all.push((id, node));
                users.reads.push(read);
                users.writes.push(written);
            }
        }
        users
    }

    pub fn operation(&self, at: usize) -> Option<Operation> {
        let (state, node) = self.all[at];
        self.program.state(state)?.operation(node)
    }

    pub fn users(&self, data: &str) -> impl Iterator<Item = usize> {
        let of = |all: &HashMap<&str, Vec<usize>>| all.get(data).cloned().unwrap_or_default();
        of(&self.readers).into_iter().chain(of(&self.writers))
    }

    /// Whether units would wait for one another if those of a site were one and each of the stacks one container: then what they make
    /// leads back to them.
    pub fn wait_for_themselves(&self, site: &Site, moved: &Moved) -> bool {
        let members: BTreeSet<usize> = site.units.iter().filter_map(|node| self.places.get(&(site.state, *node))).copied().collect();
        let mut stacks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        moved.iter().for_each(|(data, (stack, ..))| stacks.entry(stack).or_default().push(data));
        // Reached from what these units make within a state: whether the search comes back to one of them.
        let returns = |state: StateId, first: &[&'a str], back: &dyn Fn(usize) -> bool| {
            let (mut seen, mut next): (HashSet<&str>, Vec<&str>) = (HashSet::new(), Vec::new());
            let whole = |data: &'a str| match moved.get(data) {
                Some((stack, ..)) => stacks[stack.as_str()].iter().filter_map(|d| self.known(d)).collect::<Vec<&'a str>>(),
                None => vec![data],
            };
            next.extend(first.iter().flat_map(|data| whole(data)));
            let mut visited: HashSet<usize> = HashSet::new();
            while let Some(data) = next.pop() {
                if !seen.insert(data) {
                    continue;
                }
                for reader in self.readers.get(data).into_iter().flatten().copied().filter(|r| self.all[*r].0 == state) {
                    if back(reader) {
                        return true;
                    }
                    // What one member reads, all of them wait for.
                    if visited.insert(reader) {
                        next.extend(self.writes[reader].iter().flat_map(|data| whole(data)));
                    }
                }
            }
            false
        };
        let made: Vec<&str> = members.iter().flat_map(|m| self.writes[*m].iter().copied()).collect();
        if returns(site.state, &made, &|reader| members.contains(&reader)) {
            return true;
        }
        stacks.values().any(|parts| {
            let parts: Vec<&'a str> = parts.iter().filter_map(|data| self.known(data)).collect();
            let writes = |unit: usize| self.writes[unit].iter().any(|data| parts.contains(data));
            // A member writes what all of them write.
            let back = |unit: usize| writes(unit) || members.contains(&unit) && members.iter().any(|m| writes(*m));
            self.program.states().any(|(state, _)| returns(state, &parts, &back))
        })
    }

    /// The program's own name of a container that some unit uses.
    fn known(&self, data: &str) -> Option<&'a str> {
        self.readers.get_key_value(data).or_else(|| self.writers.get_key_value(data)).map(|(name, _)| *name)
    }
}
