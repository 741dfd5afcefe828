//! The backoff's distribution, and that a hint is kept.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::Value;
use tidegate::backoff::{BackoffClass, delay};
use tidegate::config::RetryPolicy;

const RETRIES: [u32; 3] = [0, 1, 2];

fn local(policy: &RetryPolicy, retry: u32, rng: &mut SmallRng) -> f64 {
    delay(policy, retry, BackoffClass::Transient, None, rng).as_secs_f64()
}

#[test]
fn draws_are_uniform() {
    const DRAWS: usize = 100_000;
    let (policy, mut rng) = (RetryPolicy::default(), SmallRng::seed_from_u64(1));
    let mut draws: Vec<f64> = (0..DRAWS).map(|_| local(&policy, 4, &mut rng) / 3.2).collect();
    draws.sort_by(f64::total_cmp);
    let n = DRAWS as f64;
    // Kolmogorov-Smirnov against the uniform distribution; 1.63 / sqrt(n) is the bound for p = 0.01.
    let distance = draws
        .iter()
        .enumerate()
        .map(|(i, &x)| (x - i as f64 / n).abs().max(((i + 1) as f64 / n - x).abs()))
        .fold(0.0, f64::max);
    assert!(distance < 1.63 / n.sqrt(), "KS distance {distance}");
    assert!(draws[0] >= 0.0 && draws[DRAWS - 1] < 1.0);
}

#[test]
fn three_retries_wait_seven_tenths_of_a_second_on_average() {
    let (policy, mut rng) = (RetryPolicy::default(), SmallRng::seed_from_u64(2));
    let sums: f64 = (0..20_000).flat_map(|_| RETRIES).map(|i| local(&policy, i, &mut rng)).sum();
    let mean = sums / 20_000.0;
    assert!((mean - 0.70).abs() < 0.01, "{mean}");
}

#[test]
fn a_hint_is_never_undercut_and_hardly_exceeded() {
    let (policy, mut rng) = (RetryPolicy::default(), SmallRng::seed_from_u64(3));
    for i in 0..10_000_u32 {
        let hint = Duration::from_millis(u64::from(i) * 13);
        let wait = delay(&policy, i % 4, BackoffClass::Throttle, Some(hint), &mut rng);
        let spread = (hint.as_secs_f64() * 0.1 + 0.1).min(1.0);
        // The local backoff may be the longer one: at most 0.2 s * 2^3, or the throttle's 8 s where the hint is 0.
        let local = if hint.is_zero() { 8.0 } else { 1.6 };
        assert!(wait >= hint, "{wait:?} undercuts {hint:?}");
        assert!(wait.as_secs_f64() <= hint.as_secs_f64().max(local) + spread, "{wait:?} for {hint:?}");
    }
}

/// All callers told the same 5 s spread over 0.6 s instead of returning in one instant.
#[test]
fn callers_given_the_same_hint_do_not_return_together() {
    let (policy, mut rng) = (RetryPolicy::default(), SmallRng::seed_from_u64(4));
    let hint = Some(Duration::from_secs(5));
    let mut tenths = [0_u32; 7];
    for _ in 0..600 {
        let wait = delay(&policy, 0, BackoffClass::Throttle, hint, &mut rng);
        tenths[((wait.as_secs_f64() - 5.0) * 10.0) as usize] += 1;
    }
    assert!(tenths.iter().all(|&count| count <= 150), "{tenths:?}");
}

#[test]
fn case_b16_no_retry_index_overflows() {
    let case: Value =
        serde_json::from_str(include_str!("../vectors/cases/B16_backoff_overflow.json")).expect("valid JSON");
    for row in case["rows"].as_array().expect("rows") {
        let (base, cap) = (row["base_s"].as_f64().expect("base"), row["cap_s"].as_f64().expect("cap"));
        let policy = RetryPolicy {
            base: Duration::from_secs_f64(base),
            cap: Duration::from_secs_f64(cap),
            ..RetryPolicy::default()
        };
        let samples = row["samples"].as_u64().expect("samples");
        for attempt in row["attempts"].as_array().expect("attempts") {
            let attempt = u32::try_from(attempt.as_u64().expect("attempt")).expect("32 bits");
            let mut rng = SmallRng::seed_from_u64(attempt.into());
            let waits: Vec<f64> = (0..samples).map(|_| local(&policy, attempt - 1, &mut rng)).collect();
            let bound = cap.min(base * 2_f64.powf(f64::from(attempt - 1)));
            assert!(waits.iter().all(|&wait| (0.0..=bound).contains(&wait)));
            if base > 0.0 && attempt >= 10 {
                let mean = waits.iter().sum::<f64>() / samples as f64;
                assert!((2.0..=3.0).contains(&mean), "attempt {attempt}: {mean}");
            }
        }
    }
}
