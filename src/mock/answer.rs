//! An answer before it is on the wire: what is sent, how it is framed, and how the connection ends.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;

use super::bill::Usage;
use super::ledger::Finish;

/// How a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    Fin,
    Rst,
}

/// What becomes of the connection after the last byte that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// As the framing asks: kept open if the answer is complete, closed if not.
    Auto,
    /// Kept open whatever was sent.
    Keep,
    Close(Close),
    /// Nothing more, until the client leaves.
    Hang,
    /// Complete and kept open; the first byte of the next request closes it, unanswered.
    OnNextByte(Close),
    /// Complete and kept open for this long.
    Later(Duration, Close),
}

/// Where the body stops short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Half,
    After(usize),
}

impl Cut {
    pub(super) fn of(self, length: usize) -> usize {
        match self {
            Self::Half => length / 2,
            Self::After(bytes) => bytes.min(length),
        }
    }
}

/// A part of a body that goes out in a write of its own.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    /// Pause before it.
    pub(super) wait: Duration,
    pub(super) bytes: Bytes,
    /// Completion tokens that it delivers.
    pub(super) tokens: u64,
}

#[derive(Debug)]
pub(super) enum Body {
    Whole(Bytes),
    Pieces(Vec<Piece>),
    /// Exact bytes instead of an HTTP answer.
    Raw(Bytes),
    /// No byte at all.
    Silence,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// Billed for the whole answer.
    pub(super) usage: Usage,
    /// Pieces count their tokens, so that an answer that stops short is billed for what was sent.
    pub(super) metered: bool,
    /// Pause before the head.
    pub(super) delay: Duration,
    pub(super) cut: Option<Cut>,
    /// The end of the connection ends the body: neither length nor chunks.
    pub(super) until_close: bool,
    pub(super) end: End,
    /// Parts with no pause between them share a write.
    pub(super) merge: bool,
    /// What the ledger calls it; `None` for a default answer.
    pub(super) played: Option<Arc<str>>,
}

impl Answer {
    pub(super) fn new(status: StatusCode, content_type: &'static str, body: Body) -> Self {
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        Self {
            status,
            headers,
            body,
            usage: Usage::default(),
            metered: false,
            delay: Duration::ZERO,
            cut: None,
            until_close: false,
            end: End::Auto,
            merge: true,
            played: None,
        }
    }

    #[must_use]
    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(super) fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::new(status, "application/json", Body::Whole(body.into()))
    }

    /// True if hyper can send it: at once, whole, and by the rules.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.body, Body::Whole(_))
            && self.delay.is_zero()
            && self.end == End::Auto
            && self.cut.is_none()
            && !self.until_close
            && !self.headers.contains_key(CONTENT_LENGTH)
            && !self.headers.contains_key(TRANSFER_ENCODING)
            && !self.headers.contains_key(CONNECTION)
    }

    /// The answer for hyper. Only for a plain one.
    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let body = if let Body::Whole(body) = self.body { body } else { Bytes::new() };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }

    /// The answer as writes and waits. `keep_alive` is what the client asked for.
    pub(super) fn into_play(self, keep_alive: bool, wall: SystemTime) -> Play {
        let mut play =
            Play { writes: Vec::new(), last: Last::Keep, finish: Finish::Complete, merge: self.merge };
        play.push(self.delay, 0, Vec::new());
        let mut complete = match &self.body {
            Body::Silence => false,
            Body::Raw(bytes) => {
                play.push(Duration::ZERO, 0, bytes.to_vec());
                raw_is_complete(bytes)
            }
            Body::Whole(bytes) => {
                let length = bytes.len();
                let pieces = vec![Piece { bytes: bytes.clone(), ..Piece::default() }];
                self.frame(&mut play, pieces, Some(length), keep_alive, wall)
            }
            Body::Pieces(pieces) => self.frame(&mut play, pieces.clone(), None, keep_alive, wall),
        };
        let raw = matches!(self.body, Body::Raw(_));
        complete |= raw && self.end == End::Keep;
        play.last = match self.end {
            End::Keep => Last::Keep,
            End::Auto if complete && (raw || (keep_alive && !self.until_close)) => Last::Keep,
            End::Auto => Last::Close(Close::Fin),
            End::Close(close) => Last::Close(close),
            End::Hang => Last::Hang,
            End::OnNextByte(close) => Last::OnNextByte(close),
            End::Later(wait, close) => Last::Later(wait, close),
        };
        play.finish = match play.last {
            Last::Close(Close::Rst) => Finish::Reset,
            _ if complete => Finish::Complete,
            _ => Finish::Cut,
        };
        play
    }

    /// Writes head and body; says whether the client gets a complete message.
    fn frame(
        &self,
        play: &mut Play,
        mut pieces: Vec<Piece>,
        length: Option<usize>,
        keep_alive: bool,
        wall: SystemTime,
    ) -> bool {
        let total: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        let stated = self.headers.get(CONTENT_LENGTH).map(|value| value.to_str().ok()?.parse::<usize>().ok());
        let bodiless = matches!(self.status.as_u16(), 100..200 | 204 | 304);
        let chunked = length.is_none() && stated.is_none() && !self.until_close && !bodiless;
        let mut head = self.head(wall);
        if chunked && !self.headers.contains_key(TRANSFER_ENCODING) {
            head.extend_from_slice(b"transfer-encoding: chunked\r\n");
        } else if let Some(length) = length
            && stated.is_none()
            && !self.until_close
            && !bodiless
        {
            let _ = write!(head, "content-length: {length}\r\n");
        }
        if (!keep_alive || self.until_close) && !self.headers.contains_key(CONNECTION) {
            head.extend_from_slice(b"connection: close\r\n");
        }
        head.extend_from_slice(b"\r\n");
        play.push(Duration::ZERO, 0, head);
        let whole = self.cut.is_none_or(|cut| {
            shorten(&mut pieces, cut);
            cut.of(total) == total
        });
        for piece in pieces {
            play.push(
                piece.wait,
                piece.tokens,
                if chunked { chunk(&piece.bytes) } else { piece.bytes.into() },
            );
        }
        let closes_itself = matches!(self.end, End::Auto | End::OnNextByte(_) | End::Later(..));
        if chunked && whole && closes_itself {
            play.append(b"0\r\n\r\n");
        }
        whole && (!chunked || closes_itself) && stated.is_none_or(|stated| stated == Some(total))
    }

    fn head(&self, wall: SystemTime) -> Vec<u8> {
        let mut head = Vec::with_capacity(256);
        let reason = self.status.canonical_reason().unwrap_or("Unknown");
        let _ = write!(head, "HTTP/1.1 {} {reason}\r\n", self.status.as_u16());
        for (name, value) in &self.headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        if !self.headers.contains_key(DATE) {
            let _ = write!(head, "date: {}\r\n", httpdate::fmt_http_date(wall));
        }
        head
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut framed = Vec::with_capacity(bytes.len() + 16);
    let _ = write!(framed, "{:x}\r\n", bytes.len());
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    framed
}

