//! The future type of the object-safe traits.

use std::pin::Pin;

/// A boxed future, which keeps the traits of this crate object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
