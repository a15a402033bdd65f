//! A run: what was sent, what came back, kept where it survives the process.
//!
//! | to find | look at |
//! |---|---|
//! | which result of a sample counts | `slots.rs` |
//! | what is kept, and how a killed process is made up for | `lines.rs`, and the table below |
//!
//! A directory holds:
//!
//! | file | what it is | written |
//! |---|---|---|
//! | `run.json` | the id, the experiments, the dataset's fingerprint | as a whole, and then put in place |
//! | `samples.jsonl` | the samples | once, with the first submission |
//! | `sent.jsonl` | which samples were sent, in ranges | after each batch is stored |
//! | `results.jsonl` | the results, as they came | before they are acknowledged |
//! | `strays.jsonl` | what came and is no result of this run | before it is acknowledged |
//! | `lock` | locked by the process that has the run open | |

pub(crate) mod lines;
mod mode;
pub(crate) mod slots;

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pillarbox_core::{BodyEncoding, Mailboxes, MessageId, Timestamp};
use pillarbox_runtime::{MainLoopResult, RemoteError, RemoteErrorKind, Uuid};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::lines::{Access, Lines};
use self::mode::Mode;
use self::slots::{Index, Light, Slots, request_id};
use crate::dataset::{Dataset, Sample};
use crate::error::{EvalError, Result};
use crate::experiment::Experiment;
use crate::report::EvalReport;
use crate::result::{EvalResult, Status};

/// The samples of a dataset, for each of some experiments: which were sent, and what came back.
///
/// In a directory it survives the process: who opens it again goes on where the last one ended. What was sent is
/// not sent again, what was collected is not paid for again.
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
    about: About,
    /// Where each sample is, and its id.
    samples: Vec<(Box<str>, u64)>,
    pub(crate) slots: Slots,
    sample_lines: Lines,
    sent_lines: Lines,
    result_lines: Lines,
    stray_lines: Lines,
    strays: usize,
    /// Where it is kept, if it is.
    home: Option<PathBuf>,
}

/// What `run.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct About {
    /// The form of the files, which is this one.
    format: u32,
    run_id: String,
    created_at: Timestamp,
    /// The queue that the samples were sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requests: Option<String>,
    /// What kind of backend that is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    #[serde(default)]
    scored_by: ScoredBy,
    /// Who judges, if whoever collects has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evaluator: Option<String>,
    experiments: Vec<Experiment>,
    samples: usize,
    /// Of all samples, with all that they hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<Uuid>,
}

const FORMAT: u32 = 1;

/// Who judges the outputs of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScoredBy {
    /// The workers: they run an [`EvalLoop`](crate::EvalLoop).
    #[default]
    Workers,
    /// Whoever collects the run: the workers run a main loop that knows of no eval.
    Collector,
}

/// Who may read and write the files of a new run, which hold inputs and outputs. Where files have no such permissions,
/// nothing changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilePermissions {
    /// Their owner alone: mode 0600.
    #[default]
    Private,
    /// As the umask of the process says: mode 0666 without the bits of the umask.
    Umask,
}

/// Which samples are to be submitted once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Again {
    /// Those that were sent, and whose result has not come: their requests may be lost. If they are not, they are
    /// paid for twice.
    Missing,
    /// Those that are dead letters.
    Died,
    /// Those whose result has no score: failed or dead.
    Unscored,
    /// Those with a result that did not pass, whatever the reason.
    NotPassed,
}

/// A line of `sent.jsonl`.
#[derive(Serialize, Deserialize)]
struct Sent {
    round: u32,
    ranges: Vec<(Index, Index)>,
}

impl EvalRun {
    /// A run that is gone when the program ends: for tests, and for what costs nothing.
    pub fn in_memory() -> Self {
        Self {
            about: About::new(),
            samples: Vec::new(),
            slots: Slots::default(),
            sample_lines: Lines::in_memory(),
            sent_lines: Lines::in_memory(),
            result_lines: Lines::in_memory(),
            stray_lines: Lines::in_memory(),
            strays: 0,
            home: None,
        }
    }

