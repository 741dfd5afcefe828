//! Policy dataclasses → the core's policies. Types are checked here, rules in `config.rs`.

use std::time::Duration;

use pyo3::prelude::*;

use super::errors::config_error;
use crate::config::{
    self, BreakerPolicy, Degrade, Limits, OnOpen, OnUnpriced, Oversize, RetryBudgetPolicy, RetryPolicy,
    SpendCap, SpendWindow, Start, Timeouts,
};
use crate::error::ConfigError;
use crate::money::Pico;

/// One policy object and the prefix of its fields in messages.
struct Fields<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    prefix: &'static str,
}

impl<'py> Fields<'_, 'py> {
    fn refuse(&self, name: &str, value: &Bound<'py, PyAny>, rule: &str) -> PyErr {
        let shown = value.repr().map_or_else(|_| String::from("?"), |repr| repr.to_string());
        config_error(value.py(), &ConfigError::new(format!("{}.{name}", self.prefix), shown, rule))
    }

    fn get(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.object.getattr(name)
    }

    fn seconds(&self, name: &str) -> PyResult<Duration> {
        let value = self.get(name)?;
        self.as_seconds(name, &value)
    }

    fn maybe_seconds(&self, name: &str) -> PyResult<Option<Duration>> {
        let value = self.get(name)?;
        if value.is_none() { Ok(None) } else { self.as_seconds(name, &value).map(Some) }
    }

    fn as_seconds(&self, name: &str, value: &Bound<'py, PyAny>) -> PyResult<Duration> {
        let number = self.as_number(name, value, "must be a number of seconds")?;
        config::seconds(&format!("{}.{name}", self.prefix), number)
            .map_err(|error| config_error(value.py(), &error))
    }

    fn number(&self, name: &str) -> PyResult<f64> {
        self.as_number(name, &self.get(name)?, "must be a number")
    }

    fn as_number(&self, name: &str, value: &Bound<'py, PyAny>, rule: &str) -> PyResult<f64> {
        if value.is_instance_of::<pyo3::types::PyBool>() {
            return Err(self.refuse(name, value, rule));
        }
        value.extract::<f64>().map_err(|_| self.refuse(name, value, rule))
    }

    fn count<T>(&self, name: &str) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        const RULE: &str = "must be a whole number, 0 or more";
        let value = self.get(name)?;
        if value.is_instance_of::<pyo3::types::PyBool>() {
            return Err(self.refuse(name, &value, RULE));
        }
        value.extract::<T>().map_err(|_| self.refuse(name, &value, RULE))
    }

    fn maybe_count<T>(&self, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        if self.get(name)?.is_none() { Ok(None) } else { self.count(name).map(Some) }
    }

    fn flag(&self, name: &str) -> PyResult<bool> {
        let value = self.get(name)?;
        value.extract::<bool>().map_err(|_| self.refuse(name, &value, "must be True or False"))
    }

    fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> PyResult<T> {
        let value = self.get(name)?;
        let chosen = value.extract::<String>().ok();
        let found = choices.iter().find(|(text, _)| chosen.as_deref() == Some(text));
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let texts: Vec<String> = choices.iter().map(|(text, _)| format!("{text:?}")).collect();
            self.refuse(name, &value, &format!("must be {}", texts.join(" or ")))
        })
    }

    fn valid<T>(&self, policy: T, result: Result<(), ConfigError>) -> PyResult<T> {
        result.map(|()| policy).map_err(|error| config_error(self.object.py(), &error))
    }
}

pub(crate) fn retry(object: &Bound<'_, PyAny>) -> PyResult<RetryPolicy> {
    let fields = Fields { object, prefix: "retry" };
    let policy = RetryPolicy {
        max_attempts: fields.count("max_attempts")?,
        base: fields.seconds("base")?,
        cap: fields.seconds("cap")?,
        throttle_base: fields.seconds("throttle_base")?,
        throttle_cap: fields.seconds("throttle_cap")?,
        min_delay: fields.seconds("min_delay")?,
        max_elapsed: fields.maybe_seconds("max_elapsed")?,
        max_retry_after: fields.seconds("max_retry_after")?,
    };
    let result = policy.validate();
    fields.valid(policy, result)
}

pub(crate) fn timeouts(object: &Bound<'_, PyAny>) -> PyResult<Timeouts> {
    let fields = Fields { object, prefix: "timeouts" };
    let policy = Timeouts {
        connect: fields.seconds("connect")?,
        first_byte: fields.maybe_seconds("first_byte")?,
        idle: fields.maybe_seconds("idle")?,
        attempt: fields.maybe_seconds("attempt")?,
        total: fields.maybe_seconds("total")?,
    };
    let result = policy.validate();
    fields.valid(policy, result)
}

