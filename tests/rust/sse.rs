//! The decoder against golden bodies, at every way to cut them, and against a parser of whole strings.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;
use tidegate::sse::{DEFAULT_LIMIT, Decoder, ServerSentEvent, SseError};

fn vectors(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(folder)
}

fn decode_chunks<'a>(
    limit: usize,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<ServerSentEvent>, SseError> {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.push(Bytes::copy_from_slice(chunk));
        while let Some(event) = decoder.next_event()? {
            events.push(event);
        }
    }
    decoder.finish();
    while let Some(event) = decoder.next_event()? {
        events.push(event);
    }
    Ok(events)
}

fn decode(body: &[u8]) -> Vec<ServerSentEvent> {
    decode_chunks(DEFAULT_LIMIT, [body]).expect("within the limit")
}

/// `body` in chunks that end at `offsets`, which ascend.
fn decode_cut(body: &[u8], offsets: &[usize]) -> Vec<ServerSentEvent> {
    let starts = std::iter::once(0).chain(offsets.iter().copied());
    let ends = offsets.iter().copied().chain([body.len()]);
    decode_chunks(DEFAULT_LIMIT, starts.zip(ends).map(|(start, end)| &body[start..end]))
        .expect("within the limit")
}

fn assert_cuts_change_nothing(name: &str, body: &[u8]) {
    let whole = decode(body);
    for offset in 0..=body.len() {
        assert_eq!(decode_cut(body, &[offset]), whole, "{name} cut at {offset}");
    }
    assert_eq!(decode_cut(body, &(1..body.len()).collect::<Vec<_>>()), whole, "{name} cut at every byte");
}

fn json(event: &ServerSentEvent) -> Option<Value> {
    serde_json::from_slice(&event.data).ok()
}

/// Text, finish reason and usage of a chat stream, as a user would put them together.
fn chat(events: &[ServerSentEvent]) -> (String, Value, Value) {
    let (mut text, mut finish, mut usage) = (String::new(), Value::Null, Value::Null);
    for chunk in events.iter().filter_map(json) {
        text += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if chunk["choices"][0]["finish_reason"].is_string() {
            finish = chunk["choices"][0]["finish_reason"].clone();
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
    }
    (text, finish, usage)
}

fn check_case(case: &Value) {
    let name = case["body_file"].as_str().expect("a body");
    let body = fs::read(vectors("cases").join(name)).expect("readable body");
    assert_cuts_change_nothing(name, &body);
    let events = decode(&body);
    for split in case["splits"].as_array().expect("splits") {
        let offsets: Vec<usize> = split.as_array().map_or_else(
            || (1..body.len()).collect(),
            |offsets| offsets.iter().map(|o| usize::try_from(o.as_u64().unwrap()).unwrap()).collect(),
        );
        assert_eq!(decode_cut(&body, &offsets), events, "{name} cut at {split}");
    }

    let expect = &case["expect"];
    if let Some(expected) = expect["events"].as_array() {
        let got: Vec<Value> = events
            .iter()
            .map(|event| {
                let data = std::str::from_utf8(&event.data).unwrap();
                serde_json::json!({"event": event.event.as_deref().unwrap_or("message"), "data": data})
            })
            .collect();
        assert_eq!(&got, expected, "{name}");
        return;
    }
    let (text, finish, usage) = chat(&events);
    if expect["outcome"] == "error" {
        assert_eq!(expect["delivered_text"], text, "{name}");
        let last = events.last().expect("the cut event is flushed, not lost");
        assert_eq!(json(last), None, "{name}: the caller can see that it was cut");
        return;
    }
    assert_eq!(expect["text"], text, "{name}");
    assert_eq!(expect["finish_reason"], finish, "{name}");
    assert_eq!(expect["usage"], usage, "{name}");
    assert!(events.iter().all(|e| e.data == "[DONE]" || json(e).is_some()), "{name}");
}

#[test]
fn field_cases() {
    let mut seen = 0;
    for entry in fs::read_dir(vectors("cases")).expect("the folder of cases") {
        let path = entry.expect("entry").path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if ["B44_", "B45_", "B47_", "B49_", "B50_"].iter().any(|id| name.starts_with(id))
            && path.extension().is_some_and(|extension| extension == "json")
        {
            check_case(&serde_json::from_slice(&fs::read(&path).unwrap()).unwrap());
            seen += 1;
        }
    }
    assert_eq!(seen, 10);
}

#[test]
fn field_case_large_lines() {
    let case: Value =
        serde_json::from_slice(&fs::read(vectors("cases/B59_large_lines.json")).unwrap()).unwrap();
    let chunk = usize::try_from(case["network_chunk"].as_u64().unwrap()).unwrap();
    let head = r#"data: {"choices":[{"index":0,"delta":{"content":""#;
    let tail = "\"},\"finish_reason\":null}]}\n\n";
    let line = |bytes: usize| format!("{head}{}{tail}", "x".repeat(bytes - head.len() - tail.len() + 2));
    for bytes in case["lines_bytes"].as_array().unwrap() {
        let bytes = usize::try_from(bytes.as_u64().unwrap()).unwrap();
        let body = line(bytes) + "data: [DONE]\n\n";
        let events = decode_chunks(DEFAULT_LIMIT, body.as_bytes().chunks(chunk)).unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].data, body.as_bytes()[6..bytes]);
    }
    let error = decode_chunks(DEFAULT_LIMIT, line(DEFAULT_LIMIT + 1).as_bytes().chunks(chunk)).unwrap_err();
    assert_eq!(error, SseError::TooLarge { limit: DEFAULT_LIMIT });
    assert!(error.to_string().contains(&DEFAULT_LIMIT.to_string()), "{error}");
}

