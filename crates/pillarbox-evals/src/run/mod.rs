//! An eval run: which samples were sent, and their results, stored in a directory.
//!
//! | to find | look at |
//! |---|---|
//! | which result of a sample counts | `sample_state.rs` |
//! | append-only files that survive a kill | `line_log.rs` |
//! | `run.json` | `manifest.rs` |
//! | file permissions | `permissions.rs` |
//!
//! A directory holds:
//!
//! | file | contents | written |
//! |---|---|---|
//! | `run.json` | the id, the experiments, the fingerprint of the dataset | atomically, as a whole |
//! | `samples.jsonl` | the samples | once, with the first submission |
//! | `sent.jsonl` | ranges of samples that were sent | after each batch is stored |
//! | `results.jsonl` | the results, in order of arrival | before they are acknowledged |
//! | `strays.jsonl` | messages that are not results of this run | before they are acknowledged |
//! | `lock` | locked by the process that has the run open | |

pub(crate) mod line_log;
mod manifest;
mod permissions;
pub(crate) mod sample_state;

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pillarbox_core::{BodyEncoding, Mailboxes, MessageId, Timestamp};
use pillarbox_runtime::loops::{MainLoopResult, RemoteError, RemoteErrorKind, Uuid};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::line_log::{Access, LineLog};
use self::manifest::{Manifest, RUN, sync_directory};
use self::permissions::Mode;
use self::sample_state::{Index, ResultSummary, SampleState, SampleStates, request_id};
use crate::dataset::{Dataset, Sample};
use crate::error::{EvalError, Result};
use crate::experiment::Experiment;
use crate::result::{EvalResult, Status};

pub use self::manifest::ScoredBy;
pub use self::permissions::FilePermissions;

/// The samples of a dataset for one or more experiments: which were sent, and their results.
///
/// A run in a directory survives its process: opening it again continues it. Samples that were sent are not
/// sent again, and collected results are not computed again.
///
/// ```no_run
/// # use pillarbox_evals::*;
/// # async fn f(requests: EvalRequests<String, String>) -> Result<(), Box<dyn std::error::Error>> {
/// let dataset = Dataset::from_file("questions.jsonl")?;
/// let mut run = EvalRun::open_or_create("runs/questions")?;
/// submit_experiments(&mut run, &requests, &dataset, &[Experiment::new("small"), Experiment::new("large")]).await?;
/// let report = collect_results(&mut run, &requests, Collect::new().progress_bar()).await?;
/// println!("{report}");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct EvalRun {
    manifest: Manifest,
    /// Id of each sample, and its position in the log.
    samples: Vec<(Box<str>, u64)>,
    pub(crate) states: SampleStates,
    sample_log: LineLog,
    sent_log: LineLog,
    result_log: LineLog,
    stray_log: LineLog,
    strays: usize,
    /// `None`: in memory.
    directory: Option<PathBuf>,
}

/// Which samples to submit again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resubmit {
    /// Samples that were sent and have no result: their requests may be lost. If they are not, the work is done
    /// twice.
    Missing,
    /// Samples that became dead letters.
    DeadLettered,
    /// Samples whose result has no score: failed or dead-lettered.
    Unscored,
    /// Samples with a result that did not pass, for any reason.
    NotPassed,
}

/// One line of `sent.jsonl`.
#[derive(Serialize, Deserialize)]
struct Sent {
    round: u32,
    ranges: Vec<(Index, Index)>,
}

impl EvalRun {
    /// Creates a run in memory, for tests and for evals that are cheap to repeat.
    pub fn in_memory() -> Self {
        Self {
            manifest: Manifest::new(),
            samples: Vec::new(),
            states: SampleStates::default(),
            sample_log: LineLog::in_memory(),
            sent_log: LineLog::in_memory(),
            result_log: LineLog::in_memory(),
            stray_log: LineLog::in_memory(),
            strays: 0,
            directory: None,
        }
    }

    /// Creates a run in a directory, which is created if needed. Its files are accessible by their owner only.
    ///
    /// # Errors
    ///
    /// If the directory has a run already.
    pub fn create(directory: impl AsRef<Path>) -> Result<Self> {
        Self::create_with(directory, FilePermissions::Private)
    }

