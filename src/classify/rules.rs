//! From a status and an error body to a class and a scope. Provider by provider, most special first.

use http::HeaderMap;

use super::envelope::ErrorBody;
use super::verdict::{Class, Retry, Scope};

/// Substrings by which servers without codes say that the prompt is too long.
const CONTEXT_TEXTS: [&str; 9] = [
    "maximum context length is",
    "exceed context limit",
    "is longer than the model's context length",
    "input tokens exceed the configured limit",
    "exceeds the available context size",
    "exceeds the maximum number of tokens allowed",
    "prompt is too long",
    "tokens exceed the model's maximum",
    "context_length_exceeded",
];

/// The status an error inside a 200 should have had: its numeric code, or what its names mean; 500 if they
/// mean nothing.
pub(crate) fn implied_status(error: &ErrorBody) -> u16 {
    let numeric = error.code.as_deref().and_then(|code| code.parse::<u16>().ok());
    if let Some(status) = numeric.filter(|status| (400..600).contains(status)) {
        return status;
    }
    let names = Names::of(error);
    let statuses: [(u16, &[&str]); 8] = [
        (
            429,
            &[
                "rate_limit_exceeded",
                "rate_limit_error",
                "slow_down",
                "insufficient_quota",
                "RESOURCE_EXHAUSTED",
            ],
        ),
        (503, &["server_is_overloaded", "service_unavailable_error", "overloaded_error", "UNAVAILABLE"]),
        (504, &["timeout_error", "DEADLINE_EXCEEDED"]),
        (401, &["invalid_api_key", "authentication_error", "UNAUTHENTICATED"]),
        (403, &["permission_error", "permission_denied", "PERMISSION_DENIED"]),
        (404, &["model_not_found", "not_found_error", "NotFoundError", "NOT_FOUND"]),
        (413, &["request_too_large"]),
        (
            400,
            &[
                "invalid_request_error",
                "invalid_prompt",
                "BadRequestError",
                "INVALID_ARGUMENT",
                "content_filter",
            ],
        ),
    ];
    statuses.into_iter().find(|(_, list)| names.any(list)).map_or(500, |(status, _)| status)
}

/// Every name under which an error body may state its kind.
struct Names<'a>([Option<&'a str>; 4], &'a [String]);

impl<'a> Names<'a> {
    fn of(error: &'a ErrorBody) -> Self {
        let stated = [&error.code, &error.error_type, &error.status_name, &error.metadata_type];
        Self(stated.map(Option::as_deref), &error.inner_codes)
    }

    fn any(&self, list: &[&str]) -> bool {
        self.0.iter().flatten().any(|name| list.contains(name))
            || self.1.iter().any(|name| list.contains(&name.as_str()))
    }
}

/// What the rules say of an error, before its hint and `x-should-retry` are heard.
pub(crate) fn classify(status: u16, headers: &HeaderMap, error: &ErrorBody) -> (Class, Scope, Retry) {
    let text = error.message.to_ascii_lowercase();
    let subject = Subject { status, headers, error, names: Names::of(error), text: &text };
    if let Some(scope) = subject.renewed_quota() {
        return (Class::Quota, scope, Retry::NotNow);
    }
    let (class, scope) = subject
        .money()
        .or_else(|| subject.refused_content())
        .or_else(|| subject.too_large())
        .or_else(|| subject.identity())
        .or_else(|| subject.capacity())
        .unwrap_or_else(|| subject.by_status());
    // What is not implemented will not be on the next attempt.
    let retry = if matches!(status, 501 | 505) { Retry::No } else { class.consequence().0 };
    (class, scope, retry)
}

struct Subject<'a> {
    status: u16,
    headers: &'a HeaderMap,
    error: &'a ErrorBody,
    names: Names<'a>,
    text: &'a str,
}

