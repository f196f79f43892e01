//! Bytes of tensors that are alive at once in a step: not the size of a process, which holds its libraries, too.
//!
//! On both sides *given* are the input, the parameters and the upstream gradient, in the types that they are held in; the
//! *peak* counts these, and at the moment at which it is largest what has been made so far and is still needed: the output and
//! gradients, which are held to the end, and what lies between (activations, masks, copies in another layout or type). When
//! the step has ended everyone holds what is given and the results: no peak is smaller. What one kernel or operator needs inside itself counts on
//! neither side: packed operands and tiles of ours are told apart, those of PyTorch's libraries cannot be seen.
//!
//! PyTorch's are storages that its operators return (`bench/peers/tensor_bytes.py`). In f32 that is what its allocator
//! hands out, to a few bytes; in bf16 the allocator hands out more.

use super::contender::{Contender, Precision};
use bench::table::{Align, Cell, Table};
use serde::{Deserialize, Serialize};

/// Bytes of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorBytes {
    /// Input, parameters and upstream gradient.
    pub given_bytes: u64,
    /// All that are alive at once, those given among them.
    pub peak_bytes: u64,
}

impl TensorBytes {
    /// Activations and gradients: all that is not given.
    pub fn beyond_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.given_bytes)
    }
}

/// Ours, and what kernels hold besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OurBytes {
    #[serde(flatten)]
    pub tensors: TensorBytes,
    /// What is given and the results: what is held when the step has ended, so that no peak is smaller.
    pub boundary_bytes: u64,
    /// Working memory inside kernels, of all kernels together: packed operands, tiles, partial sums of each worker.
    pub working_bytes: u64,
}

/// Whether a contender's tensors are counted: they do not depend on how f32 is multiplied.
pub fn is_counted(contender: &Contender) -> bool {
    contender.variant.is_watched() && contender.precision != Precision::Medium
}

/// Ours beside everyone's whose tensors were counted, by variant and precision; nothing if there is none.
pub fn text(ours: &OurBytes, counted: &[([&str; 2], &TensorBytes)], colour: bool) -> String {
    if counted.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("tensors", "", Align::Left),
        ("precision", "", Align::Left),
        ("given", "MB", Align::Right),
        ("activations and gradients", "MB", Align::Right),
        ("peak", "MB", Align::Right),
        ("ours ÷ theirs, peak", "", Align::Right),
        ("without what is given", "", Align::Right),
    ]);
    let megabytes = |t: &TensorBytes| [t.given_bytes, t.beyond_bytes(), t.peak_bytes].map(|b| Cell::number(b as f64 / 1e6, 1));
    let mut cells = vec![Cell::text("ours").strong(true), Cell::text("")];
    cells.extend(megabytes(&ours.tensors));
    table.row(cells);
    for (peer, theirs) in counted {
        let mut cells: Vec<Cell> = peer.map(Cell::text).into();
        cells.extend(megabytes(theirs));
        let ratio = |of: fn(&TensorBytes) -> u64| Cell::number(of(&ours.tensors) as f64 / of(theirs) as f64, 3);
        cells.extend([ratio(|t| t.peak_bytes), ratio(TensorBytes::beyond_bytes)]);
        table.row(cells);
    }
    let working = ours.working_bytes as f64 / 1e6;
    let boundary = ours.boundary_bytes as f64 / 1e6;
    format!(
        "\nTensors alive at once in a step; given are input, parameters and upstream gradient:\n{}\
         What is given and the results are {boundary:.1} MB by themselves, which no step can do without.\n\
         Inside kernels, counted on neither side: {working:.1} MB of ours, held from step to step.\n",
        table.text(colour)
    )
}
