//! The default answers: what the API says when nothing is scripted.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::Answer;
use super::bill::Usage;
use super::request::{Asked, Call, Route};
use super::shapes::{self, Kind, Provider};
use super::{chat, embeddings, responses};
use crate::clock;

/// How a stream of the default answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Ending {
    #[default]
    Full,
    /// Half of the text, then a clean end without the terminal event.
    Early,
    /// Half of the text, then an error event.
    Error,
}

/// What a script changes in a default answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Manner<'a> {
    pub(super) usage: Option<Usage>,
    pub(super) text: Option<&'a str>,
    pub(super) chunk_delay: Option<Duration>,
    pub(super) ending: Ending,
}

impl Manner<'_> {
    fn is_default(&self) -> bool {
        self.usage.is_none() && self.text.is_none()
    }
}

/// Settings of the default answers.
#[derive(Debug)]
pub(super) struct Replies {
    pub(super) usage: Usage,
    /// Prompt tokens are estimated from the request instead.
    pub(super) estimate_prompt: bool,
    pub(super) text: Option<String>,
    pub(super) chunk_delay: Duration,
    /// Empty: any model is served.
    pub(super) models: Vec<String>,
    pub(super) dimensions: usize,
    /// The end of a plain chat answer, rendered once.
    pub(super) chat_tail: String,
}

/// One default answer in the making.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) asked: &'a Asked,
    pub(super) model: &'a str,
    /// Makes ids, unique per server.
    pub(super) number: u64,
    pub(super) created: u64,
    pub(super) usage: Usage,
    pub(super) text: Cow<'a, str>,
    pub(super) chunk_delay: Duration,
    pub(super) ending: Ending,
}

impl Replies {
    pub(super) fn answer(&self, call: &Call, number: u64, manner: &Manner<'_>) -> Answer {
        let Some(method) = call.route.method() else {
            return refusal(
                "not_found",
                &format!("Unknown request URL: {} {}.", call.method, call.uri.path()),
            );
        };
        if call.method != method {
            let message = format!("Not allowed to {} on {}.", call.method, call.uri.path());
            let mut answer = refusal("invalid_request", &message);
            answer.status = StatusCode::METHOD_NOT_ALLOWED;
            return answer;
        }
        match call.route {
            Route::Models => return self.list(),
            Route::Model => return self.one(call.uri.path().rsplit('/').next().unwrap_or("")),
            _ => {}
        }
        let asked = match &call.asked {
            Ok(asked) => asked,
            Err(error) => {
                let message = format!("We could not parse the JSON body of your request: {error}.");
                return refusal("invalid_request", &message);
            }
        };
        let Some(model) = asked.model.as_deref() else {
            return refusal("invalid_request", "You must provide a model parameter.");
        };
        if !self.serves(model) {
            return no_such_model(model);
        }
        if call.route == Route::Chat && !asked.stream && manner.is_default() && self.has_fixed_tail(asked) {
            return chat::plain(model, number, unix_now(), &self.chat_tail, self.usage);
        }
        let draft = self.draft(asked, model, number, manner);
        match (call.route, asked.stream) {
            (Route::Embeddings, _) => embeddings::answer(&draft, &call.body, self.dimensions),
            (Route::Responses, false) => responses::whole(&draft),
            (Route::Responses, true) => responses::stream(&draft),
            (_, false) => chat::whole(&draft),
            (_, true) => chat::stream(&draft),
        }
    }

    fn has_fixed_tail(&self, asked: &Asked) -> bool {
        !self.estimate_prompt && asked.choices == 1
    }

    fn serves(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|known| known == model)
    }

    fn draft<'a>(&'a self, asked: &'a Asked, model: &'a str, number: u64, manner: &Manner<'a>) -> Draft<'a> {
        let mut usage = manner.usage.unwrap_or(self.usage);
        if self.estimate_prompt && manner.usage.is_none() {
            usage.prompt_tokens = asked.prompt_estimate().max(1);
            usage.cached_tokens = usage.cached_tokens.min(usage.prompt_tokens);
            usage.cache_write_tokens =
                usage.cache_write_tokens.min(usage.prompt_tokens - usage.cached_tokens);
        }
        let text = manner.text.or(self.text.as_deref()).map_or_else(
            || default_text(usage.completion_tokens.saturating_sub(usage.reasoning_tokens)).into(),
            Cow::Borrowed,
        );
        Draft {
            asked,
            model,
            number,
            created: unix_now(),
            usage,
            text,
            chunk_delay: manner.chunk_delay.unwrap_or(self.chunk_delay),
            ending: manner.ending,
        }
    }

    fn list(&self) -> Answer {
        let fallback = ["mock-model".to_owned()];
        let names = if self.models.is_empty() { &fallback[..] } else { &self.models };
        let data: Vec<Value> = names.iter().map(|name| model(name)).collect();
        Answer::json(StatusCode::OK, json!({"object": "list", "data": data}).to_string())
    }

    fn one(&self, name: &str) -> Answer {
        if self.serves(name) {
            Answer::json(StatusCode::OK, model(name).to_string())
        } else {
            no_such_model(name)
        }
    }
}

