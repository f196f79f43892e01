//! Saved or recomputed: which forward tensors the backward state reads from memory, and which it recomputes.
//!
//! ```text
//! forward:   dot = Σ w·x;  s = dot + c;  a = relu(s)
//! backward:  d_s = s > 0 ? d_a : 0                       (reads s)
//! becomes:   s.again = dot + c;  d_s = s.again > 0 ? …   (reads dot, which is in memory anyway)
//! ```
//!
//! *Rule.* A forward transient T that backward operations C₁…Cₙ read is recomputed if all of this holds:
//! 1. An element-wise operation computes it, and no contraction in the backward state reads it (that would have to read
//!    the recomputed tensor from memory again).
//! 2. It follows by element-wise operations alone from *sources*, which are in memory anyway: inputs, parameters, outputs,
//!    results of contractions, operands of contractions, and what this rule has saved already.
//! 3. Bytes fall: `Σᵢ (bytes of sources that Cᵢ does not read − bytes(T)) − w < 0`, where `w` is bytes(T) if nothing
//!    else puts T into memory (so that it is never written), else 0.
//! 4. Arithmetic stays small: at most `FLOP_PER_BYTE` operations for each byte that is not moved. So of a long chain of element-wise
//!    steps a tensor is saved every few steps. Otherwise each reader would compute the chain from its beginning, and n steps would take
//!    n² operations.
//!
//! [`crate::ReluSignFromOutput`] runs before this pass: it lets operations that need only the sign of a tensor read another one.
//!
//! Each reader gets clones of its own, `<T>.again`, so that fusion can merge them into it. The count assumes that it does:
//! a clone is element-wise and has one reader on its own iteration space. Dropout masks are always recomputed.

pub use crate::autodiff::saved::{RecomputeError, RecomputePolicy, Saved};
use crate::pass::{Context, Facts, Loops, Rewritten, Stopped, refused_at};
use sdfg::library::Class;
use sdfg::recurrence::has_loops;
use sdfg::{Container, Direction, Op, Operation, Origin, Role, Scalar, Sdfg, StateId, Unit};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Operations that may be computed again for each byte that is not moved. Cores and GPUs execute some ten in the time that a byte takes
/// from memory; what a kernel computes besides has its share.
const FLOP_PER_BYTE: u64 = 4;

/// Where the results of contractions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    InMemory,
    /// Inside the kernel of the contraction, fused with a bias and an activation: only the fused result is in memory.
    OnChip,
}

/// Applies the rule to a differentiated program of operators. Decisions that earlier passes have made stay; its own follow in the order
/// of the forward state, masks last. A program without a state `backward` is refused.
#[derive(Clone, Copy, Debug)]
pub struct Recompute {
    pub products: Products,
}

impl Default for Recompute {
    fn default() -> Self {
        Recompute { products: Products::InMemory }
    }
}

