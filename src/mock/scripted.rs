//! One scripted answer: read from JSON, made into an answer to a request.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use super::answer::{Answer, Body, Close, Cut, End, Piece};
use super::bill::Usage;
use super::encoding::Encoding;
use super::faults;
use super::fields::{Fields, refuse};
use super::reply::{Ending, Manner, Replies};
use super::request::Call;
use super::shapes::{self, Kind, Provider};
use crate::clock;
use crate::error::ConfigError;

/// What the body is.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// The API's own answer to the request, or for a status of an error the error that goes with it.
    Default,
    Error(&'static Kind),
    Whole(Bytes, &'static str),
    Pieces(Vec<Piece>, &'static str),
    Raw(Bytes),
    Silence,
}

#[derive(Debug, Clone)]
pub(super) struct Scripted {
    pub(super) status: Option<StatusCode>,
    /// Values may hold `{http_date:+N}` and `{PORT}`.
    headers: Vec<(HeaderName, String)>,
    pub(super) content: Content,
    provider: Provider,
    message: Option<String>,
    retry_after: Option<f64>,
    text: Option<String>,
    usage: Option<Usage>,
    delay: Duration,
    chunk_delay: Option<Duration>,
    encoding: Option<Encoding>,
    pub(super) cut: Option<Cut>,
    /// The cut body is all there is: the message is complete, its content is not.
    pub(super) truncate: bool,
    until_close: bool,
    pub(super) end: End,
    pub(super) ending: Ending,
    pub(super) played: Arc<str>,
}

impl Scripted {
    /// `base` gives the usage figures that are not stated.
    pub(super) fn parse(path: &str, value: Value, base: Usage) -> Result<Self, ConfigError> {
        let mut fields = Fields::new(path, value)?;
        let mut scripted = Self {
            status: None,
            headers: Vec::new(),
            content: Content::Default,
            provider: fields.choice("provider", Provider::WORDS)?.unwrap_or(Provider::OpenAi),
            message: fields.text("message")?,
            retry_after: fields.seconds("retry_after_s")?.map(|wait| wait.as_secs_f64()),
            text: fields.text("content")?,
            usage: None,
            delay: Duration::ZERO,
            chunk_delay: fields.seconds("chunk_delay_s")?,
            encoding: fields.choice("encoding", Encoding::WORDS)?,
            cut: None,
            truncate: false,
            until_close: false,
            end: End::Auto,
            ending: Ending::Full,
            played: "script".into(),
        };
        if let Some((word, fault)) = fields.choice("fault", faults::FAULTS)? {
            fault(&mut scripted);
            scripted.played = word.into();
        }
        if let Some(status) = fields.count("status", 200, 999)? {
            scripted.status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        }
        scripted.headers = headers(&mut fields)?;
        if let Some(kind) = fields.choice("error", &Kind::words())? {
            scripted.content = Content::Error(kind);
            scripted.played = kind.word.into();
        }
        scripted.read_body(&mut fields)?;
        if let Some(mut usage) = fields.object("usage")? {
            scripted.usage = Some(Usage::parse(&mut usage, base)?);
            usage.finish()?;
        }
        let (delay, alias) = (fields.seconds("delay_s")?, fields.seconds("delay_headers_s")?);
        scripted.delay = delay.unwrap_or_default() + alias.unwrap_or_default();
        scripted.read_end(&mut fields)?;
        if let Some(name) = fields.text("name")? {
            scripted.played = name.into();
        }
        fields.finish()?;
        Ok(scripted)
    }

    fn read_body(&mut self, fields: &mut Fields) -> Result<(), ConfigError> {
        let mut given = Vec::new();
        if let Some(json) = fields.any("body_json") {
            self.usage = Usage::stated_in(&json);
            given.push(("body_json", Content::Whole(json.to_string().into(), "application/json")));
        }
        if let Some(text) = fields.text("body_text")? {
            given.push(("body_text", Content::Whole(text.into(), "text/plain; charset=utf-8")));
        }
        if let Some(bytes) = base64(fields, "body_b64")? {
            given.push(("body_b64", Content::Whole(bytes, "application/octet-stream")));
        }
        if let Some(list) = fields.list("chunks")? {
            let place = fields.path("chunks");
            let chunks = list.into_iter().enumerate().map(|(index, value)| {
                let mut chunk = Fields::new(format!("{place}[{index}]"), value)?;
                let bytes = base64(&mut chunk, "b64")?
                    .ok_or_else(|| ConfigError::new(chunk.path("b64"), "nothing", "must be given"))?;
                let wait = chunk.seconds("delay_s")?.unwrap_or_default();
                chunk.finish()?;
                Ok(Piece { wait, bytes, tokens: 0 })
            });
            given.push(("chunks", Content::Pieces(chunks.collect::<Result<_, _>>()?, "text/event-stream")));
        }
        if let Some(drip) = fields.object("drip")? {
            given.push(("drip", Content::Pieces(drops(drip)?, "application/json")));
        }
        if let Some(bytes) = base64(fields, "raw_b64")? {
            given.push(("raw_b64", Content::Raw(bytes)));
        }
        if let [(first, _), (second, _), ..] = given.as_slice() {
            return Err(ConfigError::new(
                fields.path(second),
                "given",
                format!("cannot stand beside {first}"),
            ));
        }
        if let Some((_, content)) = given.pop() {
            self.content = content;
        }
        Ok(())
    }

    fn read_end(&mut self, fields: &mut Fields) -> Result<(), ConfigError> {
        const CLOSES: &[(&str, Close)] = &[("fin", Close::Fin), ("rst", Close::Rst)];
        const ENDS: &[(&str, End)] = &[
            ("fin", End::Close(Close::Fin)),
            ("rst", End::Close(Close::Rst)),
            ("hang", End::Hang),
            ("keep", End::Keep),
        ];
        if let Some(bytes) = fields.count("cut_after_bytes", 0, u64::MAX)? {
            self.cut = Some(Cut::After(usize::try_from(bytes).unwrap_or(usize::MAX)));
        }
        self.until_close |= fields.flag("until_close")?.unwrap_or(false);
        let close = fields.choice("close", ENDS)?;
        if let Some(end) = close {
            self.end = end;
        }
        if let Some(wait) = fields.seconds("close_after_s")? {
            let close = match close {
                None => Close::Fin,
                Some(End::Close(close)) => close,
                Some(_) => {
                    let rule = "goes with close fin or rst only";
                    return Err(ConfigError::new(fields.path("close_after_s"), wait.as_secs_f64(), rule));
                }
            };
            self.end = End::Later(wait, close);
        }
        if let Some(close_on_byte) = fields.choice("on_next_byte", CLOSES)? {
            if self.end != End::Auto {
                return Err(ConfigError::new(
                    fields.path("on_next_byte"),
                    "given",
                    "cannot stand beside another end of the connection",
                ));
            }
            self.end = End::OnNextByte(close_on_byte);
        }
        Ok(())
    }

    pub(super) fn answer(&self, call: &Call, number: u64, replies: &Replies, port: u16) -> Answer {
        let mut answer = self.content(call, number, replies);
        if self.truncate {
            truncate(&mut answer.body, self.cut.unwrap_or(Cut::Half));
        } else {
            answer.cut = self.cut;
        }
        if let Some(encoding) = self.encoding {
            encoding.apply(&mut answer.body);
            answer.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        }
        if let Some(wait) = self.retry_after.and_then(|wait| HeaderValue::try_from(wait.to_string()).ok()) {
            answer.headers.insert(RETRY_AFTER, wait);
        }
        for (name, _) in &self.headers {
            answer.headers.remove(name);
        }
        for (name, value) in &self.headers {
            if let Ok(value) = HeaderValue::try_from(expand(value, port, clock::wall())) {
                answer.headers.append(name, value);
            }
        }
        answer.delay = self.delay;
        answer.until_close = self.until_close;
        answer.end = self.end;
        answer.played = Some(Arc::clone(&self.played));
        answer
    }

    fn content(&self, call: &Call, number: u64, replies: &Replies) -> Answer {
        let mut answer = match &self.content {
            Content::Default => match self.status {
                Some(status) if status.as_u16() >= 400 => self.error(Kind::of_status(status)),
                Some(status) if status != StatusCode::OK => {
                    let mut empty = Answer::json(status, "");
                    empty.headers.remove(CONTENT_TYPE);
                    empty
                }
                _ => {
                    let manner = Manner {
                        usage: self.usage,
                        text: self.text.as_deref(),
                        chunk_delay: self.chunk_delay,
                        ending: self.ending,
                    };
                    let streams = call.asked.as_ref().is_ok_and(|asked| asked.stream);
                    if self.ending == Ending::Error && !streams {
                        return self
                            .error(Kind::of_status(StatusCode::INTERNAL_SERVER_ERROR))
                            .with_status(StatusCode::OK);
                    }
                    return replies.answer(call, number, &manner);
                }
            },
            Content::Error(kind) => self.error(kind),
            Content::Whole(bytes, kind) => Answer::new(StatusCode::OK, kind, Body::Whole(bytes.clone())),
            Content::Pieces(pieces, kind) => {
                let mut answer = Answer::new(StatusCode::OK, kind, Body::Pieces(pieces.clone()));
                answer.merge = false;
                answer
            }
            Content::Raw(bytes) => {
                let mut answer = Answer::json(StatusCode::OK, "");
                answer.status = raw_status(bytes).unwrap_or(StatusCode::OK);
                answer.body = Body::Raw(bytes.clone());
                answer
            }
            Content::Silence => {
                let mut answer = Answer::json(StatusCode::OK, "");
                answer.body = Body::Silence;
                answer
            }
        };
        if let Some(status) = self.status {
            answer.status = status;
        }
        answer.usage = self.usage.unwrap_or_default();
        answer
    }

    fn error(&self, kind: &Kind) -> Answer {
        let status = self.status.unwrap_or_else(|| kind.status(self.provider));
        let body = shapes::body(self.provider, kind, status, self.message.as_deref(), self.retry_after);
        Answer::json(status, body.to_string())
    }
}

/// The status that raw bytes state.
fn raw_status(bytes: &[u8]) -> Option<StatusCode> {
    StatusCode::from_bytes(bytes.strip_prefix(b"HTTP/1.1 ").or(bytes.strip_prefix(b"HTTP/1.0 "))?.get(..3)?)
        .ok()
}

fn truncate(body: &mut Body, cut: Cut) {
    match body {
        Body::Whole(bytes) => bytes.truncate(cut.of(bytes.len())),
        Body::Pieces(pieces) => super::answer::shorten(pieces, cut),
        Body::Raw(_) | Body::Silence => {}
    }
}

fn headers(fields: &mut Fields) -> Result<Vec<(HeaderName, String)>, ConfigError> {
    let mut list = Vec::new();
    let Some(given) = fields.object("headers")? else { return Ok(list) };
    let path = given.path("");
    for (name, value) in given.into_entries() {
        let place = format!("{path}{name}");
        let header = HeaderName::try_from(&name)
            .map_err(|_| ConfigError::new(&place, &name, "must be a header's name"))?;
        let values = match value {
            Value::Array(values) => values,
            one => vec![one],
        };
        for value in values {
            let text = match &value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Err(refuse(&place, &value, "must be a string, or a list of strings")),
            };
            if HeaderValue::try_from(text.as_str()).is_err() {
                return Err(refuse(&place, &value, "must be a value that a header can have; see raw_b64"));
            }
            list.push((header.clone(), text));
        }
    }
    Ok(list)
}

fn base64(fields: &mut Fields, name: &'static str) -> Result<Option<Bytes>, ConfigError> {
    let Some(text) = fields.text(name)? else { return Ok(None) };
    match STANDARD.decode(&text) {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(error) => Err(refuse(fields.path(name), &text.into(), &format!("must be base64: {error}"))),
    }
}

/// A body that drips: `bytes_per_step` every `step_s`.
fn drops(mut drip: Fields) -> Result<Vec<Piece>, ConfigError> {
    let mut rest = base64(&mut drip, "b64")?
        .ok_or_else(|| ConfigError::new(drip.path("b64"), "nothing", "must be given"))?;
    let step = drip.count("bytes_per_step", 1, u64::MAX)?.unwrap_or(1);
    let wait = drip.seconds("step_s")?.unwrap_or_default();
    drip.finish()?;
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let bytes = rest.split_to(step.min(rest.len()));
        pieces.push(Piece { wait, bytes, tokens: 0 });
    }
    Ok(pieces)
}

