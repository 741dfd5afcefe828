//! Chat completions.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, Body, Piece};
use super::bill::Usage;
use super::reply::{Draft, Ending};

/// What follows the model's name in an answer with one choice.
pub(super) fn tail(text: &str, usage: &Usage, choices: u64) -> String {
    let choices: Vec<Value> = (0..choices)
        .map(|index| {
            json!({
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": null, "annotations": []},
                "logprobs": null,
                "finish_reason": "stop",
            })
        })
        .collect();
    format!(
        r#","choices":{},"usage":{},"service_tier":"default","system_fingerprint":null}}"#,
        Value::from(choices),
        usage.chat()
    )
}

/// The answer that most requests get, without building it anew.
pub(super) fn plain(model: &str, number: u64, created: u64, tail: &str, usage: Usage) -> Answer {
    let mut body = String::with_capacity(tail.len() + model.len() + 128);
    let _ = write!(
        body,
        r#"{{"id":"chatcmpl-{number:016x}","object":"chat.completion","created":{created},"model":"#
    );
    push_json(&mut body, model);
    body.push_str(tail);
    let mut answer = Answer::json(StatusCode::OK, body);
    answer.usage = usage;
    answer
}

fn push_json(text: &mut String, string: &str) {
    if string.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\') {
        text.push('"');
        text.push_str(string);
        text.push('"');
    } else {
        text.push_str(&Value::from(string).to_string());
    }
}

pub(super) fn whole(draft: &Draft<'_>) -> Answer {
    let usage = of_all_choices(draft);
    let tail = tail(&draft.text, &usage, draft.asked.choices);
    plain(draft.model, draft.number, draft.created, &tail, usage)
}

/// Every choice is paid for.
fn of_all_choices(draft: &Draft<'_>) -> Usage {
    Usage {
        completion_tokens: draft.usage.completion_tokens.saturating_mul(draft.asked.choices),
        reasoning_tokens: draft.usage.reasoning_tokens.saturating_mul(draft.asked.choices),
        ..draft.usage
    }
}

pub(super) fn stream(draft: &Draft<'_>) -> Answer {
    let usage = of_all_choices(draft);
    let mut events = Events::new(draft);
    for index in 0..draft.asked.choices {
        events.choice(index, &json!({"role": "assistant", "content": "", "refusal": null}), None, 0);
    }
    for (text, tokens) in draft.pieces() {
        for index in 0..draft.asked.choices {
            events.choice(index, &json!({"content": text}), None, tokens);
        }
    }
    match draft.ending {
        Ending::Full => {
            for index in 0..draft.asked.choices {
                events.choice(index, &json!({}), Some("stop"), 0);
            }
            if draft.asked.include_usage {
                events.push(&format!(r#""choices":[],"usage":{}"#, usage.chat()), 0);
            }
            events.raw("data: [DONE]\n\n".into(), Duration::ZERO, 0);
        }
        Ending::Early => {}
        Ending::Error => {
            let error = json!({"error": {
                "message": "The server had an error while processing the request.",
                "type": "server_error", "param": null, "code": "server_error",
            }});
            events.raw(format!("data: {error}\n\n"), draft.chunk_delay, 0);
        }
    }
    let mut answer =
        Answer::new(StatusCode::OK, "text/event-stream; charset=utf-8", Body::Pieces(events.pieces));
    answer.usage = if draft.ending == Ending::Full {
        usage
    } else {
        Usage {
            completion_tokens: events.tokens,
            reasoning_tokens: usage.reasoning_tokens.min(events.tokens),
            ..usage
        }
    };
    answer.metered = true;
    answer
}

/// Chunks of one stream, which share their head.
struct Events {
    head: String,
    /// `usage` is null on every chunk but the last where it is asked for.
    usage: &'static str,
    delay: Duration,
    pieces: Vec<Piece>,
    tokens: u64,
}

impl Events {
    fn new(draft: &Draft<'_>) -> Self {
        let mut head = format!(
            r#"data: {{"id":"chatcmpl-{:016x}","object":"chat.completion.chunk","created":{},"model":"#,
            draft.number, draft.created
        );
        push_json(&mut head, draft.model);
        head.push_str(r#","service_tier":"default","system_fingerprint":null,"#);
        let usage = if draft.asked.include_usage { r#","usage":null"# } else { "" };
        Self { head, usage, delay: draft.chunk_delay, pieces: Vec::new(), tokens: 0 }
    }

    fn choice(&mut self, index: u64, delta: &Value, finish: Option<&str>, tokens: u64) {
        let finish = Value::from(finish);
        let usage = self.usage;
        let choice = format!(
            r#""choices":[{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}]{usage}"#
        );
        self.push(&choice, tokens);
    }

    fn push(&mut self, rest: &str, tokens: u64) {
        // The first chunk comes with the head.
        let wait = if self.pieces.is_empty() { Duration::ZERO } else { self.delay };
        self.raw(format!("{}{rest}}}\n\n", self.head), wait, tokens);
    }

    fn raw(&mut self, text: String, wait: Duration, tokens: u64) {
        self.tokens += tokens;
        self.pieces.push(Piece { wait, bytes: Bytes::from(text), tokens });
    }
}
