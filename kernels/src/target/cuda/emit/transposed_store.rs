//! Transposed stores: results whose neighbours along the vectors lie far apart in memory are transposed in shared memory first.
//!
//! The rows of a block are neighbouring points. If these are neighbours in a result too, a strip of every row goes to shared memory
//! and leaves it with the rows next to one another, so that whole sectors of memory are written. All rows of a block then run
//! together: one that has no point of its own computes the last one again and writes nothing.

use crate::loopnest::{Element, ForLoop, LoopGroup, LoopNest, MemorySpace, slope};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::register::cuda_type;
use crate::target::cuda::emit::schedule::ThreadSchedule;
use sdfg::Expr;

/// Whether results of a nest are transposed: the knob asks for it, rows are several, nothing is summed over points and no
/// row reads what another one writes.
pub fn turns(printer: &CudaPrinter, schedule: &ThreadSchedule) -> bool {
    let nest = printer.nest;
    let private = nest.tensors.values().any(|t| matches!(t.space, MemorySpace::Private { .. }));
    schedule.turns && schedule.rows > 1 && !private && !reads_results(nest) && turned_writes(printer).next().is_some()
}

fn root<'a>(nest: &'a LoopNest, data: &str) -> Option<&'a String> {
    nest.tensors.get(data).and_then(|t| match &t.space {
        MemorySpace::Heap { root, .. } => Some(root),
        _ => None,
    })
}

fn reads_results(nest: &LoopNest) -> bool {
    let statements = || nest.groups.iter().flat_map(|g| &g.statements);
    let written = |of: &String| statements().any(|s| root(nest, &s.write.data) == Some(of));
    statements().flat_map(|s| &s.reads).filter_map(|(_, e)| root(nest, &e.data)).any(written)
}

fn turned_writes<'p>(printer: &'p CudaPrinter) -> impl Iterator<Item = &'p Element> {
    let each = printer.nest.groups.iter().flat_map(|g| g.statements.iter().map(move |s| (g, s)));
    let plain = each.filter(|(_, s)| s.combine.is_none());
    plain
        .filter_map(|(g, s)| g.loops.last().map(|last| (g, &s.write, last)))
        .filter(|(g, e, l)| crosses(printer, g, e, l).is_some())
        .map(|(_, e, _)| e)
}

/// The dim of a result that a loop runs along, if neighbours along it are no neighbours in memory.
fn crosses(printer: &CudaPrinter, group: &LoopGroup, element: &Element, along: &ForLoop) -> Option<usize> {
    let tensor = printer.nest.tensors.get(&element.data)?;
    let stored = matches!(tensor.space, MemorySpace::Heap { .. }) && cuda_type(tensor.dtype).is_some();
    let uses = |e: &Expr| e.symbols().contains(&along.index);
    let mut dims = (0..element.subscripts.len()).filter(|n| uses(&element.subscripts[*n]));
    let (dim, more) = (dims.next()?, dims.next());
    let plain = more.is_none() && slope(&element.subscripts[dim], &along.index) == Some(Expr::Int(1));
    let whole = printer.level(group, element) == group.loops.len();
    (stored && plain && whole && !printer.contiguous(element, along).ok()?).then_some(dim)
}

impl CudaPrinter<'_> {
    /// C text of the step between neighbours along a loop of a result that is transposed.
    pub fn turned(&mut self, group: &LoopGroup, element: &Element, along: &ForLoop) -> Option<String> {
        self.dialect.schedule.as_ref().filter(|s| s.turns)?;
        let dim = crosses(self, group, element, along)?;
        let (strides, _, _) = self.strides(&element.data).ok()?;
        let name = format!("s_{}_{dim}", self.identifier(&element.data));
        Some(self.given(name, strides[dim]))
    }

    /// C text that only holds for rows with a point of their own.
    pub fn if_active(&self, alone: &str) -> String {
        let turns = self.dialect.schedule.as_ref().is_some_and(|s| s.turns);
        match (alone, turns) {
            ("", false) => String::new(),
            ("", true) => "if (active) ".into(),
            (alone, false) => format!("if ({alone}) "),
            (alone, true) => format!("if ({alone} && active) "),
        }
    }
}
