//! Receipts, by which a consumer settles a delivery.

use std::fmt;
use std::sync::Arc;

use rand::Rng;
use uuid::Uuid;

use crate::MessageId;

/// Token that settles one delivery of one message.
///
/// Every delivery has its own receipt, which cannot be guessed and becomes invalid when the delivery ends: by
/// settling, expiry or a purge. A receipt may be passed to another process as text and settle from there.
///
/// Pillarbox's own backends write a receipt as the message id, a dot and 16 random characters, so that a
/// receipt in a log can be traced to its message. Other services, such as SQS, have their own form, which is
/// carried unchanged.
///
/// ```
/// use pillarbox_core::Receipt;
///
/// let text = "0197b3a2-5f3c-7c1e-9d53-0b8f5d0c6a11.3pQx-Zk_9TfR2mLa";
/// let receipt: Receipt = text.parse()?;
/// assert_eq!(receipt.to_string(), text);
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Receipt(Form);

/// No text parses to both forms, so receipts are equal if and only if their texts are.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    Token { id: MessageId, nonce: Nonce },
    Foreign(Arc<str>),
}

impl Receipt {
    /// Maximum length of a receipt's text. SQS promises at most 1,024.
    const MAX_LEN: usize = 4096;

    /// Creates the receipt of one delivery of message `id`.
    pub const fn new(id: MessageId, nonce: Nonce) -> Self {
        Self(Form::Token { id, nonce })
    }

    /// Parses a receipt of either form. `None` if the text is empty, too long or contains a control character.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(token) = parse_token(text) {
            return Some(Self(token));
        }
        let is_valid =
            !text.is_empty() && text.len() <= Self::MAX_LEN && !text.contains(char::is_control);
        is_valid.then(|| Self(Form::Foreign(text.into())))
    }

    /// Returns the message id and the nonce, if the receipt has the form of [`Receipt::new`].
    pub const fn token(&self) -> Option<(MessageId, Nonce)> {
        match self.0 {
            Form::Token { id, nonce } => Some((id, nonce)),
            Form::Foreign(_) => None,
        }
    }

    /// Returns the id of the message, if the receipt contains it.
    pub const fn message_id(&self) -> Option<MessageId> {
        match self.0 {
            Form::Token { id, .. } => Some(id),
            Form::Foreign(_) => None,
        }
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Token { id, nonce } => write!(f, "{id}.{nonce}"),
            Form::Foreign(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to distinguish two receipts in a log, and not enough to settle with.
        let text = self.to_string();
        let visible = match self.message_id() {
            Some(_) => 36 + 1 + 4,
            None => text.char_indices().nth(8).map_or(text.len(), |(end, _)| end),
        };
        write!(f, "Receipt({}…)", &text[..visible.min(text.len())])
    }
}

/// Parses exactly what `Display` writes for a token. Another spelling of the same UUID is another text, and so
/// another receipt.
fn parse_token(text: &str) -> Option<Form> {
    let (id, nonce) = text.split_once('.')?;
    if id.len() != 36 || id.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    let id = MessageId::from(Uuid::try_parse(id).ok()?);
    Some(Form::Token { id, nonce: Nonce::parse(nonce)? })
}

/// Secret part of a receipt: 96 bits, written as 16 characters out of `A-Z a-z 0-9 - _`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce([u8; 12]);

impl Nonce {
    /// Length of a nonce as text.
    pub const TEXT_LEN: usize = 16;

    /// Creates an unguessable nonce from a cryptographic generator.
    pub fn random() -> Self {
        let mut bytes = [0; 12];
        rand::rng().fill_bytes(&mut bytes);
        Self(bytes)
    }

    /// Creates a nonce whose first 84 bits are unguessable and whose last 12 bits are `mark`: what the backend
    /// needs to find the delivery, such as its partition. The upper 4 bits of `mark` are ignored.
    pub fn random_with_mark(mark: u16) -> Self {
        let mut nonce = Self::random();
        nonce.0[10] = nonce.0[10] & 0xf0 | (mark >> 8) as u8 & 0x0f;
        nonce.0[11] = mark as u8;
        nonce
    }

