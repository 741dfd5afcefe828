//! The transport on reqwest: the only file that names it.

use std::error::Error as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tower_layer::Layer;
use tower_service::Service;

use super::{Body, BoxFuture, Request, Response, Transport, TransportOptions, proxy, redirect};
use crate::error::{ConfigError, TransportError, TransportErrorKind};

/// TCP keepalive. Network address translators drop a silent flow after one to six minutes, and a long
/// generation is silent.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Idle connections are closed before the usual 60 s of load balancers.
const POOL_IDLE: Duration = Duration::from_secs(50);

/// A connection pool.
#[derive(Debug)]
pub struct ReqwestTransport {
    client: reqwest::Client,
    connects: Arc<AtomicU64>,
}

impl ReqwestTransport {
    pub fn new(options: &TransportOptions) -> Result<Self, ConfigError> {
        // A second installation fails and changes nothing: whoever was first, a provider is there.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connects = Arc::new(AtomicU64::new(0));
        let mut builder = reqwest::Client::builder()
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .pool_idle_timeout(POOL_IDLE)
            .connector_layer(CountConnects(Arc::clone(&connects)));
        if !options.http2 {
            builder = builder.http1_only();
        }
        if let Some(proxy) = &options.proxy {
            let proxy = reqwest::Proxy::all(proxy::parse(proxy)?.as_str()).map_err(|error| {
                let rule = format!("must be the URL of a proxy ({})", error.without_url());
                ConfigError::new("proxy", "***", rule)
            })?;
            builder = builder.proxy(proxy);
        } else if proxies_are_off() {
            builder = builder.no_proxy();
        }
        if let Some(path) = &options.ca_bundle {
            builder = builder.tls_certs_merge(certificates(path)?);
        }
        let client = builder
            .build()
            .map_err(|error| ConfigError::new("transport", "TLS", describe(&error.without_url())))?;
        Ok(Self { client, connects })
    }

    async fn send_once(&self, request: &Request<'_>) -> Result<reqwest::Response, reqwest::Error> {
        const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
        let url = request.url.clone().into_owned();
        let mut outgoing = reqwest::Request::new(request.method.clone(), url);
        *outgoing.headers_mut() = request.headers.clone().into_owned();
        if let Some(count) = request.retry_count {
            outgoing.headers_mut().insert(RETRY_COUNT, HeaderValue::from(count));
        }
        if !request.body.is_empty() {
            *outgoing.body_mut() = Some(reqwest::Body::from(request.body.clone()));
        }
        self.client.execute(outgoing).await
    }

    /// Sends once more if the connection was an old one that proved dead before a byte came back.
    async fn send_on_a_live_connection(
        &self,
        request: &Request<'_>,
    ) -> Result<reqwest::Response, TransportError> {
        let connects = self.connects.load(Ordering::Relaxed);
        let error = match self.send_once(request).await {
            Ok(response) => return Ok(response),
            Err(error) => transport_error(error),
        };
        // No connection was opened meanwhile, so ours came from the pool.
        let pooled = connects > 0 && connects == self.connects.load(Ordering::Relaxed);
        if error.kind == TransportErrorKind::NotProcessed
            || error.kind == TransportErrorKind::Reset && pooled && !request.foreign
        {
            return self.send_once(request).await.map_err(transport_error);
        }
        Err(error)
    }

    async fn send_following(&self, mut request: Request<'_>) -> Result<Response, TransportError> {
        for _ in 0..=redirect::MAX_HOPS {
            let mut response = self.send_on_a_live_connection(&request).await?;
            let status = response.status().as_u16();
            if !request.foreign
                && (300..400).contains(&status)
                && let Some(next) = redirect::follow(&request, status, response.headers())
            {
                request = next;
                continue;
            }
            let headers = std::mem::take(response.headers_mut());
            return Ok(Response { status, headers, body: Box::new(ReqwestBody(response)) });
        }
        Err(TransportError {
            kind: TransportErrorKind::Redirect,
            message: format!(
                "more than {} redirects, the last one to {}",
                redirect::MAX_HOPS,
                redirect::origin(&request.url)
            ),
        })
    }
}

