//! Parsing of queue names, message ids and receipts; serde's traits for types that are stored as their text.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::{MessageId, QueueName, Receipt, Timestamp};

impl QueueName {
    /// Checks `name` and creates a queue name from it.
    pub fn new(name: &str) -> Result<Self> {
        Self::check(name).map_err(|problem| {
            let value = format!("{:?} {problem}", shorten(name));
            let allowed = "1 to 80 characters out of A-Z a-z 0-9 _ . - : /";
            Error::invalid(None, "queue name", value, allowed)
        })
    }
}

/// Keeps an error text readable if a whole document is passed as a name.
fn shorten(name: &str) -> String {
    match name.char_indices().nth(QueueName::MAX_LEN) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

impl FromStr for QueueName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

macro_rules! queue_name_from {
    ($($text:ty),+) => {
        $(impl TryFrom<$text> for QueueName {
            type Error = Error;

            fn try_from(name: $text) -> Result<Self> {
                Self::new(&name)
            }
        })+
    };
}

queue_name_from!(&str, String, &String);

impl FromStr for MessageId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Uuid::try_parse(text).map(Self::from_uuid).map_err(|_| {
            let allowed = "a UUID, such as 0197b3a2-5f3c-7c1e-9d53-0b8f5d0c6a11";
            Error::invalid(None, "message id", format!("{text:?}"), allowed)
        })
    }
}

impl FromStr for Receipt {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text).ok_or_else(|| {
            let value = format!("{} bytes of text", text.len());
            let allowed = "the text of a receipt as it was received, 1 to 4,096 bytes without control characters";
            Error::invalid(None, "receipt", value, allowed)
        })
    }
}

/// Serializes a type as its `Display` form, and deserializes it by `FromStr`.
macro_rules! serde_as_text {
    ($($type:ty),+) => {
        $(impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        })+
    };
}

serde_as_text!(QueueName, MessageId, Receipt, Timestamp);
