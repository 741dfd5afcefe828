//! The ledger of the fault server: what was sent, what was seen, what it costs.

use std::time::Duration;

use serde_json::{Value, json};

use super::mock_client::{Client, End, ledger, start, until};

#[test]
fn requests_usage_and_bill_add_up() {
    let server = start(&json!({
        "prices": {"gpt*": {"input": "2.5", "cached_input": "1.25", "output": "10"}},
        "script": {"rules": [
            {"match": {"nth": 2}, "respond": {"usage": {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 7}}},
            {"match": {"nth": 2}, "respond": {"status": 500}},
            {"match": {"nth": 2}, "respond": {"body_json": {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}}},
        ]},
    }));
    let mut client = Client::new(&server);
    for _ in 0..4 {
        client.chat(&json!({"model": "gpt-x"}));
    }
    client.chat(&json!({"model": "other"}));
    let seen = ledger(&server);
    assert_eq!(seen["requests"]["by_status"], json!({"200": 4, "500": 1}));
    assert_eq!(seen["usage"]["prompt_tokens"], 12 + 100 + 3 + 12);
    assert_eq!(seen["usage"]["cached_tokens"], 40);
    let default = 12 * 2_500_000 + 5 * 10_000_000;
    let varied = 60 * 2_500_000 + 40 * 1_250_000 + 7 * 10_000_000;
    let stated = 3 * 2_500_000 + 10_000_000;
    assert_eq!(seen["bill"]["pico_usd"], default + varied + stated);
    assert_eq!(seen["bill"]["unpriced_requests"], 1);
    assert_eq!(seen["entries"][2]["played"], "script");
    assert_eq!(seen["entries"][4]["played"], Value::Null);
}

