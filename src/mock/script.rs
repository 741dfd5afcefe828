//! Which answer a request gets: rules first, then the list in order of arrival, then the default.

use std::sync::Arc;
use std::time::Duration;

use globset::{Glob, GlobMatcher};
use http::{HeaderName, Method};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::bill::Usage;
use super::fields::{Fields, refuse};
use super::request::Call;
use super::scripted::Scripted;
use crate::config::seconds;
use crate::error::ConfigError;

/// Answers served in order.
#[derive(Debug, Default)]
struct Queue {
    responses: Vec<Arc<Scripted>>,
    next: usize,
    /// The last one is served for ever.
    repeat_last: bool,
}

impl Queue {
    fn parse(path: &str, list: Vec<Value>, repeat_last: bool, base: Usage) -> Result<Self, ConfigError> {
        let responses = list
            .into_iter()
            .enumerate()
            .map(|(index, value)| Scripted::parse(&format!("{path}[{index}]"), value, base).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Self { responses, next: 0, repeat_last })
    }

    fn take(&mut self) -> Option<Arc<Scripted>> {
        if let Some(response) = self.responses.get(self.next) {
            self.next += 1;
            return Some(Arc::clone(response));
        }
        self.responses.last().filter(|_| self.repeat_last).cloned()
    }
}

/// What a request must be for a rule to answer it. Conditions that are not given hold.
#[derive(Debug, Default)]
struct Match {
    path: Option<GlobMatcher>,
    method: Option<Method>,
    headers: Vec<(HeaderName, GlobMatcher)>,
    model: Option<GlobMatcher>,
    stream: Option<bool>,
    connection: Option<u64>,
    on_connection: Option<u64>,
    /// First and last, counted from 1 among the requests for which all of the above hold.
    nth: Option<(u64, u64)>,
    every: Option<u64>,
    /// Seconds since the script was set.
    between: Option<(Duration, Duration)>,
    probability: Option<f64>,
}

impl Match {
    fn parse(mut fields: Fields) -> Result<Self, ConfigError> {
        let found = Self {
            path: pattern(&mut fields, "path")?,
            method: fields
                .text("method")?
                .map(|name| {
                    Method::try_from(name.to_ascii_uppercase().as_str())
                        .map_err(|_| ConfigError::new(fields.path("method"), name, "must be a method"))
                })
                .transpose()?,
            headers: headers(&mut fields)?,
            model: pattern(&mut fields, "model")?,
            stream: fields.flag("stream")?,
            connection: fields.count("connection", 1, u64::MAX)?,
            on_connection: fields.count("on_connection", 1, u64::MAX)?,
            nth: fields.range("nth", "must be a number from 1, or [first, last]", |value| {
                value.as_u64().filter(|nth| *nth > 0)
            })?,
            every: fields.count("every", 1, u64::MAX)?,
            between: fields.range("between_s", "must be [start, end] in seconds", |value| {
                seconds("", value.as_f64()?).ok()
            })?,
            probability: fields.share("probability")?,
        };
        fields.finish()?;
        Ok(found)
    }

    fn fits(&self, call: &Call) -> bool {
        let text_fits = |pattern: &Option<GlobMatcher>, text: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| pattern.is_match(text)))
        };
        text_fits(&self.path, Some(call.uri.path()))
            && self.method.as_ref().is_none_or(|method| *method == call.method)
            && text_fits(&self.model, call.model().map(AsRef::as_ref))
            && self.stream.is_none_or(|stream| stream == call.asked.as_ref().is_ok_and(|asked| asked.stream))
            && self.connection.is_none_or(|connection| connection == call.connection)
            && self.on_connection.is_none_or(|number| number == call.on_connection)
            && self.headers.iter().all(|(name, pattern)| {
                let mut values = call.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
                values.any(|value| pattern.is_match(value))
            })
    }
}

#[derive(Debug)]
struct Rule {
    on: Match,
    seen: u64,
    respond: Queue,
}

