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
    /// A string; also for JSON that is nested deeper than [`ReadableBody::MAX_DEPTH`].
    Text,
    /// A string of base64, for bytes that are no UTF-8 and for JSON with half of a surrogate pair in it, such as
    /// `"\ud800"`.
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
    /// The deepest nesting of arrays and objects that is given as JSON. Readers of JSON have limits (this crate's
    /// reads 127 levels, others read 256 or 1,000), and a body is written within other objects.
    pub const MAX_DEPTH: usize = 100;

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
        let base64 =
            || Self { encoding: BodyEncoding::Base64, value: string(&BASE64.encode(body)) };
        let Ok(text) = std::str::from_utf8(body) else { return base64() };
        let text_value = || Self { encoding: BodyEncoding::Text, value: string(text) };
        let Ok(json) = serde_json::from_str::<&RawValue>(text) else { return text_value() };
        match obstacle(json.get()) {
            Some(Obstacle::HalfCharacter) => return base64(),
            Some(Obstacle::Depth) => return text_value(),
            None => {}
        }
        match on_one_line(json) {
            Some(value) if is_good(value.get(), text) => {
                Self { encoding: BodyEncoding::Json, value }
            }
            _ => text_value(),
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

/// JSON, character by character but for line breaks in it.
fn on_one_line(json: &RawValue) -> Option<Box<RawValue>> {
    if json.get().contains(['\n', '\r']) {
        // Not within a string, where JSON has them escaped.
        RawValue::from_string(json.get().replace(['\n', '\r'], " ")).ok()
    } else {
        Some(json.to_owned())
    }
}

/// Why readers of JSON refuse what its grammar allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    /// It is nested too deeply.
    Depth,
    /// An escape in it is half of a surrogate pair, which no text in UTF-8 can hold.
    HalfCharacter,
}

/// Looks for what readers refuse in what is JSON by its grammar.
fn obstacle(json: &str) -> Option<Obstacle> {
    let bytes = json.as_bytes();
    let (mut place, mut depth, mut is_text, mut is_deep) = (0, 0_usize, false, false);
    while let Some(byte) = bytes.get(place) {
        place += 1;
        match (is_text, byte) {
            (_, b'"') => is_text = !is_text,
            (true, b'\\') => {
                place += 1;
                let unit = match bytes.get(place - 1) {
                    Some(b'u') => utf16_unit(bytes, place),
                    _ => continue,
                };
                place += 4;
                match unit {
                    Some(0xD800..=0xDBFF) => {
                        let is_escape = bytes.get(place..place + 2) == Some(br"\u");
                        let low = if is_escape { utf16_unit(bytes, place + 2) } else { None };
                        if !matches!(low, Some(0xDC00..=0xDFFF)) {
                            return Some(Obstacle::HalfCharacter);
                        }
                        place += 6;
                    }
                    Some(0xDC00..=0xDFFF) => return Some(Obstacle::HalfCharacter),
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
    is_deep.then_some(Obstacle::Depth)
}

/// The four hexadecimal digits from a place on.
fn utf16_unit(bytes: &[u8], place: usize) -> Option<u16> {
    let digits = std::str::from_utf8(bytes.get(place..place + 4)?).ok()?;
    u16::from_str_radix(digits, 16).ok()
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
            (br#""\ud83d\uDE00 \u0041""#, BodyEncoding::Json, r#""\ud83d\uDE00 \u0041""#),
            (br#""\\ud800""#, BodyEncoding::Json, r#""\\ud800""#),
            (br#""\ud800""#, BodyEncoding::Base64, "\"Ilx1ZDgwMCI=\""),
        ] {
            let readable = ReadableBody::convenient(body);
            assert_eq!((readable.encoding, readable.value.get()), (encoding, value));
        }
    }

    #[test]
    fn json_that_other_readers_refuse_is_not_given_as_json() {
        for half in [
            r#""\udc00""#,
            r#""\ud800x""#,
            r#""\ud800\n""#,
            r#""\ud800\ud800""#,
            r#"{"\uDBFF": 1}"#,
            r#"[["x", "\\\ud800\u0041"]]"#,
        ] {
            assert!(serde_json::from_str::<serde_json::Value>(half).is_err(), "{half}");
            for readable in
                [ReadableBody::exact, ReadableBody::convenient].map(|f| f(half.as_bytes()))
            {
                assert_eq!(readable.encoding, BodyEncoding::Base64, "{half}");
                assert_eq!(readable.bytes().unwrap(), half.as_bytes());
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
        // Brackets of a text nest nothing, and what is closed is not nested.
        let flat = format!("[{:?}, {}0]", "[".repeat(1000), "[[]],".repeat(1000));
        assert_eq!(ReadableBody::exact(flat.as_bytes()).encoding, BodyEncoding::Json);
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
