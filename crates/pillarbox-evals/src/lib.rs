//! Eval runs over Pillarbox: the samples of a dataset go to any number of workers, their results come back to one
//! mailbox, and a report says how good what was evaluated is.
//!
//! ```text
//!                                ┌─ eval loop: adapter, evaluator ─┐
//!  dataset ── submit ──► requests┼─ eval loop                      ┼─► results of the run ── collect ──► report
//!                                └─ eval loop                      ┘
//! ```
//!
//! | to find | look at |
//! |---|---|
//! | how to begin | [`EvalLoop`], [`submit_dataset`], [`collect_results`] |
//! | samples, from lines of JSON | [`Dataset`], [`Sample`] |
//! | who judges outputs | [`IntoEvaluator`], [`exact_match`], [`json_subset`], [`judge`], [`all_of`] |
//! | variants that are compared | [`Experiment`], [`submit_experiments`] |
//! | a run that survives the process, and is gone on with | [`EvalRun`] |
//! | what came out: tables, JSON, JUnit, a web page | [`EvalReport`] |
//! | main loops that know of no eval | [`submit_inputs`], [`collect_outputs`] |
//!
//! Three things hold whatever dies: every sample is in the report, with a result or as one that has none; none is
//! counted twice; and what was collected is never paid for again.

mod collect;
mod dataset;
mod error;
mod eval_loop;
mod evaluator;
mod experiment;
mod message;
mod report;
mod result;
mod run;
mod score;
mod steps;
mod submit;

pub use collect::{Collect, collect_outputs, collect_results};
pub use dataset::{BadLine, Dataset, DatasetError, Sample};
pub use error::{EvalError, Result};
pub use eval_loop::EvalLoop;
pub use evaluator::{
    BoxEvaluator, Case, Evaluator, Evaluators, IntoEvaluator, Number, OfOutput, OfSession, Session,
    Text, all_of, any_of, contains, exact_match, json_subset, judge, numeric_close, regex,
};
pub use experiment::Experiment;
pub use message::{EvalRequest, EvalRequests, Scored};
pub use report::{
    Comparison, Difference, EvalReport, ExperimentReport, FailedSample, Latency, SampleReport,
    Tally,
};
pub use result::{EvalResult, Status};
pub use run::{Again, EvalRun, FilePermissions, Progress, ScoredBy};
pub use score::{IntoScore, Score};
pub use steps::{RecordSteps, Step};
pub use submit::{Submitted, submit_dataset, submit_experiments, submit_inputs};
