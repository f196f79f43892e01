//! Moves of maps: tensors lie on chip in pieces of whole channels.

use super::super::schedules::maps::{Maps, StepDataflow, stored_from};
use super::super::shapes::Span;
use super::{Box3, Compute, ElementOwner, Move, NoRoom, StepStage, Writer};
use std::collections::BTreeMap;

/// By tensor: its pieces on chip by their first channel.
type Held = BTreeMap<usize, BTreeMap<usize, usize>>;

/// A step and what its gaps say.
struct Page<'a> {
    group: Span,
    maps: &'a Maps,
    leaving: Vec<usize>,
}

impl Page<'_> {
    /// Channels of a tensor that stay on chip behind a step.
    fn after(&self, step: usize, tensor: usize) -> usize {
        self.maps.gaps.iter().find(|g| g.from == step && g.tensor == tensor).map_or(0, |g| g.kept)
    }
}

impl Writer<'_> {
    pub fn maps(&mut self, group: Span, maps: &Maps) -> Result<(), NoRoom> {
        let page = Page { group, maps, leaving: self.steps.boundary(group).1 };
        let mut held = Held::new();
        for step in group.begin..group.end {
            match maps.modes[step - page.group.begin] {
                StepDataflow::OutputWhole => self.output_whole(step, &page, &mut held)?,
                mode => self.output_passes(step, mode, &page, &mut held)?,
            }
        }
        Ok(())
    }

    fn map(&self, tensor: usize, channels: Span) -> Box3 {
        let shape = self.steps.tensors[tensor].shape;
        [channels, Span::new(0, shape.rows), Span::new(0, shape.columns)]
    }

    /// Loads those of some channels that are not on chip.
    fn bring(&mut self, step: usize, tensor: usize, channels: Span, held: &mut Held) -> Result<(), NoRoom> {
        let there: Vec<Span> = held.get(&tensor).into_iter().flat_map(|p| p.values().map(|p| self.out.pieces[*p].part[0])).collect();
        let mut next = channels.begin;
        for piece in there.into_iter().chain([Span::new(channels.end, channels.end)]) {
            let missing = Span::new(next, piece.begin.min(channels.end));
            if !missing.is_empty() {
                let loaded = self.load(step, ElementOwner::Tensor(tensor), self.map(tensor, missing))?;
                held.entry(tensor).or_default().insert(missing.begin, loaded);
            }
            next = next.max(piece.end);
        }
        Ok(())
    }

    /// Gives up those of some channels that are not below `kept`.
    fn give_up(&mut self, tensor: usize, channels: Span, kept: usize, held: &mut Held) {
        let Some(pieces) = held.get_mut(&tensor) else { return };
        let gone = Span::new(channels.begin.max(kept), channels.end);
        let met: Vec<usize> = pieces.values().copied().filter(|p| !self.out.pieces[*p].part[0].meet(gone).is_empty()).collect();
        for mut piece in met {
            pieces.remove(&self.out.pieces[piece].part[0].begin);
            if self.out.pieces[piece].part[0].begin < gone.begin {
                let (stays, rest) = self.cut(piece, gone.begin);
                pieces.insert(self.out.pieces[stays].part[0].begin, stays);
                piece = rest;
            }
            if self.out.pieces[piece].part[0].end > gone.end {
                let (goes, rest) = self.cut(piece, gone.end);
                pieces.insert(self.out.pieces[rest].part[0].begin, rest);
                piece = goes;
            }
            self.release(piece);
        }
    }

    fn on_chip(&self, tensors: &[usize], held: &Held) -> Vec<usize> {
        tensors.iter().flat_map(|t| held.get(t).into_iter().flat_map(|p| p.values().copied())).collect()
    }

    /// Stores the part of a tensor's new channels that the plan does not keep.
    fn keep_outside(&mut self, page: &Page<'_>, tensor: usize, piece: usize, channels: Span) {
        let all = self.channels(tensor);
        let from = if page.leaving.contains(&tensor) { 0 } else { stored_from(&page.maps.gaps, tensor, all) };
        let stored = Span::new(channels.begin.max(from), channels.end);
        if !stored.is_empty() {
            self.store(piece, self.map(tensor, stored));
        }
    }

    /// The output channel by channel, the inputs whole or channel by channel, too.
    fn output_passes(&mut self, step: usize, mode: StepDataflow, page: &Page<'_>, held: &mut Held) -> Result<(), NoRoom> {
        let of = &self.steps.steps[step];
        if mode == StepDataflow::InputsWhole {
            for tensor in &of.inputs {
                self.bring(step, *tensor, Span::new(0, self.channels(*tensor)), held)?;
            }
        }
        let plane = |t: &usize| self.steps.tensors[*t].shape.plane();
        let weights_each = of.weights() / self.channels(of.output).max(1) as u64;
        let out_plane = plane(&of.output);
        let in_plane = if mode == StepDataflow::Channels { of.inputs.iter().map(plane).max().unwrap_or(0) } else { 0 };
        let each = out_plane * (1 + of.sides.len() as u64) + in_plane + weights_each;
        let kept = page.after(step, of.output);
        // With inputs channel by channel a part never crosses from one input to the next.
        let mut parts = vec![(Span::new(0, self.channels(of.output)), None)];
        if mode == StepDataflow::Channels {
            let mut first = 0;
            parts.clear();
            for tensor in &of.inputs {
                parts.push((Span::new(first, first + self.channels(*tensor)), Some(*tensor)));
                first += self.channels(*tensor);
            }
        }
        for (all, input) in parts {
            let mut next = all.begin;
            while next < all.end {
                let channels = Span::new(next, all.end.min(next + ((self.memory.free() / each.max(1)) as usize).max(1)));
                let own = Span::new(channels.begin - all.begin, channels.end - all.begin);
                if let Some(tensor) = input {
                    self.bring(step, tensor, own, held)?;
                }
                for side in &of.sides {
                    self.bring(step, *side, channels, held)?;
                }
                let weights = self.load_weights(step, channels)?;
                let output = self.place(step, ElementOwner::Tensor(of.output), self.map(of.output, channels))?;
                let read = input.map_or(of.inputs.clone(), |t| vec![t]);
                let mut reads = self.on_chip(&read, held);
                reads.extend(self.on_chip(&of.sides, held));
                reads.extend(&weights);
                let part = self.map(of.output, channels);
                self.push(Move::Compute(Compute { step, part, outputs: vec![output], reads, stage: StepStage::Whole }));
                self.keep_outside(page, of.output, output, channels);
                weights.iter().for_each(|w| self.release(*w));
                held.entry(of.output).or_default().insert(channels.begin, output);
                self.give_up(of.output, channels, kept, held);
                for side in &of.sides {
                    self.give_up(*side, channels, page.after(step, *side), held);
                }
                if let Some(tensor) = input {
                    self.give_up(tensor, own, page.after(step, tensor), held);
                }
                next = channels.end;
            }
        }
        for tensor in &of.inputs {
            self.give_up(*tensor, Span::new(0, self.channels(*tensor)), page.after(step, *tensor), held);
        }
        Ok(())
    }

    /// All sums on chip, the inputs channel by channel.
    fn output_whole(&mut self, step: usize, page: &Page<'_>, held: &mut Held) -> Result<(), NoRoom> {
        let of = &self.steps.steps[step];
        let all = Span::new(0, self.channels(of.output));
        let whole = self.map(of.output, all);
        let output = self.place(step, ElementOwner::Tensor(of.output), whole)?;
        let [_, _, taps] = self.filter_shape(step);
        let mut first = 0;
        for tensor in &of.inputs {
            let count = self.channels(*tensor);
            let each = self.steps.tensors[*tensor].shape.plane() + (all.len() * taps) as u64;
            let mut next = 0;
            while next < count {
                let channels = Span::new(next, count.min(next + ((self.memory.free() / each.max(1)) as usize).max(1)));
                self.bring(step, *tensor, channels, held)?;
                let inputs = Span::new(first + channels.begin, first + channels.end);
                let weights = self.load(step, ElementOwner::Filter(step), [all, inputs, Span::new(0, taps)])?;
                let mut reads = self.on_chip(&[*tensor], held);
                reads.push(weights);
                let stage = StepStage::Sums(inputs);
                self.push(Move::Compute(Compute { step, part: whole, outputs: vec![output], reads, stage }));
                self.release(weights);
                self.give_up(*tensor, channels, page.after(step, *tensor), held);
                next = channels.end;
            }
            first += count;
        }
        let each = of.sides.len() as u64 * self.steps.tensors[of.output].shape.plane() + self.rest_each(step) as u64;
        let mut next = 0;
        while next < all.end {
            let many = self.memory.free().checked_div(each).map_or(all.end, |n| (n as usize).max(1));
            let channels = Span::new(next, all.end.min(next + many));
            for side in &of.sides {
                self.bring(step, *side, channels, held)?;
            }
            let rest = self.load_rest(step, channels)?;
            let reads = self.on_chip(&of.sides, held).into_iter().chain(rest).collect();
            let part = self.map(of.output, channels);
            self.push(Move::Compute(Compute { step, part, outputs: vec![output], reads, stage: StepStage::Finish }));
            rest.into_iter().for_each(|r| self.release(r));
            for side in &of.sides {
                self.give_up(*side, channels, page.after(step, *side), held);
            }
            next = channels.end;
        }
        self.keep_outside(page, of.output, output, all);
        held.entry(of.output).or_default().insert(0, output);
        self.give_up(of.output, all, page.after(step, of.output), held);
        Ok(())
    }
}
