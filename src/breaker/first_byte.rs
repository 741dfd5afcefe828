//! How long answers take to begin, and from when on a silent call counts as failed.

use std::time::Duration;

/// Fewer successes teach nothing.
const ENOUGH: u32 = 50;
/// At this many observations all counts are halved, so that old ones fade.
const FADE_AT: u32 = 1024;
/// The estimate is renewed after this many observations.
const RENEW_EVERY: u32 = 10;
const TIMES_P95: u32 = 3;

/// Eight steps per power of two from 1 ms (2^10 µs) to 71 min (2^32 µs): p95 comes out at most 12.5 % high.
const STEPS: usize = 8;
const STEPS_LOG2: u32 = 3;
const FIRST_OCTAVE: u32 = 10;
const OCTAVES: u32 = 22;
const BINS: usize = STEPS * OCTAVES as usize;

#[derive(Debug)]
pub(super) struct FirstByte {
    floor: Duration,
    counts: [u16; BINS],
    total: u32,
    slow_after: Option<Duration>,
}

impl FirstByte {
    pub(super) fn new(floor: Duration) -> Self {
        Self { floor, counts: [0; BINS], total: 0, slow_after: None }
    }

    /// max(floor, 3 x p95); `None` until learnt. Some models think for a minute before the first byte, so a
    /// fixed bound would take them for dead.
    pub(super) fn slow_after(&self) -> Option<Duration> {
        self.slow_after
    }

    pub(super) fn observe(&mut self, latency: Duration) {
        if let Some(count) = self.counts.get_mut(step(latency)) {
            *count = count.saturating_add(1);
        }
        self.total += 1;
        if self.total >= FADE_AT {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
        if self.total >= ENOUGH && self.total.is_multiple_of(RENEW_EVERY) {
            self.slow_after = Some(self.floor.max(self.p95().saturating_mul(TIMES_P95)));
        }
    }

    fn p95(&self) -> Duration {
        let mut above = 0;
        for (step, count) in self.counts.iter().enumerate().rev() {
            above += u32::from(*count);
            if above * 20 > self.total {
                return upper_edge(step);
            }
        }
        Duration::ZERO
    }
}

fn step(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1 << FIRST_OCTAVE);
    let octave = micros.ilog2();
    // The leading bit and the three behind it.
    let leading = usize::try_from(micros >> (octave - STEPS_LOG2)).unwrap_or(STEPS);
    ((octave - FIRST_OCTAVE) as usize * STEPS + leading % STEPS).min(BINS - 1)
}

fn upper_edge(step: usize) -> Duration {
    let eighths = (STEPS + step % STEPS + 1) as u64;
    Duration::from_micros((eighths << FIRST_OCTAVE >> STEPS_LOG2) << (step / STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_bound_their_latencies_from_above_within_an_eighth() {
        for micros in (1024..100_000).chain((7..32).map(|power| (1_u64 << power) - 1)) {
            let latency = Duration::from_micros(micros);
            let edge = upper_edge(step(latency));
            assert!(edge > latency, "{latency:?} {edge:?}");
            if micros >= 1024 {
                assert!(edge.as_secs_f64() <= latency.as_secs_f64() * 1.1251, "{latency:?} {edge:?}");
            }
        }
        assert_eq!(step(Duration::MAX), BINS - 1);
        assert_eq!(step(Duration::ZERO), 0);
    }

    #[test]
    fn is_off_until_fifty_successes() {
        let mut first_byte = FirstByte::new(Duration::from_secs(15));
        for _ in 0..49 {
            first_byte.observe(Duration::from_millis(300));
        }
        assert_eq!(first_byte.slow_after(), None);
        first_byte.observe(Duration::from_millis(300));
        assert_eq!(first_byte.slow_after(), Some(Duration::from_secs(15)));
    }

    #[test]
    fn follows_three_times_the_p95() {
        let mut first_byte = FirstByte::new(Duration::from_secs(15));
        for call in 0..100 {
            first_byte.observe(Duration::from_secs(if call % 10 == 0 { 20 } else { 1 }));
        }
        let slow_after = first_byte.slow_after().unwrap();
        assert!((60.0..=68.0).contains(&slow_after.as_secs_f64()), "{slow_after:?}");
        for _ in 0..5000 {
            first_byte.observe(Duration::from_secs(1));
        }
        assert_eq!(first_byte.slow_after(), Some(Duration::from_secs(15)), "what was slow once fades");
    }
}
