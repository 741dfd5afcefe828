//! The Python extension module `tidegate._core`: the only folder that names pyo3.

mod answered;
mod arguments;
mod batcher;
mod blocking;
mod bridge;
mod doctor;
mod encode;
mod ended;
mod engine;
mod errors;
mod exchange;
mod guard;
mod hold;
mod idempotency;
mod inbox;
mod mock;
mod official;
mod options;
mod outcome;
mod per_process;
mod policy;
mod probe;
mod receipt;
mod response;
mod route;
mod runtime;
mod stream;
mod trace;
mod transaction;

use pyo3::prelude::*;

/// A call allocates on one thread what another frees, which the system's allocator does at twice the price.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule(name = "_core")]
mod core {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use super::bridge::{LoopQueue, Ticket, turn};
    #[pymodule_export]
    use super::doctor::PyDiagnosis;
    #[pymodule_export]
    use super::ended::PyAttempt;
    #[pymodule_export]
    use super::engine::{PyEngine, PyUpstream};
    #[pymodule_export]
    use super::exchange::{PyExchange, PyTransport};
    #[pymodule_export]
    use super::guard::PyGuard;
    #[pymodule_export]
    use super::hold::PyHold;
    #[pymodule_export]
    use super::idempotency::{
        PyOperation, PyStore, check_key, escape_key, fingerprint, idem_key, looks_random,
    };
    #[pymodule_export]
    use super::mock::PyMockServer;
    #[pymodule_export]
    use super::official::official_json;
    #[pymodule_export]
    use super::policy::check_policy;
    #[pymodule_export]
    use super::probe::probe;
    #[pymodule_export]
    use super::receipt::PyReceipt;
    #[pymodule_export]
    use super::response::{_restore_call_info, PyCallInfo, PyResponse, PyRetry, PyUsage};
    #[pymodule_export]
    use super::route::PyRoute;
    #[pymodule_export]
    use super::runtime::{_after_fork_in_child, _at_exit};
    #[pymodule_export]
    use super::stream::PyStream;
    #[pymodule_export]
    use super::transaction::PyTransaction;

    use super::{Bound, PyAnyMethods, PyModule, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        py.import("atexit")?.call_method1("register", (module.getattr("_at_exit")?,))?;
        let os = py.import("os")?;
        if os.hasattr("register_at_fork")? {
            let hook = pyo3::types::PyDict::new(py);
            hook.set_item("after_in_child", module.getattr("_after_fork_in_child")?)?;
            os.call_method("register_at_fork", (), Some(&hook))?;
        }
        Ok(())
    }
}
