//! Conversions to text and numbers for the built-in evaluators.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

/// Values that can be read as text.
pub trait Text {
    /// Returns the text. For a JSON value, that is the contents of a string, or the JSON of any other value.
    fn text(&self) -> Cow<'_, str>;
}

macro_rules! text {
    ($($type:ty),*) => {$(
        impl Text for $type {
            fn text(&self) -> Cow<'_, str> {
                Cow::Borrowed(self)
            }
        }
    )*};
}

text!(str, String, Box<str>, Arc<str>, Cow<'_, str>);

impl<T: Text + ?Sized> Text for &T {
    fn text(&self) -> Cow<'_, str> {
        (**self).text()
    }
}

impl Text for Value {
    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::String(text) => Cow::Borrowed(text),
            other => Cow::Owned(other.to_string()),
        }
    }
}

/// Values that can be read as a number.
pub trait Number {
    /// Returns the number, if it is one.
    fn number(&self) -> Option<f64>;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "numbers are compared with a tolerance")]
            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )*};
}

number!(f64, f32, i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

impl Number for str {
    fn number(&self) -> Option<f64> {
        self.trim().parse().ok()
    }
}

impl Number for String {
    fn number(&self) -> Option<f64> {
        self.as_str().number()
    }
}

impl<T: Number + ?Sized> Number for &T {
    fn number(&self) -> Option<f64> {
        (**self).number()
    }
}

impl Number for Value {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => number.as_f64(),
            Self::String(text) => text.as_str().number(),
            _ => None,
        }
    }
}

/// Returns the JSON of a value, cut to `max_chars` characters.
pub(super) fn shown(value: &(impl Serialize + ?Sized), max_chars: usize) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|_| "(not JSON)".to_owned());
    match text.char_indices().nth(max_chars) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}
