//! Contractions of different shapes as one launch on a GPU: the text of a configuration, and every configuration.

use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::mixed_radix::{MixedRadix, layouts};
use crate::target::cuda::emit::{self, Chip, CudaSource};
use crate::target::cuda::tiles::blocks;
use crate::tiles::{TileSpace, expanded};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Layout, Unit};

/// Iterations of a tile on either side, the same in all members; the pair expected to be best first.
const SIDES: [[i64; 2]; 6] = [[128, 128], [64, 128], [128, 64], [64, 64], [32, 64], [64, 32]];
/// Steps of the depth that are staged at once.
const DEPTHS: [i64; 3] = [32, 64, 16];
/// Threads of a block.
const THREADS: [i64; 2] = [256, 128];
/// Parts of the shared-memory ring.
const STAGES: i64 = 3;

/// A contraction of a group, as the scope that it means.
struct Member {
    spec: KernelSpec,
    space: TileSpace,
}

/// All layouts of the tensors of a group and all knobs that its members share.
pub struct GroupSpace {
    spec: KernelSpec,
    tensors: Vec<TensorChoice>,
    members: Vec<Member>,
}

impl GroupSpace {
    /// # Errors
    /// Anything but a nested program of contractions that are matrix products.
    pub fn new(spec: &KernelSpec, chip: Chip) -> Result<Self, KernelError> {
        let Unit::Nested(nested) = &spec.unit else {
            return Err(KernelError::Unsupported { kernel: spec.name.clone(), what: "it is no group of contractions".into() });
        };
        let mut members = Vec::new();
        for (_, _, unit) in nested.program.units() {
            let spec = expanded(&KernelSpec { name: unit.name().to_string(), unit, ..spec.clone() })?;
            members.push(Member { space: TileSpace::of(&spec, blocks(chip))?, spec });
        }
        let choice = |a: crate::kernel::KernelArgument| TensorChoice { layouts: Layout::permutations(&a.dims), data: a.data };
        Ok(GroupSpace { tensors: spec.arguments().into_iter().map(choice).collect(), spec: spec.clone(), members })
    }

    /// The configuration of a member under one of the group.
    fn member(&self, member: &Member, config: &KernelConfig) -> Result<KernelConfig, KernelError> {
        let knob = |key: &str, allowed: &str| {
            let text = config.knobs.get(key).unwrap_or_default();
            let numbers: Option<Vec<i64>> = text.split('x').map(|n| n.parse().ok().filter(|n| (1..=1024).contains(n))).collect();
            let wrong =
                || KernelError::Knob { kernel: self.spec.name.clone(), key: key.into(), value: text.into(), allowed: allowed.into() };
            numbers.filter(|n| n.len() == if key == "sides" { 2 } else { 1 }).ok_or_else(wrong)
        };
        let (sides, depth) = (knob("sides", "two numbers, as 64x128")?, knob("depth", "16, 32, 64, 128")?);
        let own = member.spec.arguments().into_iter().filter_map(|a| Some((a.data.clone(), config.layouts.get(&a.data)?.clone())));
        let own = KernelConfig { layouts: own.collect(), knobs: Knobs::default() };
        let knobs = member.space.walk(&own, [sides[0], sides[1]], depth[0], 0);
        let threads = config.knobs.get("threads").unwrap_or("256");
        Ok(KernelConfig { knobs: knobs.with("threads", threads).with("stages", STAGES), ..own })
    }
}

/// The CUDA of a group under a configuration.
///
/// # Errors
/// As [`GroupSpace::new`]; knobs that groups do not have.
pub fn source(spec: &KernelSpec, config: &KernelConfig, chip: Chip) -> Result<CudaSource, KernelError> {
    let space = GroupSpace::new(spec, chip)?;
    let arguments = spec.arguments();
    let mut nests = Vec::new();
    for member in &space.members {
        let own = space.member(member, config)?;
        let position = |data: &str| arguments.iter().position(|a| a.data == data);
        let numbers = member.spec.arguments().iter().filter_map(|a| position(&a.data)).collect();
        nests.push((member.spec.clone(), crate::tiles::lower(&member.spec, &own)?, own, numbers));
    }
    emit::emit_group(&spec.name, &nests, chip)
}

impl ConfigSpace for GroupSpace {
    fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        let knobs = (SIDES.len() * DEPTHS.len() * THREADS.len()) as u64;
        layouts(&self.tensors).saturating_mul(knobs)
    }

    fn config(&self, n: u64) -> KernelConfig {
        let mut digits = MixedRadix::of(n, self.count());
        let (threads, depth, sides) =
            (THREADS[digits.below(THREADS.len())], DEPTHS[digits.below(DEPTHS.len())], SIDES[digits.below(SIDES.len())]);
        let layouts = digits.layouts(&self.tensors);
        let knobs = Knobs::default().with("sides", format!("{}x{}", sides[0], sides[1])).with("depth", depth).with("threads", threads);
        KernelConfig { layouts, knobs }
    }

    fn identity(&self, n: u64) -> String {
        crate::config_space::identity(&self.spec, &self.tensors, &self.config(n))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        let config = self.config(n);
        let cost = |member: &Member| self.member(member, &config).map_or(f64::INFINITY, |own| member.space.cost(&own));
        self.members.iter().map(cost).sum::<f64>() * if config.knobs.get("threads") == Some("256") { 1.0 } else { 1.01 }
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let first = |key: &str, value: &str| config.knobs.get(key) == Some(value);
        first("sides", "128x128") && first("depth", "32") && first("threads", "256")
    }
}
