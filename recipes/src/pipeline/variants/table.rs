//! The table of variants: which programs are made of a recipe, by which passes, and how each competes.
//!
//! A variant is one way of fusing a recipe. Everything that differs between variants stands in [`VARIANTS`]: the passes that make
//! it, the devices that it is made for, its first share of a measurement budget, and when its plan is timed as a whole.

use super::stacking::stacked_name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The ways of fusing a recipe, and the four kinds of programs that are made from other variants during measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariantId {
    Unfused,
    Fused,
    Stacked,
    GemmFused,
    Stitched,
    CrossLayer,
    LibEpilogue,
    LibReluBits,
    Streamed,
    StreamedRecompute,
    RowStatistics,
    GroupedGemm,
    StitchedByTimes,
    PartiallyFused,
    Trial,
    Merged,
}

/// The devices that a variant is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Devices {
    Any,
    /// Cores.
    Cpu,
    /// GPUs with a vendor's library of fused GEMMs; their memory is slow relative to their arithmetic.
    Gpu,
}

impl Devices {
    /// Whether a device with such a library, or without one, is among them.
    pub fn are(self, has_library: bool) -> bool {
        match self {
            Devices::Any => true,
            Devices::Cpu => !has_library,
            Devices::Gpu => has_library,
        }
    }
}

/// Which weights a variant's contractions are stacked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stacking {
    None,
    /// One program for each way of stacking.
    Each,
    /// The program without stacking, and the one with the longest stacking if it moves fewer bytes.
    LongestIfFewerBytes,
    /// The longest stacking, or none where nothing can be stacked.
    Longest,
    /// The stackings that the search over partial fusion selects.
    Searched,
}

/// A step on the way from a recipe to a variant: a pass of `transforms`, or a decision made during measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PassStep {
    Differentiate,
    /// Sums over the places of a kernel what a transposed convolution sums over those of its image.
    TransposedWindows,
    /// Computes of each tensor what is read: every other element of an image, or one place of a sequence.
    UnreadElements,
    /// Folds normalization with given statistics. Programs with a backward pass keep theirs.
    FoldBatchNorm,
    /// Computes once what several operations of forward, or of backward, compute.
    CommonSubexpressions,
    /// Optional: saves the local derivative of an activation in place of its argument.
    SaveLocalDerivative,
    SoftmaxGradRowDot,
    /// Optional: backward recomputes rows of a softmax or normalization from their statistics, from the contraction before them on.
    RowStatistics,
    /// Optional: the same from the products that a softmax is made of.
    RowStatisticsOfProducts,
    /// The same from tensors in memory.
    RowStatisticsInMemory,
    ReluSignFromOutput,
    Recompute,
    /// Recomputes nothing from a product that a library's kernel keeps on chip.
    RecomputeOnChip,
    /// Writes parts of joined tensors in place and reads slices and padded tensors where they lie.
    RemoveCopies,
    CastBias,
    ReluBitmask,
    StackGemms,
    Expand,
    /// Puts layers that hand windows over on chip into one kernel.
    ReuseAcrossLayers,
    /// Fuses contractions with their neighbours, by generated kernels.
    FuseGemms,
    /// The same by kernels of the vendor's library alone.
    FuseGemmsLibrary,
    /// The same for chains of two contractions whose tiles are streamed, and for batches of products.
    FuseGemmsStreamed,
    Fuse,
    /// Makes one kernel of each pattern of a plan, which is chosen from the scores of a model and proven.
    Stitch,
    GroupGemms,
    /// Undoes fusions of contractions that do not pay, one by one.
    SearchPartialFusion,
    /// Takes the fastest kernels of several variants.
    MergeVariants,
}

impl PassStep {
    /// Whether the step is left out where it does not pay in the resulting program.
    pub fn is_optional(self) -> bool {
        matches!(self, PassStep::SaveLocalDerivative | PassStep::RowStatistics | PassStep::RowStatisticsOfProducts)
    }

    /// Whether it needs more than the program: weights, exceptions, or which fusions are accepted.
    pub fn has_parameters(self) -> bool {
        matches!(self, PassStep::StackGemms | PassStep::ReluBitmask | PassStep::Stitch) || self.fuses_gemms()
    }

    pub fn fuses_gemms(self) -> bool {
        matches!(self, PassStep::FuseGemms | PassStep::FuseGemmsLibrary | PassStep::FuseGemmsStreamed)
    }

