//! CUDA as a dialect of the printer: how threads share a nest, and what they hold.

use super::schedule::ThreadSchedule;
use crate::emit::dialect::TargetDialect;
use crate::emit::scalar::combined;
use crate::error::KernelError;
use crate::loopnest::{BankedRows, Element};
use indexmap::IndexMap;
use sdfg::Combine;

/// The prefetch of a point.
#[derive(Default)]
pub struct PrefetchedRows {
    pub declared: Vec<String>,
    /// Loads of values that a row has one of, and loads for each `slot` of a thread.
    pub once: Vec<String>,
    pub read: Vec<String>,
}

/// The printer of CUDA.
pub type CudaPrinter<'a> = crate::emit::printer::Printer<'a, Cuda>;

/// The state of the printer that only CUDA has.
pub struct Cuda {
    /// How the kernel spreads the nest; absent until it is known.
    pub schedule: Option<ThreadSchedule>,
    /// Loads of the next point that are issued while this point is computed.
    pub next: PrefetchedRows,
    /// Most values that the warps of a team reduce at once.
    pub meetings: usize,
    /// How many masks the rows of a block draw together, each in its own shared memory.
    pub draws: usize,
    /// Random bits that threads keep from one point to the next.
    pub in_turn: Vec<String>,
    /// Variables that hold elements for all groups of a point.
    pub lasting: IndexMap<Element, String>,
    /// Whether all threads of a team compute the same values in the code being printed.
    pub uniform: bool,
}

impl Default for Cuda {
    fn default() -> Self {
        Cuda {
            schedule: None,
            next: PrefetchedRows::default(),
            meetings: 0,
            draws: 0,
            in_turn: Vec::new(),
            lasting: IndexMap::new(),
            uniform: true,
        }
    }
}

impl TargetDialect for Cuda {
    const BANKS: Option<BankedRows> = Some(super::BANKS);
    const STRIPS: bool = true;
    const LONG_SUMS: bool = false;
    const BLENDS: bool = false;

    fn place(printer: &mut CudaPrinter, element: &Element) -> Result<String, KernelError> {
        let name = printer.identifier(&element.data);
        if let Some(place) = printer.register(element)? {
            return Ok(place);
        }
        printer.pointers.insert(element.data.clone());
        Ok(format!("{name}[{}]", printer.position(element)?))
    }

    fn load(printer: &CudaPrinter, element: &Element, place: String) -> Result<String, KernelError> {
        Ok(if printer.in_memory(&element.data)? { format!("to_real({place})") } else { place })
    }

    fn store(printer: &CudaPrinter, element: &Element, place: &str, value: &str) -> Result<String, KernelError> {
        printer.store_cuda(element, printer.tensor(&element.data)?, place, value)
    }

    fn held_value(printer: &mut CudaPrinter, element: &Element) -> Result<String, KernelError> {
        printer.load(element)
    }

    /// One instruction for extrema.
    fn combined(combine: Combine, left: &str, right: &str) -> String {
        match combine {
            Combine::Max => format!("r_max({right}, {left})"),
            Combine::Min => format!("r_min({right}, {left})"),
            _ => combined(combine, left, right),
        }
    }

    fn extreme(sign: char, a: &str, b: &str, _: bool) -> String {
        if sign == '>' { format!("r_max({a}, {b})") } else { format!("r_min({a}, {b})") }
    }

    fn mask(number: usize) -> String {
        format!("keep{number}")
    }
}
