//! The backward operations while they are collected: contributions to each gradient, their sums, and the types they are stored in.

use super::activity::known;
use super::error::DifferentiateError;
use indexmap::{IndexMap, IndexSet};
use sdfg::library::WantedGradients;
use sdfg::library::calculus::fold_inline;
use sdfg::{Combine, Container, Direction, Expr, Lifetime, Op, Operand, Operation, Role, Scalar, Sdfg};
use std::collections::{BTreeMap, BTreeSet};

/// The backward operations while they are collected.
pub(super) struct Tape {
    /// The forward program with the containers of the gradients so far.
    pub(super) program: Sdfg,
    seeds: Vec<String>,
    /// The scalar whose gradient, `d_<name>`, is the constant 1.
    loss: Option<String>,
    pub(super) wanted: IndexSet<String>,
    relevant: BTreeSet<String>,
    /// Container that only stores another one in a narrower type → that one.
    casts: BTreeMap<String, String>,
    /// How many operands of relevant operations read a container.
    readers: BTreeMap<String, usize>,
    /// Forward container → containers that hold contributions to its gradient, in order of computation.
    contributions: BTreeMap<String, Vec<String>>,
    /// Containers to whose gradients each reader writes a part.
    pub(super) parted: BTreeSet<String>,
    /// Results of a loop, to whose gradients operations of the loop still contribute → the containers of these gradients.
    unfinished: BTreeMap<String, String>,
    pub(super) operations: Vec<Operation>,
}

impl Tape {
    pub(super) fn new(
        program: &Sdfg,
        seeds: &[&Container],
        loss: Option<String>,
        wanted: Vec<String>,
        relevant: BTreeSet<String>,
    ) -> Result<Self, DifferentiateError> {
        let mut program = program.clone();
        for of in relevant.iter().chain(&wanted).chain(seeds.iter().map(|seed| &seed.name)) {
            let name = format!("d_{of}");
            if program.containers.contains_key(&name) {
                return Err(DifferentiateError::NameTaken { name, of: of.clone() });
            }
        }
        let mut contributions = BTreeMap::new();
        for &seed in seeds {
            let given = format!("d_{}", seed.name);
            if loss.is_none() {
                let input = Container { name: given.clone(), role: Role::Input, lifetime: Lifetime::Program, grad: false, ..seed.clone() };
                program.add_container(input);
            }
            contributions.insert(seed.name.clone(), vec![given]);
        }
        Ok(Tape {
            program,
            seeds: seeds.iter().map(|seed| seed.name.clone()).collect(),
            loss,
            wanted: wanted.into_iter().collect(),
            relevant,
            casts: BTreeMap::new(),
            readers: BTreeMap::new(),
            contributions,
            parted: BTreeSet::new(),
            unfinished: BTreeMap::new(),
            operations: Vec::new(),
        })
    }

    pub(super) fn find_casts(&mut self, operations: &[Operation]) {
        for operation in operations {
            let (Some(from), Some(to)) = (operation.cast_of(&self.program), operation.output("out")) else { continue };
            let roundoff = |data: &str| self.program.containers.get(data).map_or(0.0, |c| c.dtype.roundoff());
            // The gradient of a seed or of a wanted container is asked for in its own type: such a cast stays a step.
            if roundoff(&from.data) < roundoff(&to.data) && !self.seeds.contains(&to.data) && !self.wanted.contains(&to.data) {
                self.casts.insert(to.data.clone(), from.data.clone());
            }
        }
    }

    /// The container whose gradient that of `data` is.
    fn source<'a>(&'a self, data: &'a str) -> &'a str {
        let mut at = data;
        while let Some(from) = self.casts.get(at) {
            at = from;
        }
        at
    }

    pub(super) fn count_readers(&mut self, operations: &[Operation]) {
        let counts = |o: &&Operation| o.outputs.iter().any(|o| self.relevant.contains(&o.data) && !self.casts.contains_key(&o.data));
        let mut readers: BTreeMap<String, usize> = BTreeMap::new();
        for operation in operations.iter().filter(counts) {
            for input in operation.inputs.iter().filter(|i| self.relevant.contains(&i.data)) {
                *readers.entry(self.source(&input.data).to_string()).or_default() += 1;
            }
        }
        // The gradient that is given for a seed is one of the contributions.
        for seed in &self.seeds {
            *readers.entry(seed.clone()).or_default() += 1;
        }
        self.readers = readers;
    }

