//! placeholder
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    Success,
    RateLimit,
    Quota,
    Overloaded,
    ServerError,
    Timeout,
    Conflict,
    Auth,
    Permission,
    NotFound,
    ContextLength,
    ContentFilter,
    RequestTooLarge,
    ModelOutput,
    InvalidRequest,
    Malformed,
    Empty,
    Redirect,
}
