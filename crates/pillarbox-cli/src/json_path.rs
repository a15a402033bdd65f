//! A condition on one value of a JSON body: `$.customer.id=42`.
//!
//! ```text
//! EXPR  = PATH [ OP VALUE ]            without OP: the value exists, even if null
//! PATH  = "$" { "." NAME | "[" NUMBER "]" | "[" STRING "]" }
//! NAME  = letters, digits, "_" and "-"
//! OP    = "=" | "==" | "!=" | "<" | "<=" | ">" | ">="
//! VALUE = JSON (42, "text", true, null, [1]); anything else is literal text
//! ```
//!
//! A missing value fulfils no condition, not even `!=`. Ordering operators apply to two numbers or two strings.

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::{Number, Value};

/// A condition on a JSON body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath {
    steps: Vec<Step>,
    /// `None`: the value only has to exist.
    test: Option<(Op, Value)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Item(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Longer operators first, since `<` is a prefix of `<=`.
const OPS: [(&str, Op); 7] = [
    ("==", Op::Equal),
    ("!=", Op::NotEqual),
    ("<=", Op::LessOrEqual),
    (">=", Op::GreaterOrEqual),
    ("=", Op::Equal),
    ("<", Op::Less),
    (">", Op::Greater),
];

impl JsonPath {
    /// Returns whether a body fulfils the condition.
    pub(crate) fn holds(&self, body: &Value) -> bool {
        let value = self.steps.iter().try_fold(body, |value, step| match step {
            Step::Field(name) => value.as_object()?.get(name),
            Step::Item(index) => value.as_array()?.get(*index),
        });
        match (value, &self.test) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(value), Some((op, wanted))) => op.holds(value, wanted),
        }
    }
}

impl Op {
    fn holds(self, value: &Value, wanted: &Value) -> bool {
        let order = match (value, wanted) {
            (Value::Number(value), Value::Number(wanted)) => compare(value, wanted),
            (Value::String(value), Value::String(wanted)) => Some(value.cmp(wanted)),
            _ => None,
        };
        let is_equal = order.map_or_else(|| value == wanted, Ordering::is_eq);
        match self {
            Self::Equal => is_equal,
            Self::NotEqual => !is_equal,
            Self::Less => order.is_some_and(Ordering::is_lt),
            Self::LessOrEqual => order.is_some_and(Ordering::is_le),
            Self::Greater => order.is_some_and(Ordering::is_gt),
            Self::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
        }
    }
}

/// Compares integers exactly, and other numbers as floating point.
fn compare(one: &Number, other: &Number) -> Option<Ordering> {
    let whole = |number: &Number| {
        number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
    };
    match (whole(one), whole(other)) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

impl FromStr for JsonPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut reader = Reader { text, rest: text.trim_start() };
        if !reader.take("$") {
            return Err(format!(
                "a path begins with $, the whole body: $.customer.id=42; not with '{}'",
                reader.rest.chars().next().unwrap_or(' ')
            ));
        }
        let steps = reader.steps()?;
        reader.rest = reader.rest.trim_start();
        if reader.rest.is_empty() {
            return Ok(Self { steps, test: None });
        }
        let Some((_, op)) = OPS.into_iter().find(|(sign, _)| reader.take(sign)) else {
            return Err(reader.expected("'.name', '[0]' or one of = != < <= > >="));
        };
        let value = reader.value()?;
        let is_ordered = matches!(value, Value::Number(_) | Value::String(_));
        if !is_ordered && !matches!(op, Op::Equal | Op::NotEqual) {
            return Err(format!("{value} can be compared with = and != only"));
        }
        Ok(Self { steps, test: Some((op, value)) })
    }
}

/// Parser of an expression.
struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
}