impl crate::pass::Pass for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn loops(&self) -> Loops {
        Loops::Outside
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let Some(backward) = program.state_named("backward") else {
            return Err(Stopped::at_program(self.name(), "the program has no state `backward`"));
        };
        if has_loops(program) {
            let facts = Facts { saved: all_saved(program, backward)?, ..Facts::default() };
            let Stopped::Refused { refusals, .. } = Stopped::at_program(self.name(), "a loop over time saves what backward reads of it")
            else {
                return Err(Stopped::refused(vec![]));
            };
            return Err(Stopped::Refused { refusals, facts: Box::new(facts) });
        }
        let (forward, readers) = forward_and_backward(program, backward)?;
        let decided = &context.facts.saved;
        let mut choice = Choice::new(program, &forward, &readers, self.products);
        let settled: BTreeSet<String> = decided.iter().map(|s| s.container.clone()).collect();
        choice.in_memory.extend(decided.iter().filter(|s| s.policy == RecomputePolicy::Saved).map(|s| s.container.clone()));
        let mut decisions = Vec::new();
        for output in forward.iter().flat_map(|o| &o.outputs).filter(|o| !settled.contains(&o.data)) {
            if let Some(witness) = context.facts.signs.get(&output.data) {
                let why = format!("only whether it is positive is asked, and `{witness}`, which is in memory anyway, tells that");
                decisions.push(Saved {
                    container: output.data.clone(),
                    bytes: choice.bytes(&output.data)?,
                    policy: RecomputePolicy::Recomputed,
                    why,
                });
            }
            decisions.extend(choice.decide(&output.data)?);
        }
        decisions.extend(masks(program, &readers)?);
        let chains = choice.chains;
        let facts = Facts { saved: decisions, ..Facts::default() };
        if chains.is_empty() {
            let mut makers: HashMap<&str, &Operation> = HashMap::new();
            for operation in &forward {
                operation.outputs.iter().for_each(|out| _ = makers.entry(&out.data).or_insert(operation));
            }
            let maker = |s: &Saved| makers.get(s.container.as_str()).copied();
            let saved = facts.saved.iter().filter(|s| s.policy == RecomputePolicy::Saved);
            let found = saved.filter_map(|s| Some((maker(s)?, format!("`{}` is saved: {}", s.container, s.why))));
            let refused = refused_at(self.name(), program, found, "backward reads no intermediate of forward");
            let Stopped::Refused { refusals, .. } = refused else { return Err(refused) };
            return Err(Stopped::Refused { refusals, facts: Box::new(facts) });
        }
        let names: Vec<String> = chains.keys().map(|data| format!("`{data}`")).collect();
        let summary = format!("recompute {} in backward", names.join(", "));
        Ok(Rewritten::program(summary, with_clones(program, backward, &chains)?).with(facts))
    }
}

/// The policy of programs with loops over time: every forward transient that backward reads is saved, of a loop for all times.
fn all_saved(program: &Sdfg, backward: StateId) -> Result<Vec<Saved>, RecomputeError> {
    let mut made: Vec<(String, bool)> = Vec::new();
    let mut read: BTreeSet<String> = BTreeSet::new();
    for (id, state) in program.states() {
        for (node, unit) in state.units() {
            let (reads, writes) = state.boundary(node);
            match id == backward {
                true => read.extend(reads.into_iter().map(|m| m.data.clone())),
                false => made.extend(writes.into_iter().map(|m| (m.data.clone(), matches!(unit, Unit::Nested(_))))),
            }
        }
    }
    let is_read = |(data, _): &(String, bool)| read.contains(data) && program.containers.get(data).is_some_and(|c| c.is_transient());
    let saved = |(container, in_loop): (String, bool)| {
        let bytes = program.bytes(&container).map_err(|source| RecomputeError::Size { container: container.clone(), source })?;
        let why = if in_loop {
            "a loop makes it, and it is kept for all times"
        } else {
            "the program has loops, which keep all that backward reads"
        };
        Ok(Saved { container, bytes, policy: RecomputePolicy::Saved, why: why.into() })
    };
    made.into_iter().filter(is_read).map(saved).collect()
}

/// The operations of all other states and those of the state `backward`, each in execution order.
pub(crate) fn forward_and_backward(program: &Sdfg, backward: StateId) -> Result<(Vec<Operation>, Vec<Operation>), RecomputeError> {
    let (mut forward, mut readers) = (Vec::new(), Vec::new());
    for (state, _, unit) in program.units() {
        match unit {
            Unit::Operation(operation) if state == backward => readers.push(operation),
            Unit::Operation(operation) => forward.push(operation),
            other => return Err(RecomputeError::Expanded { unit: other.name().to_string() }),
        }
    }
    Ok((forward, readers))
}

/// How a container is computed again: element-wise operations in forward order.
type Chain = Vec<Operation>;

