//! What the CUDA of a nest means as a schedule template. `GRID` are blocks, `WARP` the warps of a block and `CTA` its threads: where a warp
//! has a row, `CTA` are its lanes. `THREAD` is one iteration after the other within a thread. `S` is shared memory.

use super::schedule::{Placement, ThreadSchedule, WARP};
use super::tile::{TileWalk, walk_of};
use super::{Chip, Cuda, CudaPrinter, blocks, emit, tile};
use crate::emit::gemm::Matrices;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::{ForLoop, LoopGroup, LoopNest, NestStatement, Tag};
use crate::template::{AttributeKind, KernelOperators, LoopMeaning, ScheduleTemplate, template};
use indexmap::IndexMap;
use sdfg::Dtype;
use sdfg::config::KernelConfig;
use std::collections::BTreeMap;

/// Steps of a walk with those who take them.
type Parts = Vec<(AttributeKind, u64)>;

/// The template of a nest without products that was lowered with the [`super::lanes`] of the configuration.
///
/// # Errors
/// As [`emit`].
pub fn map_template(
    operators: &KernelOperators,
    spec: &KernelSpec,
    nest: &LoopNest,
    config: &KernelConfig,
    chip: Chip,
) -> Result<ScheduleTemplate, KernelError> {
    let source = emit(spec, nest, config, chip)?;
    let schedule = ThreadSchedule::new(spec, nest, config)?;
    let mut printer = CudaPrinter::new(spec, nest, config, source.double, Cuda::default());
    printer.dialect.schedule = Some(schedule.clone());
    let private = source.finish.is_some();
    let sections = if private { printer.sections(blocks(spec, config, chip)?) } else { None };
    // Rows of a block are neighbouring points, several in a warp where a team is less than one.
    let rows = schedule.rows as u64;
    let beside = (WARP / schedule.team()).clamp(1, schedule.rows) as u64;
    let rows = [(AttributeKind::Cta, beside), (AttributeKind::Warp, rows.div_ceil(beside))];
    let steps = |loops: &[ForLoop]| -> Vec<(String, u64)> { loops.iter().map(|l| (l.index.clone(), nest.steps(l) as u64)).collect() };
    let around = sections.as_ref().map_or(0, |s| s.around);
    let (outer, inner) = nest.outer.split_at(around);
    let points: u64 = steps(inner).iter().map(|(_, n)| n).product();
    let mut of_points: IndexMap<String, Parts> =
        steps(outer).into_iter().map(|(index, n)| (index, vec![(AttributeKind::Grid, n)])).collect();
    let grid = if sections.is_some() { source.teams } else { source.grid } as u64;
    let parts: Parts = match private {
        // Neighbouring points, so that registers hold results for long.
        true => {
            let run = points.div_ceil((grid * schedule.rows as u64).max(1));
            [(AttributeKind::Thread, run)].into_iter().chain(rows).chain([(AttributeKind::Grid, grid)]).collect()
        }
        false => rows.into_iter().chain([(AttributeKind::Grid, grid)]).collect(),
    };
    of_points.extend(divided(&steps(inner), parts));
    let threads = source.threads;
    let teams = TeamLoops { nest, schedule: &schedule, points: of_points };
    Ok(template(operators, nest, &teams, [source.grid, threads]))
}

/// Divides loops, given from outer to inner, among those who take steps, given from inner to outer. What is left over is walked by one
/// thread. Parts of each loop from outer to inner; steps are rounded up where they do not divide a loop.
fn divided(loops: &[(String, u64)], parts: Parts) -> BTreeMap<String, Parts> {
    let mut parts = parts.into_iter().filter(|(_, n)| *n > 1).peekable();
    let mut left = parts.next();
    let mut found = BTreeMap::new();
    for (index, steps) in loops.iter().rev() {
        let (mut rest, mut own) = (*steps, Vec::new());
        while rest > 1 {
            let Some((kind, n)) = left else {
                own.push((AttributeKind::Thread, rest));
                break;
            };
            let taken = n.min(rest);
            own.push((kind, taken));
            rest = rest.div_ceil(taken);
            let more = n.div_ceil(taken);
            left = if more > 1 { Some((kind, more)) } else { parts.next() };
        }
        own.reverse();
        found.insert(index.clone(), own);
    }
    found
}

