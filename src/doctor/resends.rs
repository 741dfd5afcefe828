//! Finds requests that were sent again by somebody outside the gate: the same request, begun within seconds after
//! the same request had failed.
//!
//! The same words may be asked again for other reasons: by a health check, or by a load test. Whoever does that
//! asks again after answers too, with the same pauses; a layer of retries does not. Such requests are left out.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::record::{Kind, Reason, Record, Trace};
use super::sample::Sample;

/// A request that begins later than this after the failure is somebody's second thought.
const LONGEST_GAP_S: f64 = 30.0;

/// Calls are told of at their end: one that answers a failure may end this much later.
const PATIENCE_S: f64 = 300.0;

/// Clocks of a log have this grain.
const GRAIN_S: f64 = 0.002;

/// Requests remembered at once, and ends of calls for each.
const MOST_REQUESTS: usize = 65_536;
const MOST_ENDS: usize = 32;

/// Gaps kept of one request, and of each step of all.
const MOST_GAPS: usize = 24;
const MOST_GAPS_PER_STEP: usize = 1_000;
pub(super) const STEPS: usize = 6;

/// A pause after failures that is none after answers: this long, and this many times the other.
const LEAST_PAUSE_S: f64 = 0.1;
const PAUSE_RATIO: f64 = 5.0;

/// The end of a call that nobody has followed up yet.
#[derive(Debug, Clone, Copy)]
struct End {
    at: f64,
    ok: bool,
    /// Calls of the chain so far, and the requests they sent.
    calls: u32,
    sends: u32,
    /// The gate had given up on it: for good, or after retries of its own.
    given_up: bool,
    hinted: bool,
    first: Trace,
    trace: Trace,
    key: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Gap {
    seconds: f64,
    step: usize,
    /// The server had named the wait.
    hinted: bool,
}

/// Whether a key was the same when the request was sent again.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyCheck {
    pub failed: Trace,
    pub again: Trace,
    pub stable: bool,
}

/// What happened to one request that was sent more than once.
#[derive(Debug, Default)]
struct Chain {
    resent: u32,
    given_up: u32,
    roots: u32,
    sends: u32,
    worst: Worst,
    after_failure: Vec<Gap>,
    after_answer: Vec<f64>,
    asked_again: u32,
    keys: Vec<KeyCheck>,
}

