//! Answers per second of the fault server: 16 kept connections of hand-written HTTP, one plain chat call each.
//!
//! The server has one thread. On a machine with few cores the client's threads take part of the time, so the
//! CPU time of the server's thread per answer is printed as well: that is what a core can carry.
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a bench fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a bench measures wall time")]
#![allow(clippy::print_stdout, reason = "a figure that criterion has no place for")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tidegate::mock::MockServer;

const CONNECTIONS: usize = 16;
const THREADS: usize = 2;
const BODY: &str =
    r#"{"model":"gpt-5.4-mini","messages":[{"role":"user","content":"Say something short."}]}"#;

fn request() -> Vec<u8> {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-test\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    )
    .into_bytes()
}

/// Reads one answer; its length in bytes.
fn answer(socket: &mut TcpStream, buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    loop {
        filled += socket.read(&mut buffer[filled..]).expect("an answer");
        let seen = &buffer[..filled];
        let Some(head) = seen.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&seen[..head]).expect("a head");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        let whole = head + 4 + length.parse::<usize>().expect("a number");
        if filled >= whole {
            return whole;
        }
    }
}

/// One request on each connection, `rounds` times; the time from the first to the last byte.
fn drive(server: &MockServer, rounds: u64) -> Duration {
    let start = Barrier::new(THREADS + 1);
    let request = request();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (start, request, port) = (&start, &request, server.port());
                scope.spawn(move || {
                    let connect = || TcpStream::connect(("127.0.0.1", port)).expect("a connection");
                    let mut sockets: Vec<_> = (0..CONNECTIONS / THREADS).map(|_| connect()).collect();
                    let mut buffer = vec![0; 16_384];
                    let mut length = None;
                    for socket in &mut sockets {
                        socket.set_nodelay(true).expect("an option");
                        socket.write_all(request).expect("a request");
                        length = Some(answer(socket, &mut buffer));
                    }
                    // Answers differ in digits alone, so the length is known and nothing is parsed.
                    let length = length.expect("a first answer");
                    start.wait();
                    for _ in 0..rounds {
                        for socket in &mut sockets {
                            socket.write_all(request).expect("a request");
                        }
                        for socket in &mut sockets {
                            socket.read_exact(&mut buffer[..length]).expect("an answer");
                        }
                    }
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        for thread in threads {
            thread.join().expect("a client");
        }
        begun.elapsed()
    })
}

/// CPU time of the server's thread so far, where the system tells (Linux).
fn server_cpu() -> Option<Duration> {
    let mut tasks = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let task = tasks.find(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "tidegate-mock")
    })?;
    let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

fn plain_chat(criterion: &mut Criterion) {
    let server = MockServer::start("{}").expect("a server");
    let mut group = criterion.benchmark_group("mock");
    group.throughput(Throughput::Elements(CONNECTIONS as u64));
    let mut answers = 0;
    group.bench_function("plain_chat", |bencher| {
        bencher.iter_custom(|rounds| {
            answers += (rounds + 1) * CONNECTIONS as u64;
            drive(&server, rounds)
        });
    });
    group.finish();
    if let Some(spent) = server_cpu() {
        let each = spent.as_secs_f64() / answers as f64;
        println!(
            "server thread: {:.1} µs of CPU per answer, {:.0} answers/s on a core",
            each * 1e6,
            1.0 / each
        );
    }
}

criterion_group!(benches, plain_chat);
criterion_main!(benches);
