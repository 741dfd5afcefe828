//! How long to wait before a retry: exponential with full jitter, and never earlier than the server asked.

use std::time::Duration;

use rand::{Rng, RngExt};

use crate::config::RetryPolicy;

/// What the failed attempt says about the server. AWS's standard retry mode separates the two the same way:
/// a server that sheds load needs a longer pause than one that hiccupped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackoffClass {
    /// The server limits us (429).
    Throttle,
    /// Any other failure worth a retry.
    Transient,
}

/// Doublings after which any base has reached any cap.
const MAX_DOUBLINGS: u32 = 40;

/// The wait before retry `retry_index` (0 is the first retry), drawn from `rng`.
///
/// Without a hint it is uniform in `[0, min(cap, base * 2^retry_index))`, the base and the cap being those of
/// `class`, and never below `min_delay`. A hint is a floor, on which up to `min(1 s, 0.1 * hint + 0.1 s)` is
/// laid so that all callers given the same hint do not return together. A server that names a wait paces us
/// itself, so the throttle scale serves only 429s that name none (or zero, which would be a hot loop).
pub fn delay(
    policy: &RetryPolicy,
    retry_index: u32,
    class: BackoffClass,
    hint: Option<Duration>,
    rng: &mut impl Rng,
) -> Duration {
    let paced = hint.is_some_and(|hint| !hint.is_zero());
    let (base, cap) = match class {
        BackoffClass::Throttle if !paced => (policy.throttle_base, policy.throttle_cap),
        _ => (policy.base, policy.cap),
    };
    let jittered = ceiling(base, cap, retry_index).mul_f64(rng.random::<f64>()).max(policy.min_delay);
    let Some(hint) = hint else { return jittered };
    let spread = (hint / 10).saturating_add(Duration::from_millis(100)).min(Duration::from_secs(1));
    hint.max(jittered).saturating_add(spread.mul_f64(rng.random::<f64>()))
}

fn ceiling(base: Duration, cap: Duration, retry_index: u32) -> Duration {
    // 2^64 ns shifted by 40 fits in 128 bits.
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let doubled = u128::from(nanos(base)) << retry_index.min(MAX_DOUBLINGS);
    Duration::from_nanos(u64::try_from(doubled).unwrap_or(u64::MAX).min(nanos(cap)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    #[test]
    fn ceilings_double_up_to_the_cap() {
        let policy = RetryPolicy::default();
        let at = |i| ceiling(policy.base, policy.cap, i).as_millis();
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(at), [200, 400, 800, 1600, 3200, 5000, 5000]);
        for i in [39, 40, 41, 63, 64, 1024, 1_000_000, u32::MAX] {
            assert_eq!(at(i), 5000);
        }
    }

    #[test]
    fn base_zero_is_no_wait() {
        let policy = RetryPolicy { base: Duration::ZERO, ..RetryPolicy::default() };
        let mut rng = SmallRng::seed_from_u64(1);
        for i in [0, 1, 1024, u32::MAX] {
            assert_eq!(delay(&policy, i, BackoffClass::Transient, None, &mut rng), Duration::ZERO);
        }
    }

    #[test]
    fn a_throttle_without_a_hint_waits_on_its_own_scale() {
        let policy = RetryPolicy::default();
        let mean = |class, hint| {
            let mut rng = SmallRng::seed_from_u64(2);
            let sum: Duration = (0..20_000).map(|_| delay(&policy, 0, class, hint, &mut rng)).sum();
            sum.as_secs_f64() / 20_000.0
        };
        assert!((mean(BackoffClass::Transient, None) - 0.1).abs() < 0.003);
        assert!((mean(BackoffClass::Throttle, None) - 0.5).abs() < 0.01);
        assert!((mean(BackoffClass::Throttle, Some(Duration::ZERO)) - 0.55).abs() < 0.01);
        let hinted = mean(BackoffClass::Throttle, Some(Duration::from_millis(500)));
        assert!((hinted - 0.575).abs() < 0.003, "hint 0.5 s and up to 0.15 s on top, got {hinted}");
    }

    #[test]
    fn min_delay_is_a_floor_of_the_local_wait() {
        let policy = RetryPolicy { min_delay: Duration::from_millis(150), ..RetryPolicy::default() };
        let mut rng = SmallRng::seed_from_u64(3);
        for _ in 0..1000 {
            assert!(delay(&policy, 0, BackoffClass::Transient, None, &mut rng) >= policy.min_delay);
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_never_undercuts_a_hint(
            base in any::<u64>(), cap in any::<u64>(), i in any::<u32>(), hint in any::<Option<u64>>(),
            seed in any::<u64>(), throttle in any::<bool>(),
        ) {
            let policy = RetryPolicy {
                base: Duration::from_secs(base),
                cap: Duration::from_secs(cap),
                ..RetryPolicy::default()
            };
            let class = if throttle { BackoffClass::Throttle } else { BackoffClass::Transient };
            let hint = hint.map(Duration::from_secs);
            let wait = delay(&policy, i, class, hint, &mut SmallRng::seed_from_u64(seed));
            prop_assert!(wait >= hint.unwrap_or_default());
        }
    }
}
