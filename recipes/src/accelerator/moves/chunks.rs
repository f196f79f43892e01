//! Moves of chunks: sums of some output channels and rows, past which input and weights stream.

use super::super::schedules::chunks::{ChunkedGroup, Chunks};
use super::super::shapes::Span;
use super::{Compute, ElementOwner, Move, NoRoom, StepStage, Writer};

impl Writer<'_> {
    pub fn chunks(&mut self, group: Span, chunks: &Chunks) -> Result<(), NoRoom> {
        let part = ChunkedGroup { steps: self.steps, group };
        let all = self.channels(self.steps.steps[group.begin].output);
        for rows in part.rows(chunks.strips).unwrap_or_default() {
            let mut next = 0;
            while next < all {
                let channels = Span::new(next, all.min(next + chunks.channels));
                self.chunk(group, channels, rows)?;
                next = channels.end;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, group: Span, channels: Span, rows: [Span; 3]) -> Result<(), NoRoom> {
        let step = group.begin;
        let of = &self.steps.steps[step];
        let columns = |t: usize| Span::new(0, self.steps.tensors[t].shape.columns);
        let own = [channels, rows[1], columns(of.output)];
        let sums = self.place(step, ElementOwner::Tensor(of.output), own)?;
        let [_, _, taps] = self.filter_shape(step);
        let mut first = 0;
        for tensor in &of.inputs {
            let count = self.channels(*tensor);
            let across = columns(*tensor);
            let each = (rows[0].len() * across.len() + channels.len() * taps) as u64;
            let mut next = 0;
            while next < count {
                let read = Span::new(next, count.min(next + ((self.memory.free() / each.max(1)) as usize).max(1)));
                let input = self.load(step, ElementOwner::Tensor(*tensor), [read, rows[0], across])?;
                let inputs = Span::new(first + read.begin, first + read.end);
                let weights = self.load(step, ElementOwner::Filter(step), [channels, inputs, Span::new(0, taps)])?;
                let (outputs, reads) = (vec![sums], vec![input, weights]);
                self.push(Move::Compute(Compute { step, part: own, outputs, reads, stage: StepStage::Sums(inputs) }));
                self.release(input);
                self.release(weights);
                next = read.end;
            }
            first += count;
        }
        let pool = (group.len() == 2).then_some(step + 1);
        let pooled = pool.map(|p| self.steps.steps[p].output);
        let pool_plane = pooled.map_or(0, |t| rows[2].len() * columns(t).len());
        let each = of.sides.len() * rows[1].len() * own[2].len() + pool_plane + self.rest_each(step);
        let mut next = channels.begin;
        while next < channels.end {
            let many = if each == 0 { channels.len() } else { ((self.memory.free() / each as u64) as usize).max(1) };
            let some = Span::new(next, channels.end.min(next + many));
            let part = [some, rows[1], own[2]];
            let mut reads = Vec::new();
            for side in &of.sides {
                reads.push(self.load(step, ElementOwner::Tensor(*side), part)?);
            }
            reads.extend(self.load_rest(step, some)?);
            self.push(Move::Compute(Compute { step, part, outputs: vec![sums], reads: reads.clone(), stage: StepStage::Finish }));
            reads.iter().for_each(|r| self.release(*r));
            match (pool, pooled) {
                (Some(pool), Some(tensor)) => {
                    let part = [some, rows[2], columns(tensor)];
                    let output = self.place(pool, ElementOwner::Tensor(tensor), part)?;
                    let (outputs, reads) = (vec![output], vec![sums]);
                    self.push(Move::Compute(Compute { step: pool, part, outputs, reads, stage: StepStage::Whole }));
                    self.store(output, part);
                    self.release(output);
                }
                _ => self.store(sums, part),
            }
            next = some.end;
        }
        self.release(sums);
        Ok(())
    }
}