/// Replaces `{PORT}` and `{http_date:+N}`, N seconds from now or before it.
fn expand(template: &str, port: u16, wall: SystemTime) -> String {
    let text = template.replace("{PORT}", &port.to_string());
    let Some((before, rest)) = text.split_once("{http_date:") else { return text };
    let Some((offset, after)) = rest.split_once('}') else { return text };
    let Ok(offset) = offset.parse::<i64>() else { return text };
    let distance = Duration::from_secs(offset.unsigned_abs());
    let date = if offset < 0 { wall.checked_sub(distance) } else { wall.checked_add(distance) };
    format!("{before}{}{after}", httpdate::fmt_http_date(date.unwrap_or(wall)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::UNIX_EPOCH;

    fn refused(value: Value) -> ConfigError {
        Scripted::parse("script[0]", value, Usage::default()).unwrap_err()
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (value, field) in [
            (json!({"statuss": 200}), "script[0].statuss"),
            (json!({"status": 42}), "script[0].status"),
            (json!({"fault": "flood"}), "script[0].fault"),
            (json!({"close": "soon"}), "script[0].close"),
            (json!({"delay_s": -1}), "script[0].delay_s"),
            (json!({"body_text": "", "body_json": {}}), "script[0].body_text"),
            (json!({"chunks": [{"b64": "YQ=="}, {"b64": "?"}]}), "script[0].chunks[1].b64"),
            (json!({"drip": {"b64": "", "bytes_per_step": 0}}), "script[0].drip.bytes_per_step"),
            (json!({"headers": {"a b": "c"}}), "script[0].headers.a b"),
            (json!({"headers": {"a": "b\nc"}}), "script[0].headers.a"),
            (json!({"usage": {"prompt_tokens": 1, "cached_tokens": 2}}), "script[0].usage.cached_tokens"),
            (json!({"close": "hang", "close_after_s": 1}), "script[0].close_after_s"),
            (json!({"close": "rst", "on_next_byte": "fin"}), "script[0].on_next_byte"),
            (json!("reset"), "script[0]"),
        ] {
            assert_eq!(refused(value.clone()).field, field, "{value}");
        }
    }

    #[test]
    fn dates_are_counted_from_now() {
        let wall = UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(expand("{http_date:+3}", 1, wall), "Thu, 01 Jan 1970 00:01:43 GMT");
        assert_eq!(expand("{http_date:-40}", 1, wall), "Thu, 01 Jan 1970 00:01:00 GMT");
        assert_eq!(expand("http://127.0.0.1:{PORT}/", 80, wall), "http://127.0.0.1:80/");
    }

    #[test]
    fn a_drip_loses_nothing() {
        let drip = json!({"b64": STANDARD.encode("abcdefg"), "bytes_per_step": 3, "step_s": 1});
        let pieces = drops(Fields::new("", drip).unwrap()).unwrap();
        let parts: Vec<&[u8]> = pieces.iter().map(|piece| piece.bytes.as_ref()).collect();
        assert_eq!(parts, [&b"abc"[..], b"def", b"g"]);
    }
}
