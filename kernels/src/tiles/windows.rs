//! Tiles of products that read their factors where they lie, as convolutions do: one side are output channels, in whole vectors; the other
//! one are places, whole rows of them where there is room.

use super::space::{CHANNELS, Outer, PLACES, Side, TileSpace, divided, size};
use crate::images::lanes;
use crate::loopnest::Element;
use crate::loopnest::matmul_pattern::factors;
use sdfg::Layout;
use sdfg::config::{KernelConfig, Knobs};

/// What the forms are thought to cost beside sums of products, in tiles that are equally good: little enough that of the first
/// configurations some have each form.
const FAVOURS: [(&str, f64); 2] = [("4", 0.999), ("2", 1.001)];

impl TileSpace {
    /// The side of output channels: that of the factor that walks no windows. Where it has no index of its own, channels are in all
    /// tensors.
    fn channels(&self) -> Side {
        let windowed = |connector: &str, statement: &crate::loopnest::NestStatement| {
            let read = statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e);
            read.is_some_and(|e| e.fill.is_some() || e.subscripts.iter().any(|s| s.as_sym().is_none()))
        };
        let first = self.products.first().and_then(|s| Some((s, factors(&s.code)?)));
        let plain = if first.is_some_and(|(s, f)| windowed(&f.a, s)) { Side::Right } else { Side::Left };
        if self.outer.iter().any(|o| o.side == plain) { plain } else { Side::Point }
    }

    /// Sizes of tiles along the indices of a side, filled from the innermost dim of a layout outwards; tiles have whole multiples of
    /// `unit`.
    fn fill_windows(&self, indices: Vec<&Outer>, mut room: i64, unit: i64, layout: &Layout, into: &mut Vec<(String, i64)>) {
        let mut indices = indices;
        // A block is not where its dim is.
        let place = |o: &Outer| layout.pieces.iter().position(|p| p.dim == o.dim && p.block.is_none());
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
        let tile: Vec<String> = sizes.iter().map(|(index, size)| format!("{index}:{size}")).collect();
        let knobs = Knobs::default().with("tile", tile.join(",")).with("form", "direct");
        let knobs = if form > 0 { knobs.with("winograd", form) } else { knobs };
        match self.vectors(config, &layout) {
            vectors if vectors.is_empty() => knobs,
            vectors => knobs.with("vector", vectors.join(",")),
        }
    }

    /// Predicted bytes, weighted by what each layout costs: results that are turned, factors that are packed, and workers without a tile.
    pub fn cost_of_windows(&self, config: &KernelConfig) -> f64 {
        let form = match config.knobs.get("winograd") {
            Some(_) if !self.has_vectors(config) => return f64::INFINITY,
            Some(form) => FAVOURS.iter().find(|(of, _)| *of == form).map_or(1.0, |(_, favour)| *favour),
            None => 1.0,
        };
        let own = self.channels();
        let channel = |dim: &str| self.outer.iter().any(|o| o.side == own && o.dim == dim);
        let mut total = 0.0;
        for (n, bytes) in self.bytes.iter().enumerate() {
            let layout = self.layout(config, &self.tensors[n].data);
            let inner = layout.innermost().unwrap_or_default();
            let has = layout.pieces.iter().any(|p| channel(&p.dim));
            let written = self.written.contains(&n);
            total += bytes
                * match (written, has && channel(inner), has) {
                    (_, true, _) => 1.0,
                    (true, false, true) => 2.0,
                    (false, false, true) => 3.0,
                    // Images: channels together are read line by line.
                    _ if layout.pieces.first().map(|p| p.dim.as_str()) == Some(inner) || !layout.is_plain() => 1.0,
                    _ => 1.1,
                };
        }
        let tile = config.knobs.get("tile").unwrap_or_default();
        let points: f64 = self.outer.iter().map(|o| (o.range.count as f64 / size(tile, &o.range.index) as f64).ceil()).product();
        let workers = self.tiles.processors as f64;
        let idle = (points / workers).ceil() * workers / points;
        let of = |side: bool| -> f64 {
            self.outer.iter().filter(|o| (o.side == own) == side).map(|o| size(tile, &o.range.index) as f64).product::<f64>()
        };
        let usual = (of(true) / CHANNELS[0] as f64).log2().abs() * 0.01 + (of(false) / PLACES[0] as f64).log2().abs() * 0.01;
        total * idle * (1.0 + usual) * form
    }

    /// Whether images and results have vectors of channels, as Winograd's form needs.
    fn has_vectors(&self, config: &KernelConfig) -> bool {
        let windowed = |e: &Element| e.fill.is_some() || e.subscripts.iter().any(|s| s.symbols().len() > 1);
        let images = self.products.iter().flat_map(|s| &s.reads).filter(|(_, e)| windowed(e)).map(|(_, e)| self.spec.root(&e.data));
        let written = self.written.iter().map(|n| self.tensors[*n].data.as_str());
        images.chain(written).all(|data| !self.layout(config, data).is_plain())
    }
}