    /// Creates a run whose files have these permissions, including files that are added later.
    ///
    /// # Errors
    ///
    /// The same as [`create`](Self::create).
    pub fn create_with(directory: impl AsRef<Path>, permissions: FilePermissions) -> Result<Self> {
        let directory = directory.as_ref();
        let mode = Mode::from(permissions);
        fs::create_dir_all(directory).map_err(EvalError::file("create", directory))?;
        if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_directory(parent).map_err(EvalError::file("sync", parent))?;
        }
        let lock = lock(directory, mode)?;
        let path = directory.join(RUN);
        if path.exists() {
            let text = format!("{} already has a run: open it to continue", directory.display());
            return Err(EvalError::Invalid(text));
        }
        Manifest::new().write(directory, mode)?;
        Self::load(directory, Access::Write { lock, must_exist: false, mode })
    }

    /// Opens the run in a directory, to continue it.
    ///
    /// # Errors
    ///
    /// If there is no run, another process has it open, or its files are invalid.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = existing(directory.as_ref())?;
        let mode = Mode::of(&directory.join(RUN));
        let lock = lock(directory, mode)?;
        Self::load(directory, Access::Write { lock, must_exist: false, mode })
    }

    /// Opens the run in a directory, or creates one.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Self::open).
    pub fn open_or_create(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_or_create_with(directory, FilePermissions::Private)
    }

    /// Opens the run in a directory, or creates one whose files have these permissions. An existing run keeps its own.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Self::open).
    pub fn open_or_create_with(
        directory: impl AsRef<Path>,
        permissions: FilePermissions,
    ) -> Result<Self> {
        let directory = directory.as_ref();
        if directory.join(RUN).exists() {
            Self::open(directory)
        } else {
            Self::create_with(directory, permissions)
        }
    }

    /// Opens the run in a directory for reports only, even while another process has it open.
    ///
    /// # Errors
    ///
    /// If there is no run, or its files are invalid.
    pub fn open_read_only(directory: impl AsRef<Path>) -> Result<Self> {
        Self::load(existing(directory.as_ref())?, Access::ReadOnly)
    }

    fn load(directory: &Path, mut access: Access) -> Result<Self> {
        let manifest = Manifest::read(directory)?;
        let path = |name: &str| directory.join(name);
        // Once there are samples, all files exist.
        if let Access::Write { must_exist, .. } = &mut access {
            *must_exist = manifest.fingerprint.is_some();
        }
        let mut samples = Vec::new();
        let sample_log = LineLog::open(&path(SAMPLES), &access, |position, line| {
            // Samples of a submission that was killed are written again.
            if manifest.fingerprint.is_some() {
                let StoredSampleId { id } =
                    serde_json::from_str(line).map_err(|error| error.to_string())?;
                samples.push((id, position));
            }
            Ok(())
        })?;
        if samples.len() != manifest.samples {
            return Err(EvalError::Invalid(format!(
                "{} has {} samples, expected {}",
                path(SAMPLES).display(),
                samples.len(),
                manifest.samples
            )));
        }
        let mut states = SampleStates::default();
        states.grow(manifest.experiments.len() * manifest.samples);
        let sent_log = LineLog::open(&path(SENT), &access, |_, line| {
            let sent: Sent = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let mut ranges = sent.ranges.into_iter();
            ranges.try_for_each(|(start, end)| states.sent(start..end, sent.round))
        })?;
        let ids: HashMap<_, _> =
            samples.iter().enumerate().map(|(index, (id, _))| (&**id, index)).collect();
        let result_log = LineLog::open(&path(RESULTS), &access, |position, line| {
            let result: EvalResult =
                serde_json::from_str(line).map_err(|error| error.to_string())?;
            let EvalResult { experiment, sample_id, .. } = &result;
            let position_of = manifest.experiments.iter().position(|one| one.name == *experiment);
            let experiment =
                position_of.ok_or_else(|| format!("there is no experiment {experiment:?}"))?;
            let sample = ids.get(&**sample_id);
            let sample = sample.ok_or_else(|| format!("there is no sample {sample_id:?}"))?;
            result.check()?;
            states.record(
                experiment * manifest.samples + sample,
                ResultSummary::of(&result, position),
            );
            Ok(())
        })?;
        let mut strays = 0;
        let stray_log = LineLog::open(&path(STRAYS), &access, |_, _| {
            strays += 1;
            Ok(())
        })?;
        Ok(Self {
            manifest,
            samples,
            states,
            sample_log,
            sent_log,
            result_log,
            stray_log,
            strays,
            directory: Some(directory.to_owned()),
        })
    }

    /// Returns the id of the run.
    pub fn id(&self) -> &str {
        &self.manifest.run_id
    }

    /// Returns the time at which the run was created.
    pub fn created_at(&self) -> Timestamp {
        self.manifest.created_at
    }

    /// Returns the reply address that all results go to.
    pub fn address(&self) -> String {
        format!("{}{}", Mailboxes::EVAL_PREFIX, self.manifest.run_id)
    }

    /// Returns the queue that the samples were sent to, if any were sent.
    pub fn requests(&self) -> Option<&str> {
        self.manifest.requests.as_deref()
    }

    /// Returns where the outputs are scored.
    pub fn scored_by(&self) -> ScoredBy {
        self.manifest.scored_by
    }

    /// Returns the experiments.
    pub fn experiments(&self) -> &[Experiment] {
        &self.manifest.experiments
    }

    /// Returns the directory of the run, or `None` if it is in memory.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Returns the number of samples in each state.
    pub fn progress(&self) -> Progress {
        let mut progress = Progress { strays: self.strays, ..Progress::default() };
        for state in self.states.iter() {
            progress.total += 1;
            progress.sent += usize::from(state.sent > 0);
            progress.awaited += usize::from(state.is_awaited());
            if let Some(result) = state.result {
                progress.collected += 1;
                match result.status {
                    Status::Passed => progress.passed += 1,
                    Status::NotPassed => progress.not_passed += 1,
                    Status::Failed => progress.failed += 1,
                    Status::DeadLettered => progress.dead_lettered += 1,
                    Status::Missing => {}
                }
            }
        }
        progress
    }

    /// Records the name of the evaluator of a run that is [scored while it is collected](ScoredBy::Collector).
    ///
    /// # Errors
    ///
    /// If another evaluator was recorded before: the scores would not be comparable.
    pub fn record_evaluator(&mut self, name: &str) -> Result<()> {
        match &self.manifest.evaluator {
            Some(known) if known == name => return Ok(()),
            Some(known) => {
                return Err(self.mismatch(&format!("with the evaluator {known}, not {name}")));
            }
            None => {}
        }
        self.manifest.evaluator = Some(name.to_owned());
        match &self.directory {
            Some(directory) => self.manifest.write(directory, Mode::of(&directory.join(RUN))),
            None => Ok(()),
        }
    }

    /// Returns whether there is a result for the last submission of every sample.
    pub fn is_complete(&self) -> bool {
        let is_done = |state: &SampleState| state.result.is_some() && !state.is_awaited();
        !self.states.is_empty() && self.states.iter().all(is_done)
    }

    /// Marks samples to be sent again by the next submission, and returns the number of marked samples.
    ///
    /// Their previous results count until new ones arrive. A sample whose result is still missing is marked only by
    /// [`Resubmit::Missing`]. Marks are not stored in the directory.
    pub fn resubmit(&mut self, which: Resubmit) -> usize {
        self.states.resubmit(|status| match (which, status) {
            (Resubmit::Missing, status) => status.is_none(),
            // Its result is still missing.
            (_, None) => false,
            (Resubmit::DeadLettered, Some(status)) => status == Status::DeadLettered,
            (Resubmit::Unscored, Some(status)) => !status.is_scored(),
            (Resubmit::NotPassed, Some(status)) => status != Status::Passed,
        })
    }

    /// Iterates over the results that count, in the order of experiments and samples.
    pub fn results(&self) -> impl Iterator<Item = Result<EvalResult>> {
        self.states.iter().filter_map(|state| state.result).map(|summary| self.result(summary))
    }

    /// Reads the whole of a result.
    pub(crate) fn result(&self, summary: ResultSummary) -> Result<EvalResult> {
        parse(&self.result_log.get(summary.position)?, "result")
    }

    pub(crate) fn sample_count(&self) -> usize {
        self.manifest.samples
    }

    pub(crate) fn sample_id(&self, index: Index) -> &str {
        &self.samples[index % self.manifest.samples].0
    }

    pub(crate) fn experiment(&self, index: Index) -> &Experiment {
        &self.manifest.experiments[index / self.manifest.samples]
    }

    /// Reads a sample.
    pub(crate) fn sample<I, E>(&self, index: Index) -> Result<Sample<I, E>>
    where
        Sample<I, E>: serde::de::DeserializeOwned,
    {
        let (_, position) = self.samples[index % self.manifest.samples];
        parse(&self.sample_log.get(position)?, "sample")
    }

    pub(crate) fn request_id(&self, index: Index, round: u32) -> Uuid {
        let experiment = &self.experiment(index).name;
        request_id(&self.manifest.run_id, experiment, self.sample_id(index), round)
    }

    /// Stores the dataset, or checks that it is the one that the run was started with; the same for the queue, the
    /// backend and the place of scoring. Experiments can be added later.
    pub(crate) async fn begin<I: Serialize, E: Serialize>(
        &mut self,
        dataset: &Dataset<I, E>,
        experiments: &[Experiment],
        (requests, backend): (&str, &str),
        scored_by: ScoredBy,
    ) -> Result<()> {
        if self.sample_log.is_read_only() {
            return Err(EvalError::Invalid("the run is open for reading only".to_owned()));
        }
        let mut manifest = self.manifest.clone();
        manifest.add(experiments)?;
        let mut lines = Vec::with_capacity(dataset.len());
        let mut fingerprint = String::new();
        for sample in dataset {
            // Through a `Value`, which sorts the keys of unordered maps such as `HashMap`.
            let line = serde_json::to_value(sample).map(|sample| sample.to_string());
            let line = line.map_err(|error| {
                EvalError::Invalid(format!(
                    "sample {:?} cannot be serialized to JSON: {error}",
                    sample.id
                ))
            })?;
            fingerprint = MessageId::from_key(&format!("{fingerprint}\n{line}")).to_string();
            lines.push(line);
        }
        let fingerprint = fingerprint.parse().ok();
        match self.manifest.fingerprint {
            Some(_) if self.manifest.fingerprint != fingerprint => {
                return Err(self.mismatch("with a different dataset: a run has one dataset"));
            }
            Some(_) if self.requests() != Some(requests) => {
                let queue = self.requests().unwrap_or_default();
                return Err(self.mismatch(&format!("on queue {queue:?}, not {requests:?}")));
            }
            Some(_) if self.manifest.backend.as_deref().is_some_and(|known| known != backend) => {
                let known = self.manifest.backend.as_deref().unwrap_or_default();
                return Err(self.mismatch(&format!("on {known}, not {backend}")));
            }
            Some(_) if self.manifest.scored_by != scored_by => {
                let who = match self.manifest.scored_by {
                    ScoredBy::Workers => "whose outputs are scored by the workers",
                    ScoredBy::Collector => "whose outputs are scored while they are collected",
                };
                return Err(self.mismatch(&format!("as one {who}")));
            }
            Some(_) => {}
            None => {
                // Left by a submission that was killed before it wrote the manifest.
                self.sample_log.clear()?;
                let positions = self.sample_log.append(lines).await?;
                let ids = dataset.iter().map(|sample| sample.id.clone().into_boxed_str());
                self.samples = ids.zip(positions).collect();
                manifest.samples = dataset.len();
                manifest.fingerprint = fingerprint;
                manifest.requests = Some(requests.to_owned());
                manifest.backend = Some(backend.to_owned());
                manifest.scored_by = scored_by;
            }
        }
        if let Some(directory) = self.directory.as_deref().filter(|_| manifest != self.manifest) {
            manifest.write(directory, Mode::of(&directory.join(RUN)))?;
        }
        self.manifest = manifest;
        self.states.grow(self.manifest.experiments.len() * self.manifest.samples);
        Ok(())
    }

    fn mismatch(&self, text: &str) -> EvalError {
        EvalError::Invalid(format!("run {} was started {text}", self.manifest.run_id))
    }

    /// Records that samples were sent.
    pub(crate) async fn record_sent(&mut self, sorted: &[Index], round: u32) -> Result<()> {
        if sorted.is_empty() {
            return Ok(());
        }
        let ranges = sample_state::ranges(sorted);
        let sent =
            Sent { round, ranges: ranges.iter().map(|range| (range.start, range.end)).collect() };
        self.sent_log.append(vec![to_line(&sent)?]).await?;
        for range in ranges {
            self.states.sent(range, round).map_err(EvalError::Invalid)?;
        }
        Ok(())
    }

    /// Returns a failed result for a sample.
    pub(crate) fn failed(&self, index: Index, round: u32, text: String) -> EvalResult {
        let error = RemoteError::new(RemoteErrorKind::Failed, text);
        let answer = MainLoopResult::new(self.request_id(index, round), Err(error));
        EvalResult::new(&self.experiment(index).name, self.sample_id(index), round, answer)
    }

    /// Stores results and strays.
    pub(crate) async fn store(
        &mut self,
        results: Vec<(Index, EvalResult)>,
        strays: Vec<Stray>,
    ) -> Result<()> {
        if !strays.is_empty() {
            let lines = strays.iter().map(to_line).collect::<Result<_>>()?;
            self.stray_log.append(lines).await?;
            self.strays += strays.len();
        }
        if results.is_empty() {
            return Ok(());
        }
        let lines = results.iter().map(|(_, result)| to_line(result)).collect::<Result<_>>()?;
        let positions = self.result_log.append(lines).await?;
        for ((index, result), position) in results.iter().zip(positions) {
            self.states.record(*index, ResultSummary::of(result, position));
        }
        Ok(())
    }
}

