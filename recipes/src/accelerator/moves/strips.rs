//! Moves of strips: tensors lie on chip row by row.

use super::super::schedules::strips::{Strips, Turn, Walk};
use super::super::shapes::Span;
use super::{Compute, ElementOwner, Move, NoRoom, StepStage, Writer};
use std::collections::BTreeMap;

/// Rows of a tensor on chip, each a piece.
type Rows = BTreeMap<usize, BTreeMap<usize, usize>>;

impl Writer<'_> {
    pub fn strips(&mut self, group: Span, strips: &Strips) -> Result<(), NoRoom> {
        let mut weights = Vec::new();
        for (at, resident) in strips.resident.iter().enumerate() {
            weights.push(self.load_weights(group.begin + at, Span::new(0, *resident))?);
        }
        let mut rows = Rows::new();
        let mut failed = None;
        Walk::new(self.steps, group).run(strips.strips, strips.tiles, strips.kept, &mut |turn| {
            if failed.is_none() {
                let resident = (strips.resident[turn.step], &weights[turn.step][..]);
                failed = self.turn(group.begin + turn.step, turn, resident, &mut rows).err();
            }
        });
        failed.map_or(Ok(()), Err)
    }

    fn turn(&mut self, step: usize, turn: &Turn<'_>, resident: (usize, &[usize]), rows: &mut Rows) -> Result<(), NoRoom> {
        if turn.afresh {
            std::mem::take(rows).into_values().flat_map(BTreeMap::into_values).for_each(|piece| self.release(piece));
        }
        for (tensor, from, columns) in turn.loads {
            let channels = Span::new(0, self.channels(*tensor));
            for row in from.begin..from.end {
                let piece = self.load(step, ElementOwner::Tensor(*tensor), [channels, Span::new(row, row + 1), *columns])?;
                rows.entry(*tensor).or_default().insert(row, piece);
            }
        }
        let of = &self.steps.steps[step];
        let all = Span::new(0, self.channels(of.output));
        let mut made: Vec<usize> = Vec::new();
        if !turn.passes {
            for row in turn.rows.begin..turn.rows.end {
                let part = [all, Span::new(row, row + 1), turn.columns];
                let taken = turn.in_place.and_then(|tensor| rows.get_mut(&tensor)?.remove(&row));
                let piece = match taken {
                    Some(piece) => {
                        let ranges = self.out.pieces[piece].ranges.clone();
                        // The old piece is still read while the new one is made.
                        made.push(piece);
                        self.piece(ElementOwner::Tensor(of.output), part, ranges)
                    }
                    None => self.place(step, ElementOwner::Tensor(of.output), part)?,
                };
                rows.entry(of.output).or_default().insert(row, piece);
            }
        }
        let taken = made;
        let reads: Vec<usize> = of
            .inputs
            .iter()
            .chain(&of.sides)
            .filter(|t| **t != of.output)
            .flat_map(|t| rows.get(t).into_iter().flat_map(|r| r.values().copied()))
            .chain(taken)
            .collect();
        let plane = (turn.rows.len() * turn.columns.len()) as u64;
        let each = (self.steps.steps[step].weights()) / all.len().max(1) as u64;
        let mut next = 0;
        while next < all.end {
            // Channels with resident weights come first; all of them at once if their output has its place already.
            let streams = next >= resident.0 && each > 0;
            let needed = if turn.passes { plane } else { 0 } + if streams { each } else { 0 };
            let most = if streams || each == 0 { all.end } else { resident.0 };
            let end = self.memory.free().checked_div(needed).map_or(most, |n| most.min(next + (n as usize).max(1)));
            let channels = Span::new(next, end);
            let weights = if streams { self.load_weights(step, channels)? } else { vec![] };
            let part = [channels, turn.rows, turn.columns];
            let outputs = match turn.passes {
                true => vec![self.place(step, ElementOwner::Tensor(of.output), part)?],
                false => rows.get(&of.output).into_iter().flat_map(|r| r.range(turn.rows.begin..turn.rows.end).map(|(_, p)| *p)).collect(),
            };
            let reads = reads.iter().chain(&weights).chain(if streams { &[] } else { resident.1 }).copied().collect();
            self.push(Move::Compute(Compute { step, part, outputs: outputs.clone(), reads, stage: StepStage::Whole }));
            if turn.passes {
                if let Some((stored, columns)) = turn.stored {
                    self.store(outputs[0], [channels, stored, columns]);
                }
                self.release(outputs[0]);
            }
            weights.iter().for_each(|w| self.release(*w));
            next = end;
        }
        if let (Some((stored, columns)), false) = (turn.stored, turn.passes) {
            for row in stored.begin..stored.end {
                if let Some(piece) = rows.get(&of.output).and_then(|r| r.get(&row)).copied() {
                    self.store(piece, [all, Span::new(row, row + 1), columns]);
                }
            }
        }
        for (tensor, below) in turn.frees {
            let Some(held) = rows.get_mut(tensor) else { continue };
            let kept = held.split_off(below);
            for piece in std::mem::replace(held, kept).into_values() {
                self.release(piece);
            }
        }
        Ok(())
    }
}
