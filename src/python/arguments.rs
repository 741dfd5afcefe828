//! The parts of a request as Python gives them. One of the wrong type is refused as any other wrong setting is,
//! by field, value and rule, instead of with a bare `TypeError`.

use pyo3::prelude::*;

use super::errors::config_error;
use crate::error::ConfigError;

/// Text, of which a query is not shown: it may hold a key.
fn text<'a>(field: &str, value: Borrowed<'a, '_, PyAny>, rule: &str) -> PyResult<&'a str> {
    value.extract::<&str>().map_err(|_| {
        let shown = value.repr().map_or_else(|_| kind(value), |repr| repr.to_string_lossy().into_owned());
        let shown = shown.split('?').next().unwrap_or_default();
        config_error(value.py(), &ConfigError::new(field, shown, rule))
    })
}

fn kind(value: Borrowed<'_, '_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| String::from("(object)"), |name| format!("({name})"))
}

#[derive(Clone, Copy)]
pub(crate) struct MethodName<'a>(pub(crate) &'a str);

impl<'a> FromPyObject<'a, '_> for MethodName<'a> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, '_, PyAny>) -> PyResult<Self> {
        text("method", value, "must be an HTTP method, as text").map(Self)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Path<'a>(pub(crate) &'a str);

impl<'a> FromPyObject<'a, '_> for Path<'a> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, '_, PyAny>) -> PyResult<Self> {
        text("path", value, "must be a path below the base URL as text, such as /chat/completions").map(Self)
    }
}

/// A body as it is. It is never shown.
#[derive(Clone, Copy)]
pub(crate) struct Content<'a>(pub(crate) &'a [u8]);

impl<'a> FromPyObject<'a, '_> for Content<'a> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, '_, PyAny>) -> PyResult<Self> {
        let bytes = value.extract::<&[u8]>();
        bytes.map(Self).map_err(|_| {
            let rule = "must be bytes: encode text, or give what is to be JSON as json=";
            config_error(value.py(), &ConfigError::new("content", kind(value), rule))
        })
    }
}
