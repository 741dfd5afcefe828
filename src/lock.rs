//! The standard library's locks without poisoning: what they guard is whole between statements, and a panic is
//! reported where it happens.
//!
//! Not those of `parking_lot`. It keeps the threads that wait, for whatever lock, in one table of the process, and a
//! forked child inherits that table with the parent's threads in it: a thread of the child whose stack lies
//! where one of theirs lay closes the list into a ring, on which the next wake-up turns for ever. These wait in
//! the kernel, on the lock's own address.

use std::sync::PoisonError;
use std::time::Duration;

pub use std::sync::MutexGuard;

#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while another thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// May return without a notification.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at most for `patience`.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, patience: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits as long as `condition` holds, and at most for `patience`.
    pub fn wait_while_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
        patience: Duration,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout_while(guard, patience, condition).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits as long as `condition` holds.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_leaves_the_lock_usable() {
        let mut lock = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut held = lock.lock();
                *held = 2;
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked);
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.try_lock().map(|value| *value), Some(2));
        assert_eq!(*lock.get_mut(), 2);
    }
}
