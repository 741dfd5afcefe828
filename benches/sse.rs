//! Events per second of typical chat chunks, and the time of one very large line.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tidegate::sse::Decoder;

const EVENT: &str = concat!(
    r#"data: {"id":"chatcmpl-BTYz5Uo2Qm0aTqVh1xk9","object":"chat.completion.chunk","created":1746500000,"#,
    r#""model":"gpt-4.1-mini-2025-04-14","service_tier":"default","system_fingerprint":"fp_0123456789","#,
    r#""choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
    "\n\n"
);

fn drain(chunks: &[Bytes]) -> usize {
    let mut decoder = Decoder::default();
    let mut bytes = 0;
    for chunk in chunks {
        decoder.push(chunk.clone());
        while let Ok(Some(event)) = decoder.next_event() {
            bytes += black_box(event).data.len();
        }
    }
    bytes
}

fn cut(body: &str, size: usize) -> Vec<Bytes> {
    body.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect()
}

fn sse(c: &mut Criterion) {
    const EVENTS: usize = 1000;
    let body = EVENT.repeat(EVENTS);
    let mut group = c.benchmark_group("sse");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, size) in
        [("one event a chunk", EVENT.len()), ("16 KiB chunks", 16 * 1024), ("100 byte chunks", 100)]
    {
        let chunks = cut(&body, size);
        group.bench_function(name, |b| b.iter(|| drain(&chunks)));
    }
    let line = format!("data: {}\n\n", "x".repeat(8 * 1024 * 1024));
    let chunks = cut(&line, 16 * 1024);
    group.throughput(Throughput::Bytes(line.len() as u64));
    group.bench_function("one line of 8 MiB in 16 KiB chunks", |b| b.iter(|| drain(&chunks)));
    group.finish();
}

criterion_group!(benches, sse);
criterion_main!(benches);
