//! The fault server: an `OpenAI`-compatible upstream on loopback that answers as told, breaks as told, and
//! keeps a ledger of what it served and would bill.
//!
//! JSON in, JSON out. The settings of [`MockServer::start`], all optional:
//!
//! | field | meaning |
//! |---|---|
//! | `seed` | of everything random; 1 |
//! | `port`, `workers` | 0 (one that is free) and 1 thread |
//! | `api_key` | other keys, or none, are answered 401 |
//! | `latency_ms` | number or `[least, most]`, before each answer whose script names no delay |
//! | `chunk_delay_ms` | between the events of a default stream |
//! | `usage` | `{prompt_tokens: 12, completion_tokens: 5, cached_tokens, cache_write_tokens, reasoning_tokens, estimate}` |
//! | `content` | the text of default answers |
//! | `models` | those that exist; without it, all do |
//! | `embedding_dimensions` | 1536 |
//! | `quota` | `{rpm, rpd, tpm, concurrency, announce, style, burst_s, default_max_tokens}` |
//! | `prices` | `{pattern: {input, cached_input, cache_write, output}}`, USD per million tokens |
//! | `ledger` | `{entries: 10000, record_bodies: false, record_headers: [names or "*"]}` |
//! | `script` | what [`MockServer::script`] takes |
//!
//! A script is a list of responses, served in order of arrival, or
//! `{responses, repeat_last, rules, extend}`. A rule is `{match, respond, repeat_last}`, `respond` one response
//! or a list of them; `match` knows `path`, `method`, `header`, `model` (patterns), `stream`, `connection`,
//! `on_connection`, `nth` (number or `[first, last]`), `every`, `between_s`, `probability`. Rules come before
//! the list; the default answer comes after it.
//!
//! A response holds at most one of `body_json`, `body_text`, `body_b64`, `chunks: [{b64, delay_s}]`,
//! `drip: {b64, bytes_per_step, step_s}`, `raw_b64` (exact bytes instead of an HTTP answer). Without one it is the default
//! answer to the request, varied by `content`, `usage` and `chunk_delay_s`; or, for a status of 400 and more or
//! an `error` (with `provider`, `message`, `retry_after_s`), a body in the provider's shape. Besides: `name`
//! (for the ledger), `fault`, `status`, `headers` (with `{http_date:+N}` and `{PORT}`), `delay_s` or
//! `delay_headers_s`, `encoding` (`gzip`, `deflate`), `cut_after_bytes`, `until_close`, `close` (`fin`, `rst`,
//! `hang`, `keep`), `close_after_s`, `on_next_byte` (`fin`, `rst`: what the first byte of the connection's next
//! request does).

mod announce;
mod answer;
mod bill;
mod chat;
mod config;
mod connection;
mod embeddings;
mod encoding;
mod exchange;
mod faults;
mod fields;
mod ledger;
mod quota;
mod reply;
mod request;
mod responses;
mod script;
mod scripted;
mod shapes;
mod shared;
mod wire;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::lock::Mutex;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use self::config::Config;
use self::script::Script;
use self::shared::Shared;
use crate::clock;
use crate::error::ConfigError;

/// A running server. Dropping it stops it.
pub struct MockServer {
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl fmt::Debug for MockServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockServer").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl MockServer {
    /// Starts on 127.0.0.1, on a thread of its own. It listens when this returns.
    pub fn start(config_json: &str) -> Result<Self, ConfigError> {
        let (config, script) = Config::parse(config_json)?;
        let cannot = |what: &str, error: io::Error| {
            ConfigError::new("port", config.port, format!("must be one to {what}: {error}"))
        };
        let runtime = runtime(config.workers).map_err(|error| cannot("serve", error))?;
        let listening = listen(&runtime, config.port);
        let (listener, port) = match listening {
            Ok(listening) => listening,
            Err(error) => {
                // A plain drop may block, which a caller on a runtime of its own must not.
                runtime.shutdown_background();
                return Err(cannot("listen on", error));
            }
        };
        let shared = Arc::new(Shared::new(config, script, port));
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tidegate-mock".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = connection::accept(serving, listener) => {}
                        _ = stopped => {}
                    }
                });
                runtime.shutdown_timeout(Duration::from_secs(1));
            })
            .map_err(|error| ConfigError::new("workers", 1, format!("must be threads to be had: {error}")))?;
        Ok(Self { shared, running: Mutex::new(Some(Running { stop, thread })) })
    }

    pub fn port(&self) -> u16 {
        self.shared.port
    }

    /// The base URL for clients, `/v1` included.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.shared.port)
    }

    /// Replaces the script, or adds to it with `"extend": true`. The seed starts anew for a new script.
    pub fn script(&self, script_json: &str) -> Result<(), ConfigError> {
        let value = fields::json("script", script_json)?;
        let config = &self.shared.config;
        self.shared.set_script(Script::parse(value, config.replies.usage, config.seed)?);
        Ok(())
    }

    /// What was served so far, as JSON: `requests`, `usage`, `bill`, `connections`, `entries`. Times are
    /// seconds since the start. A request has its entry from its arrival, `finish` being null until it ends.
    pub fn ledger(&self) -> String {
        self.shared.ledger.lock().snapshot(clock::now()).to_string()
    }

    /// Forgets what was served so far.
    pub fn reset_ledger(&self) {
        self.shared.ledger.lock().reset();
    }

    /// Closes the port and every connection. Takes a second at most; does nothing the second time.
    pub fn stop(&self) {
        if let Some(running) = self.running.lock().take() {
            // Either fails only if the thread is gone already.
            let _ = running.stop.send(());
            let _ = running.thread.join();
        }
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn runtime(workers: usize) -> io::Result<Runtime> {
    let mut builder = if workers == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(workers).thread_name("tidegate-mock").enable_all().build()
}

fn listen(runtime: &Runtime, port: u16) -> io::Result<(TcpListener, u16)> {
    // Ten thousand clients may connect at once; the kernel caps this by its own setting.
    const BACKLOG: u32 = 16_384;
    let _inside = runtime.enter();
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let listener = socket.listen(BACKLOG)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}
