//! How much of a kernel of several layers is computed more than once: halos of tiles that overlap, and the first rows of strips.

use super::{Fold, is_product, layers};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::{LoopGroup, LoopNest, Tag};
use crate::maps::flatten::statements;
use crate::tiles::lower;
use sdfg::config::KernelConfig;
use sdfg::{Bindings, Expr};
use std::collections::BTreeSet;

/// Multiplications and additions of the products of a kernel of several layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerFlop {
    /// What one run does, and what the layers would do if each were a kernel of its own.
    pub done: f64,
    pub alone: f64,
}

impl LayerFlop {
    /// What is done more than once, as a part of what the layers need: 0.05 is 5%.
    pub fn again(self) -> f64 {
        self.done / self.alone.max(1.0) - 1.0
    }

    /// Of a configuration, border by border and step by step; `None` for kernels whose layers do not hand over in tiles.
    ///
    /// # Errors
    /// Configurations that cannot be lowered.
    pub fn of(spec: &KernelSpec, config: &KernelConfig) -> Result<Option<LayerFlop>, KernelError> {
        if !super::is_wanted(config) {
            return Ok(None);
        }
        let flattened = statements(spec, true)?;
        let Some(folds) = layers(&flattened) else { return Ok(None) };
        let nest = lower(spec, config)?;
        let mut alone = 0.0;
        for flat in flattened.statements.iter().filter(|flat| is_product(flat, &flattened)) {
            let mine: Vec<&Fold> = folds.iter().filter(|f| f.data == flat.statement.write.data).collect();
            let outer = flattened.outer.iter().filter(|r| !mine.iter().any(|f| f.outer == r.index)).map(|r| r.count);
            let inner = flat.inner.iter().map(|r| match mine.iter().find(|f| f.index == r.index) {
                None => r.count,
                Some(fold) => {
                    let points = flattened.outer.iter().find(|o| o.index == fold.outer).map_or(1, |o| o.count);
                    let all = super::extent(fold, points, r.count);
                    nest.border(&fold.index).map_or(all, |border| border.size)
                }
            });
            alone += 2.0 * outer.chain(inner).map(|n| n as f64).product::<f64>();
        }
        let done = nest.groups.iter().filter(|g| g.is_gemm).map(|group| 2.0 * iterations(spec, &nest, group)).sum();
        Ok(Some(LayerFlop { done, alone }))
    }

    /// The same tiles in the form that overlaps; `None` for kernels whose layers do not hand over in tiles.
    ///
    /// # Errors
    /// As [`LayerFlop::of`].
    pub fn overlapped(spec: &KernelSpec, config: &KernelConfig) -> Result<Option<LayerFlop>, KernelError> {
        if !super::is_wanted(config) {
            return Ok(None);
        }
        let mut knobs = config.knobs.clone().with("form", "layers");
        knobs.0.remove("strip");
        LayerFlop::of(spec, &KernelConfig { knobs, ..config.clone() })
    }
}

/// Iterations of a group at all points and steps together.
fn iterations(spec: &KernelSpec, nest: &LoopNest, group: &LoopGroup) -> f64 {
    let sizes = spec.dims.iter().chain(&spec.sizes).map(|(name, value)| (name.clone(), *value));
    let tiles = nest.tiles.iter().map(|t| (crate::loopnest::Tile::symbol(&t.index), t.size));
    let mut at: Bindings = sizes.chain(tiles).collect();
    let mut counts: Vec<Expr> = Vec::new();
    for each in &group.loops {
        let tile = nest.tiles.iter().find(|t| t.index == each.index && t.is_ragged());
        counts.push(match (nest.made(&each.index, each.count), tile) {
            (Some((_, made)), _) => made,
            (None, Some(tile)) => {
                let start = Expr::sym(tile.outer.as_str()) * Expr::Int(tile.size);
                (Expr::Int(tile.count) - start).min(Expr::Int(tile.size))
            }
            (None, None) => Expr::Int(each.count),
        });
    }
    let names: BTreeSet<String> = counts.iter().flat_map(Expr::symbols).collect();
    let (told, others): (Vec<_>, Vec<_>) = nest.outer.iter().partition(|l| names.contains(&l.index));
    // Strips divide the steps, which are counted.
    let others = others.into_iter().filter(|l| !nest.divides_steps(&l.index) || nest.outer.iter().all(|s| s.tag != Tag::Step));
    let each: f64 = others.map(|l| l.count as f64).product();
    let mut total = 0.0;
    let mut places = vec![0; told.len()];
    loop {
        at.extend(told.iter().zip(&places).map(|(l, place)| (l.index.clone(), *place)));
        total += counts.iter().map(|e| e.eval(&at).unwrap_or(0).max(0) as f64).product::<f64>();
        // The next one, the last loop first.
        let Some(n) = (0..told.len()).rev().find(|n| places[*n] + 1 < told[*n].count) else { break };
        places[n] += 1;
        places[n + 1..].fill(0);
    }
    total * each
}
