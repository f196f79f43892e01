//! Elements in the places of the on-chip memory: they are put there, looked for, loaded and stored.

use super::super::moves::{Box3, ElementOwner, ElementRange, volume};
use super::{BLOCK, SimulationFault, Simulator};

impl Simulator<'_> {
    /// Calls `run` for each run of places of a part of a piece: first place, number of the first element, how many.
    fn runs(&self, piece: &ElementRange, part: &Box3, run: &mut dyn FnMut(u64, u64, u64) -> bool) {
        let (base, rows, columns) = self.numbers(piece.source);
        let [channels, own_rows, own_columns] = piece.part;
        let (height, width) = (own_rows.len() as u64, own_columns.len() as u64);
        // Whole rows and whole channels lie together in both memories.
        let across = own_columns == part[2] && width == columns;
        let through = across && own_rows == part[1] && height == rows;
        let (outer, middle, length) = match (through, across) {
            (true, _) => (1, 1, part[0].len() as u64 * height * width),
            (_, true) => (part[0].len(), 1, part[1].len() as u64 * width),
            _ => (part[0].len(), part[1].len(), part[2].len() as u64),
        };
        let mut range = 0;
        let mut passed = 0;
        for c in 0..outer {
            for r in 0..middle {
                let (channel, row) = ((part[0].begin + c) as u64, (part[1].begin + r) as u64);
                let mut inside = ((channel - channels.begin as u64) * height + row - own_rows.begin as u64) * width
                    + (part[2].begin - own_columns.begin) as u64;
                let mut number = base + (channel * rows + row) * columns + part[2].begin as u64;
                let mut left = length;
                while left > 0 {
                    while range < piece.ranges.len() && inside >= passed + piece.ranges[range].1 {
                        passed += piece.ranges[range].1;
                        range += 1;
                    }
                    let Some((from, many)) = piece.ranges.get(range) else { return };
                    let skip = inside - passed;
                    let here = left.min(many - skip);
                    if !run(from + skip, number, here) {
                        return;
                    }
                    (inside, number, left) = (inside + here, number + here, left - here);
                }
            }
        }
    }

    /// The piece has a place for each of its elements, and all places exist.
    pub(super) fn placed(&self, piece: &ElementRange) -> Result<(), SimulationFault> {
        let room: u64 = piece.ranges.iter().map(|(_, many)| many).sum();
        let needed = volume(&piece.part);
        if room != needed {
            return Err(SimulationFault::Size { at: self.at, what: self.name(piece.source), room, needed });
        }
        let capacity = self.places.len() as u64;
        match piece.ranges.iter().find(|(from, many)| from + many > capacity) {
            Some((from, many)) => {
                Err(SimulationFault::Overflow { at: self.at, what: self.name(piece.source), address: from + many - 1, capacity })
            }
            None => Ok(()),
        }
    }

    /// Puts elements, or sums that will become them, into their places.
    pub(super) fn write(&mut self, piece: usize, part: &Box3, sums: bool) {
        let moves = self.moves;
        let piece = &moves.pieces[piece];
        let (mut places, mut written) = (std::mem::take(&mut self.places), std::mem::take(&mut self.written));
        let add = if sums { self.sums } else { 0 };
        self.runs(piece, part, &mut |place, number, many| {
            for n in 0..many {
                places[(place + n) as usize] = number + n + add;
            }
            for block in place / BLOCK..=(place + many - 1) / BLOCK {
                written[block as usize] = self.at as u32;
            }
            true
        });
        (self.places, self.written) = (places, written);
    }

    /// Every element of a part of a piece is in its place.
    pub(super) fn check(&mut self, number: usize, part: &Box3, sums: bool) -> Result<(), SimulationFault> {
        let moves = self.moves;
        let piece = &moves.pieces[number];
        let whole = *part == piece.part && !sums;
        if whole && self.checked[number] > 0 {
            let blocks = |(from, many): &(u64, u64)| *from / BLOCK..=(from + many - 1) / BLOCK;
            let fresh = piece.ranges.iter().flat_map(blocks).all(|b| self.written[b as usize] < self.checked[number]);
            if fresh {
                return Ok(());
            }
        }
        let add = if sums { self.sums } else { 0 };
        let mut wrong = None;
        self.runs(piece, part, &mut |place, first, many| {
            let there = &self.places[place as usize..(place + many) as usize];
            wrong = there.iter().zip(first + add..).position(|(a, b)| *a != b).map(|n| place + n as u64);
            wrong.is_none()
        });
        if let Some(address) = wrong {
            return Err(SimulationFault::Clobbered { at: self.at, what: self.name(piece.source), address });
        }
        if whole {
            self.checked[number] = self.at as u32;
        }
        Ok(())
    }

    pub(super) fn load(&mut self, number: usize) -> Result<u64, SimulationFault> {
        let moves = self.moves;
        let piece = &moves.pieces[number];
        self.placed(piece)?;
        if let ElementOwner::Tensor(tensor) = piece.source {
            let base = self.tensors[tensor];
            let mut there = true;
            self.runs(piece, &piece.part, &mut |_, first, many| {
                there = (first - base..first - base + many).all(|n| self.outside[tensor][(n / 64) as usize] >> (n % 64) & 1 == 1);
                there
            });
            if !there {
                return Err(SimulationFault::NotStored { at: self.at, what: self.name(piece.source) });
            }
        }
        self.write(number, &piece.part, false);
        let many = volume(&piece.part);
        self.moved.entry(piece.source).or_default().0 += many;
        Ok(many)
    }

    pub(super) fn store(&mut self, number: usize, part: &Box3) -> Result<u64, SimulationFault> {
        self.check(number, part, false)?;
        let moves = self.moves;
        let piece = &moves.pieces[number];
        if let ElementOwner::Tensor(tensor) = piece.source {
            let base = self.tensors[tensor];
            let mut outside = std::mem::take(&mut self.outside[tensor]);
            self.runs(piece, part, &mut |_, first, many| {
                (first - base..first - base + many).for_each(|n| outside[(n / 64) as usize] |= 1 << (n % 64));
                true
            });
            self.outside[tensor] = outside;
        }
        let many = volume(part);
        self.moved.entry(piece.source).or_default().1 += many;
        Ok(many)
    }
}
