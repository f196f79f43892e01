//! Tiles of products that read their factors where they lie, as convolutions do: one side are output channels, in whole vectors; the other
//! one are places, whole rows of them where there is room.

use super::space::{Outer, Side, TileSpace, divided};
use crate::images::lanes;
use crate::loopnest::matmul_pattern::factors;
use sdfg::Layout;
use sdfg::config::{KernelConfig, Knobs};

impl TileSpace {
    /// The side of output channels: that of the factor that walks no windows. Where it has no index of its own, channels are in all
    /// tensors.
    pub(super) fn channels(&self) -> Side {
        let windowed = |connector: &str, statement: &crate::loopnest::NestStatement| {
            let read = statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e);
            read.is_some_and(|e| e.fill.is_some() || e.subscripts.iter().any(|s| s.as_sym().is_none()))
        };
        let first = self.products.first().and_then(|s| Some((s, factors(&s.code)?)));
        let count = |side: Side| self.outer.iter().filter(|o| o.side == side).map(|o| o.range.count).product::<i64>();
        let plain = match first.map(|(s, f)| [windowed(&f.a, s), windowed(&f.b, s)]) {
            Some([true, _]) => Side::Right,
            // Of a matrix and few rows the longer side.
            Some([false, false]) if self.spec.images && self.has_few_rows && count(Side::Right) > count(Side::Left) => Side::Right,
            _ => Side::Left,
        };
        if self.outer.iter().any(|o| o.side == plain) { plain } else { Side::Point }
    }

    /// Sizes of tiles along the indices of a side, filled from the innermost dim of a layout outwards; tiles have whole multiples of
    /// `unit`.
    fn fill_windows(&self, indices: Vec<&Outer>, mut room: i64, unit: i64, layout: &Layout, into: &mut Vec<(String, i64)>) {
        let mut indices = indices;
        // A block is not where its dim is.
        let place = |o: &Outer| layout.pieces.iter().position(|p| p.dim == o.written && p.block.is_none());
        indices.sort_by_key(|o| std::cmp::Reverse(place(o)));
        for outer in indices {
            let count = outer.range.count;
            let even = divided(count, divided(count, room.max(1)));
            let size = if room >= count { count } else { divided(even, unit) * unit };
            let size = size.clamp(1, count);
            if size > 1 {
                into.push((outer.range.index.clone(), size));
            }
            room = if size == count { room / count } else { 1 };
        }
    }

    /// Knobs for tiles of so many output channels and places, in the sum of products itself or in Winograd's form.
    pub fn walk_windows(&self, config: &KernelConfig, channels: i64, places: i64, form: i64) -> Knobs {
        let layout = self.written.first().map(|n| self.layout(config, &self.tensors[*n].data)).unwrap_or_default();
        let own = self.channels();
        let (of_channels, of_places): (Vec<&Outer>, Vec<&Outer>) = self.outer.iter().partition(|o| o.side == own);
        let mut sizes = Vec::new();
        self.fill_windows(of_channels, channels, lanes(), &layout, &mut sizes);
        let of_places = of_places.into_iter().filter(|o| o.side != Side::Point).collect();
        self.fill_windows(of_places, places, form.max(1), &layout, &mut sizes);
        self.fit(&mut sizes);
        let tile: Vec<String> = sizes.iter().map(|(index, size)| format!("{index}:{size}")).collect();
        let knobs = Knobs::default().with("tile", tile.join(",")).with("form", "direct");
        let knobs = if form > 0 { knobs.with("winograd", form) } else { knobs };
        match self.vectors(config, &layout) {
            vectors if vectors.is_empty() => knobs,
            vectors => knobs.with("vector", vectors.join(",")),
        }
    }
}
