//! Python objects → JSON bytes, in one pass. What JSON cannot hold is refused with the path to it.

use std::fmt::Write as _;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::errors;

/// Deeper nesting is a cycle, or breaks the parsers on the other side.
const MAX_DEPTH: usize = 200;

/// Where in the body something is wrong, innermost step first, and what.
pub(super) struct Problem {
    path: Vec<Step>,
    problem: String,
}

enum Step {
    Key(String),
    Index(usize),
}

/// The JSON text of `value`. Raises `EncodeError` with the path of what cannot be encoded, from `root` on, and what else
/// than to change it the caller can do: `advice`.
pub(crate) fn to_json(value: &Bound<'_, PyAny>, root: &str, advice: &str) -> PyResult<Vec<u8>> {
    let mut json = Vec::with_capacity(512);
    match write(&mut json, value, 0) {
        Ok(()) => Ok(json),
        Err(Fault::Python(error)) => Err(error),
        Err(Fault::Refused(problem)) => {
            let mut path = String::from(root);
            for step in problem.path.iter().rev() {
                let _ = match step {
                    Step::Key(key) => write!(path, ".{key}"),
                    Step::Index(index) => write!(path, "[{index}]"),
                };
            }
            Err(errors::encode_error(value.py(), &path, &format!("{}{advice}", problem.problem)))
        }
    }
}

pub(super) enum Fault {
    Python(PyErr),
    Refused(Box<Problem>),
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Fault {
    fn refused(problem: impl Into<String>) -> Self {
        Self::Refused(Box::new(Problem { path: Vec::new(), problem: problem.into() }))
    }

    fn below(mut self, step: impl FnOnce() -> Step) -> Self {
        if let Self::Refused(problem) = &mut self {
            problem.path.push(step());
        }
        self
    }
}

pub(super) fn write(json: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) -> Result<(), Fault> {
    if let Ok(text) = value.cast::<PyString>() {
        return write_text(json, text);
    }
    if depth > MAX_DEPTH {
        return Err(Fault::refused(format!("nested deeper than {MAX_DEPTH} levels, or contains itself")));
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        return write_dict(json, dict, depth);
    }
    if let Ok(list) = value.cast::<PyList>() {
        return write_items(json, list.iter(), depth);
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return write_items(json, tuple.iter(), depth);
    }
    if value.is_none() {
        json.extend_from_slice(b"null");
    } else if let Ok(truth) = value.cast::<PyBool>() {
        json.extend_from_slice(if truth.is_true() { b"true" } else { b"false" });
    } else if let Ok(integer) = value.cast::<PyInt>() {
        write_integer(json, integer)?;
    } else if let Ok(float) = value.cast::<PyFloat>() {
        write_float(json, float.value())?;
    } else {
        let kind = value.get_type().qualname()?;
        return Err(Fault::refused(format!(
            "a value of type {kind} has no form in JSON: pass dicts, lists, strings, numbers, booleans or None"
        )));
    }
    Ok(())
}

pub(super) fn write_text(json: &mut Vec<u8>, text: &Bound<'_, PyString>) -> Result<(), Fault> {
    let text = text.to_str().map_err(|_| {
        Fault::refused("the text holds a lone surrogate, which UTF-8 cannot carry: replace or drop it")
    })?;
    serde_json::to_writer(json, text).map_err(|error| Fault::refused(error.to_string()))
}

fn write_integer(json: &mut Vec<u8>, integer: &Bound<'_, PyInt>) -> Result<(), Fault> {
    if let Ok(small) = integer.extract::<i64>() {
        return serde_json::to_writer(json, &small).map_err(|error| Fault::refused(error.to_string()));
    }
    json.extend_from_slice(integer.str()?.to_str()?.as_bytes());
    Ok(())
}

fn write_float(json: &mut Vec<u8>, float: f64) -> Result<(), Fault> {
    if !float.is_finite() {
        return Err(Fault::refused(format!("{float} is no JSON number")));
    }
    serde_json::to_writer(json, &float).map_err(|error| Fault::refused(error.to_string()))
}

fn write_items<'py>(
    json: &mut Vec<u8>,
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    depth: usize,
) -> Result<(), Fault> {
    json.push(b'[');
    for (index, item) in items.enumerate() {
        if index > 0 {
            json.push(b',');
        }
        write(json, &item, depth + 1).map_err(|fault| fault.below(|| Step::Index(index)))?;
    }
    json.push(b']');
    Ok(())
}

fn write_dict(json: &mut Vec<u8>, dict: &Bound<'_, PyDict>, depth: usize) -> Result<(), Fault> {
    if dict.is_exact_instance_of::<PyDict>() {
        return write_pairs(json, dict.iter(), depth);
    }
    // A subclass may have its own idea of its items; `json.dumps` asks it too.
    let items = dict.call_method0(intern!(dict.py(), "items"))?.try_iter()?;
    let pairs = items.map(|item| item?.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>());
    write_pairs(json, pairs.collect::<PyResult<Vec<_>>>()?.into_iter(), depth)
}

fn write_pairs<'py>(
    json: &mut Vec<u8>,
    pairs: impl Iterator<Item = (Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    depth: usize,
) -> Result<(), Fault> {
    json.push(b'{');
    let mut first = true;
    for (key, value) in pairs {
        if !std::mem::take(&mut first) {
            json.push(b',');
        }
        let Ok(name) = key.cast::<PyString>() else {
            let kind = key.get_type().qualname()?;
            return Err(Fault::refused(format!("the key {} is of type {kind}, not a string", key.repr()?)));
        };
        write_text(json, name)
            .map_err(|fault| fault.below(|| Step::Key(name.to_string_lossy().into_owned())))?;
        json.push(b':');
        write(json, &value, depth + 1)
            .map_err(|fault| fault.below(|| Step::Key(name.to_string_lossy().into_owned())))?;
    }
    json.push(b'}');
    Ok(())
}
