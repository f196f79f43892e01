//! The certificate of a choice: what was chosen, what it costs, and why nothing measured is cheaper.
//!
//! One JSON file. Costs are whole picoseconds, so equality is exact. The proof is a tree of parts of all choices: shares
//! of the kernels' costs (the reparametrised costs, see [`crate::dual`]) that bound a part from below and rule values out,
//! then either nothing more, an order of elimination for what they leave, or one part for each value of a variable.
//! [`mod@crate::verify`] checks it without searching and without the solver. A choice that was not proven has a
//! certificate too: of the bound that holds.

use crate::cost::Cost;
use crate::exact::{Optimum, Step};
use crate::model::Model;
use crate::network::Network;
use crate::problem::Program;
use crate::selection::Selection;
use crate::store::Store;
use sdfg::Layout;
use sdfg::config::KernelConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

/// Version of the file format.
pub const FORMAT: u32 = 1;

/// Kernel → variable → cost given to each of its values, in picoseconds.
pub type Shares = BTreeMap<String, BTreeMap<String, Vec<Cost>>>;

/// A class of tied containers, by the first of them, or a group of alternatives; and its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    pub name: String,
    pub values: Vec<String>,
}

/// One part of all choices. Each table of shares rules out what it shows to cost at least the total; then the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub shares: Vec<Shares>,
    #[serde(flatten)]
    pub step: Proof,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub enum Proof {
    /// The shares in force bound it.
    Bounded,
    /// What is left is minimised exactly, variable by variable in this order.
    Eliminated { order: Vec<usize> },
    /// One part for each value that is left: value, and position of the part, which comes later in the list.
    Split { variable: usize, parts: Vec<(usize, usize)> },
}

/// What the choice is the best of: nothing is said about what was not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// Timed configurations by kernel.
    pub timed: BTreeMap<String, usize>,
    /// Variants that could not be chosen, with a kernel that was not measured.
    pub left_out: Vec<(String, String)>,
    /// Changes of layout in the choice that nobody timed: their cost is a pessimistic estimate.
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
    pub program: Program,
    pub scope: Scope,
    /// Cost of the choice.
    pub total_ps: Cost,
    /// No choice costs less; equal to the total if the choice is proven to be the best.
    pub bound_ps: Cost,
    /// How every container is held, by its name in the program.
    pub layouts: BTreeMap<String, Layout>,
    pub variants: BTreeMap<String, String>,
    pub kernels: BTreeMap<String, KernelConfig>,
    pub variables: Vec<Variable>,
    /// Variable, value, and the value that is never worse.
    pub dominated: Vec<(usize, usize, usize)>,
    /// The first is the whole.
    pub parts: Vec<Part>,
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

impl Certificate {
    pub fn new(program: &Program, store: &Store, model: &Model, optimum: &Optimum, selection: &Selection) -> Self {
        let network = Network::new(model);
        let layouts = |c: &crate::model::Class| Variable {
            name: c.members.first().cloned().unwrap_or_default(),
            values: c.layouts.iter().map(ToString::to_string).collect(),
        };
        let groups = model.groups.iter().map(|g| Variable { name: g.name.clone(), values: g.variants.clone() });
        let variables: Vec<Variable> = model.classes.iter().map(layouts).chain(groups).collect();
        let shares = |dual: &Rc<crate::dual::Dual>| -> Shares {
            let mut found = Shares::new();
            for (n, factor) in model.factors.iter().enumerate() {
                for (leg, shares) in network.functions[n].legs.iter().zip(&dual.shares[n]) {
                    if shares.iter().any(|s| *s != 0) {
                        found.entry(factor.name.clone()).or_default().insert(variables[leg.variable].name.clone(), shares.clone());
                    }
                }
            }
            found
        };
        let part = |node: &crate::exact::Node| Part {
            shares: node.duals.iter().map(shares).collect(),
            step: match &node.step {
                Step::Bounded | Step::Open => Proof::Bounded,
                Step::Eliminated(order) => Proof::Eliminated { order: order.clone() },
                Step::Split(variable, parts) => {
                    Proof::Split { variable: *variable, parts: parts.iter().map(|(v, n)| (*v as usize, *n)).collect() }
                }
            },
        };
        let active = model.variant(&optimum.variants);
        let mut held = BTreeMap::new();
        for (class, value) in model.classes.iter().zip(&optimum.held) {
            held.extend(class.members.iter().map(|data| (data.clone(), class.layouts[*value as usize].clone())));
        }
        let timed = |f: &crate::model::Factor| {
            let key = program.kernel(&f.name).map(|k| k.key.as_str()).unwrap_or_default();
            (f.name.clone(), store.of(key).filter(|m| store.ms(m).is_some()).count())
        };
        let best = |f: &crate::model::Factor| (f.name.clone(), f.choices[f.best(&optimum.held).0].config.clone());
        let parts = optimum.proof.nodes.iter().map(part).collect();
        let mut certificate = Certificate {
            format: FORMAT,
            checksum: String::new(),
            records: Vec::new(),
            measurements: measurements(store),
            program: program.clone(),
            scope: Scope {
                timed: model.factors.iter().map(timed).collect(),
                left_out: model.groups.iter().flat_map(|g| g.left_out.clone()).collect(),
                estimated_relayouts: selection.unmeasured().count(),
            },
            total_ps: optimum.total,
            bound_ps: optimum.bound,
            layouts: held,
            variants: selection.configuration.variants.clone(),
            kernels: active.factors.iter().map(best).collect(),
            variables,
            dominated: optimum.proof.dominated.iter().map(|(v, a, b)| (*v, *a as usize, *b as usize)).collect(),
            parts,
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
