//! Locking without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also one that a panic has poisoned. The critical sections of this workspace leave their
/// data consistent at every point at which they can panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
