//! Every row of `tests/vectors/wire`, and the cases of `tests/vectors/cases` that need no socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tidegate::classify::{
    Answer, Class, Health, Period, Quota, QuotaFacts, Retry, answer, parse_duration, server_wait,
};
use tidegate::price::PriceBook;
use tidegate::request::{DEFAULT_BYTES_PER_TOKEN, RequestFacts};
use tidegate::usage::Usage;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rows(path: &str) -> Vec<Value> {
    text(path)
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn case(file: &str) -> Value {
    serde_json::from_str(&text(&format!("cases/{file}"))).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name}"))
}

fn headers(pairs: &Value) -> HeaderMap {
    let pairs = pairs.as_object().into_iter().flatten();
    pairs
        .map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value.as_str().unwrap()).unwrap())
        })
        .collect()
}

/// 2026-11-30 01:00:00 UTC, when these vectors were written.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_796_000_400)
}

fn close(got: Option<Duration>, want: &Value, tolerance: f64) -> bool {
    match (got, want) {
        (None, Value::Null) => true,
        (Some(got), Value::String(text)) if text == "inf" => got == Duration::MAX,
        (Some(got), Value::Number(want)) => (got.as_secs_f64() - want.as_f64().unwrap()).abs() <= tolerance,
        _ => false,
    }
}

/// The bodies of an `http_script`'s or wire row's response.
fn respond(status: &Value, head: &Value, body: &Value) -> Answer {
    let bytes = match body {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        json => json.to_string(),
    };
    let status = u16::try_from(status.as_u64().unwrap()).unwrap();
    answer(status, &headers(head), bytes.as_bytes(), now())
}

fn scripted(file: &str, name: &str) -> Vec<Answer> {
    let case = case(file);
    let script = list(&case, "scripts").iter().find(|script| script["name"] == name).unwrap();
    let responses = list(script, "responses").iter();
    responses
        .map(|response| {
            let body = response.get("body_json").or_else(|| response.get("body_text"));
            respond(&response["status"], &response["headers"], body.unwrap_or(&Value::Null))
        })
        .collect()
}

fn first(file: &str, name: &str) -> Answer {
    scripted(file, name).swap_remove(0)
}

/// Status, headers and body of a stored HTTP/1.1 answer.
fn raw_answer(file: &str) -> Answer {
    let bytes = std::fs::read(folder().join("cases").join(file)).unwrap();
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value.trim()).unwrap())
    });
    answer(status, &fields.collect(), &bytes[end + 4..], now())
}

#[test]
fn wire_errors() {
    let rows = rows("wire/errors.jsonl");
    assert_eq!(rows.len(), 62);
    for row in rows {
        let (id, want) = (&row["id"], &row["expect"]);
        let got = respond(&row["status"], &row["headers"], &row["body"]).verdict;
        let retry = if want["retry"] == "retry_once" { "once" } else { want["retry"].as_str().unwrap() };
        let got_names = json!([got.class.as_str(), got.retry.as_str(), got.scope.as_str()]);
        assert_eq!(got_names, json!([want["class"], retry, want["scope"]]), "{id}");
        assert!(close(got.hint, &want["wait_s"], 1e-9), "{id}: {:?}", got.hint);
        let sick = matches!(got.class, Class::Overloaded | Class::ServerError | Class::Timeout);
        assert_eq!(got.health, if sick { Health::Failure } else { Health::Neutral }, "{id}");
        assert!(!got.message.is_empty() && !got.message.contains('<'), "{id}: {}", got.message);
    }
}

#[test]
fn wire_retry_after() {
    for row in rows("wire/retry_after.jsonl") {
        let got = server_wait(429, &headers(&row["headers"]), None, now());
        assert!(close(got, &row["want_s"], 1e-9), "{row}: {got:?}");
    }
}

