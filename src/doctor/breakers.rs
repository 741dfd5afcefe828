//! Breakers that opened, and whether they closed again.

use std::collections::HashMap;

use super::finding::{Finding, Verdict, rounded};
use super::record::{Kind, Name, Names, Record, ScopeId, Trace};

/// A breaker that stays open for longer, while it is asked, is stuck.
const STUCK_S: f64 = 60.0;

/// Open breakers that are watched at once.
const MOST_OPEN: usize = 10_000;

/// Scopes that are named in the evidence.
const MOST_NAMED: usize = 5;

#[derive(Debug, Clone, Copy)]
struct Open {
    since: f64,
    asked_at: f64,
    trace: Trace,
}

#[derive(Debug, Default)]
pub(super) struct Breakers {
    open: HashMap<ScopeId, Open>,
    opened: u64,
    reopened: u64,
    recovered: u64,
    longest_s: f64,
}

impl Breakers {
    pub(super) fn hear(&mut self, record: &Record, names: &Names) {
        if record.kind == Kind::Breaker && names.text(record.outcome) == "open" {
            self.opens(record);
            return;
        }
        if self.open.is_empty() {
            return;
        }
        let Some(open) = self.open.get_mut(&record.scope) else { return };
        open.asked_at = record.ts;
        let closes = match record.kind {
            Kind::Breaker => names.text(record.outcome) == "closed",
            // A probe. What was in flight when the breaker opened says nothing.
            Kind::Attempt => record.ok && record.began() > open.since,
            _ => false,
        };
        if closes {
            self.recovered += 1;
            self.longest_s = self.longest_s.max(record.ts - open.since);
            self.open.remove(&record.scope);
        }
    }

    fn opens(&mut self, record: &Record) {
        if let Some(open) = self.open.get_mut(&record.scope) {
            self.reopened += 1;
            open.asked_at = record.ts;
            return;
        }
        self.opened += 1;
        if self.open.len() < MOST_OPEN {
            let open = Open { since: record.ts, asked_at: record.ts, trace: record.trace };
            self.open.insert(record.scope, open);
        }
    }

    pub(super) fn finding(&self, names: &Names) -> Finding {
        let mut stuck: Vec<_> =
            self.open.iter().filter(|(_, open)| open.asked_at - open.since > STUCK_S).collect();
        stuck.sort_by(|a, b| (b.1.asked_at - b.1.since).total_cmp(&(a.1.asked_at - a.1.since)));
        let finding = Finding::new("breaker", "Breakers opened and recovered")
            .with("opened", self.opened)
            .with("probes_failed", self.reopened)
            .with("recovered", self.recovered)
            .with("stuck_open", stuck.len())
            .with("longest_open_s", rounded(self.longest_s));
        if let Some((_, worst)) = stuck.first() {
            let place = |scope: &ScopeId| place(names, scope.origin, scope.model);
            let longest: Vec<_> = stuck.iter().take(MOST_NAMED).map(|(scope, _)| place(scope)).collect();
            let summary = format!(
                "{} of {} stayed open; the longest for {:.0} s while it was asked: {}",
                stuck.len(),
                self.opened,
                worst.asked_at - worst.since,
                longest.join(", ")
            );
            return finding
                .with("stuck", longest)
                .traces(stuck.iter().take(MOST_NAMED).map(|(_, open)| open.trace))
                .says(
                    Verdict::Problem,
                    summary,
                    "Every probe fails: the upstream is down for this model or key. Look at its status page and at \
                     the probes' errors; give the gate a fallback.",
                );
        }
        if self.opened == 0 {
            return finding.says(Verdict::NotEnoughData, String::from("no breaker opened in this log"), "");
        }
        if self.recovered == 0 {
            let summary = format!("{} opened, and were not asked long enough since to tell", self.opened);
            return finding.says(Verdict::NotEnoughData, summary, "");
        }
        let waiting = match self.open.len() {
            0 => String::new(),
            open => format!("; {open} were not asked long enough since to tell"),
        };
        let summary = format!(
            "{} opened, {} recovered, within {:.1} s at most{waiting}",
            self.opened, self.recovered, self.longest_s
        );
        finding.says(Verdict::Ok, summary, "")
    }
}

fn place(names: &Names, origin: Name, model: Name) -> String {
    let (origin, model) = (names.text(origin), names.text(model));
    if model.is_empty() { origin.to_owned() } else { format!("{model} at {origin}") }
}

#[cfg(test)]
mod tests {
    use super::super::record;
    use super::*;

    /// Lines as (gate, time, event, outcome, seconds that it took).
    fn heard(lines: &[(u8, f64, &str, &str, f64)]) -> Finding {
        let (mut names, mut breakers) = (Names::default(), Breakers::default());
        for (gate, ts, event, outcome, latency) in lines {
            let line = format!(
                r#"{{"schema":1,"ts":{ts},"event":"{event}","outcome":"{outcome}","latency_s":{latency},"gate":"0{gate}","origin":"https://a.test","model":"m"}}"#
            );
            breakers.hear(&record::read(line.as_bytes(), &mut names, 0, 1e9).unwrap(), &names);
        }
        breakers.finding(&names)
    }

    #[test]
    fn a_probe_that_succeeds_is_a_recovery() {
        let finding = heard(&[(1, 10.0, "breaker", "open", 0.0), (1, 31.0, "attempt", "success", 1.0)]);
        assert_eq!((finding.verdict, &finding.evidence["longest_open_s"]), (Verdict::Ok, &21.0.into()));
        let closed = heard(&[
            (1, 10.0, "breaker", "open", 0.0),
            (1, 30.0, "breaker", "half_open", 0.0),
            (1, 31.0, "breaker", "closed", 0.0),
        ]);
        assert_eq!((closed.verdict, &closed.evidence["recovered"]), (Verdict::Ok, &1.into()));
    }

    #[test]
    fn what_was_in_flight_is_no_probe_and_another_gate_no_witness() {
        let finding = heard(&[
            (1, 10.0, "breaker", "open", 0.0),
            (1, 12.0, "attempt", "success", 5.0),
            (2, 40.0, "attempt", "success", 1.0),
            (1, 41.0, "call", "breaker_open", 0.0),
        ]);
        assert_eq!(finding.verdict, Verdict::NotEnoughData);
    }

    #[test]
    fn one_that_stays_open_while_it_is_asked_is_a_problem() {
        let finding = heard(&[
            (1, 10.0, "breaker", "open", 0.0),
            (1, 31.0, "attempt", "server_error", 0.1),
            (1, 31.0, "breaker", "open", 0.0),
            (1, 75.0, "call", "breaker_open", 0.0),
        ]);
        assert_eq!(finding.verdict, Verdict::Problem);
        assert_eq!((&finding.evidence["opened"], &finding.evidence["probes_failed"]), (&1.into(), &1.into()));
        assert!(finding.summary.contains("m at https://a.test"), "{}", finding.summary);
    }

    #[test]
    fn none_that_opened_is_nothing_to_tell_of() {
        assert_eq!(heard(&[(1, 1.0, "attempt", "success", 0.1)]).verdict, Verdict::NotEnoughData);
    }
}