#[derive(Debug, Default)]
struct Request {
    ends: VecDeque<End>,
    chain: Option<Box<Chain>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Worst {
    pub sends: u32,
    pub calls: u32,
    pub trace: Trace,
}

/// The figures of all requests.
#[derive(Debug)]
pub(super) struct Tally {
    /// Calls on which the gate had given up: those that an outer layer would send again.
    pub given_up: u64,
    /// Calls that were sent again, and those of them on which the gate had given up.
    pub resent: u64,
    pub resent_given_up: u64,
    /// Requests whose calls were sent again, and how many requests to the upstream they became.
    pub roots: u64,
    pub sends: u64,
    pub worst: Worst,
    pub traces: Sample<Trace>,
    /// Pauses before the n-th repetition that were the outer layer's own.
    pub gaps: [Sample<f64>; STEPS],
    /// Requests that are asked again anyway, and were left out.
    pub left_out: u64,
    pub with_fingerprint: u64,
    pub without_fingerprint: u64,
    pub keys: Vec<KeyCheck>,
    pub keys_stable: u64,
    pub keys_changed: u64,
}

/// Checks of keys that are kept to be shown.
const MOST_KEY_CHECKS: usize = 256;

impl Default for Tally {
    fn default() -> Self {
        Self {
            given_up: 0,
            resent: 0,
            resent_given_up: 0,
            roots: 0,
            sends: 0,
            worst: Worst::default(),
            traces: Sample::new(5),
            gaps: std::array::from_fn(|_| Sample::new(MOST_GAPS_PER_STEP)),
            left_out: 0,
            with_fingerprint: 0,
            without_fingerprint: 0,
            keys: Vec::new(),
            keys_stable: 0,
            keys_changed: 0,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Resends {
    /// Not randomised: the same log gives the same report.
    requests: HashMap<u64, Request, BuildHasherDefault<DefaultHasher>>,
    tally: Tally,
}

impl Resends {
    pub(super) fn hear(&mut self, record: &Record) {
        // A call in a guarded one is made again by that, which pays for it.
        if record.kind != Kind::Call || record.nested {
            return;
        }
        let Some(fingerprint) = record.fingerprint else {
            self.tally.without_fingerprint += 1;
            return;
        };
        self.tally.with_fingerprint += 1;
        let given_up = given_up(record);
        self.tally.given_up += u64::from(given_up);
        if self.requests.len() >= MOST_REQUESTS && !self.requests.contains_key(&fingerprint) {
            self.forget(record.ts);
        }
        let request = self.requests.entry(fingerprint).or_default();
        request.ends.retain(|end| record.ts - end.at <= PATIENCE_S);
        let earlier = request.take_followed(record.began());
        let mut end = End {
            at: record.ts,
            ok: record.ok,
            calls: 1,
            sends: record.attempts,
            given_up,
            hinted: record.retry_after.is_some_and(|wait| wait > 0.0),
            first: record.trace,
            trace: record.trace,
            key: record.key,
        };
        if let Some(earlier) = earlier {
            let chain = request.chain.get_or_insert_default();
            chain.follow(&earlier, &mut end, record.began() - earlier.at);
        }
        if request.ends.len() >= MOST_ENDS {
            request.ends.pop_front();
        }
        request.ends.push_back(end);
    }

    /// Makes room: whatever was silent for long goes, and at least half of all.
    fn forget(&mut self, now: f64) {
        let mut times: Vec<f64> = self.requests.values().map(Request::last).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable_by(middle, f64::total_cmp);
        let oldest = median.max(now - PATIENCE_S);
        let tally = &mut self.tally;
        self.requests.retain(|_, request| {
            let stays = request.last() > oldest;
            if !stays {
                tally.add(request);
            }
            stays
        });
    }

    pub(super) fn tally(mut self) -> Tally {
        for request in self.requests.values() {
            self.tally.add(request);
        }
        self.tally
    }
}

/// The gate sent it more than once, or refused to send it once more.
fn given_up(record: &Record) -> bool {
    let refused = matches!(record.reason, Reason::NonRetryable | Reason::Budget | Reason::Elapsed);
    !record.ok && (record.attempts > 1 || (record.attempts == 1 && refused))
}

impl Request {
    fn last(&self) -> f64 {
        self.ends.back().map_or(0.0, |end| end.at)
    }

    /// The earliest failure that a call begun then may answer; an answer where there is no failure.
    fn take_followed(&mut self, began: f64) -> Option<End> {
        let may = |end: &End| (-GRAIN_S..=LONGEST_GAP_S).contains(&(began - end.at));
        let failed = self.ends.iter().position(|end| !end.ok && may(end));
        let place = failed.or_else(|| self.ends.iter().position(may))?;
        self.ends.remove(place)
    }
}

impl Chain {
    fn follow(&mut self, earlier: &End, end: &mut End, gap: f64) {
        let gap = gap.max(0.0);
        if earlier.ok {
            self.asked_again += 1;
            if self.after_answer.len() < MOST_GAPS {
                self.after_answer.push(gap);
            }
            return;
        }
        if earlier.calls == 1 {
            self.roots += 1;
            self.sends += earlier.sends;
        }
        self.resent += 1;
        self.given_up += u32::from(earlier.given_up);
        self.sends += end.sends;
        end.calls = earlier.calls + 1;
        end.sends += earlier.sends;
        end.first = earlier.first;
        if end.sends > self.worst.sends {
            self.worst = Worst { sends: end.sends, calls: end.calls, trace: end.first };
        }
        if self.after_failure.len() < MOST_GAPS {
            let step = usize::try_from(earlier.calls).unwrap_or(STEPS).clamp(1, STEPS) - 1;
            self.after_failure.push(Gap { seconds: gap, step, hinted: earlier.hinted });
        }
        if let (Some(before), Some(now)) = (earlier.key, end.key)
            && self.keys.len() < MOST_GAPS
        {
            self.keys.push(KeyCheck { failed: earlier.trace, again: end.trace, stable: before == now });
        }
    }

    /// Whether it is sent again because it failed, and not anyway.
    fn is_retried(&self) -> bool {
        if self.asked_again == 0 {
            return true;
        }
        let after_failure = median(self.after_failure.iter().map(|gap| gap.seconds).collect());
        let after_answer = median(self.after_answer.clone());
        after_failure >= LEAST_PAUSE_S && after_failure >= PAUSE_RATIO * after_answer
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Tally {
    fn add(&mut self, request: &Request) {
        let Some(chain) = request.chain.as_deref().filter(|chain| chain.resent > 0) else { return };
        if !chain.is_retried() {
            self.left_out += 1;
            return;
        }
        self.resent += u64::from(chain.resent);
        self.resent_given_up += u64::from(chain.given_up);
        self.roots += u64::from(chain.roots);
        self.sends += u64::from(chain.sends);
        if chain.worst.sends > self.worst.sends {
            self.worst = chain.worst;
        }
        self.traces.offer(chain.worst.trace);
        for gap in chain.after_failure.iter().filter(|gap| !gap.hinted) {
            if let Some(sample) = self.gaps.get_mut(gap.step) {
                sample.offer(gap.seconds);
            }
        }
        for check in &chain.keys {
            *(if check.stable { &mut self.keys_stable } else { &mut self.keys_changed }) += 1;
            if self.keys.len() < MOST_KEY_CHECKS {
                self.keys.push(*check);
            }
        }
    }
}