struct Choice<'a> {
    program: &'a Sdfg,
    producers: BTreeMap<&'a str, &'a Operation>,
    /// By container, the backward operations that read it, in order.
    readers: HashMap<&'a str, Vec<&'a Operation>>,
    /// Containers that are in memory in the backward state in any case, and those saved so far.
    in_memory: BTreeSet<String>,
    /// The recomputed containers.
    chains: BTreeMap<String, Chain>,
}

impl<'a> Choice<'a> {
    fn new(program: &'a Sdfg, forward: &'a [Operation], backward: &'a [Operation], products: Products) -> Self {
        let producers: BTreeMap<_, _> = forward.iter().flat_map(|o| o.outputs.iter().map(move |out| (out.data.as_str(), o))).collect();
        let mut in_memory: BTreeSet<String> = program
            .containers
            .values()
            .filter(|c| c.role != Role::Transient || !producers.contains_key(c.name.as_str()))
            .map(|c| c.name.clone())
            .collect();
        for operation in forward.iter().chain(backward).filter(|o| o.class() == Class::Contraction) {
            let outputs = operation.outputs.iter().filter(|_| products == Products::InMemory);
            in_memory.extend(operation.inputs.iter().chain(outputs).map(|o| o.data.clone()));
        }
        let mut readers: HashMap<&str, Vec<&Operation>> = HashMap::new();
        for operation in backward {
            for data in operation.inputs.iter().map(|input| input.data.as_str()).collect::<BTreeSet<_>>() {
                readers.entry(data).or_default().push(operation);
            }
        }
        Choice { program, producers, readers, in_memory, chains: BTreeMap::new() }
    }

    /// Decides on a forward container; `None` if the backward state does not read it.
    fn decide(&mut self, data: &str) -> Result<Option<Saved>, RecomputeError> {
        let Some(readers) = self.readers.get(data).cloned() else { return Ok(None) };
        let bytes = self.bytes(data)?;
        let (policy, why) = match self.chain(data, &readers)? {
            Ok((chain, why)) => {
                self.chains.insert(data.to_string(), chain);
                (RecomputePolicy::Recomputed, why)
            }
            Err(why) => {
                self.in_memory.insert(data.to_string());
                (RecomputePolicy::Saved, why)
            }
        };
        Ok(Some(Saved { container: data.to_string(), bytes, policy, why }))
    }

    /// The chain that recomputes `data` and why that pays, or why it is saved.
    fn chain(&self, data: &str, readers: &[&Operation]) -> Result<Result<(Chain, String), String>, RecomputeError> {
        if self.program.containers.get(data).is_some_and(|c| c.role != Role::Transient) {
            return Ok(Err("it is handed back, so it is in memory anyway".into()));
        }
        if let Some(contraction) = readers.iter().find(|r| r.class() == Class::Contraction) {
            return Ok(Err(format!("the contraction `{}` reads it from memory", contraction.name)));
        }
        let (mut chain, mut sources) = (Vec::new(), BTreeSet::new());
        if let Err(why) = self.collect(data, true, &mut chain, &mut sources) {
            return Ok(Err(why));
        }
        let own = self.bytes(data)?;
        let (mut before, mut after) = (if self.in_memory.contains(data) { 0 } else { own }, 0);
        for reader in readers {
            before += own;
            for source in sources.iter().filter(|s| reader.inputs.iter().all(|i| i.data != **s)) {
                after += self.bytes(source)?;
            }
        }
        let from: Vec<_> = sources.iter().map(|s| format!("`{s}`")).collect();
        let from = if from.is_empty() { "nothing".to_string() } else { from.join(", ") };
        if after >= before {
            return Ok(Err(format!("recomputing it from {from} would move {after} bytes instead of {before}")));
        }
        let size = |source| RecomputeError::Size { container: data.to_string(), source };
        let flop = chain
            .iter()
            .map(|o| o.flop(self.program).eval(&self.program.sizes))
            .try_fold(0u64, |all, flop| flop.map(|flop| all.saturating_add(u64::try_from(flop).unwrap_or(0))));
        let flop = flop.map_err(size)?.saturating_mul(readers.len() as u64);
        Ok(if flop <= (before - after).saturating_mul(FLOP_PER_BYTE) {
            Ok((chain, format!("from {from} with {after} bytes moved instead of {before}")))
        } else {
            Err(format!("recomputing it from {from} would take {flop} operations to save {} bytes", before - after))
        })
    }