impl Rule {
    fn parse(path: &str, value: Value, base: Usage) -> Result<Self, ConfigError> {
        let mut fields = Fields::new(path, value)?;
        let on = fields.object("match")?.map(Match::parse).transpose()?.unwrap_or_default();
        let (place, many) = (fields.path("respond"), fields.flag("repeat_last")?);
        let respond = match fields.take("respond") {
            Some(Value::Array(list)) => Queue::parse(&place, list, many.unwrap_or(false), base)?,
            Some(one) => Queue {
                responses: vec![Arc::new(Scripted::parse(&place, one, base)?)],
                next: 0,
                repeat_last: many.unwrap_or(true),
            },
            None => return Err(ConfigError::new(place, "nothing", "must be a response, or a list of them")),
        };
        fields.finish()?;
        Ok(Self { on, seen: 0, respond })
    }

    fn answer(&mut self, call: &Call, elapsed: Duration, rng: &mut StdRng) -> Option<Arc<Scripted>> {
        if !self.on.fits(call) {
            return None;
        }
        self.seen += 1;
        let hit = self.on.nth.is_none_or(|(first, last)| (first..=last).contains(&self.seen))
            && self.on.every.is_none_or(|every| self.seen.is_multiple_of(every))
            && self.on.between.is_none_or(|(start, end)| start <= elapsed && elapsed < end)
            && self.on.probability.is_none_or(|probability| rng.random_bool(probability));
        if hit { self.respond.take() } else { None }
    }
}

#[derive(Debug)]
pub(super) struct Script {
    rules: Vec<Rule>,
    list: Queue,
    rng: StdRng,
    /// Adds to the script that is there instead of replacing it.
    pub(super) extend: bool,
}

impl Script {
    /// A list of responses, or `{"responses": […], "repeat_last": …, "rules": […], "extend": …}`.
    pub(super) fn parse(value: Value, base: Usage, seed: u64) -> Result<Self, ConfigError> {
        let (value, list_path) = match value {
            Value::Array(list) => (json!({"responses": list}), "script"),
            other => (other, "script.responses"),
        };
        let mut fields = Fields::new("script", value)?;
        let repeat_last = fields.flag("repeat_last")?.unwrap_or(false);
        let responses = fields.list("responses")?.unwrap_or_default();
        let list = Queue::parse(list_path, responses, repeat_last, base)?;
        let rules = fields
            .list("rules")?
            .unwrap_or_default()
            .into_iter()
            .enumerate()
            .map(|(index, value)| Rule::parse(&format!("script.rules[{index}]"), value, base))
            .collect::<Result<_, _>>()?;
        let extend = fields.flag("extend")?.unwrap_or(false);
        fields.finish()?;
        Ok(Self { rules, list, rng: StdRng::seed_from_u64(seed), extend })
    }

    pub(super) fn add(&mut self, more: Self) {
        self.rules.extend(more.rules);
        self.list.responses.extend(more.list.responses);
        self.list.repeat_last = more.list.repeat_last;
    }

    pub(super) fn choose(&mut self, call: &Call, elapsed: Duration) -> Option<Arc<Scripted>> {
        let Self { rules, list, rng, .. } = self;
        rules.iter_mut().find_map(|rule| rule.answer(call, elapsed, rng)).or_else(|| list.take())
    }
}

fn pattern(fields: &mut Fields, name: &'static str) -> Result<Option<GlobMatcher>, ConfigError> {
    fields.text(name)?.map(|text| glob(&fields.path(name), &text)).transpose()
}

fn glob(path: &str, text: &str) -> Result<GlobMatcher, ConfigError> {
    match Glob::new(text) {
        Ok(glob) => Ok(glob.compile_matcher()),
        Err(error) => Err(refuse(path, &text.into(), &format!("must be a pattern: {error}"))),
    }
}

