//! Values of other crates that travel with a run.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use pillarbox_core::internal::lock;

/// Map from a type to a value of that type, shared by all clones of a [`Run`](super::Run).
///
/// A service around an adapter puts a value in; the adapter, or the service after the adapter has run, takes
/// it out. An empty map allocates nothing.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pillarbox_runtime::loops::Run;
///
/// #[derive(Default)]
/// struct TokensUsed(AtomicU64);
///
/// async fn answer(question: String, run: Run) -> String {
///     // There is none unless a service around the adapter has inserted one.
///     if let Some(used) = run.extensions().get::<TokensUsed>() {
///         used.0.fetch_add(42, Ordering::Relaxed);
///     }
///     question
/// }
/// ```
#[derive(Default)]
pub struct Extensions(Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Inserts a value, replacing the one of the same type, and returns it.
    pub fn insert<T: Send + Sync + 'static>(&self, value: T) -> Arc<T> {
        let value = Arc::new(value);
        lock(&self.0).insert(TypeId::of::<T>(), value.clone());
        value
    }

    /// Returns the value of this type, if there is one.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let value = lock(&self.0).get(&TypeId::of::<T>()).cloned();
        value.and_then(|value| value.downcast().ok())
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_type_and_replaced_by_the_next_of_that_type() {
        let extensions = Extensions::default();
        assert!(extensions.get::<u32>().is_none());
        extensions.insert(7_u32);
        extensions.insert("text");
        assert_eq!(*extensions.insert(8_u32), 8);
        assert_eq!(extensions.get::<u32>().as_deref(), Some(&8));
        assert_eq!(extensions.get::<&str>().as_deref(), Some(&"text"));
        assert!(extensions.get::<u64>().is_none());
    }
}
