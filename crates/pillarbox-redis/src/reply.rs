//! Reading the answers of scripts and commands.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::failure::{Failure, Result};

/// Answer of a script or command.
#[derive(Debug)]
pub(crate) struct Reply {
    value: Value,
    endpoint: Arc<str>,
}

/// Reader of the values of an answer, one after the other.
#[derive(Debug)]
pub(crate) struct ReplyReader {
    values: std::vec::IntoIter<Value>,
    endpoint: Arc<str>,
}

/// Flags that a script reports beside its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags {
    /// The queue was created by this call, or the partition is not enlisted.
    pub(crate) must_announce: bool,
    /// The user may not publish, and no waiter was woken.
    pub(crate) publish_failed: bool,
}

impl Reply {
    pub(crate) fn new(value: Value, endpoint: &Arc<str>) -> Self {
        Self { value, endpoint: endpoint.clone() }
    }

    /// Returns a reader of the values of a list, or of one value alone.
    pub(crate) fn into_reader(self) -> ReplyReader {
        let values = match self.value {
            Value::Array(values) => values,
            value => vec![value],
        };
        ReplyReader { values: values.into_iter(), endpoint: self.endpoint }
    }

    /// Returns a reader of all values, those of nested lists and maps included: newer protocols nest where
    /// older ones do not.
    pub(crate) fn into_flat_reader(self) -> ReplyReader {
        let mut values = Vec::new();
        flatten(self.value, &mut values);
        ReplyReader { values: values.into_iter(), endpoint: self.endpoint }
    }

    /// Returns whether the answer is a text with this character in it.
    pub(crate) fn has(&self, character: u8) -> bool {
        match &self.value {
            Value::BulkString(bytes) => bytes.contains(&character),
            Value::SimpleString(text) => text.as_bytes().contains(&character),
            _ => false,
        }
    }

    /// Returns one character for each entry, and the flags that follow. A plus stands for all entries.
    pub(crate) fn characters(self, entries: usize) -> Result<(Vec<u8>, Flags)> {
        let mut reader = self.into_reader();
        let mut characters = reader.bytes()?;
        let publish_failed = characters.pop_if(|last| *last == b'~').is_some();
        let must_announce = characters.pop_if(|last| *last == b'!').is_some();
        let flags = Flags { must_announce, publish_failed };
        match &characters[..] {
            b"+" => Ok((vec![b'1'; entries], flags)),
            each if each.len() == entries => Ok((characters, flags)),
            _ => Err(reader.unexpected()),
        }
    }
}

fn flatten(value: Value, values: &mut Vec<Value>) {
    match value {
        Value::Array(list) => list.into_iter().for_each(|value| flatten(value, values)),
        Value::Map(pairs) => pairs.into_iter().for_each(|(name, value)| {
            flatten(name, values);
            flatten(value, values);
        }),
        value => values.push(value),
    }
}

impl ReplyReader {
    pub(crate) fn is_empty(&self) -> bool {
        self.values.len() == 0
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        self.optional_bytes()?.ok_or_else(|| self.unexpected())
    }

    pub(crate) fn optional_bytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.values.next() {
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(Value::SimpleString(text) | Value::VerbatimString { text, .. }) => {
                Ok(Some(text.into_bytes()))
            }
            Some(Value::Double(number)) => Ok(Some(number.to_string().into_bytes())),
            Some(Value::Nil) => Ok(None),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns a reader of a nested list.
    pub(crate) fn list(&mut self) -> Result<Self> {
        match self.values.next() {
            Some(Value::Array(values)) => {
                Ok(Self { values: values.into_iter(), endpoint: self.endpoint.clone() })
            }
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) fn integer(&mut self) -> Result<i64> {
        match self.values.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(self.unexpected()),
        }
    }

    /// Reads a number of microseconds. `None` if it is negative.
    pub(crate) fn micros(&mut self) -> Result<Option<Duration>> {
        Ok(u64::try_from(self.integer()?).ok().map(Duration::from_micros))
    }

    /// Reads a number, of which a negative one counts as 0.
    pub(crate) fn count(&mut self) -> Result<u64> {
        // A counter may have been changed by hand.
        self.integer().map(|number| number.max(0) as u64)
    }

    /// Reads a text and parses it.
    pub(crate) fn parsed<T: std::str::FromStr>(&mut self) -> Result<T> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(&bytes).ok();
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.unexpected())
    }

    /// Returns the failure for a value of an unexpected form.
    pub(crate) fn unexpected(&self) -> Failure {
        Failure::Reply { endpoint: self.endpoint.clone() }
    }
}
