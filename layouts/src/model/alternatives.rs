//! Several programs that compute the same, as one program with alternatives: the choice of kernels and of layouts is one
//! decision.
//!
//! Programs share equal parts: kernels of equal name, key and containers; containers of equal description,
//! boundary and ties that hold the same. Where they have different things of one name, each gets its own, called
//! `name@program`.
//!
//! A *site* is a place where the programs differ. It is the smallest set of kernels that have to be exchanged together. Two kernels
//! that some program does not run belong to one site if both write the same container, or if they use one name for different things.
//! At each site a program runs some of the site's kernels; the distinct sets of kernels that programs run there are the *variants* of
//! the site, each called after the first program that has it.
//!
//! ```text
//! program `fused`:        dot ──t──► bias ──s──► relu ──y──► …        (three kernels: t and s are containers in memory)
//! program `gemm-fused`:   relu[dot, bias, relu]   ────y──► …        (one kernel: t and s stay inside)
//!                         └───────── one site ─────────┘  └ shared
//! site `site:relu`: variants `fused` = {dot, bias, relu}, `gemm-fused` = {relu[dot, bias, relu]}
//! ```
//!
//! A variant may leave a container *absent*, as a fused kernel does with what it keeps inside: then no kernel that reads the container
//! can run. Such a [`Need`] is all that binds one site to another, so kernels of several programs may run together as long as each one
//! finds what it reads. The caller counts as a kernel: what only some programs are given or result in (where weights are stacked) is a
//! site as well. Where the contents of some container are not known, a name may stand for anything, and programs are exchanged as
//! wholes. A container that is absent costs nothing in any layout: no kernel that runs asks for it.

use crate::measure::store::Store;
use crate::problem::{Access, Kernel, Need, SelectionProblem, Tensor, Variants};
use sdfg::Layout;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The only site where programs differ in one alone; also what the choice at all sites is called.
pub const GROUP: &str = "program";

/// Name of the kernel that stands for the caller; also of the site of inputs and outputs that only some programs have.
pub const CALLER: &str = "caller";

/// All that a container is, and the ones that it is tied to.
type Facts<'a> = BTreeMap<&'a str, (&'a Tensor, Option<&'a Layout>)>;

/// A program's containers by their names, and what each is tied to.
struct Named<'a> {
    program: &'a SelectionProblem,
    tensors: HashMap<&'a str, &'a Tensor>,
    ties: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Named<'a> {
    fn of(program: &'a SelectionProblem) -> Self {
        let tensors = program.tensors.iter().rev().map(|t| (t.data.as_str(), t)).collect();
        let mut ties: HashMap<&str, Vec<&str>> = HashMap::new();
        for (a, b) in &program.ties {
            ties.entry(a).or_default().push(b);
            ties.entry(b).or_default().push(a);
        }
        Named { program, tensors, ties }
    }

    /// What a container and those tied to it are; empty for a name that the program has not.
    fn facts(&self, data: &'a str) -> Facts<'a> {
        let mut found = Facts::new();
        let mut next = vec![data];
        while let Some(data) = next.pop() {
            let Some(tensor) = self.tensors.get(data).filter(|_| !found.contains_key(data)) else { continue };
            found.insert(tensor.data.as_str(), (*tensor, self.program.boundary.get(data)));
            next.extend(self.ties.get(data).into_iter().flatten());
        }
        found
    }
}

/// Whether it is known of every container what it holds.
fn known(programs: &[(String, SelectionProblem)]) -> bool {
    programs.iter().all(|(_, program)| program.tensors.iter().all(|t| !t.meaning.is_empty()))
}

/// Variants that some need, by those that they may need.
type Allowed<'a> = BTreeMap<BTreeSet<&'a String>, BTreeSet<String>>;

/// A kernel, with the names that its containers have among all programs, and the programs that run it.
struct Pooled {
    kernel: Kernel,
    runs: BTreeSet<usize>,
    /// The first kernel of its site; itself where it is alone, or where every program runs it.
    site: usize,
    /// Whether it stands for the caller.
    caller: bool,
}

impl Pooled {
    fn writes(&self) -> impl Iterator<Item = &String> {
        self.kernel.tensors.iter().filter(|(_, access)| *access != Access::Read).map(|(data, _)| data)
    }
}

/// The kernels of all programs, in an order of execution as far as each program's own goes.
struct Pool {
    kernels: Vec<Pooled>,
    programs: usize,
}

