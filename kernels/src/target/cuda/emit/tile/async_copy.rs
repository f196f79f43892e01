//! Asynchronous copies of elementwise operands of a streamed tile: they come through the shared-memory ring together with the factors of
//! its products. A load at the place of use would stall every strip, since a strip stores before the next one reads.

use crate::error::KernelError;
use crate::loopnest::streaming::StreamedTile;
use crate::loopnest::{Element, MemorySpace};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::register::cuda_type;
use crate::target::cuda::emit::tile::smem_ring::{STRIP, over};

/// An elementwise operand that is copied into the ring, a chunk of columns ahead of its use.
pub struct StagedOperand {
    pub element: Element,
    /// For each pass whether it reads the operand.
    pub uses: Vec<bool>,
    /// Where it begins within a part of the ring, in bytes.
    pub at: i64,
}

/// C text of the place of a lane's elements within a chunk.
pub const PACK: &str = "((strip * 2 + half) * THREADS + (int)threadIdx.x) * W";

impl CudaPrinter<'_> {
    /// The elementwise operands that can be copied: those whose neighbours along the columns are neighbours in memory.
    pub fn staged_operands(&mut self, plan: &StreamedTile, staged: &str) -> Result<Vec<StagedOperand>, KernelError> {
        let mut operands: Vec<StagedOperand> = Vec::new();
        if !self.comes_out_even(plan, &plan.column) {
            return Ok(operands);
        }
        for (turn, pass) in plan.passes.iter().enumerate() {
            self.known.clear();
            for element in self.reads_at(&over(plan, &[&pass.statements[..], &pass.later].concat()), 2) {
                let tensor = self.tensor(&element.data)?;
                let heap = matches!(tensor.space, MemorySpace::Heap { .. }) && cuda_type(tensor.dtype) == Some(staged);
                if !heap || element.fill.is_some() || !self.contiguous(&element, &plan.column)? || !self.is_even(&element, &plan.column)? {
                    continue;
                }
                let at = operands.iter().position(|operand| operand.element == element).unwrap_or_else(|| {
                    operands.push(StagedOperand { element, uses: vec![false; plan.passes.len()], at: 0 });
                    operands.len() - 1
                });
                operands[at].uses[turn] = true;
            }
        }
        Ok(operands)
    }

    /// Prints the copies of one operand's next chunk. Each lane copies the elements that it reads itself, so that no barrier is needed.
    pub fn copy_operand(&mut self, operand: &StagedOperand, plan: &StreamedTile, depth: usize) -> Result<(), KernelError> {
        let d = self.in_passes(&operand.uses, depth);
        self.line(d, "#pragma unroll");
        self.line(d, format!("for (int strip = 0; strip < DEPTH / {STRIP}; ++strip) {{"));
        self.line(d + 1, "#pragma unroll");
        self.line(d + 1, "for (int half = 0; half < 2; ++half) {");
        self.open_row(plan, &format!("next + strip * {STRIP} + member * W"), &plan.column, d + 2);
        let subscripts = operand.element.subscripts.iter().map(|e| self.at_first(e, &plan.column)).collect();
        self.pointers.insert(operand.element.data.clone());
        let at = self.position(&Element { subscripts, ..operand.element.clone() })?;
        let pointer = self.identifier(&operand.element.data);
        self.line(d + 2, format!("copy_later(to, {} + {PACK}, {pointer}, {at});", operand.at / 2));
        self.line(d + 1, "}");
        self.line(d, "}");
        if d > depth {
            self.line(depth, "}");
        }
        Ok(())
    }
}