    /// A new run in a directory, which is made if it is not there. Its files are for their owner alone.
    ///
    /// # Errors
    ///
    /// Where there is a run in it already.
    pub fn create(directory: impl AsRef<Path>) -> Result<Self> {
        Self::create_with(directory, FilePermissions::Private)
    }

    /// A new run whose files have these permissions, also those that it gets when it is opened again.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    pub fn create_with(directory: impl AsRef<Path>, permissions: FilePermissions) -> Result<Self> {
        let directory = directory.as_ref();
        let mode = Mode::from(permissions);
        fs::create_dir_all(directory).map_err(EvalError::file("make", directory))?;
        if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync(parent).map_err(EvalError::file("keep", parent))?;
        }
        let lock = lock(directory, mode)?;
        let path = directory.join(RUN);
        if path.exists() {
            let text = format!(
                "there is a run in {} already: open it to go on with it",
                directory.display()
            );
            return Err(EvalError::Invalid(text));
        }
        About::new().write(directory, mode)?;
        Self::load(directory, &Access::Write { lock, must_be_there: false, mode })
    }

    /// The run in a directory, to be gone on with.
    ///
    /// # Errors
    ///
    /// Where there is none, or another process has it open, or its files make no sense.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        if !directory.join(RUN).exists() {
            return Err(EvalError::Invalid(format!("there is no run in {}", directory.display())));
        }
        let mode = Mode::of(&directory.join(RUN));
        let lock = lock(directory, mode)?;
        Self::load(directory, &Access::Write { lock, must_be_there: false, mode })
    }

    /// The run in a directory, or a new one.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_or_create(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_or_create_with(directory, FilePermissions::Private)
    }

    /// The run in a directory, or a new one whose files have these permissions. Those of a run that is there keep theirs.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
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

    /// The run in a directory, to be looked at: it can be reported on, also while another process has it open, but not
    /// be gone on with.
    ///
    /// # Errors
    ///
    /// Where there is none, or its files make no sense.
    pub fn look(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        if !directory.join(RUN).exists() {
            return Err(EvalError::Invalid(format!("there is no run in {}", directory.display())));
        }
        Self::load(directory, &Access::Look)
    }

    fn load(directory: &Path, access: &Access) -> Result<Self> {
        let about = About::read(directory)?;
        let at = |name: &str| directory.join(name);
        // Once there are samples, all files are there.
        let access = match access {
            Access::Write { lock, mode, .. } => &Access::Write {
                lock: lock.clone(),
                must_be_there: about.fingerprint.is_some(),
                mode: *mode,
            },
            Access::Look => access,
        };
        let mut samples = Vec::new();
        let sample_lines = Lines::open(&at(SAMPLES), access, |place, line| {
            // What a submission that was killed has left is made anew.
            if about.fingerprint.is_some() {
                let Id { id } = serde_json::from_str(line).map_err(|error| error.to_string())?;
                samples.push((id, place));
            }
            Ok(())
        })?;
        if samples.len() != about.samples {
            return Err(EvalError::Invalid(format!(
                "{} has {} samples, and there should be {}",
                at(SAMPLES).display(),
                samples.len(),
                about.samples
            )));
        }
        let mut slots = Slots::default();
        slots.grow(about.experiments.len() * about.samples);
        let sent_lines = Lines::open(&at(SENT), access, |_, line| {
            let sent: Sent = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let mut ranges = sent.ranges.into_iter();
            ranges.try_for_each(|(start, end)| slots.sent(start..end, sent.round))
        })?;
        let mut places = Places::new(&about, &samples);
        let result_lines = Lines::open(&at(RESULTS), access, |place, line| {
            let result: EvalResult =
                serde_json::from_str(line).map_err(|error| error.to_string())?;
            let index = places.of(&result.experiment, &result.sample_id)?;
            result.check()?;
            slots.record(index, Light::of(&result, place));
            Ok(())
        })?;
        let mut strays = 0;
        let stray_lines = Lines::open(&at(STRAYS), access, |_, _| {
            strays += 1;
            Ok(())
        })?;
        Ok(Self {
            about,
            samples,
            slots,
            sample_lines,
            sent_lines,
            result_lines,
            stray_lines,
            strays,
            home: Some(directory.to_owned()),
        })
    }

    /// What it is known by.
    pub fn id(&self) -> &str {
        &self.about.run_id
    }

    /// When it was begun.
    pub fn created_at(&self) -> Timestamp {
        self.about.created_at
    }

    /// The mailbox that all its results go to, whoever works on a sample.
    pub fn address(&self) -> String {
        format!("{}{}", Mailboxes::EVAL_PREFIX, self.about.run_id)
    }

    /// The queue that its samples were sent to, if they were.
    pub fn requests(&self) -> Option<&str> {
        self.about.requests.as_deref()
    }

    /// Who judges its outputs.
    pub fn scored_by(&self) -> ScoredBy {
        self.about.scored_by
    }

    /// What it compares.
    pub fn experiments(&self) -> &[Experiment] {
        &self.about.experiments
    }

    /// Where it is kept, if it is.
    pub fn directory(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let mut progress = Progress { strays: self.strays, ..Progress::default() };
        for slot in self.slots.iter() {
            progress.total += 1;
            progress.sent += usize::from(slot.sent > 0);
            progress.awaited += usize::from(slot.is_awaited());
            if let Some(result) = slot.result {
                progress.collected += 1;
                match result.status {
                    Status::Passed => progress.passed += 1,
                    Status::NotPassed => progress.not_passed += 1,
                    Status::Failed => progress.failed += 1,
                    Status::Died => progress.died += 1,
                    Status::Missing => {}
                }
            }
        }
        progress
    }

    /// Notes by whom the outputs are judged, of a run that [is judged](ScoredBy::Collector) when it is collected.
    ///
    /// # Errors
    ///
    /// Where others were noted before: their scores would not be comparable.
    pub fn note_evaluator(&mut self, name: &str) -> Result<()> {
        match &self.about.evaluator {
            Some(known) if known == name => return Ok(()),
            Some(known) => {
                return Err(self.other(&format!("with the evaluator {known}, not {name}")));
            }
            None => {}
        }
        self.about.evaluator = Some(name.to_owned());
        match &self.home {
            Some(directory) => self.about.write(directory, Mode::of(&directory.join(RUN))),
            None => Ok(()),
        }
    }

    /// Whether there is a result of every sample, and of the last time that it was sent.
    pub fn is_complete(&self) -> bool {
        let is_done = |slot: &slots::Slot| slot.result.is_some() && !slot.is_awaited();
        self.slots.len() > 0 && self.slots.iter().all(is_done)
    }

    /// Marks samples to be sent once more: the next submission sends them. How many are marked now.
    ///
    /// Their results so far count until there are others. A sample whose result is still to come is on its way, and
    /// is marked only by [`Again::Missing`]. Marks are not kept in the directory.
    pub fn again(&mut self, which: Again) -> usize {
        self.slots.again(|status| match (which, status) {
            (Again::Missing, status) => status.is_none(),
            // It is on its way.
            (_, None) => false,
            (Again::Died, Some(status)) => status == Status::Died,
            (Again::Unscored, Some(status)) => !status.is_scored(),
            (Again::NotPassed, Some(status)) => status != Status::Passed,
        })
    }

    /// The results that count, in the order of experiments and samples.
    pub fn results(&self) -> impl Iterator<Item = Result<EvalResult>> {
        self.slots.iter().filter_map(|slot| slot.result).map(|light| self.result(light))
    }

    /// What is known by now.
    ///
    /// # Errors
    ///
    /// Where its files cannot be read.
    pub fn report(&self) -> Result<EvalReport> {
        EvalReport::of(self)
    }

    /// The whole of a result.
    pub(crate) fn result(&self, light: Light) -> Result<EvalResult> {
        parse(&self.result_lines.get(light.place)?, "result")
    }

    /// How many samples there are.
    pub(crate) fn sample_count(&self) -> usize {
        self.about.samples
    }

    pub(crate) fn sample_id(&self, index: Index) -> &str {
        &self.samples[index % self.about.samples].0
    }

    pub(crate) fn experiment(&self, index: Index) -> &Experiment {
        &self.about.experiments[index / self.about.samples]
    }

    /// A sample, as what it was.
    pub(crate) fn sample<I, E>(&self, index: Index) -> Result<Sample<I, E>>
    where
        Sample<I, E>: serde::de::DeserializeOwned,
    {
        let (_, place) = self.samples[index % self.about.samples];
        parse(&self.sample_lines.get(place)?, "sample")
    }

    pub(crate) fn request_id(&self, index: Index, round: u32) -> Uuid {
        let experiment = &self.experiment(index).name;
        request_id(&self.about.run_id, experiment, self.sample_id(index), round)
    }

    /// Takes the dataset in, or makes sure that it is the one that the run was begun with; the same for everything
    /// else that is said once. Further experiments may come.
    pub(crate) async fn begin<I: Serialize, E: Serialize>(
        &mut self,
        dataset: &Dataset<I, E>,
        experiments: &[Experiment],
        (requests, backend): (&str, &str),
        scored_by: ScoredBy,
    ) -> Result<()> {
        if self.sample_lines.is_read_only() {
            return Err(EvalError::Invalid("the run was opened to be looked at".to_owned()));
        }
        let mut about = self.about.clone();
        about.add(experiments)?;
        let mut lines = Vec::with_capacity(dataset.len());
        let mut fingerprint = String::new();
        for sample in dataset {
            // By way of a value: what has no order of its own, such as a `HashMap`, is in that of the names then.
            let line = serde_json::to_value(sample).map(|sample| sample.to_string());
            let line = line.map_err(|error| {
                EvalError::Invalid(format!("sample {:?} is no JSON: {error}", sample.id))
            })?;
            fingerprint = MessageId::from_key(&format!("{fingerprint}\n{line}")).to_string();
            lines.push(line);
        }
        let fingerprint = fingerprint.parse().ok();
        match self.about.fingerprint {
            Some(_) if self.about.fingerprint != fingerprint => {
                return Err(self.other("with another dataset: a run has one"));
            }
            Some(_) if self.requests() != Some(requests) => {
                let queue = self.requests().unwrap_or_default();
                return Err(self.other(&format!("on queue {queue:?}, not {requests:?}")));
            }
            Some(_) if self.about.backend.as_deref().is_some_and(|known| known != backend) => {
                let known = self.about.backend.as_deref().unwrap_or_default();
                return Err(self.other(&format!("on {known}, not {backend}")));
            }
            Some(_) if self.about.scored_by != scored_by => {
                let who = match self.about.scored_by {
                    ScoredBy::Workers => "whose outputs are judged by the workers",
                    ScoredBy::Collector => "whose outputs are judged when they are collected",
                };
                return Err(self.other(&format!("as one {who}")));
            }
            Some(_) => {}
            None => {
                // From a submission that was killed before it was noted.
                self.sample_lines.clear()?;
                let places = self.sample_lines.append(lines).await?;
                let ids = dataset.iter().map(|sample| sample.id.clone().into_boxed_str());
                self.samples = ids.zip(places).collect();
                about.samples = dataset.len();
                about.fingerprint = fingerprint;
                about.requests = Some(requests.to_owned());
                about.backend = Some(backend.to_owned());
                about.scored_by = scored_by;
            }
        }
        if let Some(directory) = self.home.as_deref().filter(|_| about != self.about) {
            about.write(directory, Mode::of(&directory.join(RUN)))?;
        }
        self.about = about;
        self.slots.grow(self.about.experiments.len() * self.about.samples);
        Ok(())
    }

    fn other(&self, text: &str) -> EvalError {
        EvalError::Invalid(format!("run {} was begun {text}", self.about.run_id))
    }

    /// Notes that samples were sent.
    pub(crate) async fn note_sent(&mut self, sorted: &[Index], round: u32) -> Result<()> {
        if sorted.is_empty() {
            return Ok(());
        }
        let ranges = slots::ranges(sorted);
        let sent =
            Sent { round, ranges: ranges.iter().map(|range| (range.start, range.end)).collect() };
        self.sent_lines.append(vec![written(&sent)?]).await?;
        for range in ranges {
            self.slots.sent(range, round).map_err(EvalError::Invalid)?;
        }
        Ok(())
    }

    /// The result of a sample that nobody worked on to the end.
    pub(crate) fn failed(&self, index: Index, round: u32, text: String) -> EvalResult {
        let error = RemoteError::new(RemoteErrorKind::Failed, text);
        let answer = MainLoopResult::new(self.request_id(index, round), Err(error));
        EvalResult::new(&self.experiment(index).name, self.sample_id(index), round, answer)
    }

    /// Keeps results, and what came and is none.
    pub(crate) async fn keep(
        &mut self,
        results: Vec<(Index, EvalResult)>,
        strays: Vec<Stray>,
    ) -> Result<()> {
        if !strays.is_empty() {
            let lines = strays.iter().map(written).collect::<Result<_>>()?;
            self.stray_lines.append(lines).await?;
            self.strays += strays.len();
        }
        if results.is_empty() {
            return Ok(());
        }
        let lines = results.iter().map(|(_, result)| written(result)).collect::<Result<_>>()?;
        let places = self.result_lines.append(lines).await?;
        for ((index, result), place) in results.iter().zip(places) {
            self.slots.record(*index, Light::of(result, place));
        }
        Ok(())
    }
}

