//! How long a server asks to wait, in every form it may say so.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::duration::{parse_duration, parse_http_date, parse_number, parse_reset};
use super::envelope::ErrorBody;
use super::quota::{QuotaFacts, server_now};

fn values<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
}

/// The wait that the server asks for, from the most exact statement to the least: `retry-after-ms`,
/// `retry-after` as a number or date, the error body, the error's text, the reset of the limit that ran out.
///
/// [`Duration::MAX`] is longer than any horizon. `None` is no usable instruction.
pub fn server_wait(
    status: u16,
    headers: &HeaderMap,
    error: Option<&ErrorBody>,
    wall_now: SystemTime,
) -> Option<Duration> {
    let now = || server_now(headers, wall_now);
    values(headers, "retry-after-ms")
        .find_map(|value| parse_number(first(value), 1000.0))
        .or_else(|| values(headers, "retry-after").find_map(|value| retry_after(value, now())))
        .or_else(|| error?.retry_delay)
        .or_else(|| in_text(&error?.message))
        .or_else(|| exhausted(status, headers, error, now()))
}

/// Two proxies that each add a value join them by a comma; the first is the server's.
fn first(value: &str) -> &str {
    value.split_once(',').map_or(value, |(first, _)| first)
}

fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    parse_number(value, 1.0)
        .or_else(|| parse_number(first(value), 1.0))
        .or_else(|| parse_duration(value))
        .or_else(|| Some(parse_http_date(value)?.duration_since(now).unwrap_or(Duration::ZERO)))
}

/// `Please try again in 1m2.5s.`, `Please retry after 37 seconds`.
fn in_text(message: &str) -> Option<Duration> {
    let message = message.to_ascii_lowercase();
    ["try again in ", "retry in ", "retry after "].into_iter().find_map(|phrase| {
        let (_, rest) = message.split_once(phrase)?;
        let mut words = rest.split_ascii_whitespace();
        let amount = words.next()?.trim_end_matches(['.', ',', ';', ')', '!']);
        if !amount.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return parse_duration(amount);
        }
        let unit = match words.next()?.trim_end_matches(|letter: char| !letter.is_alphabetic()) {
            "s" | "sec" | "secs" | "second" | "seconds" => "s",
            "ms" | "millisecond" | "milliseconds" => "ms",
            "m" | "min" | "mins" | "minute" | "minutes" => "m",
            "h" | "hour" | "hours" => "h",
            _ => return None,
        };
        parse_duration(&format!("{amount}{unit}"))
    })
}

fn exhausted(
    status: u16,
    headers: &HeaderMap,
    error: Option<&ErrorBody>,
    now: SystemTime,
) -> Option<Duration> {
    if status != 429 {
        return None;
    }
    // Azure's own spelling, seen alone on a token limit: openai/openai-python#937.
    let azure = ["x-rate-limit-reset-tokens", "x-rate-limit-reset-requests"]
        .into_iter()
        .filter_map(|name| values(headers, name).find_map(|value| parse_reset(value, now)))
        .max();
    let announced = QuotaFacts::from_headers(headers, now).exhausted_for();
    let in_body = error.and_then(|error| QuotaFacts::from_error(error, now).exhausted_for());
    azure.or(announced).or(in_body)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn wait(pairs: &[(&'static str, &str)]) -> Option<Duration> {
        server_wait(429, &headers(pairs), None, UNIX_EPOCH + Duration::from_secs(1_772_366_400))
    }

    #[test]
    fn a_wrong_clock_here_does_not_matter_where_the_server_dates_its_answer() {
        let pairs =
            [("retry-after", "Sun, 01 Mar 2026 12:00:03 GMT"), ("date", "Sun, 01 Mar 2026 12:00:00 GMT")];
        assert_eq!(server_wait(429, &headers(&pairs), None, UNIX_EPOCH), Some(Duration::from_secs(3)));
    }

    #[test]
    fn the_second_of_two_headers_serves_where_the_first_says_nothing() {
        assert_eq!(wait(&[("retry-after", "soon"), ("retry-after", "4")]), Some(Duration::from_secs(4)));
        assert_eq!(wait(&[("retry-after", "20s")]), Some(Duration::from_secs(20)));
    }

    #[test]
    fn text() {
        for (message, seconds) in [
            ("Please try again in 1m2.5s.", 62.5),
            ("Please try again in 114h18m0s.", 411_480.0),
            ("Please retry after 37 seconds.", 37.0),
            ("Please retry in 38.7s.", 38.7),
            ("Try again in 250ms", 0.25),
            ("try again in 2 minutes!", 120.0),
        ] {
            assert_eq!(in_text(message), Some(Duration::from_secs_f64(seconds)), "{message}");
        }
        for message in ["try again in a while", "retry after", "retry after 3", "retry after 3 attempts"] {
            assert_eq!(in_text(message), None, "{message}");
        }
    }

    #[test]
    fn only_a_limit_that_ran_out_makes_us_wait_for_its_reset() {
        let reset = ("x-ratelimit-reset-tokens", "7.66s");
        assert_eq!(wait(&[reset]), None);
        assert_eq!(wait(&[reset, ("x-ratelimit-remaining-tokens", "5")]), None);
        assert_eq!(
            wait(&[reset, ("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-requests", "9m")]),
            Some(Duration::from_millis(7660))
        );
        let spent = headers(&[reset, ("x-ratelimit-remaining-tokens", "0")]);
        assert_eq!(server_wait(500, &spent, None, UNIX_EPOCH), None);
    }

    proptest! {
        #[test]
        fn no_header_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60), text in any::<String>()) {
            let _ = in_text(&text);
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                for name in ["retry-after", "retry-after-ms", "date", "x-ratelimit-reset-tokens", "x-rate-limit-reset-tokens"] {
                    headers.insert(name, value.clone());
                    let _ = server_wait(429, &headers, None, UNIX_EPOCH);
                }
            }
        }
    }
}
