//! Attributes of a message, as SQS takes them: at most ten, with names and values of its own rules.
//!
//! Every attribute travels as one of SQS's where that can be, so that programs of any kind see it. Those that
//! cannot (an empty value, a name with a blank) and those for which there is no room travel together
//! in one, [`FOLDED`], as a JSON object. Pillarbox's own are folded first.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::MessageAttributeValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillarbox_core::Attributes;

use crate::limits::MAX_ATTRIBUTES;

/// The attribute that says which of the others are no strings, for SQS: `count=Number,photo=Binary.png`.
/// Those that are `Binary` have their bytes as base64.
///
/// It is there in messages that another program has sent with such attributes; and who sends it has
/// them sent so.
pub const TYPES: &str = "pillarbox.types";

/// What holds the attributes that could not be attributes of SQS, as a JSON object.
pub(crate) const FOLDED: &str = "pillarbox.folded";

const STRING: &str = "String";
const BINARY: &str = "Binary";

/// An attribute that does not have the form that it is said to have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) value: String,
    pub(crate) allowed: &'static str,
}

/// Attributes as SQS takes them, and how much room they take.
pub(crate) fn encode(
    attributes: &BTreeMap<&str, &str>,
) -> Result<(HashMap<String, MessageAttributeValue>, usize), Malformed> {
    let said = attributes.get(TYPES).copied();
    let types = parse_types(said.unwrap_or_default())?;
    let mut whole = Vec::new();
    let mut folded = BTreeMap::new();
    for (name, value) in attributes.iter().filter(|(name, _)| **name != TYPES) {
        let data_type = types.get(name).copied().unwrap_or(STRING);
        if is_name(name) && !value.is_empty() && is_text(value) {
            whole.push((*name, data_type, *value));
        } else {
            folded.insert(*name, *value);
        }
    }
    // Foreign ones first, so that ours are folded first.
    whole.sort_by_key(|(name, ..)| name.starts_with(Attributes::OWN));
    loop {
        // What the types of SQS do not tell by themselves is lost to other programs, and kept for ours.
        let types = told(whole.iter().map(|(name, data_type, _)| (*name, *data_type)));
        if let Some(said) = said
            && (types.is_empty() || types.join(",") != said)
        {
            folded.insert(TYPES, said);
        }
        if whole.len() + usize::from(!folded.is_empty()) <= MAX_ATTRIBUTES {
            break;
        }
        folded.extend(whole.pop().map(|(name, _, value)| (name, value)));
    }
    let folded = (!folded.is_empty()).then(|| fold(&folded));
    if let Some(folded) = &folded {
        whole.push((FOLDED, STRING, folded));
    }
    let (mut encoded, mut size) = (HashMap::with_capacity(whole.len()), 0);
    for (name, data_type, value) in whole {
        let mut attribute = MessageAttributeValue::builder().data_type(data_type);
        size += name.len() + data_type.len();
        if is_binary(data_type) {
            let bytes = STANDARD.decode(value).map_err(|error| Malformed {
                value: format!("'{name}', which is {data_type}: {error}"),
                allowed: "base64 for attributes that are Binary",
            })?;
            size += bytes.len();
            attribute = attribute.binary_value(Blob::new(bytes));
        } else {
            size += value.len();
            attribute = attribute.string_value(value);
        }
        let attribute = attribute.build().map_err(|error| Malformed {
            value: format!("'{name}': {error}"),
            allowed: "a type and a value",
        })?;
        encoded.insert(name.to_owned(), attribute);
    }
    Ok((encoded, size))
}

/// Attributes as they were sent, from us or from elsewhere.
pub(crate) fn decode(
    encoded: Option<HashMap<String, MessageAttributeValue>>,
) -> BTreeMap<String, String> {
    let (mut attributes, mut folded) = (BTreeMap::new(), BTreeMap::new());
    let mut types = BTreeMap::new();
    for (name, attribute) in encoded.unwrap_or_default() {
        let value = match (attribute.string_value, attribute.binary_value) {
            (Some(text), _) => text,
            (None, Some(bytes)) => STANDARD.encode(bytes),
            (None, None) => String::new(),
        };
        if name == FOLDED
            && let Ok(read) = serde_json::from_str::<BTreeMap<String, String>>(&value)
        {
            folded = read;
            continue;
        }
        if attribute.data_type != STRING {
            types.insert(name.clone(), attribute.data_type);
        }
        attributes.insert(name, value);
    }
    let said = attributes.get(TYPES).or_else(|| folded.get(TYPES)).map_or("", String::as_str);
    let types = right_types(said, &types, |name| attributes.contains_key(name));
    // What is both whole and folded, which we do not send, is what all programs see.
    for (name, value) in folded {
        attributes.entry(name).or_insert(value);
    }
    match types {
        Some(types) if types.is_empty() => drop(attributes.remove(TYPES)),
        Some(types) => drop(attributes.insert(TYPES.to_owned(), types)),
        None => {}
    }
    attributes
}