/// A message in the mailbox of a run that is no result of it: a line of `strays.jsonl`.
#[derive(Debug, Serialize)]
pub(crate) struct Stray {
    pub(crate) message_id: MessageId,
    pub(crate) reason: String,
    pub(crate) body_encoding: BodyEncoding,
    pub(crate) body: Box<RawValue>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// How many samples there are, each counted once for each experiment.
    pub total: usize,
    /// How many were sent.
    pub sent: usize,
    /// How many results are still to come.
    pub awaited: usize,
    /// How many have a result.
    pub collected: usize,
    /// How many of those passed.
    pub passed: usize,
    /// How many did not.
    pub not_passed: usize,
    /// How many have no score since something failed.
    pub failed: usize,
    /// How many are dead letters.
    pub died: usize,
    /// How many messages came that are no results of this run.
    pub strays: usize,
}

const RUN: &str = "run.json";
const SAMPLES: &str = "samples.jsonl";
const SENT: &str = "sent.jsonl";
const RESULTS: &str = "results.jsonl";
const STRAYS: &str = "strays.jsonl";

/// The id of a sample, of all that its line says.
#[derive(Deserialize)]
struct Id {
    id: Box<str>,
}

/// Where the results of samples go.
struct Places<'a> {
    about: &'a About,
    samples: std::collections::HashMap<&'a str, usize>,
}

