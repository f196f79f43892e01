//! Products by micro-kernels that read both factors where they lie: convolutions in any layout, and matrix products whose factors need no
//! packing.
//!
//! ```text
//! y[n,o,p,q] = Σ k[o,c,r,s] · x[n,c,p+r-1,q+s-1 else 0]
//!               ───────────   ────────────────────────
//!               vectors of o  single values at p, q: a register block of rows q and vectors of o, summed over c, r, s
//! ```
//!
//! One factor gives vectors, along an index that the other lacks; the other gives single values. An index that all three tensors have may
//! be that of the lanes, too: then both factors give vectors, as in depthwise convolutions. A factor that is read outside its container is
//! copied once, with the fill around it, before the first point; where the fill adds nothing to a sum, products leave out what lies outside
//! instead (`clip.rs`). A factor whose lanes are no neighbours is packed once, where plain indices subscript it. All distances are
//! constants of the text, so that windows cost no arithmetic.

mod block_calls;
mod block_loop;
mod block_rows;
mod blocked_product;
mod border;
mod clip;
mod clipped_dim;
mod copies;
mod epilogue;
mod kept_rows;
mod micro;
mod next_rows;
pub(crate) mod operand;
mod product_axis;
mod roles;
mod winograd;

use crate::emit::scalar::integer;
use crate::error::KernelError;
use crate::loopnest::matmul_pattern::factors;
use crate::loopnest::{Element, LoopGroup, MemorySpace, slope};
use crate::target::cpu::dialect::CPrinter;
use blocked_product::DirectProduct;
use epilogue::DirectEpilogue;
pub use operand::DirectOperand;
use product_axis::ProductAxis;
use sdfg::Expr;

/// Types, instructions and copies that the micro-kernels are made of.
pub const PRELUDE: &str = include_str!("direct.c");
/// Bytes of a panel of vectors that stays in the first cache while rows pass.
const NEAR: i64 = 16 << 10;
/// Vectors between steps of the depth, of vectors that are read where they lie.
const NEIGHBOURS: i64 = 4;
/// Bytes of vectors that stay in the second cache while rows pass.
const FAR: i64 = 512 << 10;

