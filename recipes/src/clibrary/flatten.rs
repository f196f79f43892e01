//! The launches of a step as tables: kernels, addresses, and for each number of threads the groups between barriers. Loops over time become
//! the launches of all their times, whose addresses are known.

use super::boundary::Boundary;
use crate::pipeline::run::assemble::Assembly;
use crate::pipeline::run::launch::{Launch, SlotPlace};
use crate::pipeline::run::packs::Packs;
use kernels::Executable;
use kernels::c_form::{CForm, Filled, GeneratedC, ScatterC, Unrolled, UnrolledAddress};
use kernels::packing::{ListedPhases, ListedPiece};
use kernels::phases::{PartitionIndex, Spread};
use kernels::pool::Working;
use std::collections::BTreeMap;

pub(super) const LINE: usize = 64;
const PAGE: usize = 4096;

/// A kernel as C.
pub struct FlatKernel<'a> {
    pub name: String,
    pub arguments: usize,
    pub form: FlatForm<'a>,
}

pub enum FlatForm<'a> {
    Generated(GeneratedC<'a>),
    Scatter(ScatterC),
}

/// Bytes from a memory of the caller's, whose numbers begin at 1, or from the workspace, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    pub base: usize,
    pub offset: usize,
}

/// A run of a kernel: its arguments are the addresses from `address` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlatLaunch {
    pub kernel: usize,
    pub address: usize,
    pub own: usize,
    pub shared: usize,
}

/// Part of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchPart {
    pub launch: usize,
    /// `None` is all phases.
    pub phase: Option<usize>,
    pub spread: Spread,
    pub along: Option<PartitionIndex>,
}

/// Items between two barriers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    pub before: Vec<LaunchPart>,
    pub work: Vec<LaunchPart>,
}

/// What runs once, and for each number of threads the step: its number among the distinct ones.
pub struct Schedules {
    pub once: Vec<Group>,
    pub distinct: Vec<Vec<Group>>,
    pub by_threads: Vec<usize>,
}

pub struct Flattener<'a> {
    pub kernels: Vec<FlatKernel<'a>>,
    pub addresses: Vec<Address>,
    pub launches: Vec<FlatLaunch>,
    /// Parts of the workspace that hold one value: those of loops, moved to where these lie.
    pub fills: Vec<Filled>,
    slots: Vec<Address>,
    /// Bytes of the workspace without working memory.
    fixed: usize,
    working: Working,
    known_kernels: BTreeMap<*const (), usize>,
    known_addresses: BTreeMap<Vec<Address>, usize>,
    known_launches: BTreeMap<FlatLaunch, usize>,
    /// Where the own memory of each loop lies.
    loops: BTreeMap<*const (), usize>,
}

/// Where an executable lies, which tells it from others.
fn identity(executable: &dyn Executable) -> *const () {
    std::ptr::from_ref(executable).cast()
}