/// Whether SQS takes this text, as a body or as a value.
pub(crate) fn is_text(text: &str) -> bool {
    text.chars().all(|c| {
        matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
    })
}

/// Whether SQS takes this name of an attribute.
fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let lower = name.get(..7).unwrap_or(name).to_ascii_lowercase();
    (1..=256).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && lower != "amazon."
        && name != FOLDED
}

fn is_binary(data_type: &str) -> bool {
    data_type.split('.').next() == Some(BINARY)
}

/// What [`TYPES`] should be instead of what is said there: with all types of SQS that are not strings, and nothing that
/// contradicts one. None if it is right.
fn right_types(
    said: &str,
    types: &BTreeMap<String, String>,
    is_whole: impl Fn(&str) -> bool,
) -> Option<String> {
    let contradicts = |pair: &str| {
        pair.split_once('=').is_some_and(|(name, data_type)| {
            is_whole(name) && types.get(name).map_or(STRING, String::as_str) != data_type
        })
    };
    let mut right = told(types.iter().map(|(name, data_type)| (name.as_str(), data_type.as_str())));
    if right.iter().all(|pair| said.split(',').any(|said| said == pair))
        && !said.split(',').any(contradicts)
    {
        return None;
    }
    let kept = said.split(',').filter(|pair| !pair.is_empty() && !contradicts(pair));
    right.extend(kept.map(str::to_owned));
    right.sort();
    right.dedup();
    Some(right.join(","))
}

/// What the types of attributes in SQS tell, as [`TYPES`] says it: all that are no strings, in order.
fn told<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let others = attributes.filter(|(_, data_type)| *data_type != STRING);
    let mut pairs: Vec<_> = others.map(|(name, data_type)| format!("{name}={data_type}")).collect();
    pairs.sort();
    pairs
}

fn parse_types(text: &str) -> Result<HashMap<&str, &str>, Malformed> {
    let pair = |pair| {
        str::split_once(pair, '=').ok_or_else(|| Malformed {
            value: format!("{TYPES} of {pair:?}"),
            allowed: "NAME=TYPE,..., such as count=Number",
        })
    };
    text.split(',').filter(|pair| !pair.is_empty()).map(pair).collect()
}

