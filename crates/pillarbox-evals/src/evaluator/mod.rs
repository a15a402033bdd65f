//! Who judges outputs.
//!
//! | to find | look at |
//! |---|---|
//! | what an evaluator sees, and functions as evaluators | here |
//! | ready-made ones | `ready.rs`, `subset.rs` |
//! | several together | `together.rs` |
//! | what counts as text or as a number | `values.rs` |

mod ready;
mod subset;
mod together;
mod values;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::BoxFuture;
use pillarbox_runtime::{BoxError, Budget, Resources, Uuid};

pub use ready::{contains, exact_match, numeric_close, regex};
pub use subset::json_subset;
pub use together::{Evaluators, all_of, any_of};
pub use values::{Number, Text};

use crate::dataset::Sample;
use crate::score::{IntoScore, Score};
use crate::steps::Step;

/// An output, and all that is known of how it came about.
#[derive(Debug)]
#[non_exhaustive]
pub struct Case<I, O, E> {
    /// What the adapter was given, and what should have come out.
    pub sample: Sample<I, E>,
    /// What came out.
    pub output: O,
    /// How it came about.
    pub session: Session,
}

/// How an output came about: what evaluators see that judge more than the output.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Session {
    /// The run that it is a part of.
    pub run_id: String,
    /// The variant that was used.
    pub experiment: String,
    /// The session, if the adapter named one.
    pub session_id: Option<Uuid>,
    /// How long the adapter took. Unknown where outputs are judged by whoever collects them.
    pub latency: Option<Duration>,
    /// What the adapter [said that it did](crate::RecordSteps::step), in that order. None where outputs are
    /// judged by whoever collects them.
    pub steps: Vec<Step>,
    /// What it was to work with.
    pub resources: Resources,
    /// What it was allowed to cost.
    pub budget: Budget,
}

impl Session {
    /// The steps of this name, in their order.
    pub fn steps_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Step> {
        self.steps.iter().filter(move |step| step.name == name)
    }
}

/// Judges outputs. Functions do, as [`IntoEvaluator`] says; this is for what is more than one.
pub trait Evaluator<I, O, E>: Send + Sync + 'static {
    /// The score of an output, or why it cannot be judged: then the sample has failed, and is tried again where
    /// the loop has dead letters.
    fn evaluate<'a>(
        &'a self,
        case: &'a Arc<Case<I, O, E>>,
    ) -> BoxFuture<'a, Result<Score, BoxError>>;
}

/// An evaluator of whatever kind. Cheap to clone.
pub struct BoxEvaluator<I, O, E>(Arc<dyn Evaluator<I, O, E>>);

impl<I: 'static, O: 'static, E: 'static> BoxEvaluator<I, O, E> {
    /// An evaluator that is more than a function.
    pub fn new(evaluator: impl Evaluator<I, O, E>) -> Self {
        Self(Arc::new(evaluator))
    }

    /// The score of an output, or why there is none. A score that is not from 0 to 1 is none.
    ///
    /// # Errors
    ///
    /// Those of the evaluator.
    pub async fn evaluate(&self, case: &Arc<Case<I, O, E>>) -> Result<Score, BoxError> {
        let score = self.0.evaluate(case).await?;
        score.check()?;
        Ok(score)
    }
}

impl<I, O, E> Clone for BoxEvaluator<I, O, E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I, O, E> fmt::Debug for BoxEvaluator<I, O, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxEvaluator").finish_non_exhaustive()
    }
}

/// What can judge outputs:
///
/// * a function of the output and what is expected, `|output: &O, expected: &E| ...`;
/// * one that sees how it came about too, `|output: &O, expected: &E, session: &Session| ...`;
/// * a [`judge`], which may wait for others;
/// * [`all_of`] or [`any_of`] several.
///
/// A function gives a [`Score`], or whether the output is right, or a `Result` of either.
///
/// ```
/// use pillarbox_evals::{IntoEvaluator, Score, Session};
/// # fn takes<A>(_: impl IntoEvaluator<String, String, String, A>) {}
///
/// takes(|output: &String, expected: &String| output.len() <= expected.len());
/// takes(|output: &String, expected: &String, session: &Session| {
///     match session.steps_of("search").count() {
///         0 => Score::fail("it did not look it up"),
///         _ => Score::graded(if output == expected { 1.0 } else { 0.5 }, 1.0),
///     }
/// });
/// takes(pillarbox_evals::exact_match);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot judge these outputs",
    label = "its arguments or what it returns does not fit: see the notes",
    note = "an evaluator is a function `|output: &{O}, expected: &{E}| ...`, or one with a third argument \
            `session: &Session`, or a `judge(...)`",
    note = "it returns a `Score`, a `bool`, or a `Result` of either"
)]
pub trait IntoEvaluator<I, O, E, Args> {
    /// What judges outputs as this says.
    fn into_evaluator(self) -> BoxEvaluator<I, O, E>;
}

/// Marks functions of the output and what is expected.
#[derive(Debug)]
pub struct OfOutput<S>(PhantomData<S>);

/// Marks functions that see the session too.
#[derive(Debug)]
pub struct OfSession<S>(PhantomData<S>);

/// A function, and how it is called.
struct Function<F, S>(F, PhantomData<fn() -> S>);

