//! Names of the attributes by which replays, requests and deadlines travel with a message.

use pillarbox_core::{Attributes, MessageId, RawMessage};
use serde::Deserialize;
use uuid::Uuid;

/// Number of times that a message was replayed.
pub(crate) const REPLAYS: &str = "pillarbox.replays";
/// When a message was last replayed.
pub(crate) const REPLAYED_AT: &str = "pillarbox.replayed_at";
/// The id that a replayed message was first sent under.
pub(crate) const ORIGINAL_ID: &str = "pillarbox.original_id";
/// The request that a message is about, if its body does not say.
pub(crate) const REQUEST_ID: &str = "pillarbox.request_id";
/// When a client stops waiting for the answer to a request.
pub(crate) const DEADLINE: &str = "pillarbox.deadline";

/// Returns the number of times that a message with these attributes was replayed.
pub(crate) fn replay_count(attributes: &Attributes) -> u32 {
    attributes.get(REPLAYS).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the id that a message was first sent under: its own, unless it was replayed.
pub(crate) fn original_id(message: &RawMessage) -> MessageId {
    let original = message.attributes.get(ORIGINAL_ID).and_then(|text| text.parse().ok());
    original.unwrap_or(message.id)
}

/// Returns the request that a message is about, by its attribute or else by its body.
pub(crate) fn request_id(message: &RawMessage) -> Option<Uuid> {
    #[derive(Deserialize)]
    struct RequestBody {
        request_id: Option<String>,
    }
    let attribute = message.attributes.get(REQUEST_ID).and_then(|text| text.parse().ok());
    attribute.or_else(|| {
        // Only an object has fields: anything else is not worth reading to its end.
        let is_object = message.body.trim_ascii_start().starts_with(b"{");
        let request: RequestBody =
            is_object.then(|| serde_json::from_slice(&message.body).ok()).flatten()?;
        request.request_id?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use pillarbox_core::Timestamp;

    use super::*;

    #[test]
    fn a_request_is_named_by_an_attribute_or_by_the_body() {
        let id = "0193b1f4-0000-7000-8000-000000000000";
        let now = Timestamp::from_secs(0);
        let of = |body: &str| RawMessage::new(MessageId::new(), body.to_owned(), now);
        let named = of(&format!("{{\"request_id\": \"{id}\", \"more\": [1]}}"));
        assert_eq!(request_id(&named), Some(id.parse().unwrap()));
        let mut by_attribute = of("no json");
        by_attribute.attributes.insert(REQUEST_ID, id);
        assert_eq!(request_id(&by_attribute), Some(id.parse().unwrap()));
        for body in ["{\"request_id\": 7}", "{\"request_id\": \"seven\"}", "{}", "[]", ""] {
            assert_eq!(request_id(&of(body)), None, "{body}");
        }
    }
}
