//! Which samples a step gets: a pure function of how many were taken before, so that a run that begins in the middle takes the same ones.

use sdfg::philox;

/// The order in which samples are taken. All samples come once before any comes a second time.
#[derive(Clone, Debug)]
pub struct SampleOrder {
    samples: usize,
    /// The seed of a shuffle; `None` takes them as they lie.
    seed: Option<u64>,
    /// The epoch whose order this is.
    epoch: u64,
    shuffled: Vec<u32>,
}

impl SampleOrder {
    /// `samples` is at least 1.
    pub fn new(samples: usize, seed: Option<u64>) -> SampleOrder {
        let mut order = SampleOrder { samples, seed, epoch: 0, shuffled: vec![] };
        order.shuffle(0);
        order
    }

    /// The sample that is taken after `position` others.
    pub fn sample(&mut self, position: u64) -> usize {
        let (epoch, at) = (position / self.samples as u64, (position % self.samples as u64) as usize);
        if self.seed.is_none() {
            return at;
        }
        if epoch != self.epoch {
            self.shuffle(epoch);
        }
        self.shuffled.get(at).map_or(at, |sample| *sample as usize)
    }

    /// Every epoch has an order of its own (Fisher and Yates, with the generator of dropouts).
    fn shuffle(&mut self, epoch: u64) {
        let Some(seed) = self.seed else { return };
        self.epoch = epoch;
        self.shuffled.clear();
        self.shuffled.extend(0..self.samples as u32);
        let key = philox::key(seed, "order of samples");
        for n in (1..self.samples).rev() {
            let [low, high, ..] = philox::block([n as u32, 0, epoch as u32, (epoch >> 32) as u32], key);
            // 64 random bits over at most 2³² places: the bias of the remainder is below 2⁻³².
            let other = (u64::from(high) << 32 | u64::from(low)) % (n as u64 + 1);
            self.shuffled.swap(n, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_comes_once_in_an_epoch() {
        let mut order = SampleOrder::new(50, Some(3));
        let mut epochs: Vec<Vec<usize>> = (0..3).map(|epoch| (0..50).map(|n| order.sample(50 * epoch + n)).collect()).collect();
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2]);
        // Any position may be asked for at any time.
        assert_eq!(order.sample(7), epochs[0][7]);
        assert_eq!(SampleOrder::new(50, Some(3)).sample(107), epochs[2][7]);
        for epoch in &mut epochs {
            epoch.sort_unstable();
            assert!(epoch.iter().copied().eq(0..50));
        }
        assert_ne!(
            (0..50).map(|n| SampleOrder::new(50, Some(4)).sample(n)).collect::<Vec<_>>(),
            (0..50).map(|n| order.sample(n)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn unshuffled_samples_come_as_they_lie_and_wrap() {
        let mut order = SampleOrder::new(3, None);
        assert_eq!((0..7).map(|n| order.sample(n)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
    }
}
