//! The socket under a connection, and answers played on it by hand: late, slow, cut, reset, hanging, raw.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::answer::{Close, Last, Play};
use super::exchange::Exchange;
use super::ledger::Finish;
use crate::clock::{self, Instant};

/// A client that sends on without waiting for answers is read ahead this far.
const READ_AHEAD: usize = 1 << 20;
/// After a FIN the client has this long to close its side; a socket closed with unread bytes would turn the
/// FIN into a reset.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Wire {
    socket: TcpStream,
    /// Bytes of later requests that were read while an answer was played.
    unread: BytesMut,
    client_left: bool,
}

impl Wire {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, unread: BytesMut::new(), client_left: false }
    }

    /// True once the client has closed or reset its side.
    pub(super) fn client_left(&self) -> bool {
        self.client_left
    }

    /// Gives back bytes that were read but belong to the next request.
    pub(super) fn unread(&mut self, bytes: &Bytes) {
        if !bytes.is_empty() {
            let later = self.unread.split();
            self.unread.extend_from_slice(bytes);
            self.unread.extend_from_slice(&later);
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await.inspect_err(|_| self.client_left = true)
    }

    /// Completes when the client closes or resets its side.
    async fn client_leaves(&mut self) {
        while self.unread.len() < READ_AHEAD {
            if !matches!(self.socket.read_buf(&mut self.unread).await, Ok(1..)) {
                self.client_left = true;
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn client_leaves_before(&mut self, deadline: Instant) -> bool {
        tokio::select! {
            biased;
            () = self.client_leaves() => true,
            () = clock::sleep_until(deadline) => false,
        }
    }

    /// Completes at the next byte of the client's; false if it leaves instead.
    async fn next_byte(&mut self) -> bool {
        if self.unread.is_empty() && !matches!(self.socket.read_buf(&mut self.unread).await, Ok(1..)) {
            self.client_left = true;
        }
        !self.client_left
    }

    async fn close(&mut self, close: Close) {
        match close {
            Close::Rst => {
                // Without it the socket would close with a FIN, which is not what was asked for; the client
                // sees the difference, and no one else could act on the error.
                let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
            }
            Close::Fin => {
                let _ = self.socket.shutdown().await;
                let deadline = clock::now() + LINGER;
                let mut rest = BytesMut::new();
                let drain = async {
                    while matches!(self.socket.read_buf(&mut rest).await, Ok(1..)) {
                        rest.clear();
                    }
                };
                tokio::select! {
                    () = drain => {}
                    () = clock::sleep_until(deadline) => {}
                }
            }
        }
    }
}

/// Plays an answer to its end. True if the connection can carry another request.
pub(super) async fn play(wire: &mut Wire, play: Play, exchange: Exchange) -> bool {
    let mut exchange = Some(exchange);
    let mut finish = |finish: Finish, sent: Sent| {
        if let Some(exchange) = exchange.take() {
            exchange.finish(finish, sent);
        }
    };
    let mut sent = Sent::default();
    let count = play.writes.len();
    for (index, write) in play.writes.into_iter().enumerate() {
        if !write.wait.is_zero() && wire.client_leaves_before(clock::now() + write.wait).await {
            finish(Finish::ClientClosed, sent);
            return false;
        }
        let before = sent;
        sent.tokens += write.tokens;
        sent.started |= !write.bytes.is_empty();
        if index + 1 == count && play.finish == Finish::Complete && play.last != Last::Hang {
            // Before the write: a client that has read the end must find it in the ledger.
            finish(Finish::Complete, sent);
        }
        if wire.send(&write.bytes).await.is_err() {
            finish(Finish::ClientClosed, before);
            return false;
        }
    }
    let close = match play.last {
        Last::Keep => {
            finish(play.finish, sent);
            return true;
        }
        Last::Hang => {
            wire.client_leaves().await;
            finish(Finish::ClientClosed, sent);
            return false;
        }
        Last::OnNextByte(close) => {
            if !wire.next_byte().await {
                return false;
            }
            close
        }
        Last::Later(wait, close) => {
            if wire.client_leaves_before(clock::now() + wait).await {
                return false;
            }
            close
        }
        Last::Close(close) => close,
    };
    finish(play.finish, sent);
    wire.close(close).await;
    false
}

/// How far an answer came.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    /// At least one byte.
    pub(super) started: bool,
    pub(super) tokens: u64,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.has_remaining() {
            let ready = self.unread.len().min(buf.remaining());
            buf.put_slice(&self.unread.split_to(ready));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let outcome = ready!(Pin::new(&mut self.socket).poll_read(cx, buf));
        self.client_left |= outcome.is_err() || buf.filled().len() == before;
        Poll::Ready(outcome)
    }
}

/// No vectored writes: to copy a small body behind its head costs less than a `writev`.
impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
