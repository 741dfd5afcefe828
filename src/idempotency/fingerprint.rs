//! What tells two executions under one key apart: tool, version and arguments.

use std::fmt;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 of the canonical JSON (RFC 8785) of `[tool, version, arguments]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `arguments` is JSON text. Equal values have equal fingerprints, whatever the order of names, the spacing, the
/// escapes or the form of numbers.
pub fn fingerprint(tool: &str, version: &str, arguments: &[u8]) -> Result<Fingerprint, serde_json::Error> {
    let arguments = exact(serde_json::from_slice(arguments)?);
    let canonical = serde_json_canonicalizer::to_vec(&(tool, version, arguments))?;
    Ok(Fingerprint(Sha256::digest(&canonical).into()))
}

/// RFC 8785 reads numbers as doubles, in which two long ids may be one. Integers that a double cannot hold are
/// compared by their digits instead, under a name that no argument has.
fn exact(value: Value) -> Value {
    const LARGEST: u64 = 1 << 53;
    match value {
        Value::Number(number) => {
            let magnitude = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            if magnitude.is_some_and(|magnitude| magnitude > LARGEST) {
                return serde_json::json!({ "\u{0}integer": number.to_string() });
            }
            Value::Number(number)
        }
        Value::Array(items) => items.into_iter().map(exact).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, exact(value))).collect(),
        other => other,
    }
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The SHA-256 of `bytes` in hex: what is shown of what must not be shown.
pub fn digest(bytes: &[u8]) -> String {
    Fingerprint(sha256(bytes)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &str) -> Fingerprint {
        fingerprint("pay", "1", arguments.as_bytes()).unwrap()
    }

    #[test]
    fn equal_values_are_equal() {
        for (one, other) in [
            (r#"{"a":1,"b":2}"#, r#"{ "b" : 2 , "a":1 }"#),
            (r#"{"s":"caf\u00e9 \/ \ud83c\udf0d"}"#, r#"{"s":"café / 🌍"}"#),
            (r#"{"n":100}"#, r#"{"n":1e2}"#),
            ("0", "-0.0"),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
        }
    }

    #[test]
    fn different_values_are_different() {
        for (one, other) in [
            ("[1,2]", "[2,1]"),
            (r#"{"a":null}"#, "{}"),
            (r#"{"a":""}"#, r#"{"a":null}"#),
            (r#"{"a":[]}"#, r#"{"a":{}}"#),
            ("9007199254740993", "9007199254740992"),
            ("-9007199254740993", "-9007199254740994"),
            ("18446744073709551615", "18446744073709551614"),
            ("1", r#""1""#),
        ] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
        assert_ne!(fingerprint("a", "b", b"1").unwrap(), fingerprint("ab", "", b"1").unwrap());
    }

    #[test]
    fn the_form_is_stable() {
        // A change here makes every record of an earlier version a mismatch.
        assert_eq!(
            of(r#"{"amount":10,"to":"Zoë"}"#).to_string(),
            digest("[\"pay\",\"1\",{\"amount\":10,\"to\":\"Zoë\"}]".as_bytes())
        );
        assert_eq!(digest(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
