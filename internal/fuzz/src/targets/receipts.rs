//! Receipts and ids, as text.

use pillarbox_core::{MessageId, Nonce, Receipt};

use super::{accepted, text};
use crate::driver::record_outcome;

pub(super) const WORDS: &[&str] = &[
    "0197b3a2-5f3c-7c1e-9d53-0b8f5d0c6a11",
    ".",
    "3pQx-Zk_9TfR2mLa",
    "urn:uuid:",
    "{",
    "}",
    "-",
    "AQEB",
    "==",
    "+/",
    "0197B3A2-5F3C-7C1E-9D53-0B8F5D0C6A11",
    "0197b3a25f3c7c1e9d530b8f5d0c6a11",
];

pub(super) fn run(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Some(receipt) = accepted(text.parse::<Receipt>()) {
        assert_eq!(receipt.to_string(), text, "a receipt is its text");
        assert!(text.len() <= 4096 && !text.contains(char::is_control));
        let json = serde_json::to_string(&receipt).expect("a receipt is JSON");
        assert_eq!(serde_json::from_str::<Receipt>(&json).expect("and back"), receipt);
        if let Some((id, nonce)) = receipt.token() {
            record_outcome("token");
            assert_eq!(Receipt::new(id, nonce), receipt);
            assert_eq!(receipt.message_id(), Some(id));
            // Without the id, which may contain the same characters.
            let logged = format!("{receipt:?}").replace(&id.to_string(), "");
            assert!(!logged.contains(&nonce.to_string()), "a log contains a secret");
        } else {
            record_outcome("foreign");
            assert!(!format!("{receipt:?}").is_empty());
        }
    }
    if let Some(id) = accepted(text.parse::<MessageId>()) {
        record_outcome("id");
        assert_eq!(id.to_string().parse::<MessageId>().expect("its own text"), id);
    }
    if let Some(nonce) = Nonce::parse(text) {
        record_outcome("nonce");
        assert_eq!(nonce.to_string(), text, "a nonce has one text");
    }
}
