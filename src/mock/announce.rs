//! How a quota tells clients about itself: headers on every answer, and the answer to one too many
//! (WIRE 2).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::answer::Answer;
use super::quota::{Bucket, Dimension, Quota, Refusal, Style};
use super::shapes::{self, Kind, Provider};

/// Adds the quota's state; headers that are there stay. The quota must be refilled to now.
pub(super) fn announce(quota: &Quota, wall: SystemTime, headers: &mut HeaderMap) {
    if !quota.config.announce {
        return;
    }
    let mut put = |name: String, value: String| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.entry(name).or_insert(value);
        }
    };
    // Groq's request figures are the day's.
    let requests = if quota.config.style == Style::Groq { &quota.day } else { &quota.minute };
    for (what, bucket) in [("requests", requests), ("tokens", &quota.tokens)] {
        let Some(bucket) = bucket else { continue };
        let (limit, remaining) = (bucket.limit.to_string(), bucket.remaining().to_string());
        match quota.config.style {
            Style::OpenAi | Style::Groq => {
                put(format!("x-ratelimit-limit-{what}"), limit);
                put(format!("x-ratelimit-remaining-{what}"), remaining);
                put(format!("x-ratelimit-reset-{what}"), go_duration(bucket.reset()));
            }
            Style::Azure => {
                put(format!("x-ratelimit-remaining-{what}"), remaining);
                if what == "tokens" {
                    put("x-ratelimit-limit-tokens".into(), limit);
                    put("x-ratelimit-reset-tokens".into(), whole_seconds(bucket.reset()).to_string());
                }
            }
            Style::Anthropic => {
                put(format!("anthropic-ratelimit-{what}-limit"), limit);
                put(format!("anthropic-ratelimit-{what}-remaining"), remaining);
                put(format!("anthropic-ratelimit-{what}-reset"), reset_time(bucket, wall));
            }
        }
    }
}

fn reset_time(bucket: &Bucket, wall: SystemTime) -> String {
    rfc3339(wall.checked_add(bucket.reset()).unwrap_or(wall))
}

/// The 429.
pub(super) fn refuse(quota: &Quota, refusal: &Refusal, model: &str) -> Answer {
    let style = quota.config.style;
    let provider = match style {
        Style::OpenAi => Provider::OpenAi,
        Style::Azure => Provider::Azure,
        Style::Anthropic => Provider::Anthropic,
        Style::Groq => Provider::Groq,
    };
    let (word, what, name) = match refusal.dimension {
        Dimension::Requests => ("rate_limit", "requests per min (RPM)", "quota_requests"),
        Dimension::RequestsPerDay => ("rate_limit", "requests per day (RPD)", "quota_requests_per_day"),
        Dimension::Tokens => ("rate_limit_tokens", "tokens per min (TPM)", "quota_tokens"),
        Dimension::Concurrency => ("rate_limit", "concurrent requests", "quota_concurrency"),
    };
    let Refusal { limit, used, requested, wait, .. } = *refusal;
    let message = match (wait, provider) {
        (None, _) => {
            format!("Request too large for {model} on {what}: Limit {limit}, Requested {requested}.")
        }
        (Some(wait), Provider::Azure) => format!(
            "Requests to {model} have exceeded the limit on {what} of the current pricing tier. \
             Please retry after {} seconds.",
            whole_seconds(wait)
        ),
        (Some(wait), _) => format!(
            "Rate limit reached for {model} on {what}: Limit {limit}, Used {used}, Requested {requested}. \
             Please try again in {}.",
            go_duration(wait)
        ),
    };
    let kind = Kind::of_word(word).unwrap_or_else(|| Kind::of_status(http::StatusCode::TOO_MANY_REQUESTS));
    let status = http::StatusCode::TOO_MANY_REQUESTS;
    let body = shapes::body(provider, kind, status, Some(&message), None);
    let mut answer = Answer::json(status, body.to_string());
    answer.played = Some(name.into());
    if quota.config.announce
        && let Some(wait) = wait
    {
        answer.headers.insert(http::header::RETRY_AFTER, whole_seconds(wait).into());
        if style == Style::Azure {
            let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            answer.headers.insert("retry-after-ms", millis.into());
        }
    }
    answer
}

/// Rounded up, and at least 1: a client that obeys is never early.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)).max(1)
}

/// As Go prints durations: `12ms`, `1.5s`, `6m0s`, `8h38m24s`. Rounded up to milliseconds.
fn go_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    if millis < 1000 {
        return if millis == 0 { "0s".into() } else { format!("{millis}ms") };
    }
    let (total, rest) = (millis / 1000, millis % 1000);
    let (hours, minutes) = (total / 3600, total / 60 % 60);
    let seconds = format!("{}.{rest:03}", total % 60);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Days to civil date by the era of 400 years that starts on 1 March (public-domain algorithm of Howard
/// Hinnant).
fn rfc3339(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs().saturating_add(u64::from(since.subsec_nanos() > 0)));
    let (days, clock) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Instant;
    use crate::mock::fields::Fields;
    use crate::mock::quota::QuotaConfig;
    use serde_json::json;

    fn quota(style: &str) -> Quota {
        let value = json!({"rpm": 60, "rpd": 1440, "tpm": 6000, "style": style});
        let config = QuotaConfig::parse(Fields::new("quota", value).unwrap()).unwrap();
        let mut quota = Quota::new(config, Instant::ZERO);
        quota.admit(Instant::ZERO, 766).unwrap();
        quota
    }

    fn headers(style: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        announce(&quota(style), UNIX_EPOCH + Duration::from_secs(1_755_780_052), &mut headers);
        headers
    }

    #[test]
    fn each_style_announces_in_its_own_words() {
        let openai = headers("openai");
        assert_eq!(openai["x-ratelimit-limit-requests"], "60");
        assert_eq!(openai["x-ratelimit-remaining-tokens"], "5234");
        assert_eq!(openai["x-ratelimit-reset-requests"], "1s");
        let azure = headers("azure");
        assert_eq!(azure["x-ratelimit-reset-tokens"], "8");
        assert!(!azure.contains_key("x-ratelimit-limit-requests"));
        let groq = headers("groq");
        assert_eq!(groq["x-ratelimit-limit-requests"], "1440");
        assert_eq!(groq["x-ratelimit-reset-requests"], "1m0s");
        assert_eq!(groq["x-ratelimit-reset-tokens"], "7.66s");
        assert_eq!(headers("anthropic")["anthropic-ratelimit-requests-reset"], "2025-08-21T12:40:53Z");
    }

    #[test]
    fn a_request_that_can_never_pass_is_told_no_wait() {
        let mut quota = quota("openai");
        let refusal = quota.admit(Instant::ZERO, 7000).unwrap_err();
        assert!(!refuse(&quota, &refusal, "m").headers.contains_key("retry-after"));
        let refusal = quota.admit(Instant::ZERO, 6000).unwrap_err();
        assert_eq!(refuse(&quota, &refusal, "m").headers["retry-after"], "8");
    }

    #[test]
    fn durations_are_those_of_go() {
        let of = |millis| go_duration(Duration::from_millis(millis));
        let all = [0, 12, 1200, 60_000, 179_560, 31_104_000].map(of);
        assert_eq!(all, ["0s", "12ms", "1.2s", "1m0s", "2m59.56s", "8h38m24s"]);
    }
}