#[test]
fn wire_ratelimit_headers() {
    let epoch = UNIX_EPOCH + Duration::from_secs(1_793_491_200);
    for row in rows("wire/ratelimit_headers.jsonl") {
        // Before the epochs in the rows, which are relative to now.
        let facts = QuotaFacts::from_headers(&headers(&row["headers"]), epoch - Duration::from_secs(100));
        let quotas = BTreeMap::from([
            ("requests", facts.requests),
            ("tokens", facts.tokens),
            ("input_tokens", facts.input_tokens),
            ("output_tokens", facts.output_tokens),
            ("project_requests", facts.project_requests),
            ("project_tokens", facts.project_tokens),
            ("tokens_usage_based", facts.tokens_usage_based),
        ]);
        let wanted = row["expect_[limit,remaining,reset_s]"].as_object().unwrap();
        for (name, quota) in quotas {
            let Some(want) = wanted.get(name) else {
                assert_eq!(quota, Quota::default(), "{row}: {name}");
                continue;
            };
            assert_eq!(quota.limit, want[0].as_u64(), "{row}: {name}");
            assert_eq!(quota.remaining, want[1].as_u64(), "{row}: {name}");
            let reset = if want[2].is_string() { json!(100) } else { want[2].clone() };
            assert!(close(quota.reset, &reset, 1e-6), "{row}: {name} {:?}", quota.reset);
        }
        let daily = matches!(row["id"].as_str(), Some("groq" | "openai-day"));
        assert_eq!(facts.requests.period == Some(Period::Day), daily, "{row}");
    }
}

fn usage(value: &Value) -> Option<Usage> {
    Usage::from_json(&value.to_string())
}

#[test]
fn wire_usage() {
    for row in rows("wire/usage.jsonl") {
        let Some(want) = row["expect"].as_object() else {
            assert_eq!(usage(&row["usage"]), None, "{row}");
            continue;
        };
        let got = usage(&row["usage"]).unwrap();
        for (name, want) in want {
            let want = if want.is_string() { &json!(240) } else { want };
            let got = match name.as_str() {
                "input" => got.input,
                "cache_read" => got.cache_read,
                "cache_write" => got.cache_write,
                "cache_write_5m" => got.cache_write_5m,
                "cache_write_30m" => got.cache_write_30m,
                "input_audio" => got.input_audio,
                "output" => got.output,
                "output_audio" => got.output_audio,
                "reasoning" => got.reasoning,
                "web_searches" => got.web_searches,
                "cost_usd" => {
                    assert_eq!(got.stated_cost.unwrap().to_string(), want.to_string(), "{row}");
                    continue;
                }
                other => panic!("unknown expectation {other}"),
            };
            assert_eq!(Some(got), want.as_u64(), "{row}: {name}");
        }
        assert_eq!(
            got.stated_cost.is_some(),
            want.contains_key("cost_usd") || row["id"] == "xai-chat",
            "{row}"
        );
    }
}

#[test]
fn wire_price_tables() {
    let million = |input, output| Usage { input, output, ..Usage::default() };
    let day = |day: u64| UNIX_EPOCH + Duration::from_secs(day * 86_400);
    let cost = |book: &PriceBook, model: &str, tier, usage: &Usage, at| {
        book.cost(model, tier, usage, at).map(|cost| cost.to_string())
    };

    let genai = PriceBook::from_genai_prices(&text("wire/prices/genai_prices_shape.json"), None).unwrap();
    // 2026-08-20 and 2026-08-21.
    let (before, after) = (day(20_685), day(20_686));
    for model in ["acme-1", "acme-1-2026-01-31"] {
        assert_eq!(cost(&genai, model, None, &million(1000, 1000), before).as_deref(), Some("0.035"));
        assert_eq!(cost(&genai, model, None, &million(1000, 1000), after).as_deref(), Some("0.024"));
    }
    assert_eq!(cost(&genai, "acme-1-mini", None, &million(1000, 1000), after), None);
    assert_eq!(cost(&genai, "acme-1", None, &million(272_000, 0), after).as_deref(), Some("1.088"));
    assert_eq!(cost(&genai, "acme-1", None, &million(272_001, 0), after).as_deref(), Some("2.176008"));
    assert_eq!(cost(&genai, "acme-1", Some("flex"), &million(1000, 1000), after).as_deref(), Some("0.012"));
    assert_eq!(cost(&genai, "acme-1", Some("batch"), &million(1000, 1000), after).as_deref(), Some("0.012"));
    assert_eq!(cost(&genai, "acme-1", Some("priority"), &million(1000, 1000), after), None);
    let cached = Usage { cache_read: 500, cache_write: 200, ..million(1000, 0) };
    assert_eq!(cost(&genai, "acme-1", None, &cached, after).as_deref(), Some("0.0024"));
    let searched = Usage { web_searches: 3, ..million(1000, 0) };
    assert_eq!(cost(&genai, "acme-1", None, &searched, before).as_deref(), Some("0.035"));
    assert_eq!(cost(&genai, "acme-1", None, &searched, after), None, "the new prices name no fee");

    let litellm = PriceBook::from_litellm(&text("wire/prices/litellm_shape.json")).unwrap();
    let of = |tier, usage: &Usage| cost(&litellm, "acme-1", tier, usage, now());
    assert_eq!(of(None, &million(1000, 1000)).as_deref(), Some("0.024"));
    assert_eq!(of(None, &million(272_001, 1000)).as_deref(), Some("2.206008"));
    assert_eq!(of(Some("flex"), &million(272_001, 0)).as_deref(), Some("1.088004"));
    assert_eq!(of(Some("priority"), &million(1000, 1000)).as_deref(), Some("0.048"));
    assert_eq!(of(Some("batch"), &million(1000, 1000)).as_deref(), Some("0.012"));
    let written = Usage { cache_read: 500, cache_write: 200, cache_write_12h: 100, ..million(1000, 0) };
    // 300*4 + 500*0.4 + 100*5 + 100*10
    assert_eq!(of(None, &written).as_deref(), Some("0.0029"));
    assert_eq!(of(None, &Usage { web_searches: 3, ..million(0, 0) }).as_deref(), Some("0.03"));
}

