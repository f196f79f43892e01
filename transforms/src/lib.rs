//! Rewriting a program into an equal one that moves less. Nothing here times anything.
//!
//! Every rewrite is a [`Pass`]: it answers with a patch or a new program, or with [`Refusal`]s. One driver ([`run_pipeline`]) runs lists
//! of passes, logs what each rewrite saves, and checks it where that is asked for. [`passes`] has all of them.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo, clippy::unimplemented)
)]

pub mod algebra;
pub mod autodiff;
pub mod driver;
pub mod fusion;
pub mod pass;
mod pass_row;
pub mod passes;
pub mod patch;
pub mod refusal;
pub mod stitch;
mod unit_graph;
mod unit_order;
pub mod verify;

pub use algebra::cast_bias::CastBias;
pub use algebra::fold_batch_norm::FoldBatchNorm;
pub use algebra::remove_copies::RemoveCopies;
pub use algebra::stack::{self, Stack};
pub use autodiff::differentiate::{self, Differentiate, DifferentiateError};
pub use autodiff::recompute::{self, Recompute};
pub use autodiff::relu_bitmask::{self, ReluBitmask};
pub use autodiff::relu_sign_from_output::ReluSignFromOutput;
pub use autodiff::row_statistics::{RecomputeFrom, RowStatistics};
pub use autodiff::save_local_derivative::SaveLocalDerivative;
pub use autodiff::softmax_grad_row_dot::SoftmaxGradRowDot;
pub use driver::{AppliedRewrite, DriverError, DriverOptions, PipelineOutcome, RewriteCheck, Stop, moved_bytes, run_pipeline};
pub use fusion::composition::{Accept, Cluster, Composition, FusionKind, HasForm, Verdicts, WantedKernels, clusters};
pub use fusion::cross_layer::CrossLayerReuse;
pub use fusion::expand::Expand;
pub use fusion::greedy::Fusion;
pub use fusion::grouped_gemm::GroupedGemm;
pub use pass::{Context, Facts, Loops, Pass, PassError, Pattern, Promise, Rewrite, Rewritten, Stitched, Stopped};
pub use pass_row::{PassRow, Takes};
pub use patch::{Change, Edit, Patch, PatchError};
pub use refusal::{Barred, BytesChange, Percent, Reason, Refusal, Site};
