//! The options of one call, read from Python.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};

use super::errors::config_error;
use super::guard::Outer;
use crate::config;
use crate::drive::{Order, StreamEndRule};
use crate::engine::{self, Upstream};
use crate::error::ConfigError;
use crate::event::{Digest, Tags, TraceId};

/// The options of one call. `None` never erases what the client has.
pub(super) fn apply(
    order: &mut Order,
    upstream: &Upstream,
    path: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<()> {
    let py = options.py();
    let config = |error: ConfigError| config_error(py, &error);
    let mut outer = None;
    for (name, value) in options.iter() {
        let name = name.extract::<String>()?;
        if value.is_none() {
            continue;
        }
        let seconds = || {
            let number = value.extract::<f64>().ok().filter(|_| !value.is_instance_of::<PyBool>());
            let seconds = number.ok_or_else(|| {
                config(ConfigError::new(&name, value.to_string(), "must be a number of seconds"))
            })?;
            if seconds == 0.0 {
                return Err(config(ConfigError::new(&name, "0", "must be greater than 0")));
            }
            config::seconds(&name, seconds).map_err(config)
        };
        match name.as_str() {
            "headers" => {
                for (name, value) in headers(&value)? {
                    let (name, value) = engine::header(&name, &value).map_err(config)?;
                    Arc::make_mut(&mut order.headers).insert(name, value);
                }
            }
            "params" => {
                order.url = upstream.url(path, &query(&value)?).map_err(config)?;
            }
            "timeout" => order.timeouts.attempt = Some(seconds()?),
            "total_timeout" => order.timeouts.total = Some(seconds()?),
            "failed_before" => {
                let (request, attempts) = value.extract::<(u64, u32)>()?;
                order.failed_before = Some((Digest(request), attempts));
            }
            "outer" => outer = Some(value),
            "max_attempts" => {
                let number = value.extract::<u32>().ok().filter(|_| !value.is_instance_of::<PyBool>());
                order.max_attempts = number.filter(|attempts| *attempts > 0).ok_or_else(|| {
                    config(ConfigError::new(&name, value.to_string(), "must be a whole number, 1 or more"))
                })?;
            }
            "tags" => {
                order.tags = Some(Arc::new(value.extract::<Tags>()?));
            }
            "stream_end" => {
                order.stream_end = match value.extract::<&str>() {
                    Ok("required") => StreamEndRule::Required,
                    Ok("optional") => StreamEndRule::Optional,
                    _ => {
                        let rule = "must be \"required\" or \"optional\"";
                        return Err(config(ConfigError::new(&name, value.to_string(), rule)));
                    }
                };
            }
            "trace_id" => {
                let id = value.extract::<&str>().ok().and_then(TraceId::parse);
                order.trace_id = Some(id.ok_or_else(|| {
                    let rule = "must be 32 lower-case hex digits, not all zero";
                    config(ConfigError::new(&name, value.to_string(), rule))
                })?);
            }
            _ => return Err(config(ConfigError::new("option", name, "must be an option of a call"))),
        }
    }
    // It holds whatever the call itself asks for.
    outer.map_or(Ok(()), |outer| Outer::read(outer.extract()?)?.around(order))
}

type Item<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

fn items<'py>(field: &str, mapping: &Bound<'py, PyAny>) -> PyResult<Vec<Item<'py>>> {
    let py = mapping.py();
    let Ok(mapping) = mapping.cast::<PyMapping>() else {
        let kind = mapping.get_type().qualname()?;
        let rule = "must be a mapping of names to values";
        return Err(config_error(py, &ConfigError::new(field, format!("({kind})"), rule)));
    };
    mapping.items()?.iter().map(|item| item.extract::<Item<'_>>()).collect()
}

fn refused(field: &str, name: &Bound<'_, PyAny>, rule: &str) -> PyErr {
    let field = name.repr().map_or_else(|_| field.to_owned(), |name| format!("{field}[{name}]"));
    config_error(name.py(), &ConfigError::new(field, "***", rule))
}

/// Headers are text and nothing else: the text of `None` or of bytes is never what was meant.
pub(super) fn headers(mapping: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    let texts = items("headers", mapping)?.into_iter().map(|(name, value)| {
        let pair = name.extract().and_then(|text| Ok((text, value.extract()?)));
        pair.map_err(|_| refused("headers", &name, "must be a string, as its name"))
    });
    texts.collect()
}

/// Query parameters. Each item of a list is one; `None` is none; booleans are written as in JSON.
fn query(mapping: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    const RULE: &str = "must be a string, a number, a boolean, None, or a list of these";
    let mut pairs = Vec::new();
    for (name, value) in items("params", mapping)? {
        let text =
            name.extract::<String>().map_err(|_| refused("params", &name, "must be named by a string"))?;
        let is_list = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
        let values = if is_list { value.try_iter()?.collect::<PyResult<Vec<_>>>()? } else { vec![value] };
        for value in values {
            if let Ok(truth) = value.cast::<PyBool>() {
                pairs.push((text.clone(), truth.is_true().to_string()));
            } else if value.is_instance_of::<PyString>()
                || value.is_instance_of::<PyInt>()
                || value.is_instance_of::<PyFloat>()
            {
                pairs.push((text.clone(), value.str()?.to_string()));
            } else if !value.is_none() {
                return Err(refused("params", &name, RULE));
            }
        }
    }
    Ok(pairs)
}