    /// Adds the derivative of one forward operation, if a seed depends on it.
    pub(super) fn pull_back(&mut self, forward: &Operation) -> Result<(), DifferentiateError> {
        let counts = |o: &&Operand| self.relevant.contains(&o.data) && !self.casts.contains_key(&o.data);
        let Some(out) = forward.output("out").filter(counts) else { return Ok(()) };
        let Some(upstream) = self.gradient_of(&out.data)? else { return Ok(()) };
        let mut gradients: BTreeMap<String, String> = BTreeMap::new();
        let mut parts: BTreeSet<String> = BTreeSet::new();
        for input in forward.inputs.iter().filter(|i| self.relevant.contains(&i.data)) {
            let source = self.source(&input.data);
            let mut target = format!("d_{source}");
            // A contribution to a sum is named after its consumer too, and by its connector if it reads the tensor twice.
            if self.parted.contains(source) {
                parts.insert(input.connector.clone());
            } else if self.readers.get(source).is_some_and(|n| *n > 1) {
                target = format!("{target}.{}", forward.name);
                if forward.inputs.iter().filter(|i| self.source(&i.data) == source).count() > 1 {
                    target = format!("{target}.{}", input.connector);
                }
                target = self.program.fresh_name(&target);
            }
            gradients.insert(input.connector.clone(), target);
        }
        let wanted = WantedGradients { gradients, parts, upstream };
        let derivative = forward
            .differentiate(&self.program, &wanted)
            .map_err(|error| DifferentiateError::Operator { error, at: forward.origin.clone() })?;
        self.program.dims.extend(derivative.dims);
        for container in derivative.containers {
            self.program.add_container(container);
        }
        for input in &forward.inputs {
            let Some(target) = wanted.gradients.get(&input.connector) else { continue };
            let source = self.source(&input.data).to_string();
            let holder = match derivative.same.get(&input.connector) {
                Some(same) => same.clone(),
                None if derivative.operations.iter().flat_map(|o| &o.outputs).any(|o| o.data == *target) => {
                    self.declare(target, &source)?;
                    target.clone()
                }
                None => continue,
            };
            let contributions = self.contributions.entry(source).or_default();
            if !contributions.contains(&holder) || !wanted.parts.contains(&input.connector) {
                contributions.push(holder);
            }
        }
        for mut operation in derivative.operations {
            // The parts of one gradient are written by kernels of different names.
            let part = operation.outputs.first().filter(|out| {
                wanted.parts.iter().any(|connector| wanted.gradients.get(connector).is_some_and(|target| *target == out.data))
            });
            if let Some(place) = part.and_then(|out| out.subscripts.iter().find_map(Expr::as_int)) {
                operation.name = format!("{}.{place}", operation.name);
            }
            self.push(operation)?;
        }
        Ok(())
    }

    /// Declares the gradients of what a loop carries from one time to the next, before any contribution to them is known.
    pub(super) fn open(&mut self, carried: &[String]) -> Result<(), DifferentiateError> {
        for data in carried {
            if !self.relevant.contains(data) {
                continue;
            }
            let target = self.target(data);
            self.declare(&target, data)?;
            self.unfinished.insert(data.clone(), target);
        }
        Ok(())
    }

    /// Adds up the contributions to those gradients.
    pub(super) fn close(&mut self, carried: &[String]) -> Result<(), DifferentiateError> {
        for data in carried {
            if let Some(target) = self.unfinished.remove(data) {
                let contributions = self.contributions.remove(data).unwrap_or_default();
                // A single contribution that was computed into the gradient's own container is the gradient.
                if contributions != [target.clone()] {
                    let label = if contributions.len() > 1 { "residual" } else { "copy" };
                    self.sum(data, &target, label, contributions)?;
                }
            }
        }
        Ok(())
    }

    /// The container of a gradient. A seed from which other seeds follow: its own name is that of the given gradient.
    fn target(&self, data: &str) -> String {
        let own = format!("d_{data}");
        if self.seeds.iter().any(|seed| seed == data) { self.program.fresh_name(&format!("{own}.all")) } else { own }
    }

    /// The container that holds the whole gradient of `data`; `None` if it is zero and not wanted.
    pub(super) fn gradient_of(&mut self, data: &str) -> Result<Option<String>, DifferentiateError> {
        if let Some(target) = self.unfinished.get(data) {
            return Ok(Some(target.clone()));
        }
        let contributions = self.contributions.remove(data).unwrap_or_default();
        let is_wanted = self.wanted.contains(data);
        let own = format!("d_{data}");
        let label = match &contributions[..] {
            [] if !is_wanted => return Ok(None),
            [only] if !is_wanted || *only == own => return Ok(Some(only.clone())),
            [] => "zero",
            [_] => "copy",
            _ => "residual",
        };
        let target = self.target(data);
        self.declare(&target, data)?;
        self.sum(data, &target, label, contributions)?;
        Ok(Some(target))
    }

