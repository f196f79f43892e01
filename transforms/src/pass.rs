//! The interface of a rewrite: a pass.
//!
//! A [`Pass`] looks at a program and answers with a rewrite (a patch or a whole new program) or with the reasons why there is none. The
//! driver ([`crate::driver`]) alone applies rewrites: it logs what each one saves and, when asked, checks it.
//!
//! A [`Pattern`] is a pass that looks at one site after another; every pattern is a pass.

use crate::autodiff::differentiate::error::DifferentiateError;
use crate::autodiff::differentiate::options::Options;
use crate::autodiff::saved::{RecomputeError, Saved};
use crate::fusion::composition::clusters::{Cluster, Clusters};
use crate::fusion::pairs::PairSearch;
use crate::patch::{Change, Patch, PatchError};
use crate::refusal::{Barred, Reason, Refusal, Site};
use crate::unit_order::MANY;
use sdfg::{BuildError, Operation, Sdfg, StateId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A rewrite of programs.
pub trait Pass {
    /// Its name in logs, refusals and messages.
    fn name(&self) -> &'static str;

    /// The next rewrite of the program, or why there is none (any more).
    ///
    /// # Errors
    /// [`Stopped::Refused`] where nothing is left to rewrite, [`Stopped::Failed`] where the program cannot be rewritten at all.
    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped>;

    /// Whether the driver asks for the next rewrite after each one, until it is refused.
    fn repeats(&self) -> bool {
        false
    }

    /// Whether programs can do without its rewrites. One that is found wrong is left out then.
    fn is_optional(&self) -> bool {
        true
    }

    /// What it does about loops over time.
    fn loops(&self) -> Loops {
        Loops::Refused
    }

    /// What holds between the program before a rewrite and the one after it.
    fn promise(&self) -> Promise {
        Promise::SameResults
    }
}

/// What a pass does about loops over time, which are programs within the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loops {
    /// It leaves a program with loops alone: it asks who reads a tensor, and does not look into bodies.
    Refused,
    /// It rewrites what is outside of loops, or takes loops apart itself.
    Outside,
    /// It rewrites the bodies of loops too, each as a program of its own.
    Inside,
}

/// What holds between the program before a rewrite and the one after it; `--verify-each` checks it with the interpreter.
#[derive(Clone, Debug, PartialEq)]
pub enum Promise {
    /// Every output and gradient of the first is computed by the second, with the same values.
    SameResults,
    /// The same, and the second also computes gradients: the derivatives of what the options name.
    Gradients(Options),
}

/// A rewrite of one program, and what later passes and reports learn from it.
#[derive(Clone, Debug)]
pub struct Rewritten {
    pub rewrite: Rewrite,
    pub facts: Facts,
}

#[derive(Clone, Debug)]
pub enum Rewrite {
    Patch(Patch),
    /// A whole program in place of the one that was given; the summary is a sentence without its full stop, for the log.
    Program {
        summary: String,
        program: Box<Sdfg>,
    },
}

impl Rewritten {
    pub fn patch(patch: Patch) -> Self {
        Rewritten { rewrite: Rewrite::Patch(patch), facts: Facts::default() }
    }

    pub fn program(summary: impl Into<String>, program: Sdfg) -> Self {
        Rewritten { rewrite: Rewrite::Program { summary: summary.into(), program: Box::new(program) }, facts: Facts::default() }
    }

    pub fn with(self, facts: Facts) -> Self {
        Rewritten { facts, ..self }
    }

    pub fn summary(&self) -> &str {
        match &self.rewrite {
            Rewrite::Patch(patch) => &patch.summary,
            Rewrite::Program { summary, .. } => summary,
        }
    }

    /// The program that the rewrite makes of the one that it was found for.
    ///
    /// # Errors
    /// A patch that does not fit the program.
    pub fn applied(self, program: &Sdfg) -> Result<Sdfg, PatchError> {
        match self.rewrite {
            Rewrite::Program { program, .. } => Ok(*program),
            Rewrite::Patch(patch) => {
                let mut changed = program.clone();
                patch.apply(&mut changed)?;
                Ok(changed)
            }
        }
    }
}

/// Why a pass answers with no rewrite.
#[derive(Clone, Debug)]
pub enum Stopped {
    /// There is nothing (more) to rewrite: the reasons, each at the units that it is about. A pass that only decides, as recomputation
    /// may, hands its decisions on all the same.
    Refused { refusals: Vec<Refusal>, facts: Box<Facts> },
    /// The program cannot be rewritten: it is at fault, or passes ran in the wrong order.
    Failed(PassError),
}

impl Stopped {
    pub fn refused(refusals: Vec<Refusal>) -> Self {
        Stopped::Refused { refusals, facts: Box::default() }
    }

    /// A single refusal, located at no unit.
    pub fn at_program(pass: &'static str, why: &str) -> Self {
        let site = Site { state: StateId(0), units: vec![] };
        let reason = Reason::Unsupported(why.to_string());
        Stopped::refused(vec![Refusal { transform: pass, site, units: vec![], reason, origin: None }])
    }
}

impl<E: Into<PassError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Stopped::Failed(error.into())
    }
}

