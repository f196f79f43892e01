//! Values of some variables in one number, each variable always at the same place: what two combinations share is a mask.

use crate::model::network::Subproblem;

const WORDS: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u64; WORDS]);

impl Key {
    pub fn and(self, other: Key) -> Key {
        Key(std::array::from_fn(|n| self.0[n] & other.0[n]))
    }

    pub fn or(self, other: Key) -> Key {
        Key(std::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    pub fn without(self, other: Key) -> Key {
        Key(std::array::from_fn(|n| self.0[n] & !other.0[n]))
    }
}

/// Where the values of each variable stand.
pub struct KeyLayout(Vec<(usize, u32, u32)>);

impl KeyLayout {
    /// `None` if all variables together have too many values.
    pub fn of(part: &Subproblem) -> Option<KeyLayout> {
        let (mut word, mut shift) = (0, 0);
        let place = |domain: &Vec<u16>| {
            let bits = usize::BITS - (domain.len().max(1) - 1).leading_zeros();
            if shift + bits > u64::BITS {
                (word, shift) = (word + 1, 0);
            }
            let place = (word, shift, bits);
            shift += bits;
            (word < WORDS).then_some(place)
        };
        part.domains.iter().map(place).collect::<Option<Vec<_>>>().map(KeyLayout)
    }

    /// The value number `at` of a variable's domain.
    pub fn key(&self, variable: usize, at: usize) -> Key {
        let (word, shift, bits) = self.0[variable];
        let mut key = Key::default();
        if bits > 0 {
            key.0[word] = (at as u64) << shift;
        }
        key
    }

    /// All bits of a variable.
    pub fn mask(&self, variable: usize) -> Key {
        self.key(variable, (1usize << self.0[variable].2) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_has_bits_of_its_own() {
        let part = |sizes: &[u16]| Subproblem { domains: sizes.iter().map(|n| (0..*n).collect()).collect(), rows: vec![] };
        let sizes: Vec<u16> = (0..30).map(|n| [1, 2, 3, 64, 65, 100][n % 6]).collect();
        let places = KeyLayout::of(&part(&sizes)).unwrap();
        let mut all = Key::default();
        for (variable, size) in sizes.iter().enumerate() {
            let mask = places.mask(variable);
            assert_eq!(all.and(mask), Key::default());
            all = all.or(mask);
            let keys: Vec<Key> = (0..*size as usize).map(|at| places.key(variable, at)).collect();
            assert!(keys.iter().all(|key| key.without(mask) == Key::default()));
            assert!((1..keys.len()).all(|n| !keys[..n].contains(&keys[n])));
        }
        assert!(KeyLayout::of(&part(&[100; 40])).is_none());
    }
}