    /// Computes a gradient as the sum of its contributions.
    fn sum(&mut self, data: &str, target: &str, label: &str, contributions: Vec<String>) -> Result<(), DifferentiateError> {
        let container = known(&self.program, data)?;
        let indices: IndexMap<String, String> = container.dims.iter().map(|d| (d.clone(), d.clone())).collect();
        let subscripts: Vec<Expr> = container.dims.iter().map(|d| Expr::sym(d.as_str())).collect();
        let origin = container.origin.clone();
        let mut inputs: Vec<Operand> = Vec::new();
        let mut code = Scalar::Const(0.0);
        for contribution in contributions {
            let connector = match inputs.iter().find(|i| i.data == contribution) {
                Some(known) => known.connector.clone(),
                None => {
                    let connector = format!("d{}", inputs.len());
                    inputs.push(Operand { connector: connector.clone(), data: contribution, subscripts: subscripts.clone(), fill: None });
                    connector
                }
            };
            code = code + Scalar::input(connector);
        }
        self.push(Operation {
            name: target.to_string(),
            op: Op::Elementwise { label: label.into(), code },
            indices,
            inputs,
            outputs: vec![Operand { connector: "out".into(), data: target.to_string(), subscripts, fill: None }],
            pass: Direction::Backward,
            origin,
        })
    }

    /// Declares a gradient container shaped like `of`: handed back if it is the wanted gradient, else transient.
    fn declare(&mut self, name: &str, of: &str) -> Result<(), DifferentiateError> {
        let like = known(&self.program, of)?;
        let is_wanted = self.wanted.contains(of) && name == format!("d_{of}");
        let role = if is_wanted { Role::Gradient } else { Role::Transient };
        let container = Container { name: name.into(), role, lifetime: Lifetime::Program, grad: false, ..like.clone() };
        self.program.add_container(container);
        Ok(())
    }

    /// Gives a contraction factors of one type: a wider one is cast to the other's, once for all that read it.
    fn narrow(&mut self, operation: &mut Operation) -> Result<(), DifferentiateError> {
        let types =
            operation.inputs.iter().map(|i| Ok(known(&self.program, &i.data)?.dtype)).collect::<Result<Vec<_>, DifferentiateError>>()?;
        let Some(dtype) = types.iter().copied().max_by(|a, b| a.roundoff().total_cmp(&b.roundoff())) else { return Ok(()) };
        for (input, _) in operation.inputs.iter_mut().zip(types).filter(|(_, t)| *t != dtype) {
            let from = known(&self.program, &input.data)?.clone();
            let name = format!("{}.{dtype}", from.name);
            if !self.program.containers.contains_key(&name) {
                let made = Container { role: Role::Transient, lifetime: Lifetime::Program, grad: false, view: None, dtype, ..from.clone() };
                self.program.add_container(Container { name: name.clone(), ..made });
                let subscripts: Vec<Expr> = from.dims.iter().map(|d| Expr::sym(d.as_str())).collect();
                let operand = |connector: &str, data: &str| Operand {
                    connector: connector.into(),
                    data: data.into(),
                    subscripts: subscripts.clone(),
                    fill: None,
                };
                self.operations.push(Operation {
                    name: name.clone(),
                    op: Op::Elementwise { label: "cast".into(), code: Scalar::input("x") },
                    indices: from.dims.iter().map(|d| (d.clone(), d.clone())).collect(),
                    inputs: vec![operand("x", &from.name)],
                    outputs: vec![operand("out", &name)],
                    pass: Direction::Backward,
                    origin: operation.origin.clone(),
                });
            }
            input.data = name;
        }
        Ok(())
    }

    /// Adds a backward operation. The gradient of a loss is folded into it as the constant 1.
    fn push(&mut self, mut operation: Operation) -> Result<(), DifferentiateError> {
        let one = self.loss.clone().map(|loss| (format!("d_{loss}"), loss));
        let Some((one, loss)) = one.filter(|(one, _)| operation.inputs.iter().any(|i| i.data == *one)) else {
            if matches!(operation.op, Op::Contraction { .. }) {
                self.narrow(&mut operation)?;
            }
            self.operations.push(operation);
            return Ok(());
        };
        if let Op::Contraction { scale } = &operation.op {
            let code = Scalar::input("a") * Scalar::input("b");
            operation.op = Op::Reduce { label: "product dX".into(), combine: Combine::Sum, code, scale: scale.clone() };
        }
        match &mut operation.op {
            Op::Elementwise { code, .. } | Op::Reduce { code, .. } => {
                for input in operation.inputs.iter().filter(|i| i.data == one) {
                    *code = fold_inline(code, &input.connector, &Scalar::Const(1.0));
                }
                operation.inputs.retain(|i| i.data != one);
            }
            // Softmax and normalization of a scalar: too rare to fold, so the 1 is stored.
            _ if !self.program.containers.contains_key(&one) => {
                self.declare(&one, &loss)?;
                self.operations.push(Operation {
                    name: one.clone(),
                    op: Op::Elementwise { label: "one".into(), code: Scalar::Const(1.0) },
                    indices: IndexMap::new(),
                    inputs: vec![],
                    outputs: vec![Operand { connector: "out".into(), data: one, subscripts: vec![], fill: None }],
                    pass: Direction::Backward,
                    origin: operation.origin.clone(),
                });
            }
            _ => {}
        }
        self.operations.push(operation);
        Ok(())
    }
}
