//! All passes, in one table. A new pass gets a row here; the tests of this crate then verify it.

use crate::autodiff::recompute::Products;
use crate::pass::Pass;
use crate::{
    CastBias, Composition, CrossLayerReuse, Expand, FoldBatchNorm, Fusion, GroupedGemm, Recompute, RecomputeFrom, ReluBitmask,
    ReluSignFromOutput, RemoveCopies, RowStatistics, SaveLocalDerivative, SoftmaxGradRowDot, Stack, stitch::Stitch,
};
use crate::{Differentiate, differentiate};
use sdfg::Sdfg;

/// The kind of program that a pass takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Operators without gradients.
    Forward,
    /// Operators, differentiated or not.
    Operators,
    /// Maps, which expansion made of all operators but contractions.
    Maps,
}

/// A pass as the table has it.
pub struct PassRow {
    pub takes: Takes,
    /// What the pass does, in a few words.
    pub about: &'static str,
    /// The pass for a program, differentiated by these seeds if it differentiates.
    pub make: fn(&Sdfg, differentiate::Options) -> Box<dyn Pass>,
}

/// Every pass, in an order in which they can run one after the other.
pub const PASSES: &[PassRow] = &[
    PassRow {
        takes: Takes::Forward,
        about: "append a state that computes gradients",
        make: |_, options| Box::new(Differentiate { options }),
    },
    PassRow { takes: Takes::Operators, about: "take row sums of softmax gradients from results", make: |_, _| Box::new(SoftmaxGradRowDot) },
    PassRow {
        takes: Takes::Forward,
        about: "fold normalization with given statistics into a factor and an addend by channel",
        make: |_, _| Box::new(FoldBatchNorm),
    },
    PassRow {
        takes: Takes::Operators,
        about: "recompute rows in backward from their saved statistics",
        make: |_, _| Box::new(RowStatistics { start: RecomputeFrom::Contraction }),
    },
    PassRow {
        takes: Takes::Operators,
        about: "save local derivatives in place of the tensors that they follow from",
        make: |_, _| Box::new(SaveLocalDerivative),
    },
    PassRow {
        takes: Takes::Operators,
        about: "read the sign of a rectifier's argument from a result in memory",
        make: |_, _| Box::new(ReluSignFromOutput),
    },
    PassRow {
        takes: Takes::Operators,
        about: "recompute in backward what is cheaper to compute than to read",
        make: |_, _| Box::new(Recompute { products: Products::InMemory }),
    },
    PassRow { takes: Takes::Operators, about: "save a bit for each sign of a rectifier", make: |_, _| Box::new(ReluBitmask::default()) },
    PassRow { takes: Takes::Operators, about: "cast biases to the type of the sums that they enter", make: |_, _| Box::new(CastBias) },
    PassRow {
        takes: Takes::Operators,
        about: "write parts of joined tensors in place, and read slices where they lie",
        make: |_, _| Box::new(RemoveCopies),
    },
    PassRow {
        takes: Takes::Operators,
        about: "stack contractions that share an operand or a sum",
        make: |program, _| {
            let weights = crate::stack::groups(program).into_iter().flat_map(|group| group.weights).collect();
            Box::new(Stack { weights })
        },
    },
    PassRow {
        takes: Takes::Operators,
        about: "run matrix products whose results nothing reads as one kernel",
        make: |_, _| Box::new(GroupedGemm),
    },
    PassRow { takes: Takes::Operators, about: "expand operators into maps", make: |_, _| Box::new(Expand) },
    PassRow {
        takes: Takes::Maps,
        about: "hand intermediate results of layers over on chip",
        make: |_, _| Box::new(CrossLayerReuse::default()),
    },
    PassRow { takes: Takes::Maps, about: "fuse contractions with their neighbours", make: |_, _| Box::new(Composition::default()) },
    PassRow {
        takes: Takes::Maps,
        about: "make one kernel of each pattern of a plan",
        make: |program, _| Box::new(Stitch::longest(program)),
    },
    PassRow { takes: Takes::Maps, about: "fuse maps over compatible iteration spaces", make: |_, _| Box::new(Fusion::default()) },
];