#[test]
fn b01_b02_b06_retry_after() {
    for file in ["B01_retry_after_decimal.json", "B02_retry_after_http_date.json", "B06_retry_after_ms.json"]
    {
        let case = case(file);
        // 2026-03-01T12:00:00Z, the clock of B02.
        let now = UNIX_EPOCH + Duration::from_secs(1_772_366_400);
        for row in list(&case, "rows") {
            let got = server_wait(429, &headers(&row["headers"]), None, now);
            if row.get("delay_range_s").is_some() {
                assert_eq!(got, Some(Duration::ZERO), "{row}");
            } else {
                assert!(close(got, &row["delay_s"], 1e-9), "{row}: {got:?}");
            }
        }
    }
}

#[test]
fn b03_b05_b07_hints_of_scripts() {
    let hint = |file, name| first(file, name).verdict.hint;
    assert_eq!(hint("B03_retry_after_huge.json", "beyond_budget"), Some(Duration::from_secs(600)));
    assert_eq!(hint("B03_retry_after_huge.json", "eleven_days"), Some(Duration::from_secs(999_999)));
    assert_eq!(hint("B03_retry_after_huge.json", "not_number_sized"), Some(Duration::MAX));
    assert_eq!(hint("B03_retry_after_huge.json", "inside_budget"), Some(Duration::from_secs(2)));
    assert_eq!(hint("B05_retry_after_repeated.json", "budget_over_attempts"), Some(Duration::from_secs(1)));
    assert_eq!(hint("B07_azure_reset_header.json", "seconds_only"), Some(Duration::from_secs(2)));
    assert_eq!(hint("B07_azure_reset_header.json", "useless_values"), None);
    let alone = headers(&json!({"x-rate-limit-reset-tokens": "55"}));
    assert_eq!(server_wait(429, &alone, None, now()), Some(Duration::from_secs(55)));
}

#[test]
fn b08_durations() {
    let case = case("B08_reset_durations.json");
    for row in list(&case, "rows") {
        let got = parse_duration(row[0].as_str().unwrap());
        assert!(close(got, &row[1], 1e-9), "{row}: {got:?}");
    }
}

#[test]
fn b10_b12_b13_b14_retry_decisions() {
    let verdict = |file, name| first(file, name).verdict;
    for name in ["code_and_type", "only_type", "with_retry_after"] {
        let quota = verdict("B10_insufficient_quota.json", name);
        assert_eq!((quota.class, quota.retry), (Class::Quota, Retry::No), "{name}");
        assert!(quota.message.contains("exceeded your current quota"));
    }
    assert_eq!(verdict("B10_insufficient_quota.json", "ordinary_429_control").retry, Retry::Yes);
    for (name, class) in [
        ("s400", Class::ContextLength),
        ("s401", Class::Auth),
        ("s403", Class::Permission),
        ("s404", Class::NotFound),
        ("s422", Class::InvalidRequest),
    ] {
        let read = verdict("B12_client_errors_not_retried.json", name);
        assert_eq!((read.class, read.retry, read.health), (class, Retry::No, Health::Neutral), "{name}");
    }
    for (name, retry) in [
        ("429_false", Retry::No),
        ("503_false", Retry::No),
        ("400_true", Retry::Yes),
        ("500_other_value", Retry::Yes),
        ("400_true_forever", Retry::Yes),
    ] {
        assert_eq!(verdict("B13_x_should_retry.json", name).retry, retry, "{name}");
    }
    for name in ["s529", "s520", "s521", "s522", "s523", "s524"] {
        let read = verdict("B14_unusual_5xx.json", name);
        assert_eq!((read.retry, read.health), (Retry::Yes, Health::Failure), "{name}");
    }
}