#[test]
fn provider_streams_are_the_same_however_cut() {
    let mut seen = 0;
    for entry in fs::read_dir(vectors("wire/sse")).expect("the folder of streams") {
        let path = entry.expect("entry").path();
        let body = fs::read(&path).unwrap();
        let name = path.display().to_string();
        assert_cuts_change_nothing(&name, &body);
        let events = decode(&body);
        assert_eq!(events, naive(&body), "{name}");
        assert_eq!(events.is_empty(), path.extension().is_some_and(|e| e == "txt"), "{name}");
        seen += 1;
    }
    assert!(seen >= 25);
}

/// The rules applied to the whole body at once, with no thought of chunks, speed or memory.
fn naive(body: &[u8]) -> Vec<ServerSentEvent> {
    let text = String::from_utf8_lossy(body);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Vec::new();
    let mut id = None;
    let mut event = ServerSentEvent::default();
    let mut data: Vec<&str> = Vec::new();
    let mut lines: Vec<&str> = text.split('\n').collect();
    let unended = lines.pop().unwrap_or_default();
    let flush = [unended, ""];
    let complete = lines.len();
    for (number, line) in lines.iter().copied().chain(flush).enumerate() {
        if line.is_empty() {
            // The line after the last line end is no blank line; the one added is, unless there is no data.
            if number == complete {
                continue;
            }
            let joined = data.join("\n");
            let at_end = number > complete;
            let cut_before_its_data = at_end && joined.is_empty();
            if !data.is_empty() && !cut_before_its_data {
                events.push(ServerSentEvent { data: joined.into(), id: id.clone(), ..event });
            }
            data.clear();
            event = ServerSentEvent::default();
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => data.push(value),
            "event" => event.event = (!value.is_empty()).then(|| value.to_owned()),
            "id" if !value.contains('\0') => id = Some(value.to_owned()),
            "retry" if !value.is_empty() && value.chars().all(|c| c.is_ascii_digit()) => {
                if let Ok(millis) = value.parse() {
                    event.retry = Some(std::time::Duration::from_millis(millis));
                }
            }
            _ => {}
        }
    }
    events
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just("data: ".as_bytes()),
        2 => Just("data:".as_bytes()),
        1 => Just("data".as_bytes()),
        2 => Just("event: e".as_bytes()),
        1 => Just("event:".as_bytes()),
        1 => Just("id: 1".as_bytes()),
        1 => Just("id: \0".as_bytes()),
        1 => Just("retry: 10".as_bytes()),
        1 => Just("retry: 99999999999999999999999".as_bytes()),
        1 => Just(": comment".as_bytes()),
        1 => Just("foo: bar".as_bytes()),
        3 => Just("{\"a\": \"b\"}".as_bytes()),
        2 => Just("你🌍".as_bytes()),
        1 => Just("\u{feff}".as_bytes()),
        1 => Just(b"\xe4\xbd".as_slice()),
        1 => Just(b"\xff".as_slice()),
        1 => Just(b" ".as_slice()),
        4 => Just(b"\n".as_slice()),
        2 => Just(b"\r".as_slice()),
        2 => Just(b"\r\n".as_slice()),
        4 => Just(b"\n\n".as_slice()),
    ]
    .prop_map(<[u8]>::to_vec)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn equals_the_naive_parser(
        pieces in prop::collection::vec(piece(), 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let body = pieces.concat();
        let mut offsets: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        offsets.sort_unstable();
        prop_assert_eq!(decode_cut(&body, &offsets), naive(&body));
    }

    #[test]
    fn the_limit_does_not_depend_on_the_cuts(
        pieces in prop::collection::vec(piece(), 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        limit in 0_usize..60,
    ) {
        let body = pieces.concat();
        let mut offsets: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        offsets.sort_unstable();
        offsets.push(body.len());
        let chunks = offsets.iter().scan(0, |start, &end| {
            Some(&body[std::mem::replace(start, end)..end])
        });
        prop_assert_eq!(decode_chunks(limit, chunks), decode_chunks(limit, [body.as_slice()]));
    }
}
