//! Whether waits are drawn at random, or fixed so that all callers come back together.
//!
//! Waits are compared with others of the same step. Of `n` waits that are uniform, the chance that some window of
//! width `w` (as a share of the range) holds `k` is at most `n · C(n-1, k-1) · w^(k-1)`: each wait may be the
//! leftmost, and `k-1` others must fall beside it. Below one in a million, and with most waits in the window, the
//! waits are called fixed. Where not even all waits in one window would be that rare, there are too few to tell.

use super::finding::{Finding, Verdict, percent, rounded};
use super::record::{Kind, Record};
use super::resends::{STEPS, Tally};
use super::sample::Sample;

const CHANCE: f64 = 1e-6;
const MOST: f64 = 0.75;
const KEPT: usize = 1_000;

/// How far apart two waits may be that were meant to be the same.
#[derive(Debug, Clone, Copy)]
struct Tolerance {
    seconds: f64,
    share: f64,
    /// The range of waits is at least this, also where all are near zero.
    range: f64,
}

/// The gate writes the wait that it drew.
const EXACT: Tolerance = Tolerance { seconds: 0.0005, share: 0.01, range: 0.01 };

/// Others' waits are measured between calls, with whatever the process did besides.
const MEASURED: Tolerance = Tolerance { seconds: 0.01, share: 0.05, range: 0.2 };

#[derive(Debug, Clone, Copy, PartialEq)]
enum Spread {
    TooFew,
    Random,
    Fixed { at: f64, share: f64 },
}

fn spread(mut waits: Vec<f64>, tolerance: Tolerance) -> Spread {
    waits.sort_by(f64::total_cmp);
    let range = waits.last().copied().unwrap_or_default().max(tolerance.range);
    let width = |from: f64| tolerance.seconds + tolerance.share * from;
    let (mut best, mut from) = ((0, 0.0), 0);
    for (to, wait) in waits.iter().enumerate() {
        while waits.get(from).is_some_and(|first| first + width(*first) < *wait) {
            from += 1;
        }
        if to + 1 - from > best.0 {
            best = (to + 1 - from, waits.get(usize::midpoint(from, to)).copied().unwrap_or_default());
        }
    }
    // The greatest wait set the scale: it says nothing more.
    let n = waits.len().saturating_sub(1);
    let chance = |k: usize, at: f64| ln_chance(n, k.saturating_sub(1).min(n), width(at) / range);
    let share = best.0 as f64 / waits.len().max(1) as f64;
    if chance(waits.len(), best.1) > CHANCE.ln() {
        Spread::TooFew
    } else if share >= MOST && chance(best.0, best.1) < CHANCE.ln() {
        Spread::Fixed { at: best.1, share }
    } else {
        Spread::Random
    }
}

fn ln_chance(n: usize, k: usize, width: f64) -> f64 {
    if k < 2 {
        return 0.0;
    }
    let choose: f64 = (1..k).map(|i| ((n - i) as f64 / i as f64).ln()).sum();
    (n as f64).ln() + choose + (k - 1) as f64 * width.min(1.0).ln()
}

/// The gate's own waits before each retry: those that it drew alone, and what it laid upon the server's hints.
#[derive(Debug)]
pub(super) struct Jitter {
    plain: [Sample<f64>; STEPS],
    hinted: [Sample<f64>; STEPS],
}

impl Default for Jitter {
    fn default() -> Self {
        let steps = || std::array::from_fn(|_| Sample::new(KEPT));
        Self { plain: steps(), hinted: steps() }
    }
}

impl Jitter {
    pub(super) fn hear(&mut self, record: &Record) {
        if record.kind != Kind::Retry {
            return;
        }
        let hint = record.retry_after.filter(|hint| *hint > 0.0);
        let steps = if hint.is_some() { &mut self.hinted } else { &mut self.plain };
        // A retry is told of by the number of the attempt to come: 2 is the first.
        let step = usize::try_from(record.attempt).unwrap_or(STEPS + 1).clamp(2, STEPS + 1) - 2;
        if let Some(sample) = steps.get_mut(step) {
            sample.offer(record.delay - hint.unwrap_or_default());
        }
    }

