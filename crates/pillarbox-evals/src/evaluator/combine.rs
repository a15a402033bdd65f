//! Combination of several evaluators.

use std::sync::Arc;

use super::{BoxEvaluator, Case, Evaluator, IntoEvaluator, ScoreFuture};
use crate::score::Score;

/// Several evaluators: a tuple of up to eight of any kind, or a `Vec` of [`BoxEvaluator`].
pub trait Evaluators<I, O, E, Args> {
    /// Returns the evaluators, in order.
    fn into_evaluators(self) -> Vec<BoxEvaluator<I, O, E>>;
}

impl<I, O, E> Evaluators<I, O, E, ()> for Vec<BoxEvaluator<I, O, E>> {
    fn into_evaluators(self) -> Self {
        self
    }
}

macro_rules! tuples {
    ($($one:ident $args:ident),*) => {
        impl<I, O, E, $($one, $args),*> Evaluators<I, O, E, ($($args,)*)> for ($($one,)*)
        where
            $($one: IntoEvaluator<I, O, E, $args>),*
        {
            #[allow(non_snake_case, reason = "variables are named like their types")]
            fn into_evaluators(self) -> Vec<BoxEvaluator<I, O, E>> {
                let ($($one,)*) = self;
                vec![$($one.into_evaluator()),*]
            }
        }
    };
}

tuples!(V1 A1);
tuples!(V1 A1, V2 A2);
tuples!(V1 A1, V2 A2, V3 A3);
tuples!(V1 A1, V2 A2, V3 A3, V4 A4);
tuples!(V1 A1, V2 A2, V3 A3, V4 A4, V5 A5);
tuples!(V1 A1, V2 A2, V3 A3, V4 A4, V5 A5, V6 A6);
tuples!(V1 A1, V2 A2, V3 A3, V4 A4, V5 A5, V6 A6, V7 A7);
tuples!(V1 A1, V2 A2, V3 A3, V4 A4, V5 A5, V6 A6, V7 A7, V8 A8);

/// Passes if all evaluators pass. The score is their mean; the reason is made of those that did not pass.
///
/// ```
/// use pillarbox_evals::{all_of, contains, IntoEvaluator, Session};
/// # fn takes<A>(_: impl IntoEvaluator<String, String, String, A>) {}
///
/// takes(all_of((
///     contains,
///     |output: &String, _: &String| output.len() < 200,
///     |_: &String, _: &String, session: &Session| session.steps_of("search").count() == 1,
/// )));
/// ```
///
/// # Panics
///
/// If there is no evaluator.
pub fn all_of<I, O, E, Args>(evaluators: impl Evaluators<I, O, E, Args>) -> BoxEvaluator<I, O, E>
where
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    combined(evaluators.into_evaluators(), |scores| Score {
        value: scores.iter().map(|score| score.value).sum::<f64>() / scores.len() as f64,
        passed: scores.iter().all(|score| score.passed),
        reason: reasons(&scores, |score| !score.passed),
    })
}

/// Passes if one of the evaluators passes. The score is the highest of theirs; if none passes, the reason is made of all.
///
/// # Panics
///
/// If there is no evaluator.
pub fn any_of<I, O, E, Args>(evaluators: impl Evaluators<I, O, E, Args>) -> BoxEvaluator<I, O, E>
where
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    combined(evaluators.into_evaluators(), |scores| {
        let passed = scores.iter().any(|score| score.passed);
        Score {
            value: scores.iter().map(|score| score.value).fold(0.0, f64::max),
            passed,
            reason: reasons(&scores, |score| score.passed == passed),
        }
    })
}

fn reasons(scores: &[Score], includes: impl Fn(&Score) -> bool) -> Option<String> {
    let reasons = scores.iter().filter(|score| includes(score));
    let reasons: Vec<_> = reasons.filter_map(|score| score.reason.as_deref()).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn combined<I, O, E>(
    evaluators: Vec<BoxEvaluator<I, O, E>>,
    combine: fn(Vec<Score>) -> Score,
) -> BoxEvaluator<I, O, E>
where
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    assert!(!evaluators.is_empty(), "at least one evaluator is needed");
    BoxEvaluator::new(Combined { evaluators, combine })
}

/// Runs evaluators one after the other, since judges may limit the number of concurrent calls.
struct Combined<I, O, E> {
    evaluators: Vec<BoxEvaluator<I, O, E>>,
    combine: fn(Vec<Score>) -> Score,
}

impl<I, O, E> Evaluator<I, O, E> for Combined<I, O, E>
where
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn evaluate<'a>(&'a self, case: &'a Arc<Case<I, O, E>>) -> ScoreFuture<'a> {
        Box::pin(async move {
            let mut scores = Vec::with_capacity(self.evaluators.len());
            for evaluator in &self.evaluators {
                scores.push(evaluator.evaluate(case).await?);
            }
            Ok((self.combine)(scores))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::score;
    use super::*;
    use crate::evaluator::{Session, contains, exact_match, judge};

    #[expect(clippy::ptr_arg, reason = "evaluators take outputs by reference")]
    fn short(output: &String, _: &String) -> Score {
        if output.len() < 10 { Score::pass() } else { Score::graded(0.5, 1.0).because("too long") }
    }

    #[test]
    fn all_must_pass_and_the_score_is_their_mean() {
        let both = || all_of((contains, short));
        let passed = score(both(), "a b".to_owned(), "b".to_owned()).unwrap();
        assert_eq!(passed, Score::pass());
        let failed = score(both(), "a b c d e f g".to_owned(), "b".to_owned()).unwrap();
        assert_eq!((failed.value, failed.passed), (0.75, false));
        assert_eq!(failed.reason.as_deref(), Some("too long"));
        let failed = score(both(), "a c d e f g h".to_owned(), "b".to_owned()).unwrap();
        assert_eq!(failed.reason.as_deref(), Some("\"b\" is not in the output; too long"));
    }

    #[test]
    fn one_that_passes_is_enough_and_the_highest_score_counts() {
        let either = || any_of((exact_match, short));
        assert!(score(either(), "x".to_owned(), "b".to_owned()).unwrap().passed);
        let failed = score(either(), "x".repeat(20), "b".to_owned()).unwrap();
        assert_eq!((failed.value, failed.passed), (0.5, false));
        assert!(failed.reason.unwrap().ends_with("; too long"));
    }

    #[test]
    fn all_kinds_can_be_combined_and_an_error_of_one_is_the_error_of_all() {
        let whole = all_of(vec![
            exact_match.into_evaluator(),
            (|_: &String, _: &String, _: &Session| true).into_evaluator(),
            judge(|case: Arc<Case<(), String, String>>| async move {
                if case.output == "broken" { Err("the judge is out") } else { Ok(true) }
            }),
            any_of((contains, exact_match)),
        ]);
        assert!(score(whole.clone(), "a".to_owned(), "a".to_owned()).unwrap().passed);
        let error = score(whole, "broken".to_owned(), "a".to_owned()).unwrap_err();
        assert_eq!(error, "the judge is out");
    }
}
