//! Computations of a plan: each works out what it reads, finds it on chip, and puts its output there.

use super::super::layers::Reach;
use super::super::moves::{Box3, Compute, ElementOwner, StepStage, filter_shape, volume};
use super::super::shapes::Span;
use super::super::steps::ChannelDependence;
use super::{SimulationFault, Simulator};

fn meet(a: &Box3, b: &Box3) -> Box3 {
    [a[0].meet(b[0]), a[1].meet(b[1]), a[2].meet(b[2])]
}

impl Simulator<'_> {
    /// All elements of `needed` are among the pieces that are read, each where the plan says.
    fn find(&mut self, compute: &Compute, source: ElementOwner, needed: &Box3) -> Result<(), SimulationFault> {
        let moves = self.moves;
        let mut met: Vec<(usize, Box3)> = Vec::new();
        for number in &compute.reads {
            let piece = &moves.pieces[*number];
            let part = meet(&piece.part, needed);
            if piece.source == source && volume(&part) > 0 {
                met.push((*number, part));
            }
        }
        // Pieces that overlap would be counted twice.
        let apart = |a: &Box3, b: &Box3| volume(&meet(a, b)) == 0;
        let overlap = met.iter().enumerate().any(|(n, (_, a))| met[n + 1..].iter().any(|(_, b)| !apart(a, b)));
        let found: u64 = met.iter().map(|(_, part)| volume(part)).sum();
        if found != volume(needed) || overlap {
            let step = self.steps.steps[compute.step].name.clone();
            return Err(SimulationFault::Missing { at: self.at, step, what: self.name(source), needed: volume(needed), found });
        }
        met.iter().try_for_each(|(number, part)| self.check(*number, part, false))
    }

    pub(super) fn compute(&mut self, compute: &Compute) -> Result<(), SimulationFault> {
        let steps = self.steps;
        let of = &steps.steps[compute.step];
        let part = &compute.part;
        let whole = Span::new(0, steps.tensors[of.output].shape.channels);
        let [filters, inputs, taps] = filter_shape(steps, compute.step);
        let all_inputs = Span::new(0, of.inputs.iter().map(|t| steps.tensors[*t].shape.channels).sum());
        let reads = match compute.stage {
            StepStage::Whole if of.work == ChannelDependence::Channelwise => part[0],
            StepStage::Whole => all_inputs,
            StepStage::Sums(inputs) => inputs,
            StepStage::Finish => Span::default(),
        };
        // The rows and columns that the window of the output reaches, inside the input.
        let reached = |outputs: Span, reach: Reach, size: usize| {
            let low = (outputs.begin * reach.stride) as i64 - reach.pad as i64;
            let high = ((outputs.end - 1) * reach.stride + reach.kernel) as i64 - reach.pad as i64;
            Span::new(low.clamp(0, size as i64) as usize, high.clamp(0, size as i64) as usize)
        };
        let mut first = 0;
        for tensor in &of.inputs {
            let shape = steps.tensors[*tensor].shape;
            let own = reads.meet(Span::new(first, first + shape.channels));
            if !own.is_empty() {
                let rows = reached(part[1], of.window.rows, shape.rows);
                let columns = reached(part[2], of.window.columns, shape.columns);
                let channels = Span::new(own.begin - first, own.end - first);
                self.find_windows(compute, *tensor, [channels, rows, columns])?;
            }
            first += shape.channels;
        }
        if compute.stage != StepStage::Finish && of.filter > 0 {
            let channels = if inputs == 1 && all_inputs.len() != 1 {
                Span::new(0, 1)
            } else if of.work == ChannelDependence::Dense {
                reads
            } else {
                Span::new(0, inputs)
            };
            self.find(compute, ElementOwner::Filter(compute.step), &[part[0].meet(Span::new(0, filters)), channels, Span::new(0, taps)])?;
        }
        if !matches!(compute.stage, StepStage::Sums(_)) {
            if of.rest > 0 {
                let each = of.rest as usize / whole.len().max(1);
                self.find(compute, ElementOwner::Rest(compute.step), &[part[0], Span::new(0, 1), Span::new(0, each)])?;
            }
            for side in &of.sides {
                self.find(compute, ElementOwner::Tensor(*side), part)?;
            }
        }
        self.write_outputs(compute, all_inputs.len())
    }

    /// The input of a computation; rows that lie between windows need not be there.
    fn find_windows(&mut self, compute: &Compute, tensor: usize, needed: Box3) -> Result<(), SimulationFault> {
        let reach = self.steps.steps[compute.step].window.rows;
        if reach.kernel >= reach.stride {
            return self.find(compute, ElementOwner::Tensor(tensor), &needed);
        }
        for row in compute.part[1].begin..compute.part[1].end {
            let low = (row * reach.stride).saturating_sub(reach.pad);
            let high = (row * reach.stride + reach.kernel).saturating_sub(reach.pad).min(self.steps.tensors[tensor].shape.rows);
            if low < high {
                self.find(compute, ElementOwner::Tensor(tensor), &[needed[0], Span::new(low, high), needed[2]])?;
            }
        }
        Ok(())
    }

    fn write_outputs(&mut self, compute: &Compute, channels: usize) -> Result<(), SimulationFault> {
        let moves = self.moves;
        let mut room = 0;
        for number in &compute.outputs {
            let piece = &moves.pieces[*number];
            let part = meet(&piece.part, &compute.part);
            room += volume(&part);
            self.placed(piece)?;
            let done = self.progress.get(number).copied().unwrap_or(0);
            let step = || self.steps.steps[compute.step].name.clone();
            match compute.stage {
                StepStage::Whole => self.write(*number, &part, false),
                StepStage::Sums(inputs) => {
                    if done != inputs.begin {
                        return Err(SimulationFault::Sums { at: self.at, step: step(), done, next: inputs.begin });
                    }
                    if done > 0 {
                        self.check(*number, &part, true)?;
                    }
                    self.progress.insert(*number, inputs.end);
                    self.write(*number, &part, true);
                }
                StepStage::Finish => {
                    if done != channels {
                        return Err(SimulationFault::Sums { at: self.at, step: step(), done, next: channels });
                    }
                    self.check(*number, &part, true)?;
                    self.write(*number, &part, false);
                }
            }
        }
        if room != volume(&compute.part) {
            let what = self.steps.tensors[self.steps.steps[compute.step].output].name.clone();
            return Err(SimulationFault::Size { at: self.at, what, room, needed: volume(&compute.part) });
        }
        Ok(())
    }
}
