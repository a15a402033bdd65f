//! Evaluator for JSON that must contain the expected fields.

use serde::Serialize;
use serde_json::Value;

use super::values::shown;
use crate::score::Score;

/// Passes if the output, as JSON, contains the expected value: all fields of an object, where the output may have others
/// too, and all items of an array, which must have the same length. The score is the share of expected values found.
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
        (Err(error), _) => {
            return Score::fail(format!("the output cannot be serialized to JSON: {error}"));
        }
        (_, Err(error)) => {
            return Score::fail(format!(
                "the expected value cannot be serialized to JSON: {error}"
            ));
        }
    };
    let mut found = Matches::default();
    found.compare(&mut "$".to_owned(), Some(&output), &expected);
    if found.wrong.is_empty() {
        return Score::pass();
    }
    let value = f64::from(found.right) / f64::from(found.right + found.misses);
    Score { value, passed: false, reason: Some(found.reason()) }
}

#[derive(Default)]
struct Matches {
    /// Number of expected values that were found.
    right: u32,
    /// Number of expected values that were not.
    misses: u32,
    /// Descriptions of the first of them.
    wrong: Vec<String>,
}

/// Number of characters of a value that a reason shows.
const MAX_CHARS: usize = 80;
/// Number of values that a reason describes.
const SHOWN: usize = 5;

impl Matches {
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
                // Two empty arrays match.
                self.right += u32::from(expected.is_empty());
                for (index, (output, expected)) in output.iter().zip(expected).enumerate() {
                    within(path, &format!("[{index}]"), |path| {
                        self.compare(path, Some(output), expected);
                    });
                }
            }
            (Value::Array(output), Value::Array(list)) => self.miss(expected, || {
                format!("{path}: expected {} items, got {}", list.len(), output.len())
            }),
            (output, expected) if same(output, expected) => self.right += 1,
            _ => self.miss(expected, || {
                format!(
                    "{path}: expected {}, got {}",
                    shown(expected, MAX_CHARS),
                    shown(output, MAX_CHARS)
                )
            }),
        }
    }

    /// Records that an expected value was not found.
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

/// Returns whether two values are equal. 1 and 1.0 are; integers are compared exactly.
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

/// Returns the number of leaf values, at least one.
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
    fn the_output_must_contain_what_is_expected_and_may_contain_more() {
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
