//! A door to the pure mechanisms for tests written as data: tables and simulations in virtual time. Private:
//! nothing outside `tests/` uses it. Times are seconds; simulations count them from an arbitrary start.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lock::Mutex;
use http::{HeaderMap, HeaderName, HeaderValue};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::errors::config_error;
use super::policy;
use crate::admission::{self, Admission, Entry, Refusal, Settlement};
use crate::backoff::{BackoffClass, delay};
use crate::breaker::{self, Breaker, Outcome};
use crate::classify::{self, ErrorBody, Health, Verdict};
use crate::clock::Instant;
use crate::config::RetryPolicy;
use crate::error::{TransportError, TransportErrorKind};
use crate::price::PriceBook;
use crate::request::RequestFacts;
use crate::scope::Sizes;
use crate::usage::Usage;

#[pymodule(name = "_probe")]
pub(super) mod probe {
    #[pymodule_export]
    use super::{BreakerSim, LimiterSim, backoff, cost, estimate, health, parse_duration, server_wait};
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(format!("{value} s: {error}")))
}

/// The simulations begin an hour after the clock's origin, as the real clock does.
fn at(value: f64) -> PyResult<Instant> {
    Ok(Instant::from_nanos(3_600_000_000_000) + seconds(value)?)
}

fn from_start(instant: Instant) -> PyResult<f64> {
    Ok(instant.since(at(0.0)?).as_secs_f64())
}

fn wall(value: f64) -> PyResult<SystemTime> {
    Ok(UNIX_EPOCH + seconds(value)?)
}

fn header_map(pairs: Vec<(String, String)>) -> PyResult<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) else {
            return Err(PyValueError::new_err("no such header can be"));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// The wait that an answer asks for; `inf` if longer than any.
#[pyfunction]
fn server_wait(
    status: u16,
    headers: Vec<(String, String)>,
    body: &[u8],
    wall_seconds: f64,
) -> PyResult<Option<f64>> {
    let error = ErrorBody::parse(body);
    let wait = classify::server_wait(status, &header_map(headers)?, Some(&error), wall(wall_seconds)?);
    Ok(wait.map(finite))
}

#[pyfunction]
fn parse_duration(text: &str) -> Option<f64> {
    classify::parse_duration(text).map(finite)
}

fn finite(duration: Duration) -> f64 {
    if duration == Duration::MAX { f64::INFINITY } else { duration.as_secs_f64() }
}

/// One wait before retry `retry_index` (0 is the first) after a transient failure.
#[pyfunction]
fn backoff(py: Python<'_>, retry_index: u32, base: f64, cap: f64, seed: u64) -> PyResult<f64> {
    let policy = RetryPolicy { base: seconds(base)?, cap: seconds(cap)?, ..RetryPolicy::default() };
    policy.validate().map_err(|error| config_error(py, &error))?;
    let mut rng = SmallRng::seed_from_u64(seed);
    Ok(delay(&policy, retry_index, BackoffClass::Transient, None, &mut rng).as_secs_f64())
}

/// Tokens of a request's prompt, the limit of its answer, and what is reserved for it where nothing has been
/// learnt yet. `None` if the body is no JSON object.
#[pyfunction]
fn estimate(body: &[u8]) -> Option<(u64, Option<u64>, u64)> {
    let facts = RequestFacts::read(body)?;
    let sizes = Sizes::default();
    let prompt = facts.prompt_tokens(sizes.bytes_per_token());
    let output = facts.output_limit.unwrap_or_else(|| sizes.output().saturating_mul(facts.n));
    Some((prompt, facts.output_limit, prompt.saturating_add(output)))
}

/// US dollars as a decimal; `None` where the model, the tier or the usage has no price.
#[pyfunction]
#[pyo3(signature = (prices, model, tier, usage))]
fn cost(
    py: Python<'_>,
    prices: &str,
    model: &str,
    tier: Option<&str>,
    usage: &str,
) -> PyResult<Option<String>> {
    let book = PriceBook::from_json(prices).map_err(|error| config_error(py, &error))?;
    let usage = Usage::from_json(usage);
    Ok(usage.and_then(|usage| book.cost(model, tier, &usage, UNIX_EPOCH)).map(|cost| cost.to_string()))
}

/// What a failure says of the upstream: `"success"`, `"failure"` or `"neutral"`. `what` is an HTTP status, or the
/// word for a failure without an answer.
#[pyfunction]
fn health(what: &str) -> PyResult<&'static str> {
    let verdict = match what.parse::<u16>() {
        Ok(status) if status < 300 => Verdict::success(status),
        Ok(status) => classify::error(status, &HeaderMap::new(), b"", UNIX_EPOCH),
        Err(_) => classify::failure(&TransportError { kind: transport(what)?, message: String::new() }),
    };
    Ok(match verdict.health {
        Health::Success => "success",
        Health::Failure => "failure",
        Health::Neutral => "neutral",
    })
}

fn transport(word: &str) -> PyResult<TransportErrorKind> {
    Ok(match word {
        "read_timeout" => TransportErrorKind::FirstByteTimeout,
        "attempt_timeout" => TransportErrorKind::AttemptTimeout,
        _ => return Err(PyValueError::new_err(format!("{word}: neither a status nor a kind of failure"))),
    })
}

/// Tickets under numbers that Python can hold.
#[derive(Debug)]
struct Numbered<T> {
    next: u64,
    tickets: HashMap<u64, T>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { next: 0, tickets: HashMap::new() }
    }
}

impl<T> Numbered<T> {
    fn add(&mut self, ticket: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.tickets.insert(number, ticket);
        number
    }

    fn take(&mut self, number: u64) -> PyResult<T> {
        self.tickets.remove(&number).ok_or_else(|| PyKeyError::new_err(number))
    }
}

