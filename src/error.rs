//! What can go wrong, in words shared by every level.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use crate::classify::Class;
use crate::event::Digest;

/// A setting that cannot be: which one, what it was, and the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: {rule}")]
pub struct ConfigError {
    /// Dotted path of the setting, as the user writes it: `retry.max_attempts`.
    pub field: String,
    /// The value given, as text. Secrets are passed as `"***"`.
    pub value: String,
    /// The rule as a sentence that says what would be right.
    pub rule: String,
}

impl ConfigError {
    #[expect(clippy::needless_pass_by_value, reason = "takes numbers and texts alike, as they are at hand")]
    pub fn new(field: impl Into<String>, value: impl ToString, rule: impl Into<String>) -> Self {
        Self { field: field.into(), value: value.to_string(), rule: rule.into() }
    }
}

/// Why a call ended without an answer. One field of every error, log line and metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The answer's class is one that no retry can mend.
    NonRetryable,
    /// All attempts were used.
    Attempts,
    /// The next wait would end after `max_elapsed`.
    Elapsed,
    /// The server asked for a longer wait than the call may take.
    HintExceedsBudget,
    /// The retry budget is empty.
    Budget,
    /// The breaker is open.
    BreakerOpen,
    /// No place in the queue before the call's limit.
    AdmissionDeadline,
    /// The request is larger than the limit will ever admit.
    RequestTooLarge,
    /// The caller's total timeout.
    Deadline,
    /// A spend cap would be exceeded.
    SpendCap,
    /// A stream broke off after a part of it had been handed on, which cannot be taken back.
    StreamInterrupted,
    /// The caller cancelled.
    Cancelled,
    /// The engine was shut down.
    Closed,
}

impl Reason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NonRetryable => "non_retryable",
            Self::Attempts => "attempts",
            Self::Elapsed => "elapsed",
            Self::HintExceedsBudget => "hint_exceeds_budget",
            Self::Budget => "budget",
            Self::BreakerOpen => "breaker_open",
            Self::AdmissionDeadline => "admission_deadline",
            Self::RequestTooLarge => "request_too_large",
            Self::Deadline => "deadline",
            Self::SpendCap => "spend_cap",
            Self::StreamInterrupted => "stream_interrupted",
            Self::Cancelled => "cancelled",
            Self::Closed => "closed",
        }
    }
}

/// An attempt that got no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportError {
    pub kind: TransportErrorKind,
    /// For people; holds no secret and no URL with one.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportErrorKind {
    /// Name look-up, connect, or TLS failed: the request never left.
    Connect,
    /// `Timeouts::connect` ran out: the request never left.
    ConnectTimeout,
    /// The connection broke before the first byte of an answer; the server may have acted.
    Reset,
    /// The peer proved that it did not process the request (HTTP/2 GOAWAY, `REFUSED_STREAM`, a stale pooled
    /// connection).
    NotProcessed,
    /// No first byte within `Timeouts::first_byte`; the server may have acted.
    FirstByteTimeout,
    /// A gap within the answer longer than `Timeouts::idle`.
    IdleTimeout,
    /// The whole attempt took longer than `Timeouts::attempt`.
    AttemptTimeout,
    /// The answer broke off after its head.
    Body,
    /// The answer could not be decoded (`content-encoding`), or is larger than the limit.
    Decode,
    /// A redirect that is not followed.
    Redirect,
    /// The request cannot be made from these settings (URL, proxy, header); nothing was sent.
    Request,
}

impl TransportErrorKind {
    /// True if the server may have seen the request and acted on it.
    pub const fn outcome_unknown(self) -> bool {
        !matches!(self, Self::Connect | Self::ConnectTimeout | Self::NotProcessed | Self::Request)
    }

    /// True if the server was at work on an answer, or had given one, when the attempt ended: it may be billed.
    pub const fn left_at_work(self) -> bool {
        matches!(
            self,
            Self::FirstByteTimeout | Self::IdleTimeout | Self::AttemptTimeout | Self::Body | Self::Decode
        )
    }

    pub const fn is_timeout(self) -> bool {
        matches!(
            self,
            Self::ConnectTimeout | Self::FirstByteTimeout | Self::IdleTimeout | Self::AttemptTimeout
        )
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Reset => "reset",
            Self::NotProcessed => "not_processed",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::AttemptTimeout => "attempt_timeout",
            Self::Body => "body",
            Self::Decode => "decode",
            Self::Redirect => "redirect",
            Self::Request => "request",
        }
    }
}

/// What the last attempt, or the gate that refused one, had to say.
#[derive(Debug, Clone)]
pub enum Cause {
    /// An answer that is an error, or a 200 that is not a success; with a status of 0, what a function has raised.
    Answer {
        class: Class,
        status: u16,
        headers: HeaderMap,
        body: Bytes,
        message: String,
        code: Option<String>,
    },
    Transport(TransportError),
    /// Refused here; nothing was sent in the last step.
    Local {
        message: String,
    },
}

/// A logical call that failed. What the user's exception is made of.
#[derive(Debug, Clone)]
pub struct CallError {
    pub reason: Reason,
    pub cause: Cause,
    /// Requests put on the wire.
    pub attempts: u32,
    pub elapsed: Duration,
    /// When it is worth trying again, where somebody said so.
    pub retry_after: Option<Duration>,
    /// Digest of the request, by which the gate knows it again if it is made once more.
    pub request: Option<Digest>,
}

impl CallError {
    /// A call that the engine let go of; there is nothing of it to report.
    pub fn closed(attempts: u32, elapsed: Duration) -> Self {
        let message = String::from("the engine was shut down before the call ended");
        Self::local(Reason::Closed, message, attempts, elapsed)
    }

    /// A call that its caller left.
    pub fn cancelled(attempts: u32, elapsed: Duration) -> Self {
        let message = String::from("the caller cancelled the call before it ended");
        Self::local(Reason::Cancelled, message, attempts, elapsed)
    }

    fn local(reason: Reason, message: String, attempts: u32, elapsed: Duration) -> Self {
        Self { reason, cause: Cause::Local { message }, attempts, elapsed, retry_after: None, request: None }
    }

    /// The class of the answer, the kind of the transport's failure, or the reason of a local refusal.
    pub fn kind(&self) -> &'static str {
        match &self.cause {
            Cause::Answer { class, .. } => class.as_str(),
            Cause::Transport(error) => error.kind.as_str(),
            Cause::Local { .. } => self.reason.as_str(),
        }
    }

    pub fn status(&self) -> Option<u16> {
        match &self.cause {
            Cause::Answer { status, .. } => Some(*status).filter(|status| *status > 0),
            Cause::Transport(_) | Cause::Local { .. } => None,
        }
    }

    pub fn message(&self) -> &str {
        match &self.cause {
            Cause::Answer { message, .. } | Cause::Local { message } => message,
            Cause::Transport(error) => &error.message,
        }
    }
}
