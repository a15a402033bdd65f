//! Reading what a script answers, word by word.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::failure::Failure;

/// What a script answered.
#[derive(Debug)]
pub(crate) struct Reply {
    value: Value,
    place: Arc<str>,
}

/// The words of an answer that is a list, one after the other.
#[derive(Debug)]
pub(crate) struct Words {
    words: std::vec::IntoIter<Value>,
    place: Arc<str>,
}

/// What a script says beside its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    /// There was no such queue before, or it is a partition that is not enlisted.
    pub(crate) is_unknown: bool,
    /// The user may not publish, and nobody was woken.
    pub(crate) is_unheard: bool,
}

impl Reply {
    pub(crate) fn new(value: Value, place: &Arc<str>) -> Self {
        Self { value, place: place.clone() }
    }

    /// The answer as words: those of a list, or one alone.
    pub(crate) fn words(self) -> Words {
        let words = match self.value {
            Value::Array(words) => words,
            word => vec![word],
        };
        Words { words: words.into_iter(), place: self.place }
    }

    /// The same, where pairs and lists within the list are words of it: newer protocols have them where
    /// older ones have not.
    pub(crate) fn flat_words(self) -> Words {
        let mut words = Vec::new();
        flatten(self.value, &mut words);
        Words { words: words.into_iter(), place: self.place }
    }

    /// Whether the answer is a text with this character in it.
    pub(crate) fn has(&self, character: u8) -> bool {
        match &self.value {
            Value::BulkString(bytes) => bytes.contains(&character),
            Value::SimpleString(text) => text.as_bytes().contains(&character),
            _ => false,
        }
    }

    /// The answer as one character for each of so many entries, or a plus for all of them; and the marks
    /// that follow.
    pub(crate) fn characters(self, entries: usize) -> Result<(Vec<u8>, Marks), Failure> {
        let mut words = self.words();
        let mut characters = words.bytes()?;
        let is_unheard = characters.pop_if(|last| *last == b'~').is_some();
        let is_unknown = characters.pop_if(|last| *last == b'!').is_some();
        let marks = Marks { is_unknown, is_unheard };
        match &characters[..] {
            b"+" => Ok((vec![b'1'; entries], marks)),
            each if each.len() == entries => Ok((characters, marks)),
            _ => Err(words.wrong()),
        }
    }
}

fn flatten(value: Value, words: &mut Vec<Value>) {
    match value {
        Value::Array(list) => list.into_iter().for_each(|value| flatten(value, words)),
        Value::Map(pairs) => pairs.into_iter().for_each(|(name, value)| {
            flatten(name, words);
            flatten(value, words);
        }),
        word => words.push(word),
    }
}

impl Words {
    pub(crate) fn is_empty(&self) -> bool {
        self.words.len() == 0
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, Failure> {
        self.bytes_or_nothing()?.ok_or_else(|| self.wrong())
    }

    pub(crate) fn bytes_or_nothing(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        match self.words.next() {
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(Value::SimpleString(text) | Value::VerbatimString { text, .. }) => {
                Ok(Some(text.into_bytes()))
            }
            Some(Value::Double(number)) => Ok(Some(number.to_string().into_bytes())),
            Some(Value::Nil) => Ok(None),
            _ => Err(self.wrong()),
        }
    }

    /// The words of a list within the list.
    pub(crate) fn list(&mut self) -> Result<Self, Failure> {
        match self.words.next() {
            Some(Value::Array(words)) => {
                Ok(Self { words: words.into_iter(), place: self.place.clone() })
            }
            _ => Err(self.wrong()),
        }
    }

    pub(crate) fn integer(&mut self) -> Result<i64, Failure> {
        match self.words.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(self.wrong()),
        }
    }

    /// A number of microseconds, or none if it is negative.
    pub(crate) fn micros(&mut self) -> Result<Option<Duration>, Failure> {
        Ok(u64::try_from(self.integer()?).ok().map(Duration::from_micros))
    }

    /// A number that is not negative.
    pub(crate) fn count(&mut self) -> Result<u64, Failure> {
        // A count that was damaged by hand may be below nothing.
        self.integer().map(|number| number.max(0) as u64)
    }

    /// A text that is something else.
    pub(crate) fn parsed<T: std::str::FromStr>(&mut self) -> Result<T, Failure> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(&bytes).ok();
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.wrong())
    }

    /// The failure to say when a word is not what it should be.
    pub(crate) fn wrong(&self) -> Failure {
        Failure::Reply { place: self.place.clone() }
    }
}
