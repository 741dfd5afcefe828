//! The life of a connection: hyper reads requests and sends plain answers; everything else is played by hand
//! on the same socket, which then goes back to hyper.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::lock::Mutex;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::answer::Play;
use super::exchange::Exchange;
use super::ledger::Finish;
use super::request::Call;
use super::shared::Shared;
use super::wire::{self, Sent, Wire};
use crate::clock;

pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                // Chunks that are written apart must arrive apart.
                let _ = socket.set_nodelay(true);
                tokio::spawn(serve(Arc::clone(&shared), socket));
            }
            // Out of file descriptors: the next accept would fail at once, too.
            Err(_) => clock::sleep_until(clock::now() + Duration::from_millis(10)).await,
        }
    }
}

/// Tells the ledger of the connection's end, also if the server is stopped in its midst.
struct Open {
    shared: Arc<Shared>,
    id: u64,
    by_client: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.ledger.lock().closed(self.id, self.by_client, clock::now());
    }
}

async fn serve(shared: Arc<Shared>, socket: TcpStream) {
    let id = shared.ledger.lock().opened(clock::now());
    let mut open = Open { shared: Arc::clone(&shared), id, by_client: false };
    let desk =
        Arc::new(Desk { shared, connection: id, served: AtomicU64::new(0), to_play: Mutex::new(None) });
    let mut wire = Wire::new(socket);
    loop {
        let (returned, to_play) = read_and_answer(&desk, wire).await;
        wire = returned;
        let Some((play, exchange)) = to_play else { break };
        if !wire::play(&mut wire, play, exchange).await {
            break;
        }
    }
    open.by_client = wire.client_left();
}

/// Runs hyper until an answer is to be played by hand, or the connection is over.
async fn read_and_answer(desk: &Arc<Desk>, wire: Wire) -> (Wire, Option<(Play, Exchange)>) {
    let mut http = http1::Builder::new().serve_connection(TokioIo::new(wire), Handler(Arc::clone(desk)));
    let (over, to_play) = poll_fn(|context| {
        let over = http.poll_without_shutdown(context).is_ready();
        match desk.to_play.lock().take() {
            None if !over => Poll::Pending,
            to_play => Poll::Ready((over, to_play)),
        }
    })
    .await;
    let parts = http.into_parts();
    let mut wire = parts.io.into_inner();
    wire.unread(&parts.read_buf);
    match to_play {
        Some((_, exchange)) if over => {
            exchange.finish(Finish::ClientClosed, Sent::default());
            (wire, None)
        }
        to_play => (wire, to_play),
    }
}

/// Where a connection's requests are answered.
struct Desk {
    shared: Arc<Shared>,
    connection: u64,
    served: AtomicU64,
    /// The answer that hyper cannot send.
    to_play: Mutex<Option<(Play, Exchange)>>,
}

struct Handler(Arc<Desk>);

impl Service<Request<Incoming>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    // Polled through `poll_without_shutdown`, which wants a future that can move.
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let desk = Arc::clone(&self.0);
        Box::pin(async move { Ok(desk.answer(request).await) })
    }
}

impl Desk {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let arrived = clock::now();
        let on_connection = self.served.fetch_add(1, Ordering::Relaxed) + 1;
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            // The client broke off; no one reads this.
            let mut response = Response::default();
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return response;
        };
        let call = Call::new(parts, body.to_bytes(), self.connection, on_connection);
        let mut exchange = Exchange::begin(&self.shared, &call, arrived);
        let answer = self.shared.answer(&call, &mut exchange, arrived);
        exchange.answered(&answer);
        if answer.is_plain() || call.method == Method::HEAD {
            exchange.finish(Finish::Complete, Sent { started: true, tokens: 0 });
            return answer.into_response();
        }
        let play = answer.into_play(call.keep_alive, clock::wall());
        *self.to_play.lock() = Some((play, exchange));
        std::future::pending().await
    }
}
