//! What a fork makes useless, and how it is made anew.

use std::sync::Arc;

use super::runtime;
use crate::error::ConfigError;
use crate::lock::Mutex;

/// What was built in one process. After a fork it is built anew from its settings: the old one holds locks and
/// sockets of threads that are not here.
pub(super) struct PerProcess<T> {
    current: Mutex<(u64, Arc<T>)>,
}

impl<T> PerProcess<T> {
    pub(super) fn new(value: T) -> Self {
        Self { current: Mutex::new((runtime::generation(), Arc::new(value))) }
    }

    /// Runs no Python: a thread that held the lock without the GIL would stop one that has it.
    pub(super) fn get(&self, build: impl FnOnce() -> Result<T, ConfigError>) -> Result<Arc<T>, ConfigError> {
        let mut current = self.current.lock();
        if current.0 != runtime::generation() {
            let renewed = (runtime::generation(), Arc::new(build()?));
            std::mem::forget(std::mem::replace(&mut *current, renewed));
        }
        Ok(Arc::clone(&current.1))
    }
}

impl<T> Drop for PerProcess<T> {
    /// What is the parent's is left alone, as in `get`: to drop it would wake tasks whose threads are not here.
    fn drop(&mut self) {
        let (generation, value) = self.current.get_mut();
        if *generation != runtime::generation() {
            std::mem::forget(Arc::clone(value));
        }
    }
}