impl Pool {
    fn new(programs: &[(String, SelectionProblem)], called: &dyn Fn(usize, &String) -> String) -> Pool {
        let (mut kernels, mut of_name): (Vec<Pooled>, HashMap<&str, Vec<usize>>) = (Vec::new(), HashMap::new());
        let mut order: Vec<usize> = Vec::new();
        for (n, (_, program)) in programs.iter().enumerate() {
            // Each kernel behind the one before it.
            let mut next = 0;
            for own in &program.kernels {
                let tensors = own.tensors.iter().map(|(data, access)| (called(n, data), *access)).collect();
                let kernel = Kernel { tensors, ..own.clone() };
                let alike = of_name.entry(&own.name).or_default();
                let at = match alike.iter().copied().find(|known| kernels[*known].kernel == kernel) {
                    Some(known) => {
                        kernels[known].runs.insert(n);
                        order.iter().position(|other| *other == known).unwrap_or(next)
                    }
                    None => {
                        alike.push(kernels.len());
                        order.insert(next, kernels.len());
                        kernels.push(Pooled { kernel, runs: BTreeSet::from([n]), site: 0, caller: false });
                        next
                    }
                };
                next = next.max(at + 1);
            }
        }
        let mut kernels: Vec<Option<Pooled>> = kernels.into_iter().map(Some).collect();
        Pool { kernels: order.into_iter().filter_map(|n| kernels[n].take()).collect(), programs: programs.len() }
    }

    fn varies(&self, at: usize) -> bool {
        self.kernels[at].runs.len() < self.programs
    }

    /// Makes one site of all that these varying kernels belong to.
    fn join(&mut self, members: &[usize]) {
        let sites: BTreeSet<usize> = members.iter().filter(|n| self.varies(**n)).map(|n| self.kernels[*n].site).collect();
        let Some(first) = sites.first().copied().filter(|_| sites.len() > 1) else { return };
        self.kernels.iter_mut().filter(|k| sites.contains(&k.site)).for_each(|k| k.site = first);
    }

    /// Adds what the caller gives and takes, where programs differ in that.
    fn add_callers(&mut self, boundary: &dyn Fn(&String) -> bool) {
        // By container: the programs that write it, and those that read it.
        let mut users: BTreeMap<String, [BTreeSet<usize>; 2]> = BTreeMap::new();
        for Pooled { kernel, runs, .. } in &self.kernels {
            for (data, access) in &kernel.tensors {
                let side = usize::from(*access == Access::Read);
                users.entry(data.clone()).or_default()[side].extend(runs);
            }
        }
        let mut differing: Vec<(String, bool, BTreeSet<usize>)> = Vec::new();
        for (data, [written, read]) in users {
            let result: BTreeSet<usize> = written.iter().filter(|n| boundary(&data) || !read.contains(n)).copied().collect();
            match () {
                () if written.is_empty() && read.len() < self.programs => differing.push((data, true, read)),
                () if !written.is_empty() && written.len() < self.programs && !result.is_empty() => differing.push((data, false, result)),
                () => {}
            }
        }
        if differing.is_empty() {
            return;
        }
        let faces: Vec<Vec<usize>> =
            (0..self.programs).map(|n| (0..differing.len()).filter(|d| differing[*d].2.contains(&n)).collect()).collect();
        for face in faces.iter().collect::<BTreeSet<_>>() {
            let runs: BTreeSet<usize> = (0..self.programs).filter(|n| faces[*n] == *face).collect();
            let side = |given: bool| {
                let access = if given { Access::Write } else { Access::Read };
                let tensors = face.iter().filter(|d| differing[**d].1 == given).map(|d| (differing[*d].0.clone(), access)).collect();
                Pooled { kernel: Kernel::new(CALLER, "", sdfg::Direction::Forward, tensors), runs: runs.clone(), site: 0, caller: true }
            };
            self.kernels.insert(0, side(true));
            self.kernels.push(side(false));
        }
    }

    fn containers(&self) -> BTreeSet<String> {
        self.kernels.iter().flat_map(|k| k.kernel.tensors.iter().map(|(data, _)| data.clone())).collect()
    }