fn model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 1, "owned_by": "mock"})
}

fn no_such_model(name: &str) -> Answer {
    refusal("model_not_found", &format!("The model `{name}` does not exist or you do not have access to it."))
}

/// An error as `OpenAI` words it.
pub(super) fn refusal(word: &str, message: &str) -> Answer {
    let kind = Kind::of_word(word).unwrap_or_else(|| Kind::of_status(StatusCode::BAD_REQUEST));
    let status = kind.status(Provider::OpenAi);
    let body = shapes::body(Provider::OpenAi, kind, status, Some(message), None);
    Answer::json(status, body.to_string())
}

fn unix_now() -> u64 {
    clock::wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Words that are one token each in o200k, so that a client that counts agrees with the usage.
pub(super) fn default_text(tokens: u64) -> String {
    const WORDS: [&str; 18] = [
        "All",
        " systems",
        " work",
        " as",
        " expected",
        " and",
        " the",
        " next",
        " step",
        " is",
        " to",
        " write",
        " the",
        " report",
        " for",
        " your",
        " team",
        " today",
    ];
    let mut text = String::new();
    for word in WORDS.iter().cycle().take(usize::try_from(tokens).unwrap_or(usize::MAX)) {
        if *word == "All" && !text.is_empty() {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

impl Draft<'_> {
    /// The text in the pieces that a stream sends, word by word, with the tokens that each delivers.
    /// Reasoning comes before the first. Halved if the stream is to end early.
    pub(super) fn pieces(&self) -> Vec<(&str, u64)> {
        let text: &str = &self.text;
        let starts: Vec<usize> = std::iter::once(0)
            .chain(text.match_indices(' ').map(|(at, _)| at).filter(|at| *at > 0))
            .chain(std::iter::once(text.len()))
            .collect();
        let count = starts.len().saturating_sub(1) as u64;
        let visible = self.usage.completion_tokens.saturating_sub(self.usage.reasoning_tokens);
        let upto = |index: u64| visible * index / count.max(1);
        let mut pieces: Vec<(&str, u64)> = starts
            .windows(2)
            .zip(0..)
            .filter_map(|(window, index)| {
                let (start, end) = (window.first()?, window.last()?);
                Some((text.get(*start..*end)?, upto(index + 1) - upto(index)))
            })
            .filter(|(piece, _)| !piece.is_empty())
            .collect();
        if let Some((_, tokens)) = pieces.first_mut() {
            *tokens += self.usage.reasoning_tokens;
        }
        if self.ending != Ending::Full {
            pieces.truncate(pieces.len() / 2);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft<'a>(asked: &'a Asked, text: &'a str, completion: u64, reasoning: u64) -> Draft<'a> {
        let usage = Usage { completion_tokens: completion, reasoning_tokens: reasoning, ..Usage::default() };
        Draft {
            asked,
            model: "m",
            number: 1,
            created: 1,
            usage,
            text: text.into(),
            chunk_delay: Duration::ZERO,
            ending: Ending::Full,
        }
    }

    #[test]
    fn pieces_join_to_the_text_and_their_tokens_to_the_usage() {
        let asked = Asked::default();
        for (text, completion, reasoning) in
            [("All systems work", 3, 0), (" a  b\u{e9} c", 20, 7), ("one", 9, 0), ("a b c d", 2, 2)]
        {
            let draft = draft(&asked, text, completion, reasoning);
            let pieces = draft.pieces();
            assert_eq!(pieces.iter().map(|(piece, _)| *piece).collect::<String>(), text);
            assert_eq!(pieces.iter().map(|(_, tokens)| tokens).sum::<u64>(), completion);
        }
        assert!(draft(&asked, "", 3, 0).pieces().is_empty());
    }

    #[test]
    fn the_default_text_has_a_word_per_token() {
        for tokens in [0, 1, 5, 18, 19, 40] {
            assert_eq!(default_text(tokens).split_whitespace().count() as u64, tokens);
        }
    }
}
