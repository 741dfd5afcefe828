//! The store of idempotency records, as Python asks it: at once where it answers from memory, else on the running
//! loop or blocking.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::answered::{Answered, answer_tuple};
use super::blocking;
use super::bridge::{self, Ticket};
use super::encode;
use super::engine::PyEngine;
use super::errors::{config_error, encode_error, store_error};
use super::hold::PyHold;
use super::outcome::{Delivery, LogRecord, NOTHING, Promise, Sink};
use super::per_process::PerProcess;
use super::runtime;
use super::transaction::PyTransaction;
use crate::clock;
use crate::config;
use crate::event::{Digest, Event, Facts, Kind, SCHEMA, unix_seconds};
use crate::idempotency::{
    self, Begin, Claim, Effect, Failure, Fingerprint, Leases, Operation, Outcome, Owner, Resolution, State,
    Store, key,
};
use crate::metrics::IdempotencyOutcome;

/// One operation, ready to be sent, and sent again.
#[pyclass(frozen, name = "Operation", module = "tidegate._core")]
pub(crate) struct PyOperation(Operation);

fn length(name: &str, seconds: f64) -> PyResult<Duration> {
    config::seconds(name, seconds).map_err(|error| Python::attach(|py| config_error(py, &error)))
}

pub(super) fn claim(owner: &[u8], fence: u64) -> PyResult<Claim> {
    Ok(Claim { owner: self::owner(owner)?, fence })
}

fn owner(bytes: &[u8]) -> PyResult<Owner> {
    let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| refused("an owner is 16 bytes"))?;
    Ok(Owner::from_bytes(bytes))
}

fn refused(problem: &'static str) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(problem)
}

pub(super) fn outcome(ok: bool, codec: &str, bytes: &[u8]) -> Outcome {
    Outcome { ok, codec: codec.into(), bytes: bytes.into() }
}

#[pymethods]
impl PyOperation {
    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "the parts of a claim, by name")]
    fn begin(
        owner: &[u8],
        fingerprint: &[u8],
        effect: &str,
        tool: &str,
        lease: f64,
        retention: f64,
        start: bool,
    ) -> PyResult<Self> {
        let fingerprint = fingerprint.try_into().map_err(|_| refused("a fingerprint is 32 bytes"))?;
        let effect = Effect::parse(effect).ok_or_else(|| refused("no such effect"))?;
        Ok(Self(Operation::Begin(Begin {
            fingerprint: Fingerprint(fingerprint),
            owner: self::owner(owner)?,
            effect,
            tool: tool.into(),
            lease: length("lease", lease)?,
            retention: length("retention", retention)?,
            start,
        })))
    }

    /// The owner of a claim.
    #[getter]
    fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.0 {
            Operation::Begin(begin) => Some(PyBytes::new(py, &begin.owner.to_bytes())),
            _ => None,
        }
    }

    #[staticmethod]
    fn start(owner: &[u8], fence: u64, lease: f64) -> PyResult<Self> {
        Ok(Self(Operation::Start { claim: claim(owner, fence)?, lease: length("lease", lease)? }))
    }

    #[staticmethod]
    fn heartbeat(owner: &[u8], fence: u64, lease: f64, note: Option<&str>) -> PyResult<Self> {
        let (claim, lease) = (claim(owner, fence)?, length("lease", lease)?);
        Ok(Self(Operation::Heartbeat { claim, lease, note: note.map(Into::into) }))
    }

    #[staticmethod]
    fn complete(owner: &[u8], fence: u64, ok: bool, codec: &str, result: &[u8]) -> PyResult<Self> {
        let outcome = outcome(ok, codec, result);
        Ok(Self(Operation::Complete { claim: claim(owner, fence)?, outcome }))
    }

    #[staticmethod]
    fn fail(owner: &[u8], fence: u64, unknown: bool) -> PyResult<Self> {
        let failure = if unknown { Failure::Unknown } else { Failure::NoEffect };
        Ok(Self(Operation::Fail { claim: claim(owner, fence)?, failure }))
    }

    /// Without a codec: it was not done.
    #[staticmethod]
    fn resolve(fence: Option<u64>, ok: bool, codec: Option<&str>, result: &[u8]) -> Self {
        let done = codec.map(|codec| Resolution::Done(outcome(ok, codec, result)));
        Self(Operation::Resolve { fence, resolution: done.unwrap_or(Resolution::NotDone) })
    }
}

/// The records of one store.
#[pyclass(frozen, name = "Store", module = "tidegate._core")]
pub(crate) struct PyStore {
    engine: Py<PyEngine>,
    url: String,
    leases: PerProcess<Leases>,
}

#[pymethods]
impl PyStore {
    #[new]
    fn new(py: Python<'_>, engine: Py<PyEngine>, url: String) -> PyResult<Self> {
        let store = Store::open(&url).map_err(|error| config_error(py, &error))?;
        Ok(Self { engine, url, leases: PerProcess::new(Leases::new(store)) })
    }

