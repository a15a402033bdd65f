//! Codecs, which encode and decode bodies.

use std::error::Error as StdError;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Error of a codec. The mailbox adds the queue and the message.
pub type CodecError = Box<dyn StdError + Send + Sync + 'static>;

/// Encodes bodies of type `T` and decodes them.
///
/// A mailbox gets its codec when it is opened. Defaults to [`Json`]. Senders and receivers of a queue must use the
/// same codec; a body that cannot be decoded is not lost but delivered as raw bytes.
pub trait Codec<T>: Send + Sync + 'static {
    /// Returns the name of the format, for error texts.
    fn name(&self) -> &'static str;

    /// Encodes a body.
    fn encode(&self, body: &T) -> Result<Bytes, CodecError>;

    /// Decodes a body.
    fn decode(&self, bytes: &Bytes) -> Result<T, CodecError>;
}

impl<T: 'static> Codec<T> for std::sync::Arc<dyn Codec<T>> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn encode(&self, body: &T) -> Result<Bytes, CodecError> {
        (**self).encode(body)
    }

    fn decode(&self, bytes: &Bytes) -> Result<T, CodecError> {
        (**self).decode(bytes)
    }
}

/// JSON, for any type that implements serde's traits. The default, since every tool can read it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn name(&self) -> &'static str {
        "JSON"
    }

    fn encode(&self, body: &T) -> Result<Bytes, CodecError> {
        Ok(serde_json::to_vec(body)?.into())
    }

    fn decode(&self, bytes: &Bytes) -> Result<T, CodecError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// MessagePack with field names, for any type that implements serde's traits. Smaller and faster than JSON, and
/// equally tolerant of added fields.
#[cfg(feature = "msgpack")]
#[derive(Debug, Clone, Copy, Default)]
pub struct MessagePack;

#[cfg(feature = "msgpack")]
impl<T: Serialize + DeserializeOwned> Codec<T> for MessagePack {
    fn name(&self) -> &'static str {
        "MessagePack"
    }

    fn encode(&self, body: &T) -> Result<Bytes, CodecError> {
        Ok(rmp_serde::to_vec_named(body)?.into())
    }

    fn decode(&self, bytes: &Bytes) -> Result<T, CodecError> {
        // The limit of serde_json. The default of 1,000 levels can overflow the stack, and then a message
        // aborts the process.
        const MAX_DEPTH: usize = 128;
        let mut reader = rmp_serde::Deserializer::from_read_ref(&bytes[..]);
        reader.set_max_depth(MAX_DEPTH);
        Ok(T::deserialize(&mut reader)?)
    }
}

/// Unencoded bytes, for `Bytes`, `Vec<u8>`, `String`, and `()` for mailboxes without replies. `Bytes` are not
/// copied.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec<Bytes> for Raw {
    fn name(&self) -> &'static str {
        "raw bytes"
    }

    fn encode(&self, body: &Bytes) -> Result<Bytes, CodecError> {
        Ok(body.clone())
    }

    fn decode(&self, bytes: &Bytes) -> Result<Bytes, CodecError> {
        Ok(bytes.clone())
    }
}

impl Codec<Vec<u8>> for Raw {
    fn name(&self) -> &'static str {
        "raw bytes"
    }

    fn encode(&self, body: &Vec<u8>) -> Result<Bytes, CodecError> {
        Ok(Bytes::copy_from_slice(body))
    }

    fn decode(&self, bytes: &Bytes) -> Result<Vec<u8>, CodecError> {
        Ok(bytes.to_vec())
    }
}

impl Codec<String> for Raw {
    fn name(&self) -> &'static str {
        "UTF-8 text"
    }

    fn encode(&self, body: &String) -> Result<Bytes, CodecError> {
        Ok(Bytes::copy_from_slice(body.as_bytes()))
    }

    fn decode(&self, bytes: &Bytes) -> Result<String, CodecError> {
        Ok(std::str::from_utf8(bytes)?.to_owned())
    }
}

impl Codec<()> for Raw {
    fn name(&self) -> &'static str {
        "an empty body"
    }

    fn encode(&self, (): &()) -> Result<Bytes, CodecError> {
        Ok(Bytes::new())
    }

    fn decode(&self, bytes: &Bytes) -> Result<(), CodecError> {
        if bytes.is_empty() { Ok(()) } else { Err("the body is not empty".into()) }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Job {
        n: u64,
        #[serde(default)]
        note: Option<String>,
    }

    fn round_trip<T: PartialEq + std::fmt::Debug>(codec: &impl Codec<T>, body: T) {
        let bytes = codec.encode(&body).unwrap();
        assert_eq!(codec.decode(&bytes).unwrap(), body, "{}", codec.name());
    }

    #[test]
    #[cfg(feature = "msgpack")]
    fn a_body_that_is_nested_too_deeply_is_refused() {
        let deep = Bytes::from([vec![0x91; 900], vec![0xc0]].concat());
        let refused = Codec::<serde_json::Value>::decode(&MessagePack, &deep).unwrap_err();
        assert!(refused.to_string().contains("depth"), "{refused}");
        let nested = Bytes::from([vec![0x91; 100], vec![0xc0]].concat());
        assert!(Codec::<serde_json::Value>::decode(&MessagePack, &nested).is_ok());
    }

    #[test]
    fn every_codec_round_trips() {
        round_trip(&Json, Job { n: u64::MAX, note: Some("ü \u{0}".into()) });
        round_trip(&Json, ());
        #[cfg(feature = "msgpack")]
        round_trip(&MessagePack, Job { n: u64::MAX, note: None });
        round_trip(&Raw, Bytes::from_static(b"\xff\x00"));
        round_trip(&Raw, vec![0xff_u8, 0]);
        round_trip(&Raw, "text".to_owned());
        round_trip(&Raw, ());
    }

    #[cfg(feature = "msgpack")]
    #[test]
    fn messagepack_reads_a_body_with_a_field_missing() {
        #[derive(Serialize, Deserialize)]
        struct Old {
            n: u64,
        }
        let bytes = MessagePack.encode(&Old { n: 7 }).unwrap();
        let job: Job = MessagePack.decode(&bytes).unwrap();
        assert_eq!(job, Job { n: 7, note: None });
    }

    #[test]
    fn bytes_that_do_not_decode_are_an_error() {
        let bytes = Bytes::from_static(b"\xff{");
        assert!(Codec::<Job>::decode(&Json, &bytes).is_err());
        assert!(Codec::<String>::decode(&Raw, &bytes).is_err());
        assert!(Codec::<()>::decode(&Raw, &bytes).is_err());
    }
}