impl<I, O, E, F, S> IntoEvaluator<I, O, E, OfOutput<S>> for F
where
    F: Fn(&O, &E) -> S + Send + Sync + 'static,
    S: IntoScore + 'static,
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn into_evaluator(self) -> BoxEvaluator<I, O, E> {
        BoxEvaluator::new(Function(self, PhantomData::<fn() -> OfOutput<S>>))
    }
}

impl<I, O, E, F, S> Evaluator<I, O, E> for Function<F, OfOutput<S>>
where
    F: Fn(&O, &E) -> S + Send + Sync + 'static,
    S: IntoScore + 'static,
{
    fn evaluate<'a>(
        &'a self,
        case: &'a Arc<Case<I, O, E>>,
    ) -> BoxFuture<'a, Result<Score, BoxError>> {
        let score = self.0(&case.output, &case.sample.expected).into_score();
        Box::pin(std::future::ready(score))
    }
}

impl<I, O, E, F, S> IntoEvaluator<I, O, E, OfSession<S>> for F
where
    F: Fn(&O, &E, &Session) -> S + Send + Sync + 'static,
    S: IntoScore + 'static,
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn into_evaluator(self) -> BoxEvaluator<I, O, E> {
        BoxEvaluator::new(Function(self, PhantomData::<fn() -> OfSession<S>>))
    }
}

impl<I, O, E, F, S> Evaluator<I, O, E> for Function<F, OfSession<S>>
where
    F: Fn(&O, &E, &Session) -> S + Send + Sync + 'static,
    S: IntoScore + 'static,
{
    fn evaluate<'a>(
        &'a self,
        case: &'a Arc<Case<I, O, E>>,
    ) -> BoxFuture<'a, Result<Score, BoxError>> {
        let score = self.0(&case.output, &case.sample.expected, &case.session).into_score();
        Box::pin(std::future::ready(score))
    }
}

impl<I, O, E> IntoEvaluator<I, O, E, ()> for BoxEvaluator<I, O, E> {
    fn into_evaluator(self) -> BoxEvaluator<I, O, E> {
        self
    }
}

/// Judges by an async function, such as one that asks a model.
///
/// ```
/// use std::sync::Arc;
/// use pillarbox_evals::{Case, Score, judge};
/// # async fn ask_a_model(_: &str) -> Result<f64, std::io::Error> { Ok(1.0) }
///
/// let polite = judge(|case: Arc<Case<String, String, ()>>| async move {
///     let grade = ask_a_model(&format!("How polite is {:?}?", case.output)).await?;
///     Ok::<_, std::io::Error>(Score::graded(grade, 0.7))
/// });
/// ```
pub fn judge<I, O, E, F, Fut>(judge: F) -> BoxEvaluator<I, O, E>
where
    F: Fn(Arc<Case<I, O, E>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoScore> + Send + 'static,
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    BoxEvaluator::new(Judge(judge))
}

struct Judge<F>(F);

impl<I, O, E, F, Fut> Evaluator<I, O, E> for Judge<F>
where
    F: Fn(Arc<Case<I, O, E>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoScore> + Send + 'static,
{
    fn evaluate<'a>(
        &'a self,
        case: &'a Arc<Case<I, O, E>>,
    ) -> BoxFuture<'a, Result<Score, BoxError>> {
        let judging = self.0(case.clone());
        Box::pin(async move { judging.await.into_score() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An output that is judged, without anything around it.
    pub(crate) fn case<O, E>(output: O, expected: E) -> Arc<Case<(), O, E>> {
        let sample = Sample::new("7", (), expected);
        Arc::new(Case { sample, output, session: Session::default() })
    }

    /// The score that an evaluator gives, at once.
    pub(crate) fn score<O: 'static, E: 'static, A>(
        evaluator: impl IntoEvaluator<(), O, E, A>,
        output: O,
        expected: E,
    ) -> Result<Score, String> {
        let case = case(output, expected);
        let scored = pillarbox_testing::block_on(evaluator.into_evaluator().evaluate(&case));
        scored.map_err(|error| error.to_string())
    }

    #[test]
    fn functions_judge_outputs_and_may_see_the_session() {
        let same = |output: &u32, expected: &u32| output == expected;
        assert!(score(same, 7, 7).unwrap().passed);
        assert!(!score(same, 7, 8).unwrap().passed);
        let slow =
            |_: &u32, _: &u32, session: &Session| session.latency.ok_or("no latency").map(|_| true);
        assert_eq!(score(slow, 7, 7).unwrap_err(), "no latency");
    }

    #[test]
    fn a_judge_may_wait_and_fail() {
        let judging = judge(|case: Arc<Case<(), u32, u32>>| async move {
            tokio::task::yield_now().await;
            case.output.checked_sub(case.sample.expected).ok_or("too small").map(|more| more == 0)
        });
        assert!(score(judging.clone(), 7, 7).unwrap().passed);
        assert!(!score(judging.clone(), 8, 7).unwrap().passed);
        assert_eq!(score(judging, 6, 7).unwrap_err(), "too small");
    }

    #[test]
    fn a_score_that_is_none_is_an_error() {
        let wild = |_: &u32, _: &u32| Score::graded(f64::NAN, 0.0);
        assert!(score(wild, 7, 7).unwrap_err().contains("not from 0 to 1"));
    }
}