/// The strips of a loop that `team` threads share, each of which takes `width` neighbours at a time.
fn strips(count: i64, team: i64, width: i64) -> Parts {
    let width = width.min(count).max(1);
    let team = team.min((count + width - 1) / width).max(1);
    let slots = (count + team * width - 1) / (team * width);
    vec![(AttributeKind::Thread, slots as u64), (AttributeKind::Cta, team as u64), (AttributeKind::Thread, width as u64)]
}

/// Points of teams, whose threads share the innermost loop of each group.
struct TeamLoops<'a> {
    nest: &'a LoopNest,
    schedule: &'a ThreadSchedule,
    /// Who walks each outer loop.
    points: IndexMap<String, Parts>,
}

impl LoopMeaning for TeamLoops<'_> {
    fn outer(&self, each: &ForLoop) -> Parts {
        self.points.get(&each.index).cloned().unwrap_or_default()
    }

    fn inner(&self, group: &LoopGroup, _: &NestStatement, each: &ForLoop) -> Parts {
        if group.loops.last().is_none_or(|last| last.index != each.index) {
            return vec![(AttributeKind::Thread, each.count as u64)];
        }
        let is_block = self.nest.block().is_some_and(|block| block.index == each.index);
        let count = if is_block { each.count.min(self.nest.lanes) } else { each.count };
        strips(count, self.schedule.team(), self.schedule.width)
    }

    fn is_on_chip(&self, data: &str) -> bool {
        self.is_held(data, Placement::Shared)
    }

    fn is_in_memory(&self, data: &str) -> bool {
        self.is_held(data, Placement::Scratch)
    }
}

impl TeamLoops<'_> {
    fn is_held(&self, data: &str, place: Placement) -> bool {
        self.nest.tensors.get(data).is_some_and(|t| t.stored) && self.schedule.places.get(data) == Some(&place)
    }
}

/// The template of a nest over tiles.
///
/// # Errors
/// As [`emit`].
pub fn tile_template(
    operators: &KernelOperators,
    spec: &KernelSpec,
    nest: &LoopNest,
    config: &KernelConfig,
    chip: Chip,
) -> Result<ScheduleTemplate, KernelError> {
    let double = nest.tensors.values().any(|t| t.dtype == Dtype::F64);
    let printer = || -> Result<CudaPrinter, KernelError> {
        let mut printer = CudaPrinter::new(spec, nest, config, double, Cuda::default());
        printer.dialect.schedule = Some(ThreadSchedule::new(spec, nest, config)?);
        Ok(printer)
    };
    let part = tile::part(printer()?, super::partials(nest).next().is_some(), chip)?;
    let schedule = ThreadSchedule { places: part.places, ..ThreadSchedule::new(spec, nest, config)? };
    let mut printer = printer()?;
    let mut products = Vec::new();
    for group in nest.groups.iter().filter(|g| g.is_gemm) {
        let matrices = printer.matrices(group, false, [&|_, _, _| false; 2])?;
        products.push((matrices.out.data.clone(), matrices));
    }
    let shared: Vec<(String, u64)> = nest.shared().map(|l| (l.index.clone(), nest.steps(l) as u64)).collect();
    let points = divided(&shared, vec![(AttributeKind::Grid, part.source.grid as u64)]).into_iter().collect();
    let blocks = BlockLoops { teams: TeamLoops { nest, schedule: &schedule, points }, products };
    Ok(template(operators, nest, &blocks, [part.source.grid, part.source.threads]))
}

