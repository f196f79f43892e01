//! What a kernel of several layers costs in tiles of some size: flop that are computed again, bytes that are brought again, and bytes of
//! intermediate results on chip.

use super::window::{Affine, DimWindow};
use crate::fusion::iteration_space::Statement;
use crate::refusal::{BytesChange, Percent};
use sdfg::{Combine, Memlet, Range, Sdfg};
use std::collections::{BTreeMap, BTreeSet};

/// Flop that take as long as a byte from memory.
const FLOP_OF_A_BYTE: f64 = 10.0;

/// A kernel of several layers in tiles of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct TileCost {
    /// Iterations of a tile by outer index.
    pub tile: Vec<(String, i64)>,
    /// Flop beyond those of the layers alone.
    pub recompute: Percent,
    /// Bytes of all intermediate results of one tile.
    pub on_chip: u64,
    /// Against the layers alone with element-wise work fused into them: tiles read their halos again, intermediates are not moved.
    pub bytes: BytesChange,
}

impl TileCost {
    pub fn tile_text(&self) -> String {
        let all: Vec<String> = self.tile.iter().map(|(index, size)| format!("{index}:{size}")).collect();
        all.join(",")
    }
}

/// The statements of a kernel with the sizes that its cost depends on.
pub(super) struct Model<'a> {
    statements: &'a [Statement],
    windows: &'a [DimWindow],
    program: &'a Sdfg,
    /// Iterations of all indices.
    counts: BTreeMap<String, i64>,
    /// Outer indices that windows move with, which are walked in tiles.
    tiled: BTreeSet<String>,
    /// Other outer indices, of which a tile has one iteration.
    single: BTreeSet<String>,
}

impl<'a> Model<'a> {
    /// `None` where a size has no value.
    pub fn new(statements: &'a [Statement], windows: &'a [DimWindow], shared: &BTreeSet<String>, program: &'a Sdfg) -> Option<Self> {
        let mut counts = BTreeMap::new();
        for index in statements.iter().flat_map(|s| &s.indices) {
            counts.insert(index.name.clone(), index.count().eval(&program.sizes).ok()?);
        }
        // Neighbouring points share what lies along an index that windows move with, of intermediates and of what is given.
        let together = |range: &Range| {
            let symbols = crate::fusion::iteration_space::range_symbols(range);
            if symbols.len() > 1 { symbols } else { vec![] }
        };
        let given = statements.iter().flat_map(|s| &s.computation.reads).flat_map(|(_, m)| m.subset.iter().flat_map(together));
        let tiled: BTreeSet<String> = windows.iter().map(|w| w.outer.clone()).chain(given).filter(|outer| shared.contains(outer)).collect();
        let single = shared.difference(&tiled).cloned().collect();
        Some(Model { statements, windows, program, counts, tiled, single })
    }

    /// Outer indices that windows move with.
    pub fn tiled(&self) -> &BTreeSet<String> {
        &self.tiled
    }

    /// Outer indices of which a tile has one iteration.
    pub fn single(&self) -> &BTreeSet<String> {
        &self.single
    }

    /// Whether an index has more than one iteration.
    pub fn is_walked(&self, index: &str) -> bool {
        self.counts.get(index).is_some_and(|count| *count > 1)
    }

    fn count(&self, index: &str, tile: &BTreeMap<String, i64>) -> i64 {
        match tile.get(index) {
            Some(size) => *size,
            None if self.single.contains(index) => 1,
            None => self.counts.get(index).copied().unwrap_or(1),
        }
    }

    /// Points of a statement in one tile; with `alone`, in the layer that it stands for.
    fn points(&self, statement: &Statement, tile: &BTreeMap<String, i64>, alone: bool) -> i64 {
        let window = |name: &str| self.windows.iter().find(|w| w.index == name);
        let mut points = 1i64;
        for index in &statement.indices {
            let windows_outer = statement.indices.iter().any(|i| window(&i.name).is_some_and(|w| w.outer == index.name));
            let count = match window(&index.name) {
                Some(w) if alone => w.size.eval(&self.program.sizes).unwrap_or(1),
                Some(w) => w.stride * (self.count(&w.outer, tile) - 1) + self.count(&index.name, tile),
                None if windows_outer => 1,
                None if alone => self.counts.get(&index.name).copied().unwrap_or(1),
                None => self.count(&index.name, tile),
            };
            points = points.saturating_mul(count.max(1));
        }
        points
    }

    fn flop(statement: &Statement) -> f64 {
        if is_product(statement) { 2.0 } else { 1.0 }
    }

