//! The share of 429s and 5xx in the last 15 minutes of the log.

use std::collections::VecDeque;

use super::finding::{Finding, Verdict, percent, rounded};
use super::record::{Kind, Record, Trace};
use super::sample::Sample;

const WINDOW_S: f64 = 900.0;

/// Slots of a tenth of a second: fine enough to cut a short log, few enough to keep.
const SLOT_S: f64 = 0.1;

/// Share of failed attempts from which on an upstream is not well.
const LIMIT: f64 = 0.05;

/// Fewer attempts have no share.
const LEAST_ATTEMPTS: u64 = 20;

/// The last part of the window, by attempts: a trouble that is over does not reach into it.
const TAIL: f64 = 0.2;

/// Normal quantile of the 99.5 % confidence with which a share must be over the limit.
const Z: f64 = 2.576;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    at: i64,
    attempts: u64,
    rate_limited: u64,
    server_errors: u64,
    unanswered: u64,
}

impl Slot {
    fn failed(&self) -> u64 {
        self.rate_limited + self.server_errors + self.unanswered
    }

    fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.rate_limited += other.rate_limited;
        self.server_errors += other.server_errors;
        self.unanswered += other.unanswered;
    }
}

#[derive(Debug)]
pub(super) struct UpstreamErrors {
    slots: VecDeque<Slot>,
    traces: Sample<Trace>,
}

impl Default for UpstreamErrors {
    fn default() -> Self {
        Self { slots: VecDeque::new(), traces: Sample::new(5) }
    }
}

impl UpstreamErrors {
    pub(super) fn hear(&mut self, record: &Record) {
        if record.kind != Kind::Attempt {
            return;
        }
        #[allow(clippy::cast_possible_truncation, reason = "seconds since 1970 have room")]
        let at = (record.ts / SLOT_S) as i64;
        if self.slots.back().is_none_or(|last| last.at < at) {
            self.slots.push_back(Slot { at, ..Slot::default() });
            #[allow(clippy::cast_possible_truncation, reason = "a constant")]
            let oldest = at - (WINDOW_S / SLOT_S) as i64;
            while self.slots.front().is_some_and(|first| first.at <= oldest) {
                self.slots.pop_front();
            }
        }
        // A record that comes late by the disorder of a shared file counts to the last slot.
        let Some(slot) = self.slots.back_mut() else { return };
        slot.attempts += 1;
        match record.status {
            Some(429) => slot.rate_limited += 1,
            Some(status) if status >= 500 => slot.server_errors += 1,
            None if !record.ok && record.latency > 0.0 => slot.unanswered += 1,
            _ => return,
        }
        self.traces.offer(record.trace);
    }

    pub(super) fn finding(&self) -> Finding {
        let mut all = Slot::default();
        self.slots.iter().for_each(|slot| all.add(slot));
        let tail = self.tail(all.attempts);
        let [share, recent] = [&all, &tail].map(|slot| slot.failed() as f64 / slot.attempts.max(1) as f64);
        let finding = Finding::new("upstream_errors", "429s and 5xx in the last 15 minutes")
            .with("attempts", all.attempts)
            .with("rate_limited", all.rate_limited)
            .with("server_errors", all.server_errors)
            .with("unanswered", all.unanswered)
            .with("share", rounded(share))
            .with("latest_attempts", tail.attempts)
            .with("latest_share", rounded(recent));
        if all.attempts < LEAST_ATTEMPTS {
            let summary =
                format!("{} attempts in the last 15 minutes; {LEAST_ATTEMPTS} are needed", all.attempts);
            return finding.says(Verdict::NotEnoughData, summary, "");
        }
        let parts = format!(
            "{} of {} attempts failed ({} with 429, {} with 5xx, {} unanswered)",
            percent(share),
            all.attempts,
            all.rate_limited,
            all.server_errors,
            all.unanswered
        );
        if !is_over(&all) {
            return finding.says(Verdict::Ok, parts, "");
        }
        let finding = finding.traces(self.traces.kept().iter().copied());
        if !is_over(&tail) {
            let summary = format!("{parts}; it is over: {} of the latest {}", percent(recent), tail.attempts);
            return finding.says(Verdict::Ok, summary, "");
        }
        let advice = if all.rate_limited * 2 > all.failed() {
            "More is sent than the provider grants. Give the gate the real quota, Limits(rpm=…, tpm=…), in each \
             process its part of it; or ask the provider for more."
        } else {
            "The upstream fails now. Look at its status page and at the traces; give the gate fallbacks or a \
             degraded answer. More retries make it worse."
        };
        let summary = format!("{parts}, and {} of the latest {}", percent(recent), tail.attempts);
        finding.says(Verdict::Problem, summary, advice)
    }

