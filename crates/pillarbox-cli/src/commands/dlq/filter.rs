//! Filters for dead letters.

use pillarbox::dead_letters::{DeadLetter, Pass};
use pillarbox::{MessageId, Timestamp};

use crate::args::Filters;

/// Filters from the command line, all of which must match.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    args: Filters,
    /// In lower case.
    text: Option<String>,
    /// Reference time for ages.
    now: Timestamp,
}

impl Filter {
    pub(super) fn new(args: Filters, now: Timestamp) -> Self {
        let text = args.text.as_deref().map(str::to_lowercase);
        Self { args, text, now }
    }

    /// Returns whether there is no filter.
    pub(super) fn is_all(&self) -> bool {
        self.args == Filters::default()
    }

    /// Returns whether the dead letter with this id matches.
    pub(super) fn matches(&self, id: MessageId, letter: &DeadLetter) -> bool {
        let ids = &self.args.ids;
        (ids.is_empty() || ids.contains(&id) || ids.contains(&letter.message_id))
            && self.matches_letter(letter)
    }

    /// Applies the filters to a pass.
    pub(super) fn apply(&self, pass: Pass) -> Pass {
        let filter = self.clone();
        pass.ids(self.args.ids.iter().copied())
            .matching(move |letter| filter.matches_letter(letter))
    }

    fn matches_letter(&self, letter: &DeadLetter) -> bool {
        let args = &self.args;
        let age = letter.age(self.now);
        args.error_type.as_ref().is_none_or(|text| letter.last_error_type.contains(text))
            && args.kind.is_none_or(|kind| letter.failure == kind)
            && args.source.as_ref().is_none_or(|source| letter.source_mailbox == *source)
            && args.older.is_none_or(|limit| age >= limit)
            && args.newer.is_none_or(|limit| age < limit)
            && !(args.replayed && letter.replay_count == 0)
            && !(args.not_replayed && letter.replay_count > 0)
            && self.text.as_ref().is_none_or(|text| has_text(letter, text))
            && self.has_values(letter)
    }

    fn has_values(&self, letter: &DeadLetter) -> bool {
        let paths = &self.args.json_paths;
        if paths.is_empty() {
            return true;
        }
        let body = serde_json::from_slice(&letter.body);
        body.is_ok_and(|body| paths.iter().all(|path| path.holds(&body)))
    }
}

fn has_text(letter: &DeadLetter, text: &str) -> bool {
    contains(letter.last_error.as_bytes(), text)
        || letter.error_chain.iter().any(|cause| contains(cause.as_bytes(), text))
        || contains(&letter.body, text)
}

/// Returns whether the bytes contain a lower-case text, ignoring case.
fn contains(bytes: &[u8], text: &str) -> bool {
    if text.is_ascii() {
        let text = text.as_bytes();
        return bytes.windows(text.len()).any(|part| part.eq_ignore_ascii_case(text));
    }
    String::from_utf8_lossy(bytes).to_lowercase().contains(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pillarbox::FailureKind;
    use pillarbox::dead_letters::DeadLetterCodec;
    use pillarbox::{Codec, Raw};

    use super::*;

    fn letter() -> DeadLetter {
        let text = r#"{"message_id":"0193b1f4-0000-7000-8000-000000000001","source_mailbox":"orders",
            "delivery_count":5,"last_error":"Card refused","last_error_type":"shop::pay::Refused",
            "failure":"error","error_chain":["Bank SAYS nÖ"],"dead_lettered_at":"2026-11-16T10:00:00Z",
            "first_received_at":"2026-11-16T09:00:00Z","replay_count":1,
            "body":{"customer":{"id":42},"note":"Gift"}}"#;
        DeadLetterCodec(Raw).decode(&text.as_bytes().to_vec().into()).unwrap()
    }

    fn matches(set: impl FnOnce(&mut Filters)) -> bool {
        let now = "2026-11-16T11:00:00Z".parse().unwrap();
        let mut args = Filters::default();
        set(&mut args);
        let filter = Filter::new(args, now);
        assert!(!filter.is_all());
        filter.matches("0193b1f4-0000-7000-8000-0000000000ff".parse().unwrap(), &letter())
    }

    #[test]
    fn all_filters_must_match() {
        let id = |end: &str| format!("0193b1f4-0000-7000-8000-0000000000{end}").parse().unwrap();
        assert!(matches(|args| args.error_type = Some("Refused".to_owned())));
        assert!(matches(|args| args.error_type = Some("pay::".to_owned())));
        assert!(!matches(|args| args.error_type = Some("refused".to_owned())));
        assert!(matches(|args| args.kind = Some(FailureKind::Error)));
        assert!(!matches(|args| args.kind = Some(FailureKind::Panic)));
        assert!(matches(|args| args.source = Some("orders".parse().unwrap())));
        assert!(!matches(|args| args.source = Some("order".parse().unwrap())));
        let hour = Some(Duration::from_secs(3600));
        assert!(matches(|args| args.older = hour) && !matches(|args| args.newer = hour));
        for text in ["card REFUSED", "bank says nö", "NÖ", "gift", "\"id\":42"] {
            assert!(matches(|args| args.text = Some(text.to_owned())), "{text}");
        }
        assert!(!matches(|args| args.text = Some("shop::pay".to_owned())));
        assert!(matches(|args| args.ids = vec![id("00"), id("01")]));
        assert!(matches(|args| args.ids = vec![id("ff")]));
        assert!(!matches(|args| args.ids = vec![id("02")]));
        assert!(matches(|args| args.replayed = true) && !matches(|args| args.not_replayed = true));
        let path = |text: &str| text.parse().unwrap();
        assert!(matches(|args| args.json_paths = vec![path("$.customer.id=42"), path("$.note")]));
        assert!(!matches(|args| args.json_paths = vec![path("$.customer.id=42"), path("$.no")]));
        assert!(!matches(|args| {
            args.kind = Some(FailureKind::Error);
            args.not_replayed = true;
        }));
    }

    #[test]
    fn without_a_filter_all_dead_letters_match() {
        let filter = Filter::new(Filters::default(), Timestamp::now());
        assert!(filter.is_all() && filter.matches(MessageId::new(), &letter()));
    }
}
