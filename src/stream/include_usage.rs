//! Asking for the usage of a stream that did not ask for it.

use bytes::Bytes;
use memchr::memmem;

use crate::json::{self, Raw, lenient_object};

lenient_object! {
    struct Body<'a> {
        stream_options: Raw<'a> = "stream_options",
    }
}

/// `body` with `stream_options.include_usage` set; `None` if it is no object, or its options are none. All other
/// bytes stay as they are.
pub fn with_usage(body: &[u8]) -> Option<Bytes> {
    const OPTION: &[u8] = br#""include_usage":true"#;
    let start = memchr::memchr(b'{', body)? + 1;
    let given = json::read::<Body<'_>>(body).ok()?.stream_options.0;
    let Some(options) = given else {
        let empty = body.get(start..)?.trim_ascii_start().starts_with(b"}");
        let comma: &[u8] = if empty { b"" } else { b"," };
        return spliced(body, start, start, &[br#""stream_options":{"#, OPTION, b"}", comma].concat());
    };
    let at = (options.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
    if options == "null" {
        return spliced(body, at, at + options.len(), &[b"{", OPTION, b"}"].concat());
    }
    let inner = options.strip_prefix('{')?;
    let comma: &[u8] = if inner.trim_start().starts_with('}') { b"" } else { b"," };
    spliced(body, at + 1, at + 1, &[OPTION, comma].concat())
}

/// `body` with `new` in place of what lies between `from` and `to`.
fn spliced(body: &[u8], from: usize, to: usize, new: &[u8]) -> Option<Bytes> {
    Some([body.get(..from)?, new, body.get(to..)?].concat().into())
}

/// Whether an error speaks of the option that was added.
pub fn names_stream_options(body: &[u8]) -> bool {
    ["stream_options", "include_usage"].iter().any(|name| memmem::find(body, name.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn added(body: &str) -> Option<Value> {
        Some(serde_json::from_slice(&with_usage(body.as_bytes())?).unwrap())
    }

    #[test]
    fn the_option_is_added_wherever_it_belongs() {
        let wanted = json!({"include_usage": true});
        for (body, options) in [
            ("{}", wanted.clone()),
            (" {\"model\": \"m\"}", wanted.clone()),
            (r#"{"model":"m","stream_options":null}"#, wanted.clone()),
            (r#"{"stream_options": { } ,"model":"m"}"#, wanted),
            (r#"{"stream_options":{"x":[1]}}"#, json!({"include_usage": true, "x": [1]})),
        ] {
            assert_eq!(added(body).unwrap()["stream_options"], options, "{body}");
        }
        for body in ["", "[]", "{", r#"{"stream_options":7}"#] {
            assert_eq!(added(body), None, "{body}");
        }
    }

    #[test]
    fn an_error_that_names_the_option() {
        assert!(names_stream_options(br#"{"error":{"param":"stream_options"}}"#));
        assert!(names_stream_options(b"Extra inputs are not permitted: include_usage"));
        assert!(!names_stream_options(br#"{"error":{"param":"model"}}"#));
    }

    proptest! {
        #[test]
        fn nothing_else_changes(fields in proptest::collection::btree_map("[a-z]{1,3}", any::<String>(), 0..4)) {
            let body = serde_json::to_string(&fields).unwrap();
            let mut value = added(&body).unwrap();
            value.as_object_mut().unwrap().remove("stream_options");
            prop_assert_eq!(value, json!(fields));
        }
    }
}
