//! Arguments of the openai package's methods → JSON, as that package writes them.
//!
//! It transforms arguments by the types it declares for them, then encodes them by the standard library. For plain
//! values the two add up to what `encode` does, wherever a value stands. What else is accepted here is what
//! conversations are made of: answers of earlier calls, as models, in the lists that are declared to hold such.
//! All other values are the package's own to write.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyType};

use super::encode::{self, Fault};

/// Why a value is not written here.
enum Left {
    Python(PyErr),
    /// It is not plain.
    Unsure,
}

impl From<PyErr> for Left {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Fault> for Left {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Python(error) => Self::Python(error),
            Fault::Refused(_) => Self::Unsure,
        }
    }
}

/// The JSON text of the arguments, without those that are not given; `None` if one of them is not plain.
pub(crate) fn to_json(arguments: &Bound<'_, PyDict>) -> PyResult<Option<Vec<u8>>> {
    let mut json = Vec::with_capacity(512);
    match write(&mut json, arguments) {
        Ok(()) => Ok(Some(json)),
        Err(Left::Unsure) => Ok(None),
        Err(Left::Python(error)) => Err(error),
    }
}

/// The body that a method's arguments make, for `Route`; `None` if one of them is not plain.
#[pyfunction]
pub(crate) fn official_json<'py>(arguments: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    Ok(to_json(arguments)?.map(|json| PyBytes::new(arguments.py(), &json)))
}

fn write(json: &mut Vec<u8>, arguments: &Bound<'_, PyDict>) -> Result<(), Left> {
    let mut separator = b'{';
    for (name, value) in arguments.iter() {
        if is_absent(&value)? {
            continue;
        }
        let name = name.cast::<PyString>().map_err(PyErr::from)?;
        json.push(std::mem::replace(&mut separator, b','));
        encode::write_text(json, name)?;
        json.push(b':');
        let holds_models = ["messages", "input", "tools"].into_iter().any(|known| *name == *known);
        match value.cast_exact::<PyList>() {
            Ok(list) if holds_models => write_list(json, list, true)?,
            _ => encode::write(json, &value, 1)?,
        }
    }
    if separator == b'{' {
        json.push(b'{');
    }
    json.push(b'}');
    Ok(())
}

/// A list whose items are declared as typed dicts: a model in it is written as one. The messages of an assistant
/// have such a list in turn (`nests`).
fn write_list(json: &mut Vec<u8>, list: &Bound<'_, PyList>, nests: bool) -> Result<(), Left> {
    json.push(b'[');
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        match item.cast_exact::<PyDict>() {
            Ok(dict) if nests && has_calls(dict)? => write_message(json, dict)?,
            Ok(dict) => encode::write(json, dict, 2)?,
            Err(_) if is_model(&item)? => encode::write(json, &dump(&item)?, 2)?,
            Err(_) => encode::write(json, &item, 2)?,
        }
    }
    json.push(b']');
    Ok(())
}

fn has_calls(message: &Bound<'_, PyDict>) -> PyResult<bool> {
    Ok(message
        .get_item(intern!(message.py(), "tool_calls"))?
        .is_some_and(|calls| calls.is_exact_instance_of::<PyList>()))
}

fn write_message(json: &mut Vec<u8>, message: &Bound<'_, PyDict>) -> Result<(), Left> {
    for (index, (name, value)) in message.iter().enumerate() {
        let name = name.cast::<PyString>().map_err(|_| Left::Unsure)?;
        json.push(if index == 0 { b'{' } else { b',' });
        encode::write_text(json, name)?;
        json.push(b':');
        match value.cast_exact::<PyList>() {
            Ok(calls) if *name == *"tool_calls" => write_list(json, calls, false)?,
            _ => encode::write(json, &value, 3)?,
        }
    }
    json.push(b'}');
    Ok(())
}

/// Whether an argument is the package's word for none.
fn is_absent(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static ABSENT: PyOnceLock<[Py<PyType>; 2]> = PyOnceLock::new();
    let py = value.py();
    let absent = ABSENT.get_or_try_init(py, || {
        let types = py.import("openai._types")?;
        let class = |name| PyResult::Ok(types.getattr(name)?.cast_into::<PyType>()?.unbind());
        PyResult::Ok([class("Omit")?, class("NotGiven")?])
    })?;
    Ok(absent.iter().any(|class| value.get_type().is(class.bind(py))))
}

fn is_model(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static MODEL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let model = MODEL.import(value.py(), "pydantic", "BaseModel")?;
    Ok(value.get_type().mro().iter().any(|class| class.is(model)))
}

/// As the package dumps a model where it expects a typed dict.
fn dump<'py>(model: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = model.py();
    let options = PyDict::new(py);
    options.set_item(intern!(py, "exclude_unset"), true)?;
    options.set_item(intern!(py, "mode"), intern!(py, "json"))?;
    if let Some(excluded) = model.getattr_opt(intern!(py, "__api_exclude__"))? {
        options.set_item(intern!(py, "exclude"), excluded)?;
    }
    model.call_method(intern!(py, "model_dump"), (), Some(&options))
}
