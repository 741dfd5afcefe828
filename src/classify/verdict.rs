//! What an answer means for the call: its class, and what follows from it.

use std::time::Duration;

/// What kind of answer it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    Success,
    RateLimit,
    /// Money or a long-term allowance is used up; waiting does not help within any call.
    Quota,
    Overloaded,
    ServerError,
    Timeout,
    /// No connection, or it broke.
    Connection,
    Conflict,
    Auth,
    Permission,
    NotFound,
    ContextLength,
    ContentFilter,
    RequestTooLarge,
    /// The model wrote something its own server could not use; another sample may do.
    ModelOutput,
    InvalidRequest,
    /// A 2xx whose body is not what was asked for.
    Malformed,
    /// A 2xx without an answer in it.
    Empty,
    Redirect,
}

impl Class {
    /// Those after which another attempt may be made.
    pub const REPEATABLE: [Self; 9] = [
        Self::RateLimit,
        Self::Overloaded,
        Self::ServerError,
        Self::Timeout,
        Self::Connection,
        Self::Empty,
        Self::Malformed,
        Self::Conflict,
        Self::ModelOutput,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RateLimit => "rate_limit",
            Self::Quota => "quota",
            Self::Overloaded => "overloaded",
            Self::ServerError => "server_error",
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Conflict => "conflict",
            Self::Auth => "auth",
            Self::Permission => "permission",
            Self::NotFound => "not_found",
            Self::ContextLength => "context_length",
            Self::ContentFilter => "content_filter",
            Self::RequestTooLarge => "request_too_large",
            Self::ModelOutput => "model_output",
            Self::InvalidRequest => "invalid_request",
            Self::Malformed => "malformed",
            Self::Empty => "empty",
            Self::Redirect => "redirect",
        }
    }

    /// What to do, and whether it tells of the server's health, where nothing more special is known.
    pub(crate) const fn consequence(self) -> (Retry, Health) {
        match self {
            Self::Success => (Retry::No, Health::Success),
            Self::RateLimit => (Retry::Yes, Health::Neutral),
            Self::Overloaded | Self::ServerError | Self::Timeout | Self::Connection | Self::Empty => {
                (Retry::Yes, Health::Failure)
            }
            Self::Malformed => (Retry::Once, Health::Failure),
            Self::Conflict | Self::ModelOutput => (Retry::Once, Health::Neutral),
            Self::Quota
            | Self::Auth
            | Self::Permission
            | Self::NotFound
            | Self::ContextLength
            | Self::ContentFilter
            | Self::RequestTooLarge
            | Self::InvalidRequest
            | Self::Redirect => (Retry::No, Health::Neutral),
        }
    }
}

/// Whether another attempt can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    Yes,
    No,
    /// It would help, but later than any call waits: fail over, or tell the caller when.
    NotNow,
    /// One more attempt, whatever the policy allows.
    Once,
}

impl Retry {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::NotNow => "no_now",
            Self::Once => "once",
        }
    }
}

/// What shares the trouble: the scope of a cool-down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    Request,
    Key,
    KeyModel,
    Model,
    Org,
    OrgModel,
    Project,
    ProjectModel,
    Deployment,
    Endpoint,
    EndpointModel,
    Tier,
}

impl Scope {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Key => "key",
            Self::KeyModel => "key+model",
            Self::Model => "model",
            Self::Org => "org",
            Self::OrgModel => "org+model",
            Self::Project => "project",
            Self::ProjectModel => "project+model",
            Self::Deployment => "deployment",
            Self::Endpoint => "endpoint",
            Self::EndpointModel => "endpoint+model",
            Self::Tier => "tier",
        }
    }
}

/// What the breaker records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    Success,
    Failure,
    /// Says nothing about the server.
    Neutral,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub class: Class,
    pub retry: Retry,
    pub scope: Scope,
    pub health: Health,
    /// The HTTP status this amounts to: for an error inside a 200 the one it should have had; 0 if there was
    /// no answer.
    pub status: u16,
    /// The wait the server asks for; [`Duration::MAX`] is longer than any horizon.
    pub hint: Option<Duration>,
    /// For people; empty for a success.
    pub message: String,
    pub code: Option<String>,
    pub error_type: Option<String>,
    pub param: Option<String>,
}

impl Verdict {
    /// An answer that needs no reading.
    pub const fn success(status: u16) -> Self {
        Self::plain(status, Class::Success, Scope::Request, String::new())
    }

    pub(crate) const fn plain(status: u16, class: Class, scope: Scope, message: String) -> Self {
        let (retry, health) = class.consequence();
        Self {
            class,
            retry,
            scope,
            health,
            status,
            hint: None,
            message,
            code: None,
            error_type: None,
            param: None,
        }
    }
}