/// Message in the mailbox of a run that is not a result of it: one line of `strays.jsonl`.
#[derive(Debug, Serialize)]
pub(crate) struct Stray {
    pub(crate) message_id: MessageId,
    pub(crate) reason: String,
    pub(crate) body_encoding: BodyEncoding,
    pub(crate) body: Box<RawValue>,
}

/// Progress of a run, in numbers of samples. A sample counts once per experiment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// All samples.
    pub total: usize,
    /// Samples that were sent.
    pub sent: usize,
    /// Samples that were sent and whose result is still missing.
    pub awaited: usize,
    /// Samples with a result.
    pub collected: usize,
    /// Samples that passed.
    pub passed: usize,
    /// Samples that were scored and did not pass.
    pub not_passed: usize,
    /// Samples without a score because the adapter or the evaluator failed.
    pub failed: usize,
    /// Samples that became dead letters.
    pub dead_lettered: usize,
    /// Number of messages that are not results of this run.
    pub strays: usize,
}

const SAMPLES: &str = "samples.jsonl";
const SENT: &str = "sent.jsonl";
const RESULTS: &str = "results.jsonl";
const STRAYS: &str = "strays.jsonl";

/// The id of a sample, without the rest of its line.
#[derive(Deserialize)]
struct StoredSampleId {
    id: Box<str>,
}

/// Rejects a directory without a run.
fn existing(directory: &Path) -> Result<&Path> {
    if !directory.join(RUN).exists() {
        return Err(EvalError::Invalid(format!("there is no run in {}", directory.display())));
    }
    Ok(directory)
}

/// Locks the run for this process until the file is closed.
fn lock(directory: &Path, mode: Mode) -> Result<Arc<File>> {
    let path = directory.join("lock");
    let file = mode.options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(EvalError::file("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Arc::new(file)),
        Err(TryLockError::WouldBlock) => Err(EvalError::Invalid(format!(
            "the run in {} is open in another process: wait until that ends, or stop it",
            directory.display()
        ))),
        Err(TryLockError::Error(error)) => Err(EvalError::file("lock", path)(error)),
    }
}

fn to_line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        EvalError::Invalid(format!("a line cannot be serialized to JSON: {error}"))
    })
}

fn parse<T: serde::de::DeserializeOwned>(line: &str, what: &str) -> Result<T> {
    serde_json::from_str(line)
        .map_err(|error| EvalError::Invalid(format!("a {what} cannot be parsed: {error}")))
}
