//! The quota of the fault server, as a client meets it.

use serde_json::json;

use super::mock_client::{Client, ledger, start, until};

#[test]
fn requests_beyond_the_quota_are_refused_and_told_when_to_come_back() {
    let server = start(&json!({"quota": {"rpm": 3, "tpm": 100_000}}));
    let mut client = Client::new(&server);
    for remaining in ["2", "1", "0"] {
        let seen = client.chat(&json!({}));
        assert_eq!(seen.status, 200);
        assert_eq!(seen.header("x-ratelimit-limit-requests"), Some("3"));
        assert_eq!(seen.header("x-ratelimit-remaining-requests"), Some(remaining));
        assert!(seen.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
    }
    let refused = client.chat(&json!({}));
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&wait), "{wait}");
    let error = &refused.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("requests"), &json!("rate_limit_exceeded")));
    assert!(error["message"].as_str().unwrap().contains("Limit 3, Used 3, Requested 1"));
    let seen = ledger(&server);
    assert_eq!(seen["entries"][3]["played"], "quota_requests");
    assert_eq!(seen["usage"]["prompt_tokens"], 36);
}

#[test]
fn tokens_are_set_aside_by_estimate_and_settled_by_usage() {
    let server = start(&json!({"quota": {"tpm": 100}}));
    let mut client = Client::new(&server);
    let remaining = |seen: &super::mock_client::Seen| -> u64 {
        seen.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap()
    };
    // 32 bytes of messages are 8 tokens, and up to 80 more may be asked for.
    assert_eq!(remaining(&client.chat(&json!({"max_tokens": 80}))), 12);
    // 17 were used, which leaves 83, or up to 100 with the refill of ten seconds.
    let second = client.chat(&json!({"max_tokens": 70}));
    assert!((83 - 78..=100 - 78).contains(&remaining(&second)), "{}", remaining(&second));
    let refused = client.chat(&json!({"max_tokens": 92}));
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("tokens")));
    assert!(refused.header("retry-after").is_some());
    let never = client.chat(&json!({"max_tokens": 200}));
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert!(never.json()["error"]["message"].as_str().unwrap().starts_with("Request too large"));
}

#[test]
fn concurrency_counts_answers_that_are_pending() {
    let server = start(&json!({"quota": {"concurrency": 1}, "script": [{"fault": "hang"}]}));
    let mut first = Client::new(&server);
    first.start_chat(&json!({}));
    until(&server, "the first request", |seen| seen["requests"]["in_flight"] == 1);
    let mut second = Client::new(&server);
    assert_eq!(second.chat(&json!({})).status, 429);
    first.leave();
    until(&server, "its end", |seen| seen["requests"]["in_flight"] == 0);
    assert_eq!(second.chat(&json!({})).status, 200);
}

#[test]
fn each_style_has_its_own_headers_and_errors() {
    let server = start(&json!({"quota": {"rpm": 1, "tpm": 6000, "style": "azure"}}));
    let mut client = Client::new(&server);
    let first = client.chat(&json!({}));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("0"));
    assert_eq!(first.header("x-ratelimit-limit-requests"), None);
    let refused = client.chat(&json!({}));
    assert_eq!(refused.json()["error"]["code"], "429");
    let millis: f64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    let seconds: f64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(millis / 1000.0 <= seconds && seconds < millis / 1000.0 + 1.001);

    let server = start(&json!({"quota": {"rpm": 1, "style": "anthropic", "announce": false}}));
    let mut client = Client::new(&server);
    assert_eq!(client.chat(&json!({})).header("anthropic-ratelimit-requests-limit"), None);
    let refused = client.chat(&json!({}));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert_eq!(refused.header("retry-after"), None);
}

#[test]
fn a_scripted_answer_announces_too_and_a_refusal_uses_none_up() {
    let server = start(&json!({"quota": {"rpm": 1}, "script": [{"status": 500}, {"status": 503}]}));
    let mut client = Client::new(&server);
    let failed = client.chat(&json!({}));
    assert_eq!((failed.status, failed.header("x-ratelimit-remaining-requests")), (500, Some("0")));
    assert_eq!(client.chat(&json!({})).status, 429);
    let played: Vec<_> = ledger(&server)["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["played"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(played, ["script", "quota_requests"]);
}
