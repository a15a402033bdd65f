//! Message attributes in the form of SQS: at most ten, with restricted names and values.
//!
//! Every attribute is stored as an SQS attribute if possible, so that other programs see it. Those that SQS refuses (an
//! empty value, a name with a space) and those beyond the limit are stored together in one, [`FOLDED`], as a JSON object.
//! Pillarbox's own are folded first.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::MessageAttributeValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pillarbox_core::Attributes;

use crate::limits::MAX_ATTRIBUTES;

/// Name of the attribute that lists the SQS types of other attributes: `count=Number,photo=Binary.png`. Unlisted ones are
/// strings. The value of a `Binary` attribute is base64.
///
/// Received messages of other programs have it if one of their attributes is not a string; a message sent with it gets
/// attributes of these types.
pub const TYPES: &str = "pillarbox.types";

/// Name of the attribute that holds those that SQS does not accept, as a JSON object.
pub(crate) const FOLDED: &str = "pillarbox.folded";

const STRING: &str = "String";
const BINARY: &str = "Binary";

/// An attribute that does not have the form of its type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) value: String,
    pub(crate) allowed: &'static str,
}

/// Encodes attributes for SQS. Returns them with their size against the limit.
pub(crate) fn encode(
    attributes: &BTreeMap<&str, &str>,
) -> Result<(HashMap<String, MessageAttributeValue>, usize), Malformed> {
    let declared = attributes.get(TYPES).copied();
    let types = parse_types(declared.unwrap_or_default())?;
    let mut native = Vec::new();
    let mut folded = BTreeMap::new();
    for (name, value) in attributes.iter().filter(|(name, _)| **name != TYPES) {
        let data_type = types.get(name).copied().unwrap_or(STRING);
        if is_name(name) && !value.is_empty() && is_text(value) {
            native.push((*name, data_type, *value));
        } else {
            folded.insert(*name, *value);
        }
    }
    // Ours last, so that they are folded first.
    native.sort_by_key(|(name, ..)| name.starts_with(Attributes::OWN));
    loop {
        // Declarations that the SQS types do not express are folded, for our receivers.
        let types = type_pairs(native.iter().map(|(name, data_type, _)| (*name, *data_type)));
        if let Some(declared) = declared
            && (types.is_empty() || types.join(",") != declared)
        {
            folded.insert(TYPES, declared);
        }
        if native.len() + usize::from(!folded.is_empty()) <= MAX_ATTRIBUTES {
            break;
        }
        folded.extend(native.pop().map(|(name, _, value)| (name, value)));
    }
    let folded = (!folded.is_empty()).then(|| fold(&folded));
    if let Some(folded) = &folded {
        native.push((FOLDED, STRING, folded));
    }
    let (mut encoded, mut size) = (HashMap::with_capacity(native.len()), 0);
    for (name, data_type, value) in native {
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

/// Decodes attributes, of our messages or of those of other programs.
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
    let declared = attributes.get(TYPES).or_else(|| folded.get(TYPES)).map_or("", String::as_str);
    let types = corrected_types(declared, &types, |name| attributes.contains_key(name));
    // If an attribute is both native and folded, which we never send, the one that other programs see wins.
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

/// Returns whether SQS accepts this text as a body or a value.
pub(crate) fn is_text(text: &str) -> bool {
    text.chars().all(|c| {
        matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
    })
}

/// Returns whether SQS accepts this name of an attribute.
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

/// Returns [`TYPES`] with all SQS types that are not strings, and without declarations that contradict one. `None` if
/// `declared` is right as it is.
fn corrected_types(
    declared: &str,
    types: &BTreeMap<String, String>,
    is_native: impl Fn(&str) -> bool,
) -> Option<String> {
    let contradicts = |pair: &str| {
        pair.split_once('=').is_some_and(|(name, data_type)| {
            is_native(name) && types.get(name).map_or(STRING, String::as_str) != data_type
        })
    };
    let mut right = type_pairs(types.iter().map(|(name, kind)| (name.as_str(), kind.as_str())));
    if right.iter().all(|pair| declared.split(',').any(|declared| declared == pair))
        && !declared.split(',').any(contradicts)
    {
        return None;
    }
    let kept = declared.split(',').filter(|pair| !pair.is_empty() && !contradicts(pair));
    right.extend(kept.map(str::to_owned));
    right.sort();
    right.dedup();
    Some(right.join(","))
}

/// Formats the types of attributes that are not strings, sorted, as in [`TYPES`].
fn type_pairs<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
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
    // Cannot fail: names and values are strings. JSON escapes all characters that SQS refuses, except for these two.
    let json = serde_json::to_string(attributes).unwrap_or_default();
    json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(attributes: &[(&str, &str)]) -> (Vec<String>, BTreeMap<String, String>) {
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
        let (names, back) = round_trip(&attributes);
        assert_eq!(names, ["awsome", "pillarbox.id", "tenant"]);
        assert_eq!(back, owned(&attributes));
    }

    #[test]
    fn an_attribute_that_sqs_refuses_is_folded_and_restored() {
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
        let (names, back) = round_trip(&attributes);
        assert_eq!(names, ["good", FOLDED]);
        assert_eq!(back, owned(&attributes));
        let (encoded, _) = encode(&attributes.into_iter().collect()).unwrap();
        assert!(is_text(encoded[FOLDED].string_value().unwrap()));
    }

    #[test]
    fn our_attributes_are_folded_before_those_of_the_sender() {
        let names: Vec<_> = (0..9).map(|n| format!("name{n}")).collect();
        let mut attributes: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        attributes.extend([("pillarbox.id", "7"), ("pillarbox.kind", "k"), ("pillarbox.x", "y")]);
        let (sent, back) = round_trip(&attributes);
        assert_eq!(sent[..9], names);
        assert_eq!(sent[9], FOLDED);
        assert_eq!(back, owned(&attributes));
        // With a tenth, one of theirs is folded too.
        attributes.push(("name9", "v"));
        let (sent, back) = round_trip(&attributes);
        assert_eq!(sent.len(), 10);
        assert_eq!(back, owned(&attributes));
    }

    #[test]
    fn types_of_attributes_are_kept() {
        let attributes =
            [("count", "12"), ("photo", "AAH/"), (TYPES, "count=Number,photo=Binary.png")];
        let (encoded, size) = encode(&attributes.into_iter().collect()).unwrap();
        assert_eq!(encoded.len(), 2, "the types are native");
        assert_eq!(encoded["photo"].binary_value().unwrap().as_ref(), [0, 1, 255]);
        assert_eq!(encoded["count"].data_type(), "Number");
        assert_eq!(size, "photoBinary.png".len() + 3 + "countNumber12".len());
        assert_eq!(decode(Some(encoded)), owned(&attributes));
    }

    #[test]
    fn the_type_of_a_folded_attribute_is_kept() {
        let names: Vec<_> = (0..12).map(|n| format!("n{n:02}")).collect();
        let types: Vec<_> = names.iter().map(|name| format!("{name}=Number")).collect();
        let types = types.join(",");
        let mut attributes: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
        attributes.push((TYPES, &types));
        assert_eq!(round_trip(&attributes).1, owned(&attributes));
    }

    #[test]
    fn the_type_of_an_attribute_without_a_value_is_kept() {
        let attributes = [("count", ""), (TYPES, "count=Number")];
        assert_eq!(round_trip(&attributes).1, owned(&attributes));
    }

    #[test]
    fn types_without_an_attribute_are_kept_as_they_are() {
        for types in ["", "=", ",", "gone=Number", "count=Number,count=Number", "count=String"] {
            let attributes = [("count", "1"), (TYPES, types)];
            assert_eq!(round_trip(&attributes).1, owned(&attributes), "{types:?}");
        }
        // Also with ten other attributes.
        let names: Vec<_> = (0..10).map(|n| format!("n{n}")).collect();
        let mut attributes: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
        attributes.push((TYPES, "n0=Number,gone=Number"));
        assert_eq!(round_trip(&attributes).1, owned(&attributes));
    }

    #[test]
    fn types_that_contradict_those_of_sqs_are_corrected() {
        let attribute = |data_type: &str| {
            let attribute = MessageAttributeValue::builder().data_type(data_type);
            if is_binary(data_type) {
                attribute.binary_value(Blob::new([0, 1, 255])).build().unwrap()
            } else {
                attribute.string_value("1").build().unwrap()
            }
        };
        for (data_type, declared, right) in [
            ("Binary.png", "a=Number", Some("a=Binary.png")),
            ("Number", "a=String,gone=Number", Some("a=Number,gone=Number")),
            ("String", "a=Number", None),
        ] {
            let types = MessageAttributeValue::builder().data_type(STRING).string_value(declared);
            let types = (TYPES.to_owned(), types.build().unwrap());
            let foreign = HashMap::from([("a".to_owned(), attribute(data_type)), types]);
            let decoded = decode(Some(foreign));
            assert_eq!(decoded.get(TYPES).map(String::as_str), right);
            let decoded = decoded.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            let (again, _) = encode(&decoded).unwrap();
            assert_eq!(again["a"], attribute(data_type), "as it was");
        }
    }

    #[test]
    fn an_attribute_that_is_both_native_and_folded_is_the_same_at_every_delivery() {
        let attribute = |value: &str| {
            MessageAttributeValue::builder().data_type(STRING).string_value(value).build().unwrap()
        };
        for _ in 0..20 {
            // Each map has an order of its own.
            let both = [("a", "native"), (FOLDED, "{\"a\":\"folded\"}")];
            let both = both.map(|(name, value)| (name.to_owned(), attribute(value)));
            assert_eq!(decode(Some(both.into()))["a"], "native");
        }
    }

    #[test]
    fn a_malformed_value_is_reported() {
        let bad_base64 = encode(&[("photo", "***"), (TYPES, "photo=Binary")].into_iter().collect());
        assert!(bad_base64.unwrap_err().value.contains("'photo', which is Binary"));
        let bad_types = encode(&[(TYPES, "photo")].into_iter().collect());
        assert!(bad_types.unwrap_err().allowed.contains("NAME=TYPE"));
    }
}
