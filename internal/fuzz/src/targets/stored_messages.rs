//! Dead letters, and messages between clients and main loops.

use bytes::Bytes;
use pillarbox_core::{Codec, Json, MessageId, MessagePack, Raw, RawMessage, Timestamp};
use pillarbox_evals::{EvalRequest, Scored};
use pillarbox_runtime::dead_letters::{DeadLetter, DeadLetterCodec};
use pillarbox_runtime::loops::{MainLoopRequest, MainLoopResult};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::accepted;
use crate::driver::record_outcome;

pub(super) const DEAD_LETTER: &[&str] = &[
    "\"message_id\":\"0193b1f4-0000-7000-8000-000000000001\"",
    "\"source_mailbox\":\"orders\"",
    "\"delivery_count\":5",
    "\"last_error\":\"no\"",
    "\"failure\":\"panic\"",
    "\"error_chain\":[\"a\",\"b\"]",
    "\"dead_lettered_at\":\"2026-11-16T10:00:00Z\"",
    "\"sent_at\":\"2026-11-16T08:00:00Z\"",
    "\"first_received_at\":\"2026-11-16T09:00:00Z\"",
    "\"request_id\":\"0193b1f4-0000-7000-8000-000000000001\"",
    "\"reply_to\":null",
    "\"trace_id\":\"0af7651916cd43dd8448eb211c80319c\"",
    "\"replay_count\":1",
    "\"replayed_at\":null",
    "\"attributes\":{\"a\":\"b\"}",
    "\"body_encoding\":\"text\"",
    "\"body_encoding\":\"base64\"",
    "\"body\":{\"n\": 1.10}",
    "\"body\":\"//4=\"",
    "\"source_backend\":\"sqlite\"",
    ",",
    "{",
    "}",
];

pub(super) fn dead_letter(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let raw = RawMessage::new(MessageId::from_key("fuzz"), bytes, Timestamp::from_secs(0));
    if let Some(dead_letter) = accepted(DeadLetter::read(&raw)) {
        record_outcome(dead_letter.failure.as_str());
        let written =
            DeadLetterCodec(Raw).encode(&dead_letter).expect("a dead letter can be written");
        let again: DeadLetter =
            DeadLetterCodec(Raw).decode(&written).expect("what was written can be read");
        assert_eq!(again, dead_letter, "a dead letter survives");
        let _ = dead_letter.age(Timestamp::MAX);
    }
    if let Some(dead_letter) = accepted(serde_json::from_slice::<DeadLetter<Value>>(input)) {
        record_outcome("JSON body");
        let written = serde_json::to_vec(&dead_letter).expect("a dead letter can be written");
        let again = serde_json::from_slice::<DeadLetter<Value>>(&written);
        assert_eq!(again.expect("and read"), dead_letter);
    }
}

pub(super) const MESSAGE: &[&str] = &[
    "\"request\":7",
    "\"budget\":{\"total_tokens\":3}",
    "\"deadline\":\"1970-01-01T00:16:40Z\"",
    "\"resources\":{\"model\":\"small\"}",
    "\"request_id\":\"0193b1f4-0000-7000-8000-000000000001\"",
    "\"created_at\":\"2026-11-16T10:00:00Z\"",
    "\"output\":null",
    "\"error\":\"no\"",
    "\"error_kind\":\"timeout\"",
    "\"error_type\":\"x::Y\"",
    "\"session_id\":\"0193b1f4-0000-7000-8000-000000000001\"",
    "\"completed_at\":\"2026-11-16T10:00:00Z\"",
    "\"run_id\":\"r\"",
    "\"experiment\":\"a\"",
    "\"sample\":{\"id\":1,\"input\":2,\"expected\":4}",
    "\"score\":{\"value\":1.0,\"passed\":true}",
    "\"latency_ms\":1.5",
    "\"steps\":[]",
    ",",
    "{",
    "}",
];

pub(super) fn message(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    round_trip::<MainLoopRequest<Value>>("request", &Json, &bytes);
    round_trip::<MainLoopResult<Value>>("answer", &Json, &bytes);
    round_trip::<MainLoopRequest<EvalRequest<Value, Value>>>("eval", &Json, &bytes);
    round_trip::<MainLoopResult<Scored>>("scored", &Json, &bytes);
    round_trip::<MainLoopResult<()>>("nothing", &Json, &bytes);
    round_trip::<MainLoopRequest<Value>>("packed request", &MessagePack, &bytes);
    round_trip::<MainLoopResult<Value>>("packed answer", &MessagePack, &bytes);
}

pub(super) fn round_trip<T>(name: &str, codec: &impl Codec<T>, bytes: &Bytes)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    if let Some(one) = accepted(codec.decode(bytes)) {
        record_outcome(name);
        let written = codec.encode(&one).expect("what was read can be written");
        let again = codec.decode(&written).expect("what was written can be read");
        assert_eq!(again, one, "{name} survives");
    }
}