impl<'a> Places<'a> {
    fn new(about: &'a About, samples: &'a [(Box<str>, u64)]) -> Self {
        let samples = samples.iter().take(about.samples).enumerate();
        Self { about, samples: samples.map(|(place, (id, _))| (&**id, place)).collect() }
    }

    fn of(&mut self, experiment: &str, sample_id: &str) -> Result<Index, String> {
        let mut experiments = self.about.experiments.iter();
        let experiment = experiments
            .position(|one| one.name == experiment)
            .ok_or_else(|| format!("there is no experiment {experiment:?}"))?;
        let sample = self.samples.get(sample_id);
        let sample = sample.ok_or_else(|| format!("there is no sample {sample_id:?}"))?;
        Ok(experiment * self.about.samples + sample)
    }
}

impl About {
    fn new() -> Self {
        let created_at = Timestamp::now();
        let unique = MessageId::new().as_uuid().simple().to_string();
        // 2026-11-17T08:15:00.123Z: the digits up to the seconds.
        let text = created_at.to_string();
        let time: String = text.chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
        // Of the random digits: the last four are the same for ids that a thread makes one after the other.
        let run_id = format!("{time}-{}", &unique[22..28]);
        Self {
            format: FORMAT,
            run_id,
            created_at,
            requests: None,
            backend: None,
            scored_by: ScoredBy::default(),
            evaluator: None,
            experiments: Vec::new(),
            samples: 0,
            fingerprint: None,
        }
    }