fn fold(attributes: &BTreeMap<&str, &str>) -> String {
    // Cannot fail: names and values are strings. JSON escapes all that SQS does not take, but for these two.
    let json = serde_json::to_string(attributes).unwrap_or_default();
    json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(attributes: &[(&str, &str)]) -> (Vec<String>, BTreeMap<String, String>) {
        let (encoded, _) = encode(&attributes.iter().copied().collect()).unwrap();
        assert!(encoded.len() <= MAX_ATTRIBUTES);
        let mut names: Vec<_> = encoded.keys().cloned().collect();
        names.sort();
        (names, decode(Some(encoded)))
    }

    fn owned(attributes: &[(&str, &str)]) -> BTreeMap<String, String> {
        attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_attribute_that_sqs_takes_is_one_of_sqs() {
        let attributes = [("tenant", "acme"), ("pillarbox.id", "7"), ("awsome", "ünï \"{}")];
        let (names, back) = there_and_back(&attributes);
        assert_eq!(names, ["awsome", "pillarbox.id", "tenant"]);
        assert_eq!(back, owned(&attributes));
    }

    #[test]
    fn what_sqs_does_not_take_is_folded_and_comes_back() {
        let long = "x".repeat(257);
        let attributes = [
            ("good", "1"),
            ("empty", ""),
            ("a b", "2"),
            (".a", "3"),
            ("a..b", "4"),
            ("AWS.x", "5"),
            ("amazon.y", "6"),
            ("bell", "\u{7}\u{fffe}\u{ffff}"),
            (FOLDED, "mine"),
            (&long, "7"),
            ("ü", "8"),
        ];
        let (names, back) = there_and_back(&attributes);
        assert_eq!(names, ["good", FOLDED]);
        assert_eq!(back, owned(&attributes));
        let (encoded, _) = encode(&attributes.into_iter().collect()).unwrap();
        assert!(is_text(encoded[FOLDED].string_value().unwrap()));
    }

    #[test]
    fn ours_make_room_for_those_of_the_sender() {
        let names: Vec<_> = (0..9).map(|n| format!("name{n}")).collect();
        let mut attributes: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        attributes.extend([("pillarbox.id", "7"), ("pillarbox.kind", "k"), ("pillarbox.x", "y")]);
        let (sent, back) = there_and_back(&attributes);
        assert_eq!(sent[..9], names);
        assert_eq!(sent[9], FOLDED);
        assert_eq!(back, owned(&attributes));
        // With a tenth, ours and one of theirs share the last place.
        attributes.push(("name9", "v"));
        let (sent, back) = there_and_back(&attributes);
        assert_eq!(sent.len(), 10);
        assert_eq!(back, owned(&attributes));
    }

    #[test]
    fn types_of_other_programs_come_and_go() {
        let attributes =
            [("count", "12"), ("photo", "AAH/"), (TYPES, "count=Number,photo=Binary.png")];
        let (encoded, size) = encode(&attributes.into_iter().collect()).unwrap();
        assert_eq!(encoded.len(), 2, "the types are those of SQS");
        assert_eq!(encoded["photo"].binary_value().unwrap().as_ref(), [0, 1, 255]);
        assert_eq!(encoded["count"].data_type(), "Number");
        assert_eq!(size, "photoBinary.png".len() + 3 + "countNumber12".len());
        assert_eq!(decode(Some(encoded)), owned(&attributes));
    }

    #[test]
    fn a_type_that_was_folded_is_kept() {
        let names: Vec<_> = (0..12).map(|n| format!("n{n:02}")).collect();
        let types: Vec<_> = names.iter().map(|name| format!("{name}=Number")).collect();
        let types = types.join(",");
        let mut attributes: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
        attributes.push((TYPES, &types));
        assert_eq!(there_and_back(&attributes).1, owned(&attributes));
    }

    #[test]
    fn a_type_of_an_attribute_without_a_value_is_kept() {
        let attributes = [("count", ""), (TYPES, "count=Number")];
        assert_eq!(there_and_back(&attributes).1, owned(&attributes));
    }

    #[test]
    fn types_that_no_attribute_has_are_kept_as_they_are() {
        for types in ["", "=", ",", "gone=Number", "count=Number,count=Number", "count=String"] {
            let attributes = [("count", "1"), (TYPES, types)];
            assert_eq!(there_and_back(&attributes).1, owned(&attributes), "{types:?}");
        }
        // And find room among ten others.
        let names: Vec<_> = (0..10).map(|n| format!("n{n}")).collect();
        let mut attributes: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
        attributes.push((TYPES, "n0=Number,gone=Number"));
        assert_eq!(there_and_back(&attributes).1, owned(&attributes));
    }

    #[test]
    fn types_that_contradict_those_of_sqs_are_not_believed() {
        let attribute = |data_type: &str| {
            let attribute = MessageAttributeValue::builder().data_type(data_type);
            if is_binary(data_type) {
                attribute.binary_value(Blob::new([0, 1, 255])).build().unwrap()
            } else {
                attribute.string_value("1").build().unwrap()
            }
        };
        for (data_type, said, right) in [
            ("Binary.png", "a=Number", Some("a=Binary.png")),
            ("Number", "a=String,gone=Number", Some("a=Number,gone=Number")),
            ("String", "a=Number", None),
        ] {
            let said = MessageAttributeValue::builder().data_type(STRING).string_value(said);
            let said = (TYPES.to_owned(), said.build().unwrap());
            let foreign = HashMap::from([("a".to_owned(), attribute(data_type)), said]);
            let decoded = decode(Some(foreign));
            assert_eq!(decoded.get(TYPES).map(String::as_str), right);
            let decoded = decoded.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            let (again, _) = encode(&decoded).unwrap();
            assert_eq!(again["a"], attribute(data_type), "as it was");
        }
    }

    #[test]
    fn what_is_both_whole_and_folded_is_the_same_at_every_delivery() {
        let attribute = |value: &str| {
            MessageAttributeValue::builder().data_type(STRING).string_value(value).build().unwrap()
        };
        for _ in 0..20 {
            // Each map has an order of its own.
            let both = [("a", "whole"), (FOLDED, "{\"a\":\"folded\"}")];
            let both = both.map(|(name, value)| (name.to_owned(), attribute(value)));
            assert_eq!(decode(Some(both.into()))["a"], "whole");
        }
    }

    #[test]
    fn a_malformed_value_is_told() {
        let bad_base64 = encode(&[("photo", "***"), (TYPES, "photo=Binary")].into_iter().collect());
        assert!(bad_base64.unwrap_err().value.contains("'photo', which is Binary"));
        let bad_types = encode(&[(TYPES, "photo")].into_iter().collect());
        assert!(bad_types.unwrap_err().allowed.contains("NAME=TYPE"));
    }
}