    /// Elements of a container that all tiles together bring: along each dim what lies inside it, tile by tile.
    fn elements(&self, memlet: &Memlet, statement: &Statement, tile: &BTreeMap<String, i64>) -> i64 {
        let all: BTreeSet<String> = statement.indices.iter().map(|i| i.name.clone()).collect();
        let sizes = self.program.shape_of(&memlet.data).unwrap_or_default();
        let whole = |name: &str| self.counts.get(name).copied().unwrap_or(1);
        let (mut elements, mut moved) = (1i64, BTreeSet::new());
        for (n, range) in memlet.subset.iter().enumerate() {
            let size = sizes.get(n).map_or(i64::MAX, |s| *s as i64);
            let form = if let Range::At(e) = range { Affine::of(e, &all) } else { None };
            let Some(form) = form else {
                elements = elements.saturating_mul(size);
                continue;
            };
            let outer = |name: &String| tile.contains_key(name) || self.single.contains(name);
            let reach =
                form.terms.iter().filter(|(name, _)| !outer(name)).map(|(name, slope)| slope.abs() * (whole(name) - 1)).sum::<i64>();
            let mut starts = vec![(form.constant, reach)];
            for (name, slope) in form.terms.iter().filter(|(name, _)| outer(name)) {
                moved.insert(name.clone());
                let (count, step) = (whole(name), self.count(name, tile).max(1));
                let of = |at: i64| (slope * at, slope * (step.min(count - at) - 1));
                let tiles: Vec<(i64, i64)> = (0..count).step_by(step as usize).map(of).collect();
                starts = starts.iter().flat_map(|(s, r)| tiles.iter().map(move |(start, reach)| (s + start, r + reach))).collect();
            }
            let inside = |(start, reach): &(i64, i64)| ((start + reach + 1).min(size) - (*start).max(0)).max(0);
            elements = elements.saturating_mul(starts.iter().map(inside).sum::<i64>().max(1));
        }
        // Tiles along other indices bring it again, weights apart, which stay.
        if moved.is_empty() {
            return elements;
        }
        let again = tile.iter().filter(|(name, _)| !moved.contains(*name)).map(|(name, size)| (whole(name) + size - 1) / size.max(&1));
        again.fold(elements, i64::saturating_mul)
    }

    /// Elements of a container that a statement reads, each once.
    fn distinct(&self, memlet: &Memlet, statement: &Statement) -> i64 {
        let whole = self.tiled.iter().chain(&self.single).map(|name| (name.clone(), self.counts.get(name).copied().unwrap_or(1)));
        self.elements(memlet, statement, &whole.collect())
    }

    fn bytes_of(&self, data: &str, elements: i64) -> i64 {
        self.program.containers.get(data).map_or(0, |c| c.dtype.bytes(elements.max(0) as u64) as i64)
    }

    /// Bytes of intermediate results in one tile: of what is reduced, or read by what reduces. Between element-wise statements values stay
    /// in registers.
    fn on_chip(&self, tile: &BTreeMap<String, i64>) -> i64 {
        let reads = |s: &'a Statement| s.computation.reads.iter().map(|(_, m)| m.data.as_str());
        let all: BTreeSet<&str> = self.statements.iter().flat_map(reads).collect();
        let summed = self.statements.iter().filter(|s| is_reducing(s)).flat_map(|s| &s.computation.writes).map(|(_, m)| m.data.as_str());
        let stored: BTreeSet<&str> = self.statements.iter().filter(|s| is_reducing(s)).flat_map(reads).chain(summed).collect();
        let read: BTreeSet<&str> = all.intersection(&stored).copied().collect();
        let mut held: BTreeMap<&str, i64> = BTreeMap::new();
        for statement in self.statements {
            for (_, write) in statement.computation.writes.iter().filter(|(_, m)| read.contains(m.data.as_str())) {
                let named: BTreeSet<String> = write.subset.iter().flat_map(crate::fusion::iteration_space::range_symbols).collect();
                let mut kept = statement.clone();
                kept.indices.retain(|i| named.contains(&i.name));
                held.insert(&write.data, self.bytes_of(&write.data, self.points(&kept, tile, false)));
            }
        }
        held.values().sum()
    }

    fn tiles(&self, tile: &BTreeMap<String, i64>) -> i64 {
        let tiled = self.tiled.iter().map(|i| (self.counts.get(i).copied().unwrap_or(1) + tile[i] - 1) / tile[i].max(1));
        let single = self.single.iter().map(|i| self.counts.get(i).copied().unwrap_or(1));
        tiled.chain(single).product()
    }

