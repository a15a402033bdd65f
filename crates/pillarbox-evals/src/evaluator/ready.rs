//! Evaluators that most need.

use serde::Serialize;

use super::values::{Number, Text, shown};
use crate::score::Score;

/// How many characters of a value a reason shows.
const ROOM: usize = 200;

/// The output is what is expected, to the letter.
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
    Score::fail(format!("expected {}, got {}", shown(expected, ROOM), shown(output, ROOM)))
}

/// What is expected is somewhere in the output.
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
    Score::fail(format!("{} is not in it", shown(&*expected, ROOM)))
}

/// The output has a match of the regular expression that is expected; `^` and `$` hold it to the whole.
///
/// ```
/// use pillarbox_evals::regex;
///
/// assert!(regex(&"order 4711", &r"^order \d+$").passed);
/// assert!(!regex(&"no order", &r"^order \d+$").passed);
/// ```
///
/// What is expected and is no regular expression fails every output, and the reason says so.
pub fn regex<O: Text, E: Text>(output: &O, expected: &E) -> Score {
    let pattern = expected.text();
    match ::regex::Regex::new(&pattern) {
        Ok(regex) if regex.is_match(&output.text()) => Score::pass(),
        Ok(_) => Score::fail(format!("no match of {pattern}")),
        Err(error) => Score::fail(format!("what is expected is no regular expression: {error}")),
    }
}

/// The output is a number that is no further from the expected one than `relative` times that, or than
/// `absolute`.
///
/// ```
/// use pillarbox_evals::numeric_close;
///
/// let within_a_percent = numeric_close(0.01, 0.0);
/// assert!(within_a_percent(&99.5, &100.0).passed);
/// assert!(!within_a_percent(&98.0, &100.0).passed);
/// // Text that is a number will do: models write.
/// assert!(numeric_close(0.0, 0.5)(&" 41.7 ", &42).passed);
/// ```
///
/// # Panics
///
/// Where one of them is negative or no number.
pub fn numeric_close<O: Number + Serialize, E: Number + Serialize>(
    relative: f64,
    absolute: f64,
) -> impl Fn(&O, &E) -> Score + Clone + Send + Sync + 'static {
    assert!(relative >= 0.0 && absolute >= 0.0, "{relative} and {absolute} are no tolerances");
    move |output, expected| match (output.number(), expected.number()) {
        (_, None) => {
            Score::fail(format!("what is expected is no number: {}", shown(expected, ROOM)))
        }
        (None, _) => Score::fail(format!("{} is no number", shown(output, ROOM))),
        (Some(output), Some(expected)) => {
            let away = (output - expected).abs();
            // Equal ones may be infinite, and then there is no difference.
            if output == expected || away <= absolute.max(relative * expected.abs()) {
                Score::pass()
            } else {
                Score::fail(format!("{output} is {away} away from {expected}"))
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
    fn ready_made_evaluators_judge_typed_values_and_json() {
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
            reason.contains("no regular expression") && reason.contains("unclosed"),
            "{reason}"
        );
    }

    #[test]
    fn what_is_no_number_is_close_to_none() {
        let close = numeric_close::<Value, Value>(0.1, 0.1);
        assert!(close(&json!("many"), &json!(1)).reason.unwrap().contains("no number"));
        assert!(close(&json!(1), &json!(null)).reason.unwrap().contains("what is expected"));
        assert!(!close(&json!("NaN"), &json!(1)).passed);
        let close = numeric_close(0.0, 0.0);
        assert!(close(&f64::INFINITY, &f64::INFINITY).passed);
        assert!(!close(&f64::INFINITY, &1.0).passed);
        assert!(!numeric_close(0.5, 0.0)(&f64::NAN, &f64::NAN).passed);
    }
}
