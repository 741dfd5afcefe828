//! What is left of the provider's quotas, from the headers that announce them.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::duration::{parse_http_date, parse_reset};
use super::envelope::ErrorBody;

/// The window a limit is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    Minute,
    Day,
}

/// One limit. What is not announced, or is nonsense (a limit of 0, a negative rest, a reset that is over), is
/// `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    pub limit: Option<u64>,
    pub remaining: Option<u64>,
    /// Until the limit is full again: not until the next request fits.
    pub reset: Option<Duration>,
    /// `None` if the window is not known; a rate must not be learnt from such a limit.
    pub period: Option<Period>,
}

/// The limits that an answer announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaFacts {
    /// Per minute for most, per day at Groq: see [`Quota::period`].
    pub requests: Quota,
    pub tokens: Quota,
    /// Anthropic; cached input does not count.
    pub input_tokens: Quota,
    pub output_tokens: Quota,
    /// OpenAI, since 2026-06.
    pub project_requests: Quota,
    pub project_tokens: Quota,
    /// OpenAI, older accounts.
    pub tokens_usage_based: Quota,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Limit,
    Remaining,
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// `x-ratelimit-limit-requests`: OpenAI, Azure, Groq.
    OpenAi,
    /// `anthropic-ratelimit-requests-limit`; per minute always.
    Anthropic,
    /// `ratelimit-limit`, `x-ratelimit-limit`: the IETF draft and OpenRouter, which name no window.
    Bare,
}

impl QuotaFacts {
    /// Reads the headers of any answer, success or error.
    pub fn from_headers(headers: &HeaderMap, wall_now: SystemTime) -> Self {
        let mut facts = Self::default();
        let mut now = None;
        for (name, value) in headers {
            let Some((family, part, dimension)) = parse_name(name.as_str()) else { continue };
            let Ok(value) = value.to_str() else { continue };
            let now = *now.get_or_insert_with(|| server_now(headers, wall_now));
            facts.record(family, part, dimension, value, now);
        }
        let daily_requests = headers.contains_key("x-groq-region");
        facts.infer_periods(daily_requests);
        facts
    }

    /// OpenRouter puts the headers of a refused request into `error.metadata.headers`.
    pub fn from_error(error: &ErrorBody, wall_now: SystemTime) -> Self {
        let mut facts = Self::default();
        for (name, value) in &error.headers {
            if let Some((family, part, dimension)) = parse_name(&name.to_ascii_lowercase()) {
                facts.record(family, part, dimension, value, wall_now);
            }
        }
        facts.infer_periods(false);
        facts
    }

    /// The longest reset among the limits of which nothing is left.
    pub fn exhausted_for(&self) -> Option<Duration> {
        self.all()
            .into_iter()
            .filter(|quota| quota.remaining == Some(0))
            .filter_map(|quota| quota.reset)
            .max()
    }

    fn all(&self) -> [&Quota; 7] {
        [
            &self.requests,
            &self.tokens,
            &self.input_tokens,
            &self.output_tokens,
            &self.project_requests,
            &self.project_tokens,
            &self.tokens_usage_based,
        ]
    }

    fn slot(&mut self, dimension: &str) -> Option<&mut Quota> {
        match dimension {
            "" | "requests" => Some(&mut self.requests),
            "tokens" => Some(&mut self.tokens),
            "input-tokens" => Some(&mut self.input_tokens),
            "output-tokens" => Some(&mut self.output_tokens),
            "project-requests" => Some(&mut self.project_requests),
            "project-tokens" => Some(&mut self.project_tokens),
            "tokens_usage_based" | "tokens-usage-based" => Some(&mut self.tokens_usage_based),
            _ => None,
        }
    }

    fn record(&mut self, family: Family, part: Part, dimension: &str, value: &str, now: SystemTime) {
        // Cerebras appends the window to the dimension.
        let (dimension, stated) = match (dimension.strip_suffix("-day"), dimension.strip_suffix("-minute")) {
            (Some(dimension), _) => (dimension, Some(Period::Day)),
            (_, Some(dimension)) => (dimension, Some(Period::Minute)),
            _ => (dimension, (family != Family::Bare).then_some(Period::Minute)),
        };
        let Some(quota) = self.slot(dimension) else { return };
        match part {
            Part::Limit => quota.limit = count(value).filter(|limit| *limit > 0).or(quota.limit),
            Part::Remaining => quota.remaining = count(value).or(quota.remaining),
            Part::Reset => quota.reset = parse_reset(value, now).or(quota.reset),
        }
        if stated == Some(Period::Day) || quota.period.is_none() {
            quota.period = stated;
        }
    }

