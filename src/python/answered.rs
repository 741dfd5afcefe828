//! What a store of idempotency records answered, as Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::errors::store_error;
use crate::idempotency::{self, Answer, NEVER, Outcome, Record, StoreError};

/// What a store's task ends with.
pub(crate) enum Answered {
    Answer(Result<Answer, StoreError>),
    Record(Result<Option<Box<Record>>, StoreError>),
    Records(Result<Vec<(String, Record)>, StoreError>),
    Count(Result<u64, StoreError>),
}

pub(crate) fn into_python(py: Python<'_>, answered: Answered) -> PyResult<Py<PyAny>> {
    fn told<T>(py: Python<'_>, answered: Result<T, StoreError>) -> PyResult<T> {
        answered.map_err(|error| store_error(py, &error))
    }
    let object = match answered {
        Answered::Answer(answer) => answer_tuple(py, told(py, answer)?)?.into_any(),
        Answered::Record(record) => {
            let record = told(py, record)?.map(|record| record_dict(py, &record)).transpose()?;
            record.into_pyobject(py)?
        }
        Answered::Records(records) => {
            let records = told(py, records)?.into_iter();
            let pairs = records.map(|(key, record)| Ok((key, record_dict(py, &record)?)));
            pairs.collect::<PyResult<Vec<_>>>()?.into_pyobject(py)?
        }
        Answered::Count(count) => told(py, count)?.into_pyobject(py)?.into_any(),
    };
    Ok(object.unbind())
}

/// The answer's name and what belongs to it; times in seconds.
pub(super) fn answer_tuple(py: Python<'_>, answer: Answer) -> PyResult<Bound<'_, PyTuple>> {
    match answer {
        Answer::Acquired { fence, attempts } => ("acquired", fence, attempts).into_pyobject(py),
        Answer::Replay(Outcome { ok, codec, bytes }) => {
            ("replay", ok, &*codec, PyBytes::new(py, &bytes)).into_pyobject(py)
        }
        Answer::InProgress { lease_left } => ("in_progress", lease_left.as_secs_f64()).into_pyobject(py),
        Answer::Mismatch => ("mismatch",).into_pyobject(py),
        Answer::InDoubt { fence, started } => ("in_doubt", fence, seconds(started)).into_pyobject(py),
        Answer::Held => ("held",).into_pyobject(py),
        Answer::Stale => ("stale",).into_pyobject(py),
    }
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

fn record_dict<'py>(py: Python<'py>, record: &Record) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("state", record.state.as_str())?;
    fields.set_item("tool", &*record.tool)?;
    fields.set_item("effect", record.effect.as_str())?;
    fields.set_item("fingerprint", record.fingerprint.to_string())?;
    fields.set_item("attempts", record.attempts)?;
    fields.set_item("fence", record.fence)?;
    fields.set_item("created", seconds(record.created))?;
    fields.set_item("updated", seconds(record.updated))?;
    fields.set_item("started", record.started.map(seconds))?;
    fields.set_item("lease_until", seconds(record.lease_until))?;
    fields.set_item("expires", (record.expires != NEVER).then(|| seconds(record.expires)))?;
    fields.set_item("note", record.note.as_deref())?;
    let outcome = record.outcome.as_ref();
    fields.set_item("ok", outcome.map(|outcome| outcome.ok))?;
    fields.set_item("codec", outcome.map(|outcome| &*outcome.codec))?;
    fields.set_item("result", outcome.map(|outcome| PyBytes::new(py, &outcome.bytes)))?;
    fields.set_item("result_digest", outcome.map(|outcome| idempotency::digest(&outcome.bytes)))?;
    Ok(fields)
}
