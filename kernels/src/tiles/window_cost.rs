//! What products of windows are predicted to take, in cycles of a core: multiply-adds in the register block that they get, transforms of
//! Winograd's form, and bytes that come from a cache that cores share.
//!
//! ```text
//! sum of products    max(multiply-adds, weights ÷ bandwidth)       weights that come from afar are used for many rows each
//! Winograd's form    products + transforms + weights ÷ bandwidth   its weights are 1.8 to 4 times as large and used for few tiles each
//! ```
//!
//! Weights of inference are transformed once, so that only reading them counts. The prediction orders what is measured, no more.

use super::space::{CHANNELS, Outer, PLACES, Side, TileSpace, size};
use crate::caches::second_cache;
use crate::images::lanes;
use crate::loopnest::Element;
use crate::processor::PanelBlock;
use crate::register_block::cycles_of_step;
use sdfg::config::KernelConfig;

/// Bytes that a core gets in a cycle from a cache that it shares with others: on one core of a Xeon (Sapphire Rapids, 2.6 GHz) transformed
/// weights of 9 to 38 MB came at 7 to 8 GB/s.
const FAR: f64 = 3.0;
/// The same of images and results, which are read in long rows and often lie nearer.
const IMAGES: f64 = 8.0;
/// Cycles of a call of a micro-kernel, and of a vector of results after its sum.
const CALL: f64 = 40.0;
const RESULT: f64 = 4.0;
/// Taps of a window that has Winograd's form.
const TAPS: f64 = 9.0;
/// Cycles of the transforms of a patch of one vector of channels, and of the sums of a tile, by results of a tile along each dim. Measured
/// there: what 64 channels at 56×56 places and 128 at 28×28 take beside their multiply-adds and weights.
const TRANSFORMS: [(i64, [f64; 2]); 2] = [(2, [70.0, 60.0]), (4, [200.0, 150.0])];
/// Bytes of patches and sums that are worked on at a time.
const BATCH: f64 = 1_536.0 * 1024.0;

/// A tile of a configuration.
struct WindowTile {
    /// Output channels, and places by their dims, the longest first.
    channels: i64,
    places: Vec<i64>,
    /// Tiles along either side.
    of_channels: f64,
    of_places: f64,
}

impl TileSpace {
    /// Predicted cycles of the worker that takes longest, weighted by what each layout costs: results that are turned, factors that are
    /// packed.
    pub fn cost_of_windows(&self, config: &KernelConfig) -> f64 {
        let form = config.knobs.get("winograd").and_then(|m| m.parse().ok());
        if form.is_some() && !self.has_vectors(config) {
            return f64::INFINITY;
        }
        let tile = self.tile_of_windows(config);
        let workers = self.tiles.processors as f64;
        let points = tile.of_channels * tile.of_places;
        let each = match form {
            Some(m) => self.cycles_in_tiles(&tile, m, (points / workers).ceil()),
            None => self.cycles_of_sums(config, &tile, (points / workers).ceil()),
        };
        let of = |count: f64, usual: i64| (count.max(1.0) / usual as f64).log2().abs() * 0.002;
        let usual = of(tile.channels as f64, CHANNELS[0]) + of(tile.places.iter().product::<i64>() as f64, PLACES[0]);
        (each + self.bytes_of_images(config) / IMAGES / workers) * (1.0 + usual)
    }

    fn tile_of_windows(&self, config: &KernelConfig) -> WindowTile {
        let own = self.channels();
        let tile = config.knobs.get("tile").unwrap_or_default();
        let (of_channels, others): (Vec<&Outer>, Vec<&Outer>) = self.outer.iter().partition(|o| o.side == own);
        let count = |o: &&Outer| (o.range.count as f64 / size(tile, &o.range.index) as f64).ceil();
        let mut places: Vec<i64> = others.iter().filter(|o| o.side != Side::Point).map(|o| size(tile, &o.range.index)).collect();
        places.sort_unstable_by_key(|n| std::cmp::Reverse(*n));
        WindowTile {
            channels: of_channels.iter().map(|o| size(tile, &o.range.index)).product(),
            places,
            of_channels: of_channels.iter().map(count).product(),
            of_places: others.iter().map(count).product(),
        }
    }

    /// Steps that a result is summed over.
    fn steps(&self) -> f64 {
        let results: f64 = self.outer.iter().map(|o| o.range.count as f64).product();
        (self.flop() / 2.0 / results.max(1.0)).max(1.0)
    }

    /// Whether some product reads more than one element of an image along a dim.
    fn has_windows(&self) -> bool {
        self.products.iter().flat_map(|s| &s.reads).any(|(_, e)| is_windowed(e))
    }

