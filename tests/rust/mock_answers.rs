//! Default answers of the fault server.

use base64::Engine as _;
use serde_json::{Value, json};
use tidegate::mock::MockServer;

use super::mock_client::{Client, End, ledger, start};

fn text(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

#[test]
fn chat_answers_with_the_model_and_the_usage() {
    let server = start(&json!({}));
    let mut client = Client::new(&server);
    let seen = client.chat(&json!({"model": "gpt \"x\""}));
    assert_eq!((seen.status, seen.end), (200, End::Complete));
    let body = seen.json();
    assert_eq!(body["model"], "gpt \"x\"");
    assert_eq!(body["choices"][0]["message"]["content"], "All systems work as expected");
    assert_eq!(body["usage"]["total_tokens"], 17);
    let again = client.chat(&json!({}));
    assert_ne!(again.json()["id"], body["id"]);
    assert_ne!(again.header("x-request-id"), seen.header("x-request-id"));
    assert_eq!(client.chat(&json!({"n": 3})).json()["choices"].as_array().unwrap().len(), 3);
}

#[test]
fn a_stream_says_the_same_word_by_word() {
    let server = start(&json!({"usage": {"reasoning_tokens": 2, "cached_tokens": 4}}));
    let mut client = Client::new(&server);
    let whole = client.chat(&json!({})).json();
    let plain = client.chat(&json!({"stream": true}));
    assert_eq!(plain.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = plain.events();
    assert_eq!(text(&events), whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert!(events.iter().all(|event| event.get("usage").is_none()));

    let counted = client.chat(&json!({"stream": true, "stream_options": {"include_usage": true}})).events();
    let [.., last, done] = counted.as_slice() else { panic!("{counted:?}") };
    assert_eq!((done, &last["choices"]), (&json!("[DONE]"), &json!([])));
    assert_eq!(last["usage"], whole["usage"]);
    assert_eq!(last["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    assert!(counted[..counted.len() - 2].iter().all(|event| event["usage"].is_null()));
}

#[test]
fn the_responses_api_answers_whole_and_streamed() {
    let server = start(&json!({}));
    let mut client = Client::new(&server);
    let mut ask = |stream: bool| {
        let body = json!({"model": "m", "input": "hi", "stream": stream}).to_string();
        client.send("POST", "/v1/responses", &[], &body);
        client.answer()
    };
    let whole = ask(false).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], "All systems work as expected");
    assert_eq!(whole["usage"]["output_tokens"], 5);
    let events = ask(true).events();
    let numbers: Vec<_> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["usage"], whole["usage"]);
    let said: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(said, "All systems work as expected");
}

#[test]
fn embeddings_are_the_same_as_numbers_and_as_base64() {
    let server = start(&json!({"embedding_dimensions": 8}));
    let mut client = Client::new(&server);
    let mut ask = |extra: Value| {
        let mut body = json!({"model": "m", "input": ["a", "b", "a"]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        client.send("POST", "/v1/embeddings", &[], &body.to_string());
        client.answer().json()
    };
    let floats = ask(json!({}));
    let vector = |index: usize| -> Vec<f64> {
        let numbers = floats["data"][index]["embedding"].as_array().unwrap();
        numbers.iter().map(|number| number.as_f64().unwrap()).collect()
    };
    assert_eq!(vector(0), vector(2));
    assert_ne!(vector(0), vector(1));
    assert_eq!(vector(0).len(), 8);
    let coded = ask(json!({"encoding_format": "base64"}));
    let text = coded["data"][1]["embedding"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let decoded: Vec<f64> =
        bytes.chunks(4).map(|four| f64::from(f32::from_le_bytes(four.try_into().unwrap()))).collect();
    assert_eq!(decoded.len(), 8);
    assert!(decoded.iter().zip(vector(1)).all(|(left, right)| (left - right).abs() < 1e-6));
    assert_eq!(ask(json!({"dimensions": 3}))["data"][0]["embedding"].as_array().unwrap().len(), 3);
    assert_eq!(ask(json!({"input": [1, 2, 3]}))["data"].as_array().unwrap().len(), 1);
}

#[test]
fn errors_are_those_of_the_api() {
    let server = start(&json!({"models": ["gpt-a"]}));
    let mut client = Client::new(&server);
    assert_eq!(client.get("/v1/models").json()["data"][0]["id"], "gpt-a");
    assert_eq!(client.get("/v1/models/gpt-a").json()["id"], "gpt-a");
    for (method, path, body, status, code) in [
        ("GET", "/v1/models/other", "", 404, json!("model_not_found")),
        ("POST", "/v1/chat/completions", r#"{"model": "other"}"#, 404, json!("model_not_found")),
        ("POST", "/v1/chat/completions", "{", 400, json!(null)),
        ("POST", "/v1/chat/completions", "{}", 400, json!(null)),
        ("GET", "/v1/chat/completions", "", 405, json!(null)),
        ("POST", "/v1/nothing", "{}", 404, json!(null)),
    ] {
        client.send(method, path, &[], body);
        let seen = client.answer();
        assert_eq!(seen.status, status, "{method} {path} {body}");
        let error = &seen.json()["error"];
        assert_eq!(error["code"], code);
        assert!(error["message"].is_string() && error["type"].is_string() && error.get("param").is_some());
    }
}

#[test]
fn only_the_right_key_is_served() {
    let server = start(&json!({"api_key": "sk-right"}));
    let mut client = Client::new(&server);
    let mut ask = |headers: &[(&str, &str)]| {
        client.send("GET", "/v1/models", headers, "");
        client.answer().status
    };
    assert_eq!(ask(&[]), 401);
    assert_eq!(ask(&[("authorization", "Bearer sk-wrong")]), 401);
    assert_eq!(ask(&[("authorization", "Bearer sk-right")]), 200);
    assert_eq!(ask(&[("api-key", "sk-right")]), 200);
    let seen = ledger(&server);
    let marks: Vec<_> = (0..4).map(|index| seen["entries"][index]["credential"].as_str().unwrap()).collect();
    assert_eq!(marks, ["none", "wrong", "right", "right"]);
    assert!(!server.ledger().contains("sk-"));
}

#[test]
fn pipelined_requests_are_answered_in_order_whoever_sends_the_answer() {
    // Streams and delays are played by hand, the rest by hyper: the socket changes hands with bytes unread.
    let server =
        start(&json!({"script": [{"content": "1"}, {"content": "2", "delay_s": 0.05}, {"content": "3"}]}));
    let mut client = Client::new(&server);
    for stream in [true, false, false, true] {
        client.start_chat(&json!({"stream": stream}));
    }
    assert_eq!(text(&client.answer().events()), "1");
    assert_eq!(client.answer().json()["choices"][0]["message"]["content"], "2");
    assert_eq!(client.answer().json()["choices"][0]["message"]["content"], "3");
    assert_eq!(text(&client.answer().events()), "All systems work as expected");
    assert_eq!(ledger(&server)["connections"]["opened"], 1);
}

#[test]
fn a_client_that_wants_the_connection_closed_has_it_closed() {
    let server = start(&json!({"script": [{}, {"delay_s": 0.01}]}));
    for _ in 0..2 {
        let mut client = Client::new(&server);
        client.send("GET", "/v1/models", &[("connection", "close")], "");
        let seen = client.answer();
        assert_eq!((seen.header("connection"), seen.end), (Some("close"), End::Complete));
        assert_eq!(client.end(), (End::Eof, Vec::new()));
    }
}

#[test]
fn a_server_that_is_stopped_closes_everything_and_frees_its_port() {
    let server = start(&json!({"script": [{"fault": "hang"}]}));
    let mut client = Client::new(&server);
    client.start_chat(&json!({}));
    super::mock_client::until(&server, "the request", |seen| seen["requests"]["in_flight"] == 1);
    server.stop();
    server.stop();
    assert_eq!(client.end(), (End::Eof, Vec::new()));
    assert_eq!(ledger(&server)["entries"][0]["finish"], "stopped");
    let again = start(&json!({"port": server.port()}));
    assert_eq!(Client::new(&again).get("/v1/models").status, 200);
    let taken = MockServer::start(&json!({"port": again.port()}).to_string()).unwrap_err();
    assert_eq!((taken.field.as_str(), taken.value), ("port", again.port().to_string()));
}

#[test]
fn several_workers_serve_many_connections() {
    let server = start(&json!({"workers": 3}));
    let mut clients: Vec<_> = (0..20).map(|_| Client::new(&server)).collect();
    for client in &mut clients {
        client.start_chat(&json!({"stream": true}));
    }
    for client in &mut clients {
        assert_eq!(client.answer().events().last().unwrap(), "[DONE]");
    }
    assert_eq!(ledger(&server)["connections"]["max_open"], 20);
}
