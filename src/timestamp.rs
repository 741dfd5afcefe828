//! Calendar dates as servers and price tables write them (RFC 3339; the proleptic Gregorian calendar).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// Days from 1970-01-01; `None` for a day that does not exist.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let last = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) {
        return None;
    }
    // Years that begin in March put the leap day last, which makes month lengths a linear formula.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

fn digits(text: &str, length: usize) -> Option<i64> {
    let all_digits = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits { text.parse().ok() } else { None }
}

fn day_number(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    days(digits(year, 4)?, digits(month, 2)?, digits(day, 2)?)
}

fn since_epoch(seconds: i64, nanos: u32) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

/// Midnight UTC of `2026-08-21`.
pub(crate) fn date(text: &str) -> Option<SystemTime> {
    since_epoch(day_number(text)?.checked_mul(DAY)?, 0)
}

/// `2025-08-21T12:40:59Z`, with fractions and offsets.
pub(crate) fn rfc3339(text: &str) -> Option<SystemTime> {
    let (day, rest) = text.split_once(['T', 't', ' '])?;
    let clock = rest.get(..8)?;
    let mut fields = clock.split(':');
    let (hour, minute, second) =
        (digits(fields.next()?, 2)?, digits(fields.next()?, 2)?, digits(fields.next()?, 2)?);
    // 60 is a leap second.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut tail = rest.get(8..)?;
    let mut nanos = 0;
    if let Some(fraction) = tail.strip_prefix('.') {
        let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let kept = fraction.get(..length.min(9)).filter(|kept| !kept.is_empty())?;
        nanos = format!("{kept:0<9}").parse().ok()?;
        tail = fraction.get(length..)?;
    }
    let offset = match tail.chars().next()? {
        'Z' | 'z' if tail.len() == 1 => 0,
        sign @ ('+' | '-') => {
            let (hours, minutes) = tail.get(1..)?.split_once(':')?;
            let seconds = digits(hours, 2)? * 3600 + digits(minutes, 2)? * 60;
            if sign == '-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    since_epoch(day_number(day)? * DAY + hour * 3600 + minute * 60 + second - offset, nanos)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(time: SystemTime) -> u64 {
        time.duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    #[test]
    fn known_instants() {
        assert_eq!(seconds(date("1970-01-01").unwrap()), 0);
        assert_eq!(seconds(date("2000-02-29").unwrap()), 951_782_400);
        assert_eq!(seconds(rfc3339("2025-08-21T12:40:59Z").unwrap()), 1_755_780_059);
        assert_eq!(rfc3339("2025-08-21T12:40:59Z"), rfc3339("2025-08-21T14:40:59+02:00"));
        let fraction = rfc3339("1970-01-01T00:00:00.25Z").unwrap();
        assert_eq!(fraction.duration_since(UNIX_EPOCH).unwrap(), Duration::from_millis(250));
    }

    #[test]
    fn what_is_no_date() {
        for text in ["", "2026-13-45", "2025-02-29", "2026-2-1", "2026-01-01-01", "1969-12-31", "+026-01-01"]
        {
            assert_eq!(date(text), None, "{text}");
        }
        for text in
            ["2026-01-01", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00.Z", "xTy"]
        {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in any::<String>()) {
            let _ = (date(&text), rfc3339(&text));
        }

        #[test]
        fn days_follow_each_other(seconds_since in 0u64..4_000_000_000) {
            let shown = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds_since));
            let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
            let month = months.iter().position(|name| *name == &shown[8..11]).unwrap() + 1;
            let text = format!("{}-{month:02}-{}T{}Z", &shown[12..16], &shown[5..7], &shown[17..25]);
            prop_assert_eq!(seconds(rfc3339(&text).unwrap()), seconds_since);
        }
    }
}