    /// Joins kernels that write or otherwise know what one name stands for, and those of one name. `plain` is the name of a container in
    /// its own program.
    fn find_sites(&mut self, plain: &dyn Fn(&String) -> String) {
        self.kernels.iter_mut().enumerate().for_each(|(n, kernel)| kernel.site = n);
        let mut together: Vec<Vec<usize>> = Vec::new();
        let containers: BTreeSet<String> = self.containers().iter().map(plain).collect();
        let mut writers: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        let mut knowing: BTreeMap<&String, BTreeSet<usize>> = BTreeMap::new();
        let mut marks: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
        let mut of_name: BTreeMap<&String, Vec<usize>> = BTreeMap::new();
        for (n, pooled) in self.kernels.iter().enumerate() {
            pooled.writes().for_each(|data| _ = writers.entry(plain(data)).or_default().insert(n));
            for (name, mark) in &pooled.kernel.names {
                knowing.entry(name).or_default().insert(n);
                marks.entry(name).or_default().insert(mark);
            }
            of_name.entry(&pooled.kernel.name).or_default().push(n);
        }
        // One name cannot stand for a container, for a part of one, and for a container inside a kernel in the same program.
        for (name, marks) in marks {
            if marks.len() > 1 || containers.contains(name) {
                together.push(knowing[name].iter().chain(writers.get(name).into_iter().flatten()).copied().collect());
            }
        }
        together.extend(writers.into_values().map(|kernels| kernels.into_iter().collect()));
        together.extend(of_name.into_values());
        together.iter().for_each(|members| self.join(members));
    }

    /// Whether some choice runs both.
    fn meet(&self, a: usize, b: usize) -> bool {
        self.kernels[a].site != self.kernels[b].site || !self.kernels[a].runs.is_disjoint(&self.kernels[b].runs)
    }

    /// Brings the kernels into an order that every choice of variants can be run in. Sites that would wait for one another
    /// are joined; false if that does not help.
    fn order(&mut self) -> bool {
        loop {
            let count = self.kernels.len();
            let mut readers: HashMap<&String, Vec<usize>> = HashMap::new();
            for (n, pooled) in self.kernels.iter().enumerate() {
                let read = pooled.kernel.tensors.iter().filter(|(_, access)| *access == Access::Read);
                read.for_each(|(data, _)| readers.entry(data).or_default().push(n));
            }
            let handed = |a: usize| -> Vec<usize> {
                let after: BTreeSet<usize> = self.kernels[a].writes().filter_map(|data| readers.get(data)).flatten().copied().collect();
                after.into_iter().filter(|b| a != *b && self.meet(a, *b)).collect()
            };
            let after: Vec<Vec<usize>> = (0..count).map(handed).collect();
            let (order, cycle) = topological(&after);
            if cycle.is_empty() {
                let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(new, old)| (*old, new)).collect();
                let mut kernels: Vec<Option<Pooled>> = std::mem::take(&mut self.kernels).into_iter().map(Some).collect();
                self.kernels = order.iter().filter_map(|n| kernels[*n].take()).collect();
                self.kernels.iter_mut().for_each(|k| k.site = place[&k.site]);
                return true;
            }
            let sites = |pool: &Pool| (0..count).map(|n| pool.kernels[n].site).collect::<BTreeSet<usize>>().len();
            let before = sites(self);
            self.join(&cycle);
            if sites(self) == before {
                return false;
            }
        }
    }

    /// The sites in order of their first kernels, each with its kernels.
    fn sites(&self) -> Vec<Vec<usize>> {
        let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for n in (0..self.kernels.len()).filter(|n| self.varies(*n)) {
            found.entry(self.kernels[n].site).or_default().push(n);
        }
        let mut found: Vec<Vec<usize>> = found.into_values().collect();
        found.sort();
        found
    }
}

/// A topological order, the smallest position first where several could be next; and the positions on cycles or between them, for
/// which there is none. Certificates name kernels in this order, and petgraph's `toposort` leaves ties to its traversal.
fn topological(after: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let mut waiting = vec![0usize; after.len()];
    after.iter().flatten().for_each(|next| waiting[*next] += 1);
    let mut left: BTreeSet<usize> = (0..after.len()).collect();
    let mut ready: BTreeSet<usize> = left.iter().copied().filter(|n| waiting[*n] == 0).collect();
    let mut order = Vec::new();
    while let Some(first) = ready.pop_first() {
        left.remove(&first);
        order.push(first);
        for next in &after[first] {
            waiting[*next] -= 1;
            if waiting[*next] == 0 {
                ready.insert(*next);
            }
        }
    }
    while let Some(last) = left.iter().copied().find(|n| !after[*n].iter().any(|m| left.contains(m))) {
        left.remove(&last);
    }
    (order, left.into_iter().collect())
}