    /// Returns the last 12 bits.
    pub const fn mark(&self) -> u16 {
        (self.0[10] as u16 & 0x0f) << 8 | self.0[11] as u16
    }

    /// Creates a nonce from the caller's bytes, for tests and models that must be repeatable.
    pub const fn from_bytes(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the nonce.
    pub const fn as_bytes(&self) -> &[u8; 12] {
        &self.0
    }

    /// Parses a nonce from its text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: &[u8; Self::TEXT_LEN] = text.as_bytes().try_into().ok()?;
        let mut bytes = [0; 12];
        for (three, four) in bytes.chunks_exact_mut(3).zip(digits.chunks_exact(4)) {
            let mut group = 0u32;
            for digit in four {
                group = group << 6 | digit_value(*digit)?;
            }
            three.copy_from_slice(&group.to_be_bytes()[1..]);
        }
        Some(Self(bytes))
    }

    /// Returns the characters of the nonce without allocating.
    pub fn to_text(self) -> [u8; Self::TEXT_LEN] {
        let mut text = [0; Self::TEXT_LEN];
        for (four, three) in text.chunks_exact_mut(4).zip(self.0.chunks_exact(3)) {
            let group = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            for (index, digit) in four.iter_mut().enumerate() {
                *digit = DIGITS[(group >> (18 - 6 * index) & 63) as usize];
            }
        }
        text
    }
}

/// URL-safe base64 alphabet.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn digit_value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(value.into())
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_text();
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Error;

    #[test]
    fn nonces_do_not_repeat() {
        let seen: HashSet<_> = (0..100_000).map(|_| Nonce::random()).collect();
        assert_eq!(seen.len(), 100_000);
    }

    #[test]
    fn a_nonce_carries_a_mark_and_stays_random() {
        for mark in [0, 1, 15, 255, 256, 2741, 4095] {
            let (one, other) = (Nonce::random_with_mark(mark), Nonce::random_with_mark(mark));
            assert_eq!((one.mark(), other.mark()), (mark, mark));
            assert_ne!(one, other);
            assert_eq!(Nonce::parse(&one.to_string()).map(|nonce| nonce.mark()), Some(mark));
        }
    }

    #[test]
    fn a_foreign_receipt_keeps_its_text() {
        let text = "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a+/==";
        let receipt: Receipt = text.parse().unwrap();
        assert_eq!(receipt.to_string(), text);
        assert_eq!(receipt.message_id(), None);
    }

    #[test]
    fn another_spelling_of_an_id_is_another_receipt() {
        let receipt = Receipt::new(MessageId::from_key("k"), Nonce::from_bytes([7; 12]));
        let shouted = receipt.to_string().to_uppercase();
        assert_ne!(shouted.parse::<Receipt>().unwrap(), receipt);
    }

    #[test]
    fn the_debug_form_is_not_a_receipt() {
        let receipt = Receipt::new(MessageId::from_key("k"), Nonce::random());
        let shown = format!("{receipt:?}");
        assert!(shown.contains(&MessageId::from_key("k").to_string()), "{shown}");
        assert!(!shown.contains(&receipt.to_string()), "{shown}");
        assert!(format!("{:?}", "übér".parse::<Receipt>().unwrap()).contains("übér"));
    }

    #[test]
    fn empty_or_overlong_text_is_not_a_receipt() {
        for bad in ["", "a\nb", &"x".repeat(5000)] {
            assert!(matches!(bad.parse::<Receipt>(), Err(Error::InvalidParameter { .. })));
        }
    }

    proptest! {
        #[test]
        fn every_token_survives_its_text(id: [u8; 16], nonce: [u8; 12]) {
            let receipt = Receipt::new(Uuid::from_bytes(id).into(), Nonce::from_bytes(nonce));
            prop_assert_eq!(receipt.to_string().parse::<Receipt>().unwrap(), receipt);
        }

        #[test]
        fn every_accepted_text_survives(text in "\\PC{1,80}") {
            prop_assert_eq!(text.parse::<Receipt>().unwrap().to_string(), text);
        }
    }
}
