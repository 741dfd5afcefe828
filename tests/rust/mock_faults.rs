//! Each fault as a client sees it on its socket.

use std::io::Read as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::mock_client::{Client, End, Seen, ledger, start, until};

/// Long enough for a byte on loopback to have come, were there one.
const MOMENT: Duration = Duration::from_millis(100);

fn play(response: &Value) -> Seen {
    let server = start(&json!({"script": [response]}));
    Client::new(&server).chat(&json!({}))
}

#[test]
fn silent_faults_send_no_byte() {
    for (fault, end, finish) in
        [("reset", End::Reset, "reset"), ("close", End::Eof, "cut"), ("hang", End::Silence, "client_closed")]
    {
        let server = start(&json!({"script": [{"fault": fault}]}));
        let mut client = Client::new(&server);
        client.start_chat(&json!({}));
        if end == End::Silence {
            until(&server, "the request", |seen| seen["requests"]["in_flight"] == 1);
            client.patience(MOMENT);
        }
        assert_eq!(client.end(), (end, Vec::new()), "{fault}");
        client.leave();
        let seen = until(&server, "the end", |seen| seen["entries"][0]["finish"].is_string());
        let entry = &seen["entries"][0];
        assert_eq!((&entry["finish"], &entry["played"]), (&json!(finish), &json!(fault)));
        assert_eq!((&entry["status"], &entry["usage"]["prompt_tokens"]), (&Value::Null, &json!(0)));
    }
}

#[test]
fn half_a_body_ends_in_a_fin_a_reset_or_nothing() {
    let whole = play(&json!({})).body.len();
    for (fault, end) in [("cut", End::Eof), ("cut_reset", End::Reset), ("stall", End::Silence)] {
        let server = start(&json!({"script": [{"fault": fault}]}));
        let mut client = Client::new(&server);
        client.start_chat(&json!({}));
        let mut seen = client.head().unwrap();
        if end == End::Silence {
            client.patience(MOMENT);
        }
        let (how, bytes) = client.end();
        seen.body = bytes;
        assert_eq!(how, end, "{fault}");
        let stated: usize = seen.header("content-length").unwrap().parse().unwrap();
        assert_eq!((stated, seen.body.len() - (whole / 2)), (whole, 0), "{fault}");
    }
}

#[test]
fn a_stream_that_is_cut_has_no_last_chunk_and_bills_what_it_sent() {
    let server =
        start(&json!({"script": [{"fault": "cut"}, {"fault": "cut_reset", "chunk_delay_s": 0.001}]}));
    for (end, finish) in [(End::Eof, "cut"), (End::Reset, "reset")] {
        let seen = Client::new(&server).chat(&json!({"stream": true}));
        assert_eq!(seen.end, end);
        assert!(!seen.text().contains("[DONE]"));
        let words = seen
            .text()
            .split("\n\n")
            .filter(|event| event.ends_with('}') && event.contains("\"delta\":{\"content\":\""))
            .filter(|event| !event.contains("role"))
            .count();
        let last = ledger(&server)["entries"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["finish"], finish);
        assert_eq!(last["usage"]["completion_tokens"], words, "{}", seen.text());
        assert!(words > 0 && words < 5);
        assert_eq!(last["usage"]["prompt_tokens"], 12);
    }
}

#[test]
fn complete_messages_that_are_no_answer() {
    let truncated = play(&json!({"fault": "truncate"}));
    assert_eq!((truncated.status, truncated.end), (200, End::Complete));
    let error = serde_json::from_slice::<Value>(&truncated.body).unwrap_err();
    assert!(error.is_eof());
    assert_eq!(play(&json!({"fault": "empty"})).body.len(), 0);
    assert_eq!(play(&json!({"fault": "blank"})).text().trim(), "");
    assert!(serde_json::from_slice::<Value>(&play(&json!({"fault": "malformed"})).body).is_err());
    let html = play(&json!({"fault": "html_502"}));
    assert_eq!((html.status, html.header("content-type")), (502, Some("text/html; charset=utf-8")));
    assert!(play(&json!({"fault": "html_200"})).text().starts_with("<!DOCTYPE"));
    let error = play(&json!({"fault": "error_200"}));
    assert_eq!((error.status, &error.json()["error"]["type"]), (200, &json!("server_error")));
    let server = start(&json!({"script": [{"fault": "garbage"}]}));
    let mut client = Client::new(&server);
    client.start_chat(&json!({}));
    let (end, bytes) = client.end();
    assert_eq!((end, &bytes[..2]), (End::Eof, &b"\0\x01"[..]));
}