fn headers(fields: &mut Fields) -> Result<Vec<(HeaderName, GlobMatcher)>, ConfigError> {
    let Some(given) = fields.object("header")? else { return Ok(Vec::new()) };
    let path = given.path("");
    given
        .into_entries()
        .map(|(name, value)| {
            let place = format!("{path}{name}");
            let text = value.as_str().ok_or_else(|| refuse(&place, &value, "must be a pattern"))?;
            let header = HeaderName::try_from(&name)
                .map_err(|_| ConfigError::new(&place, &name, "must be a header's name"))?;
            Ok((header, glob(&place, text)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn script(value: Value) -> Script {
        Script::parse(value, Usage::default(), 7).unwrap()
    }

    fn call(model: &str, header: &str) -> Call {
        let request = http::Request::post("/v1/chat/completions").header("x-test-call", header).body(());
        let (parts, ()) = request.unwrap().into_parts();
        Call::new(parts, Bytes::from(json!({"model": model}).to_string()), 1, 1)
    }

    fn played(script: &mut Script, call: &Call) -> Option<String> {
        script.choose(call, Duration::ZERO).map(|scripted| scripted.played.to_string())
    }

    #[test]
    fn the_list_is_served_once_or_its_last_for_ever() {
        let list = json!([{"name": "a"}, {"name": "b"}]);
        let mut once = script(list.clone());
        let of = |script: &mut Script| (0..4).map(|_| played(script, &call("m", ""))).collect::<Vec<_>>();
        assert_eq!(of(&mut once), [Some("a".into()), Some("b".into()), None, None]);
        let mut always = script(json!({"responses": list, "repeat_last": true}));
        assert_eq!(of(&mut always).last().unwrap().as_deref(), Some("b"));
    }

    #[test]
    fn rules_come_first_and_keep_their_own_count() {
        let mut script = script(json!({
            "rules": [
                {"match": {"header": {"x-test-call": "A"}}, "respond": [{"name": "a1"}, {"name": "a2"}]},
                {"match": {"model": "gpt-*", "every": 2}, "respond": {"name": "every"}},
                {"match": {"model": "gpt-*", "nth": [1, 3]}, "respond": {"name": "nth"}},
            ],
            "responses": [{"name": "list"}],
        }));
        let gpt: Vec<_> = (0..5).map(|_| played(&mut script, &call("gpt-x", "B"))).collect();
        let words: Vec<_> = gpt.iter().map(|word| word.as_deref().unwrap_or("default")).collect();
        // The third rule counts the requests that the second one left.
        assert_eq!(words, ["nth", "every", "nth", "every", "nth"]);
        let other: Vec<_> = (0..4).map(|_| played(&mut script, &call("m", "A"))).collect();
        let words: Vec<_> = other.iter().map(|word| word.as_deref().unwrap_or("default")).collect();
        assert_eq!(words, ["a1", "a2", "list", "default"]);
    }

    #[test]
    fn chance_is_seeded() {
        let run = |seed| {
            let rules = json!({"rules": [{"match": {"probability": 0.5}, "respond": {"name": "hit"}}]});
            let mut script = Script::parse(rules, Usage::default(), seed).unwrap();
            (0..64).map(|_| played(&mut script, &call("m", "")).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!(run(1).contains(&true) && run(1).contains(&false));
    }

    #[test]
    fn an_outage_has_a_start_and_an_end() {
        let mut script =
            script(json!({"rules": [{"match": {"between_s": [10, 40]}, "respond": {"status": 503}}]}));
        let mut at = |seconds| script.choose(&call("m", ""), Duration::from_secs(seconds)).is_some();
        assert_eq!([at(9), at(10), at(39), at(40)], [false, true, true, false]);
    }

    #[test]
    fn errors_name_the_rule() {
        let field = |value| Script::parse(value, Usage::default(), 1).unwrap_err().field;
        assert_eq!(field(json!([{"fault": "x"}])), "script[0].fault");
        assert_eq!(field(json!({"responses": [{"status": "x"}]})), "script.responses[0].status");
        assert_eq!(field(json!({"rules": [{}]})), "script.rules[0].respond");
        assert_eq!(
            field(json!({"rules": [{"match": {"probability": 2}, "respond": {}}]})),
            "script.rules[0].match.probability"
        );
        assert_eq!(
            field(json!({"rules": [{"match": {"nth": 0}, "respond": {}}]})),
            "script.rules[0].match.nth"
        );
        assert_eq!(field(json!({"rulez": []})), "script.rulez");
    }
}
