//! Retries around retries: what amplifies one failure into 9 to 27 requests.

use super::finding::{Finding, Verdict, percent, rounded};
use super::resends::Tally;

/// Fewer may be somebody who pressed a button again.
const LEAST_RESENT: u64 = 3;

/// A layer sends most failures again, a person few.
const LEAST_SHARE: f64 = 0.2;

pub(super) fn finding(tally: &Tally) -> Finding {
    let share = tally.resent_given_up as f64 / tally.given_up.max(1) as f64;
    let amplification = tally.sends as f64 / tally.roots.max(1) as f64;
    let finding = Finding::new("double_retries", "Retries of an outer layer")
        .with("calls_given_up", tally.given_up)
        .with("sent_again", tally.resent)
        .with("sent_again_after_giving_up", tally.resent_given_up)
        .with("requests_left_out", tally.left_out);
    if tally.with_fingerprint == 0 {
        let summary = match tally.without_fingerprint {
            0 => String::from("the log holds no call"),
            calls => format!("none of the {calls} calls has a fingerprint: an older version wrote this log"),
        };
        return finding.says(Verdict::NotEnoughData, summary, "");
    }
    if tally.given_up < LEAST_RESENT {
        let summary = format!("the gate gave up on {} calls only", tally.given_up);
        return finding.says(Verdict::NotEnoughData, summary, "");
    }
    if tally.resent_given_up < LEAST_RESENT || share < LEAST_SHARE {
        let summary = format!(
            "{} of the {} calls on which the gate gave up were sent again",
            tally.resent_given_up, tally.given_up
        );
        return finding.says(Verdict::Ok, summary, "");
    }
    let finding = finding
        .with("requests", tally.roots)
        .with("attempts", tally.sends)
        .with("amplification", rounded(amplification))
        .with("worst_attempts", tally.worst.sends)
        .with("worst_calls", tally.worst.calls)
        .traces([tally.worst.trace])
        .traces(tally.traces.kept().iter().copied().filter(|trace| *trace != tally.worst.trace));
    let summary = format!(
        "{} of the calls on which the gate gave up were sent again within seconds: {amplification:.1} attempts per \
         request, at worst {} in {} calls",
        percent(share),
        tally.worst.sends,
        tally.worst.calls
    );
    finding.says(
        Verdict::Problem,
        summary,
        "Something around the client retries what the gate has retried already. Take it away, or let it pass on \
         tidegate's errors: tenacity, backoff or a loop; max_retries of a framework; a queue's redelivery. Set \
         Gate(retry=RetryPolicy(max_attempts=…)) instead, which has a budget.",
    )
}

#[cfg(test)]
mod tests {
    use super::super::record::{Kind, Reason, Record, Trace};
    use super::super::resends::Resends;
    use super::*;

    /// Calls as (request, begin, end, attempts); 0 attempts at the end is an answer after one.
    fn tally(calls: &[(u64, f64, f64, u32)]) -> Tally {
        let mut resends = Resends::default();
        let mut calls = calls.to_vec();
        calls.sort_by(|a, b| a.2.total_cmp(&b.2));
        for (i, (fingerprint, begin, end, attempts)) in calls.into_iter().enumerate() {
            resends.hear(&Record {
                kind: Kind::Call,
                ts: end,
                latency: end - begin,
                ok: attempts == 0,
                attempts: attempts.max(1),
                fingerprint: Some(fingerprint),
                trace: Trace(i as u128 + 1),
                reason: Reason::Other,
                ..Record::default()
            });
        }
        resends.tally()
    }

    #[test]
    fn three_times_three_is_measured() {
        let calls: Vec<_> = (0u32..4)
            .flat_map(|i| {
                let at = 100.0 * f64::from(i);
                [
                    (u64::from(i), at, at + 1.0, 3),
                    (u64::from(i), at + 2.0, at + 3.0, 3),
                    (u64::from(i), at + 5.0, at + 6.0, 3),
                ]
            })
            .collect();
        let finding = finding(&tally(&calls));
        assert_eq!(finding.verdict, Verdict::Problem);
        assert_eq!(finding.evidence["amplification"], 9.0);
        assert_eq!(
            (&finding.evidence["worst_attempts"], &finding.evidence["worst_calls"]),
            (&9.into(), &3.into())
        );
        assert_eq!(finding.trace_ids.len(), 4);
    }

    #[test]
    fn tasks_that_send_the_same_at_once_are_kept_apart() {
        // Twenty tasks ask the same; each is repeated once after a second, and then answered.
        let calls: Vec<_> = (0u32..20)
            .flat_map(|i| {
                let at = f64::from(i) / 100.0;
                [(7, at, at + 1.0, 4), (7, at + 2.0, at + 2.5, 0)]
            })
            .collect();
        let tally = tally(&calls);
        assert_eq!((tally.resent_given_up, tally.roots, tally.sends), (20, 20, 100));
        assert_eq!(finding(&tally).evidence["amplification"], 5.0);
    }

    #[test]
    fn a_loop_that_asks_the_same_for_ever_is_no_layer() {
        let calls: Vec<_> = (0u32..300)
            .map(|i| (7, f64::from(i), f64::from(i) + 0.9, if i % 3 == 0 { 4 } else { 0 }))
            .collect();
        let tally = tally(&calls);
        assert_eq!((tally.resent, tally.left_out), (0, 1));
        assert_eq!(finding(&tally).verdict, Verdict::Ok);
    }

    #[test]
    fn a_loop_that_pauses_after_failures_alone_is_one() {
        let (mut at, mut calls) = (0.0, Vec::new());
        for i in 0..60 {
            let failed = i % 3 != 2;
            calls.push((7, at, at + 1.0, if failed { 4 } else { 0 }));
            at += if failed { 2.0 } else { 1.01 };
        }
        let tally = tally(&calls);
        assert_eq!((tally.resent_given_up, tally.roots, tally.worst.calls), (40, 20, 3));
        assert_eq!(finding(&tally).verdict, Verdict::Problem);
    }

    #[test]
    fn single_attempts_are_one_layer() {
        let calls: Vec<_> = (0..20)
            .flat_map(|i| [(i, i as f64, i as f64 + 0.1, 1), (i, i as f64 + 0.6, i as f64 + 0.7, 0)])
            .collect();
        let tally = tally(&calls);
        assert_eq!((tally.resent, tally.resent_given_up), (20, 0));
        assert_eq!(finding(&tally).verdict, Verdict::NotEnoughData);
    }

    #[test]
    fn a_second_thought_is_no_retry() {
        let late: Vec<_> = (0..9)
            .flat_map(|i| [(i, i as f64, i as f64 + 1.0, 4), (i, i as f64 + 40.0, i as f64 + 41.0, 0)])
            .collect();
        assert_eq!(finding(&tally(&late)).verdict, Verdict::Ok);
        let mut few: Vec<_> = (0..50).map(|i| (i, i as f64, i as f64 + 1.0, 4)).collect();
        few.extend((0..4).map(|i| (i, i as f64 + 3.0, i as f64 + 4.0, 0)));
        assert_eq!(finding(&tally(&few)).verdict, Verdict::Ok, "a person who tries again");
    }

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_is_counted() {
        let mut calls = Vec::new();
        for i in 0u32..200_000 {
            let (id, at) = (u64::from(i), f64::from(i) / 1000.0);
            calls.push((id, at, at + 0.1, 2));
            if i % 1000 == 0 {
                calls.push((id, at + 0.2, at + 0.3, 0));
            }
        }
        assert_eq!(tally(&calls).resent_given_up, 200);
    }
}