impl<'a> Flattener<'a> {
    /// The workspace holds the arena, and what is kept between steps besides the caller's.
    pub fn new(assembly: &Assembly, boundary: &Boundary) -> Flattener<'a> {
        let mut fixed = assembly.arena_bytes.next_multiple_of(LINE) + LINE;
        let mut slots = Vec::new();
        for (n, slot) in assembly.slots.iter().enumerate() {
            let address = match (boundary.of_slot.get(&n), &slot.place) {
                (Some(memory), _) => Address { base: memory + 1, offset: 0 },
                (None, SlotPlace::Arena(offset)) => Address { base: 0, offset: *offset },
                (None, SlotPlace::Held(_)) => {
                    let offset = fixed;
                    fixed += slot.bytes.next_multiple_of(LINE) + LINE;
                    Address { base: 0, offset }
                }
                // What another one holds that is not the caller's lies before it.
                (None, SlotPlace::Over(held)) => slots.get(*held).copied().unwrap_or(Address { base: 0, offset: 0 }),
            };
            slots.push(address);
        }
        Flattener {
            kernels: vec![],
            addresses: vec![],
            launches: vec![],
            fills: vec![],
            slots,
            fixed,
            working: Working::default(),
            known_kernels: BTreeMap::new(),
            known_addresses: BTreeMap::new(),
            known_launches: BTreeMap::new(),
            loops: BTreeMap::new(),
        }
    }

    /// Where the memory that all workers share begins in the workspace.
    pub fn shared_at(&self) -> usize {
        self.fixed.next_multiple_of(LINE)
    }

    /// Where the first worker's own memory begins, and what those of two are apart.
    pub fn own_at(&self) -> usize {
        (self.shared_at() + self.working.shared).next_multiple_of(PAGE)
    }

    pub fn own_stride(&self) -> usize {
        self.working.own.next_multiple_of(PAGE).max(PAGE)
    }

    /// Whether something in the workspace lasts from one step to the next: values that loops begin with, or what runs once.
    pub fn keeps(&self, schedules: &Schedules) -> bool {
        !self.fills.is_empty() || !schedules.once.is_empty()
    }

    /// The most arguments of a kernel.
    pub fn most_arguments(&self) -> usize {
        self.kernels.iter().map(|k| k.arguments).max().unwrap_or(0)
    }

    /// The schedules of a step for up to so many threads.
    ///
    /// # Errors
    /// A sentence that names a kernel of which there is no C.
    pub fn step(&mut self, assembly: &'a Assembly, most_threads: usize, packed: bool) -> Result<Schedules, String> {
        let mut found = Schedules { once: vec![], distinct: vec![], by_threads: vec![] };
        for launch in &assembly.once {
            self.alone(&launch.name, &*launch.executable, self.arguments(launch), most_threads, &mut found.once)?;
        }
        for workers in 1..=most_threads {
            let mut groups = Vec::new();
            if packed {
                let packs = Packs::of(&assembly.launches, &assembly.slots, workers);
                let (listed, places) = packs.listed();
                self.working = self.working.max(packs.working());
                let of = |launch: usize| {
                    let launch_of = &assembly.launches[launch];
                    (launch_of.name.as_str(), &*launch_of.executable, places[launch])
                };
                for group in listed {
                    if let [ListedPiece { launch, phases: ListedPhases::Whole, .. }] = group.work[..] {
                        let launch = &assembly.launches[launch];
                        self.alone(&launch.name, &*launch.executable, self.arguments(launch), workers, &mut groups)?;
                        continue;
                    }
                    let mut items = |pieces: &[ListedPiece]| -> Result<Vec<LaunchPart>, String> {
                        let item = |piece: &ListedPiece| {
                            let (name, executable, place) = of(piece.launch);
                            let arguments = self.arguments(&assembly.launches[piece.launch]);
                            self.item(name, executable, arguments, place, piece)
                        };
                        pieces.iter().map(item).collect()
                    };
                    groups.push(Group { before: items(&group.before)?, work: items(&group.work)? });
                }
            } else {
                for launch in &assembly.launches {
                    self.alone(&launch.name, &*launch.executable, self.arguments(launch), workers, &mut groups)?;
                }
            }
            let number = found.distinct.iter().position(|known| *known == groups).unwrap_or_else(|| {
                found.distinct.push(groups);
                found.distinct.len() - 1
            });
            found.by_threads.push(number);
        }
        Ok(found)
    }

    fn arguments(&self, launch: &Launch) -> Vec<Address> {
        launch.arguments.iter().map(|(slot, _)| self.slots[*slot]).collect()
    }

    /// A kernel by itself: each phase is a group.
    fn alone(
        &mut self,
        name: &str,
        executable: &'a dyn Executable,
        arguments: Vec<Address>,
        workers: usize,
        groups: &mut Vec<Group>,
    ) -> Result<(), String> {
        if let Some(CForm::Loop(unrolled)) = executable.as_c() {
            return self.unrolled(name, identity(executable), unrolled, &arguments, workers, groups);
        }
        let launch = self.launch(name, executable, arguments, Working::default())?;
        self.working = self.working.max(executable.working());
        for (n, phase) in executable.phases().unwrap_or_default().iter().enumerate() {
            let item = LaunchPart { launch, phase: Some(n), spread: phase.spread, along: None };
            groups.push(match phase.spread {
                Spread::Alone => Group { before: vec![item], work: vec![] },
                _ => Group { before: vec![], work: vec![item] },
            });
        }
        Ok(())
    }

    /// A loop: the launches of all times, packed where all kernels allow it.
    fn unrolled(
        &mut self,
        name: &str,
        identity: *const (),
        unrolled: &'a dyn Unrolled,
        arguments: &[Address],
        workers: usize,
        groups: &mut Vec<Group>,
    ) -> Result<(), String> {
        let own = self.own_memory(identity, unrolled);
        let fault = |e: kernels::KernelError| e.to_string();
        let launches = unrolled.launches().map_err(fault)?;
        let kernels = unrolled.kernels();
        let addresses = |launch: usize| -> Vec<Address> {
            let address = |place: &UnrolledAddress| match place {
                UnrolledAddress::Argument(argument, at) => Address { offset: arguments[*argument].offset + at, ..arguments[*argument] },
                UnrolledAddress::Own(at) => Address { base: 0, offset: own + at },
            };
            launches[launch].arguments.iter().map(address).collect()
        };
        let Some(packed) = unrolled.packed(workers).map_err(fault)? else {
            for n in 0..launches.len() {
                self.alone(name, kernels[launches[n].kernel], addresses(n), workers, groups)?;
            }
            return Ok(());
        };
        self.working = self.working.max(packed.working());
        for group in packed.listed() {
            let mut items = |pieces: &[ListedPiece]| -> Result<Vec<LaunchPart>, String> {
                let item = |piece: &ListedPiece| {
                    let kernel = launches[piece.launch].kernel;
                    self.item(name, kernels[kernel], addresses(piece.launch), packed.places()[kernel], piece)
                };
                pieces.iter().map(item).collect()
            };
            groups.push(Group { before: items(&group.before)?, work: items(&group.work)? });
        }
        Ok(())
    }

    /// Where the own memory of a loop begins.
    fn own_memory(&mut self, identity: *const (), unrolled: &dyn Unrolled) -> usize {
        if let Some(at) = self.loops.get(&identity) {
            return *at;
        }
        let at = self.fixed.next_multiple_of(LINE);
        let (bytes, fills) = unrolled.own();
        self.fixed = at + bytes.next_multiple_of(LINE) + LINE;
        self.fills.extend(fills.iter().map(|fill| Filled { at: at + fill.at, ..*fill }));
        self.loops.insert(identity, at);
        at
    }

    fn item(
        &mut self,
        name: &str,
        executable: &'a dyn Executable,
        arguments: Vec<Address>,
        place: Working,
        piece: &ListedPiece,
    ) -> Result<LaunchPart, String> {
        let launch = self.launch(name, executable, arguments, place)?;
        let phase = match piece.phases {
            ListedPhases::One(phase) => Some(phase),
            ListedPhases::All | ListedPhases::Whole => None,
        };
        Ok(LaunchPart { launch, phase, spread: piece.spread, along: piece.along })
    }

    fn launch(&mut self, name: &str, executable: &'a dyn Executable, arguments: Vec<Address>, place: Working) -> Result<usize, String> {
        let kernel = self.kernel(name, executable, arguments.len())?;
        let address = match self.known_addresses.get(&arguments) {
            Some(address) => *address,
            None => {
                let address = self.addresses.len();
                self.addresses.extend(&arguments);
                self.known_addresses.insert(arguments, address);
                address
            }
        };
        let launch = FlatLaunch { kernel, address, own: place.own, shared: place.shared };
        Ok(*self.known_launches.entry(launch).or_insert_with(|| {
            self.launches.push(launch);
            self.launches.len() - 1
        }))
    }

    fn kernel(&mut self, name: &str, executable: &'a dyn Executable, arguments: usize) -> Result<usize, String> {
        let identity = identity(executable);
        if let Some(known) = self.known_kernels.get(&identity) {
            return Ok(*known);
        }
        let form = match executable.as_c() {
            Some(CForm::Generated(generated)) => FlatForm::Generated(generated),
            Some(CForm::Scatter(scatter)) => FlatForm::Scatter(scatter),
            Some(CForm::Loop(_)) | None => return Err(format!("there is no C of kernel `{name}`: a library of Rust computes it")),
        };
        self.kernels.push(FlatKernel { name: name.to_string(), arguments, form });
        self.known_kernels.insert(identity, self.kernels.len() - 1);
        Ok(self.kernels.len() - 1)
    }
}
