//! Error bodies in the shapes that providers send (WIRE 1.1).

use http::StatusCode;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Provider {
    OpenAi,
    Azure,
    OpenRouter,
    Anthropic,
    DeepSeek,
    Groq,
    Vllm,
    Gemini,
}

impl Provider {
    pub(super) const WORDS: &[(&str, Self)] = &[
        ("openai", Self::OpenAi),
        ("azure", Self::Azure),
        ("openrouter", Self::OpenRouter),
        ("anthropic", Self::Anthropic),
        ("deepseek", Self::DeepSeek),
        ("groq", Self::Groq),
        ("vllm", Self::Vllm),
        ("gemini", Self::Gemini),
    ];
}

/// What an error is about, in the words of `OpenAI`'s envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    /// The word that scripts use.
    pub(super) word: &'static str,
    status: u16,
    type_: &'static str,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: &'static str,
}

const fn kind(
    word: &'static str,
    status: u16,
    type_: &'static str,
    code: Option<&'static str>,
    message: &'static str,
) -> Kind {
    Kind { word, status, type_, code, param: None, message }
}

const INVALID: &str = "invalid_request_error";

/// The first kind with a status stands for it where a script names the status alone.
const KINDS: &[Kind] = &[
    kind("invalid_request", 400, INVALID, None, "The request is not valid."),
    Kind {
        param: Some("messages"),
        ..kind(
            "context_length",
            400,
            INVALID,
            Some("context_length_exceeded"),
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
        )
    },
    Kind {
        param: Some("prompt"),
        ..kind(
            "content_filter",
            400,
            INVALID,
            Some("content_policy_violation"),
            "The request was rejected by the safety system.",
        )
    },
    kind("invalid_api_key", 401, INVALID, Some("invalid_api_key"), "Incorrect API key provided."),
    kind("payment_required", 402, "billing_error", None, "Insufficient credits."),
    kind("permission", 403, "permission_error", None, "You have no access to this resource."),
    kind("not_found", 404, INVALID, None, "Not found."),
    Kind {
        param: Some("model"),
        ..kind(
            "model_not_found",
            404,
            INVALID,
            Some("model_not_found"),
            "The model does not exist or you do not have access to it.",
        )
    },
    kind("timeout", 408, "timeout_error", None, "The request timed out."),
    kind("conflict", 409, "conflict_error", None, "The request conflicts with another one."),
    kind("request_too_large", 413, "request_too_large", None, "The request exceeds the maximum size."),
    kind("unprocessable", 422, INVALID, None, "Invalid parameters."),
    kind(
        "rate_limit",
        429,
        "requests",
        Some("rate_limit_exceeded"),
        "Rate limit reached on requests per min (RPM).",
    ),
    kind(
        "rate_limit_tokens",
        429,
        "tokens",
        Some("rate_limit_exceeded"),
        "Rate limit reached on tokens per min (TPM).",
    ),
    kind("slow_down", 429, "rate_limit_error", Some("slow_down"), "The request rate increased too quickly."),
    kind(
        "insufficient_quota",
        429,
        "insufficient_quota",
        Some("insufficient_quota"),
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    kind("server_error", 500, "server_error", None, "The server had an error while processing the request."),
    kind("bad_gateway", 502, "server_error", None, "Bad gateway."),
    kind(
        "overloaded",
        503,
        "service_unavailable_error",
        Some("server_is_overloaded"),
        "The requested model is overloaded.",
    ),
    kind("gateway_timeout", 504, "timeout_error", None, "The upstream timed out."),
];

impl Kind {
    pub(super) fn words() -> Vec<(&'static str, &'static Kind)> {
        KINDS.iter().map(|kind| (kind.word, kind)).collect()
    }

    pub(super) fn of_word(word: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.word == word)
    }

    pub(super) fn of_status(status: StatusCode) -> &'static Kind {
        const OTHER_CLIENT: &Kind = &kind("invalid_request", 400, INVALID, None, "The request is not valid.");
        const OTHER_SERVER: &Kind =
            &kind("server_error", 500, "server_error", None, "The server had an error.");
        KINDS.iter().find(|kind| kind.status == status.as_u16()).unwrap_or(
            if status.as_u16() == 529 || status == StatusCode::SERVICE_UNAVAILABLE {
                Kind::of_word("overloaded").unwrap_or(OTHER_SERVER)
            } else if status.is_server_error() {
                OTHER_SERVER
            } else {
                OTHER_CLIENT
            },
        )
    }

    /// The status that this provider sends with it.
    pub(super) fn status(&self, provider: Provider) -> StatusCode {
        let number = match (provider, self.word) {
            (Provider::Anthropic, "overloaded") => 529,
            (Provider::Groq, "overloaded") => 498,
            (Provider::OpenRouter | Provider::Anthropic | Provider::DeepSeek, "insufficient_quota") => 402,
            (Provider::Gemini, "invalid_api_key") => 400,
            _ => self.status,
        };
        StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// The body: `message` replaces the kind's own words, `retry_after` is what the text and the details name.
pub(super) fn body(
    provider: Provider,
    kind: &Kind,
    status: StatusCode,
    message: Option<&str>,
    retry_after: Option<f64>,
) -> Value {
    let mut text = message.unwrap_or(kind.message).to_owned();
    if message.is_none()
        && let Some(wait) = retry_after
    {
        let (words, unit) = match provider {
            Provider::Azure => ("retry after", " seconds"),
            Provider::Gemini => ("retry in", "s"),
            _ => ("try again in", "s"),
        };
        text = format!("{text} Please {words} {wait}{unit}.");
    }
    let number = status.as_u16();
    match provider {
        Provider::OpenAi | Provider::DeepSeek => json!({"error": {
            "message": text, "type": kind.type_, "param": kind.param, "code": kind.code,
        }}),
        Provider::Azure => azure(kind, number, &text),
        Provider::OpenRouter => json!({
            "error": {"code": number, "message": text, "metadata": {"provider_name": "Mock"}},
            "user_id": "user_mock",
        }),
        Provider::Anthropic => json!({
            "type": "error",
            "error": {"type": anthropic_type(number), "message": text},
            "request_id": "req_mock",
        }),
        Provider::Groq => json!({"error": {
            "message": text,
            "type": kind.type_,
            "code": if kind.word == "overloaded" { Some("capacity_exceeded") } else { kind.code },
        }}),
        Provider::Vllm => json!({"error": {
            "message": text, "type": vllm_type(number), "param": kind.param, "code": number,
        }}),
        Provider::Gemini => gemini(kind, number, &text, retry_after),
    }
}

fn azure(kind: &Kind, number: u16, text: &str) -> Value {
    match kind.word {
        "content_filter" => json!({"error": {
            "message": text, "type": null, "param": "prompt", "code": "content_filter", "status": number,
            "innererror": {
                "code": "ResponsibleAIPolicyViolation",
                "content_filter_result": {"violence": {"filtered": true, "severity": "high"}},
            },
        }}),
        "model_not_found" => json!({"error": {"code": "DeploymentNotFound", "message": text}}),
        "invalid_request" | "context_length" => json!({"error": {
            "message": text, "type": kind.type_, "param": kind.param, "code": kind.code,
        }}),
        _ => json!({"error": {"code": number.to_string(), "message": text}}),
    }
}

fn anthropic_type(number: u16) -> &'static str {
    match number {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

fn vllm_type(number: u16) -> &'static str {
    match number {
        404 => "NotFoundError",
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        500.. => "InternalServerError",
        _ => "BadRequestError",
    }
}

fn gemini(kind: &Kind, number: u16, text: &str, retry_after: Option<f64>) -> Value {
    let (name, mut details) = match kind.word {
        "rate_limit" | "rate_limit_tokens" | "slow_down" | "insufficient_quota" => {
            let period = if kind.word == "insufficient_quota" { "PerDay" } else { "PerMinute" };
            (
                "RESOURCE_EXHAUSTED",
                vec![json!({
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaId": format!("GenerateRequests{period}PerProjectPerModel")}],
                })],
            )
        }
        "invalid_api_key" => (
            "INVALID_ARGUMENT",
            vec![json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"})],
        ),
        _ => (
            match number {
                403 => "PERMISSION_DENIED",
                404 => "NOT_FOUND",
                503 => "UNAVAILABLE",
                504 => "DEADLINE_EXCEEDED",
                500.. => "INTERNAL",
                _ => "INVALID_ARGUMENT",
            },
            Vec::new(),
        ),
    };
    if let Some(wait) = retry_after {
        details.push(json!({
            "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{wait}s"),
        }));
    }
    json!([{"error": {"code": number, "message": text, "status": name, "details": details}}])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_wraps_a_rate_limit_in_its_own_envelope() {
        let kind = Kind::of_word("rate_limit").unwrap();
        let of = |provider| body(provider, kind, kind.status(provider), None, Some(2.5));
        assert_eq!(of(Provider::OpenAi)["error"]["code"], "rate_limit_exceeded");
        assert_eq!(of(Provider::Azure)["error"]["code"], "429");
        assert_eq!(of(Provider::OpenRouter)["error"]["code"], 429);
        assert_eq!(of(Provider::Anthropic)["error"]["type"], "rate_limit_error");
        assert_eq!(of(Provider::Vllm)["error"]["code"], 429);
        assert_eq!(of(Provider::Gemini)[0]["error"]["details"][1]["retryDelay"], "2.5s");
        assert!(of(Provider::OpenAi)["error"]["message"].as_str().unwrap().ends_with("try again in 2.5s."));
    }

    #[test]
    fn money_and_overload_have_the_status_of_the_provider() {
        let of = |word, provider| Kind::of_word(word).unwrap().status(provider).as_u16();
        assert_eq!(of("insufficient_quota", Provider::OpenAi), 429);
        assert_eq!(of("insufficient_quota", Provider::Anthropic), 402);
        assert_eq!(of("overloaded", Provider::Groq), 498);
        assert_eq!(of("overloaded", Provider::Anthropic), 529);
    }

    #[test]
    fn a_bare_status_finds_its_kind() {
        let of = |number| Kind::of_status(StatusCode::from_u16(number).unwrap()).word;
        assert_eq!(of(429), "rate_limit");
        assert_eq!(of(529), "overloaded");
        assert_eq!(of(520), "server_error");
        assert_eq!(of(418), "invalid_request");
    }
}
