//! Dropout masks whose neighbouring elements are points, not lanes: the rows of a block share one draw of random numbers.
//!
//! A block of the random numbers decides about eight neighbours of the mask. Where these are neighbouring points, which the rows of a
//! block work on, every row would draw the same eight for the one that it needs. So each of eight rows draws a part for all of them,
//! and they meet in shared memory. Where a team works on one point after the other, it holds what it has drawn for the next seven.

use crate::emit::scalar::integer;
use crate::loopnest::{ForLoop, LoopGroup, Tag, Tile, slope};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::schedule::may_draw_together;
use crate::target::cuda::emit::split_reduction;
use sdfg::Expr;
use std::collections::BTreeMap;

impl CudaPrinter<'_> {
    /// Whether a team comes to neighbours of a mask one after the other, with a lane of its own for each.
    pub fn drawn_in_turn(&self, group: &LoopGroup, element: &Expr, along: &ForLoop) -> bool {
        let (nest, Some(schedule)) = (self.nest, &self.dialect.schedule) else { return false };
        let Some(points) = nest.outer.last().filter(|l| l.tag != Tag::Block) else { return false };
        let in_turn = nest.gemm.is_none() && split_reduction::partials(nest).next().is_some();
        let once = group.loops.len() == 1 && schedule.slots(nest, along) == 1;
        in_turn && once && slope(element, &points.index) == Some(Expr::Int(1))
    }

    /// Whether strips along a loop begin at multiples of this number of mask elements, at every point.
    pub fn is_even_mask(&self, group: &LoopGroup, element: &Expr, along: &ForLoop) -> bool {
        let Some(width) = self.dialect.schedule.as_ref().map(|s| s.width) else { return false };
        let loops: Vec<&ForLoop> = self.nest.outer.iter().chain(&group.loops).collect();
        let zero: BTreeMap<String, Expr> = loops.iter().map(|l| (l.index.clone(), Expr::Int(0))).collect();
        let others = loops.iter().filter(|l| l.index != along.index).map(|l| slope(element, &l.index));
        let steps: Option<Vec<Expr>> = others.chain([Some(element.substitute(&zero))]).collect();
        let mut sizes = self.spec.sizes.clone();
        sizes.extend(self.nest.tiles.iter().map(|tile| (Tile::symbol(&tile.index), tile.size)));
        let whole = |e: &Expr| e.eval(&sizes).is_ok_and(|n| n % width == 0);
        slope(element, &along.index) == Some(Expr::Int(1)) && steps.is_some_and(|steps| steps.iter().all(whole))
    }

    /// C text that says whether eight rows of a block, all with points of their own, are eight neighbours of a mask that begin where a
    /// block of random numbers does; `None` where they cannot be.
    pub fn drawn_together(&mut self, group: &LoopGroup, element: &Expr, along: &ForLoop) -> Option<String> {
        let nest = self.nest;
        let points = nest.outer.last()?;
        let rows = self.dialect.schedule.as_ref()?.rows;
        if !may_draw_together(nest, rows) || slope(element, &points.index) != Some(Expr::Int(1)) {
            return None;
        }
        let loops: Vec<&ForLoop> = nest.outer.iter().chain(&group.loops).collect();
        let first: BTreeMap<String, Expr> = loops.iter().map(|l| (l.index.clone(), Expr::Int(0))).collect();
        let mut aligned = vec![element.substitute(&first)];
        for each in loops.iter().filter(|l| l.index != points.index && l.index != along.index) {
            aligned.push(slope(element, &each.index)?);
        }
        let count = self.count(&points.index, points.count);
        let mut text = format!("points % ROWS == 0 && {count} % 8 == 0");
        for each in aligned.iter().filter(|e| **e != Expr::Int(0)) {
            text += &format!(" && {} % 8 == 0", integer(each, self));
        }
        self.dialect.draws += 1;
        Some(text)
    }
}
