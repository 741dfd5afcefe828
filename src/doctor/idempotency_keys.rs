//! Whether what failed was tried again under the same key: otherwise nobody can know the second try for a duplicate.

use serde_json::{Value, json};

use super::finding::{Finding, Verdict};
use super::record::{Kind, Record, Run, Trace};
use super::resends::{KeyCheck, Tally};
use super::sample::Sample;
use super::tools::Tools;

const SAMPLED: usize = 20;

/// One change may be an operation that was meant anew.
const LEAST_CHANGED: u64 = 3;

#[derive(Debug, Clone, Copy)]
struct Failure {
    trace: Trace,
    keyed: bool,
    /// The gate's own retries send the same key by construction.
    retried: bool,
}

#[derive(Debug)]
pub(super) struct IdempotencyKeys {
    failures: Sample<Failure>,
    keyed: u64,
}

impl Default for IdempotencyKeys {
    fn default() -> Self {
        Self { failures: Sample::new(SAMPLED), keyed: 0 }
    }
}

impl IdempotencyKeys {
    pub(super) fn hear(&mut self, record: &Record) {
        let failed = match record.kind {
            Kind::Call => !record.ok,
            Kind::Tool => matches!(record.run, Run::Failed | Run::InDoubt),
            _ => return,
        };
        if failed {
            let keyed = record.key.is_some();
            self.keyed += u64::from(keyed);
            self.failures.offer(Failure { trace: record.trace, keyed, retried: record.attempts > 1 });
        }
    }

    pub(super) fn finding(&self, tally: &Tally, tools: &Tools) -> Finding {
        let (tool_checks, tools_stable, tools_changed) = tools.checks();
        let stable = tally.keys_stable + tools_stable;
        let changed = tally.keys_changed + tools_changed;
        let mut checks = Sample::new(SAMPLED);
        // What changed is shown first.
        let all = || tally.keys.iter().chain(tool_checks);
        let mut shown: Vec<&KeyCheck> = all().filter(|check| !check.stable).take(SAMPLED).collect();
        all().filter(|check| check.stable).for_each(|check| checks.offer(check));
        shown.extend(checks.kept());
        shown.truncate(SAMPLED);
        let mut sample: Vec<Value> = shown
            .iter()
            .map(|check| {
                let key = if check.stable { "stable" } else { "changed" };
                json!({"trace_id": check.failed.to_string(), "again": check.again.to_string(), "key": key})
            })
            .collect();
        for failure in self.failures.kept() {
            if sample.len() < SAMPLED && shown.iter().all(|check| check.failed != failure.trace) {
                let key = match (failure.keyed, failure.retried) {
                    (false, _) => "none",
                    (true, true) => "stable",
                    (true, false) => "not tried again",
                };
                sample.push(json!({"trace_id": failure.trace.to_string(), "key": key}));
            }
        }
        let finding = Finding::new("idempotency_keys", "Idempotency keys of 20 failures")
            .with("failures", self.failures.seen())
            .with("failures_with_key", self.keyed)
            .with("tried_again_with_same_key", stable)
            .with("tried_again_with_another_key", changed)
            .with("tool_runs_without_key", tools.keyless())
            .with("sample", sample);
        if changed >= LEAST_CHANGED {
            let summary =
                format!("{changed} of {} failures were tried again under another key", stable + changed);
            let traces = shown.iter().filter(|check| !check.stable).map(|check| check.failed);
            return finding.traces(traces).says(
                Verdict::Problem,
                summary,
                "Build the key from what the operation is about, never from chance or time: \
                 tidegate.idem_key(tenant=…, workflow=…, biz_id=…, step=…). Make it before the first try, outside of \
                 what is retried.",
            );
        }
        if self.failures.seen() == 0 {
            return finding.says(Verdict::NotEnoughData, String::from("nothing failed in this log"), "");
        }
        if self.keyed == 0 {
            let summary = format!("none of {} failures carried an idempotency key", self.failures.seen());
            return finding.says(Verdict::NotEnoughData, summary, "");
        }
        if stable + changed == 0 {
            let summary = format!("none of {} failures with a key was tried again from outside", self.keyed);
            return finding.says(Verdict::NotEnoughData, summary, "");
        }
        let summary =
            format!("{stable} of {} failures were tried again under the same key", stable + changed);
        finding.says(Verdict::Ok, summary, "")
    }
}