    /// The name of its pass in the log of rewrites; `None` for a step that is no pass.
    pub fn pass(self) -> Option<&'static str> {
        Some(match self {
            PassStep::Differentiate => "differentiate",
            PassStep::TransposedWindows => "transposed windows",
            PassStep::UnreadElements => "unread elements",
            PassStep::FoldBatchNorm => "fold batch norm",
            PassStep::CommonSubexpressions => "common subexpressions",
            PassStep::SaveLocalDerivative => "save local derivative",
            PassStep::SoftmaxGradRowDot => "softmax gradient row dot",
            PassStep::RowStatistics | PassStep::RowStatisticsOfProducts | PassStep::RowStatisticsInMemory => "row statistics",
            PassStep::ReluSignFromOutput => "relu sign from output",
            PassStep::Recompute | PassStep::RecomputeOnChip => "recompute",
            PassStep::RemoveCopies => "remove copies",
            PassStep::CastBias => "cast bias",
            PassStep::ReluBitmask => "relu bitmask",
            PassStep::StackGemms => "stack",
            PassStep::Expand => "expand",
            PassStep::ReuseAcrossLayers => "cross-layer reuse",
            PassStep::FuseGemms | PassStep::FuseGemmsLibrary | PassStep::FuseGemmsStreamed => "composition",
            PassStep::Fuse => "fusion",
            PassStep::Stitch => transforms::stitch::pass::NAME,
            PassStep::GroupGemms => "grouped gemm",
            PassStep::SearchPartialFusion | PassStep::MergeVariants => return None,
        })
    }

    /// Whether its pass has rewritten something, by the log.
    pub fn rewrote(self, log: &[transforms::AppliedRewrite]) -> bool {
        log.iter().any(|rewrite| Some(rewrite.transform) == self.pass())
    }
}

/// When a variant's best plan is timed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contention {
    /// Always: every plan is compared with it.
    Baseline,
    /// If it is among the three best by the times of its kernels.
    AmongBest,
    /// Unless it is far slower by the times of its kernels. It moves the fewest bytes, which shows in a whole step and not in kernels
    /// that are timed alone, with their tensors in the caches.
    UnlessFar,
    /// Never: it lends its kernels to others.
    Never,
}

/// A variant's first share of a measurement budget, from 0 to 1; the programs of one variant share it. 0 for programs that are put
/// together of others: their parts are in the budget policy of `measure`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BudgetShare {
    pub cpu: f64,
    /// On a GPU, where code takes far longer to make than to time: of the first round.
    pub gpu: f64,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct VariantRow {
    pub id: VariantId,
    /// For display alone.
    pub title: &'static str,
    pub devices: Devices,
    pub stacking: Stacking,
    pub passes: &'static [PassStep],
    /// The pass that distinguishes it from other programs: where that pass rewrites nothing, the variant is not made.
    pub defining: Option<PassStep>,
    /// The variant of the same stacking that it must move fewer bytes than, or it is not made.
    pub fewer_bytes_than: Option<VariantId>,
    pub share: BudgetShare,
    pub contention: Contention,
}

use Contention::{AmongBest, Baseline, Never, UnlessFar};
use Devices::{Any, Cpu, Gpu};
use PassStep::*;
use VariantId as Id;

const fn row(id: VariantId, title: &'static str, devices: Devices, stacking: Stacking, passes: &'static [PassStep]) -> VariantRow {
    let (share, contention) = (BudgetShare { cpu: 0.0, gpu: 0.0 }, Never);
    VariantRow { id, title, devices, stacking, passes, defining: None, fewer_bytes_than: None, share, contention }
}

impl VariantRow {
    const fn share(self, cpu: f64, gpu: f64) -> Self {
        VariantRow { share: BudgetShare { cpu, gpu }, ..self }
    }

    const fn defined_by(self, step: PassStep) -> Self {
        VariantRow { defining: Some(step), ..self }
    }

    const fn if_fewer_bytes_than(self, other: VariantId) -> Self {
        VariantRow { fewer_bytes_than: Some(other), ..self }
    }

    const fn timed(self, contention: Contention) -> Self {
        VariantRow { contention, ..self }
    }
}

