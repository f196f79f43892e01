//! The certificate of a choice: what was chosen, what it costs, and why nothing measured is cheaper.
//!
//! One JSON file. Costs are whole picoseconds, so equality is exact. A program is a stack of equal layers, most
//! often of one. Between layers stand potentials of the states in which one hands over to the next (see [`crate::solve::stack`]);
//! a step claims what a layer costs at least, between any two states, beyond the difference of their potentials. Its proof
//! is a tree of parts of all choices: shares of the kernels' costs (the reparametrised costs, see [`crate::solve::dual`]) that
//! bound a part from below and rule values out, then either nothing more, an order of elimination for what they leave, or
//! one part for each value of a variable. [`mod@crate::certify::verify`] checks it without searching and without the solver. A
//! choice that was not proven has a certificate too: of the bound that holds.

use crate::measure::store::Store;
use crate::model::cost::Cost;
use crate::model::network::Network;
use crate::model::selection_model::Model;
use crate::problem::SelectionProblem;
use crate::solve::exact;
use crate::solve::stack::{Joins, Stacked};
use sdfg::Layout;
use sdfg::config::KernelConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

/// Version of the file format.
pub const FORMAT: u32 = 2;

/// Kernel → variable → cost given to each of its values, in picoseconds.
pub type Shares = BTreeMap<String, BTreeMap<String, Vec<Cost>>>;

/// Names under which the potentials on the two sides of a layer stand in shares; no kernel has such a name.
pub const ENTERS: &str = "(enters)";
pub const LEAVES: &str = "(leaves)";

/// The same for what variants need, by position.
pub fn need(n: usize) -> String {
    format!("(need {n})")
}

/// A class of tied containers, by the first of them, or a group of alternatives; and its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    pub name: String,
    pub values: Vec<String>,
}

/// One part of all choices. Each table of shares rules out what it shows to cost at least the total; then the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertifiedPart {
    pub shares: Vec<Shares>,
    #[serde(flatten)]
    pub step: CertifiedProof,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub enum CertifiedProof {
    /// The shares in force bound it.
    Bounded,
    /// What is left is minimised exactly, variable by variable in this order.
    Eliminated { order: Vec<usize> },
    /// One part for each value that is left: value, and position of the part, which comes later in the list.
    Split { variable: usize, parts: Vec<(usize, usize)> },
}

/// Lower bound of a layer's cost beyond the difference of its potentials, for all states on its two sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertifiedLayerBound {
    /// Positions of the potentials on the side of the layer before, and of the next.
    pub enters: usize,
    pub leaves: usize,
    /// Its proof rules out values and rows whose lower bound is at least this.
    pub target_ps: Cost,
    /// Variable, value, and the value that is never worse.
    pub dominated: Vec<(usize, usize, usize)>,
    /// The first is the whole.
    pub parts: Vec<CertifiedPart>,
}

/// The choice for a layer, by names in the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerChoice {
    /// How every container is held.
    pub layouts: BTreeMap<String, Layout>,
    pub variants: BTreeMap<String, String>,
    /// Of the kernels that run.
    pub kernels: BTreeMap<String, KernelConfig>,
}

/// A layer of the stack: positions of its choice and of its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackLayer {
    pub choice: usize,
    pub step: usize,
}

/// The set in which the choice is best: the certificate says nothing about configurations that were not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredScope {
    /// Timed configurations by kernel.
    pub timed: BTreeMap<String, usize>,
    /// Variants that could not be chosen, with a kernel that was not measured.
    pub left_out: Vec<(String, String)>,
    /// Relayouts in the choice that were not timed: their cost is a pessimistic estimate.
    pub estimated_relayouts: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    pub format: u32,
    /// Of everything else in this file.
    pub checksum: String,
    /// Files of records, relative to this one.
    pub records: Vec<String>,
    /// Of the measurements that they hold.
    pub measurements: String,
    /// A layer of the stack.
    pub program: SelectionProblem,
    /// What costs a step nothing because it is done before the first one, in a sentence; empty where there is nothing of that kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub once: String,
    /// The plan of fusion that one of the programs carries out: of which candidates it was chosen and by which scores, in a sentence; empty
    /// where no program has one. The choice among programs is relative to that plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fusion: String,
    /// Containers of a layer, each with the one of the next layer that it is.
    pub joins: Joins,
    pub scope: MeasuredScope,
    /// Cost of the choice, all layers together.
    pub total_ps: Cost,
    /// No choice costs less; equal to the total if the choice is proven to be the best.
    pub bound_ps: Cost,
    /// Distinct choices, and which of them each layer has.
    pub choices: Vec<LayerChoice>,
    pub layers: Vec<StackLayer>,
    pub variables: Vec<Variable>,
    /// Every way to hold what lies between two layers: a layout for each join.
    pub states: Vec<Vec<Layout>>,
    /// Tables of potentials by state, in picoseconds.
    pub potentials: Vec<Vec<Cost>>,
    pub steps: Vec<CertifiedLayerBound>,
}

