//! C as a dialect of the printer.

use crate::emit::dialect::TargetDialect;
use crate::emit::printer::c_type;
use crate::emit::scalar::{combined, extreme};
use crate::error::KernelError;
use crate::loopnest::{BankedRows, Element, MemorySpace, slope};
use crate::target::cpu::direct::operand::DirectOperand;
use indexmap::IndexMap;
use sdfg::{Combine, Dtype};
use std::collections::{BTreeMap, BTreeSet};

/// The printer of C.
pub type CPrinter<'a> = crate::emit::printer::Printer<'a, C>;

/// What a printer of C has besides.
#[derive(Default)]
pub struct C {
    /// Copies of what maps read through windows, with the fill around them.
    pub padded: IndexMap<String, DirectOperand>,
    /// Bytes of locals that lie where an earlier one has lain.
    pub taken_over: IndexMap<String, usize>,
    /// Locals that are in the worker's scratch memory.
    pub held: BTreeSet<String>,
}

impl TargetDialect for C {
    const BANKS: Option<BankedRows> = None;
    const STRIPS: bool = false;
    const LONG_SUMS: bool = true;
    const BLENDS: bool = true;

    fn place(printer: &mut CPrinter, element: &Element) -> Result<String, KernelError> {
        let tensor = printer.tensor(&element.data)?;
        let name = printer.identifier(&element.data);
        if printer.is_value(tensor) {
            return Ok(if printer.nest.per_lane(tensor) { format!("{name}[lane]") } else { name });
        }
        if !matches!(tensor.space, MemorySpace::Heap { .. }) {
            let elements: i64 = tensor.shape.iter().product::<i64>() * if printer.nest.per_lane(tensor) { printer.nest.lanes } else { 1 };
            let owner = printer.nest.reuses.get(&element.data).map_or(name, |owner| printer.identifier(owner));
            // Micro-kernels read whole vectors of it, the last one beyond its end.
            let beyond = if printer.nest.gemm.is_some_and(|plan| plan.direct) { 64 } else { 0 };
            let bytes = elements as usize * if printer.double { 8 } else { 4 } + beyond;
            if printer.nest.reuses.contains_key(&element.data) {
                printer.dialect.taken_over.insert(element.data.clone(), bytes);
            }
            printer.scratch.insert(owner.clone(), ("real", bytes));
            printer.dialect.held.insert(element.data.clone());
            return Ok(format!("{owner}[{}]", printer.position(element)?));
        }
        printer.pointers.insert(element.data.clone());
        Ok(format!("{name}[{}]", printer.position(element)?))
    }

    fn load(printer: &CPrinter, element: &Element, place: String) -> Result<String, KernelError> {
        let tensor = printer.tensor(&element.data)?;
        Ok(match tensor.space {
            MemorySpace::Heap { .. } if tensor.dtype == Dtype::Bf16 => format!("load_bf16({place})"),
            MemorySpace::Heap { .. } => format!("(real){place}"),
            _ => place,
        })
    }

    /// Windows are read from a copy that is made before the first point: each element is read several times, and asked for once.
    fn padded(printer: &mut CPrinter, element: &Element) -> Result<Option<String>, KernelError> {
        let nest = printer.nest;
        let indices = || nest.outer.iter().chain(nest.groups.iter().flat_map(|g| &g.loops)).filter(|l| l.count > 1);
        let several = |e: &sdfg::Expr| e.symbols().iter().filter(|s| indices().any(|l| l.index == **s)).count() > 1;
        let real = if printer.double { Dtype::F64 } else { Dtype::F32 };
        let copied = printer.tensor(&element.data)?.dtype == real && nest.tiles.is_empty() && element.subscripts.iter().any(several);
        let by_value = element.subscripts.iter().any(sdfg::Expr::reads_elements);
        // What is rounded down moves in steps of another length, and has no copy.
        let affine = |e: &sdfg::Expr| indices().all(|l| slope(e, &l.index).is_some());
        if !copied || by_value || !element.subscripts.iter().all(affine) || !printer.is_given(&element.data) {
            return Ok(None);
        }
        let key = format!("{element:?}");
        let operand = match printer.dialect.padded.get(&key) {
            Some(operand) => operand.clone(),
            None => {
                let operand = printer.padded_operand(element.clone())?;
                printer.dialect.padded.insert(key, operand.clone());
                operand
            }
        };
        if !operand.is_copied() {
            return Ok(None);
        }
        Ok(Some(format!("(*({}))", printer.start(&operand, &BTreeMap::new())?)))
    }

    fn store(printer: &CPrinter, element: &Element, place: &str, value: &str) -> Result<String, KernelError> {
        let tensor = printer.tensor(&element.data)?;
        Ok(match (&tensor.space, c_type(tensor.dtype)) {
            (MemorySpace::Heap { .. }, Some("uint16_t")) => format!("{place} = store_bf16({value});"),
            (MemorySpace::Heap { .. }, Some(kind)) => format!("{place} = ({kind}){value};"),
            _ => format!("{place} = {value};"),
        })
    }

    fn held_value(printer: &mut CPrinter, element: &Element) -> Result<String, KernelError> {
        printer.place(element)
    }

    fn combined(combine: Combine, left: &str, right: &str) -> String {
        combined(combine, left, right)
    }

    fn extreme(sign: char, a: &str, b: &str, number: bool) -> String {
        extreme(sign, a, b, number)
    }

    fn mask(number: usize) -> String {
        format!("host, {number}")
    }
}
