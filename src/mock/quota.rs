//! A provider's quota: requests per minute and day, tokens per minute, requests at once. Pure; exact in
//! integers.

use std::time::Duration;

use super::fields::Fields;
use crate::clock::Instant;
use crate::error::ConfigError;

/// Which provider's headers and errors announce the quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    OpenAi,
    Azure,
    Anthropic,
    Groq,
}

#[derive(Debug, Clone)]
pub(super) struct QuotaConfig {
    rpm: Option<u64>,
    rpd: Option<u64>,
    tpm: Option<u64>,
    concurrency: Option<u64>,
    /// Headers on every answer, and Retry-After on a refusal. Default true.
    pub(super) announce: bool,
    pub(super) style: Style,
    /// The quota of so much time may be spent at once. Default 60 s, the whole minute.
    burst: Duration,
    /// Output tokens set aside for a request that names no maximum. Default 16.
    default_max_tokens: u64,
}

impl QuotaConfig {
    pub(super) fn parse(mut fields: Fields) -> Result<Self, ConfigError> {
        const STYLES: &[(&str, Style)] = &[
            ("openai", Style::OpenAi),
            ("azure", Style::Azure),
            ("anthropic", Style::Anthropic),
            ("groq", Style::Groq),
        ];
        // Products of limits and nanoseconds stay far below 2^127.
        const MOST: u64 = 1_000_000_000_000;
        let config = Self {
            rpm: fields.count("rpm", 1, MOST)?,
            rpd: fields.count("rpd", 1, MOST)?,
            tpm: fields.count("tpm", 1, MOST)?,
            concurrency: fields.count("concurrency", 1, MOST)?,
            announce: fields.flag("announce")?.unwrap_or(true),
            style: fields.choice("style", STYLES)?.unwrap_or(Style::OpenAi),
            burst: fields.seconds("burst_s")?.unwrap_or(Duration::from_secs(60)),
            default_max_tokens: fields.count("default_max_tokens", 0, MOST)?.unwrap_or(16),
        };
        if config.burst.is_zero() || config.burst > Duration::from_secs(60) {
            let seconds = config.burst.as_secs_f64();
            return Err(ConfigError::new(
                fields.path("burst_s"),
                seconds,
                "must be more than 0 and at most 60 seconds",
            ));
        }
        fields.finish()?;
        Ok(config)
    }
}

const NANO: i128 = 1_000_000_000;

/// Refills evenly up to its capacity. Amounts are counted in billionths of the period's share, of which a
/// nanosecond refills a whole number: however often one looks, nothing is rounded away.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) limit: u64,
    /// One request, or one token.
    unit: i128,
    capacity: i128,
    level: i128,
    at: Instant,
}

impl Bucket {
    fn new(limit: u64, period_s: u64, burst: Duration, now: Instant) -> Self {
        let unit = NANO * i128::from(period_s);
        let burst_ns = i128::try_from(burst.as_nanos()).unwrap_or(i128::MAX);
        let capacity = (i128::from(limit) * burst_ns).clamp(unit, i128::from(limit) * unit);
        Self { limit, unit, capacity, level: capacity, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = i128::try_from(now.since(self.at).as_nanos()).unwrap_or(i128::MAX);
        self.level = (self.level + elapsed * i128::from(self.limit)).min(self.capacity);
        self.at = now;
    }

    fn take(&mut self, amount: u64) {
        self.level -= i128::from(amount) * self.unit;
    }

    fn give_back(&mut self, amount: u64) {
        self.level = (self.level + i128::from(amount) * self.unit).min(self.capacity);
    }

    fn time_to(&self, level: i128) -> Duration {
        let missing = (level - self.level).max(0);
        let limit = i128::from(self.limit);
        Duration::from_nanos(u64::try_from((missing + limit - 1) / limit).unwrap_or(u64::MAX))
    }

    /// How long until so much is there.
    fn wait_for(&self, amount: u64) -> Duration {
        self.time_to(i128::from(amount) * self.unit)
    }

    pub(super) fn remaining(&self) -> u64 {
        u64::try_from(self.level.max(0) / self.unit).unwrap_or(u64::MAX)
    }

    /// Time to a full bucket.
    pub(super) fn reset(&self) -> Duration {
        self.time_to(self.capacity)
    }

    pub(super) fn capacity(&self) -> u64 {
        u64::try_from(self.capacity / self.unit).unwrap_or(u64::MAX)
    }
}

/// What refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dimension {
    Requests,
    RequestsPerDay,
    Tokens,
    Concurrency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) dimension: Dimension,
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) requested: u64,
    /// `None`: the request is larger than the quota will ever admit.
    pub(super) wait: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Quota {
    pub(super) config: QuotaConfig,
    pub(super) minute: Option<Bucket>,
    pub(super) day: Option<Bucket>,
    pub(super) tokens: Option<Bucket>,
    in_flight: u64,
}

