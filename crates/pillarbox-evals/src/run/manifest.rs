//! `run.json`: what holds for the whole of a run.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use pillarbox_core::{MessageId, Timestamp};
use pillarbox_runtime::loops::Uuid;
use serde::{Deserialize, Serialize};

use super::permissions::Mode;
use crate::error::{EvalError, Result};
use crate::experiment::Experiment;

/// Name of the file.
pub(super) const RUN: &str = "run.json";

/// Contents of `run.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Version of the file formats.
    format: u32,
    pub(super) run_id: String,
    pub(super) created_at: Timestamp,
    /// Queue that the samples were sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) requests: Option<String>,
    /// Kind of backend that the queue is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backend: Option<String>,
    #[serde(default)]
    pub(super) scored_by: ScoredBy,
    /// Name of the evaluator, if the collector has recorded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) evaluator: Option<String>,
    pub(super) experiments: Vec<Experiment>,
    pub(super) samples: usize,
    /// Hash of all samples with their contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fingerprint: Option<Uuid>,
}

const FORMAT: u32 = 1;

/// Where the outputs of a run are scored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScoredBy {
    /// In the workers, which run an [`EvalLoop`](crate::EvalLoop).
    #[default]
    Workers,
    /// In the process that collects the run: the workers run a plain main loop.
    Collector,
}

impl Manifest {
    pub(super) fn new() -> Self {
        let created_at = Timestamp::now();
        let unique = MessageId::new().as_uuid().simple().to_string();
        // 2026-11-17T08:15:00.123Z: the digits up to the seconds.
        let text = created_at.to_string();
        let time: String = text.chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
        // From the random digits: the last four are equal for ids that one thread makes in a row.
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

    /// Adds the experiments that the run does not have yet.
    pub(super) fn add(&mut self, experiments: &[Experiment]) -> Result<()> {
        Experiment::check(experiments)?;
        for experiment in experiments {
            match self.experiments.iter().find(|known| known.name == experiment.name) {
                Some(known) if known == experiment => {}
                Some(_) => {
                    return Err(EvalError::Invalid(format!(
                        "run {} has a different experiment called {:?}: give this one another name",
                        self.run_id, experiment.name
                    )));
                }
                None => self.experiments.push(experiment.clone()),
            }
        }
        Ok(())
    }

    pub(super) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(RUN);
        let text = fs::read_to_string(&path).map_err(EvalError::file("read", &path))?;
        let manifest: Self = serde_json::from_str(&text).map_err(|error| {
            EvalError::Invalid(format!("{} does not describe a run: {error}", path.display()))
        })?;
        if manifest.format != FORMAT {
            let (other, path) = (manifest.format, path.display());
            let text = format!("{path} has format {other}, but this version reads format {FORMAT}");
            return Err(EvalError::Invalid(text));
        }
        Ok(manifest)
    }

    /// Replaces the file atomically.
    pub(super) fn write(&self, directory: &Path, mode: Mode) -> Result<()> {
        let (path, new) = (directory.join(RUN), directory.join("run.json.new"));
        let text = serde_json::to_string_pretty(self).map_err(|error| {
            EvalError::Invalid(format!("the run cannot be serialized to JSON: {error}"))
        })?;
        let write = || {
            let mut file = mode.create(&new)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_directory(directory)
        };
        write().map_err(EvalError::file("write", &path))
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    let _ = directory;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Two runs with the same id would take each other's results.
    #[test]
    fn runs_that_are_created_in_the_same_second_have_ids_of_their_own() {
        let suffix = |run_id: String| run_id.rsplit('-').next().map(str::to_owned);
        let ids: BTreeSet<_> = (0..10_000).map(|_| suffix(Manifest::new().run_id)).collect();
        // Of 10,000 random suffixes, about three collide.
        assert!(ids.len() > 9_900, "{}", ids.len());
    }
}