    /// OpenAI's names tell no window. A reset is the time to full: what was used, over the rate. So the window
    /// is `reset * limit / used`; it is rounded and shared with others, hence the wide margin.
    fn infer_periods(&mut self, daily_requests: bool) {
        const HOUR: Duration = Duration::from_secs(3600);
        let requests = &mut self.requests;
        let window = (|| {
            let limit = requests.limit?;
            let used = limit.checked_sub(requests.remaining?).filter(|used| *used > 0)?;
            Some(requests.reset?.as_secs_f64() * limit as f64 / used as f64)
        })();
        let long_window = window.is_some_and(|seconds| seconds > 3.0 * HOUR.as_secs_f64());
        if requests.period.is_some() && (daily_requests || long_window) {
            requests.period = Some(Period::Day);
        }
        for quota in [&mut self.requests, &mut self.tokens] {
            if quota.reset.is_some_and(|reset| reset > HOUR) {
                quota.period = Some(Period::Day);
            }
            if *quota == (Quota { period: quota.period, ..Quota::default() }) {
                quota.period = None;
            }
        }
    }
}

/// The server's own idea of now, which its dates are relative to; ours where it does not say.
pub(crate) fn server_now(headers: &HeaderMap, wall_now: SystemTime) -> SystemTime {
    let date = headers.get("date").and_then(|value| value.to_str().ok()).and_then(parse_http_date);
    date.unwrap_or(wall_now)
}

/// Not negative: Azure has announced -1 (openai/openai-dotnet#838).
fn count(value: &str) -> Option<u64> {
    value.split(',').next()?.trim().parse().ok()
}

fn parse_name(name: &str) -> Option<(Family, Part, &str)> {
    if let Some(rest) = name.strip_prefix("anthropic-ratelimit-") {
        let (dimension, part) = rest.rsplit_once('-')?;
        return Some((Family::Anthropic, parse_part(part)?, dimension));
    }
    let rest = name.strip_prefix("x-ratelimit-").or_else(|| name.strip_prefix("ratelimit-"))?;
    match rest.split_once('-') {
        Some((part, dimension)) => Some((Family::OpenAi, parse_part(part)?, dimension)),
        None => Some((Family::Bare, parse_part(rest)?, "")),
    }
}

fn parse_part(part: &str) -> Option<Part> {
    match part {
        "limit" => Some(Part::Limit),
        "remaining" => Some(Part::Remaining),
        "reset" => Some(Part::Reset),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn facts(pairs: &[(&'static str, &str)]) -> QuotaFacts {
        let headers = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        QuotaFacts::from_headers(&headers, UNIX_EPOCH)
    }

    #[test]
    fn a_daily_quota_is_not_taken_for_a_minutes() {
        let groq = [
            ("x-ratelimit-limit-requests", "14400"),
            ("x-ratelimit-remaining-requests", "14370"),
            ("x-ratelimit-reset-requests", "2m59.56s"),
            ("x-ratelimit-limit-tokens", "18000"),
        ];
        assert_eq!(facts(&groq).requests.period, Some(Period::Day));
        assert_eq!(facts(&groq).tokens.period, Some(Period::Minute));
        let openai = [
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-reset-requests", "120ms"),
        ];
        assert_eq!(facts(&openai).requests.period, Some(Period::Minute));
        assert_eq!(facts(&[("x-ratelimit-reset-requests", "8h38m24s")]).requests.period, Some(Period::Day));
        let named = [("x-groq-region", "us-west-1"), ("x-ratelimit-limit-requests", "14400")];
        assert_eq!(facts(&named).requests.period, Some(Period::Day));
        assert_eq!(facts(&[("x-ratelimit-limit-requests-day", "900")]).requests.period, Some(Period::Day));
        assert_eq!(facts(&[("ratelimit-limit", "100"), ("ratelimit-reset", "30")]).requests.period, None);
    }

    #[test]
    fn nonsense_is_absent() {
        let azure = [
            ("x-ratelimit-limit-tokens", "-1"),
            ("x-ratelimit-remaining-tokens", "-1"),
            ("x-ratelimit-reset-tokens", "0"),
            ("x-ratelimit-limit-requests", "0"),
            ("anthropic-ratelimit-unified-reset", "1"),
            ("x-ratelimit-limit-images", "5"),
        ];
        assert_eq!(facts(&azure), QuotaFacts::default());
    }

    proptest! {
        #[test]
        fn no_value_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40), number in any::<i128>()) {
            for value in [HeaderValue::from_bytes(&bytes).ok(), HeaderValue::from_str(&number.to_string()).ok()] {
                let Some(value) = value else { continue };
                let mut headers = HeaderMap::new();
                for name in ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"] {
                    headers.insert(name, value.clone());
                }
                let facts = QuotaFacts::from_headers(&headers, UNIX_EPOCH);
                prop_assert!(facts.requests.limit != Some(0));
            }
        }
    }
}