impl Quota {
    pub(super) fn new(config: QuotaConfig, now: Instant) -> Self {
        let bucket =
            |limit: Option<u64>, period_s, burst| limit.map(|limit| Bucket::new(limit, period_s, burst, now));
        Self {
            minute: bucket(config.rpm, 60, config.burst),
            day: bucket(config.rpd, 86_400, Duration::from_secs(86_400)),
            tokens: bucket(config.tpm, 60, config.burst),
            in_flight: 0,
            config,
        }
    }

    /// Providers set aside the prompt's estimate and the whole output that a request may ask for.
    pub(super) fn estimate(&self, prompt: u64, max_tokens: Option<u64>) -> u64 {
        prompt.saturating_add(max_tokens.unwrap_or(self.config.default_max_tokens))
    }

    pub(super) fn refill(&mut self, now: Instant) {
        for bucket in [&mut self.minute, &mut self.day, &mut self.tokens].into_iter().flatten() {
            bucket.refill(now);
        }
    }

    /// Takes from every dimension, or from none.
    pub(super) fn admit(&mut self, now: Instant, tokens: u64) -> Result<(), Refusal> {
        self.refill(now);
        if let Some(limit) = self.config.concurrency
            && self.in_flight >= limit
        {
            let wait = Some(Duration::from_secs(1));
            return Err(Refusal {
                dimension: Dimension::Concurrency,
                limit,
                used: limit,
                requested: 1,
                wait,
            });
        }
        let asked = [
            (Dimension::Requests, &self.minute, 1),
            (Dimension::RequestsPerDay, &self.day, 1),
            (Dimension::Tokens, &self.tokens, tokens),
        ];
        for (dimension, bucket, amount) in asked {
            let Some(bucket) = bucket else { continue };
            let wait = bucket.wait_for(amount);
            if !wait.is_zero() {
                return Err(Refusal {
                    dimension,
                    limit: bucket.limit,
                    used: bucket.limit.saturating_sub(bucket.remaining()),
                    requested: amount,
                    wait: Some(wait).filter(|_| amount <= bucket.capacity()),
                });
            }
        }
        self.in_flight += 1;
        for (bucket, amount) in [(&mut self.minute, 1), (&mut self.day, 1), (&mut self.tokens, tokens)] {
            if let Some(bucket) = bucket {
                bucket.take(amount);
            }
        }
        Ok(())
    }