    /// Adds those experiments that it does not have.
    fn add(&mut self, experiments: &[Experiment]) -> Result<()> {
        Experiment::check(experiments)?;
        for experiment in experiments {
            match self.experiments.iter().find(|known| known.name == experiment.name) {
                Some(known) if known == experiment => {}
                Some(_) => {
                    return Err(EvalError::Invalid(format!(
                        "run {} has another experiment called {:?}: give this one another name",
                        self.run_id, experiment.name
                    )));
                }
                None => self.experiments.push(experiment.clone()),
            }
        }
        Ok(())
    }

    fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(RUN);
        let text = fs::read_to_string(&path).map_err(EvalError::file("read", &path))?;
        let about: Self = serde_json::from_str(&text).map_err(|error| {
            EvalError::Invalid(format!("{} does not describe a run: {error}", path.display()))
        })?;
        if about.format != FORMAT {
            let (other, path) = (about.format, path.display());
            let text = format!("{path} is of format {other}, and this version reads {FORMAT}");
            return Err(EvalError::Invalid(text));
        }
        Ok(about)
    }

    /// Puts it in place as a whole.
    fn write(&self, directory: &Path, mode: Mode) -> Result<()> {
        let (path, new) = (directory.join(RUN), directory.join("run.json.new"));
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| EvalError::Invalid(format!("the run is no JSON: {error}")))?;
        let write = || {
            let mut file = mode.create(&new)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync(directory)
        };
        write().map_err(EvalError::file("write", &path))
    }
}

