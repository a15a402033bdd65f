//! Dead letters grouped by their errors.

use std::collections::HashMap;
use std::ops::ControlFlow;

use pillarbox_core::{MessageId, Result, Timestamp};
use serde::Serialize;

use super::dead_letter::DeadLetter;
use super::dlq::{Dlq, PeekedDeadLetter};

/// Maximum number of error groups; further errors are counted together, which bounds the memory.
const MAX_GROUPS: usize = 1_000;
/// Number of characters of an error text that are compared and kept.
const MAX_TEXT: usize = 200;

/// Dead letters, grouped by what went wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Number of dead letters that were selected.
    pub dead_letters: u64,
    /// Number of dead letters that were not selected.
    pub others: u64,
    /// Number of messages that could not be read as dead letters.
    pub unreadable: u64,
    /// Number of selected dead letters that were replayed before.
    pub replayed: u64,
    /// Number of bytes in the bodies of the selected dead letters.
    pub body_bytes: u64,
    /// When the first of the selected messages became a dead letter.
    pub first_at: Option<Timestamp>,
    /// When the last of the selected messages became a dead letter.
    pub last_at: Option<Timestamp>,
    /// The errors, the most frequent first.
    pub errors: Vec<ErrorGroup>,
    /// Number of selected dead letters whose errors are in no group, because there are too many groups.
    pub further: u64,
    /// Index into `errors` by source, type and pattern.
    #[serde(skip)]
    groups: HashMap<(String, String, String), usize>,
}

/// Dead letters of one source with the same error: of the same type, and with texts that differ in numbers
/// only.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ErrorGroup {
    /// The queue that the messages came from.
    pub source_mailbox: String,
    /// The type of the error.
    pub error_type: String,
    /// The text of the first error.
    pub error: String,
    /// Number of dead letters in the group.
    pub count: u64,
    /// When the first of the messages became a dead letter.
    pub first_at: Timestamp,
    /// When the last of the messages became a dead letter.
    pub last_at: Timestamp,
    /// The message that became a dead letter last, as an example.
    pub last_message_id: MessageId,
}

impl Dlq {
    /// Groups the selected dead letters by their errors.
    ///
    /// # Errors
    ///
    /// Those of [`peek`](Self::peek).
    pub async fn summary(
        &self,
        mut is_selected: impl FnMut(&DeadLetter) -> bool,
    ) -> Result<Summary> {
        let mut summary = Summary::default();
        self.peek(|peeked| {
            summary.add(&peeked, &mut is_selected);
            ControlFlow::Continue(())
        })
        .await?;
        summary.sort();
        Ok(summary)
    }
}

impl Summary {
    /// Adds one dead letter. [`Dlq::summary`] adds all dead letters of a queue.
    pub fn add(
        &mut self,
        peeked: &PeekedDeadLetter,
        is_selected: impl FnOnce(&DeadLetter) -> bool,
    ) {
        let Ok(letter) = &peeked.letter else {
            self.unreadable += 1;
            return;
        };
        if !is_selected(letter) {
            self.others += 1;
            return;
        }
        self.dead_letters += 1;
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
        if let Some(index) = self.groups.get(&key) {
            let group = &mut self.errors[*index];
            group.count += 1;
            group.first_at = group.first_at.min(at);
            if at >= group.last_at {
                (group.last_at, group.last_message_id) = (at, letter.message_id);
            }
        } else if self.errors.len() < MAX_GROUPS {
            self.errors.push(ErrorGroup {
                source_mailbox: key.0.clone(),
                error_type: key.1.clone(),
                error: letter.last_error.chars().take(MAX_TEXT).collect(),
                count: 1,
                first_at: at,
                last_at: at,
                last_message_id: letter.message_id,
            });
            self.groups.insert(key, self.errors.len() - 1);
        } else {
            self.further += 1;
        }
    }

    /// Sorts the errors by their frequency, once all dead letters are added.
    pub fn sort(&mut self) {
        self.groups.clear();
        self.errors.sort_by(|a, b| b.count.cmp(&a.count).then(b.last_at.cmp(&a.last_at)));
    }
}

/// Replaces what differs from message to message in the text of an error, numbers and hexadecimal ids, by `#`.
fn pattern(text: &str) -> String {
    let mut pattern = String::new();
    let mut word = String::new();
    for c in text.chars().take(MAX_TEXT).chain(['\0']) {
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
        // An id with hyphens counts as one number.
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
    fn errors_that_differ_only_in_numbers_are_one_group() {
        let same = |a: &str, b: &str| pattern(a) == pattern(b);
        assert!(same("order 17 is gone", "order 4711 is gone"));
        assert!(same(
            "no user 0193b1f4-0000-7000-8000-00000000000a",
            "no user 7f93b1f4-1111-7abc-8000-0000000000ff"
        ));
        assert!(same("at 10.0.0.1:80", "at 192.168.7.25:8080"));
        assert!(!same("order 17 is gone", "order 17 is late"));
        assert!(!same("disk full", "disk fell"));
        assert_eq!(pattern("x".repeat(5_000).as_str()).len(), MAX_TEXT + 1);
    }
}