    fn tail(&self, attempts: u64) -> Slot {
        let wanted = (attempts as f64 * TAIL).max(LEAST_ATTEMPTS as f64);
        let mut tail = Slot::default();
        for slot in self.slots.iter().rev() {
            if tail.attempts as f64 >= wanted {
                break;
            }
            tail.add(slot);
        }
        tail
    }
}

/// Whether the share is over the limit for certain: the lower bound of Wilson's interval is.
fn is_over(slot: &Slot) -> bool {
    let n = slot.attempts.max(1) as f64;
    let p = slot.failed() as f64 / n;
    let z2 = Z * Z;
    let middle = p + z2 / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    (middle - half) / (1.0 + z2 / n) > LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(attempts: impl IntoIterator<Item = (f64, u16)>) -> Finding {
        let mut errors = UpstreamErrors::default();
        for (ts, status) in attempts {
            errors.hear(&Record {
                kind: Kind::Attempt,
                ts,
                status: (status > 0).then_some(status),
                ok: status == 200,
                latency: 0.1,
                trace: Trace(9),
                ..Record::default()
            });
        }
        errors.finding()
    }

    fn every(n: u32, status: u16) -> impl Iterator<Item = (f64, u16)> {
        (0..1000).map(move |i| (f64::from(i), if i % n == 0 { status } else { 200 }))
    }

    #[test]
    fn a_share_over_the_limit_is_a_problem_whatever_fails() {
        for (status, kind) in [(429, "rate_limited"), (500, "server_errors"), (0, "unanswered")] {
            let finding = heard(every(10, status));
            assert_eq!(finding.verdict, Verdict::Problem, "{status}");
            assert_eq!(finding.evidence[kind], 90);
            assert_eq!(finding.evidence["attempts"], 900, "the window is 15 minutes");
            assert_eq!(finding.trace_ids.len(), 5);
        }
    }

    #[test]
    fn ordinary_failures_and_callers_mistakes_are_none() {
        assert_eq!(heard(every(25, 503)).verdict, Verdict::Ok);
        assert_eq!(heard(every(2, 400)).verdict, Verdict::Ok);
    }

    #[test]
    fn few_attempts_are_no_share() {
        assert_eq!(heard(every(1, 500).take(19)).verdict, Verdict::NotEnoughData);
        assert_eq!(heard(every(1, 500).take(20)).verdict, Verdict::Problem);
        assert_eq!(heard([]).verdict, Verdict::NotEnoughData);
    }

    #[test]
    fn an_outage_that_is_over_is_none() {
        let outage = |from: i32, to: i32| {
            (0..800).map(move |i| (f64::from(i), if (from..to).contains(&i) { 500 } else { 200 }))
        };
        let over = heard(outage(100, 300));
        assert_eq!(over.verdict, Verdict::Ok);
        assert!(over.summary.contains("it is over"), "{}", over.summary);
        assert_eq!(heard(outage(700, 800)).verdict, Verdict::Problem);
        let old = heard((0..2000).map(|i| (f64::from(i), if i < 1000 { 500 } else { 200 })));
        assert_eq!(old.evidence["share"], 0.0);
    }
}
