//! Reading answers: what they mean, what they ask for, what they cost.
//!
//! The status alone decides little: money ends as 429, a bad key may be a 400, and a 200 may hold an error.

mod duration;
mod envelope;
mod excerpt;
mod hint;
mod quota;
mod rules;
mod success;
mod verdict;

use std::time::{Duration, SystemTime};

use http::HeaderMap;

pub use duration::parse_duration;
pub use envelope::ErrorBody;
pub use hint::server_wait;
pub use quota::{Period, Quota, QuotaFacts};
pub use success::Reading;
pub use verdict::{Class, Health, Retry, Scope, Verdict};

use crate::error::{TransportError, TransportErrorKind};
use success::Finding;

/// A server that asks for a longer wait than this is not worth waiting for in any call.
pub const HORIZON: Duration = Duration::from_secs(3600);

/// An answer, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub verdict: Verdict,
    /// What a JSON 2xx says of its usage; there also for an error inside a 2xx, which may be billed.
    pub reading: Option<Reading>,
}

/// Reads a whole answer.
///
/// `wall_now` serves dates where the answer has no `Date` of its own. A body that is empty although it has to
/// be, as that of a deletion, must not be passed here: the answer tells nothing of the question.
pub fn answer(status: u16, headers: &HeaderMap, body: &[u8], wall_now: SystemTime) -> Answer {
    match status {
        200..=299 => {
            let (finding, reading) = success::read(headers, body);
            Answer { verdict: judge(&finding, status, headers, body, wall_now), reading }
        }
        300..=399 => Answer { verdict: redirect(status, headers), reading: None },
        _ => Answer { verdict: error(status, headers, body, wall_now), reading: None },
    }
}

/// The name that the server gave the request, under which its operator finds it.
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    ["x-request-id", "request-id", "apim-request-id", "x-generation-id"]
        .iter()
        .find_map(|name| headers.get(*name))
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn judge(finding: &Finding, status: u16, headers: &HeaderMap, body: &[u8], wall_now: SystemTime) -> Verdict {
    let plain = |class, message: &str| Verdict::plain(status, class, Scope::Endpoint, message.to_owned());
    let verdict = match finding {
        Finding::Good => return Verdict::success(status),
        Finding::Error => return error(status, headers, body, wall_now),
        Finding::Blank => plain(Class::Empty, "the answer has no body"),
        Finding::NoChoices => {
            Verdict { retry: Retry::Once, ..plain(Class::Empty, "the answer has no choices") }
        }
        Finding::NotJson => plain(Class::Malformed, "the answer is not valid JSON"),
        Finding::Html => {
            let text = excerpt::of(&String::from_utf8_lossy(body));
            plain(Class::Malformed, &format!("the answer is a web page: {text}"))
        }
    };
    Verdict { retry: overridden(headers, verdict.retry), ..verdict }
}

fn redirect(status: u16, headers: &HeaderMap) -> Verdict {
    let location = headers.get(http::header::LOCATION).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let message = match location {
        Some(location) => format!("HTTP {status} redirects to {}", without_query(&location)),
        None => format!("HTTP {status} without a Location"),
    };
    Verdict::plain(status, Class::Redirect, Scope::Endpoint, message)
}

/// A query, or a name and password before the host, may hold a secret.
fn without_query(location: &str) -> String {
    let bare = location.split(['?', '#']).next().unwrap_or(location);
    let shown = match bare.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) =
                rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
        }
        None => bare.to_owned(),
    };
    excerpt::cap(&shown, 400)
}

/// Reads an error: any answer of 400 and above, an error inside a 2xx, or the data of an error event in a
/// stream (with the stream's status and headers).
pub fn error(status: u16, headers: &HeaderMap, body: &[u8], wall_now: SystemTime) -> Verdict {
    let error = ErrorBody::parse(body);
    let status = if (200..300).contains(&status) { rules::implied_status(&error) } else { status };
    let (class, scope, mut retry) = rules::classify(status, headers, &error);
    let hint = server_wait(status, headers, Some(&error), wall_now);
    if retry == Retry::Yes && hint.is_some_and(|hint| hint >= HORIZON) {
        retry = Retry::NotNow;
    }
    if !matches!(class, Class::Quota | Class::Auth) {
        retry = overridden(headers, retry);
    }
    let message = if error.message.is_empty() { standard_message(status) } else { error.message };
    Verdict {
        class,
        retry,
        scope,
        health: if matches!(status, 501 | 505) { Health::Neutral } else { class.consequence().1 },
        status,
        hint,
        message,
        code: error.code,
        error_type: error.error_type,
        param: error.param,
    }
}

/// `x-should-retry` has the last word, save that a wait beyond every horizon stays one.
fn overridden(headers: &HeaderMap, retry: Retry) -> Retry {
    let Some(value) = headers.get("x-should-retry") else { return retry };
    let value = value.as_bytes().trim_ascii();
    if value.eq_ignore_ascii_case(b"false") {
        Retry::No
    } else if value.eq_ignore_ascii_case(b"true") && retry != Retry::NotNow {
        Retry::Yes
    } else {
        retry
    }
}

fn standard_message(status: u16) -> String {
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    reason.map_or_else(|| format!("HTTP {status}"), |reason| format!("HTTP {status} {reason}"))
}

