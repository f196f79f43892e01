//! Asynchronous copies of operands beside the factors of a streamed tile: they come through the ring in shared memory with the factors. An
//! operand that is read where it is used would be waited
//! for at every strip, since a strip stores before the next one reads.

use super::smem_ring::STRIP;
use super::sweep::over;
use crate::emit::cuda::register::cuda_type;
use crate::emit::printer::Printer;
use crate::error::KernelError;
use crate::loopnest::sweeps::Sweeps;
use crate::loopnest::{Element, Space};

/// What values want of memory at each of their strips: it comes through the stage with the factors.
pub struct Near {
    pub element: Element,
    /// The sweeps that want it.
    pub uses: Vec<bool>,
    /// Bytes of a part of the stage where it begins.
    pub at: i64,
}

/// C text of the place of a lane's neighbours among those of a chunk.
pub const PACK: &str = "((strip * 2 + half) * THREADS + (int)threadIdx.x) * W";

impl Printer<'_> {
    /// What values want of memory, where it lies as they do.
    pub fn nears(&mut self, plan: &Sweeps, staged: &str) -> Result<Vec<Near>, KernelError> {
        let mut nears: Vec<Near> = Vec::new();
        if !self.comes_out_even(plan, &plan.column) {
            return Ok(nears);
        }
        for (turn, sweep) in plan.sweeps.iter().enumerate() {
            self.known.clear();
            for element in self.reads_at(&over(plan, &[&sweep.statements[..], &sweep.later].concat()), 2) {
                let tensor = self.tensor(&element.data)?;
                let heap = matches!(tensor.space, Space::Heap { .. }) && cuda_type(tensor.dtype) == Some(staged);
                if !heap || element.fill.is_some() || !self.contiguous(&element, &plan.column)? || !self.is_even(&element, &plan.column)? {
                    continue;
                }
                let at = nears.iter().position(|near| near.element == element).unwrap_or_else(|| {
                    nears.push(Near { element, uses: vec![false; plan.sweeps.len()], at: 0 });
                    nears.len() - 1
                });
                nears[at].uses[turn] = true;
            }
        }
        Ok(nears)
    }

    /// Has each lane bring what it will want of the next chunk: no other lane reads it, and none waits for it.
    pub fn fill_near(&mut self, near: &Near, plan: &Sweeps, depth: usize) -> Result<(), KernelError> {
        let d = self.in_sweeps(&near.uses, depth);
        self.line(d, "#pragma unroll");
        self.line(d, format!("for (int strip = 0; strip < DEPTH / {STRIP}; ++strip) {{"));
        self.line(d + 1, "#pragma unroll");
        self.line(d + 1, "for (int half = 0; half < 2; ++half) {");
        self.open_row(plan, &format!("next + strip * {STRIP} + member * W"), &plan.column, d + 2);
        let subscripts = near.element.subscripts.iter().map(|e| self.at_first(e, &plan.column)).collect();
        self.pointers.insert(near.element.data.clone());
        let at = self.position(&Element { subscripts, ..near.element.clone() })?;
        let pointer = self.identifier(&near.element.data);
        self.line(d + 2, format!("copy_later(to, {} + {PACK}, {pointer}, {at});", near.at / 2));
        self.line(d + 1, "}");
        self.line(d, "}");
        if d > depth {
            self.line(depth, "}");
        }
        Ok(())
    }
}
