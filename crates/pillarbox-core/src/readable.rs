//! Bodies as JSON values, for people and scripts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Encoding of a body as a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyEncoding {
    /// The body is JSON and is written as that value.
    Json,
    /// A string. Also used for JSON that is nested deeper than [`ReadableBody::MAX_DEPTH`].
    Text,
    /// A base64 string, for bytes that are not UTF-8 and for JSON with an unpaired surrogate, such as `"\ud800"`.
    Base64,
}

/// A body as a readable JSON value, which can be converted back to the body.
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
    /// Encoding of the value.
    pub encoding: BodyEncoding,
    /// The value.
    pub value: Box<RawValue>,
}

impl ReadableBody {
    /// Maximum nesting of arrays and objects that is written as JSON. JSON parsers have limits (127 levels in
    /// serde_json, 256 or 1,000 in others), and the body itself is written inside other objects.
    pub const MAX_DEPTH: usize = 100;

    /// Encodes a body so that it converts back to the same bytes. JSON that would not, because of the white space
    /// around it, is written as text.
    pub fn exact(body: &[u8]) -> Self {
        Self::new(body, |json, text| json == text)
    }

    /// Encodes a body so that it is easy to use: all JSON is written as JSON, although white space around it and line
    /// breaks in it may change.
    pub fn convenient(body: &[u8]) -> Self {
        Self::new(body, |_, _| true)
    }

    /// Encodes a body as JSON if `accepts` the JSON value, given with the original text.
    fn new(body: &[u8], accepts: impl Fn(&str, &str) -> bool) -> Self {
        let base64 =
            || Self { encoding: BodyEncoding::Base64, value: string(&BASE64.encode(body)) };
        let Ok(text) = std::str::from_utf8(body) else { return base64() };
        let text_value = || Self { encoding: BodyEncoding::Text, value: string(text) };
        let Ok(json) = serde_json::from_str::<&RawValue>(text) else { return text_value() };
        match substitute(json.get()) {
            Some(BodyEncoding::Base64) => return base64(),
            Some(_) => return text_value(),
            None => {}
        }
        match on_one_line(json) {
            Some(value) if accepts(value.get(), text) => {
                Self { encoding: BodyEncoding::Json, value }
            }
            _ => text_value(),
        }
    }

    /// Decodes the body. Fails with a description if the value does not match the encoding.
    pub fn bytes(&self) -> Result<Bytes, String> {
        Self::read(self.encoding, &self.value)
    }

    /// Decodes a body from a borrowed value.
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

/// Replaces the line breaks of a JSON value by spaces.
fn on_one_line(json: &RawValue) -> Option<Box<RawValue>> {
    if json.get().contains(['\n', '\r']) {
        // None is inside a string, where JSON escapes them.
        RawValue::from_string(json.get().replace(['\n', '\r'], " ")).ok()
    } else {
        Some(json.to_owned())
    }
}

/// Returns the encoding to use in place of JSON, if parsers would reject this JSON although its grammar allows it: it is
/// nested too deeply, or contains an unpaired surrogate, which UTF-8 cannot represent.
fn substitute(json: &str) -> Option<BodyEncoding> {
    let bytes = json.as_bytes();
    let (mut position, mut depth, mut in_string, mut is_deep) = (0, 0_usize, false, false);
    while let Some(byte) = bytes.get(position) {
        position += 1;
        match (in_string, byte) {
            (_, b'"') => in_string = !in_string,
            (true, b'\\') => {
                position += 1;
                let unit = match bytes.get(position - 1) {
                    Some(b'u') => utf16_unit(bytes, position),
                    _ => continue,
                };
                position += 4;
                match unit {
                    Some(0xD800..=0xDBFF) => {
                        let is_escape = bytes.get(position..position + 2) == Some(br"\u");
                        let low = if is_escape { utf16_unit(bytes, position + 2) } else { None };
                        if !matches!(low, Some(0xDC00..=0xDFFF)) {
                            return Some(BodyEncoding::Base64);
                        }
                        position += 6;
                    }
                    Some(0xDC00..=0xDFFF) => return Some(BodyEncoding::Base64),
                    _ => {}
                }
            }
            (false, b'[' | b'{') => {
                depth += 1;
                is_deep |= depth > ReadableBody::MAX_DEPTH;
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    is_deep.then_some(BodyEncoding::Text)
}

/// Parses the four hexadecimal digits at a position.
fn utf16_unit(bytes: &[u8], position: usize) -> Option<u16> {
    let digits = std::str::from_utf8(bytes.get(position..position + 4)?).ok()?;
    u16::from_str_radix(digits, 16).ok()
}

fn string(text: &str) -> Box<RawValue> {
    // Serializing a string cannot fail.
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
            (br#""\ud83d\uDE00 \u0041""#, BodyEncoding::Json, r#""\ud83d\uDE00 \u0041""#),
            (br#""\\ud800""#, BodyEncoding::Json, r#""\\ud800""#),
            (br#""\ud800""#, BodyEncoding::Base64, "\"Ilx1ZDgwMCI=\""),
        ] {
            let readable = ReadableBody::convenient(body);
            assert_eq!((readable.encoding, readable.value.get()), (encoding, value));
        }
    }

    #[test]
    fn json_that_parsers_reject_is_not_written_as_json() {
        for unpaired in [
            r#""\udc00""#,
            r#""\ud800x""#,
            r#""\ud800\n""#,
            r#""\ud800\ud800""#,
            r#"{"\uDBFF": 1}"#,
            r#"[["x", "\\\ud800\u0041"]]"#,
        ] {
            assert!(serde_json::from_str::<serde_json::Value>(unpaired).is_err(), "{unpaired}");
            for readable in
                [ReadableBody::exact, ReadableBody::convenient].map(|f| f(unpaired.as_bytes()))
            {
                assert_eq!(readable.encoding, BodyEncoding::Base64, "{unpaired}");
                assert_eq!(readable.bytes().unwrap(), unpaired.as_bytes());
            }
        }
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for (depth, encoding) in [
            (ReadableBody::MAX_DEPTH, BodyEncoding::Json),
            (ReadableBody::MAX_DEPTH + 1, BodyEncoding::Text),
            (200_000, BodyEncoding::Text),
        ] {
            let body = nested(depth);
            let readable = ReadableBody::exact(body.as_bytes());
            assert_eq!((readable.encoding, readable.bytes().unwrap() == body), (encoding, true));
        }
        // Brackets inside a string do not nest, and neither do closed ones.
        let flat = format!("[{:?}, {}0]", "[".repeat(1000), "[[]],".repeat(1000));
        assert_eq!(ReadableBody::exact(flat.as_bytes()).encoding, BodyEncoding::Json);
    }

    #[test]
    fn an_exact_body_converts_back_to_the_same_bytes() {
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
    fn a_value_that_does_not_match_its_encoding_is_refused() {
        for encoding in [BodyEncoding::Text, BodyEncoding::Base64] {
            let value = RawValue::from_string("1".to_owned()).unwrap();
            assert!(ReadableBody { encoding, value }.bytes().unwrap_err().contains("is a string"));
        }
        let value = RawValue::from_string("\"!\"".to_owned()).unwrap();
        let error = ReadableBody { encoding: BodyEncoding::Base64, value }.bytes().unwrap_err();
        assert!(error.contains("base64"), "{error}");
    }
}
