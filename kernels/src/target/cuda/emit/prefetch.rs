//! Prefetch in CUDA: rows of the next point are read while the sums of this one are reduced.
//!
//! A team of a persistent block computes one point after another, and each point is a chain of dependent steps: load its rows, reduce them
//! across the team, store results. Where few blocks fit a multiprocessor, memory idles during the reductions.

use crate::error::KernelError;
use crate::loopnest::{Element, LoopGroup, LoopNest, MemorySpace};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::dialect::PrefetchedRows;
use crate::target::cuda::emit::register::cuda_type;

/// Most loads of 16 bytes that a thread has in flight for the next point.
const PACKS: i64 = 8;

/// Whether a group ends with a reduction across a team.
pub fn meets(group: &LoopGroup) -> bool {
    let along = |l: &str, e: &Element| e.subscripts.iter().any(|s| s.symbols().contains(l));
    group.loops.len() == 1 && group.statements.iter().any(|s| s.combine.is_some() && !along(&group.loops[0].index, &s.write))
}

impl CudaPrinter<'_> {
    /// Chooses the operands of the first group that are prefetched: read-only in this kernel, and with whole strips. The group then uses
    /// the prefetched values in place of loads.
    pub fn prefetch_rows(&mut self, nest: &LoopNest) -> Result<(), KernelError> {
        let (Some(schedule), Some(group)) = (self.dialect.schedule.clone(), nest.groups.first()) else { return Ok(()) };
        if !schedule.prefetches || schedule.turns || nest.block().is_some() || !meets(group) {
            return Ok(());
        }
        let last = &group.loops[0];
        let (slots, lanes) = (schedule.slots(nest, last), schedule.team() * schedule.width);
        if last.count % lanes != 0 || nest.tiles.iter().any(|t| t.index == last.index && t.is_ragged()) {
            return Ok(());
        }
        let written = |root: &String| nest.groups.iter().flat_map(|g| &g.statements).any(|s| self.spec.root(&s.write.data) == root);
        let of_point = |e: &Element| e.subscripts.iter().any(|s| nest.outer.iter().any(|l| s.symbols().contains(&l.index)));
        self.known.clear();
        let mut wanted: Vec<(Element, &'static str)> = Vec::new();
        for element in self.reads_at(group, 1).into_iter().filter(|e| e.fill.is_none() && of_point(e)) {
            let tensor = self.tensor(&element.data)?;
            let (MemorySpace::Heap { root, .. }, Some(kind)) = (&tensor.space, cuda_type(tensor.dtype)) else { continue };
            let bytes = tensor.dtype.bytes(schedule.width as u64);
            let fits = (4..=16).contains(&bytes) && slots * (wanted.len() as i64 + 1) <= PACKS;
            if fits && !written(root) && self.contiguous(&element, last)? && self.is_even(&element, last)? {
                wanted.push((element, kind));
            }
        }
        let alone = self.reads_at(group, 0).into_iter().filter(|e| e.fill.is_none() && of_point(e));
        let given = |e: &Element| matches!(self.tensor(&e.data).map(|t| &t.space), Ok(MemorySpace::Heap { root, .. }) if !written(root));
        let alone: Vec<Element> = alone.filter(given).collect();
        for (element, kind) in wanted {
            let subscripts = element.subscripts.iter().map(|e| self.at_first(e, last)).collect();
            self.pointers.insert(element.data.clone());
            let at = self.position(&Element { subscripts, ..element.clone() })?;
            let (name, pointer) = (self.fresh("near"), self.identifier(&element.data));
            self.dialect.next.declared.push(format!("Pack<{kind}, W> {name}[{slots}];"));
            self.dialect.next.read.push(format!("{name}[slot] = read_pack<W>({pointer}, {at});"));
            self.ahead.insert(element, format!("{name}[slot]"));
        }
        // A value that a row has one of is prefetched as well, or its load alone would be waited for.
        for element in if self.dialect.next.read.is_empty() { vec![] } else { alone } {
            let (name, text) = (self.fresh("near"), self.load(&element)?);
            self.dialect.next.declared.push(format!("real {name};"));
            self.dialect.next.once.push(format!("{name} = {text};"));
            self.ahead.insert(element, name);
        }
        Ok(())
    }
}

impl PrefetchedRows {
    /// The text before the loop over points: variables for the rows, and a lambda that loads those of a point, whose indices are `decoded`.
    pub fn opening(&self, slots: i64, decoded: &str) -> String {
        if self.read.is_empty() {
            return String::new();
        }
        let lines = |lines: &[String], margin: &str| lines.iter().map(|line| format!("{margin}{line}\n")).collect::<String>();
        let mut text = lines(&self.declared, "    ");
        text += "    const auto ahead = [&](const index_t point) {\n        index_t rest = point;\n";
        text += decoded;
        text += &lines(&self.once, "        ");
        text += &format!("        #pragma unroll\n        for (int slot = 0; slot < {slots}; ++slot) {{\n");
        text += "            const index_t first_lane = ((index_t)slot * TEAM + member) * W;\n";
        text += &lines(&self.read, "            ");
        text + "        }\n    };\n    if (from < to) ahead(from);\n"
    }
}
