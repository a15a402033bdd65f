//! Eval runs over Pillarbox: the samples of a dataset are sent to any number of workers, their results are collected
//! from one mailbox, and a report shows scores and comparisons.
//!
//! ```text
//!                                ┌─ eval loop: adapter, evaluator ─┐
//!  dataset ── submit ──► requests┼─ eval loop                      ┼─► results of the run ── collect ──► report
//!                                └─ eval loop                      ┘
//! ```
//!
//! | to find | look at |
//! |---|---|
//! | where to start | [`EvalLoop`], [`submit_dataset`], [`collect_results`] |
//! | samples, from JSON lines | [`Dataset`], [`Sample`] |
//! | evaluators | [`IntoEvaluator`], [`exact_match`], [`json_subset`], [`judge`], [`all_of`] |
//! | variants to compare | [`Experiment`], [`submit_experiments`] |
//! | a run that survives its process | [`EvalRun`] |
//! | reports: table, JSON, JUnit, HTML | [`EvalReport`] |
//! | evals of a plain main loop | [`submit_inputs`], [`collect_outputs`] |
//!
//! Three things hold whichever process dies: every sample is in the report, with its result or as missing; no sample is
//! counted twice; and a collected result is never computed again.

#![cfg_attr(docsrs, feature(doc_cfg))]

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
pub use run::{EvalRun, FilePermissions, Progress, Resubmit, ScoredBy};
pub use score::{IntoScore, Score};
pub use steps::{RecordSteps, Step};
pub use submit::{Submitted, submit_dataset, submit_experiments, submit_inputs};
