//! Runs of tools: effects per key, and keys per effect.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::finding::{Finding, Verdict};
use super::record::{Kind, Name, Record, Run, Trace};
use super::resends::KeyCheck;

/// Entries of one generation; two are remembered.
const GENERATION: usize = 250_000;

/// A run that answers a failed one begins within this: the longest retry window that keys are kept for.
const RETRY_WINDOW_S: f64 = 900.0;

const MOST_TRACES: usize = 10;
const MOST_KEY_CHECKS: usize = 256;

/// Not randomised: the same log gives the same report.
type Map<V> = HashMap<(Name, u64), V, BuildHasherDefault<DefaultHasher>>;

/// A map that forgets the least recently used half rather than grow without bound.
#[derive(Debug)]
struct Recent<V> {
    young: Map<V>,
    old: Map<V>,
    forgot: bool,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { young: Map::default(), old: Map::default(), forgot: false }
    }
}

impl<V> Recent<V> {
    fn take(&mut self, id: (Name, u64)) -> Option<V> {
        self.young.remove(&id).or_else(|| self.old.remove(&id))
    }

    fn put(&mut self, id: (Name, u64), value: V) {
        if self.young.len() >= GENERATION {
            self.forgot |= !self.old.is_empty();
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, value);
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.young.values().chain(self.old.values())
    }
}

/// What became of one key.
#[derive(Debug, Clone, Copy, Default)]
struct Effects {
    executed: u32,
    in_doubt: bool,
    trace: Trace,
}

/// The last run of one tool with the same arguments, where it failed.
#[derive(Debug, Clone, Copy)]
struct FailedRun {
    at: f64,
    key: u64,
    trace: Trace,
}

#[derive(Debug, Default)]
pub(super) struct Tools {
    keys: Recent<Effects>,
    failed: Recent<FailedRun>,
    runs: u64,
    executed: u64,
    keyless: u64,
    suppressed: u64,
    failures: u64,
    /// Keys whose effect came about more than once, and how often beyond the first.
    doubled: u64,
    extra: u64,
    doubled_traces: Vec<Trace>,
    checks: Vec<KeyCheck>,
    stable: u64,
    changed: u64,
}

impl Tools {
    pub(super) fn hear(&mut self, record: &Record) {
        if record.kind != Kind::Tool || record.run == Run::Other {
            return;
        }
        self.runs += 1;
        match record.run {
            Run::Executed => self.executed += 1,
            Run::Suppressed | Run::Replayed => self.suppressed += 1,
            Run::Failed => self.failures += 1,
            Run::InDoubt | Run::Resolved | Run::Other => {}
        }
        let Some(key) = record.key else {
            self.keyless += 1;
            return;
        };
        self.reconcile(record, key);
        self.check(record, key);
    }

    fn reconcile(&mut self, record: &Record, key: u64) {
        let id = (record.tool, key);
        let mut effects = self.keys.take(id).unwrap_or_default();
        match record.run {
            // A tool that declares repetition harmless may run again.
            Run::Executed if record.repeatable => effects.in_doubt = false,
            Run::Executed => {
                effects.executed += 1;
                effects.in_doubt = false;
                if effects.executed > 1 {
                    self.extra += 1;
                    if effects.executed == 2 {
                        self.doubled += 1;
                        self.note(effects.trace);
                    }
                    self.note(record.trace);
                }
            }
            Run::InDoubt => effects.in_doubt = true,
            Run::Resolved | Run::Replayed => effects.in_doubt = false,
            Run::Failed | Run::Suppressed | Run::Other => {}
        }
        effects.trace = record.trace;
        self.keys.put(id, effects);
    }

    fn note(&mut self, trace: Trace) {
        if self.doubled_traces.len() < MOST_TRACES {
            self.doubled_traces.push(trace);
        }
    }