/// Tiles of blocks, all threads of which are in one group after another.
struct BlockLoops<'a> {
    teams: TeamLoops<'a>,
    products: Vec<(String, Matrices)>,
}

impl LoopMeaning for BlockLoops<'_> {
    fn outer(&self, each: &ForLoop) -> Parts {
        match each.tag {
            Tag::Sequential => vec![(AttributeKind::Thread, each.count as u64)],
            _ => self.teams.outer(each),
        }
    }

    fn inner(&self, group: &LoopGroup, statement: &NestStatement, each: &ForLoop) -> Parts {
        let count = each.count as u64;
        if let Some((_, matrices)) = self.products.iter().find(|(data, _)| *data == statement.write.data).filter(|_| group.is_gemm) {
            let has = |axis: &Option<crate::emit::gemm::GemmAxis>| axis.as_ref().is_some_and(|a| a.indices.contains(&each.index));
            let depth = self.teams.nest.gemm.map_or(1, |plan| plan.depth.max(1)) as u64;
            return match (has(&matrices.rows) || has(&matrices.columns), &matrices.steps) {
                (true, _) => vec![(AttributeKind::Cta, count)],
                // Of several indices as one, parts of the depth lie across them.
                (false, Some(steps)) if has(&matrices.steps) && steps.indices.len() == 1 && count > depth => {
                    vec![(AttributeKind::Thread, count.div_ceil(depth)), (AttributeKind::Thread, depth)]
                }
                _ => vec![(AttributeKind::Thread, count)],
            };
        }
        let schedule = self.teams.schedule;
        match walk_of(group, statement, each, self.teams.nest) {
            TileWalk::Warps => vec![(AttributeKind::Warp, count)],
            TileWalk::One => vec![(AttributeKind::Thread, count)],
            TileWalk::Lanes => strips(each.count, schedule.team(), schedule.width),
            TileWalk::Threads => strips(each.count, schedule.threads, schedule.width),
        }
    }

    fn is_on_chip(&self, data: &str) -> bool {
        self.teams.is_on_chip(data)
    }

    fn is_in_memory(&self, data: &str) -> bool {
        self.teams.is_in_memory(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AttributeKind::{Cta, Grid, Thread, Warp};

    #[test]
    fn points_are_divided_from_the_innermost_loop() {
        let loops = |steps: &[u64]| -> Vec<(String, u64)> { steps.iter().enumerate().map(|(n, s)| (n.to_string(), *s)).collect() };
        let of = |steps: &[u64], parts: Parts| divided(&loops(steps), parts).into_values().collect::<Vec<_>>();
        assert_eq!(of(&[4, 32], vec![(Warp, 8), (Grid, 16)]), [vec![(Grid, 4)], vec![(Grid, 4), (Warp, 8)]]);
        // Rows that fill a loop go on in the one around it.
        assert_eq!(of(&[16, 2], vec![(Warp, 8), (Grid, 4)]), [vec![(Grid, 4), (Warp, 4)], vec![(Warp, 2)]]);
        // Fewer blocks than points: each has several, one after the other.
        assert_eq!(of(&[64], vec![(Warp, 8), (Grid, 4)]), [vec![(Thread, 2), (Grid, 4), (Warp, 8)]]);
        assert_eq!(of(&[64, 1], vec![(Thread, 16), (Cta, 4), (Grid, 1)]), [vec![(Cta, 4), (Thread, 16)], vec![]]);
    }

    #[test]
    fn strips_are_no_longer_than_their_loop() {
        assert_eq!(strips(512, 32, 4), [(Thread, 4), (Cta, 32), (Thread, 4)]);
        assert_eq!(strips(6, 32, 4), [(Thread, 1), (Cta, 2), (Thread, 4)]);
        assert_eq!(strips(2, 32, 4), [(Thread, 1), (Cta, 1), (Thread, 2)]);
    }
}