impl Reader<'_> {
    fn take(&mut self, sign: &str) -> bool {
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn steps(&mut self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            if self.take(".") {
                steps.push(Step::Field(self.name()?));
            } else if self.take("[") {
                steps.push(self.bracketed()?);
                if !self.take("]") {
                    return Err(self.expected("']'"));
                }
            } else {
                return Ok(steps);
            }
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let ends = |c: char| !(c.is_alphanumeric() || c == '_' || c == '-');
        let (name, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        if name.is_empty() {
            return Err(
                self.expected("a name (a name with other characters is written [\"like this\"])")
            );
        }
        self.rest = rest;
        Ok(name.to_owned())
    }

    /// Parses the contents of brackets.
    fn bracketed(&mut self) -> Result<Step, String> {
        if self.rest.starts_with('"') {
            let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
            let Some(Ok(name)) = values.next() else {
                return Err(self.expected("a string that ends with '\"'"));
            };
            self.rest = &self.rest[values.byte_offset()..];
            return Ok(Step::Field(name));
        }
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(digits);
        let number = number.parse().map_err(|_| {
            self.expected("an index, or a name in quotes; a path selects one value")
        })?;
        self.rest = rest;
        Ok(Step::Item(number))
    }

    /// Parses the rest as JSON, or else as literal text.
    fn value(&self) -> Result<Value, String> {
        let text = self.rest.trim();
        if text.is_empty() {
            return Err(self.expected("a value; the empty string is written \"\""));
        }
        match serde_json::from_str(text) {
            Ok(value) => Ok(value),
            Err(_) if !text.starts_with(['"', '[', '{']) => Ok(Value::String(text.to_owned())),
            Err(error) => Err(format!(
                "{text} is not valid JSON: {}",
                crate::message_json::describe_error(&error)
            )),
        }
    }

    fn expected(&self, what: &str) -> String {
        let read = self.text.len() - self.rest.len();
        let position = self.text[..read].chars().count() + 1;
        match self.rest.chars().next() {
            Some(c) => format!("at character {position}, '{c}': expected {what}"),
            None => format!("at the end: expected {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(expression: &str, body: &Value) -> bool {
        let path: JsonPath = expression.parse().unwrap_or_else(|error| {
            panic!("{expression}: {error}");
        });
        path.holds(body)
    }

    #[test]
    fn a_condition_is_about_one_value() {
        let body = json!({
            "customer": {"id": 42, "name": "Bärbel", "e-mail": "b@x.org"},
            "items": [{"sku": "A"}, {"sku": "B", "tags": [[1, 2]]}],
            "tenant": "acme", "amount": 100.5, "flag": null, "odd.name": true, "": 0,
            "big": 9_007_199_254_740_993_u64, "at": "2026-11-16T10:00:00Z", "number": "42",
        });
        for (expression, expected) in [
            ("$.customer.id=42", true),
            ("$.customer.id==42", true),
            ("$.customer.id = 42.0", true),
            ("$.customer.id=43", false),
            ("$.customer.id=\"42\"", false),
            ("$.number=42", false),
            ("$.number=\"42\"", true),
            ("$.customer.name=Bärbel", true),
            ("$.customer.e-mail=b@x.org", true),
            ("$.items[0].sku=\"A\"", true),
            ("$.items[1].tags[0][1]=2", true),
            ("$.items[1].tags[0]=[1,2]", true),
            ("$.items[2].sku", false),
            ("$.items.sku", false),
            ("$.tenant!=acme", false),
            ("$.tenant!=other", true),
            ("$.tenant != 7", true),
            ("$.nothing!=acme", false),
            ("$.amount>100", true),
            ("$.amount>=100.5", true),
            ("$.amount<100.5", false),
            ("$.amount<=100.5", true),
            ("$.amount>99999999999999999999", false),
            ("$.tenant>100", false),
            ("$.tenant<b", true),
            ("$.at>=2026-11-01", true),
            ("$.at<2026-11-01", false),
            ("$.flag", true),
            ("$.flag=null", true),
            ("$.flag=\"null\"", false),
            ("$.missing", false),
            ("$[\"odd.name\"]=true", true),
            ("$[\"\"]=0", true),
            ("$.big=9007199254740993", true),
            ("$.big=9007199254740992", false),
            ("$.big>9007199254740992", true),
            (" $.tenant = acme ", true),
            ("$", true),
        ] {
            assert_eq!(holds(expression, &body), expected, "{expression}");
        }
        assert!(holds("$[0]=-1", &json!([-1])) && holds("$=x=y", &json!("x=y")));
        assert!(!holds("$.a", &json!(5)));
    }

    #[test]
    fn an_invalid_condition_is_rejected_with_its_position_and_what_was_expected() {
        for (expression, says) in [
            ("", "begins with $"),
            ("customer.id=1", "begins with $"),
            ("$customer", "at character 2, 'c': expected '.name'"),
            ("$.", "at the end: expected a name"),
            ("$..id", "at character 3, '.': expected a name"),
            ("$.*", "at character 3, '*': expected a name"),
            ("$.a b", "at character 5, 'b': expected '.name'"),
            ("$.é!", "at character 4, '!': expected '.name'"),
            ("$.items[*]", "'*': expected an index"),
            ("$.items[-1]", "'-': expected an index"),
            ("$.items[0", "at the end: expected ']'"),
            ("$.items[99999999999999999999]", "expected an index"),
            ("$[\"a]", "expected a string that ends"),
            ("$.a=", "expected a value"),
            ("$.a=\"x", "is not valid JSON"),
            ("$.a={x}", "is not valid JSON"),
            ("$.a>true", "with = and != only"),
            ("$.a<[1]", "with = and != only"),
        ] {
            let error = expression.parse::<JsonPath>().unwrap_err();
            assert!(error.contains(says), "{expression}: {error}");
        }
    }
}