    pub(super) fn finding(&self, tally: &Tally) -> Finding {
        let groups = [
            ("the gate's own waits", "gate", &self.plain, EXACT),
            ("the gate's waits beyond the server's hint", "gate_beyond_hint", &self.hinted, EXACT),
            ("the pauses of an outer loop", "outer_loop", &tally.gaps, MEASURED),
        ];
        let mut finding = Finding::new("jitter", "Waits are random");
        let (mut fixed, mut random) = (Vec::new(), 0);
        for (title, name, steps, tolerance) in groups {
            let seen: u64 = steps.iter().map(Sample::seen).sum();
            finding = finding.with(&format!("{name}_waits"), seen);
            for (sample, step) in steps.iter().zip(1..) {
                let mut waits = sample.kept().to_vec();
                if name == "outer_loop" && step > 1 {
                    // Whoever has given up may go on to the next task at once, and it may ask the same.
                    waits.retain(|wait| *wait > tolerance.seconds);
                }
                match spread(waits, tolerance) {
                    Spread::TooFew => {}
                    Spread::Random => random += sample.seen(),
                    Spread::Fixed { at, share } => {
                        let name = format!("{name}_retry_{step}");
                        finding = finding
                            .with(&format!("{name}_fixed_at_s"), rounded(at))
                            .with(&format!("{name}_fixed_share"), rounded(share));
                        fixed.push(format!(
                            "{title} before retry {step} are {at:.3} s in {} of {}",
                            percent(share),
                            sample.seen()
                        ));
                    }
                }
            }
        }
        if !fixed.is_empty() {
            return finding.says(
                Verdict::Problem,
                fixed.join("; "),
                "Callers that wait the same time come back together and hit the server as one. Draw each wait at \
                 random from zero up to a ceiling that doubles (full jitter); the gate's RetryPolicy does, if \
                 min_delay is well below base and cap.",
            );
        }
        if random == 0 {
            return finding.says(Verdict::NotEnoughData, String::from("too few retries to tell"), "");
        }
        finding.says(Verdict::Ok, format!("{random} waits were compared; none are fixed"), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    fn uniform(seed: u64, n: usize, low: f64, high: f64) -> Vec<f64> {
        let mut rng = SmallRng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(low..high)).collect()
    }

    #[test]
    fn random_waits_are_never_called_fixed() {
        for seed in 0..500 {
            for n in [2, 5, 9, 20, 60] {
                let full = spread(uniform(seed, n, 0.0, 0.2), EXACT);
                assert!(!matches!(full, Spread::Fixed { .. }), "{seed} {n} {full:?}");
                let equal = spread(uniform(seed, n, 0.5, 1.0), MEASURED);
                assert!(!matches!(equal, Spread::Fixed { .. }), "{seed} {n} {equal:?}");
                // What the official client draws: the last quarter.
                let little = spread(uniform(seed, n, 0.375, 0.5), MEASURED);
                assert!(!matches!(little, Spread::Fixed { .. }), "{seed} {n} {little:?}");
            }
        }
    }

    #[test]
    fn fixed_waits_are_called_so_from_few_on() {
        for (seconds, tolerance) in
            [(1.0, EXACT), (0.05, EXACT), (0.0, EXACT), (1.0, MEASURED), (0.0, MEASURED)]
        {
            assert!(matches!(spread(vec![seconds; 12], tolerance), Spread::Fixed { .. }), "{seconds}");
            assert_eq!(spread(vec![seconds; 2], tolerance), Spread::TooFew);
        }
        let noisy = uniform(3, 20, 0.5, 0.52);
        assert!(matches!(spread(noisy, MEASURED), Spread::Fixed { .. }));
    }

    #[test]
    fn a_floor_under_random_waits_is_no_fixed_wait() {
        let floored: Vec<_> = uniform(1, 200, 0.0, 0.2).into_iter().map(|wait| wait.max(0.1)).collect();
        assert_eq!(spread(floored, EXACT), Spread::Random);
    }

    #[test]
    fn the_bound_is_one_over_all_waits_in_the_whole_range() {
        assert!(ln_chance(10, 10, 1.0) >= 0.0);
        assert!(ln_chance(10, 10, 0.1) < ln_chance(10, 5, 0.1));
    }

    proptest! {
        #[test]
        fn any_waits_have_a_spread(waits in prop::collection::vec(0.0..100.0f64, 0..50)) {
            let few = waits.len() < 3;
            prop_assert!(!few || spread(waits, EXACT) == Spread::TooFew);
        }
    }

    fn retries(jitter: &mut Jitter, delays: impl IntoIterator<Item = f64>, hint: Option<f64>) {
        for delay in delays {
            jitter.hear(&Record {
                kind: Kind::Retry,
                attempt: 2,
                delay,
                retry_after: hint,
                ..Record::default()
            });
        }
    }

    #[test]
    fn a_server_that_names_the_wait_is_allowed_for() {
        let tally = Tally::default();
        let mut obeyed = Jitter::default();
        retries(&mut obeyed, uniform(5, 50, 2.0, 2.3), Some(2.0));
        assert_eq!(obeyed.finding(&tally).verdict, Verdict::Ok);
        let mut exact = Jitter::default();
        retries(&mut exact, [2.0; 50], Some(2.0));
        let finding = exact.finding(&tally);
        assert_eq!(finding.verdict, Verdict::Problem);
        assert_eq!(finding.evidence["gate_beyond_hint_retry_1_fixed_share"], 1.0);
    }

    #[test]
    fn going_on_to_the_next_task_at_once_is_no_wait() {
        let mut tally = Tally::default();
        for wait in uniform(8, 50, 0.1, 0.4) {
            tally.gaps[0].offer(wait);
            tally.gaps[2].offer(0.001);
        }
        assert_eq!(Jitter::default().finding(&tally).verdict, Verdict::Ok);
        for _ in 0..50 {
            tally.gaps[2].offer(0.3);
        }
        assert_eq!(Jitter::default().finding(&tally).verdict, Verdict::Problem);
    }

    #[test]
    fn few_retries_tell_nothing() {
        let mut jitter = Jitter::default();
        retries(&mut jitter, [0.1, 0.1], None);
        assert_eq!(jitter.finding(&Tally::default()).verdict, Verdict::NotEnoughData);
    }
}