/// Why a program cannot be rewritten.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PassError {
    #[error(transparent)]
    Differentiate(#[from] DifferentiateError),
    #[error(transparent)]
    Recompute(#[from] RecomputeError),
    #[error(transparent)]
    Patch(#[from] PatchError),
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// The operations that stacked ones stand for, by the name of the stack.
pub type StackMembers = BTreeMap<String, Vec<String>>;

/// Results of earlier passes that later passes and reports use.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What backward reads from memory and what it computes again, in the order of the decisions.
    pub saved: Vec<Saved>,
    /// Forward containers of which backward needs only the sign → the container in memory whose sign it reads instead.
    pub signs: BTreeMap<String, String>,
    /// Names of the operations that backward runs again to recompute rows.
    pub recomputed: Vec<String>,
    /// Results of contractions from which saved local derivatives follow: such a result in memory would be one tensor more.
    pub products: Vec<String>,
    /// By the name of a stacked contraction: the operations that it stands for.
    pub stacks: StackMembers,
    /// The kernels that hold contractions with their neighbours.
    pub kernels: Vec<Cluster>,
    /// The kernels that a plan of fusion has become.
    pub stitched: Vec<Stitched>,
}

/// A kernel that was made of a pattern of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stitched {
    pub kernel: String,
    /// The units that it was made of.
    pub units: Vec<String>,
}

impl Facts {
    /// Adds what a later rewrite has found out.
    pub fn extend(&mut self, later: Facts) {
        self.saved.extend(later.saved);
        self.signs.extend(later.signs);
        self.recomputed.extend(later.recomputed);
        self.products.extend(later.products);
        self.stacks.extend(later.stacks);
        self.kernels.extend(later.kernels);
        self.stitched.extend(later.stitched);
    }
}

/// The inputs of a pass besides the program.
pub struct Context<'a> {
    pub facts: &'a Facts,
    /// Rewrites that must not be offered.
    pub barred: &'a Barred,
    /// Kept from one call to the next while one pass is repeated.
    pub search: &'a mut Search,
}

/// The state that one pass keeps between its rewrites of a program.
#[derive(Default)]
pub struct Search {
    /// The pairs of units that fusion has still to look at.
    pub(crate) pairs: Option<PairSearch>,
    /// The kernels that composition has still to build.
    pub(crate) clusters: Option<Clusters>,
    /// Sets of layers, or sites of a pattern, that were refused while others were rewritten.
    pub(crate) refused: Vec<Refusal>,
    /// The sites that a pattern has still to look at, where they are found once.
    pub(crate) sites: Option<VecDeque<Site>>,
}

impl Search {
    /// Learns what a patch has changed in the program.
    pub(crate) fn changed(&mut self, program: &Sdfg, change: &Change) {
        if self.pairs.as_mut().is_some_and(|pairs| !pairs.changed(program, change)) {
            self.pairs = None;
        }
        if let Some(clusters) = &mut self.clusters {
            clusters.changed(program, change);
        }
    }
}

/// A rewrite of single sites.
pub trait Pattern {
    fn name(&self) -> &'static str;

    /// Where it could apply, best first.
    fn sites(&self, program: &Sdfg) -> Vec<Site>;

    /// "Can apply" is exactly `plan(..).is_ok()`.
    fn plan(&self, program: &Sdfg, site: &Site) -> Result<Patch, Box<Refusal>>;

    /// Whether a rewrite at one site makes no new sites and leaves all others as they are. Many sites are then found once in a program, and
    /// not again after every rewrite.
    fn sites_stay(&self) -> bool {
        false
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn loops(&self) -> Loops {
        Loops::Refused
    }
}

impl<P: Pattern> Pass for P {
    fn name(&self) -> &'static str {
        Pattern::name(self)
    }

    /// The first patch that applies and is not barred, best site first, or why every site was refused.
    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let search = &mut *context.search;
        let mut found = VecDeque::new();
        let sites = match &mut search.sites {
            Some(kept) => kept,
            None => {
                search.refused.clear();
                found.extend(self.sites(program));
                if self.sites_stay() && found.len() > MANY { search.sites.insert(found) } else { &mut found }
            }
        };
        while let Some(site) = sites.pop_front() {
            match self.plan(program, &site) {
                Ok(patch) if context.barred.has(&patch.summary) => {
                    search.refused.push(context.barred.refusal(Pattern::name(self), program, &site));
                }
                Ok(patch) => return Ok(Rewritten::patch(patch)),
                Err(refusal) => search.refused.push(*refusal),
            }
        }
        Err(Stopped::refused(std::mem::take(&mut search.refused)))
    }

    fn repeats(&self) -> bool {
        true
    }

    fn is_optional(&self) -> bool {
        Pattern::is_optional(self)
    }

    fn loops(&self) -> Loops {
        Pattern::loops(self)
    }
}

/// Refusals at operations, each with its own reason: what a pass over a program of operators answers where it finds nothing.
pub(crate) fn refused_at<'a>(
    pass: &'static str,
    program: &Sdfg,
    found: impl IntoIterator<Item = (&'a Operation, String)>,
    none: &str,
) -> Stopped {
    let units = program.units();
    let mut places = HashMap::new();
    for (state, node, unit) in &units {
        places.entry(unit.name()).or_insert((*state, *node));
    }
    let refusals: Vec<Refusal> = found
        .into_iter()
        .map(|(operation, why)| {
            let at = places.get(operation.name.as_str());
            let site = Site { state: at.map_or(StateId(0), |(state, _)| *state), units: at.map(|(_, node)| *node).into_iter().collect() };
            Refusal {
                transform: pass,
                site,
                units: vec![operation.name.clone()],
                reason: Reason::Unsupported(why),
                origin: operation.origin.clone(),
            }
        })
        .collect();
    if refusals.is_empty() { Stopped::at_program(pass, none) } else { Stopped::refused(refusals) }
}
