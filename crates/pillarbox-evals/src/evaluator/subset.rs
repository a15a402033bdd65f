//! JSON that has at least what it should have.

use serde::Serialize;
use serde_json::Value;

use super::values::shown;
use crate::score::Score;

/// The output, as JSON, has all that is expected: of an object, its fields, and further ones do not matter; of a
/// list, as many items, each with what is expected of it. The score is the share of expected values that are there.
///
/// ```
/// use pillarbox_evals::json_subset;
/// use serde_json::json;
///
/// let output = json!({"city": "Paris", "people": 2_100_000, "river": {"name": "Seine", "km": 777}});
/// assert!(json_subset(&output, &json!({"city": "Paris", "river": {"km": 777}})).passed);
///
/// let score = json_subset(&output, &json!({"city": "Paris", "river": {"km": 800}, "mayor": "?"}));
/// assert_eq!(
///     score.reason.unwrap(),
///     "$.mayor is missing; $.river.km: expected 800, got 777"
/// );
/// assert!(!score.passed && score.value > 0.3 && score.value < 0.4);
/// ```
pub fn json_subset<O: Serialize, E: Serialize>(output: &O, expected: &E) -> Score {
    let (output, expected) = match (serde_json::to_value(output), serde_json::to_value(expected)) {
        (Ok(output), Ok(expected)) => (output, expected),
        (Err(error), _) => return Score::fail(format!("the output is no JSON: {error}")),
        (_, Err(error)) => return Score::fail(format!("what is expected is no JSON: {error}")),
    };
    let mut found = Comparison::default();
    found.compare(&mut "$".to_owned(), Some(&output), &expected);
    if found.wrong.is_empty() {
        return Score::pass();
    }
    let value = f64::from(found.right) / f64::from(found.right + found.misses);
    Score { value, passed: false, reason: Some(found.reason()) }
}

#[derive(Default)]
struct Comparison {
    /// How many expected values are there.
    right: u32,
    /// How many are not.
    misses: u32,
    /// The first of them, in words.
    wrong: Vec<String>,
}

/// How many characters of a value a reason shows: there may be several.
const ROOM: usize = 80;
/// How many are put into words.
const SHOWN: usize = 5;

impl Comparison {
    fn compare(&mut self, path: &mut String, output: Option<&Value>, expected: &Value) {
        let Some(output) = output else {
            return self.miss(expected, || format!("{path} is missing"));
        };
        match (output, expected) {
            (Value::Object(output), Value::Object(expected)) if !expected.is_empty() => {
                for (name, value) in expected {
                    within(path, &format!(".{name}"), |path| {
                        self.compare(path, output.get(name), value);
                    });
                }
            }
            (Value::Object(_), Value::Object(_)) => self.right += 1,
            (Value::Array(output), Value::Array(expected)) if output.len() == expected.len() => {
                // Two empty lists agree.
                self.right += u32::from(expected.is_empty());
                for (place, (output, expected)) in output.iter().zip(expected).enumerate() {
                    within(path, &format!("[{place}]"), |path| {
                        self.compare(path, Some(output), expected);
                    });
                }
            }
            (Value::Array(output), Value::Array(list)) => self.miss(expected, || {
                format!("{path}: expected {} items, got {}", list.len(), output.len())
            }),
            (output, expected) if same(output, expected) => self.right += 1,
            _ => self.miss(expected, || {
                format!("{path}: expected {}, got {}", shown(expected, ROOM), shown(output, ROOM))
            }),
        }
    }

    /// All that is expected here is not there.
    fn miss(&mut self, expected: &Value, text: impl FnOnce() -> String) {
        self.misses += leaves(expected);
        if self.wrong.len() <= SHOWN {
            self.wrong.push(text());
        }
    }

    fn reason(&self) -> String {
        let shown = self.wrong.iter().take(SHOWN).map(String::as_str);
        let more = (self.wrong.len() > SHOWN).then_some("and more");
        shown.chain(more).collect::<Vec<_>>().join("; ")
    }
}

/// Numbers are the same if they are worth the same: 1 and 1.0. Whole ones are compared to the last digit.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) if one.is_f64() != other.is_f64() => {
            one.as_f64().is_some_and(|one| Some(one) == other.as_f64())
        }
        _ => one == other,
    }
}

fn within(path: &mut String, part: &str, work: impl FnOnce(&mut String)) {
    let before = path.len();
    path.push_str(part);
    work(path);
    path.truncate(before);
}

/// How many values there are to get right; at least one.
fn leaves(value: &Value) -> u32 {
    let inner = match value {
        Value::Object(fields) => fields.values().map(leaves).sum(),
        Value::Array(items) => items.iter().map(leaves).sum(),
        _ => 1,
    };
    u32::max(inner, 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_expected_must_be_there_and_more_may_be() {
        let output = json!({"a": {"b": [1, {"c": 2, "d": 3}]}, "e": null, "f": [], "g": {}});
        for expected in [
            json!({}),
            json!({"a": {}}),
            json!({"a": {"b": [1.0, {"c": 2}]}}),
            json!({"e": null, "f": [], "g": {}}),
            output.clone(),
        ] {
            assert_eq!(json_subset(&output, &expected), Score::pass(), "{expected}");
        }
        let large = 9_007_199_254_740_993_u64;
        assert!(!json_subset(&json!(large), &json!(large - 1)).passed);
        for (expected, reason) in [
            (json!({"a": {"b": [1]}}), "$.a.b: expected 1 items, got 2"),
            (json!({"a": {"b": [1, {"x": 1}]}}), "$.a.b[1].x is missing"),
            (json!({"e": 0}), "$.e: expected 0, got null"),
            (json!({"f": {}}), "$.f: expected {}, got []"),
            (json!(7), "$: expected 7, got {"),
        ] {
            let score = json_subset(&output, &expected);
            assert!(!score.passed && score.value < 1.0);
            assert!(score.reason.as_ref().unwrap().starts_with(reason), "{score:?}");
        }
    }

    #[test]
    fn the_score_is_the_share_that_is_right_and_a_long_list_is_cut() {
        let expected: Value =
            (0..20).map(|n| (format!("f{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
        let output: Value =
            (0..5).map(|n| (format!("f{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
        let score = json_subset(&output, &expected);
        assert_eq!(score.value, 0.25);
        assert!(score.reason.unwrap().ends_with("; and more"));
        assert_eq!(json_subset(&json!({}), &json!({"a": {"b": 1, "c": [2, 3]}})).value, 0.0);
    }
}