    /// `memory`, `sqlite` or `redis`.
    #[getter]
    fn kind(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.current(py)?.kind())
    }

    /// The answer, from a store that has it at once; `None` from one that has to be waited for.
    fn answer<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        operation: &PyOperation,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        match &*self.current(py)? {
            Store::Memory(memory) => answer_tuple(py, memory.apply(key, &operation.0)).map(Some),
            Store::Sqlite(_) | Store::Redis(_) => Ok(None),
        }
    }

    /// Asks on the running loop.
    fn submit(&self, py: Python<'_>, key: &str, operation: &PyOperation, patience: f64) -> PyResult<Ticket> {
        let _inside = runtime::enter(py);
        let (ask, patience) = (self.ask(py, key, operation)?, length("patience", patience)?);
        bridge::submit(py, None, |courier| Ok(deliver(courier, ask.answered(patience))))
    }

    /// Asks and waits without the GIL.
    fn call(&self, py: Python<'_>, key: &str, operation: &PyOperation, patience: f64) -> PyResult<Py<PyAny>> {
        let mut inside = runtime::enter(py);
        let (ask, patience) = (self.ask(py, key, operation)?, length("patience", patience)?);
        blocking::wait(py, &mut inside, |mailbox| Ok(deliver(mailbox, ask.answered(patience))))
    }

    /// Sends what nobody waits for.
    fn post(&self, py: Python<'_>, key: &str, operation: &PyOperation, patience: f64) -> PyResult<()> {
        let _inside = runtime::enter(py);
        let (ask, patience) = (self.ask(py, key, operation)?, length("patience", patience)?);
        runtime::handle(py)?.spawn(ask.answered(patience));
        Ok(())
    }

    fn get(&self, py: Python<'_>, key: String) -> PyResult<Py<PyAny>> {
        let mut inside = runtime::enter(py);
        let store = self.current(py)?;
        let work = async move { Answered::Record(store.get(&key).await.map(|record| record.map(Box::new))) };
        blocking::wait(py, &mut inside, |mailbox| Ok(deliver(mailbox, work)))
    }

    fn list(&self, py: Python<'_>, prefix: String, states: Vec<String>, limit: usize) -> PyResult<Py<PyAny>> {
        let mut inside = runtime::enter(py);
        let store = self.current(py)?;
        let states: Vec<_> = states.into_iter().filter_map(|state| State::parse(&state)).collect();
        let work = async move { Answered::Records(store.list(&prefix, &states, limit).await) };
        blocking::wait(py, &mut inside, |mailbox| Ok(deliver(mailbox, work)))
    }

    fn purge(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut inside = runtime::enter(py);
        let store = self.current(py)?;
        let work = async move { Answered::Count(store.purge().await) };
        blocking::wait(py, &mut inside, |mailbox| Ok(deliver(mailbox, work)))
    }

    /// Renews a lease until the hold is let go. On a loop, `watched`, its ticket's future ends when the lease does.
    fn hold(
        &self,
        py: Python<'_>,
        key: &str,
        owner: &[u8],
        fence: u64,
        lease: f64,
        watched: bool,
    ) -> PyResult<PyHold> {
        let _inside = runtime::enter(py);
        let (claim, lease) = (claim(owner, fence)?, length("lease", lease)?);
        let leases = self.leases(py)?;
        let runtime = runtime::handle(py)?;
        if let Some(renewing) = leases.renewing() {
            runtime.spawn(renewing);
        }
        let lease_of = |on_loss| leases.hold(key, claim, lease, on_loss);
        if !watched {
            return Ok(PyHold::new(lease_of(None), None));
        }
        let (ticket, held) =
            bridge::wait_for(py, None, |courier| lease_of(Some(Box::new(move || courier.ready()))))?;
        Ok(PyHold::new(held, Some(Py::new(py, ticket)?)))
    }

    /// Opens a transaction for a tool that writes to this store's file; `None` for a store that is no file.
    fn transaction(&self, py: Python<'_>) -> PyResult<Option<PyTransaction>> {
        let store = self.current(py)?;
        let Store::Sqlite(sqlite) = &*store else { return Ok(None) };
        let mut inside = runtime::enter(py);
        let opened = runtime::detached(py, &mut inside, || sqlite.transaction());
        opened.map(|opened| Some(PyTransaction::new(opened))).map_err(|error| store_error(py, &error))
    }

    /// Counts how a call of a tool ended, and tells it to the log: `status` for `tool_call_total`, `decision` for
    /// the counters of idempotency, `outcome` for the event; `None` where there is nothing to say.
    #[pyo3(signature = (*, tool, key, effect, fingerprint, status, decision, outcome, reason, attempts, log_level))]
    #[allow(clippy::too_many_arguments, reason = "the parts of an event, by name")]
    fn tell(
        &self,
        py: Python<'_>,
        tool: &str,
        key: Option<&str>,
        effect: &str,
        fingerprint: Option<&[u8]>,
        status: Option<&str>,
        decision: Option<&str>,
        outcome: Option<&str>,
        reason: Option<&str>,
        attempts: Option<u32>,
        log_level: i32,
    ) -> PyResult<()> {
        let engine = self.engine.get().current(py)?;
        if let Some(status) = status {
            engine.metrics().tool_call(tool, status);
        }
        if let Some(decision) = decision.and_then(IdempotencyOutcome::parse) {
            engine.metrics().idempotency(decision);
        }
        let Some(outcome) = outcome.and_then(word) else { return Ok(()) };
        let facts = Facts {
            outcome: Some(outcome),
            reason: reason.and_then(word),
            attempts,
            tool: Some(tool.into()),
            effect: Effect::parse(effect).map(Effect::as_str),
            idempotency_key: key.map(|key| digest(idempotency::sha256(key.as_bytes()))),
            fingerprint: fingerprint.and_then(|bytes| bytes.try_into().ok()).map(digest),
            ..Facts::default()
        };
        let level = facts.level(Kind::Tool);
        let wanted = log_level < NOTHING && level as i32 >= log_level;
        if !wanted && engine.log_file().is_none() {
            return Ok(());
        }
        let event = Event {
            schema: SCHEMA,
            ts: unix_seconds(clock::wall()),
            event: Kind::Tool,
            gate: engine.id(),
            trace_id: engine.draw_trace_id(),
            span_id: engine.draw_span_id(),
            parent_span_id: None,
            origin: "".into(),
            model: "".into(),
            facts,
            tags: None,
        };
        engine.write_log(&event);
        if wanted { LogRecord::new(level, &event).log(py, None) } else { Ok(()) }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Store {}>", self.kind(py)?))
    }
}

