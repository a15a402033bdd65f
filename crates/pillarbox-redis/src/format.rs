//! The stored format of a queue: names of keys, ids, heads and bodies.
//!
//! `scripts/header.lua` describes what the keys hold.

use std::fmt::Write as _;
use std::io::Write as _;

use bytes::{Buf, Bytes};
use pillarbox_core::{
    Attributes, MessageId, Nonce, Outgoing, QueueName, RawMessage, SettleAction, Timestamp,
};
use redis::{RedisWrite, ToRedisArgs};
use serde::{Deserialize, Serialize};

use crate::partition_layout::{MAX_PARTITIONS, PartitionNumber};
use crate::servers::slot;

/// Key of the list of queues: names by the time of their last use. A queue on it may no longer exist.
pub(crate) const REGISTRY: &str = "pillarbox:queues";

/// Time of sending of a message that does not have one.
pub(crate) const LONG_AGO: Timestamp = Timestamp::from_secs(0);

/// The keys of one partition of a queue, all in one slot of a cluster.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) pending: String,
    pub(crate) invisible: String,
    pub(crate) data: String,
    pub(crate) meta: String,
    /// Channel of the wake-ups, as `wake.lua` names it.
    pub(crate) wake: String,
    /// Slot of all keys.
    pub(crate) slot: u16,
    tag: String,
}

impl Keys {
    /// Returns the keys of one partition of a queue. A queue name contains no `#`.
    pub(crate) fn new(queue: &QueueName, partition: PartitionNumber) -> Self {
        let tag = match partition {
            0 => format!("{{queue:{queue}}}"),
            _ => format!("{{queue:{queue}#{partition}}}"),
        };
        Self {
            slot: slot(&tag),
            pending: format!("{tag}:pending"),
            invisible: format!("{tag}:invisible"),
            data: format!("{tag}:data"),
            meta: format!("{tag}:meta"),
            wake: format!("{tag}:wake"),
            tag,
        }
    }

    /// Returns the keys with their types.
    pub(crate) fn types(&self) -> [(&str, &'static str); 4] {
        let Self { pending, invisible, data, meta, .. } = self;
        [(pending, "list"), (invisible, "zset"), (data, "hash"), (meta, "hash")]
    }

    /// Returns the key of the layout, which only partition 0 has.
    pub(crate) fn partitions(&self) -> String {
        format!("{}:partitions", self.tag)
    }

    /// Returns the queue and the partition that a key belongs to, and the rest of the key.
    pub(crate) fn owner(key: &str) -> Option<(QueueName, PartitionNumber, &str)> {
        let (tag, rest) = key.strip_prefix("{queue:")?.split_once("}:")?;
        let (name, partition) = match tag.split_once('#') {
            Some((name, partition)) => {
                let number: PartitionNumber = partition.parse().ok()?;
                // Only the form that `new` writes: no sign, no leading zero.
                let is_ours = number > 0 && u32::from(number) < MAX_PARTITIONS;
                (name, Some(number).filter(|_| is_ours && partition == number.to_string())?)
            }
            None => (tag, 0),
        };
        Some((QueueName::new(name).ok()?, partition, rest))
    }

    /// Returns the key of the record of a caller.
    pub(crate) fn call(&self, caller: &str) -> String {
        format!("{}:call:{caller}", self.tag)
    }
}

/// Digits of an id as text, in the order of their bytes, so that ids sort alike in both forms.
const DIGITS: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

/// Value of each byte as a digit.
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < DIGITS.len() {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};
const NO_DIGIT: u8 = 255;

/// A message id as 22 characters: 14 fewer than the usual form, stored three times per message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdText([u8; 22]);

impl IdText {
    pub(crate) fn new(id: MessageId) -> Self {
        let mut rest = u128::from_be_bytes(*id.as_bytes());
        let mut text = [0; 22];
        for digit in text.iter_mut().rev() {
            *digit = DIGITS[(rest & 63) as usize];
            rest >>= 6;
        }
        Self(text)
    }