    /// Bytes of weights that a worker gets from afar for its points: those of all its channels once, or for each of its tiles of places
    /// if they do not stay near. Points of the same channels come one after the other.
    fn bytes_from_afar(&self, weights: f64, tile: &WindowTile, points: f64) -> f64 {
        let stays = weights <= second_cache() as f64 / 2.0;
        weights * if stays { (points / tile.of_places).ceil() } else { points }
    }

    /// Cycles of `points` tiles in the sum of products.
    fn cycles_of_sums(&self, config: &KernelConfig, tile: &WindowTile, points: f64) -> f64 {
        let (steps, lanes, block) = (self.steps(), lanes(), PanelBlock::native());
        let vectors_of = |count: i64| (count + lanes - 1) / lanes;
        let first = tile.places.first().copied().unwrap_or(1);
        let rest: Vec<i64> = tile.places.iter().skip(1).copied().collect();
        let (vectors, mut rows) = match self.has_channels_inside(config) {
            true => (vectors_of(tile.channels), [vec![first], rest].concat()),
            false => (vectors_of(first), [vec![tile.channels], rest].concat()),
        };
        // Images under windows of one element are one row.
        if !self.has_windows() {
            rows = vec![rows.iter().product()];
        }
        let beyond: i64 = rows.iter().skip(2).product();
        let both = [0, 1].map(|n| rows.get(n).copied().unwrap_or(1));
        let sums = cycles_of_step(block, both, vectors) * steps * beyond as f64;
        let results = (both[0] * both[1] * beyond * vectors) as f64;
        let whole = sums + results * RESULT + results / 24.0 * CALL;
        let weights = self.bytes_from_afar(tile.channels as f64 * steps * 4.0, tile, points);
        (whole * points).max(weights / FAR / 2.0)
    }

    /// Cycles of `points` tiles in Winograd's form F(m×m, 3×3).
    fn cycles_in_tiles(&self, tile: &WindowTile, m: i64, points: f64) -> f64 {
        let (lanes, block) = (lanes(), PanelBlock::native());
        let channels = (self.steps() / TAPS).ceil();
        let products = ((m + 2) * (m + 2)) as f64;
        let vectors = (tile.channels + lanes - 1) / lanes;
        let across: i64 = tile.places.iter().map(|n| (n + m - 1) / m).product();
        let room = BATCH / (products * 4.0 * (channels + tile.channels as f64));
        let batches = (across as f64 / room.max(1.0)).ceil().max(1.0);
        let many = ((across as f64 / batches).ceil() as i64).max(1);
        let sums = cycles_of_step(block, [many, 1], vectors) * channels * products * batches;
        let [patch, result] = TRANSFORMS.iter().find(|(of, _)| *of == m).map_or([0.0; 2], |(_, cycles)| *cycles);
        let transforms = across as f64 * (channels / lanes as f64 * patch + vectors as f64 * (result + (m * m) as f64 * RESULT));
        let weights = products * channels * tile.channels as f64 * 4.0;
        (sums + transforms) * points + self.bytes_from_afar(weights, tile, points * batches) / FAR
    }

    /// Whether results lie with channels as neighbours, which then are the lanes of vectors.
    fn has_channels_inside(&self, config: &KernelConfig) -> bool {
        let own = self.channels();
        let result = self.written.first().map(|n| self.layout(config, &self.tensors[*n].data)).unwrap_or_default();
        let inner = result.innermost().unwrap_or_default();
        self.outer.iter().any(|o| o.side == own && o.written == inner)
    }

    /// Bytes of all tensors, weighted by what their layouts cost.
    fn bytes_of_images(&self, config: &KernelConfig) -> f64 {
        let own = self.channels();
        let channel = |dim: &str| self.outer.iter().any(|o| o.side == own && o.walks(dim));
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
        total
    }

    /// Whether images and results have vectors of channels, as Winograd's form needs.
    fn has_vectors(&self, config: &KernelConfig) -> bool {
        let images = self.products.iter().flat_map(|s| &s.reads).filter(|(_, e)| is_windowed(e)).map(|(_, e)| self.spec.root(&e.data));
        let written = self.written.iter().map(|n| self.tensors[*n].data.as_str());
        images.chain(written).all(|data| !self.layout(config, data).is_plain())
    }
}

/// Whether an element is read under a window.
fn is_windowed(e: &Element) -> bool {
    e.fill.is_some() || e.subscripts.iter().any(|s| s.symbols().len() > 1)
}