    /// The request is over: the estimate gives way to what was used.
    pub(super) fn settle(&mut self, now: Instant, reserved: u64, used: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(tokens) = &mut self.tokens {
            tokens.refill(now);
            tokens.give_back(reserved);
            tokens.take(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn quota(value: Value) -> Quota {
        Quota::new(QuotaConfig::parse(Fields::new("quota", value).unwrap()).unwrap(), Instant::ZERO)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn admits_the_minute_at_once_and_then_at_the_rate() {
        let mut quota = quota(json!({"rpm": 3}));
        for _ in 0..3 {
            quota.admit(at(0), 0).unwrap();
        }
        let refusal = quota.admit(at(0), 0).unwrap_err();
        assert_eq!(refusal.wait, Some(Duration::from_secs(20)));
        assert_eq!((refusal.limit, refusal.used), (3, 3));
        assert!(quota.admit(at(19_999), 0).is_err());
        quota.admit(at(20_000), 0).unwrap();
    }

    #[test]
    fn a_refusal_takes_nothing() {
        let mut quota = quota(json!({"rpm": 2, "tpm": 100}));
        assert_eq!(quota.admit(at(0), 101).unwrap_err().wait, None);
        quota.admit(at(0), 90).unwrap();
        assert_eq!(quota.admit(at(0), 90).unwrap_err().dimension, Dimension::Tokens);
        quota.admit(at(0), 10).unwrap();
    }

    #[test]
    fn tokens_not_used_come_back() {
        let mut quota = quota(json!({"tpm": 100}));
        quota.admit(at(0), 100).unwrap();
        quota.settle(at(0), 100, 20);
        assert_eq!(quota.tokens.as_ref().unwrap().remaining(), 80);
        quota.admit(at(0), 80).unwrap();
        quota.settle(at(0), 80, 90);
        assert_eq!(quota.tokens.as_ref().unwrap().remaining(), 0);
        assert_eq!(quota.admit(at(0), 1).unwrap_err().wait, Some(Duration::from_millis(6_600)));
    }

    #[test]
    fn concurrency_frees_at_the_end_of_a_request() {
        let mut quota = quota(json!({"concurrency": 1}));
        quota.admit(at(0), 5).unwrap();
        assert_eq!(quota.admit(at(0), 5).unwrap_err().dimension, Dimension::Concurrency);
        quota.settle(at(0), 5, 5);
        quota.admit(at(0), 5).unwrap();
    }

    #[test]
    fn an_impossible_burst_is_refused() {
        let error = QuotaConfig::parse(Fields::new("quota", json!({"burst_s": 61})).unwrap()).unwrap_err();
        assert_eq!(error.field, "quota.burst_s");
    }

    proptest! {
        /// Against the definition: no window of any length admits more than the capacity and the refill.
        #[test]
        fn no_window_admits_more_than_burst_and_rate(
            rpm in 1u64..500, burst_s in 1u64..=60, gaps in proptest::collection::vec(0u64..3_000, 1..200),
        ) {
            let mut quota = quota(json!({"rpm": rpm, "burst_s": burst_s}));
            let capacity = (u128::from(rpm) * u128::from(burst_s) * 1000 / 60).max(1000);
            let (mut now, mut admitted) = (0, Vec::new());
            for gap in gaps {
                now += gap;
                if quota.admit(at(now), 0).is_ok() {
                    quota.settle(at(now), 0, 0);
                    admitted.push(now);
                }
            }
            for (first, start) in admitted.iter().enumerate() {
                for (count, end) in admitted.iter().skip(first).enumerate() {
                    let thousandths = capacity + u128::from(end - start) * u128::from(rpm) / 60;
                    prop_assert!((count as u128 + 1) * 1000 <= thousandths + 1);
                }
            }
        }

        /// The wait that is told is the shortest that helps.
        #[test]
        fn the_wait_told_is_exact(tpm in 1u64..100_000, spent in 1u64..100_000, ask in 1u64..100_000) {
            let mut quota = quota(json!({"tpm": tpm}));
            let (spent, ask) = (spent.min(tpm), ask.min(tpm));
            quota.admit(at(0), spent).unwrap();
            quota.settle(at(0), spent, spent);
            if let Err(refusal) = quota.admit(at(0), ask) {
                let wait = refusal.wait.unwrap();
                let just_before = Instant::ZERO + wait.saturating_sub(Duration::from_nanos(1));
                prop_assert!(quota.admit(just_before, ask).is_err());
                prop_assert!(quota.admit(Instant::ZERO + wait, ask).is_ok());
            }
        }
    }
}