pub(crate) fn limits(object: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let fields = Fields { object, prefix: "limits" };
    let policy = Limits {
        concurrency: fields.maybe_count("concurrency")?,
        rpm: fields.maybe_count("rpm")?,
        tpm: fields.maybe_count("tpm")?,
        headroom: fields.number("headroom")?,
        burst_seconds: fields.number("burst_seconds")?,
        tpm_burst_seconds: fields.number("tpm_burst_seconds")?,
        strict_minute: fields.flag("strict_minute")?,
        oversize: fields.choice("oversize", &[("debt", Oversize::Debt), ("refuse", Oversize::Refuse)])?,
        start: fields.choice("start", &[("full", Start::Full), ("empty", Start::Empty)])?,
        learn: fields.flag("learn")?,
    };
    let result = policy.validate();
    fields.valid(policy, result)
}

pub(crate) fn breaker(object: &Bound<'_, PyAny>) -> PyResult<BreakerPolicy> {
    let fields = Fields { object, prefix: "breaker" };
    let policy = BreakerPolicy {
        window: fields.seconds("window")?,
        minimum_calls: fields.count("minimum_calls")?,
        failure_rate_threshold: fields.number("failure_rate_threshold")?,
        consecutive_hits: fields.count("consecutive_hits")?,
        recency: fields.count("recency")?,
        open_for: fields.seconds("open_for")?,
        reopen_for: fields.seconds("reopen_for")?,
        half_open_max_calls: fields.count("half_open_max_calls")?,
        half_open_successes: fields.count("half_open_successes")?,
        probe_timeout: fields.seconds("probe_timeout")?,
        slow_after: fields.maybe_seconds("slow_after")?,
        count_429: fields.flag("count_429")?,
        on_open: fields.choice("on_open", &[("fail", OnOpen::Fail), ("no_retries", OnOpen::NoRetries)])?,
    };
    let result = policy.validate();
    fields.valid(policy, result)
}

pub(crate) fn retry_budget(object: &Bound<'_, PyAny>) -> PyResult<RetryBudgetPolicy> {
    let fields = Fields { object, prefix: "retry_budget" };
    let policy = RetryBudgetPolicy {
        capacity: fields.maybe_count("capacity")?,
        deposit: fields.number("deposit")?,
        trickle: fields.number("trickle")?,
    };
    let result = policy.validate();
    fields.valid(policy, result)
}

pub(crate) fn spend(object: &Bound<'_, PyAny>) -> PyResult<SpendCap> {
    const AMOUNT: &str = "must be an amount of US dollars, such as \"2.50\" or Decimal(\"2.50\")";
    const WINDOW: &str = "must be \"total\", \"day\" or a number of seconds";
    let fields = Fields { object, prefix: "spend" };
    let limit = fields.get("limit")?;
    let amount = if limit.is_instance_of::<pyo3::types::PyBool>() {
        None
    } else {
        Pico::from_dollars(&limit.str()?.to_string())
    };
    let window = fields.get("window")?;
    let window = match window.extract::<&str>() {
        Ok("total") => SpendWindow::Total,
        Ok("day") => SpendWindow::Day,
        Ok(_) => return Err(fields.refuse("window", &window, WINDOW)),
        Err(_) => SpendWindow::Every(fields.as_seconds("window", &window)?),
    };
    let tag = fields.get("tag")?;
    let policy = SpendCap {
        limit: amount.ok_or_else(|| fields.refuse("limit", &limit, AMOUNT))?,
        window,
        tag: tag.extract().map_err(|_| fields.refuse("tag", &tag, "must be key=value, as text, or None"))?,
        on_unpriced: fields
            .choice("on_unpriced", &[("refuse", OnUnpriced::Refuse), ("allow", OnUnpriced::Allow)])?,
    };
    let result = policy.validate();
    fields.valid(policy, result)
}

pub(crate) fn degrade(object: &Bound<'_, PyAny>) -> PyResult<Degrade> {
    let fields = Fields { object, prefix: "degrade" };
    let policy = Degrade { ttl: fields.seconds("ttl")?, max_bytes: fields.count("max_bytes")? };
    let result = policy.validate();
    fields.valid(policy, result)
}

/// Checks a policy as it is made, so that the mistake is reported where it stands.
#[pyfunction]
pub(crate) fn check_policy(kind: &str, policy: &Bound<'_, PyAny>) -> PyResult<()> {
    match kind {
        "retry" => retry(policy).map(drop),
        "timeouts" => timeouts(policy).map(drop),
        "limits" => limits(policy).map(drop),
        "breaker" => breaker(policy).map(drop),
        "retry_budget" => retry_budget(policy).map(drop),
        "spend" => spend(policy).map(drop),
        "degrade" => degrade(policy).map(drop),
        _ => Err(config_error(policy.py(), &ConfigError::new("kind", kind, "must be the name of a policy"))),
    }
}