    fn check(&mut self, record: &Record, key: u64) {
        let Some(fingerprint) = record.fingerprint else { return };
        let id = (record.tool, fingerprint);
        if let Some(failed) = self.failed.take(id)
            && record.began() - failed.at <= RETRY_WINDOW_S
        {
            let stable = failed.key == key;
            *(if stable { &mut self.stable } else { &mut self.changed }) += 1;
            if self.checks.len() < MOST_KEY_CHECKS {
                self.checks.push(KeyCheck { failed: failed.trace, again: record.trace, stable });
            }
        }
        if matches!(record.run, Run::Failed | Run::InDoubt) {
            self.failed.put(id, FailedRun { at: record.ts, key, trace: record.trace });
        }
    }

    pub(super) fn checks(&self) -> (&[KeyCheck], u64, u64) {
        (&self.checks, self.stable, self.changed)
    }

    pub(super) fn keyless(&self) -> u64 {
        self.keyless
    }

    pub(super) fn finding(&self) -> Finding {
        let in_doubt: Vec<_> = self.keys.values().filter(|effects| effects.in_doubt).collect();
        let finding = Finding::new("duplicates", "Duplicates against writes and charges")
            .with("runs", self.runs)
            .with("executed", self.executed)
            .with("suppressed", self.suppressed)
            .with("failed", self.failures)
            .with("in_doubt", in_doubt.len())
            .with("keys_executed_more_than_once", self.doubled)
            .with("extra_effects", self.extra)
            .with("runs_without_key", self.keyless)
            .with("all_keys_remembered", !self.keys.forgot);
        if self.runs == 0 {
            return finding.says(Verdict::NotEnoughData, String::from("the log holds no run of a tool"), "");
        }
        if self.doubled > 0 {
            let summary = format!(
                "{} effects more than there are keys: {} keys were executed more than once ({} executed, {} \
                 duplicates suppressed)",
                self.extra, self.doubled, self.executed, self.suppressed
            );
            return finding.traces(self.doubled_traces.iter().copied()).says(
                Verdict::Problem,
                summary,
                "Compare these calls with the books of whoever was written to or charged, and undo what came twice. \
                 Then find why the record was not there: a retention shorter than the retry window, stores that are \
                 not shared by all processes, or a Redis that lost its data.",
            );
        }
        if !in_doubt.is_empty() {
            let summary =
                format!("{} runs may or may not have taken effect, and nobody settled them", in_doubt.len());
            return finding.traces(in_doubt.iter().take(MOST_TRACES).map(|effects| effects.trace)).says(
                Verdict::Problem,
                summary,
                "Look up whether the effect came about, and settle each key with tidegate idem resolve; or give the \
                 tool a ToolPolicy(reconcile=…) that looks it up.",
            );
        }
        let summary = format!(
            "{} effects, each under a key of its own; {} duplicates suppressed",
            self.executed, self.suppressed
        );
        finding.says(Verdict::Ok, summary, "")
    }
}

#[cfg(test)]
mod tests {
    use super::super::idempotency_keys::IdempotencyKeys;
    use super::super::resends::Tally;
    use super::*;

    /// Runs as (second, key, arguments, what became of it), each with the trace of its place.
    fn heard(runs: &[(u32, u64, u64, Run)]) -> (Finding, Finding) {
        let (mut tools, mut keys) = (Tools::default(), IdempotencyKeys::default());
        for ((at, key, arguments, run), trace) in runs.iter().zip(1..) {
            let record = Record {
                kind: Kind::Tool,
                ts: f64::from(*at),
                key: Some(*key),
                fingerprint: Some(*arguments),
                run: *run,
                trace: Trace(trace),
                ..Record::default()
            };
            tools.hear(&record);
            keys.hear(&record);
        }
        (tools.finding(), keys.finding(&Tally::default(), &tools))
    }

    #[test]
    fn one_effect_per_key_is_reconciled_with_any_number_of_duplicates() {
        let (finding, _) = heard(&[
            (1, 1, 1, Run::Executed),
            (2, 1, 1, Run::Suppressed),
            (3, 1, 1, Run::Suppressed),
            (4, 2, 1, Run::Executed),
            (5, 3, 3, Run::Failed),
            (6, 3, 3, Run::Executed),
        ]);
        assert_eq!(finding.verdict, Verdict::Ok);
        assert_eq!((&finding.evidence["executed"], &finding.evidence["suppressed"]), (&3.into(), &2.into()));
    }

