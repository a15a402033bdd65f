//! Parsing of queue names, message ids and receipts.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::{MessageId, QueueName, Receipt};

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

impl TryFrom<&str> for QueueName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for QueueName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(&name)
    }
}

impl TryFrom<&String> for QueueName {
    type Error = Error;

    fn try_from(name: &String) -> Result<Self> {
        Self::new(name)
    }
}

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

macro_rules! deserialize_from_str {
    ($($type:ty),+) => {
        $(impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        })+
    };
}

deserialize_from_str!(QueueName, MessageId, Receipt);