impl Transport for ReqwestTransport {
    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Response, TransportError>> {
        Box::pin(self.send_following(request))
    }
}

struct ReqwestBody(reqwest::Response);

impl Body for ReqwestBody {
    fn chunk(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, TransportError>> {
        Box::pin(async { self.0.chunk().await.map_err(transport_error) })
    }
}

/// `NO_PROXY=*` is for every host; the library takes it for names alone, not for addresses.
fn proxies_are_off() -> bool {
    let list = ["NO_PROXY", "no_proxy"].into_iter().find_map(|name| std::env::var(name).ok());
    list.is_some_and(|list| list.split(',').any(|host| host.trim() == "*"))
}

fn certificates(path: &str) -> Result<Vec<reqwest::Certificate>, ConfigError> {
    let pem = fs::read(path).map_err(|error| {
        ConfigError::new("ca_bundle", path, format!("must be a readable file of PEM certificates ({error})"))
    })?;
    let certificates = reqwest::Certificate::from_pem_bundle(&pem)
        .map_err(|_| ConfigError::new("ca_bundle", path, "must hold certificates in PEM form"))?;
    if certificates.is_empty() {
        return Err(ConfigError::new("ca_bundle", path, "must hold at least one certificate in PEM form"));
    }
    Ok(certificates)
}

/// Classifies by the types in the chain of sources; texts change between versions.
fn transport_error(error: reqwest::Error) -> TransportError {
    let error = error.without_url();
    let message = describe(&error);
    let kind = if error.is_builder() {
        TransportErrorKind::Request
    } else if error.is_connect() {
        if error.is_timeout() { TransportErrorKind::ConnectTimeout } else { TransportErrorKind::Connect }
    } else if error.is_decode() {
        // Decompression stands before the connection and passes its failures on as its own.
        if from_connection(&error) { TransportErrorKind::Body } else { TransportErrorKind::Decode }
    } else if never_processed(&error) {
        TransportErrorKind::NotProcessed
    } else if error.is_body() {
        TransportErrorKind::Body
    } else {
        TransportErrorKind::Reset
    };
    TransportError { kind, message }
}

/// A graceful GOAWAY or `REFUSED_STREAM` from the peer (RFC 9113, section 8.7), or a request that hyper gave up
/// before it was written.
fn never_processed(error: &reqwest::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<hyper::Error>()
            && error.is_canceled()
        {
            return true;
        }
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let reason = error.reason();
            return error.is_remote()
                && (error.is_go_away() && reason == Some(h2::Reason::NO_ERROR)
                    || error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM));
        }
        source = cause.source();
    }
    false
}

fn from_connection(error: &reqwest::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.is::<hyper::Error>() || cause.is::<h2::Error>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// The chain of causes as one line, outermost first, without repetitions.
fn describe(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let part = cause.downcast_ref::<io::Error>().map_or_else(|| cause.to_string(), ToString::to_string);
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = cause.source();
    }
    text
}

#[derive(Debug, Clone)]
struct CountConnects(Arc<AtomicU64>);

impl<S> Layer<S> for CountConnects {
    type Service = CountedConnects<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountedConnects { inner: Arc::new(inner), connects: Arc::clone(&self.0) }
    }
}

/// Shared, because the library clones its connector several times per request, and a connector that has a layer
/// is a tree of boxes. A connection is opened seldom.
#[derive(Debug)]
struct CountedConnects<S> {
    inner: Arc<S>,
    connects: Arc<AtomicU64>,
}

impl<S> Clone for CountedConnects<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), connects: Arc::clone(&self.connects) }
    }
}

impl<S, R> Service<R> for CountedConnects<S>
where
    S: Service<R> + Clone + Send + Sync + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.connects.fetch_add(1, Ordering::Relaxed);
        let mut inner = (*self.inner).clone();
        Box::pin(async move {
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            inner.call(request).await
        })
    }
}