    pub fn cost(&self, tile: &BTreeMap<String, i64>) -> TileCost {
        let tiles = self.tiles(tile);
        let (mut again, mut alone) = (0.0, 0.0);
        for statement in self.statements {
            again += Self::flop(statement) * self.points(statement, tile, false) as f64 * tiles as f64;
            alone += Self::flop(statement) * self.points(statement, tile, true) as f64;
        }
        let written: BTreeMap<&str, &Statement> =
            self.statements.iter().flat_map(|s| s.computation.writes.iter().map(move |(_, m)| (m.data.as_str(), s))).collect();
        let mut brought: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        let mut saved = 0;
        let mut seen: BTreeSet<(&str, usize)> = BTreeSet::new();
        for (n, statement) in self.statements.iter().enumerate() {
            for (_, read) in &statement.computation.reads {
                if let Some(writer) = written.get(read.data.as_str()) {
                    // What a product makes for another layer would be stored and read.
                    let another = is_product(statement) || self.windows.iter().any(|w| w.data == read.data && is_reducing(statement));
                    if another && seen.insert((&read.data, n)) {
                        let first = seen.iter().filter(|(data, _)| *data == read.data).count() == 1;
                        let elements = self.points(&only_written(writer, &read.data), tile, true);
                        saved += self.bytes_of(&read.data, elements) * (1 + i64::from(first));
                    }
                    continue;
                }
                let whole = self.bytes_of(&read.data, self.distinct(read, statement));
                let all = self.bytes_of(&read.data, self.elements(read, statement, tile));
                let entry = brought.entry(&read.data).or_default();
                *entry = (entry.0.max(all), entry.1.max(whole));
            }
        }
        let more: i64 = brought.values().map(|(all, whole)| (all - whole).max(0)).sum();
        TileCost {
            tile: tile.iter().map(|(i, n)| (i.clone(), *n)).collect(),
            recompute: Percent::of(again / alone - 1.0),
            on_chip: self.on_chip(tile).max(0) as u64,
            bytes: BytesChange(more - saved),
        }
    }

    /// The tiles that compute and move least again among those whose intermediate results fit `room` bytes.
    /// `Err` with the smallest tiles where none fit.
    pub fn best(&self, room: u64) -> Result<TileCost, TileCost> {
        let mut all: Vec<BTreeMap<String, i64>> = vec![BTreeMap::new()];
        for index in &self.tiled {
            let count = self.counts.get(index).copied().unwrap_or(1).max(1);
            let mut sizes: Vec<i64> = (1..=count).map(|n| (count + n - 1) / n).collect();
            sizes.dedup();
            let with = |tile: &BTreeMap<String, i64>, size: i64| {
                tile.iter().map(|(i, n)| (i.clone(), *n)).chain([(index.clone(), size)]).collect()
            };
            all = all.iter().flat_map(|tile| sizes.iter().map(move |size| with(tile, *size)).collect::<Vec<_>>()).collect();
        }
        let fits = |tile: &&BTreeMap<String, i64>| self.on_chip(tile) <= room as i64;
        let costs = all.iter().filter(fits).map(|tile| self.cost(tile));
        let alone: f64 = self.statements.iter().map(|s| Self::flop(s) * self.points(s, &BTreeMap::new(), true) as f64).sum();
        let weight = |c: &TileCost| c.bytes.0 + (alone * c.recompute.0 as f64 / 100_000.0 / FLOP_OF_A_BYTE) as i64;
        let best = costs.min_by_key(|c| (weight(c), std::cmp::Reverse(c.on_chip)));
        best.ok_or_else(|| self.cost(&self.tiled.iter().map(|i| (i.clone(), 1)).collect()))
    }

    /// Levels of results that products make for other products.
    pub fn levels(&self) -> usize {
        let mut level: BTreeMap<&str, usize> = BTreeMap::new();
        let mut most = 0;
        for statement in self.statements {
            let before = statement.computation.reads.iter().filter_map(|(_, m)| level.get(m.data.as_str())).max().copied().unwrap_or(0);
            let here = before + usize::from(is_product(statement));
            most = most.max(here);
            for (_, write) in &statement.computation.writes {
                level.insert(&write.data, here);
            }
        }
        most.saturating_sub(1)
    }
}

/// A statement with the indices of what it writes alone.
fn only_written(statement: &Statement, data: &str) -> Statement {
    let mut kept = statement.clone();
    let writes = statement.computation.writes.iter().filter(|(_, m)| m.data == data);
    let named: BTreeSet<String> =
        writes.flat_map(|(_, m)| m.subset.iter().flat_map(crate::fusion::iteration_space::range_symbols)).collect();
    kept.indices.retain(|i| named.contains(&i.name));
    kept
}

fn is_reducing(statement: &Statement) -> bool {
    statement.combine().is_some()
}

/// Whether it is a sum of products.
pub(super) fn is_product(statement: &Statement) -> bool {
    statement.combine() == Some(Combine::Sum) && statement.computation.reads.len() == 2
}