#[test]
fn b56_usage_missing_or_null() {
    let file = "B56_usage_missing_or_null.json";
    for name in ["missing", "null", "empty", "null_fields", "only_total"] {
        let read = first(file, name);
        assert_eq!(read.verdict.class, Class::Success, "{name}");
        assert_eq!(read.reading.unwrap().usage, None, "{name}");
    }
    for name in ["null_details", "strings"] {
        let usage = first(file, name).reading.unwrap().usage.unwrap();
        assert_eq!((usage.input, usage.output), (12, 5), "{name}");
    }
}

#[test]
fn b60_error_bodies_that_are_not_json() {
    for (file, status, class, message) in [
        ("B60_html_403_block.http", 403, Class::Permission, "Sorry, you have been blocked"),
        (
            "B60_html_502.http",
            502,
            Class::ServerError,
            "api.example.com | 502: Bad gateway Bad gateway Error code 502",
        ),
        ("B60_invalid_utf8_error.http", 400, Class::InvalidRequest, "bad \u{fffd}\u{fffd} byte"),
        ("B60_json_array_error.http", 400, Class::InvalidRequest, "nope"),
        ("B60_plain_500_empty.http", 500, Class::ServerError, "HTTP 500 Internal Server Error"),
    ] {
        let read = raw_answer(file).verdict;
        assert_eq!((read.status, read.class, read.message.as_str()), (status, class, message), "{file}");
    }
}

#[test]
fn b61_errors_in_a_200() {
    let verdict = |name| first("B61_error_in_200_body.json", name).verdict;
    let limited = verdict("code_429");
    assert_eq!((limited.class, limited.retry, limited.status), (Class::RateLimit, Retry::Yes, 429));
    let refused = verdict("code_400");
    assert_eq!((refused.retry, refused.code.as_deref(), refused.status), (Retry::No, Some("400"), 400));
    assert!(refused.message.contains("No endpoints found"));
    assert_eq!(verdict("code_502_string").status, 502);
    let in_choice = verdict("choice_error");
    assert_eq!((in_choice.code.as_deref(), in_choice.message.as_str()), (Some("502"), "Upstream died"));
    assert_eq!(verdict("error_null_control").class, Class::Success);
}

#[test]
fn b63_blank_bodies() {
    let good = raw_answer("B63_blank_lines_then_json.http");
    assert_eq!(good.verdict.class, Class::Success);
    assert_eq!(good.reading.unwrap().usage.map(|usage| (usage.input, usage.output)), Some((12, 5)));
    for file in ["B63_empty_200.http", "B63_blank_only_200.http", "B63_no_content_204.http"] {
        let read = raw_answer(file).verdict;
        assert_eq!(
            (read.class, read.retry, read.health),
            (Class::Empty, Retry::Yes, Health::Failure),
            "{file}"
        );
    }
}

fn prompt_tokens(content: &Value) -> u64 {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string();
    RequestFacts::read(body.as_bytes()).unwrap().prompt_tokens(DEFAULT_BYTES_PER_TOKEN)
}

#[test]
fn b65_special_tokens_are_text() {
    let case = case("B65_special_tokens.json");
    for row in list(&case, "rows") {
        assert!(prompt_tokens(row) >= 1, "{row}");
    }
}

