//! Lengths and points of time in the notations that servers use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::timestamp;

/// Units of Go's `time.Duration`; a longer name stands before the one it begins with.
const UNITS: [(&str, u128); 7] = [
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", SECOND),
];
const SECOND: u128 = 1_000_000_000;

/// A number without sign or exponent at the start of `text`, in units of `unit` nanoseconds, and the rest.
fn leading_number(text: &str) -> Option<(Decimal<'_>, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    if whole == 0 {
        return None;
    }
    let (number, rest) = text.split_at(whole);
    let Some(after_dot) = rest.strip_prefix('.') else {
        return Some((Decimal { whole: number, fraction: "" }, rest));
    };
    let (fraction, rest) = after_dot.split_at(digits(after_dot));
    if fraction.is_empty() { None } else { Some((Decimal { whole: number, fraction }, rest)) }
}

struct Decimal<'a> {
    whole: &'a str,
    fraction: &'a str,
}

impl Decimal<'_> {
    fn nanos(&self, unit: u128) -> u128 {
        let whole = self.whole.parse::<u128>().map_or(u128::MAX, |whole| whole.saturating_mul(unit));
        // 18 decimals of an hour are a femtosecond.
        let kept = self.fraction.get(..self.fraction.len().min(18)).unwrap_or("");
        let scale = kept.bytes().fold(1u128, |scale, _| scale * 10);
        let fraction = kept.parse::<u128>().map_or(0, |digits| digits * unit / scale);
        whole.saturating_add(fraction)
    }
}

fn from_nanos(nanos: u128) -> Duration {
    let rest = u32::try_from(nanos % SECOND).unwrap_or(0);
    u64::try_from(nanos / SECOND).map_or(Duration::MAX, |seconds| Duration::new(seconds, rest))
}

/// `6m0s`, `7.66s`, `12ms`, or a bare number of seconds. Negative or malformed is `None`; longer than a
/// [`Duration`] can be is [`Duration::MAX`].
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let mut rest = text;
    let mut total = 0u128;
    while !rest.is_empty() {
        let (number, after) = leading_number(rest)?;
        if after.is_empty() && rest.len() == text.len() {
            return Some(from_nanos(number.nanos(SECOND)));
        }
        let (unit, nanos) = UNITS.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        total = total.saturating_add(number.nanos(nanos));
        rest = after.strip_prefix(unit)?;
    }
    if text.is_empty() { None } else { Some(from_nanos(total)) }
}

/// Non-negative seconds or milliseconds as a float: `0.5`, `1.5e1`. What is too large for a float is
/// [`Duration::MAX`]; the words `inf` and `nan` are nothing.
pub(crate) fn parse_number(text: &str, per_second: f64) -> Option<Duration> {
    let text = text.trim();
    if !text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-')) {
        return None;
    }
    let value = text.parse::<f64>().ok()? / per_second;
    // -0.0 is no instruction either.
    if value.is_sign_negative() {
        None
    } else {
        Some(Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX))
    }
}

/// RFC 9110 dates in all three forms, and RFC 5322's numeric zero offsets.
pub(crate) fn parse_http_date(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    httpdate::parse_http_date(text).ok().or_else(|| {
        let day = ["-0000", "+0000", "UTC"].into_iter().find_map(|zone| text.strip_suffix(zone))?;
        httpdate::parse_http_date(&format!("{day}GMT")).ok()
    })
}

/// When a limit is full again, from now: a duration, seconds, epoch seconds or milliseconds, or a date.
/// A reset that is now or past says nothing about a limit and is `None`.
pub(crate) fn parse_reset(text: &str, now: SystemTime) -> Option<Duration> {
    // A window of three years, or the epoch of 1973; then 5138, or 1973 again in milliseconds.
    const EPOCH_SECONDS: u64 = 100_000_000;
    const EPOCH_MILLIS: u64 = 100_000_000_000;
    let until = |time: SystemTime| time.duration_since(now).ok();
    let length = match parse_duration(text) {
        Some(length) if text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            match length.as_secs() {
                seconds if seconds >= EPOCH_MILLIS => UNIX_EPOCH.checked_add(length / 1000).and_then(until),
                seconds if seconds >= EPOCH_SECONDS => UNIX_EPOCH.checked_add(length).and_then(until),
                _ => Some(length),
            }
        }
        Some(length) => Some(length),
        None => timestamp::rfc3339(text.trim()).or_else(|| parse_http_date(text)).and_then(until),
    };
    length.filter(|length| !length.is_zero())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_without_rounding() {
        assert_eq!(parse_duration("2m59.56s"), Some(Duration::from_millis(179_560)));
        assert_eq!(parse_duration("1.5h"), Some(Duration::from_secs(5400)));
        assert_eq!(parse_duration("250us"), Some(Duration::from_micros(250)));
        assert_eq!(parse_duration("250µs"), Some(Duration::from_micros(250)));
        assert_eq!(parse_duration("99999999999999999999999999999999999999999h"), Some(Duration::MAX));
        for text in ["1.s", ".5s", "-1s", "1 s", "1d", "1m30", "1e3", "s", "µ"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(parse_number(" 1.5e1 ", 1.0), Some(Duration::from_secs(15)));
        assert_eq!(parse_number("1e999", 1.0), Some(Duration::MAX));
        assert_eq!(parse_number("36412", 1000.0), Some(Duration::from_millis(36_412)));
        for text in ["inf", "nan", "-1", "-0", "", ".", "0x10", "infinity", "1_0"] {
            assert_eq!(parse_number(text, 1.0), None, "{text}");
        }
    }

    #[test]
    fn resets_by_magnitude() {
        let now = UNIX_EPOCH + Duration::from_secs(1_793_491_000);
        for text in ["200", "1793491200", "1793491200000", "3m20s", "2026-11-01T00:00:00Z"] {
            assert_eq!(parse_reset(text, now), Some(Duration::from_secs(200)), "{text}");
        }
        for text in ["0", "0s", "-1", "1793490000", "2020-01-01T00:00:00Z", "", "later"] {
            assert_eq!(parse_reset(text, now), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), near in "[0-9.]{0,40}(h|m|s|ms|us|ns|Z|T|:|-| |GMT){0,4}[0-9.:+-]{0,12}") {
            for text in [text.as_str(), near.as_str()] {
                let _ = (parse_duration(text), parse_number(text, 1.0), parse_http_date(text));
                let _ = parse_reset(text, UNIX_EPOCH);
            }
        }

        #[test]
        fn parts_add_up(hours in 0u64..100, minutes in 0u64..100, millis in 0u64..100_000) {
            let text = format!("{hours}h{minutes}m{millis}ms");
            prop_assert_eq!(parse_duration(&text), Some(Duration::from_millis((hours * 60 + minutes) * 60_000 + millis)));
        }
    }
}
