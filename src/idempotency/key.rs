//! Keys: made of what identifies the business act, the same on every retry.

use std::fmt::Write as _;

use crate::error::ConfigError;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// `idem:{tenant}:{workflow}:{biz_id}:{step}`. What would blur the borders between the parts is escaped as in URLs,
/// so that two different sets of parts never make one key.
pub fn idem_key(tenant: &str, workflow: &str, biz_id: &str, step: &str) -> Result<String, ConfigError> {
    let mut key = String::from("idem");
    for (name, part) in [("tenant", tenant), ("workflow", workflow), ("biz_id", biz_id), ("step", step)] {
        if part.is_empty() {
            let rule = "must not be empty: without it, different acts would share a key";
            return Err(ConfigError::new(format!("idem_key.{name}"), "''", rule));
        }
        key.push(':');
        key.push_str(&escaped(part));
    }
    check(&key)?;
    Ok(key)
}

/// `part` with everything escaped that would blur the borders between parts.
pub fn escaped(part: &str) -> String {
    let mut key = String::with_capacity(part.len());
    for character in part.chars() {
        if matches!(character, '%' | ':') || character.is_control() || character.is_whitespace() {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                let _ = write!(key, "%{byte:02X}");
            }
        } else {
            key.push(character);
        }
    }
    key
}

/// Whether a store can hold it.
pub fn check(key: &str) -> Result<(), ConfigError> {
    let rule = if key.is_empty() {
        "must not be empty"
    } else if key.len() > MAX_KEY_BYTES {
        "must be 512 bytes at most: name the act, do not describe it"
    } else if key.chars().any(char::is_control) {
        "must hold no control characters"
    } else {
        return Ok(());
    };
    let shown: String = key.chars().filter(|character| !character.is_control()).take(60).collect();
    Err(ConfigError::new("key", shown, rule))
}

/// Why a part of a key looks as if it were different on every retry, which would let a duplicate through.
pub fn looks_random(part: &str) -> Option<&'static str> {
    let hex: String = part.chars().filter(|character| *character != '-').collect();
    let is_hex = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex
        && hex.as_bytes().get(12) == Some(&b'4')
        && matches!(hex.as_bytes().get(16), Some(b'8'..=b'9' | b'a' | b'b' | b'A' | b'B'))
    {
        return Some("a random UUID");
    }
    if has_date_and_time(part) {
        return Some("a time of day");
    }
    part.split(|character: char| !character.is_ascii_digit()).any(is_unix_time).then_some("a time stamp")
}

/// `2026-03-01T12:00` and its like.
fn has_date_and_time(part: &str) -> bool {
    const SHAPE: &[u8] = b"dddd-dd-ddTdd:dd";
    part.replace("%3A", ":").as_bytes().windows(SHAPE.len()).any(|window| {
        window.iter().zip(SHAPE).all(|(byte, shape)| match shape {
            b'd' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b't' | b' ' | b'_'),
            other => byte == other,
        })
    })
}

/// Seconds, milliseconds, microseconds or nanoseconds since 1970, in the years 2020 to 2049.
fn is_unix_time(digits: &str) -> bool {
    let scale = match digits.len() {
        10 => 1,
        13 => 1_000,
        16 => 1_000_000,
        19 => 1_000_000_000,
        _ => return false,
    };
    digits.parse::<u64>().is_ok_and(|number| (1_577_836_800..2_493_072_000).contains(&(number / scale)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_form_is_the_known_one() {
        assert_eq!(
            idem_key("acme", "refund", "order-7", "1.0.pay").unwrap(),
            "idem:acme:refund:order-7:1.0.pay"
        );
        assert_eq!(idem_key("a:b", "c%", "d e", "ü\n").unwrap(), "idem:a%3Ab:c%25:d%20e:ü%0A");
    }

    #[test]
    fn an_empty_part_is_refused_by_name() {
        assert_eq!(idem_key("a", "", "c", "d").unwrap_err().field, "idem_key.workflow");
        assert_eq!(idem_key("a", "b", &"x".repeat(600), "d").unwrap_err().field, "key");
    }

    #[test]
    fn what_changes_on_a_retry_is_seen() {
        for random in [
            "7f1a9c0e-5b1d-4c3e-9f2a-0123456789ab",
            "order-1772366400",
            "1772366400123",
            "2026-03-01T12:00:05Z",
        ] {
            assert!(looks_random(random).is_some(), "{random}");
        }
        for stable in [
            "order-7",
            "4111111111111111",
            "2026-03-01",
            "1.0.pay",
            "018f4d2e-8b0a-7c3e-9f2a-0123456789ab",
            "0012345678",
        ] {
            assert_eq!(looks_random(stable), None, "{stable}");
        }
    }

    proptest! {
        #[test]
        fn different_parts_make_different_keys(
            one in proptest::array::uniform4("[a%:3A ]{1,4}"),
            other in proptest::array::uniform4("[a%:3A ]{1,4}"),
        ) {
            let key = |parts: &[String; 4]| idem_key(&parts[0], &parts[1], &parts[2], &parts[3]).unwrap();
            prop_assert_eq!(key(&one) == key(&other), one == other);
        }
    }
}