/// What became of a request: its number, `"granted"`, `"queued"`, `"deadline"` or `"too_large"`, and for a refusal
/// the least wait in seconds or the limit in tokens.
type Fate = (Option<u64>, &'static str, Option<f64>);

fn refused(number: Option<u64>, refusal: Refusal) -> Fate {
    match refusal {
        Refusal::Deadline { eta } => (number, "deadline", Some(eta.as_secs_f64())),
        Refusal::TooLarge { limit, .. } => (number, "too_large", Some(limit as f64)),
    }
}

/// The admission controller of one scope.
#[pyclass(frozen, module = "tidegate._core._probe")]
pub(super) struct LimiterSim {
    state: Mutex<(Admission, Numbered<admission::Ticket>)>,
}

#[pymethods]
impl LimiterSim {
    #[new]
    fn new(limits: &Bound<'_, PyAny>) -> PyResult<Self> {
        let admission = Admission::new(&policy::limits(limits)?, at(0.0)?);
        Ok(Self { state: Mutex::new((admission, Numbered::default())) })
    }

    #[pyo3(signature = (now, cost, limit=None))]
    fn enqueue(&self, now: f64, cost: u64, limit: Option<f64>) -> PyResult<Fate> {
        let (admission, numbered) = &mut *self.state.lock();
        let limit = limit.map_or(Ok(Instant::FAR_FUTURE), at)?;
        Ok(match admission.enqueue(at(now)?, cost, limit) {
            Ok(Entry::Granted(ticket)) => (Some(numbered.add(ticket)), "granted", None),
            Ok(Entry::Queued(ticket)) => (Some(numbered.add(ticket)), "queued", None),
            Err(refusal) => refused(None, refusal),
        })
    }

    /// Those whose wait ended.
    fn advance(&self, now: f64) -> PyResult<Vec<Fate>> {
        let (admission, numbered) = &mut *self.state.lock();
        let mut resolved = Vec::new();
        admission.advance(at(now)?, &mut resolved);
        Ok(resolved
            .into_iter()
            .map(|admission::Resolved { ticket, outcome }| {
                let number =
                    numbered.tickets.iter().find(|(_, known)| **known == ticket).map(|(number, _)| *number);
                match outcome {
                    Ok(()) => (number, "granted", None),
                    Err(refusal) => refused(number, refusal),
                }
            })
            .collect())
    }

    fn next_wake(&self, now: f64) -> PyResult<Option<f64>> {
        self.state.lock().0.next_wake(at(now)?).map(from_start).transpose()
    }

    fn settle(&self, now: f64, number: u64, tokens: u64) -> PyResult<()> {
        let (admission, numbered) = &mut *self.state.lock();
        admission.settle(at(now)?, numbered.take(number)?, Settlement::Used { tokens });
        Ok(())
    }

    fn cancel(&self, now: f64, number: u64) -> PyResult<()> {
        let (admission, numbered) = &mut *self.state.lock();
        admission.cancel(at(now)?, numbered.take(number)?);
        Ok(())
    }

    fn set_limits(&self, now: f64, limits: &Bound<'_, PyAny>) -> PyResult<()> {
        self.state.lock().0.set_limits(at(now)?, &policy::limits(limits)?);
        Ok(())
    }

    /// In flight, waiting, and the levels of requests and tokens (`None`: no limit).
    fn levels(&self, now: f64) -> PyResult<(usize, usize, Option<f64>, Option<f64>)> {
        let snapshot = self.state.lock().0.snapshot(at(now)?);
        let level = |quota: Option<admission::QuotaSnapshot>| quota.map(|quota| quota.level);
        Ok((snapshot.in_flight, snapshot.queued, level(snapshot.requests), level(snapshot.tokens)))
    }
}

/// One circuit breaker.
#[pyclass(frozen, module = "tidegate._core._probe")]
pub(super) struct BreakerSim {
    state: Mutex<(Breaker, Numbered<breaker::Ticket>)>,
}

#[pymethods]
impl BreakerSim {
    #[new]
    fn new(policy: &Bound<'_, PyAny>) -> PyResult<Self> {
        let breaker = Breaker::new(&policy::breaker(policy)?, at(0.0)?);
        Ok(Self { state: Mutex::new((breaker, Numbered::default())) })
    }

    /// The number of a call that may be sent, or `None` and the seconds after which to ask again.
    #[pyo3(signature = (now, attempt_timeout=None))]
    fn acquire(&self, now: f64, attempt_timeout: Option<f64>) -> PyResult<(Option<u64>, Option<f64>)> {
        let (breaker, numbered) = &mut *self.state.lock();
        Ok(match breaker.acquire(at(now)?, attempt_timeout.map(seconds).transpose()?) {
            Ok(ticket) => (Some(numbered.add(ticket)), None),
            Err(rejection) => (None, rejection.retry_after.map(finite)),
        })
    }

    /// `outcome` is one of the words of `health`.
    fn record(&self, now: f64, number: u64, outcome: &str) -> PyResult<()> {
        let (breaker, numbered) = &mut *self.state.lock();
        let outcome = match outcome {
            "success" => Outcome::Success,
            "failure" => Outcome::Failure,
            "neutral" => Outcome::Neutral,
            _ => return Err(PyValueError::new_err(format!("{outcome}: no outcome"))),
        };
        breaker.record(at(now)?, numbered.take(number)?, outcome);
        Ok(())
    }

    fn state(&self, now: f64) -> PyResult<&'static str> {
        let (breaker, _) = &mut *self.state.lock();
        // A look works out what time has brought about.
        breaker.peek(at(now)?).ok();
        Ok(breaker.state().as_str())
    }
}