/// Keeps what comes before the cut; a piece that stops short delivers no tokens.
pub(super) fn shorten(pieces: &mut Vec<Piece>, cut: Cut) {
    let mut kept = cut.of(pieces.iter().map(|piece| piece.bytes.len()).sum());
    pieces.retain_mut(|piece| {
        let take = kept.min(piece.bytes.len());
        if take < piece.bytes.len() {
            piece.bytes.truncate(take);
            piece.tokens = 0;
        }
        kept -= take;
        take > 0
    });
}

/// True if exact bytes end where their own content-length says.
fn raw_is_complete(bytes: &[u8]) -> bool {
    let Some(head_end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(bytes.get(..head_end).unwrap_or_default()).to_ascii_lowercase();
    let value_of = |name: &str| {
        head.lines()
            .find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name))
            .map(|(_, value)| value.trim())
    };
    value_of("connection") != Some("close")
        && value_of("content-length").and_then(|value| value.parse().ok()) == Some(bytes.len() - head_end - 4)
}

/// An answer as the wire sees it.
#[derive(Debug)]
pub(super) struct Play {
    pub(super) writes: Vec<Write>,
    pub(super) last: Last,
    /// What the ledger says if the client stays to the end.
    pub(super) finish: Finish,
    merge: bool,
}

#[derive(Debug)]
pub(super) struct Write {
    pub(super) wait: Duration,
    pub(super) bytes: Vec<u8>,
    pub(super) tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Keep,
    Close(Close),
    Hang,
    OnNextByte(Close),
    Later(Duration, Close),
}

impl Play {
    fn push(&mut self, wait: Duration, tokens: u64, bytes: Vec<u8>) {
        match self.writes.last_mut() {
            // An empty write is a pause, which what follows makes its own.
            Some(last) if wait.is_zero() && (self.merge || last.bytes.is_empty()) => {
                last.bytes.extend_from_slice(&bytes);
                last.tokens += tokens;
            }
            _ => self.writes.push(Write { wait, bytes, tokens }),
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Some(last) = self.writes.last_mut() {
            last.bytes.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(answer: Answer) -> (String, Last, Finish) {
        let play = answer.into_play(true, SystemTime::UNIX_EPOCH);
        let bytes: Vec<u8> = play.writes.iter().flat_map(|write| write.bytes.clone()).collect();
        let text = String::from_utf8(bytes).unwrap();
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        (body, play.last, play.finish)
    }

    fn pieces() -> Body {
        Body::Pieces(
            ["ab", "cde"].map(|text| Piece { bytes: text.into(), tokens: 1, ..Piece::default() }).into(),
        )
    }

    #[test]
    fn pieces_are_chunks_and_only_a_complete_answer_is_terminated() {
        let answer = Answer::new(StatusCode::OK, "text/plain", pieces());
        assert_eq!(sent(answer), ("2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n".into(), Last::Keep, Finish::Complete));
        let mut cut = Answer::new(StatusCode::OK, "text/plain", pieces());
        cut.cut = Some(Cut::After(3));
        cut.end = End::Close(Close::Rst);
        assert_eq!(sent(cut), ("2\r\nab\r\n1\r\nc\r\n".into(), Last::Close(Close::Rst), Finish::Reset));
    }

    #[test]
    fn a_body_shorter_than_its_stated_length_closes_the_connection() {
        let mut answer = Answer::json(StatusCode::OK, "{}");
        answer.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("10"));
        assert!(!answer.is_plain());
        assert_eq!(sent(answer), ("{}".into(), Last::Close(Close::Fin), Finish::Cut));
    }

    #[test]
    fn raw_bytes_keep_the_connection_only_if_their_length_is_right() {
        let raw = |text: &str| {
            let mut answer = Answer::json(StatusCode::OK, "");
            answer.body = Body::Raw(text.to_owned().into());
            sent(answer).1
        };
        assert_eq!(raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), Last::Keep);
        assert_eq!(raw("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}"), Last::Close(Close::Fin));
        assert_eq!(
            raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
            Last::Close(Close::Fin)
        );
        assert_eq!(raw("\0garbage"), Last::Close(Close::Fin));
    }

    #[test]
    fn tokens_of_a_piece_that_stops_short_are_not_delivered() {
        let Body::Pieces(mut list) = pieces() else { unreachable!() };
        shorten(&mut list, Cut::After(3));
        assert_eq!(list.iter().map(|piece| piece.tokens).sum::<u64>(), 1);
    }
}
