//! The text of a panic.

use std::any::Any;

/// Returns the message of a panic that was caught.
pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("the panic has no message")
}