    pub(crate) fn parse(text: &[u8]) -> Option<MessageId> {
        let text: &[u8; 22] = text.try_into().ok()?;
        let mut id = 0u128;
        for digit in text {
            let value = VALUES[usize::from(*digit)];
            if value == NO_DIGIT {
                return None;
            }
            id = id.checked_mul(64)? | u128::from(value);
        }
        Some(MessageId::from_uuid(uuid::Uuid::from_u128(id)))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Optional part of a head.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Extra {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_to: Option<String>,
    #[serde(default, skip_serializing_if = "Attributes::is_empty")]
    attributes: Attributes,
}

/// Returns whether a message consists of a body only.
pub(crate) fn is_plain(message: &Outgoing) -> bool {
    message.delay.is_zero()
        && message.enqueued_at.is_none()
        && message.reply_to.is_none()
        && message.attributes.is_empty()
}

/// Returns the approximate number of bytes of a message.
pub(crate) fn size_of(message: &Outgoing) -> usize {
    size(&message.body, &message.attributes, message.reply_to.as_deref())
}

/// Returns the approximate number of bytes of a message with these parts.
pub(crate) fn size(body: &[u8], attributes: &Attributes, reply_to: Option<&str>) -> usize {
    let attributes = attributes.iter().map(|(name, value)| name.len() + value.len());
    body.len() + attributes.sum::<usize>() + reply_to.map_or(0, str::len)
}

/// Returns the head of a message as `send.lua` takes it.
pub(crate) fn head(message: &Outgoing) -> String {
    if is_plain(message) {
        return String::new();
    }
    let mut head = format!("{} ", micros(message.delay));
    // Writing to a string cannot fail.
    let _ = match message.enqueued_at {
        Some(at) => write!(head, "{}", at.as_nanos()),
        None => write!(head, "-"),
    };
    if message.reply_to.is_some() || !message.attributes.is_empty() {
        let reply_to = message.reply_to.as_deref().map(str::to_owned);
        let extra = Extra { reply_to, attributes: message.attributes.clone() };
        head.push(' ');
        // Neither can writing strings as JSON.
        head.push_str(&serde_json::to_string(&extra).unwrap_or_default());
    }
    head
}

/// Reads a message from a value of `data`.
///
/// A value without a valid head, which another program has written, is all body, with the earliest time: its
/// receiver cannot decode it, and handles it like any other undecodable message.
pub(crate) fn message(id: MessageId, data: Vec<u8>, deliveries: Deliveries) -> RawMessage {
    let (at, extra, start) = read_head(&data).unwrap_or_else(|| {
        tracing::warn!(%id, "the data of a message have no valid head");
        (LONG_AGO, Extra::default(), 0)
    });
    // Moves the start in place; a slice would have to share the buffer.
    let mut body = Bytes::from(data);
    body.advance(start);
    let mut message = RawMessage::new(id, body, at);
    message.reply_to = extra.reply_to.map(Into::into);
    message.attributes = extra.attributes;
    message.delivery_count = deliveries.count;
    message.unsettled = deliveries.unsettled;
    message.uncounted = deliveries.uncounted;
    message
}

/// Reads the time of sending, the optional part, and the offset of the body.
fn read_head(data: &[u8]) -> Option<(Timestamp, Extra, usize)> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&data[..end]).ok()?;
    let extra = match head.split_once(' ') {
        Some((_, json)) => serde_json::from_str(json).ok()?,
        None => Extra::default(),
    };
    Some((sent_at(head.as_bytes())?, extra, end + 1))
}

/// Reads the time of sending from the first bytes of the data.
pub(crate) fn sent_at(start: &[u8]) -> Option<Timestamp> {
    let end = start.iter().position(|byte| b" \n".contains(byte)).unwrap_or(start.len());
    std::str::from_utf8(&start[..end]).ok()?.parse().ok().map(Timestamp::from_nanos)
}

/// Numbers of deliveries of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Deliveries {
    pub(crate) count: u32,
    /// Number of deliveries that were started and expired.
    pub(crate) unsettled: u32,
    /// Number of deliveries without an attempt: released, or expired before they were started.
    pub(crate) uncounted: u32,
}

impl Deliveries {
    /// Parses a value of `meta` without its secret: the low 32 bits of the number are the count and those above
    /// the unsettled; the uncounted follow after a colon.
    fn parse(text: &str) -> Option<Self> {
        let (number, uncounted) = text.split_once(':').unwrap_or((text, "0"));
        let number = digits(number)?;
        let uncounted = u32::try_from(digits(uncounted)?).unwrap_or(u32::MAX);
        Some(Self { count: number as u32, unsettled: (number >> 32) as u32, uncounted })
    }

