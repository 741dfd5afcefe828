//! A fair sample of fixed size of a sequence of unknown length.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Reservoir sampling (algorithm R). The same sequence gives the same sample.
#[derive(Debug)]
pub(super) struct Sample<T> {
    size: usize,
    seen: u64,
    kept: Vec<T>,
    rng: SmallRng,
}

impl<T> Sample<T> {
    pub(super) fn new(size: usize) -> Self {
        Self { size, seen: 0, kept: Vec::new(), rng: SmallRng::seed_from_u64(1) }
    }

    pub(super) fn offer(&mut self, item: T) {
        self.seen += 1;
        if self.kept.len() < self.size {
            self.kept.push(item);
        } else {
            let place = usize::try_from(self.rng.random_range(0..self.seen)).unwrap_or(usize::MAX);
            if let Some(kept) = self.kept.get_mut(place) {
                *kept = item;
            }
        }
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn kept(&self) -> &[T] {
        &self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_short_sequence_is_kept() {
        let mut sample = Sample::new(3);
        (0..3).for_each(|i| sample.offer(i));
        assert_eq!(sample.kept(), [0, 1, 2]);
    }

    #[test]
    fn each_item_of_a_long_one_has_the_same_chance() {
        let mut counts = [0; 10];
        let mut sample = Sample::new(1);
        for _ in 0..5_000 {
            sample = Sample { seen: 0, kept: Vec::new(), ..sample };
            (0..10).for_each(|i| sample.offer(i));
            counts[sample.kept()[0]] += 1;
        }
        assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
        assert_eq!(sample.seen(), 10);
    }
}
