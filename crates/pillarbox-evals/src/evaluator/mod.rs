//! Evaluators, which score outputs.
//!
//! | to find | look at |
//! |---|---|
//! | input of an evaluator, functions as evaluators | here |
//! | built-in evaluators | `builtin.rs`, `subset.rs` |
//! | several evaluators as one | `combine.rs` |
//! | conversions to text and numbers | `values.rs` |

mod builtin;
mod combine;
mod subset;
mod values;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::BoxFuture;
use pillarbox_runtime::BoxError;
use pillarbox_runtime::loops::{Budget, Resources, Uuid};

pub use builtin::{contains, exact_match, numeric_close, regex};
pub use combine::{Evaluators, all_of, any_of};
pub use subset::json_subset;
pub use values::{Number, Text};

use crate::dataset::Sample;
use crate::score::{IntoScore, Score};
use crate::steps::Step;

/// Input of an evaluator: an output with its sample and session.
#[derive(Debug)]
#[non_exhaustive]
pub struct Case<I, O, E> {
    /// The sample.
    pub sample: Sample<I, E>,
    /// Output of the adapter.
    pub output: O,
    /// How the output was produced.
    pub session: Session,
}

/// How an output was produced, for evaluators that score more than the output itself.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Session {
    /// Id of the run.
    pub run_id: String,
    /// Name of the experiment.
    pub experiment: String,
    /// Session id, if the adapter set one.
    pub session_id: Option<Uuid>,
    /// Run time of the adapter. `None` if the collector scores the outputs.
    pub latency: Option<Duration>,
    /// Steps that the adapter [recorded](crate::RecordSteps::step), in order. Empty if the collector scores the outputs.
    pub steps: Vec<Step>,
    /// Settings of the request.
    pub resources: Resources,
    /// Budget of the request.
    pub budget: Budget,
}

impl Session {
    /// Iterates over the steps with this name, in order.
    pub fn steps_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Step> {
        self.steps.iter().filter(move |step| step.name == name)
    }
}

/// Scores outputs. Most evaluators are functions, see [`IntoEvaluator`]; implement this for those that are not.
pub trait Evaluator<I, O, E>: Send + Sync + 'static {
    /// Returns the score of an output. With an error, the sample has failed, and is retried if the loop has dead
    /// letters.
    fn evaluate<'a>(
        &'a self,
        case: &'a Arc<Case<I, O, E>>,
    ) -> BoxFuture<'a, Result<Score, BoxError>>;
}

/// Future of [`Evaluator::evaluate`].
type ScoreFuture<'a> = BoxFuture<'a, Result<Score, BoxError>>;

/// Type-erased evaluator. Cheap to clone.
pub struct BoxEvaluator<I, O, E>(Arc<dyn Evaluator<I, O, E>>);

impl<I: 'static, O: 'static, E: 'static> BoxEvaluator<I, O, E> {
    /// Creates an evaluator from an implementation of the trait.
    pub fn new(evaluator: impl Evaluator<I, O, E>) -> Self {
        Self(Arc::new(evaluator))
    }

    /// Returns the score of an output.
    ///
    /// # Errors
    ///
    /// If the evaluator fails, or the score is not from 0 to 1.
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

/// Values that can be used as an evaluator:
///
/// * a function of the output and the expected value, `|output: &O, expected: &E| ...`;
/// * a function of the session as well, `|output: &O, expected: &E, session: &Session| ...`;
/// * a [`judge`], which is asynchronous;
/// * [`all_of`] or [`any_of`] several evaluators.
///
/// A function returns a [`Score`], a `bool` (passed or not), or a `Result` of either.
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
    message = "`{Self}` is not an evaluator for these outputs",
    label = "wrong arguments or return type: see the notes",
    note = "an evaluator is a function `|output: &{O}, expected: &{E}| ...`, or one with a third argument \
            `session: &Session`, or a `judge(...)`",
    note = "it returns a `Score`, a `bool`, or a `Result` of either"
)]
pub trait IntoEvaluator<I, O, E, Args> {
    /// Converts it into an evaluator.
    fn into_evaluator(self) -> BoxEvaluator<I, O, E>;
}

/// Marker for functions of the output and the expected value.
#[derive(Debug)]
pub struct OfOutput<S>(PhantomData<S>);

/// Marker for functions that take the session too.
#[derive(Debug)]
pub struct OfSession<S>(PhantomData<S>);

impl<I, O, E, F, S> IntoEvaluator<I, O, E, OfOutput<S>> for F
where
    F: Fn(&O, &E) -> S + Send + Sync + 'static,
    S: IntoScore + 'static,
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    fn into_evaluator(self) -> BoxEvaluator<I, O, E> {
        from_fn(move |case| {
            let score = self(&case.output, &case.sample.expected).into_score();
            Box::pin(std::future::ready(score))
        })
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
        from_fn(move |case| {
            let score = self(&case.output, &case.sample.expected, &case.session).into_score();
            Box::pin(std::future::ready(score))
        })
    }
}

impl<I, O, E> IntoEvaluator<I, O, E, ()> for BoxEvaluator<I, O, E> {
    fn into_evaluator(self) -> BoxEvaluator<I, O, E> {
        self
    }
}

/// Creates an evaluator from an async function, such as one that asks a model.
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
    from_fn(move |case| {
        let judging = judge(case.clone());
        Box::pin(async move { judging.await.into_score() })
    })
}

/// Evaluator that calls a function.
struct FromFn<F>(F);

fn from_fn<I: 'static, O: 'static, E: 'static, F>(evaluate: F) -> BoxEvaluator<I, O, E>
where
    F: Fn(&Arc<Case<I, O, E>>) -> ScoreFuture<'static> + Send + Sync + 'static,
{
    BoxEvaluator::new(FromFn(evaluate))
}

impl<I, O, E, F> Evaluator<I, O, E> for FromFn<F>
where
    F: Fn(&Arc<Case<I, O, E>>) -> ScoreFuture<'static> + Send + Sync + 'static,
{
    fn evaluate<'a>(&'a self, case: &'a Arc<Case<I, O, E>>) -> ScoreFuture<'a> {
        self.0(case)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a case with an empty session.
    pub(crate) fn case<O, E>(output: O, expected: E) -> Arc<Case<(), O, E>> {
        let sample = Sample::new("7", (), expected);
        Arc::new(Case { sample, output, session: Session::default() })
    }

    /// Runs an evaluator.
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
    fn functions_score_outputs_and_may_take_the_session() {
        let same = |output: &u32, expected: &u32| output == expected;
        assert!(score(same, 7, 7).unwrap().passed);
        assert!(!score(same, 7, 8).unwrap().passed);
        let slow =
            |_: &u32, _: &u32, session: &Session| session.latency.ok_or("no latency").map(|_| true);
        assert_eq!(score(slow, 7, 7).unwrap_err(), "no latency");
    }

    #[test]
    fn a_judge_can_wait_and_fail() {
        let judging = judge(|case: Arc<Case<(), u32, u32>>| async move {
            tokio::task::yield_now().await;
            case.output.checked_sub(case.sample.expected).ok_or("too small").map(|more| more == 0)
        });
        assert!(score(judging.clone(), 7, 7).unwrap().passed);
        assert!(!score(judging.clone(), 8, 7).unwrap().passed);
        assert_eq!(score(judging, 6, 7).unwrap_err(), "too small");
    }

    #[test]
    fn a_score_outside_of_0_to_1_is_an_error() {
        let wild = |_: &u32, _: &u32| Score::graded(f64::NAN, 0.0);
        assert!(score(wild, 7, 7).unwrap_err().contains("not from 0 to 1"));
    }
}
