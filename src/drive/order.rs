//! What a caller asks for, and what it gets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::call::RetryMade;
use crate::config::Timeouts;
use crate::engine::Engine;
use crate::error::CallError;
use crate::event::{Digest, SpanId, Tags, TraceId};
use crate::money::Pico;
use crate::stream::Form;
use crate::usage::Usage;

/// How the caller wants the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Deliver {
    /// In one piece, also if the server sends events.
    #[default]
    Whole,
    /// As it comes. An answer in JSON is one piece all the same, and so is an error.
    Stream(Form),
}

/// Whether a stream is complete only if it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamEndRule {
    /// It must, unless its server has shown that it never does.
    #[default]
    Learned,
    Required,
    /// A stream that closes properly is complete.
    Optional,
}

/// What the caller asks for.
#[derive(Debug, Clone)]
pub struct Order {
    pub method: Method,
    pub url: Url,
    pub headers: Arc<HeaderMap>,
    pub body: Bytes,
    /// Whether `x-stainless-retry-count` tells the server which attempt it is.
    pub numbered: bool,
    /// Made by an SDK, complete: redirects are the SDK's, and so is what it accepts as an answer.
    pub foreign: bool,
    pub timeouts: Timeouts,
    pub max_attempts: u32,
    pub tags: Option<Arc<Tags>>,
    /// A request that has failed just before, and how many attempts it took: if it is this one, somebody
    /// retries around the gate.
    pub failed_before: Option<(Digest, u32)>,
    /// The guarded call that this one is made in.
    pub parent: Option<SpanId>,
    /// What to tell the user, as this is a substitute for the call that they made.
    pub notice: Option<Arc<str>>,
    /// `None` draws one.
    pub trace_id: Option<TraceId>,
    /// `None` draws one.
    pub span_id: Option<SpanId>,
    pub deliver: Deliver,
    pub stream_end: StreamEndRule,
}

impl Order {
    /// Equal for equal requests to one gate: method, URL and body.
    pub fn digest(&self, engine: &Engine) -> Digest {
        engine.digest((self.method.as_str(), self.url.as_str(), self.body.as_ref()))
    }
}

/// An answer that is a success.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Where the figures of a bill come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UsageSource {
    /// The server stated them.
    Reported,
    /// Not all of them: the rest is what was sent and received, counted here.
    Estimated,
    #[default]
    Unknown,
}

impl UsageSource {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Estimated => "estimated",
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
    /// From the call to the first content of a stream.
    #[serde(default)]
    pub first_chunk: Option<Duration>,
}

#[derive(Debug)]
pub struct Outcome {
    pub result: Result<Reply, Box<CallError>>,
    pub info: CallInfo,
}