impl Subject<'_> {
    fn has(&self, texts: &[&str]) -> bool {
        texts.iter().any(|part| self.text.contains(part))
    }

    fn azure(&self) -> bool {
        let named =
            ["apim-request-id", "x-ms-region"].into_iter().any(|name| self.headers.contains_key(name));
        // Azure alone repeats the status as text and gives no type.
        let code = self.error.code.as_deref().and_then(|code| code.parse().ok());
        let bare = !self.error.numeric_code && self.error.error_type.is_none() && !self.error.gateway;
        named || (bare && code == Some(self.status))
    }

    fn anthropic(&self) -> bool {
        self.error.tagged || self.headers.keys().any(|name| name.as_str().starts_with("anthropic-"))
    }

    fn groq(&self) -> bool {
        self.headers.contains_key("x-groq-region") || self.text.contains("for model `")
    }

    fn google(&self) -> bool {
        self.error.status_name.is_some()
    }

    /// An allowance that fills again by itself, though not within a call.
    fn renewed_quota(&self) -> Option<Scope> {
        let daily = self.error.inner_codes.iter().any(|id| id.contains("PerDay"));
        if self.limit_source("openrouter_free_tier_daily") || self.has(&["-per-day"]) {
            Some(Scope::Key)
        } else if self.status == 429 && self.google() && (daily || self.has(&["limit: 0"])) {
            Some(Scope::ProjectModel)
        } else if self.error.gateway && self.has(&["call volume quota"]) {
            Some(Scope::Key)
        } else {
            None
        }
    }

    fn limit_source(&self, name: &str) -> bool {
        self.error.limit_source.as_deref() == Some(name)
    }

    /// Nothing helps but paying, save for one kind of 402.
    fn money(&self) -> Option<(Class, Scope)> {
        let quota = |scope| Some((Class::Quota, scope));
        if self.names.any(&["project_spend_limit_exceeded"]) {
            return quota(Scope::Project);
        }
        if self.names.any(&[
            "insufficient_quota",
            "credit_balance_exhausted",
            "organization_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
            "billing_not_active",
            "billing_hard_limit_reached",
            "enforced_spend_limit_reached",
            "billing_error",
        ]) {
            return quota(Scope::Org);
        }
        if self.status == 402 {
            // It must say how long.
            let in_flight = self.limit_source("openrouter_in_flight_budget")
                && ["retry-after", "retry-after-ms"].into_iter().any(|name| self.headers.contains_key(name));
            return Some((if in_flight { Class::RateLimit } else { Class::Quota }, Scope::Key));
        }
        let texts = ["credit balance is too low", "specified api usage limits", "spend limit"];
        if self.status == 400 && self.has(&texts) { quota(Scope::Org) } else { None }
    }

    fn refused_content(&self) -> Option<(Class, Scope)> {
        let filtered = self.names.any(&[
            "content_filter",
            "content_policy_violation",
            "ResponsibleAIPolicyViolation",
            "moderation_blocked",
        ]);
        let flagged = self.status == 403 && self.error.flagged;
        (filtered || flagged).then_some((Class::ContentFilter, Scope::Request))
    }

    fn too_large(&self) -> Option<(Class, Scope)> {
        let in_request = |class| Some((class, Scope::Request));
        // A limit on the length of one string is not the context window.
        let context = self.names.any(&["context_length_exceeded"])
            || (matches!(self.status, 400 | 413 | 422)
                && !self.names.any(&["string_above_max_length"])
                && self.long_prompt());
        if context {
            return in_request(Class::ContextLength);
        }
        if self.status == 413 || self.names.any(&["request_too_large"]) {
            return in_request(Class::RequestTooLarge);
        }
        let beyond = match (number_after(self.text, "limit "), number_after(self.text, "requested ")) {
            (Some(limit), Some(requested)) => requested > limit,
            _ => self.text.starts_with("request too large"),
        };
        if self.status == 429 && beyond { in_request(Class::RequestTooLarge) } else { None }
    }

    fn long_prompt(&self) -> bool {
        self.has(&CONTEXT_TEXTS)
            || (self.has(&["current length is"]) && self.has(&["while limit is"]))
            || (self.has(&["maximum input length is"]) && self.has(&["tokens"]))
    }

    fn identity(&self) -> Option<(Class, Scope)> {
        if self.status == 401
            || self.names.any(&["invalid_api_key", "account_deactivated", "API_KEY_INVALID"])
        {
            return Some((Class::Auth, Scope::Key));
        }
        if self.names.any(&["DeploymentNotFound"]) {
            return Some((Class::NotFound, Scope::Deployment));
        }
        if self.status == 404 || (self.status < 500 && self.names.any(&["model_not_found"])) {
            return Some((Class::NotFound, Scope::Model));
        }
        (self.status == 400 && self.names.any(&["tool_use_failed"]))
            .then_some((Class::ModelOutput, Scope::Request))
    }

    /// Too much for the server, which is not the caller's rate.
    fn capacity(&self) -> Option<(Class, Scope)> {
        let overloaded = |scope| Some((Class::Overloaded, scope));
        if self.status == 498 || self.names.any(&["flex_unavailable", "resource_unavailable"]) {
            return overloaded(Scope::Tier);
        }
        if self.status == 429 {
            let busy = self.has(&["experiencing high demand"]) || self.names.any(&["no_capacity"]);
            let named = self.names.any(&["overloaded_error", "server_is_overloaded"]);
            return if busy || named { overloaded(self.deployment_or(Scope::Endpoint)) } else { None };
        }
        let named =
            self.names.any(&["server_is_overloaded", "overloaded_error", "service_unavailable_error"]);
        if matches!(self.status, 503 | 529) || (named && self.status >= 500) {
            let scope = if self.error.from_upstream || self.google() {
                Scope::Model
            } else if self.names.any(&["server_is_overloaded"]) || self.has(&["model is overloaded"]) {
                Scope::EndpointModel
            } else {
                Scope::Endpoint
            };
            return overloaded(self.deployment_or(scope));
        }
        None
    }

    fn deployment_or(&self, scope: Scope) -> Scope {
        if self.azure() { Scope::Deployment } else { scope }
    }

    fn by_status(&self) -> (Class, Scope) {
        let upstream =
            if self.error.from_upstream || self.error.in_choice { Scope::Model } else { Scope::Endpoint };
        match self.status {
            403 => (Class::Permission, Scope::Key),
            408 | 504 => (Class::Timeout, upstream),
            409 => (Class::Conflict, Scope::Request),
            429 => (Class::RateLimit, self.rate_limit_scope()),
            status if status < 500 => (Class::InvalidRequest, Scope::Request),
            _ => (Class::ServerError, upstream),
        }
    }

    fn rate_limit_scope(&self) -> Scope {
        if self.names.any(&["slow_down"]) {
            Scope::Org
        } else if self.azure() {
            Scope::Deployment
        } else if self.anthropic() || self.groq() {
            Scope::OrgModel
        } else if self.google() {
            Scope::ProjectModel
        } else if self.error.from_upstream || self.error.in_choice {
            Scope::Model
        } else {
            Scope::KeyModel
        }
    }
}

