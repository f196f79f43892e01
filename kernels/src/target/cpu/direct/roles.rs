//! What each axis of a direct product is used for.

use super::DirectOperand;
use super::product_axis::{ProductAxis, joined};
use crate::loopnest::Element;
use crate::target::cpu::dialect::CPrinter;
use std::cmp::Reverse;

/// How the axes of a product are used.
pub struct Roles {
    /// Which factor gives vectors.
    pub vectors: usize,
    pub lane: ProductAxis,
    /// Whether the other factor gives vectors along the lanes, too.
    pub both: bool,
    /// Only in the factor of vectors, in the other one, in both, each with the result; and summed.
    pub across: Vec<ProductAxis>,
    pub rows: Vec<ProductAxis>,
    pub loops: Vec<ProductAxis>,
    pub depth: Vec<ProductAxis>,
}

impl Roles {
    pub fn each(&mut self, of: impl FnMut(&mut ProductAxis)) {
        let all = [&mut self.across, &mut self.rows, &mut self.loops, &mut self.depth];
        all.into_iter().flatten().chain([&mut self.lane]).for_each(of);
    }
}

impl CPrinter<'_> {
    /// What each axis is used for; `None` if no index gives lanes, or nothing is summed.
    pub fn roles(&self, axes: Vec<ProductAxis>, operands: &[DirectOperand; 2], lanes: i64, main: usize) -> Option<Roles> {
        let (mut alone, mut loops, mut depth): ([Vec<ProductAxis>; 2], _, _) = (Default::default(), Vec::new(), Vec::new());
        for axis in axes {
            match [0, 1, 2].map(|t| axis.strides[t].is_some()) {
                [true, false, true] => alone[0].push(axis),
                [false, true, true] => alone[1].push(axis),
                [true, true, true] => loops.push(axis),
                [true, true, false] => depth.push(axis),
                _ => return None,
            }
        }
        /// An axis that may give lanes.
        struct Candidate {
            factor: usize,
            lane: ProductAxis,
            both: bool,
            worth: f64,
        }
        let mut found: Vec<Candidate> = Vec::new();
        let mut offer = |factor: usize, lane: &ProductAxis, both: bool, reads: f64| {
            // Parts of vectors of results in memory are read one by one: others would be read beyond its end.
            let parts = lane.most % lanes != 0 || lane.last % lanes != 0;
            let given = |e: &Element| self.is_given(&e.data) || self.has_room(e);
            let makes = |t: usize| parts && (t == factor || both) && !given(&operands[t].element);
            let reads = if makes(0) || makes(1) { 0.1 } else { reads };
            let used = lane.most as f64 / ((lane.most + lanes - 1) / lanes * lanes) as f64;
            let writes = if lane.strides[main] == Some(1) { 1.0 } else { 0.75 };
            found.push(Candidate { factor, lane: lane.clone(), both, worth: used * writes * reads });
        };
        for t in 0..2 {
            for lane in joined(alone[t].clone(), main) {
                if lane.stride(t) == 1 {
                    offer(t, &lane, false, 1.0);
                }
            }
            for lane in &alone[t] {
                offer(t, lane, false, if lane.stride(t) == 1 || self.may_pack(&operands[t]) { 1.0 } else { 0.1 });
            }
        }
        for lane in &loops {
            let reads = |t: usize| if lane.stride(t) == 1 { 1.0 } else { 0.1 };
            let factor = usize::from(self.may_pack(&operands[1]) && !self.may_pack(&operands[0]));
            let of_vectors = if self.may_pack(&operands[factor]) { 1.0 } else { reads(factor) };
            offer(factor, lane, true, 0.99 * of_vectors * reads(1 - factor));
        }
        // Of equals the first.
        let best = found.into_iter().reduce(|best, next| if next.worth > best.worth { next } else { best })?;
        let Candidate { factor, lane, both, .. } = best;
        let without =
            |axes: Vec<ProductAxis>| axes.into_iter().filter(|a| !lane.indices.contains(&a.indices[0])).collect::<Vec<ProductAxis>>();
        let [first, second] = alone;
        let (across, rows) = if factor == 0 { (first, second) } else { (second, first) };
        // Vectors that are read where they lie are walked in their order: few weights stay in the first cache until they are needed again,
        // while the few lines of an image that a register block reads do.
        let walked = if lane.stride(factor) == 1 { factor } else { 1 - factor };
        depth.sort_by_key(|d| Reverse(d.stride(walked).abs()));
        (!depth.is_empty()).then(|| Roles {
            vectors: factor,
            across: without(across),
            rows,
            loops: without(loops),
            lane: lane.clone(),
            both,
            depth,
        })
    }
}
