//! Built-in evaluators.

use serde::Serialize;

use super::values::{Number, Text, shown};
use crate::score::Score;

/// Number of characters of a value that a reason shows.
const MAX_CHARS: usize = 200;

/// Passes if the output equals the expected value.
///
/// ```
/// use pillarbox_evals::exact_match;
///
/// assert!(exact_match(&"Paris", &"Paris").passed);
/// assert_eq!(
///     exact_match(&"paris", &"Paris").reason.unwrap(),
///     r#"expected "Paris", got "paris""#
/// );
/// ```
pub fn exact_match<O: PartialEq<E> + Serialize, E: Serialize>(output: &O, expected: &E) -> Score {
    if output == expected {
        return Score::pass();
    }
    Score::fail(format!(
        "expected {}, got {}",
        shown(expected, MAX_CHARS),
        shown(output, MAX_CHARS)
    ))
}

/// Passes if the output contains the expected text.
///
/// ```
/// use pillarbox_evals::contains;
///
/// assert!(contains(&"It is Paris, I think.", &"Paris").passed);
/// assert!(!contains(&"It is Lyon.", &"Paris").passed);
/// ```
pub fn contains<O: Text, E: Text>(output: &O, expected: &E) -> Score {
    let expected = expected.text();
    if output.text().contains(&*expected) {
        return Score::pass();
    }
    Score::fail(format!("{} is not in the output", shown(&*expected, MAX_CHARS)))
}

/// Passes if the expected regular expression matches the output. `^` and `$` anchor it.
///
/// ```
/// use pillarbox_evals::regex;
///
/// assert!(regex(&"order 4711", &r"^order \d+$").passed);
/// assert!(!regex(&"no order", &r"^order \d+$").passed);
/// ```
///
/// An invalid regular expression fails every output, with that as the reason.
pub fn regex<O: Text, E: Text>(output: &O, expected: &E) -> Score {
    let pattern = expected.text();
    match ::regex::Regex::new(&pattern) {
        Ok(regex) if regex.is_match(&output.text()) => Score::pass(),
        Ok(_) => Score::fail(format!("{pattern} does not match")),
        Err(error) => {
            Score::fail(format!("the expected value is not a valid regular expression: {error}"))
        }
    }
}

/// Passes if the output is a number that differs from the expected one by at most `relative` times the expected one, or
/// by at most `absolute`.
///
/// ```
/// use pillarbox_evals::numeric_close;
///
/// let within_a_percent = numeric_close(0.01, 0.0);
/// assert!(within_a_percent(&99.5, &100.0).passed);
/// assert!(!within_a_percent(&98.0, &100.0).passed);
/// // Text that is a number is accepted.
/// assert!(numeric_close(0.0, 0.5)(&" 41.7 ", &42).passed);
/// ```
///
/// # Panics
///
/// If a tolerance is negative or NaN.
pub fn numeric_close<O: Number + Serialize, E: Number + Serialize>(
    relative: f64,
    absolute: f64,
) -> impl Fn(&O, &E) -> Score + Clone + Send + Sync + 'static {
    assert!(relative >= 0.0 && absolute >= 0.0, "{relative} and {absolute} are not tolerances");
    move |output, expected| match (output.number(), expected.number()) {
        (_, None) => Score::fail(format!(
            "the expected value is not a number: {}",
            shown(expected, MAX_CHARS)
        )),
        (None, _) => Score::fail(format!("{} is not a number", shown(output, MAX_CHARS))),
        (Some(output), Some(expected)) => {
            let away = (output - expected).abs();
            // Equal numbers may be infinite, and then their difference is NaN.
            if output == expected || away <= absolute.max(relative * expected.abs()) {
                Score::pass()
            } else {
                Score::fail(format!("{output} differs from {expected} by {away}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::score;
    use super::*;

    #[test]
    fn built_in_evaluators_score_typed_values_and_json() {
        assert!(
            score(exact_match, json!({"a": 1, "b": 2}), json!({"b": 2, "a": 1})).unwrap().passed
        );
        assert!(!score(exact_match, "a".to_owned(), "b".to_owned()).unwrap().passed);
        assert!(score(contains, json!("xyz"), json!("y")).unwrap().passed);
        assert!(score(contains, json!({"answer": [1, 42]}), json!("42")).unwrap().passed);
        assert!(score(regex, "A-7".to_owned(), "(?i)^a-[0-9]$".to_owned()).unwrap().passed);
        assert!(score(numeric_close(1e-3, 0.0), json!("1000.5"), json!(1000)).unwrap().passed);
        assert!(!score(numeric_close(1e-4, 0.0), json!("1000.5"), json!(1000)).unwrap().passed);
    }

    #[test]
    fn a_reason_says_what_is_wrong_and_stays_short() {
        let long = "x".repeat(5000);
        let reason = exact_match(&long, &"y".to_owned()).reason.unwrap();
        assert!(reason.starts_with("expected \"y\", got \"xxx") && reason.len() < 300, "{reason}");
        let reason = regex(&"a", &"(").reason.unwrap();
        assert!(
            reason.contains("not a valid regular expression") && reason.contains("unclosed"),
            "{reason}"
        );
    }

    #[test]
    fn a_value_that_is_not_a_number_is_close_to_none() {
        let close = numeric_close::<Value, Value>(0.1, 0.1);
        assert!(close(&json!("many"), &json!(1)).reason.unwrap().contains("not a number"));
        assert!(close(&json!(1), &json!(null)).reason.unwrap().contains("the expected value"));
        assert!(!close(&json!("NaN"), &json!(1)).passed);
        let close = numeric_close(0.0, 0.0);
        assert!(close(&f64::INFINITY, &f64::INFINITY).passed);
        assert!(!close(&f64::INFINITY, &1.0).passed);
        assert!(!numeric_close(0.5, 0.0)(&f64::NAN, &f64::NAN).passed);
    }
}