#[test]
fn a_body_is_told_by_its_hash_and_headers_by_name() {
    let server =
        start(&json!({"ledger": {"record_bodies": true, "record_headers": ["x-stainless-retry-count"]}}));
    let mut client = Client::new(&server);
    let headers = [("X-Stainless-Retry-Count", "2"), ("authorization", "Bearer sk-secret"), ("x-other", "o")];
    for body in [r#"{"model":"m"}"#, r#"{"model":"m"}"#, r#"{"model":"n"}"#] {
        client.send("POST", "/v1/chat/completions?api-version=3", &headers, body);
        client.answer();
    }
    let entries = ledger(&server)["entries"].clone();
    assert_eq!(entries[0]["headers"], json!({"x-stainless-retry-count": "2"}));
    assert_eq!(entries[0]["credential"], "present");
    assert_eq!(entries[0]["path"], "/v1/chat/completions?api-version=3");
    assert_eq!((&entries[0]["body"], &entries[0]["body_bytes"]), (&json!(r#"{"model":"m"}"#), &json!(13)));
    assert_eq!(entries[0]["body_hash"], entries[1]["body_hash"]);
    assert_ne!(entries[0]["body_hash"], entries[2]["body_hash"]);
    assert!(!server.ledger().contains("sk-secret"));
}

#[test]
fn a_client_that_leaves_is_noticed_while_its_answer_is_pending() {
    for response in [
        json!({"delay_s": 600}),
        json!({"fault": "hang"}),
        json!({"fault": "stall"}),
        json!({"chunks": [{"b64": "YQ==", "delay_s": 600}]}),
        json!({"drip": {"b64": "YWE=", "step_s": 600}}),
    ] {
        let server = start(&json!({"script": [response]}));
        let mut client = Client::new(&server);
        client.start_chat(&json!({}));
        until(&server, "the request", |seen| seen["requests"]["in_flight"] == 1);
        assert_eq!(ledger(&server)["connections"]["open"], 1);
        client.leave();
        let seen = until(&server, "the close", |seen| seen["connections"]["open"] == 0);
        assert_eq!(seen["requests"]["by_finish"], json!({"client_closed": 1}), "{response}");
        assert_eq!(seen["requests"]["in_flight"], 0);
        let connection = &seen["connections"]["entries"][0];
        assert_eq!(connection["closed_by"], "client");
        assert!(connection["closed_s"].as_f64() >= seen["entries"][0]["arrived_s"].as_f64());
    }
}

#[test]
fn a_stream_that_is_left_bills_what_was_sent() {
    let server = start(&json!({
        "chunk_delay_ms": 20, "usage": {"completion_tokens": 1000}, "prices": {"m": {"output": "1"}},
    }));
    let mut client = Client::new(&server);
    client.start_chat(&json!({"stream": true}));
    client.head().unwrap();
    let mut body = Vec::new();
    for _ in 0..4 {
        client.chunk(&mut body).unwrap();
    }
    client.leave();
    let seen = until(&server, "the close", |seen| seen["connections"]["open"] == 0);
    let tokens = seen["usage"]["completion_tokens"].as_u64().unwrap();
    // Three words were read; the server may have sent some more before it saw the end.
    assert!((3..1000).contains(&tokens), "{tokens}");
    assert_eq!(seen["bill"]["pico_usd"], tokens * 1_000_000);
}

#[test]
fn idle_connections_are_known_to_be_open_and_by_whom_they_were_closed() {
    let server = start(&json!({"script": [{}, {"close": "fin"}]}));
    let mut first = Client::new(&server);
    let mut second = Client::new(&server);
    first.chat(&json!({}));
    second.chat(&json!({}));
    assert_eq!(second.end().0, End::Eof);
    second.leave();
    first.leave();
    let seen = until(&server, "both ends", |seen| seen["connections"]["open"] == 0);
    let connections = &seen["connections"];
    assert_eq!((&connections["opened"], &connections["max_open"]), (&json!(2), &json!(2)));
    assert_eq!(connections["closed_by_client"], 1);
    assert_eq!(connections["closed_by_server"], 1);
}

#[test]
fn requests_at_the_same_time_are_counted() {
    let server = start(&json!({"latency_ms": 600_000}));
    let mut clients: Vec<_> = (0..5).map(|_| Client::new(&server)).collect();
    for client in &mut clients {
        client.start_chat(&json!({}));
    }
    until(&server, "five requests", |seen| seen["requests"]["in_flight"] == 5);
    clients.into_iter().for_each(Client::leave);
    let seen = until(&server, "their ends", |seen| seen["requests"]["in_flight"] == 0);
    assert_eq!(seen["requests"]["max_in_flight"], 5);
}

#[test]
fn a_reset_forgets_and_a_cap_keeps_the_newest() {
    let server = start(&json!({"ledger": {"entries": 2}}));
    let mut client = Client::new(&server);
    for model in ["a", "b", "c"] {
        client.chat(&json!({"model": model}));
    }
    let seen = ledger(&server);
    assert_eq!(seen["entries"][0]["model"], "b");
    assert_eq!(seen["entries_dropped"], 1);
    server.reset_ledger();
    client.chat(&json!({"model": "d"}));
    let seen = ledger(&server);
    assert_eq!((&seen["requests"]["total"], &seen["entries"][0]["model"]), (&json!(1), &json!("d")));
    assert_eq!(seen["connections"]["open"], 1);
}

#[test]
fn latency_holds_back_answers_but_not_refusals() {
    let server = start(&json!({"latency_ms": [100, 120], "api_key": "k"}));
    let mut client = Client::new(&server);
    client.patience(Duration::from_secs(20));
    assert_eq!(client.get("/v1/models").status, 401);
    client.send("GET", "/v1/models", &[("api-key", "k")], "");
    assert_eq!(client.answer().status, 200);
    let entries = &ledger(&server)["entries"];
    let took = |index: usize| {
        entries[index]["ended_s"].as_f64().unwrap() - entries[index]["arrived_s"].as_f64().unwrap()
    };
    assert!(took(0) < 0.1 && took(1) >= 0.1, "{} {}", took(0), took(1));
}
