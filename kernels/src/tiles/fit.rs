//! Sizes of tiles whose intermediate results fit into a core's memory for them.

use super::space::{TileSpace, divided};

impl TileSpace {
    /// Cuts tiles whose locals would not fit, the longest side first, until half of the memory is theirs: the rest is for what reductions
    /// need.
    pub(super) fn fit(&self, sizes: &mut [(String, i64)]) {
        let (local, unit) = (self.tiles.local, self.tiles.unit);
        loop {
            let elements: i64 = sizes.iter().map(|(_, size)| size).product::<i64>() * self.local;
            let Some((index, size)) = sizes.iter_mut().max_by_key(|(_, size)| *size).filter(|_| elements > local) else { return };
            let most = (*size * local / elements / unit).max(1) * unit;
            let count = self.outer.iter().find(|o| o.range.index == *index).map_or(*size, |o| o.range.count);
            let cut = ((divided(count, (count + most - 1) / most) + unit - 1) / unit * unit).min(most);
            if cut >= *size {
                return;
            }
            *size = cut;
        }
    }
}