/// Sees to it that the names in a directory are on the disk.
fn sync(directory: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    let _ = directory;
    Ok(())
}

/// Takes the run for this process, for as long as the file is open.
fn lock(directory: &Path, mode: Mode) -> Result<Arc<File>> {
    let path = directory.join("lock");
    let file = mode.options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(EvalError::file("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Arc::new(file)),
        Err(TryLockError::WouldBlock) => Err(EvalError::Invalid(format!(
            "the run in {} is open in another process: wait for it, or stop it",
            directory.display()
        ))),
        Err(TryLockError::Error(error)) => Err(EvalError::file("lock", path)(error)),
    }
}

fn written(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| EvalError::Invalid(format!("a line cannot be written: {error}")))
}

fn parse<T: serde::de::DeserializeOwned>(line: &str, what: &str) -> Result<T> {
    serde_json::from_str(line).map_err(|error| {
        EvalError::Invalid(format!("a {what} cannot be read as it should be: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Two runs with one id would take each other's results.
    #[test]
    fn runs_that_are_created_in_the_same_second_have_ids_of_their_own() {
        let suffix = |run_id: String| run_id.rsplit('-').next().map(str::to_owned);
        let ids: BTreeSet<_> = (0..10_000).map(|_| suffix(About::new().run_id)).collect();
        // Of 10,000 that are random, some three are the same.
        assert!(ids.len() > 9_900, "{}", ids.len());
    }
}