/// Every variant, in the order in which a GPU sweeps them.
///
/// Shares: programs with fused contractions win most often and have kernels of their own; stacked ones share most kernels with the
/// fused one, so that they need little. On a GPU the rest after the first round goes to the fastest program, and variants that
/// seldom win get less in it.
#[rustfmt::skip]
pub const VARIANTS: &[VariantRow] = &[
    row(Id::Unfused, "unfused", Any, Stacking::None,
        &[Differentiate, TransposedWindows, FoldBatchNorm, ReluSignFromOutput, Recompute, Expand])
        .share(0.2, 0.1).timed(Baseline),
    row(Id::Fused, "fused", Any, Stacking::None,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, Recompute,
          RemoveCopies, Expand, Fuse])
        .share(0.2, 0.2).timed(AmongBest),
    row(Id::Stacked, "stacked", Any, Stacking::Each,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, Recompute,
          RemoveCopies, StackGemms, Expand, Fuse])
        .share(0.1, 0.08).timed(AmongBest),
    row(Id::GemmFused, "gemm-fused", Any, Stacking::LongestIfFewerBytes,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, RowStatistics, SaveLocalDerivative,
          ReluSignFromOutput, Recompute, RemoveCopies, StackGemms, Expand, FuseGemms, Fuse])
        .defined_by(FuseGemms).share(0.35, 0.1).timed(UnlessFar),
    row(Id::Stitched, "stitched", Cpu, Stacking::None,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, Recompute,
          RemoveCopies, Expand, Stitch])
        .defined_by(Stitch).share(0.09, 0.01).timed(UnlessFar),
    row(Id::CrossLayer, "cross-layer", Cpu, Stacking::None,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, Recompute,
          RemoveCopies, Expand, ReuseAcrossLayers, FuseGemms, Fuse])
        .defined_by(ReuseAcrossLayers).share(0.25, 0.01).timed(UnlessFar),
    row(Id::LibEpilogue, "library epilogues", Gpu, Stacking::LongestIfFewerBytes,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, RecomputeOnChip,
          CastBias, StackGemms, Expand, FuseGemmsLibrary, Fuse])
        .defined_by(FuseGemmsLibrary).share(0.05, 0.04).timed(UnlessFar),
    row(Id::Streamed, "streamed", Gpu, Stacking::LongestIfFewerBytes,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, Recompute,
          SoftmaxGradRowDot, StackGemms, Expand, FuseGemmsStreamed, Fuse])
        .defined_by(FuseGemmsStreamed).share(0.05, 0.2).timed(UnlessFar),
    row(Id::StreamedRecompute, "streamed, recomputed", Gpu, Stacking::LongestIfFewerBytes,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, SoftmaxGradRowDot,
          RowStatisticsOfProducts, ReluSignFromOutput, Recompute, SoftmaxGradRowDot, StackGemms, Expand, FuseGemmsStreamed, Fuse])
        .defined_by(FuseGemmsStreamed).if_fewer_bytes_than(Id::Streamed).share(0.05, 0.04).timed(AmongBest),
    row(Id::LibReluBits, "library epilogues, relu bits", Gpu, Stacking::None,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, RecomputeOnChip,
          CastBias, ReluBitmask, Expand, FuseGemmsLibrary, Fuse])
        .defined_by(ReluBitmask).share(0.05, 0.04).timed(UnlessFar),
    row(Id::RowStatistics, "row statistics", Gpu, Stacking::Longest,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, RowStatisticsInMemory,
          ReluSignFromOutput, Recompute, StackGemms, Expand, Fuse])
        .defined_by(RowStatisticsInMemory).if_fewer_bytes_than(Id::Stacked).share(0.05, 0.1).timed(UnlessFar),
    row(Id::GroupedGemm, "grouped GEMM", Gpu, Stacking::None,
        &[Differentiate, TransposedWindows, UnreadElements, FoldBatchNorm, CommonSubexpressions, ReluSignFromOutput, Recompute,
          Expand, Fuse, GroupGemms])
        .defined_by(GroupGemms).share(0.03, 0.02).timed(AmongBest),
    row(Id::StitchedByTimes, "stitched by times", Cpu, Stacking::None, &[Stitch]).timed(UnlessFar),
    row(Id::PartiallyFused, "partially fused", Any, Stacking::Searched, &[SearchPartialFusion, Fuse]).timed(UnlessFar),
    row(Id::Trial, "trial", Any, Stacking::Searched, &[SearchPartialFusion, Fuse]).timed(Never),
    row(Id::Merged, "merged", Any, Stacking::None, &[MergeVariants]).timed(UnlessFar),
];

impl VariantRow {
    /// Whether it is made from a recipe by passes alone and is not the unfused program.
    pub fn is_made_of_recipe(&self) -> bool {
        self.id != VariantId::Unfused && self.passes.first() == Some(&PassStep::Differentiate)
    }
}

