//! One request and its answer, from arrival to the end that the ledger and the quota are told exactly once.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::answer::Answer;
use super::bill::Usage;
use super::config::LedgerConfig;
use super::ledger::{Credential, Entry, Finish, Outcome, Ticket};
use super::request::Call;
use super::shared::Shared;
use super::wire::Sent;
use crate::clock::{self, Instant};

/// Headers that carry a credential, or may.
const SECRET: [&str; 6] =
    ["authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie", "proxy-authorization"];

pub(super) struct Exchange {
    shared: Arc<Shared>,
    ticket: Ticket,
    model: Option<Arc<str>>,
    /// Tokens that the quota has set aside; `None` if it did not admit the request.
    reserved: Option<u64>,
    status: Option<u16>,
    played: Option<Arc<str>>,
    usage: Usage,
    metered: bool,
    over: bool,
}

impl Exchange {
    pub(super) fn begin(shared: &Arc<Shared>, call: &Call, arrived: Instant) -> Self {
        let kept = &shared.config.ledger;
        let mut hasher = DefaultHasher::new();
        hasher.write(&call.body);
        let model = call.model().cloned();
        let mut ledger = shared.ledger.lock();
        let arrived_s = ledger.seconds(arrived);
        let ticket = ledger.begin(Entry {
            connection: call.connection,
            arrived_s,
            ended_s: None,
            method: call.method.as_str().into(),
            path: call.shown_path().into(),
            headers: recorded(&call.headers, kept),
            credential: credential(&call.headers, shared.config.api_key.as_deref()),
            body_bytes: call.body.len(),
            body_hash: hasher.finish(),
            body: kept.record_bodies.then(|| String::from_utf8_lossy(&call.body).into_owned()),
            model: model.clone(),
            stream: call.asked.as_ref().is_ok_and(|asked| asked.stream),
            status: None,
            played: None,
            usage: Usage::default(),
            finish: None,
        });
        drop(ledger);
        Self {
            shared: Arc::clone(shared),
            ticket,
            model,
            reserved: None,
            status: None,
            played: None,
            usage: Usage::default(),
            metered: false,
            over: false,
        }
    }

    /// The quota has admitted the request and set these tokens aside.
    pub(super) fn admitted(&mut self, tokens: u64) {
        self.reserved = Some(tokens);
    }

    pub(super) fn answered(&mut self, answer: &Answer) {
        self.status = Some(answer.status.as_u16());
        self.played.clone_from(&answer.played);
        self.usage = answer.usage;
        self.metered = answer.metered;
    }

    pub(super) fn finish(mut self, finish: Finish, sent: Sent) {
        self.end(finish, sent);
    }

    fn end(&mut self, finish: Finish, sent: Sent) {
        self.over = true;
        let usage = if !sent.started {
            Usage::default()
        } else if self.metered && finish != Finish::Complete {
            Usage {
                completion_tokens: sent.tokens,
                reasoning_tokens: self.usage.reasoning_tokens.min(sent.tokens),
                ..self.usage
            }
        } else {
            self.usage
        };
        let now = clock::now();
        if let (Some(reserved), Some(quota)) = (self.reserved, &self.shared.quota) {
            quota.lock().settle(now, reserved, usage.total());
        }
        let model = self.model.as_deref().unwrap_or("");
        let outcome = Outcome {
            ended: now,
            status: self.status.filter(|_| sent.started),
            played: self.played.take(),
            usage,
            pico_usd: self.shared.config.prices.pico_usd(model, &usage),
            finish,
        };
        self.shared.ledger.lock().finish(self.ticket, outcome);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.over {
            self.end(Finish::Stopped, Sent::default());
        }
    }
}

/// The key a request carries, from either header that clients use.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).map(|value| {
        let value = value.as_bytes();
        value.strip_prefix(b"Bearer ").unwrap_or(value)
    });
    bearer.or_else(|| {
        headers.get("api-key").or_else(|| headers.get("x-api-key")).map(http::HeaderValue::as_bytes)
    })
}

pub(super) fn credential(headers: &HeaderMap, right: Option<&str>) -> Credential {
    match (key(headers), right) {
        (None, _) => Credential::None,
        (Some(_), None) => Credential::Present,
        (Some(key), Some(right)) if key == right.as_bytes() => Credential::Right,
        (Some(_), Some(_)) => Credential::Wrong,
    }
}

fn recorded(headers: &HeaderMap, kept: &LedgerConfig) -> BTreeMap<Box<str>, String> {
    let show = |name: &http::HeaderName| {
        if SECRET.contains(&name.as_str()) {
            return "***".to_owned();
        }
        let values: Vec<_> =
            headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        values.join(", ")
    };
    if kept.record_all_headers {
        return headers.keys().map(|name| (name.as_str().into(), show(name))).collect();
    }
    kept.record_headers
        .iter()
        .filter(|name| headers.contains_key(*name))
        .map(|name| (name.as_str().into(), show(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_credential_is_judged_and_never_shown() {
        let mut headers = HeaderMap::new();
        assert_eq!(credential(&headers, Some("sk-1")), Credential::None);
        headers.insert("authorization", HeaderValue::from_static("Bearer sk-1"));
        assert_eq!(credential(&headers, Some("sk-1")), Credential::Right);
        assert_eq!(credential(&headers, Some("sk-2")), Credential::Wrong);
        assert_eq!(credential(&headers, None), Credential::Present);
        let kept = LedgerConfig { record_all_headers: true, ..LedgerConfig::default() };
        assert_eq!(recorded(&headers, &kept).get("authorization").unwrap(), "***");
    }
}