    /// Adds one delivery.
    pub(crate) fn delivered(self) -> Self {
        Self { count: self.count.saturating_add(1), ..self }
    }
}

/// Parses a number that consists of digits only.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Reads a value of `meta`: whether it has the secret of a receipt, and the deliveries.
pub(crate) fn meta(value: &[u8]) -> Option<(bool, Deliveries)> {
    // A secret has no colon.
    let has_secret = value
        .get(..=Nonce::TEXT_LEN)
        .is_some_and(|start| !start[..Nonce::TEXT_LEN].contains(&b':'));
    let text = if has_secret { &value[Nonce::TEXT_LEN..] } else { value };
    // Only a message in flight can be started.
    let text = if has_secret { text.strip_suffix(b"s").unwrap_or(text) } else { text };
    if text.is_empty() {
        return Some((false, Deliveries::default())).filter(|_| value.is_empty());
    }
    let deliveries = Deliveries::parse(std::str::from_utf8(text).ok()?)?;
    Some((has_secret, deliveries))
}

/// Reads a score of `invisible`: when the message becomes ready. `None` for one that is ready.
pub(crate) fn score(text: &[u8]) -> Option<Timestamp> {
    let micros: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(Timestamp::from_micros(micros as i64))
}

/// Returns the argument of `settle.lua` for one delivery: its secret and what becomes of it. `receive.lua` stores the
/// token of an acknowledgement with the delivery, so that an acknowledgement only has to compare the two.
pub(crate) fn token(nonce: Nonce, action: SettleAction) -> Token {
    let mut token = Token { text: [0; Token::MAX_LEN], length: Nonce::TEXT_LEN + 1 };
    token.text[..Nonce::TEXT_LEN].copy_from_slice(&nonce.to_text());
    let (kind, time) = match action {
        SettleAction::Acknowledge => (b'1', None),
        SettleAction::Nack { delay } => (b'n', Some(delay)),
        SettleAction::Release { delay } => (b'r', Some(delay)),
        SettleAction::Extend { timeout } => (b'e', Some(timeout)),
        SettleAction::Start { timeout } => (b's', Some(timeout)),
    };
    token.text[Nonce::TEXT_LEN] = kind;
    if let Some(time) = time {
        let mut rest = &mut token.text[token.length..];
        let room = rest.len();
        // There is room for any number.
        write!(rest, "{}", micros(time)).ok();
        token.length += room - rest.len();
    }
    token
}

/// Secret of a receipt and the action, as scripts take them. Stored inline, without an allocation, because each message needs two: one to deliver it and one to settle it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    text: [u8; Self::MAX_LEN],
    length: usize,
}

impl Token {
    const MAX_LEN: usize = Nonce::TEXT_LEN + 1 + 20;

    fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

impl ToRedisArgs for Token {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg(self.as_bytes());
    }
}