#[test]
fn streams_that_end_wrongly_end_cleanly_on_the_wire() {
    let server = start(
        &json!({"script": [{"fault": "no_done"}, {"fault": "stream_error"}, {"fault": "stream_error"}]}),
    );
    let mut client = Client::new(&server);
    let early = client.chat(&json!({"stream": true}));
    assert_eq!(early.end, End::Complete);
    assert!(early.events().iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    let failed = client.chat(&json!({"stream": true})).events();
    assert_eq!(failed.last().unwrap()["error"]["code"], "server_error");
    client.send("POST", "/v1/responses", &[], r#"{"model": "m", "input": "hi", "stream": true}"#);
    assert_eq!(client.answer().events().last().unwrap()["type"], "response.failed");
    let entries = &ledger(&server)["entries"];
    assert_eq!(entries[0]["usage"]["completion_tokens"], 2);
    assert_eq!(entries[1]["finish"], "complete");
}

#[test]
fn chunks_arrive_one_by_one_with_their_pauses() {
    let chunk = |text: &str, delay: f64| json!({"b64": STANDARD.encode(text), "delay_s": delay});
    let server = start(&json!({"script": [{
        "status": 200,
        "headers": {"content-type": "text/event-stream"},
        "chunks": [chunk("data: 1\n\n", 0.0), chunk("data: 2\n\n", 0.3), chunk("data: 3\n\n", 0.0)],
    }]}));
    let mut client = Client::new(&server);
    client.start_chat(&json!({}));
    client.head().unwrap();
    let mut body = Vec::new();
    assert_eq!(client.chunk(&mut body), Ok(9));
    // The server is still waiting before the second chunk.
    assert_eq!(ledger(&server)["entries"][0]["finish"], Value::Null);
    assert_eq!(client.chunk(&mut body), Ok(9));
    assert_eq!(client.chunk(&mut body), Ok(9));
    assert_eq!(client.chunk(&mut body), Ok(0));
    assert_eq!(body, b"data: 1\n\ndata: 2\n\ndata: 3\n\n");
    assert_eq!(ledger(&server)["entries"][0]["finish"], "complete");
}

#[test]
fn scripted_chunks_end_as_the_script_says() {
    let response = |close: &str| {
        json!({
            "headers": {"content-type": "text/event-stream"},
            "chunks": [{"b64": STANDARD.encode("data: x\n\n"), "delay_s": 0.001}],
            "close": close,
        })
    };
    assert_eq!(play(&response("fin")).end, End::Eof);
    assert_eq!(play(&response("rst")).end, End::Reset);
    let mut until_close = response("fin");
    until_close["until_close"] = json!(true);
    let seen = play(&until_close);
    assert_eq!((seen.end, seen.header("transfer-encoding")), (End::Eof, None));
    assert_eq!(seen.text(), "data: x\n\n");
    let server = start(&json!({"script": [{"chunks": [], "close": "hang"}]}));
    let mut client = Client::new(&server);
    client.start_chat(&json!({}));
    assert_eq!(client.head().unwrap().status, 200);
    client.patience(MOMENT);
    assert_eq!(client.end().0, End::Silence);
}

#[test]
fn a_body_drips() {
    let text = r#"{"ok": true}"#;
    let drip = json!({"b64": STANDARD.encode(text), "bytes_per_step": 5, "step_s": 0.001});
    let seen = play(&json!({"status": 200, "drip": drip}));
    assert_eq!((seen.text(), &seen.chunks[..]), (text, &[5, 5, 2][..]));
    let length = text.len().to_string();
    let seen = play(
        &json!({"headers": {"content-length": length, "content-type": "application/json"}, "drip": drip}),
    );
    assert_eq!((seen.text(), seen.end, seen.chunks.len()), (text, End::Complete, 0));
}

#[test]
fn the_head_can_be_late() {
    let server = start(&json!({"script": [{"status": 200, "delay_headers_s": 0.3, "body_text": "late"}]}));
    let mut client = Client::new(&server);
    client.start_chat(&json!({}));
    client.patience(MOMENT);
    assert_eq!(client.end(), (End::Silence, Vec::new()));
    client.patience(Duration::from_secs(20));
    assert_eq!(client.answer().text(), "late");
}

#[test]
fn raw_bytes_are_sent_as_they_are() {
    let bytes = b"HTTP/1.1 400 Bad Request\r\nX-ODD: \xff\r\nContent-Length: 4\r\n\r\n\xff\xfebb";
    let server = start(&json!({"script": [
        {"raw_b64": STANDARD.encode(bytes)},
        {"raw_b64": STANDARD.encode("HTTP/1.1 204 No Content\r\n\r\n")},
    ]}));
    let mut client = Client::new(&server);
    client.start_chat(&json!({}));
    client.patience(MOMENT);
    // Its length is right: the connection stays.
    assert_eq!(client.end(), (End::Silence, bytes.to_vec()));
    client.patience(Duration::from_secs(20));
    client.start_chat(&json!({}));
    assert_eq!(client.end(), (End::Eof, b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()));
    assert_eq!(ledger(&server)["requests"]["by_status"], json!({"204": 1, "400": 1}));
}

#[test]
fn a_kept_connection_goes_stale_at_the_first_byte_of_the_next_request() {
    for (how, end) in [("fin", End::Eof), ("rst", End::Reset)] {
        let server = start(&json!({"script": [{"body_text": "one", "on_next_byte": how}]}));
        let mut client = Client::new(&server);
        let seen = client.chat(&json!({}));
        assert_eq!((seen.text(), seen.end, seen.header("connection")), ("one", End::Complete, None));
        client.write(b"P");
        assert_eq!(client.end(), (end, Vec::new()), "{how}");
        assert_eq!(Client::new(&server).chat(&json!({})).status, 200);
        let seen = ledger(&server);
        assert_eq!((&seen["requests"]["total"], &seen["connections"]["opened"]), (&json!(2), &json!(2)));
    }
}

#[test]
fn a_kept_connection_can_close_by_itself() {
    let server = start(&json!({"script": [{"close_after_s": 0.02}]}));
    let mut client = Client::new(&server);
    assert_eq!(client.chat(&json!({})).end, End::Complete);
    assert_eq!(client.end(), (End::Eof, Vec::new()));
    let seen = until(&server, "the close", |seen| {
        seen["connections"]["open"] == 0 || seen["entries"][0]["finish"] == "complete"
    });
    assert_eq!(seen["entries"][0]["finish"], "complete");
}

#[test]
fn a_stated_length_that_is_wrong_cuts_the_answer() {
    let seen = play(&json!({"headers": {"content-length": "20"}, "body_text": "short"}));
    assert_eq!((seen.text(), seen.end), ("short", End::Eof));
}

#[test]
fn bodies_can_be_compressed() {
    let seen = play(&json!({"encoding": "gzip", "body_text": "hello hello"}));
    assert_eq!(seen.header("content-encoding"), Some("gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&seen.body[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello hello");
    let server = start(&json!({"script": [{"encoding": "deflate"}]}));
    let seen = Client::new(&server).chat(&json!({"stream": true}));
    let mut text = String::new();
    flate2::read::ZlibDecoder::new(&seen.body[..]).read_to_string(&mut text).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"));
}

#[test]
fn headers_repeat_and_know_the_time_and_the_port() {
    let server = start(&json!({"script": [{
        "status": 307,
        "headers": {
            "Location": "http://127.0.0.1:{PORT}/v1/x", "Retry-After": "{http_date:+3}", "x-many": ["a", "b"],
        },
        "body_text": "",
    }]}));
    let seen = Client::new(&server).chat(&json!({}));
    assert_eq!(seen.status, 307);
    assert_eq!(seen.header("location"), Some(format!("http://127.0.0.1:{}/v1/x", server.port()).as_str()));
    let many: Vec<_> = seen.headers.iter().filter(|(name, _)| name == "x-many").collect();
    assert_eq!(many.len(), 2);
    let date = |name: &str| httpdate::parse_http_date(seen.header(name).unwrap()).unwrap();
    let distance = date("retry-after").duration_since(date("date")).unwrap();
    assert!((2..=4).contains(&distance.as_secs()), "{distance:?}");
}

#[test]
fn errors_come_in_the_shape_of_the_provider() {
    let seen = play(&json!({"error": "overloaded", "provider": "anthropic", "retry_after_s": 2}));
    assert_eq!((seen.status, seen.header("retry-after")), (529, Some("2")));
    assert_eq!(seen.json()["error"]["type"], "overloaded_error");
    let seen = play(&json!({"status": 429, "provider": "gemini", "retry_after_s": 1.5}));
    assert_eq!(seen.json()[0]["error"]["details"][1]["retryDelay"], "1.5s");
    let seen = play(&json!({"status": 200, "error": "rate_limit"}));
    assert_eq!((seen.status, &seen.json()["error"]["code"]), (200, &json!("rate_limit_exceeded")));
    assert_eq!(play(&json!({"status": 204})).body.len(), 0);
}

#[test]
fn scripts_can_be_changed_while_serving_and_bad_ones_change_nothing() {
    let server = start(&json!({"script": [{"status": 500}]}));
    let mut client = Client::new(&server);
    server.script(r#"{"responses": [{"status": 503}], "rules": [{"match": {"model": "x"}, "respond": {"status": 418}}]}"#).unwrap();
    let error = server.script(r#"[{"status": 200}, {"body": "x"}]"#).unwrap_err();
    assert_eq!(error.field, "script[1].body");
    assert!(error.rule.contains("body_json"), "{error}");
    server.script(r#"{"responses": [{"status": 504}], "extend": true}"#).unwrap();
    let statuses: Vec<_> = [("m", 0), ("x", 1), ("m", 2), ("m", 3)]
        .map(|(model, _)| client.chat(&json!({"model": model})).status)
        .into();
    assert_eq!(statuses, [503, 418, 504, 200]);
}