/// Why a certificate could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("{path}: this is no whole certificate ({why}); it was cut off or is another file. Make it again with `memlet solve`")]
    Format { path: String, why: String },
    #[error("{path}: the certificate was changed after it was written: its checksum is wrong. Make it again with `memlet solve`")]
    Checksum { path: String },
    #[error("{path}: the certificate has format {found}, this version reads {FORMAT}; make it again with `memlet solve`")]
    Version { path: String, found: u32 },
}

/// A hash of everything that was timed: equal for the same measurements in any order of files and lines.
pub fn measurements(store: &Store) -> String {
    let mut hasher = blake3::Hasher::new();
    for record in store.all() {
        if let Some(ms) = store.ms(record) {
            hasher.update(format!("{}\n{}\n{:016x}\n", record.key, record.config, ms.to_bits()).as_bytes());
        }
    }
    hasher.finalize().to_hex()[..32].to_string()
}

/// The sentence of [`Certificate::once`].
fn once(program: &SelectionProblem) -> String {
    let containers = program.tensors.iter().filter(|t| t.once).count();
    let kernels = program.kernels.iter().filter(|k| k.once).count();
    if containers == 0 {
        return String::new();
    }
    format!(
        "{containers} containers are the same in every step: {kernels} kernels that compute such containers of each other cost nothing here, and a \
         relayout of one of them costs a picosecond, because they run once, before the first step"
    )
}

impl LayerChoice {
    /// Spells out held layouts of the classes and variants of the groups.
    fn of(model: &Model, values: &[u16]) -> LayerChoice {
        let (held, variants) = values.split_at(model.classes.len());
        let mut layouts = BTreeMap::new();
        for (class, value) in model.classes.iter().zip(held) {
            layouts.extend(class.members.iter().map(|data| (data.clone(), class.layouts[*value as usize].clone())));
        }
        let named = model.groups.iter().zip(variants).map(|(g, v)| (g.name.clone(), g.variants[*v as usize].clone()));
        let best = |f: &crate::model::selection_model::Factor| (f.name.clone(), f.choices[f.best(held).0].config.clone());
        LayerChoice { layouts, variants: named.collect(), kernels: model.variant(variants).factors.iter().map(best).collect() }
    }
}

