//! Locking without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The guard that [`lock`] returns.
pub type Locked<'a, T> = MutexGuard<'a, T>;

/// Locks a mutex, also one that a panic has poisoned. The critical sections of this workspace leave their
/// data consistent at every point at which they can panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> Locked<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
