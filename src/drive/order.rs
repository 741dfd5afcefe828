//! What a caller asks for, and what it gets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::call::RetryMade;
use crate::config::Timeouts;
use crate::error::CallError;
use crate::event::{SpanId, Tags, TraceId};
use crate::money::Pico;
use crate::usage::Usage;

/// What the caller asks for.
#[derive(Debug, Clone)]
pub struct Order {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub timeouts: Timeouts,
    pub max_attempts: u32,
    pub tags: Option<Arc<Tags>>,
    /// What to tell the user, as this is a substitute for the call that they made.
    pub notice: Option<Arc<str>>,
    /// `None` draws one.
    pub trace_id: Option<TraceId>,
    /// `None` draws one.
    pub span_id: Option<SpanId>,
}

/// An answer that is a success.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Where the figures of a bill come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UsageSource {
    Reported,
    Unknown,
}

impl UsageSource {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Unknown => "unknown",
        }
    }
}

/// How the call went; present for successes and failures alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallInfo {
    pub trace_id: TraceId,
    pub model: Arc<str>,
    pub attempts: u32,
    pub retries: Vec<RetryMade>,
    pub usage: Option<Usage>,
    pub usage_source: UsageSource,
    /// `None` where the price is not known.
    pub cost: Option<Pico>,
    pub queue: Duration,
    pub latency: Duration,
    /// Of the attempt that was answered.
    pub first_byte: Option<Duration>,
    /// What to tell the user where the answer is a substitute for the one that was asked for.
    pub notice: Option<Arc<str>>,
}

#[derive(Debug)]
pub struct Outcome {
    pub result: Result<Reply, Box<CallError>>,
    pub info: CallInfo,
}