impl Certificate {
    pub fn new(program: &SelectionProblem, store: &Store, model: &Model, chosen: &Stacked, estimated_relayouts: usize) -> Self {
        let network = Network::new(model);
        let layouts = |c: &crate::model::selection_model::LayoutClass| Variable {
            name: c.members.first().cloned().unwrap_or_default(),
            values: c.layouts.iter().map(ToString::to_string).collect(),
        };
        let groups = model.groups.iter().map(|g| Variable { name: g.name.clone(), values: g.variants.clone() });
        let variables: Vec<Variable> = model.classes.iter().map(layouts).chain(groups).collect();
        let sides = [true, false].map(|enters| {
            let classes = chosen.joins.iter().filter_map(|(near, far)| model.class_of.get(if enters { far } else { near }));
            classes.copied().collect::<Vec<usize>>()
        });
        let shares = |dual: &Rc<crate::solve::dual::Dual>| -> Shares {
            let names = model.factors.iter().map(|f| f.name.clone()).chain((0..model.needs.len()).map(need));
            let named = names.zip(&network.functions);
            let mut legs: Vec<(String, Vec<usize>)> =
                named.map(|(name, f)| (name, f.legs.iter().map(|leg| leg.variable).collect())).collect();
            legs.extend([ENTERS, LEAVES].map(String::from).into_iter().zip(sides.clone()));
            let mut found = Shares::new();
            for ((name, legs), shares) in legs.into_iter().zip(&dual.shares) {
                for (variable, shares) in legs.into_iter().zip(shares).filter(|(_, shares)| shares.iter().any(|s| *s != 0)) {
                    found.entry(name.clone()).or_default().insert(variables[variable].name.clone(), shares.clone());
                }
            }
            found
        };
        let part = |node: &exact::SearchNode| CertifiedPart {
            shares: node.duals.iter().map(shares).collect(),
            step: match &node.step {
                exact::NodeProof::Bounded | exact::NodeProof::Open => CertifiedProof::Bounded,
                exact::NodeProof::Eliminated(order) => CertifiedProof::Eliminated { order: order.clone() },
                exact::NodeProof::Split(variable, parts) => {
                    CertifiedProof::Split { variable: *variable, parts: parts.iter().map(|(v, n)| (*v as usize, *n)).collect() }
                }
            },
        };
        let step = |step: &crate::solve::stack::LayerBound| CertifiedLayerBound {
            enters: step.enters,
            leaves: step.leaves,
            target_ps: step.target,
            dominated: step.proof.dominated.iter().map(|(v, a, b)| (*v, *a as usize, *b as usize)).collect(),
            parts: step.proof.nodes.iter().map(part).collect(),
        };
        let steps = chosen.steps.iter().map(step).collect();
        let timed = |f: &crate::model::selection_model::Factor| {
            let key = program.kernel(&f.name).map(|k| k.key.as_str()).unwrap_or_default();
            (f.name.clone(), store.of(key).filter(|m| store.ms(m).is_some()).count())
        };
        let (mut distinct, mut layers): (Vec<&Vec<u16>>, Vec<StackLayer>) = (Vec::new(), Vec::new());
        for (values, step) in chosen.layers.iter().zip(&chosen.chain) {
            let choice = distinct.iter().position(|known| *known == values).unwrap_or(distinct.len());
            if choice == distinct.len() {
                distinct.push(values);
            }
            layers.push(StackLayer { choice, step: *step });
        }
        let mut certificate = Certificate {
            format: FORMAT,
            checksum: String::new(),
            records: Vec::new(),
            measurements: measurements(store),
            program: program.clone(),
            once: once(program),
            fusion: String::new(),
            joins: chosen.joins.clone(),
            scope: MeasuredScope {
                timed: model.factors.iter().map(timed).collect(),
                left_out: model.groups.iter().flat_map(|g| g.left_out.clone()).collect(),
                estimated_relayouts,
            },
            total_ps: chosen.total,
            bound_ps: chosen.bound,
            choices: distinct.into_iter().map(|values| LayerChoice::of(model, values)).collect(),
            layers,
            variables,
            states: chosen.states.clone(),
            potentials: chosen.potentials.clone(),
            steps,
        };
        certificate.checksum = certificate.sum();
        certificate
    }

    fn sum(&self) -> String {
        let bare = Certificate { checksum: String::new(), ..self.clone() };
        // Maps are ordered and numbers whole: the same contents give the same text.
        let text = serde_json::to_string(&bare).unwrap_or_default();
        blake3::hash(text.as_bytes()).to_hex()[..32].to_string()
    }

    /// Names the files of records that it is about.
    pub fn about(mut self, records: Vec<String>) -> Self {
        self.records = records;
        self.checksum = self.sum();
        self
    }

    /// The same certificate, with the plan of fusion that it is relative to.
    pub fn relative_to(mut self, fusion: String) -> Self {
        self.fusion = fusion;
        self.checksum = self.sum();
        self
    }

    pub fn text(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Reads a certificate and refuses one that is not as it was written.
    pub fn read(path: &Path) -> Result<Self, CertificateError> {
        let at = || path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| CertificateError::File { path: at(), source })?;
        let certificate: Certificate =
            serde_json::from_str(&text).map_err(|e| CertificateError::Format { path: at(), why: e.to_string() })?;
        if certificate.format != FORMAT {
            return Err(CertificateError::Version { path: at(), found: certificate.format });
        }
        if certificate.sum() != certificate.checksum {
            return Err(CertificateError::Checksum { path: at() });
        }
        Ok(certificate)
    }
}
