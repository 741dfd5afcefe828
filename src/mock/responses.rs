//! The Responses API.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, Body, Piece};
use super::bill::Usage;
use super::reply::{Draft, Ending};

fn message_id(draft: &Draft<'_>) -> String {
    format!("msg_{:016x}", draft.number)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn message(draft: &Draft<'_>, status: &str, content: &[Value]) -> Value {
    json!({
        "type": "message", "id": message_id(draft), "status": status, "role": "assistant", "content": content,
    })
}

fn response(draft: &Draft<'_>, status: &str, output: &[Value]) -> Value {
    let done = status == "completed";
    json!({
        "id": format!("resp_{:016x}", draft.number),
        "object": "response",
        "created_at": draft.created,
        "status": status,
        "background": false,
        "error": if status == "failed" {
            json!({"code": "server_error", "message": "The server had an error while processing the request."})
        } else {
            Value::Null
        },
        "incomplete_details": null,
        "instructions": null,
        "max_output_tokens": draft.asked.max_tokens,
        "metadata": {},
        "model": draft.model,
        "output": output,
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null},
        "service_tier": "default",
        "store": true,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": if done { draft.usage.responses() } else { Value::Null },
        "user": null,
    })
}

pub(super) fn whole(draft: &Draft<'_>) -> Answer {
    let output = [message(draft, "completed", &[part(&draft.text)])];
    let mut answer = Answer::json(StatusCode::OK, response(draft, "completed", &output).to_string());
    answer.usage = draft.usage;
    answer
}

pub(super) fn stream(draft: &Draft<'_>) -> Answer {
    let mut events = Events { delay: draft.chunk_delay, pieces: Vec::new(), tokens: 0 };
    let place = json!({"item_id": message_id(draft), "output_index": 0, "content_index": 0});
    let started = response(draft, "in_progress", &[]);
    events.push("response.created", &json!({"response": started}), 0);
    events.push("response.in_progress", &json!({"response": started}), 0);
    let item = message(draft, "in_progress", &[]);
    events.push("response.output_item.added", &json!({"output_index": 0, "item": item}), 0);
    events.push("response.content_part.added", &with(&place, "part", part("")), 0);
    for (text, tokens) in draft.pieces() {
        let mut delta = with(&place, "delta", text.into());
        delta = with(&delta, "logprobs", json!([]));
        events.push("response.output_text.delta", &delta, tokens);
    }
    match draft.ending {
        Ending::Full => {
            let text: &str = &draft.text;
            let done = with(&with(&place, "text", text.into()), "logprobs", json!([]));
            events.push("response.output_text.done", &done, 0);
            events.push("response.content_part.done", &with(&place, "part", part(text)), 0);
            let item = message(draft, "completed", &[part(text)]);
            events.push("response.output_item.done", &json!({"output_index": 0, "item": item}), 0);
            events.push("response.completed", &json!({"response": response(draft, "completed", &[item])}), 0);
        }
        Ending::Early => {}
        Ending::Error => {
            events.push("response.failed", &json!({"response": response(draft, "failed", &[])}), 0);
        }
    }
    let body = Body::Pieces(events.pieces);
    let mut answer = Answer::new(StatusCode::OK, "text/event-stream; charset=utf-8", body);
    answer.usage = if draft.ending == Ending::Full {
        draft.usage
    } else {
        Usage {
            completion_tokens: events.tokens,
            reasoning_tokens: draft.usage.reasoning_tokens.min(events.tokens),
            ..draft.usage
        }
    };
    answer.metered = true;
    answer
}

fn with(object: &Value, name: &str, value: Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.insert(name.to_owned(), value);
    }
    object
}

struct Events {
    delay: Duration,
    pieces: Vec<Piece>,
    tokens: u64,
}

impl Events {
    fn push(&mut self, kind: &str, fields: &Value, tokens: u64) {
        let event = with(&with(fields, "type", kind.into()), "sequence_number", self.pieces.len().into());
        // The first event comes with the head.
        let wait = if self.pieces.is_empty() { Duration::ZERO } else { self.delay };
        self.tokens += tokens;
        let bytes = Bytes::from(format!("event: {kind}\ndata: {event}\n\n"));
        self.pieces.push(Piece { wait, bytes, tokens });
    }
}
