//! The yardstick of `benches/python`: the same chat call on bare reqwest, without any gate and without Python.
//!
//! `reqwest_raw URL BODY CALLS IN_FLIGHT WARM_UP` prints one JSON object, as the Python contenders do.
#![allow(clippy::expect_used, reason = "a bench fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a bench measures wall and CPU time")]
#![allow(clippy::print_stdout, reason = "the figures go to whoever started the program")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::{Value, json};

/// One chat call from the bytes of its request to the parsed answer.
async fn call(client: &reqwest::Client, url: &str, body: &Bytes) -> Value {
    let request = client.post(url).header(AUTHORIZATION, "Bearer sk-test");
    let request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
    let response = request.send().await.expect("an answer");
    assert!(response.status().is_success(), "answered {}", response.status());
    serde_json::from_slice(&response.bytes().await.expect("a body")).expect("JSON")
}

/// Makes `calls` calls, `in_flight` at a time; how long each took.
async fn drive(
    client: &reqwest::Client,
    url: &str,
    body: &Bytes,
    calls: usize,
    in_flight: usize,
) -> Vec<Duration> {
    let begun = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let (client, url, body, begun) =
                (client.clone(), url.to_owned(), body.clone(), Arc::clone(&begun));
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while begun.fetch_add(1, Ordering::Relaxed) < calls {
                    let start = Instant::now();
                    let answer = call(&client, &url, &body).await;
                    latencies.push(start.elapsed());
                    assert!(answer.get("choices").is_some_and(Value::is_array), "no chat answer");
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::with_capacity(calls);
    for task in tasks {
        latencies.extend(task.await.expect("a task"));
    }
    latencies
}

/// CPU time of this process: of the threads that live, which are all that ever lived here.
fn cpu() -> Duration {
    let of_thread = |directory: &Path| {
        let text = std::fs::read_to_string(directory.join("schedstat")).expect("Linux with schedstat");
        text.split(' ').next().and_then(|nanos| nanos.parse().ok()).map(Duration::from_nanos)
    };
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux");
    threads.map(|thread| of_thread(&thread.expect("a thread").path()).expect("nanoseconds")).sum()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URL BODY CALLS IN_FLIGHT WARM_UP");
    let url = format!("{}/chat/completions", next());
    let body = Bytes::from(next());
    let mut count = || next().parse::<usize>().expect("a number");
    let (calls, in_flight, warm_up) = (count(), count(), count());

    // As many threads as `src/python/runtime.rs` takes, and the settings of `src/transport/reqwest.rs`.
    let threads = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .http1_only()
        .tcp_nodelay(true)
        .build()
        .expect("a client");
    runtime.block_on(drive(&client, &url, &body, warm_up, in_flight));
    let (cpu_before, start) = (cpu(), Instant::now());
    let latencies = runtime.block_on(drive(&client, &url, &body, calls, in_flight));
    let (wall, cpu) = (start.elapsed(), cpu().saturating_sub(cpu_before));
    println!(
        "{}",
        json!({
            "cpu_s": cpu.as_secs_f64(),
            "wall_s": wall.as_secs_f64(),
            "latencies_s": latencies.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        })
    );
}
