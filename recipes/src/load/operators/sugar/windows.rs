//! Windows that move over the last dims of a tensor: strides, padding, dilation, and whether sizes fit them.

use super::Layer;
use crate::load::parser::ParsedExpr;
use sdfg::Binary;

/// How a window moves along one dim.
#[derive(Clone, Debug)]
pub struct LayerWindow {
    /// The dim that it moves along.
    pub over: String,
    /// The dim of the places where it stops.
    pub place: String,
    /// The dim of the window itself.
    pub within: String,
    pub stride: i64,
    pub dilation: i64,
    pub pad: i64,
    pub pad_end: i64,
    /// Parts of some windows may lie outside.
    pub leaves: bool,
}

impl Layer<'_> {
    /// The windows over `dims` of the first operand, one for each of `places` and `within`; their sizes fit.
    pub fn windows(&mut self, dims: &[String], places: &[String], within: &[String]) -> Option<Vec<LayerWindow>> {
        let count = dims.len();
        let (stride, dilation) = (self.along("stride", count, 1, 1), self.along("dilation", count, 1, 1));
        let pad = self.along("pad", count, 0, 0);
        let (stride, dilation, pad) = (stride?, dilation?, pad?);
        let end = match self.option("pad_end") {
            Some(_) => self.along("pad_end", count, 0, 0)?,
            None => pad.clone(),
        };
        let mut found = Vec::new();
        for at in 0..count {
            let mut window = LayerWindow {
                over: dims[at].clone(),
                place: places[at].clone(),
                within: within[at].clone(),
                stride: stride[at],
                dilation: dilation[at],
                pad: pad[at],
                pad_end: end[at],
                leaves: pad[at] > 0 || end[at] > 0,
            };
            self.fits(&mut window)?;
            found.push(window);
        }
        Some(found)
    }

    /// Whether there are as many places as the window stops at: rounded down, or up, so that the last window leaves the tensor.
    fn fits(&mut self, window: &mut LayerWindow) -> Option<()> {
        let (size, places, width) = (self.size(&window.over)?, self.size(&window.place)?, self.size(&window.within)?);
        let LayerWindow { over, place, stride, dilation, pad, pad_end, .. } = &*window;
        let extent = dilation * (width - 1) + 1;
        let room = size + pad + pad_end - extent;
        let padding = if *pad > 0 || *pad_end > 0 { format!(" and padding {pad} and {pad_end}") } else { String::new() };
        if room < 0 {
            let why = format!("the window `{}` reaches over {extent}, but `{over}` has {size}{padding}", window.within);
            return self.fail(self.place, why);
        }
        let least = room / stride + 1;
        // A window that begins behind the tensor holds nothing of it.
        let most = (room + stride - 1) / stride + 1;
        let most = if (most - 1) * stride >= size + pad { most - 1 } else { most };
        if places != least && places != most {
            let or = if most > least { format!(", or {most} where the last one may be cut off") } else { String::new() };
            let why = format!(
                "`{place}` has {places} places, but a window of {extent} over `{over}` ({size}) with stride {stride}{padding} has {least}{or}"
            );
            return self.fail(self.place, why);
        }
        window.leaves |= places > least;
        Some(())
    }

    /// `stride·place + dilation·within − pad`.
    pub fn subscript(&self, window: &LayerWindow) -> ParsedExpr {
        let (place, within) = (self.times(window.stride, &window.place), self.times(window.dilation, &window.within));
        self.shifted(self.binary(Binary::Add, place, within), -window.pad)
    }
}