/// Reads an attempt that got no answer. Whether a repetition is safe is the caller's to judge:
/// [`TransportErrorKind::outcome_unknown`].
pub fn failure(error: &TransportError) -> Verdict {
    let class = match error.kind {
        TransportErrorKind::Connect
        | TransportErrorKind::Reset
        | TransportErrorKind::NotProcessed
        | TransportErrorKind::Body => Class::Connection,
        TransportErrorKind::ConnectTimeout
        | TransportErrorKind::FirstByteTimeout
        | TransportErrorKind::IdleTimeout
        | TransportErrorKind::AttemptTimeout => Class::Timeout,
        TransportErrorKind::Decode => Class::Malformed,
        TransportErrorKind::Redirect => Class::Redirect,
        TransportErrorKind::Request => Class::InvalidRequest,
    };
    let verdict = Verdict::plain(0, class, Scope::Endpoint, error.message.clone());
    match error.kind {
        // Proof that the server is alive: it only did not take this request.
        TransportErrorKind::NotProcessed => Verdict { health: Health::Neutral, ..verdict },
        TransportErrorKind::Request => Verdict { scope: Scope::Request, ..verdict },
        _ => verdict,
    }
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

    fn verdict(status: u16, pairs: &[(&'static str, &str)], body: &str) -> Verdict {
        answer(status, &headers(pairs), body.as_bytes(), UNIX_EPOCH).verdict
    }

    #[test]
    fn a_success_is_silent() {
        let good = verdict(200, &[], r#"{"choices":[{"finish_reason":"stop"}]}"#);
        assert_eq!((good.class, good.health, good.message.as_str()), (Class::Success, Health::Success, ""));
    }

    #[test]
    fn empty_answers_are_retried_and_those_without_choices_once() {
        for (status, body) in [(200, ""), (200, "\n\n"), (204, "")] {
            let empty = verdict(status, &[], body);
            assert_eq!((empty.class, empty.retry, empty.health), (Class::Empty, Retry::Yes, Health::Failure));
        }
        let none = verdict(200, &[], r#"{"choices":[]}"#);
        assert_eq!((none.class, none.retry, none.health), (Class::Empty, Retry::Once, Health::Failure));
        let broken = verdict(200, &[("content-type", "text/html")], "<html>login</html>");
        assert_eq!((broken.class, broken.retry), (Class::Malformed, Retry::Once));
        assert!(broken.message.ends_with("login"));
    }

    #[test]
    fn an_error_inside_a_success_keeps_its_usage() {
        let read = answer(
            200,
            &HeaderMap::new(),
            br#"{"choices":[{"finish_reason":"error"}],"usage":{"prompt_tokens":12}}"#,
            UNIX_EPOCH,
        );
        assert_eq!((read.verdict.class, read.verdict.status), (Class::ServerError, 500));
        assert_eq!(read.reading.and_then(|reading| reading.usage).map(|usage| usage.input), Some(12));
    }

    #[test]
    fn redirects_name_their_target_without_secrets() {
        let named = verdict(307, &[("location", "https://user:pw@example.com/v1?api-key=s")], "");
        assert_eq!((named.class, named.retry, named.health), (Class::Redirect, Retry::No, Health::Neutral));
        assert_eq!(named.message, "HTTP 307 redirects to https://example.com/v1");
        assert!(verdict(302, &[("location", "/login")], "").message.ends_with("/login"));
    }

    #[test]
    fn x_should_retry() {
        let retry = |status, value: &str, body| verdict(status, &[("x-should-retry", value)], body).retry;
        assert_eq!(retry(400, "true", ""), Retry::Yes);
        assert_eq!(retry(400, " TRUE ", ""), Retry::Yes);
        assert_eq!(retry(503, "False", ""), Retry::No);
        assert_eq!(retry(500, "maybe", ""), Retry::Yes);
        assert_eq!(retry(401, "true", ""), Retry::No);
        assert_eq!(retry(429, "true", r#"{"error":{"code":"insufficient_quota"}}"#), Retry::No);
        let far = [("x-should-retry", "true"), ("retry-after", "86400")];
        assert_eq!(verdict(429, &far, "").retry, Retry::NotNow);
    }

    #[test]
    fn bodies_without_a_message_get_the_statuss() {
        assert_eq!(verdict(502, &[], "").message, "HTTP 502 Bad Gateway");
        assert_eq!(verdict(520, &[], "{}").message, "{}");
        assert_eq!(verdict(529, &[], "").message, "HTTP 529");
    }

    #[test]
    fn failures_to_get_an_answer() {
        let read = |kind| failure(&TransportError { kind, message: "m".to_owned() });
        let reset = read(TransportErrorKind::Reset);
        assert_eq!(
            (reset.class, reset.retry, reset.health),
            (Class::Connection, Retry::Yes, Health::Failure)
        );
        assert_eq!(read(TransportErrorKind::NotProcessed).health, Health::Neutral);
        assert_eq!(read(TransportErrorKind::IdleTimeout).class, Class::Timeout);
        assert_eq!(read(TransportErrorKind::Request).retry, Retry::No);
        assert_eq!(read(TransportErrorKind::Decode).retry, Retry::Once);
    }

    proptest! {
        #[test]
        fn no_answer_panics(
            status in 0u16..1000,
            body in proptest::collection::vec(any::<u8>(), 0..200),
            value in proptest::collection::vec(32u8..=255, 0..40),
        ) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                for name in ["retry-after", "x-should-retry", "location", "content-type"] {
                    headers.insert(name, value.clone());
                }
            }
            let read = answer(status, &headers, &body, UNIX_EPOCH);
            prop_assert!(read.verdict.class == Class::Success || !read.verdict.message.is_empty());
        }
    }
}
