//! What went wrong, at a glance.

use std::collections::HashMap;

use pillarbox_core::Timestamp;
use serde::Serialize;

use super::{DeadLetter, Found};

/// How many different errors are told apart; the others are counted together. So the whole stays small,
/// however many dead letters there are.
const MOST_GROUPS: usize = 1_000;
/// How much of an error tells it from others.
const TEXT: usize = 200;

/// Dead letters, grouped by what went wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// How many dead letters were meant.
    pub letters: u64,
    /// How many were not.
    pub others: u64,
    /// How many could not be read, and are no dead letters, perhaps.
    pub unreadable: u64,
    /// How many of those that were meant were replayed before.
    pub replayed: u64,
    /// How many bytes their bodies have.
    pub body_bytes: u64,
    /// When the first of them became one.
    pub first_at: Option<Timestamp>,
    /// When the last of them became one.
    pub last_at: Option<Timestamp>,
    /// The errors, the most frequent first.
    pub errors: Vec<ErrorGroup>,
    /// How many dead letters have still other errors.
    pub further: u64,
    #[serde(skip)]
    places: HashMap<(String, String, String), usize>,
}

/// Dead letters of one source that have the same error: of the same type, and with a text that differs in
/// its numbers at most.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ErrorGroup {
    /// Where the messages came from.
    pub source_mailbox: String,
    /// The type of the error.
    pub error_type: String,
    /// The text of the first one.
    pub error: String,
    /// How many there are.
    pub count: u64,
    /// When the first became a dead letter.
    pub first_at: Timestamp,
    /// When the last became a dead letter.
    pub last_at: Timestamp,
    /// The message of the last one, to look into.
    pub last_message_id: pillarbox_core::MessageId,
}

impl Summary {
    /// Counts one more. [`Dlq::summary`](super::Dlq::summary) does it with all there are.
    pub fn add(&mut self, found: &Found, is_meant: impl FnOnce(&DeadLetter) -> bool) {
        let Ok(letter) = &found.letter else {
            self.unreadable += 1;
            return;
        };
        if !is_meant(letter) {
            self.others += 1;
            return;
        }
        self.letters += 1;
        self.replayed += u64::from(letter.replay_count > 0);
        self.body_bytes += letter.body.len() as u64;
        let at = letter.dead_lettered_at;
        self.first_at = Some(self.first_at.map_or(at, |first| first.min(at)));
        self.last_at = Some(self.last_at.map_or(at, |last| last.max(at)));
        self.group(letter);
    }

    fn group(&mut self, letter: &DeadLetter) {
        let at = letter.dead_lettered_at;
        let key = (
            letter.source_mailbox.to_string(),
            letter.last_error_type.clone(),
            pattern(&letter.last_error),
        );
        if let Some(place) = self.places.get(&key) {
            let group = &mut self.errors[*place];
            group.count += 1;
            group.first_at = group.first_at.min(at);
            if at >= group.last_at {
                (group.last_at, group.last_message_id) = (at, letter.message_id);
            }
        } else if self.errors.len() < MOST_GROUPS {
            self.errors.push(ErrorGroup {
                source_mailbox: key.0.clone(),
                error_type: key.1.clone(),
                error: letter.last_error.chars().take(TEXT).collect(),
                count: 1,
                first_at: at,
                last_at: at,
                last_message_id: letter.message_id,
            });
            self.places.insert(key, self.errors.len() - 1);
        } else {
            self.further += 1;
        }
    }

    /// Puts the most frequent errors first, once all are counted.
    pub fn sort(&mut self) {
        self.places.clear();
        self.errors.sort_by(|a, b| b.count.cmp(&a.count).then(b.last_at.cmp(&a.last_at)));
    }
}

/// The text of an error without what differs from message to message: numbers, and ids in hexadecimal.
fn pattern(text: &str) -> String {
    let mut pattern = String::new();
    let mut word = String::new();
    for c in text.chars().take(TEXT).chain(['\0']) {
        if c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        let has_digit = word.contains(|c: char| c.is_ascii_digit());
        if has_digit {
            pattern.push('#');
        } else {
            pattern.push_str(&word);
        }
        word.clear();
        // An id with hyphens is one number.
        if c == '-' && pattern.ends_with('#') {
            continue;
        }
        pattern.push(c);
    }
    while pattern.contains("##") {
        pattern = pattern.replace("##", "#");
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_their_numbers_are_one() {
        let same = |a: &str, b: &str| pattern(a) == pattern(b);
        assert!(same("order 17 is gone", "order 4711 is gone"));
        assert!(same(
            "no user 0193b1f4-0000-7000-8000-00000000000a",
            "no user 7f93b1f4-1111-7abc-8000-0000000000ff"
        ));
        assert!(same("at 10.0.0.1:80", "at 192.168.7.25:8080"));
        assert!(!same("order 17 is gone", "order 17 is late"));
        assert!(!same("disk full", "disk fell"));
        assert_eq!(pattern("x".repeat(5_000).as_str()).len(), TEXT + 1);
    }
}
