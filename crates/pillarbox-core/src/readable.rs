//! Bodies within JSON that people and scripts read.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How a body is written within JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyEncoding {
    /// The value that it is.
    Json,
    /// A string.
    Text,
    /// A string of base64, for bytes that are no UTF-8.
    Base64,
}

/// A body as a JSON value that can be read, and that becomes the body again.
///
/// ```
/// use pillarbox_core::{BodyEncoding, ReadableBody};
///
/// let readable = ReadableBody::exact(br#"{"n": 1.10}"#);
/// assert_eq!((readable.encoding, readable.value.get()), (BodyEncoding::Json, r#"{"n": 1.10}"#));
/// assert_eq!(&readable.bytes().unwrap()[..], br#"{"n": 1.10}"#);
/// assert_eq!(ReadableBody::exact(b"hello").encoding, BodyEncoding::Text);
/// assert_eq!(ReadableBody::exact(b"\xff").encoding, BodyEncoding::Base64);
/// ```
#[derive(Debug, Clone)]
pub struct ReadableBody {
    /// How it is written.
    pub encoding: BodyEncoding,
    /// The value.
    pub value: Box<RawValue>,
}

impl ReadableBody {
    /// A body that comes back to the byte: JSON that would not, for the white space around it, is given as
    /// text.
    pub fn exact(body: &[u8]) -> Self {
        Self::new(body, |json, text| json == text)
    }

    /// A body that is easy to use: all JSON is given as JSON, though white space around it and line breaks
    /// in it may change.
    pub fn convenient(body: &[u8]) -> Self {
        Self::new(body, |_, _| true)
    }

    fn new(body: &[u8], is_good: impl Fn(&str, &str) -> bool) -> Self {
        let Ok(text) = std::str::from_utf8(body) else {
            return Self { encoding: BodyEncoding::Base64, value: string(&BASE64.encode(body)) };
        };
        match json_on_one_line(text) {
            Some(value) if is_good(value.get(), text) => {
                Self { encoding: BodyEncoding::Json, value }
            }
            _ => Self { encoding: BodyEncoding::Text, value: string(text) },
        }
    }

    /// The body. Fails where the value is not what the encoding says, and says how.
    pub fn bytes(&self) -> Result<Bytes, String> {
        Self::read(self.encoding, &self.value)
    }

    /// The same of a value that was not taken over.
    pub fn read(encoding: BodyEncoding, value: &RawValue) -> Result<Bytes, String> {
        let text = || {
            serde_json::from_str::<String>(value.get()).map_err(|_| {
                "body_encoding says that the body is a string, and it is not".to_owned()
            })
        };
        match encoding {
            BodyEncoding::Json => Ok(Bytes::copy_from_slice(value.get().as_bytes())),
            BodyEncoding::Text => text().map(Bytes::from),
            BodyEncoding::Base64 => BASE64
                .decode(text()?)
                .map(Bytes::from)
                .map_err(|error| format!("the body is no base64: {error}")),
        }
    }
}

/// The text as JSON, if it is any, character by character but for white space around it and line
/// breaks in it.
fn json_on_one_line(text: &str) -> Option<Box<RawValue>> {
    let json: &RawValue = serde_json::from_str(text).ok()?;
    if json.get().contains(['\n', '\r']) {
        // Not within a string, where JSON has them escaped.
        RawValue::from_string(json.get().replace(['\n', '\r'], " ")).ok()
    } else {
        Some(json.to_owned())
    }
}

fn string(text: &str) -> Box<RawValue> {
    // A string can always be written as JSON.
    serde_json::value::to_raw_value(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_text_or_base64() {
        for (body, encoding, value) in [
            (&b"{\"n\": 1.10}"[..], BodyEncoding::Json, "{\"n\": 1.10}"),
            (b"{\n  \"a\\nb\": 1\r\n}\n", BodyEncoding::Json, "{   \"a\\nb\": 1  }"),
            (b"12345678901234567890123", BodyEncoding::Json, "12345678901234567890123"),
            (b"{\"a\":1,\"a\":2}", BodyEncoding::Json, "{\"a\":1,\"a\":2}"),
            (b"hello", BodyEncoding::Text, "\"hello\""),
            (b"", BodyEncoding::Text, "\"\""),
            (b"{\"n\": 1} x", BodyEncoding::Text, "\"{\\\"n\\\": 1} x\""),
            (b"\xff\xfe", BodyEncoding::Base64, "\"//4=\""),
        ] {
            let readable = ReadableBody::convenient(body);
            assert_eq!((readable.encoding, readable.value.get()), (encoding, value));
        }
    }

    #[test]
    fn an_exact_body_comes_back_to_the_byte() {
        for body in [
            &b"{\"n\": 1.10}"[..],
            b" {\n \"n\": 1}\n",
            b"\"text\"",
            b"text\r\n",
            b"",
            b"\x00\xff",
            "\u{feff}{}".as_bytes(),
        ] {
            let readable = ReadableBody::exact(body);
            assert!(!readable.value.get().contains('\n'));
            assert_eq!(readable.bytes().unwrap(), body);
        }
    }

    #[test]
    fn a_value_that_is_not_what_its_encoding_says_is_refused() {
        for encoding in [BodyEncoding::Text, BodyEncoding::Base64] {
            let value = RawValue::from_string("1".to_owned()).unwrap();
            assert!(ReadableBody { encoding, value }.bytes().unwrap_err().contains("is a string"));
        }
        let value = RawValue::from_string("\"!\"".to_owned()).unwrap();
        let error = ReadableBody { encoding: BodyEncoding::Base64, value }.bytes().unwrap_err();
        assert!(error.contains("base64"), "{error}");
    }
}