#[test]
fn b66_pathological_text_is_weighed_in_linear_time() {
    let case = case("B66_pathological_text.json");
    let limit = Duration::from_secs_f64(10.0 * case["expect"]["time_each_s_max"].as_f64().unwrap());
    for generator in list(&case, "generators") {
        let content = match (&generator["repeat"], generator["n"].as_u64()) {
            (Value::String(unit), Some(n)) => unit.repeat(usize::try_from(n).unwrap()),
            _ => (0..1_000_000u32)
                .map(|at| char::from(b'a' + (at.wrapping_mul(2_654_435_761) >> 24) as u8 % 26))
                .collect(),
        };
        let body = json!({"messages": [{"content": content}]}).to_string();
        #[allow(clippy::disallowed_methods, reason = "the time it takes is what is tested")]
        let start = Instant::now();
        let facts = RequestFacts::read(body.as_bytes()).unwrap();
        #[allow(clippy::disallowed_methods, reason = "the time it takes is what is tested")]
        let took = start.elapsed();
        assert_eq!(facts.prompt_bytes, content.len() as u64);
        assert!(took < limit, "{generator}: {took:?}");
    }
}

#[test]
fn b67_media_are_not_text() {
    let case = case("B67_image_parts.json");
    for part in list(&case, "parts") {
        let part = part.to_string().replace("<1400000 chars>", &"A".repeat(1_400_000));
        let tokens = prompt_tokens(&json!([serde_json::from_str::<Value>(&part).unwrap()]));
        assert!((1..5000).contains(&tokens), "{tokens}");
    }
    let tools = json!({"tools": case["tools_example"]}).to_string();
    assert!(RequestFacts::read(tools.as_bytes()).unwrap().prompt_tokens(DEFAULT_BYTES_PER_TOKEN) >= 1);
}

#[test]
fn b71_output_reservation() {
    let case = case("B71_output_reservation.json");
    for row in list(&case, "rows") {
        let got = RequestFacts::read(row.to_string().as_bytes()).unwrap().output_limit;
        let want = row.get("output").or(row.get("output_min")).and_then(Value::as_u64);
        let declared = row.get("max_tokens").and_then(Value::as_u64);
        assert_eq!(got, want.or(declared), "{row}");
    }
}

/// The adapter for prices: `per` is a million everywhere.
fn prices(value: &Value) -> Value {
    let mut prices = value.as_object().unwrap().clone();
    assert_eq!(prices.remove("per"), Some(json!(1_000_000)));
    Value::Object(prices)
}

fn assert_cost(book: &PriceBook, model: &str, tier: Option<&str>, row: &Value) {
    let got = book.cost(model, tier, &usage(&row["usage"]).unwrap(), now()).map(|cost| cost.to_string());
    assert_eq!(got.as_deref(), row["cost_usd"].as_str(), "{row}");
}

#[test]
fn b94_b95_cached_and_reasoning_tokens() {
    for file in ["B94_cached_tokens.json", "B95_reasoning_tokens.json"] {
        for row in list(&case(file), "rows") {
            let book = PriceBook::from_json(&json!({"m": prices(&row["prices"])}).to_string()).unwrap();
            assert_cost(&book, "m", None, row);
            let usage = usage(&row["usage"]).unwrap();
            assert_eq!(Some(usage.input), row["usage"]["prompt_tokens"].as_u64(), "{row}");
            assert_eq!(Some(usage.total()), row["usage"]["total_tokens"].as_u64(), "{row}");
            if let Some(uncached) = row["input_uncached"].as_u64() {
                assert_eq!(usage.uncached(), uncached, "{row}");
            }
        }
    }
}

#[test]
fn b97_unknown_models_have_no_cost() {
    let case = case("B97_unknown_model.json");
    let free = &case["free_model"];
    let book = json!({"gpt-a": prices(&case["book"]["gpt-a"]), "local": prices(&free["prices"])});
    let book = PriceBook::from_json(&book.to_string()).unwrap();
    for row in list(&case, "rows") {
        assert_cost(&book, row["model"].as_str().unwrap(), None, row);
    }
    assert_cost(&book, "local", None, free);
}

#[test]
fn b98_the_tier_that_served_is_billed() {
    let case = case("B98_service_tier.json");
    let entries = case["book"].as_object().unwrap().iter().map(|(model, tiers)| {
        let mut entry = prices(&tiers["default"]);
        if let Some(flex) = tiers.get("flex") {
            entry["tiers"] = json!({"flex": prices(flex)});
        }
        (model.clone(), entry)
    });
    let book = PriceBook::from_json(&Value::Object(entries.collect()).to_string()).unwrap();
    for row in list(&case, "rows") {
        // The answer's tier, or else the one that was asked for.
        let tier = row["response_tier"].as_str().or(row["requested"].as_str());
        assert_cost(&book, row["model"].as_str().unwrap(), tier, row);
    }
}
