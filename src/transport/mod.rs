//! The seam between the engine and the network: one request out, one answer back, nothing decided.

mod proxy;
pub mod redirect;
pub mod reqwest;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use url::Url;

use crate::error::TransportError;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One request. It borrows what all attempts of a call have in common.
#[derive(Clone)]
pub struct Request<'a> {
    pub method: &'a Method,
    pub url: Cow<'a, Url>,
    pub headers: Cow<'a, HeaderMap>,
    /// How many attempts came before it, where the server is told so.
    pub retry_count: Option<u32>,
    pub body: Bytes,
    /// Made by an SDK, which follows redirects itself and numbers what it sends: this goes out once.
    pub foreign: bool,
}

/// Headers may hold credentials and a query may hold a token, so neither is shown.
impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("host", &self.url.host_str())
            .field("path", &self.url.path())
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The head of an answer and the body still to come.
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Box<dyn Body>,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").field("status", &self.status).finish_non_exhaustive()
    }
}

/// A body in decoded pieces. Dropping it before its end closes the connection.
pub trait Body: Send {
    /// The next piece; `None` at the end.
    fn chunk(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, TransportError>>;
}

pub trait Transport: fmt::Debug + Send + Sync {
    /// Sends `request` and returns when the head of the answer has come.
    ///
    /// Follows the redirects that [`redirect`] allows and nothing else; retries nothing, but for one transparent
    /// resend on a kept-alive connection that turns out to be dead.
    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Response, TransportError>>;
}

/// What makes two connections pools and not one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TransportOptions {
    pub connect_timeout: Duration,
    /// PEM bundle trusted besides the system's roots.
    pub ca_bundle: Option<String>,
    /// Offer HTTP/2 by ALPN. Off by default: one HTTP/2 connection queues at the server's stream limit.
    pub http2: bool,
    /// A proxy for everything; `None` takes the environment's.
    pub proxy: Option<String>,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(5), ca_bundle: None, http2: false, proxy: None }
    }
}
