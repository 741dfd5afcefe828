//! The doctor over files of several processes, whose records the event writer made.

use std::fs;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::doctor::{Diagnosis, Finding, Report, Verdict};
use tidegate::event::{Digest, Event, Facts, Kind, SCHEMA, SpanId, TraceId};

const PROCESSES: u64 = 8;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// One run of the tool `charge`, as a process tells of it.
struct Run {
    process: u64,
    at: f64,
    key: u64,
    arguments: u64,
    outcome: &'static str,
}

fn line(run: &Run, rng: &mut StdRng) -> Vec<u8> {
    let facts = Facts {
        outcome: Some(run.outcome),
        fingerprint: Some(Digest(run.arguments)),
        idempotency_key: Some(Digest(run.key)),
        tool: Some("charge".into()),
        effect: Some("at_most_once"),
        latency_s: Some(0.05),
        ..Facts::default()
    };
    let event = Event {
        schema: SCHEMA,
        ts: 1_000_000.0 + run.at,
        event: Kind::Tool,
        gate: Digest(run.process),
        trace_id: TraceId::random(rng),
        span_id: SpanId::random(rng),
        parent_span_id: None,
        origin: "".into(),
        model: "".into(),
        facts,
        tags: None,
    };
    let mut line = event.to_json();
    line.push(b'\n');
    line
}

fn diagnosed(folder: &Path, runs: &[Run]) -> Report {
    let mut rng = StdRng::seed_from_u64(1);
    let mut files = vec![Vec::new(); PROCESSES as usize];
    for run in runs {
        files[run.process as usize].extend(line(run, &mut rng));
    }
    let paths: Vec<_> = files
        .iter()
        .enumerate()
        .map(|(process, lines)| {
            let path = folder.join(format!("{process}.jsonl"));
            fs::write(&path, lines).unwrap();
            path
        })
        .collect();
    let mut diagnosis = Diagnosis::open(&paths, 2e9).unwrap();
    while diagnosis.advance(4_096).unwrap() {}
    assert_eq!(diagnosis.bytes_read(), diagnosis.bytes_in_all());
    diagnosis.report()
}

fn problems(report: &Report) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.verdict == Verdict::Problem).collect()
}

/// A queue delivers each order to two processes; the second finds it done.
fn redelivered(outcome_of_second: impl Fn(u64) -> &'static str) -> Vec<Run> {
    let mut rng = StdRng::seed_from_u64(2);
    let mut runs = Vec::new();
    for order in 0..1_000u64 {
        let first = rng.random_range(0..PROCESSES);
        let at = order as f64;
        runs.push(Run { process: first, at, key: order, arguments: order, outcome: "ok" });
        runs.push(Run {
            process: (first + 1) % PROCESSES,
            at: at + 40.0,
            key: order,
            arguments: order,
            outcome: outcome_of_second(order),
        });
    }
    runs.sort_by(|a, b| a.at.total_cmp(&b.at));
    runs
}

#[test]
fn suppressed_duplicates_are_healthy() {
    let folder = Folder::new("doctor-suppressed");
    let report = diagnosed(&folder.0, &redelivered(|order| if order % 2 == 0 { "replay" } else { "joined" }));
    assert!(report.healthy, "{:?}", problems(&report));
    let duplicates = report.findings.iter().find(|finding| finding.name == "duplicates").unwrap();
    assert_eq!(duplicates.verdict, Verdict::Ok);
    assert_eq!(
        (&duplicates.evidence["executed"], &duplicates.evidence["suppressed"]),
        (&1000.into(), &1000.into())
    );
    assert_eq!(report.files.iter().map(|file| file.records).sum::<u64>(), 2_000);
}

#[test]
fn a_charge_made_twice_is_found_among_thousands_and_nothing_else() {
    let folder = Folder::new("doctor-charged");
    let report = diagnosed(&folder.0, &redelivered(|order| if order == 417 { "ok" } else { "replay" }));
    let [found] = problems(&report)[..] else { panic!("{:?}", problems(&report)) };
    assert_eq!(found.name, "duplicates");
    assert_eq!(
        (&found.evidence["keys_executed_more_than_once"], &found.evidence["extra_effects"]),
        (&1.into(), &1.into())
    );
    let traces = &found.trace_ids;
    let holding: Vec<_> = (0..PROCESSES)
        .filter(|process| {
            let text = fs::read_to_string(folder.0.join(format!("{process}.jsonl"))).unwrap();
            traces.iter().any(|trace| text.contains(trace))
        })
        .collect();
    assert_eq!((traces.len(), holding.len()), (2, 2), "both charges, each by its own process");
}

#[test]
fn keys_made_anew_for_each_try_are_found_and_nothing_else() {
    let folder = Folder::new("doctor-keys");
    let mut runs = Vec::new();
    for order in 0..100u64 {
        let process = order % PROCESSES;
        let failed = order % 5 == 0;
        let at = order as f64 * 10.0;
        if failed {
            runs.push(Run { process, at, key: 10_000 + order, arguments: order, outcome: "failed" });
        }
        runs.push(Run { process, at: at + 1.0, key: order, arguments: order, outcome: "ok" });
    }
    let report = diagnosed(&folder.0, &runs);
    let [found] = problems(&report)[..] else { panic!("{:?}", problems(&report)) };
    assert_eq!(
        (found.name, &found.evidence["tried_again_with_another_key"]),
        ("idempotency_keys", &20.into())
    );
    assert_eq!(found.evidence["sample"].as_array().unwrap().len(), 20);
}