impl VariantId {
    /// The row of the table.
    pub fn row(self) -> &'static VariantRow {
        // A test finds every id in the table; the first row stands in for none.
        VARIANTS.iter().find(|row| row.id == self).unwrap_or(&VARIANTS[0])
    }

    /// The variant of a name, one that is made from a recipe.
    ///
    /// # Errors
    /// Another name: a sentence with those that there are.
    pub fn named(text: &str) -> Result<Self, String> {
        let made = || VARIANTS.iter().filter(|row| row.is_made_of_recipe()).map(|row| row.id);
        let all = || made().map(Self::text).collect::<Vec<_>>().join(", ");
        made()
            .find(|id| id.text() == text)
            .ok_or_else(|| format!("there is no variant `{text}` that is made from a recipe; there are {}", all()))
    }

    /// The text by which files and `memlet variants` name it.
    pub fn text(self) -> String {
        serde_json::to_value(self).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
    }
}

/// One program of a recipe: a variant, the weights that are stacked in it, and for a trial the fusion that it undoes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariantKey {
    pub id: VariantId,
    pub stacked: Vec<String>,
    /// The change that a trial makes; `None` for other variants.
    pub trial: Option<String>,
}

impl VariantKey {
    pub fn stacked(id: VariantId, weights: &[String]) -> Self {
        VariantKey { id, stacked: weights.to_vec(), trial: None }
    }

    pub fn trial(change: String) -> Self {
        VariantKey { id: VariantId::Trial, stacked: vec![], trial: Some(change) }
    }

    /// Whether it is this variant with nothing stacked.
    pub fn is(&self, id: VariantId) -> bool {
        self.id == id && self.stacked.is_empty()
    }
}

impl From<VariantId> for VariantKey {
    fn from(id: VariantId) -> Self {
        VariantKey::stacked(id, &[])
    }
}

/// For display alone.
impl fmt::Display for VariantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.trial, self.stacked.as_slice()) {
            (Some(change), _) => write!(f, "{change}"),
            (None, []) => write!(f, "{}", self.id.row().title),
            (None, weights) if self.id == VariantId::Stacked => write!(f, "stacked {}", stacked_name(weights)),
            (None, weights) => write!(f, "{}, stacked {}", self.id.row().title, stacked_name(weights)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_variant_has_one_row_and_a_share() {
        let ids: BTreeSet<VariantId> = VARIANTS.iter().map(|row| row.id).collect();
        assert_eq!((ids.len(), VARIANTS.len()), (16, 16));
        assert!(VARIANTS.iter().all(|row| row.id.row().id == row.id));
        assert!(VARIANTS.iter().all(|row| !row.passes.is_empty()));
        // The budget policy has the parts of those that are put together of others.
        assert!(
            VARIANTS.iter().all(|row| (row.share.cpu > 0.0 && row.share.gpu > 0.0) == (row.share != BudgetShare { cpu: 0.0, gpu: 0.0 }))
        );
        let made = |row: &&VariantRow| row.is_made_of_recipe() || row.id == VariantId::Unfused;
        assert!(VARIANTS.iter().filter(made).all(|row| row.share.cpu > 0.0));
        for shares in [|row: &VariantRow| row.share.cpu, |row: &VariantRow| row.share.gpu] {
            // Rows for other devices take nothing.
            for device in [Cpu, Gpu] {
                assert!(VARIANTS.iter().filter(|row| row.devices == Any || row.devices == device).map(shares).sum::<f64>() < 1.2);
            }
        }
        let steps = VARIANTS.iter().flat_map(|row| row.passes).filter_map(|step| step.pass());
        steps.for_each(|name| assert!(transforms::passes::named(name).is_some(), "no folder of `transforms` has a pass `{name}`"));
        let titles: BTreeSet<&str> = VARIANTS.iter().map(|row| row.title).collect();
        assert_eq!(titles.len(), VARIANTS.len());
        assert_eq!(VariantId::LibReluBits.text(), "lib_relu_bits");
    }

    #[test]
    fn keys_are_shown_by_titles_and_weights() {
        let weights = ["wq", "wk"].map(String::from);
        assert_eq!(VariantKey::from(VariantId::GemmFused).to_string(), "gemm-fused");
        assert_eq!(VariantKey::stacked(VariantId::Stacked, &weights).to_string(), "stacked wq+wk");
        assert_eq!(VariantKey::stacked(VariantId::RowStatistics, &weights).to_string(), "row statistics, stacked wq+wk");
    }
}