impl CPrinter<'_> {
    /// The axes of a group for two operands and a result: those of more than one step, and all where these alone have no depth or no
    /// lanes, as at the small sizes of a check.
    fn axes(&mut self, group: &LoopGroup, operands: &[DirectOperand; 2], results: &[Element]) -> Result<Vec<ProductAxis>, KernelError> {
        let axes = self.axes_of(group, operands, results, 2)?;
        let is_depth = |a: &ProductAxis| a.strides[0].is_some() && a.strides[1].is_some() && a.strides[2].is_none();
        match axes.iter().any(is_depth) && axes.iter().any(|a| !is_depth(a)) {
            true => Ok(axes),
            false => self.axes_of(group, operands, results, 1),
        }
    }

    /// The axes of at least this many steps.
    fn axes_of(
        &mut self,
        group: &LoopGroup,
        operands: &[DirectOperand; 2],
        results: &[Element],
        least: i64,
    ) -> Result<Vec<ProductAxis>, KernelError> {
        let mut axes = Vec::new();
        for each in group.loops.iter().filter(|l| l.count >= least) {
            let index = each.index.as_str();
            let tile = self.nest.tiles.iter().find(|t| t.index == *index && t.is_ragged());
            let mut last = tile.map_or(each.count, |t| t.count % t.size);
            let mut strides = Vec::new();
            for DirectOperand { element, strides: lie, .. } in operands {
                strides.push(self.distance(element, lie, index)?);
            }
            for element in results {
                strides.push(self.distance(element, &self.strides(&element.data)?.0, index)?);
            }
            let mut count = self.count(index, each.count);
            let mut most = each.count;
            // What lies outside the picture is filled afterwards.
            match self.made(index, each.count) {
                None => {}
                Some((_, Expr::Int(whole))) => (most, last, count) = (whole.max(1), whole.max(1), whole.to_string()),
                Some((_, made)) => (last, count) = (0, format!("({})", integer(&made, self))),
            }
            axes.push(ProductAxis { indices: vec![index.to_string()], most, count, last, strides, is_alone: false });
        }
        Ok(axes)
    }

    /// Elements between neighbours along an index, for these strides of the dims; `None` where it does not occur.
    fn distance(&self, element: &Element, strides: &[i64], index: &str) -> Result<Option<i64>, KernelError> {
        let (mut total, mut found) = (0, false);
        for (subscript, stride) in element.subscripts.iter().zip(strides) {
            let step = slope(subscript, index).and_then(|s| s.eval(&self.symbols()).ok());
            let step = step.ok_or_else(|| self.unsupported(format!("`{}` is subscripted by `{subscript}` in a product", element.data)))?;
            found |= step != 0;
            total += step * stride;
        }
        Ok(found.then_some(total))
    }

    /// Prints a group that is one sum of products, and what its micro-kernels make of the sums.
    pub fn direct(&mut self, group: &LoopGroup, epilogue: Option<DirectEpilogue>, depth: usize) -> Result<(), KernelError> {
        let Some(statement) = group.statements.first() else { return Err(self.unsupported("a group of products is empty".into())) };
        let no_product = format!("`{}` is no product", statement.name);
        let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e.clone());
        let factors = factors(&statement.code).and_then(|f| Some((read(&f.a)?, read(&f.b)?, f.scale)));
        let (Some((a, b, scale)), Some(plan)) = (factors, self.nest.gemm) else { return Err(self.unsupported(no_product)) };
        let out = statement.write.clone();
        let lanes = plan.block.vector as i64 / if self.double { 8 } else { 4 };
        let mut operands = [self.operand(a, group, depth)?, self.operand(b, group, depth)?];
        let touched = epilogue.iter().flat_map(|e| &e.touched).map(|t| t.element.clone());
        let results: Vec<Element> = [out.clone()].into_iter().chain(touched).collect();
        let mut axes = self.axes(group, &operands, &results)?;
        for axis in &mut axes {
            axis.is_alone = operands.iter().flat_map(|o| &o.clipped).any(|dim| dim.moves_with(&axis.indices));
        }
        // Lanes are neighbours in what is written.
        let main = epilogue.iter().flat_map(|e| &e.touched).position(|t| t.is_written).map_or(2, |n| n + 3);
        let Some(mut roles) = self.roles(axes, &operands, lanes, main) else { return Err(self.unsupported(no_product)) };
        let v = roles.vectors;
        self.tell_lanes(&out, epilogue.as_ref(), &roles.lane);

        // The factor of vectors as it lies, in a copy with room beyond its last vector, or packed.
        let partial = roles.lane.most % lanes != 0 || roles.lane.last % lanes != 0 || roles.lane.last == 0;
        let mut packed = None;
        // Steps of the depth that lie farther apart are in lines that no processor foresees.
        let step = roles.depth.last().map_or(0, |d| d.stride(v).abs());
        if let [lane] = &roles.lane.indices[..]
            && (roles.lane.stride(v) != 1 || partial || step > NEIGHBOURS * lanes)
            && self.may_pack(&operands[v])
            && self.has_whole_vectors(lane, lanes)
        {
            let found = self.packed(&operands[v], &lane.clone(), &roles.depth, lanes)?;
            roles.lane.strides[v] = Some(1);
            for axis in roles.across.iter_mut().chain(&mut roles.loops).chain(&mut roles.depth) {
                axis.strides[v] = axis.indices.first().and_then(|i| found.strides.get(i)).copied();
            }
            packed = Some(found);
        }
        for (t, operand) in operands.iter_mut().enumerate() {
            let has_vectors = t == v || roles.both;
            let mine = packed.is_none() || t != v;
            let part = partial && has_vectors && mine && roles.lane.stride(t) == 1 && self.is_given(&operand.element.data);
            // What gives single values leaves out what lies outside; vectors along a window are copied.
            let along = operand.clipped.iter().any(|dim| dim.moves_with(&roles.lane.indices));
            let leaves = !operand.clipped.is_empty() && (t == v || along);
            if !operand.is_copied() && (part || leaves) {
                roles.each(|axis| axis.is_alone &= !operand.clipped.iter().any(|dim| dim.moves_with(&axis.indices)));
                self.copy_whole(operand, Some((group, depth)))?;
                // Strides of the copy in the place of those in memory.
                let strides = operand.strides.clone();
                let (mut wrong, element) = (None, operand.element.clone());
                roles.each(|axis| match self.distance(&element, &strides, &axis.indices[0]) {
                    Ok(stride) => axis.strides[t] = stride,
                    Err(e) => wrong = Some(e),
                });
                if let Some(e) = wrong {
                    return Err(e);
                }
            }
        }
        let product = DirectProduct { operands, packed, results, main, scale, epilogue, lanes };
        let blocked = self.in_blocks(product, roles)?;
        self.print_blocks(group, &blocked, depth)
    }

    /// Whether an element is in a tile's memory, which has room beyond its last vector.
    fn has_room(&self, element: &Element) -> bool {
        self.tensor(&element.data).is_ok_and(|t| t.space == MemorySpace::Local)
    }
}