    /// Appends what it takes to compute `data`; `first` is set for the container that is asked about.
    fn collect(&self, data: &str, first: bool, chain: &mut Chain, sources: &mut BTreeSet<String>) -> Result<(), String> {
        if self.in_memory.contains(data) && !first {
            sources.insert(data.to_string());
            return Ok(());
        }
        let Some(producer) = self.producers.get(data) else { return Err(format!("`{data}` comes from outside")) };
        if !matches!(producer.op, Op::Elementwise { .. }) {
            let subject = if first { "it".to_string() } else { format!("it follows from `{data}`, which") };
            return Err(format!("{subject} is computed by the operator {}, not element by element", producer.label()));
        }
        if chain.iter().any(|o| o.name == producer.name) {
            return Ok(());
        }
        for input in &producer.inputs {
            self.collect(&input.data, false, chain, sources)?;
        }
        chain.push((*producer).clone());
        Ok(())
    }

    fn bytes(&self, data: &str) -> Result<u64, RecomputeError> {
        self.program.bytes(data).map_err(|source| RecomputeError::Size { container: data.to_string(), source })
    }
}

/// The masks that the backward state draws again.
fn masks(program: &Sdfg, backward: &[Operation]) -> Result<Vec<Saved>, RecomputeError> {
    let mut streams = BTreeSet::new();
    for operation in backward {
        if let Op::Elementwise { code, .. } | Op::Reduce { code, .. } = &operation.op {
            code.walk(&mut |s| {
                if let Scalar::Keep { stream, .. } = s {
                    streams.insert(stream.clone());
                }
            });
        }
    }
    let mut found = Vec::new();
    for stream in streams.into_iter().filter(|s| program.containers.contains_key(s)) {
        let bytes = program.elements(&stream).map_err(|source| RecomputeError::Size { container: stream.clone(), source })?;
        let why = "it is a pure function of seed, step and element".into();
        found.push(Saved { container: format!("mask of {stream}"), bytes, policy: RecomputePolicy::Recomputed, why });
    }
    Ok(found)
}

/// The program with clones in its backward state: before each reader those that it reads instead.
fn with_clones(program: &Sdfg, backward: StateId, chains: &BTreeMap<String, Chain>) -> Result<Sdfg, RecomputeError> {
    let mut result = program.clone();
    result.map_operations(backward, |result, reader| {
        let mut operations = Vec::new();
        // Forward container → its clone for this reader.
        let mut again: BTreeMap<String, String> = BTreeMap::new();
        for input in &reader.inputs {
            for link in chains.get(&input.data).into_iter().flatten() {
                let Some(data) = link.outputs.first().map(|o| o.data.clone()).filter(|d| !again.contains_key(d)) else { continue };
                let name = result.fresh_name(&format!("{data}.again"));
                if let Some(like) = program.containers.get(&data) {
                    let origin: Option<Origin> = link.origin.clone().or(like.origin.clone());
                    result.add_container(Container { name: name.clone(), role: Role::Transient, origin, ..like.clone() });
                }
                again.insert(data, name.clone());
                operations.push(Operation { name, pass: Direction::Backward, ..renamed(link, &again, true) });
            }
        }
        operations.push(renamed(&reader, &again, false));
        operations
    })?;
    Ok(result)
}

fn renamed(operation: &Operation, with: &BTreeMap<String, String>, outputs_too: bool) -> Operation {
    let mut operation = operation.clone();
    let outputs = if outputs_too { &mut operation.outputs[..] } else { &mut [] };
    for operand in operation.inputs.iter_mut().chain(outputs) {
        if let Some(name) = with.get(&operand.data) {
            operand.data = name.clone();
        }
    }
    operation
}
