//! Numbers that a seed decides, so that a test that chooses at random can be repeated.

use std::time::SystemTime;

/// A generator whose numbers follow from its seed.
#[derive(Debug, Clone)]
pub struct SeededNumbers {
    seed: u64,
    state: u64,
}

impl SeededNumbers {
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed | 1 }
    }

    /// Takes the seed from `COVE_TEST_SEED`, which repeats an earlier run, or from the clock.
    pub fn from_environment() -> Self {
        let given = std::env::var("COVE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock =
            || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
        Self::new(given.unwrap_or_else(clock))
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }

    /// Returns the place of one of `length` items.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns one of the items. Panics if there are none.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_all_numbers() {
        let numbers = |seed| {
            let mut numbers = SeededNumbers::new(seed);
            (0..20).map(|_| numbers.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(8), numbers(8));
        assert_ne!(numbers(8), numbers(18));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        SeededNumbers::new(3).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