impl SelectionProblem {
    /// One program of which one variant of each site runs. A single program stays as it is.
    pub fn among(programs: &[(String, SelectionProblem)]) -> SelectionProblem {
        if let [(_, only)] = programs {
            return only.clone();
        }
        // A container is shared by the programs in which it is the same; elsewhere it is called after the first of them.
        let named: Vec<Named> = programs.iter().map(|(_, program)| Named::of(program)).collect();
        let mut names: HashMap<(usize, &str), String> = HashMap::new();
        for (n, (_, program)) in programs.iter().enumerate() {
            for data in program.tensors.iter().map(|t| t.data.as_str()) {
                if names.contains_key(&(n, data)) {
                    continue;
                }
                // The versions of it, each with the first program that has it.
                let mut versions: Vec<(usize, Facts)> = Vec::new();
                let mut first_like: Vec<(usize, usize)> = Vec::new();
                for (p, own) in named.iter().enumerate().filter(|(_, own)| own.tensors.contains_key(data)) {
                    let own = own.facts(data);
                    let first = versions.iter().find(|(_, known)| *known == own).map(|(first, _)| *first);
                    if first.is_none() {
                        versions.push((p, own));
                    }
                    first_like.push((p, first.unwrap_or(p)));
                }
                let several = versions.len() > 1;
                let name = |first: usize| if several { format!("{data}@{}", programs[first].0) } else { data.to_string() };
                names.extend(first_like.into_iter().map(|(p, first)| ((p, data), name(first))));
            }
        }
        let called = |n: usize, data: &String| names.get(&(n, data.as_str())).unwrap_or(data).clone();
        let mut all = SelectionProblem::default();
        let (mut known_tensors, mut known_ties): (HashSet<String>, HashSet<(String, String)>) = Default::default();
        for (n, (_, program)) in programs.iter().enumerate() {
            for tensor in &program.tensors {
                let data = called(n, &tensor.data);
                if known_tensors.insert(data.clone()) {
                    let original = if data == tensor.data { String::new() } else { tensor.data.clone() };
                    all.tensors.push(Tensor { data, original, ..tensor.clone() });
                }
            }
            all.boundary.extend(program.boundary.iter().map(|(data, layout)| (called(n, data), layout.clone())));
            for (a, b) in &program.ties {
                let tie = (called(n, a), called(n, b));
                if known_ties.insert(tie.clone()) {
                    all.ties.push(tie);
                }
            }
        }
        let mut pool = Pool::new(programs, &called);
        let takes_apart = known(programs);
        if takes_apart {
            pool.add_callers(&|data| all.boundary.contains_key(data));
        }
        let plain: HashMap<&str, &str> = all.tensors.iter().rev().map(|t| (t.data.as_str(), t.plain())).collect();
        pool.find_sites(&|data| plain.get(data.as_str()).map_or(data.clone(), ToString::to_string));
        if !takes_apart || !pool.order() {
            pool.join(&(0..pool.kernels.len()).collect::<Vec<_>>());
        }
        all.name_variants(programs, &pool);
        all
    }

    /// Kernels guarded by the variants of their sites, each variant called after the first program that has it.
    fn name_variants(&mut self, programs: &[(String, SelectionProblem)], pool: &Pool) {
        let sites = pool.sites();
        let mut only: Vec<BTreeMap<String, BTreeSet<String>>> = vec![BTreeMap::new(); pool.kernels.len()];
        self.programs = programs.iter().map(|(name, _)| (name.clone(), Variants::new())).collect();
        for site in &sites {
            let last = site.last().map(|n| pool.kernels[*n].kernel.name.as_str()).unwrap_or_default();
            let group = if sites.len() == 1 { GROUP.to_string() } else { format!("site:{last}") };
            let running = |program: usize| site.iter().filter(|n| pool.kernels[**n].runs.contains(&program)).collect::<Vec<_>>();
            let mut variants: Vec<(&String, Vec<&usize>)> = Vec::new();
            for (n, (name, _)) in programs.iter().enumerate() {
                let kernels = running(n);
                let variant = variants.iter().find(|(_, known)| *known == kernels).map(|(name, _)| *name);
                if variant.is_none() {
                    variants.push((name, kernels));
                }
                self.programs.entry(name.clone()).or_default().insert(group.clone(), variant.unwrap_or(name).clone());
            }
            for (name, kernels) in &variants {
                for kernel in kernels {
                    only[**kernel].entry(group.clone()).or_default().insert(name.to_string());
                }
            }
            self.alternatives.insert(group, variants.into_iter().map(|(name, _)| name.clone()).collect());
        }
        let mut names: HashSet<String> = HashSet::new();
        for (Pooled { kernel, runs, caller, .. }, only) in pool.kernels.iter().zip(only) {
            if *caller {
                self.callers.push(Kernel { only, ..kernel.clone() });
                continue;
            }
            let taken = names.contains(&kernel.name);
            let owner = runs.first().map(|n| programs[*n].0.as_str()).unwrap_or_default();
            let (name, original) =
                if taken { (format!("{}@{owner}", kernel.name), kernel.name.clone()) } else { (kernel.name.clone(), String::new()) };
            names.insert(name.clone());
            self.kernels.push(Kernel { name, original, only, ..kernel.clone() });
        }
        self.needs = self.find_needs();
    }

