//! The transaction of a tool whose effect and result are committed together.

use crate::lock::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};
use rusqlite::types::{Value, ValueRef};

use super::idempotency::{claim, outcome};
use super::runtime;
use crate::idempotency::{Answer, Unfinished};

/// Writes to the store's file until the tool ends; then all of it is committed, or nothing.
#[pyclass(frozen, name = "Transaction", module = "tidegate")]
pub(crate) struct PyTransaction {
    open: Mutex<Option<Unfinished>>,
    generation: u64,
}

impl PyTransaction {
    pub(crate) fn new(open: Unfinished) -> Self {
        Self { open: Mutex::new(Some(open)), generation: runtime::generation() }
    }
}

/// After a fork the connection is the parent's, and must not be closed here.
impl Drop for PyTransaction {
    fn drop(&mut self) {
        if self.generation != runtime::generation() {
            std::mem::forget(self.open.get_mut().take());
        }
    }
}

#[pymethods]
impl PyTransaction {
    /// Runs one statement; returns its rows.
    #[pyo3(signature = (sql, parameters=None, /))]
    fn execute(
        &self,
        py: Python<'_>,
        sql: &str,
        parameters: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Py<PyTuple>>> {
        let mut values = Vec::new();
        if let Some(parameters) = parameters {
            for parameter in parameters.try_iter()? {
                values.push(to_value(&parameter?)?);
            }
        }
        let mut inside = runtime::enter(py);
        let rows = runtime::detached(py, &mut inside, || {
            let open = self.open.lock();
            open.as_ref().map(|open| run(open, sql, values))
        });
        let rows = rows.ok_or_else(over)?.map_err(|error| failed(&error))?;
        rows.into_iter().map(|row| to_tuple(py, &row)).collect()
    }

    /// Rows that the last statement changed.
    #[getter]
    fn changes(&self) -> PyResult<u64> {
        self.open.lock().as_ref().map(|open| open.connection().changes()).ok_or_else(over)
    }

    /// Commits all of it with the tool's result; false if the record is another's, and nothing was committed.
    fn _complete(
        &self,
        py: Python<'_>,
        key: &str,
        owner: &[u8],
        fence: u64,
        codec: &str,
        result: &[u8],
    ) -> PyResult<bool> {
        let (claim, outcome) = (claim(owner, fence)?, outcome(true, codec, result));
        let mut inside = runtime::enter(py);
        let answer = runtime::detached(py, &mut inside, || {
            let open = self.open.lock().take();
            open.map(|open| open.complete(key, claim, &outcome))
        });
        let answer = answer.ok_or_else(over)?.map_err(|error| failed(&error))?;
        Ok(answer == Answer::Held)
    }

    /// Undoes what is not committed.
    fn _close(&self, py: Python<'_>) {
        let mut inside = runtime::enter(py);
        runtime::detached(py, &mut inside, || drop(self.open.lock().take()));
    }
}

fn over() -> PyErr {
    PyRuntimeError::new_err("the transaction is over: it ends with the tool")
}

fn failed(error: &rusqlite::Error) -> PyErr {
    PyValueError::new_err(format!("SQLite refused the statement: {error}"))
}

fn run(open: &Unfinished, sql: &str, values: Vec<Value>) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = open.connection().prepare_cached(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query(rusqlite::params_from_iter(values))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push((0..columns).map(|column| row.get(column)).collect::<rusqlite::Result<_>>()?);
    }
    Ok(found)
}

fn to_value(parameter: &Bound<'_, PyAny>) -> PyResult<Value> {
    if parameter.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(truth) = parameter.cast::<PyBool>() {
        return Ok(Value::Integer(truth.is_true().into()));
    }
    if parameter.is_instance_of::<PyInt>() {
        return parameter.extract().map(Value::Integer);
    }
    if let Ok(float) = parameter.cast::<PyFloat>() {
        return Ok(Value::Real(float.value()));
    }
    if parameter.is_instance_of::<PyString>() {
        return parameter.extract().map(Value::Text);
    }
    if let Ok(bytes) = parameter.cast::<PyBytes>() {
        return Ok(Value::Blob(bytes.as_bytes().to_vec()));
    }
    let kind = parameter.get_type().qualname()?;
    Err(PyTypeError::new_err(format!(
        "a {kind} is no value of SQLite: pass None, a number, a string or bytes"
    )))
}

fn to_tuple(py: Python<'_>, row: &[Value]) -> PyResult<Py<PyTuple>> {
    let values = row.iter().map(|value| {
        Ok(match ValueRef::from(value) {
            ValueRef::Null => py.None(),
            ValueRef::Integer(integer) => integer.into_pyobject(py)?.into_any().unbind(),
            ValueRef::Real(real) => real.into_pyobject(py)?.into_any().unbind(),
            ValueRef::Text(text) => PyString::from_bytes(py, text)?.into_any().unbind(),
            ValueRef::Blob(bytes) => PyBytes::new(py, bytes).into_any().unbind(),
        })
    });
    Ok(PyTuple::new(py, values.collect::<PyResult<Vec<_>>>()?)?.unbind())
}
