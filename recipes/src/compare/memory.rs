//! Bytes of tensors that are alive at once in a step. The size of a process is more, because it includes libraries.
//!
//! On both sides *given* are the input, the parameters and the upstream gradient, in their stored types. The *peak* counts these and, at
//! its moment, the tensors that were made and are still needed: outputs and gradients, which are held to the end, and intermediates
//! (activations, masks, copies in another layout or type). After the step both sides hold the given tensors and the results, so no peak
//! is smaller. Memory inside one kernel or operator counts on neither side: our packed operands and tiles are reported separately, and
//! those of PyTorch's libraries cannot be observed.
//!
//! PyTorch's tensors are storages that its operators return (`bench/peers/tensor_bytes.py`). In f32 that equals its allocator's bytes up
//! to a few; in bf16 the allocator hands out more. ONNX Runtime's are the results of its optimized graph's nodes, with the sizes of its own
//! profile (`bench/peers/onnx_worker.py`): each lives until the last node that reads it, and takes the place of an input wherever the
//! operator can do so. That is the least that the runtime needs; its allocator holds more.

use super::contender::{PeerContender, Precision};
use bench::table::{Align, Cell, Table};
use serde::{Deserialize, Serialize};

/// Bytes of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorBytes {
    /// Input, parameters and upstream gradient.
    pub given_bytes: u64,
    /// All tensors that are alive at once, including the given ones.
    pub peak_bytes: u64,
}

impl TensorBytes {
    /// Activations and gradients: the peak without the given tensors.
    pub fn beyond_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.given_bytes)
    }
}

/// Our tensors, and the working memory of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OurBytes {
    #[serde(flatten)]
    pub tensors: TensorBytes,
    /// Given tensors and results, which are held after the step: no peak is smaller.
    pub boundary_bytes: u64,
    /// Working memory inside kernels, of all kernels together: packed operands, tiles, partial sums of each worker.
    pub working_bytes: u64,
}

/// Whether a contender's tensors are counted; products in medium precision do not change them.
pub fn is_counted(contender: &PeerContender) -> bool {
    contender.variant.is_watched() && contender.precision != Precision::Medium
}

/// A table of our bytes and those of all counted peers, by variant and precision; empty without peers.
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