    /// Needs between sites: where a kernel runs, the containers that it reads are not absent.
    fn find_needs(&self) -> Vec<Need> {
        let all = || self.kernels.iter().chain(&self.callers);
        // By site and container that it writes: the variants that do.
        let mut writing: BTreeMap<(&String, &String), BTreeSet<&String>> = BTreeMap::new();
        for kernel in all() {
            for (data, _) in kernel.tensors.iter().filter(|(_, access)| *access != Access::Read) {
                for (site, variants) in &kernel.only {
                    writing.entry((site, data)).or_default().extend(variants);
                }
            }
        }
        let mut makers: HashMap<&String, Vec<&String>> = HashMap::new();
        writing.keys().for_each(|(site, data)| makers.entry(data).or_default().push(site));
        let mut ran: HashMap<(&String, &String), Vec<&Kernel>> = HashMap::new();
        for kernel in all() {
            for (site, variants) in &kernel.only {
                variants.iter().for_each(|variant| ran.entry((site, variant)).or_default().push(kernel));
            }
        }
        let mut needs: BTreeMap<(&String, &String), Allowed> = BTreeMap::new();
        for (site, variants) in &self.alternatives {
            for variant in variants {
                let running = ran.get(&(site, variant)).into_iter().flatten();
                let read: BTreeSet<&String> = running.flat_map(|k| k.tensors.iter().map(|(data, _)| data)).collect();
                let near: BTreeSet<&String> = read.iter().filter_map(|data| makers.get(*data)).flatten().copied().collect();
                for (maker, made) in
                    near.into_iter().filter(|maker| *maker != site).filter_map(|maker| self.alternatives.get_key_value(maker))
                {
                    let mut allowed: BTreeSet<&String> = made.iter().collect();
                    for data in &read {
                        if let Some(writers) = writing.get(&(maker, *data)) {
                            allowed.retain(|v| writers.contains(v));
                        }
                    }
                    if allowed.len() < made.len() {
                        needs.entry((site, maker)).or_default().entry(allowed).or_default().insert(variant.clone());
                    }
                }
            }
        }
        let need = |(site, maker): (&String, &String), (allowed, variants): (BTreeSet<&String>, BTreeSet<String>)| Need {
            when: (site.clone(), variants),
            then: (maker.clone(), allowed.into_iter().cloned().collect()),
        };
        needs.into_iter().flat_map(|(sites, all)| all.into_iter().map(move |n| need(sites, n))).collect()
    }

    /// The name of a choice of variants: that of a program, or of the most similar one with the sites that differ.
    pub fn called(&self, variants: &Variants) -> String {
        let differing = |own: &Variants| own.iter().filter(|(group, variant)| variants.get(*group) != Some(variant)).count();
        let Some((name, own)) = self.programs.iter().min_by_key(|(_, own)| differing(own)) else {
            return variants.values().cloned().collect::<Vec<_>>().join(", ");
        };
        let others = own.keys().filter_map(|group| {
            let variant = variants.get(group).filter(|v| own.get(group) != Some(v))?;
            Some(format!(", {} as in {variant}", group.strip_prefix("site:").unwrap_or(group)))
        });
        std::iter::once(name.clone()).chain(others).collect()
    }