/// Returns a duration in microseconds, rounded up, so that only zero becomes zero. Limited to a thousand years,
/// up to which a score is exact.
pub(crate) fn micros(time: std::time::Duration) -> u64 {
    const MAX: u64 = 1000 * 366 * 86_400 * 1_000_000;
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(MAX).min(MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokens_have_the_secret_and_the_action() {
        let nonce = Nonce::from_bytes([7; 12]);
        let text = |action| String::from_utf8(token(nonce, action).as_bytes().to_vec()).unwrap();
        let delay = Duration::from_millis(25);
        assert_eq!(text(SettleAction::Acknowledge), format!("{nonce}1"));
        assert_eq!(text(SettleAction::Nack { delay }), format!("{nonce}n25000"));
        assert_eq!(text(SettleAction::Release { delay }), format!("{nonce}r25000"));
        let timeout = Duration::ZERO;
        assert_eq!(text(SettleAction::Extend { timeout }), format!("{nonce}e0"));
        assert_eq!(text(SettleAction::Start { timeout }), format!("{nonce}s0"));
        let timeout = Duration::MAX;
        let longest = format!("{nonce}e{}", micros(timeout));
        assert_eq!(text(SettleAction::Extend { timeout }), longest);
    }

    #[test]
    fn no_other_bytes_are_digits_of_an_id() {
        let id = *IdText::new(MessageId::new()).as_bytes().first_chunk::<22>().unwrap();
        for byte in 0..=255 {
            let mut other = id;
            other[21] = byte;
            assert_eq!(IdText::parse(&other).is_some(), DIGITS.contains(&byte), "{byte}");
        }
    }

    #[test]
    fn ids_survive_their_short_form_and_sort_alike() {
        let mut ids: Vec<_> = (0..200).map(|n| MessageId::from_key(&n.to_string())).collect();
        ids.push(MessageId::from_uuid(uuid::Uuid::nil()));
        ids.push(MessageId::from_uuid(uuid::Uuid::max()));
        ids.sort();
        let texts: Vec<_> = ids.iter().map(|id| IdText::new(*id).0).collect();
        assert!(texts.is_sorted());
        for (id, text) in ids.iter().zip(&texts) {
            assert_eq!(IdText::parse(text), Some(*id));
        }
        let long = [b'z'; 22];
        for bad in [&b""[..], b"short", b"!!!!!!!!!!!!!!!!!!!!!!", &long] {
            assert_eq!(IdText::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_message_survives_its_data() {
        let id = MessageId::new();
        let deliveries = Deliveries { count: 3, unsettled: 1, uncounted: 1 };
        let message = |data: &str| message(id, data.as_bytes().to_vec(), deliveries);
        let plain = message("1763200000123456000\nbody\nand more");
        assert_eq!(&plain.body[..], b"body\nand more");
        assert_eq!(plain.enqueued_at.as_micros(), 1_763_200_000_123_456);
        assert_eq!((plain.delivery_count, plain.unsettled, plain.uncounted), (3, 1, 1));

        let mut outgoing = Outgoing::new("b");
        outgoing.reply_to = Some("client\n7".into());
        outgoing.attributes = [("a", "\"\n")].into_iter().collect();
        outgoing.delay = Duration::from_nanos(1);
        let head = head(&outgoing);
        let (start, json) = head.split_at(4);
        assert_eq!(start, "1 - ");
        let full = message(&format!("-5 {json}\nb"));
        assert_eq!(full.reply_to, outgoing.reply_to);
        assert_eq!(full.attributes, outgoing.attributes);
        assert_eq!(full.enqueued_at.as_nanos(), -5);

        for foreign in ["", "no newline", "x\nbody", "5 {\nbody"] {
            assert_eq!(&message(foreign).body[..], foreign.as_bytes());
        }
    }

    #[test]
    fn deliveries_are_read_with_and_without_a_secret() {
        let secret = "0123456789abcdef";
        for (text, count, unsettled, uncounted) in [
            ("1", 1, 0, 0),
            ("4294967298", 2, 1, 0),
            ("7:3", 7, 0, 3),
            ("8589934601:6", 9, 2, 6),
            ("12884911900:10000", 10_012, 3, 10_000),
            ("9007199254740991", u32::MAX, (1 << 21) - 1, 0),
        ] {
            let deliveries = Deliveries { count, unsettled, uncounted };
            assert_eq!(meta(text.as_bytes()), Some((false, deliveries)));
            for held in [format!("{secret}{text}"), format!("{secret}{text}s")] {
                assert_eq!(meta(held.as_bytes()), Some((true, deliveries)));
            }
        }
        assert_eq!(meta(b""), Some((false, Deliveries::default())));
        let bad = "x -1 1e9 +1 1s :1 1: 1:x 1:1:1 0123456789abcdefx 0123456789abcdefs";
        for bad in bad.split(' ') {
            assert_eq!(meta(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_key_belongs_to_a_queue_if_it_is_written_as_ours_are() {
        let owner =
            |key: &str| Keys::owner(key).map(|(name, number, _)| (name.to_string(), number));
        assert_eq!(owner("{queue:a}:data"), Some(("a".into(), 0)));
        assert_eq!(owner("{queue:a#12}:data"), Some(("a".into(), 12)));
        for other in
            ["a#0", "a#012", "a#+1", "a#1000", ""].map(|tag| format!("{{queue:{tag}}}:data"))
        {
            assert_eq!(owner(&other), None, "{other}");
        }
        assert_eq!(owner("a"), None);
    }

    #[test]
    fn a_plain_message_has_no_head() {
        assert_eq!(head(&Outgoing::new("b")), "");
    }

    #[test]
    fn durations_are_rounded_up_and_bounded() {
        assert_eq!(micros(Duration::ZERO), 0);
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_nanos(2_000)), 2);
        assert!(micros(Duration::MAX) < 1 << 55);
    }
}