/// The words an event may hold: those of this project, never a caller's.
fn word(text: &str) -> Option<&'static str> {
    const WORDS: [&str; 20] = [
        "ok",
        "failed",
        "replay",
        "joined",
        "conflict",
        "in_doubt",
        "resolved",
        "mismatch",
        "skipped",
        "fallback",
        "store_unavailable",
        "bypassed",
        "not_stored",
        "lease_lost",
        "stale_owner",
        "timeout",
        "cancelled",
        "no_effect",
        "permanent",
        "deadline",
    ];
    WORDS.into_iter().find(|known| *known == text)
}

fn digest(fingerprint: [u8; 32]) -> Digest {
    Digest(fingerprint.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

struct Ask {
    store: Arc<Store>,
    key: String,
    operation: Operation,
}

impl Ask {
    async fn answered(self, patience: Duration) -> Answered {
        Answered::Answer(self.store.apply(&self.key, &self.operation, patience).await)
    }
}

impl PyStore {
    /// Connects anew in a process that was forked: the parent's connection is not to be shared.
    fn leases(&self, py: Python<'_>) -> PyResult<Arc<Leases>> {
        let open = || Store::open(&self.url).map(Leases::new);
        self.leases.get(open).map_err(|error| config_error(py, &error))
    }

    fn current(&self, py: Python<'_>) -> PyResult<Arc<Store>> {
        Ok(Arc::clone(self.leases(py)?.store()))
    }

    fn ask(&self, py: Python<'_>, key: &str, operation: &PyOperation) -> PyResult<Ask> {
        Ok(Ask { store: self.current(py)?, key: key.to_owned(), operation: operation.0.clone() })
    }
}

fn deliver<S: Sink>(
    sink: S,
    work: impl Future<Output = Answered> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let mut promise = Promise::new(sink);
    async move {
        let answered = work.await;
        promise.keep(Delivery::Store(Box::new(answered)));
    }
}

/// `idem:{tenant}:{workflow}:{biz_id}:{step}`.
#[pyfunction]
pub(crate) fn idem_key(
    py: Python<'_>,
    tenant: &str,
    workflow: &str,
    biz_id: &str,
    step: &str,
) -> PyResult<String> {
    key::idem_key(tenant, workflow, biz_id, step).map_err(|error| config_error(py, &error))
}

/// A part of a key, such that it cannot be taken for a border between parts.
#[pyfunction]
pub(crate) fn escape_key(part: &str) -> String {
    key::escaped(part)
}

/// Raises `ConfigError` for a key that no store can hold.
#[pyfunction]
pub(crate) fn check_key(py: Python<'_>, key: &str) -> PyResult<()> {
    key::check(key).map_err(|error| config_error(py, &error))
}

/// Why a part of a key looks as if it were different on every retry; `None` if it does not.
#[pyfunction]
pub(crate) fn looks_random(part: &str) -> Option<&'static str> {
    key::looks_random(part)
}

/// Where a path in a tool's arguments starts.
const ROOT: &str = "arguments";

/// SHA-256 of tool, version and arguments. Raises `EncodeError` with the path of what JSON cannot hold.
#[pyfunction]
pub(crate) fn fingerprint<'py>(
    py: Python<'py>,
    tool: &str,
    version: &str,
    arguments: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let json =
        encode::to_json(arguments, ROOT, "; or name the argument in ignore= if it tells no calls apart")?;
    let fingerprint = idempotency::fingerprint(tool, version, &json)
        .map_err(|error| encode_error(py, ROOT, &error.to_string()))?;
    Ok(PyBytes::new(py, &fingerprint.0))
}