/// The whole number behind `word`, thousands separators allowed.
fn number_after(text: &str, word: &str) -> Option<u64> {
    text.match_indices(word).find_map(|(at, _)| {
        let rest = text.get(at + word.len()..)?;
        let digits: String = rest
            .chars()
            .take_while(|letter| letter.is_ascii_digit() || *letter == ',')
            .filter(char::is_ascii_digit)
            .collect();
        digits.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: u16, body: &str) -> Class {
        classify(status, &HeaderMap::new(), &ErrorBody::parse(body.as_bytes())).0
    }

    #[test]
    fn a_request_is_too_large_only_beyond_the_limit() {
        let text = |limit: &str, requested: &str| {
            class(
                429,
                &format!("{{\"error\":{{\"message\":\"TPM: Limit {limit}, Requested {requested}.\"}}}}"),
            )
        };
        assert_eq!(text("30,000", "30,601"), Class::RequestTooLarge);
        assert_eq!(text("30000", "30000"), Class::RateLimit);
        assert_eq!(number_after("limit x, limit 12,", "limit "), Some(12));
        assert_eq!(number_after("limit 99999999999999999999999", "limit "), None);
    }

    #[test]
    fn every_status_has_a_class() {
        for status in 400..=999 {
            let class = class(status, "");
            assert!(!matches!(class, Class::Success | Class::Empty | Class::Malformed), "{status}");
        }
        for (status, want) in
            [(400, Class::InvalidRequest), (425, Class::InvalidRequest), (405, Class::InvalidRequest)]
        {
            assert_eq!(class(status, ""), want);
        }
    }

    #[test]
    fn a_limit_on_one_string_is_not_the_context() {
        let body = r#"{"error":{"message":"string too long: maximum context length is","code":"string_above_max_length"}}"#;
        assert_eq!(class(400, body), Class::InvalidRequest);
    }

    #[test]
    fn what_is_not_implemented_is_not_asked_for_again() {
        let retry = |status| classify(status, &HeaderMap::new(), &ErrorBody::default()).2;
        assert_eq!((retry(501), retry(505), retry(500)), (Retry::No, Retry::No, Retry::Yes));
    }

    #[test]
    fn status_of_an_error_inside_a_success() {
        let implied = |body: &str| implied_status(&ErrorBody::parse(body.as_bytes()));
        assert_eq!(implied(r#"{"error":{"code":429}}"#), 429);
        assert_eq!(implied(r#"{"error":{"code":"502"}}"#), 502);
        assert_eq!(implied(r#"{"error":{"code":"rate_limit_exceeded"}}"#), 429);
        assert_eq!(implied(r#"{"error":{"type":"overloaded_error"}}"#), 503);
        assert_eq!(implied(r#"{"error":{"code":"server_error"}}"#), 500);
        assert_eq!(implied(r#"{"error":{"code":1302}}"#), 500);
        assert_eq!(implied(r#"{"error":"upstream died"}"#), 500);
    }
}