    /// Every program that this one was made of, in a form that does not depend on the order of kernels and containers;
    /// without a record of that, every program that it stands for.
    pub fn each(&self) -> Vec<SelectionProblem> {
        if !self.programs.is_empty() {
            return self.programs.values().map(|variants| self.under(variants)).collect();
        }
        let mut combinations: Vec<Variants> = vec![Variants::new()];
        for (group, variants) in &self.alternatives {
            let with = |known: Variants| {
                variants.iter().map(move |v| known.clone().into_iter().chain([(group.clone(), v.clone())]).collect::<Variants>())
            };
            combinations = combinations.into_iter().flat_map(with).collect();
        }
        combinations.iter().filter(|variants| self.finds(variants)).map(|variants| self.under(variants)).collect()
    }

    /// Whether these variants make what they read.
    pub fn finds(&self, variants: &Variants) -> bool {
        let among = |(group, names): &(String, BTreeSet<String>)| variants.get(group).is_some_and(|v| names.contains(v));
        self.needs.iter().all(|need| !among(&need.when) || among(&need.then))
    }

    /// The kernels that run under these variants, by their names there.
    pub fn under(&self, variants: &Variants) -> SelectionProblem {
        let names: HashMap<&str, &str> = self.tensors.iter().rev().map(|t| (t.data.as_str(), t.plain())).collect();
        let plain = |data: &String| names.get(data.as_str()).map_or(data.clone(), ToString::to_string);
        let runs = |k: &&Kernel| k.only.iter().all(|(group, names)| variants.get(group).is_some_and(|v| names.contains(v)));
        let kernels: Vec<&Kernel> = self.kernels.iter().filter(runs).collect();
        let touched: BTreeSet<&String> = kernels.iter().flat_map(|k| k.tensors.iter().map(|(data, _)| data)).collect();
        let kernel = |k: &&Kernel| {
            let tensors = k.tensors.iter().map(|(data, access)| (plain(data), *access)).collect();
            Kernel { names: k.names.clone(), once: k.once, ..Kernel::new(k.plain(), &k.key, k.pass, tensors) }
        };
        let tensor = |t: &Tensor| Tensor { data: t.plain().to_string(), original: String::new(), ..t.clone() };
        let mut one = SelectionProblem {
            kernels: kernels.iter().map(kernel).collect(),
            tensors: self.tensors.iter().filter(|t| touched.contains(&t.data)).map(tensor).collect(),
            boundary: self.boundary.iter().filter(|(d, _)| touched.contains(d)).map(|(d, l)| (plain(d), l.clone())).collect(),
            ties: self.ties.iter().filter(|(a, b)| touched.contains(a) && touched.contains(b)).map(|(a, b)| (plain(a), plain(b))).collect(),
            ..SelectionProblem::default()
        };
        one.kernels.sort_by(|a, b| a.name.cmp(&b.name));
        one.tensors.sort_by(|a, b| a.data.cmp(&b.data));
        one.ties.sort();
        one.ties.dedup();
        one
    }

    /// The programs whose choice the records of a store are for: variants of one recipe as one, others each on its own.
    /// Of a variant that was swept several times the last program counts.
    pub fn of_records(store: &Store) -> Vec<(String, SelectionProblem)> {
        let mut groups: Vec<(String, Vec<(String, SelectionProblem)>)> = Vec::new();
        let mut alone: Vec<SelectionProblem> = Vec::new();
        for session in store.sessions() {
            let Some(program) = &session.program else { continue };
            let Some(variant) = &session.variant else {
                if !alone.contains(program) {
                    alone.push(program.clone());
                }
                continue;
            };
            let sizes: Vec<String> = session.sizes.iter().map(|(dim, n)| format!("{dim}={n}")).collect();
            let group = format!("{} {}", variant.of, sizes.join(" "));
            let at = groups.iter().position(|(name, _)| *name == group).unwrap_or_else(|| {
                groups.push((group, Vec::new()));
                groups.len() - 1
            });
            let variants = &mut groups[at].1;
            match variants.iter_mut().find(|(name, _)| *name == variant.name) {
                Some((_, known)) => known.clone_from(program),
                None => variants.push((variant.name.clone(), program.clone())),
            }
        }
        let single = alone.len() == 1 && groups.is_empty();
        let named =
            |(n, program): (usize, SelectionProblem)| (if single { "program".into() } else { format!("program {}", n + 1) }, program);
        let merged = groups.into_iter().map(|(name, variants)| (name, SelectionProblem::among(&variants)));
        merged.chain(alone.into_iter().enumerate().map(named)).collect()
    }
}
