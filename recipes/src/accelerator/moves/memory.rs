//! The free part of the on-chip memory.

use std::collections::BTreeMap;

/// Free ranges by address, in elements. What finds no range that is long enough is spread over several.
pub struct FreeRanges {
    capacity: u64,
    free: BTreeMap<u64, u64>,
    left: u64,
    least: u64,
}

impl FreeRanges {
    pub fn new(capacity: u64) -> FreeRanges {
        FreeRanges { capacity, free: BTreeMap::from([(0, capacity)]), left: capacity, least: capacity }
    }

    pub fn free(&self) -> u64 {
        self.left
    }

    pub fn used(&self) -> u64 {
        self.capacity - self.left
    }

    /// The most elements that were in use at once.
    pub fn peak(&self) -> u64 {
        self.capacity - self.least
    }

    /// Takes `count` elements: the first range that holds all of them, or the first ranges together.
    pub fn allocate(&mut self, count: u64) -> Option<Vec<(u64, u64)>> {
        if count > self.left {
            return None;
        }
        self.left -= count;
        self.least = self.least.min(self.left);
        let mut ranges = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let whole = self.free.iter().find(|(_, length)| **length >= missing).or_else(|| self.free.first_key_value());
            let (from, length) = whole.map(|(from, length)| (*from, *length))?;
            self.free.remove(&from);
            let here = length.min(missing);
            if here < length {
                self.free.insert(from + here, length - here);
            }
            ranges.push((from, here));
            missing -= here;
        }
        Some(ranges)
    }

    /// Gives ranges back; neighbours grow together.
    pub fn release(&mut self, ranges: &[(u64, u64)]) {
        for (from, count) in ranges {
            let (mut from, mut count) = (*from, *count);
            self.left += count;
            if let Some((before, length)) = self.free.range(..from).next_back().map(|(b, l)| (*b, *l))
                && before + length == from
            {
                self.free.remove(&before);
                (from, count) = (before, count + length);
            }
            if let Some(length) = self.free.remove(&(from + count)) {
                count += length;
            }
            self.free.insert(from, count);
        }
    }
}
