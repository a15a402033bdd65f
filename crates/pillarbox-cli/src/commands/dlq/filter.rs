//! Which dead letters are meant.

use pillarbox::runtime::{DeadLetter, Pass};
use pillarbox::{MessageId, Timestamp};

use crate::args::Filters;

/// What was said of the dead letters that are meant, all of which must be so.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    said: Filters,
    /// In small letters.
    text: Option<String>,
    /// Ages are seen from one moment, however long it takes to look at all.
    now: Timestamp,
}

impl Filter {
    pub(super) fn new(said: Filters, now: Timestamp) -> Self {
        let text = said.text.as_deref().map(str::to_lowercase);
        Self { said, text, now }
    }

    /// Whether nothing was said, so that all are meant.
    pub(super) fn is_all(&self) -> bool {
        let Filters {
            error_type,
            kind,
            source,
            older,
            newer,
            text,
            ids,
            json_paths,
            replayed,
            not_replayed,
        } = &self.said;
        let is_said = error_type.is_some()
            || kind.is_some()
            || source.is_some()
            || older.is_some()
            || newer.is_some()
            || text.is_some();
        !is_said && ids.is_empty() && json_paths.is_empty() && !replayed && !not_replayed
    }

    /// Whether the dead letter of this id is meant.
    pub(super) fn means(&self, id: MessageId, letter: &DeadLetter) -> bool {
        let ids = &self.said.ids;
        (ids.is_empty() || ids.contains(&id) || ids.contains(&letter.message_id))
            && self.means_letter(letter)
    }

    /// Tells a pass which are meant.
    pub(super) fn apply(&self, pass: Pass) -> Pass {
        let filter = self.clone();
        pass.ids(self.said.ids.iter().copied()).matching(move |letter| filter.means_letter(letter))
    }

    fn means_letter(&self, letter: &DeadLetter) -> bool {
        let said = &self.said;
        let age = letter.age(self.now);
        said.error_type.as_ref().is_none_or(|text| letter.last_error_type.contains(text))
            && said.kind.is_none_or(|kind| letter.failure == kind)
            && said.source.as_ref().is_none_or(|source| letter.source_mailbox == *source)
            && said.older.is_none_or(|limit| age >= limit)
            && said.newer.is_none_or(|limit| age < limit)
            && !(said.replayed && letter.replay_count == 0)
            && !(said.not_replayed && letter.replay_count > 0)
            && self.text.as_ref().is_none_or(|text| has_text(letter, text))
            && self.has_values(letter)
    }

    fn has_values(&self, letter: &DeadLetter) -> bool {
        let paths = &self.said.json_paths;
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

/// Whether a text in small letters is there, in capitals or not.
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

    use pillarbox::runtime::{DeadLetterCodec, FailureKind};
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

    fn means(say: impl FnOnce(&mut Filters)) -> bool {
        let now = "2026-11-16T11:00:00Z".parse().unwrap();
        let mut said = Filters::default();
        say(&mut said);
        let filter = Filter::new(said, now);
        assert!(!filter.is_all());
        filter.means("0193b1f4-0000-7000-8000-0000000000ff".parse().unwrap(), &letter())
    }

    #[test]
    fn every_filter_must_agree() {
        let id = |end: &str| format!("0193b1f4-0000-7000-8000-0000000000{end}").parse().unwrap();
        assert!(means(|said| said.error_type = Some("Refused".to_owned())));
        assert!(means(|said| said.error_type = Some("pay::".to_owned())));
        assert!(!means(|said| said.error_type = Some("refused".to_owned())));
        assert!(means(|said| said.kind = Some(FailureKind::Error)));
        assert!(!means(|said| said.kind = Some(FailureKind::Panic)));
        assert!(means(|said| said.source = Some("orders".parse().unwrap())));
        assert!(!means(|said| said.source = Some("order".parse().unwrap())));
        let hour = Some(Duration::from_secs(3600));
        assert!(means(|said| said.older = hour) && !means(|said| said.newer = hour));
        for text in ["card REFUSED", "bank says nö", "NÖ", "gift", "\"id\":42"] {
            assert!(means(|said| said.text = Some(text.to_owned())), "{text}");
        }
        assert!(!means(|said| said.text = Some("shop::pay".to_owned())));
        assert!(means(|said| said.ids = vec![id("00"), id("01")]));
        assert!(
            means(|said| said.ids = vec![id("ff")]) && !means(|said| said.ids = vec![id("02")])
        );
        assert!(means(|said| said.replayed = true) && !means(|said| said.not_replayed = true));
        let path = |text: &str| text.parse().unwrap();
        assert!(means(|said| said.json_paths = vec![path("$.customer.id=42"), path("$.note")]));
        assert!(!means(|said| said.json_paths = vec![path("$.customer.id=42"), path("$.no")]));
        assert!(!means(|said| {
            said.kind = Some(FailureKind::Error);
            said.not_replayed = true;
        }));
    }

    #[test]
    fn without_a_word_all_are_meant() {
        let filter = Filter::new(Filters::default(), Timestamp::now());
        assert!(filter.is_all() && filter.means(MessageId::new(), &letter()));
    }
}