    #[test]
    fn a_key_that_was_executed_twice_is_found_with_both_calls() {
        let (finding, _) = heard(&[
            (1, 1, 1, Run::Executed),
            (2, 2, 2, Run::Executed),
            (9, 1, 1, Run::Executed),
            (10, 1, 1, Run::Executed),
        ]);
        assert_eq!(finding.verdict, Verdict::Problem);
        assert_eq!(
            (&finding.evidence["keys_executed_more_than_once"], &finding.evidence["extra_effects"]),
            (&1.into(), &2.into())
        );
        assert_eq!(finding.trace_ids, [1, 3, 4].map(|trace| Trace(trace).to_string()));
    }

    #[test]
    fn tools_that_may_repeat_and_other_tools_with_the_same_key_are_left_alone() {
        let mut tools = Tools::default();
        let mut names = super::super::record::Names::default();
        for (tool, effect) in
            [("a", "idempotent"), ("a", "idempotent"), ("b", "at_most_once"), ("c", "at_most_once")]
        {
            let line = format!(
                r#"{{"schema":1,"ts":1,"event":"tool","tool":"{tool}","effect":"{effect}","idempotency_key":"ab","outcome":"ok"}}"#
            );
            tools.hear(&super::super::record::read(line.as_bytes(), &mut names, 0, 2.0).unwrap());
        }
        assert_eq!(tools.finding().verdict, Verdict::Ok);
    }

    #[test]
    fn doubt_that_nobody_settled_is_a_problem_until_somebody_does() {
        let doubt = (1, 1, 1, Run::InDoubt);
        assert_eq!(heard(&[doubt]).0.verdict, Verdict::Problem);
        assert_eq!(heard(&[doubt, (2, 1, 1, Run::Resolved)]).0.verdict, Verdict::Ok);
        assert_eq!(heard(&[doubt, (2, 1, 1, Run::Executed)]).0.verdict, Verdict::Ok);
        assert_eq!(
            heard(&[doubt, (2, 1, 1, Run::Replayed)]).0.verdict,
            Verdict::Ok,
            "it was settled elsewhere"
        );
        assert_eq!(heard(&[doubt, (2, 1, 1, Run::Suppressed)]).0.verdict, Verdict::Problem);
    }

    #[test]
    fn keys_that_change_between_tries_are_found_and_those_of_new_operations_are_not() {
        let tries = |change: u64| -> Vec<_> {
            (0u32..4)
                .flat_map(|i| {
                    let id = u64::from(i);
                    [(i * 10, id, id, Run::Failed), (i * 10 + 1, id + change, id, Run::Executed)]
                })
                .collect()
        };
        let (_, keys) = heard(&tries(100));
        assert_eq!(
            (keys.verdict, &keys.evidence["tried_again_with_another_key"]),
            (Verdict::Problem, &4.into())
        );
        assert_eq!(keys.trace_ids.len(), 4);
        assert_eq!(keys.evidence["sample"][0]["key"], "changed");
        let (_, keys) = heard(&tries(0));
        assert_eq!((keys.verdict, &keys.evidence["tried_again_with_same_key"]), (Verdict::Ok, &4.into()));
        let anew: Vec<_> = (0..9).map(|i| (i, u64::from(i), 1, Run::Executed)).collect();
        assert_eq!(heard(&anew).1.verdict, Verdict::NotEnoughData);
        let late: Vec<_> = (0u32..9).map(|i| (i * 1000, u64::from(i), 1, Run::Failed)).collect();
        assert_eq!(heard(&late).1.evidence["tried_again_with_another_key"], 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut recent = Recent::default();
        for i in 0..3 * GENERATION as u64 {
            recent.put((Name::default(), i), ());
        }
        assert!(recent.values().count() <= 2 * GENERATION);
        assert!(recent.forgot);
        assert!(recent.take((Name::default(), 3 * GENERATION as u64 - 1)).is_some());
    }
}
