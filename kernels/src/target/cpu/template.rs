//! What the C of a configuration means as a schedule template. `GRID` are the workers, which share the points of the outer loops; `CTA` are
//! the iterations of a tile, all of one worker; `WARP` are lanes of vectors; `THREAD` is one iteration after the other. `S` is the scratch
//! memory of a worker.

use crate::emit::printer::PrintedLoops;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::{ForLoop, LoopGroup, LoopNest, NestStatement, Tag};
use crate::maps::flatten::statements;
use crate::target::cpu::emit::printed_loops;
use crate::template::{AttributeKind, KernelOperators, LoopMeaning, ScheduleTemplate, template};
use crate::{maps, split_blocked_dims, tiles};
use sdfg::config::KernelConfig;
use sdfg::{Class, Unit};
use std::collections::BTreeSet;

/// The template of a kernel under a configuration; `None` where a library has it, where it adds up rows by number, and for loops over time,
/// whose kernels have templates of their own.
///
/// # Errors
/// Knobs that the kernel does not have; scopes that cannot be generated.
pub fn template_of(spec: &KernelSpec, config: &KernelConfig) -> Result<Option<ScheduleTemplate>, KernelError> {
    match &spec.unit {
        Unit::Scope(_) => {}
        Unit::Operation(o) if o.class() == Class::Contraction && (crate::contraction::is_windowed(o) || super::is_generated(config)) => {
            return template_of(&tiles::expanded(spec)?, config);
        }
        _ => return Ok(None),
    }
    let operators = KernelOperators::of(spec)?;
    let (split, config) = split_blocked_dims::split(spec, config)?;
    let nest = if tiles::is_tiled(&config) { tiles::lower(&split, &config)? } else { maps::lower(&split, &config)? };
    let (printed, held) = printed_loops(&split, &nest, &config)?;
    // What is summed alone is no index of a tile, though it may be one of the whole scope.
    let outer = statements(&split, true)?.outer;
    let tiled = outer.into_iter().map(|range| range.index).filter(|_| nest.gemm.is_some()).collect();
    let cores = CoreLoops { nest: &nest, tiled, printed, held };
    Ok(Some(template(&operators, &nest, &cores, [nest.points(), 1])))
}

/// A nest, and what was printed of it.
struct CoreLoops<'a> {
    nest: &'a LoopNest,
    /// Indices that every group walks within a tile.
    tiled: BTreeSet<String>,
    printed: Vec<PrintedLoops>,
    held: BTreeSet<String>,
}

impl LoopMeaning for CoreLoops<'_> {
    fn outer(&self, each: &ForLoop) -> Vec<(AttributeKind, u64)> {
        if let Some(strip) = &self.nest.strip {
            if each.index == strip.strips {
                return vec![];
            }
            // Workers share strips, and walk the steps of each in order.
            if each.index == strip.steps {
                let strips = (self.nest.steps(each) + strip.each - 1) / strip.each;
                return vec![(AttributeKind::Grid, strips as u64), (AttributeKind::Thread, strip.each as u64)];
            }
        }
        let kind = if each.tag == Tag::Sequential { AttributeKind::Thread } else { AttributeKind::Grid };
        vec![(kind, self.nest.steps(each) as u64)]
    }

    fn inner(&self, group: &LoopGroup, statement: &NestStatement, each: &ForLoop) -> Vec<(AttributeKind, u64)> {
        let printed = self.printed.iter().find(|p| p.writes.contains(&statement.write.data));
        let has = |list: &[String]| list.contains(&each.index);
        if printed.is_some_and(|p| has(&p.lanes)) {
            let is_block = self.nest.block().is_some_and(|block| block.index == each.index);
            let lanes = if is_block { each.count.min(self.nest.lanes) } else { each.count };
            return vec![(AttributeKind::Warp, lanes as u64)];
        }
        let whole = vec![(if self.tiled.contains(&each.index) { AttributeKind::Cta } else { AttributeKind::Thread }, each.count as u64)];
        let Some((indices, packed)) = printed.and_then(|p| p.packed.as_ref()).filter(|(indices, _)| has(indices)) else { return whole };
        // Of several indices as one, the pieces that are packed at once are whole in the inner ones.
        let count = |index: &String| group.loops.iter().find(|l| l.index == *index).map_or(1, |l| l.count);
        let within: i64 = indices.iter().take_while(|index| **index != each.index).map(count).product();
        let piece = packed / within;
        match packed % within == 0 && (1..each.count).contains(&piece) {
            true => vec![(AttributeKind::Thread, (each.count as u64).div_ceil(piece as u64)), (AttributeKind::Thread, piece as u64)],
            false => whole,
        }
    }

    fn is_on_chip(&self, data: &str) -> bool {
        self.held.contains(data)
    }
}
