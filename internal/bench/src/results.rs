//! The file with the results of a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pillarbox_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::chart::Chart;
use crate::measure::{Plan, Result, micros};
use crate::place;
use crate::process::machine_bytes;
use crate::report::Row;

/// The version of the file format. Other versions are rejected.
const FORMAT: u32 = 2;

/// The results of a run, and the machine it ran on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Results {
    format: u32,
    pub(crate) machine: Machine,
    /// Whether counts were small, so that the figures mean little.
    pub(crate) quick: bool,
    /// The number of rounds per median.
    pub(crate) rounds: usize,
    pub(crate) charts: Vec<Chart>,
    pub(crate) rows: Vec<Row>,
}

/// The machine and the versions that figures depend on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The day, as `2026-11-17`.
    pub(crate) day: String,
    pub(crate) processors: usize,
    pub(crate) memory_gib: u64,
    /// The duration of a 4 KiB write with fsync.
    pub(crate) sync_us: f64,
    /// The version that `redis-server --version` prints.
    pub(crate) redis: String,
    pub(crate) pillarbox: String,
}

impl Results {
    /// Empty results of this machine.
    pub(crate) fn of_this_machine(plan: &Plan) -> Result<Self> {
        let redis = Command::new("redis-server").arg("--version").output();
        let redis = redis.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let redis = redis.ok().and_then(|text| {
            let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
            version.map(str::to_owned)
        });
        let today = Timestamp::now().to_string();
        let machine = Machine {
            day: today.chars().take(10).collect(),
            processors: std::thread::available_parallelism()?.get(),
            memory_gib: (machine_bytes()? + (1 << 29)) >> 30,
            sync_us: micros(place::sync_time()?),
            redis: redis.unwrap_or_else(|| "none".to_owned()),
            pillarbox: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let (quick, rounds) = (plan.pick(false, true), plan.rounds());
        Ok(Self { format: FORMAT, machine, quick, rounds, charts: Vec::new(), rows: Vec::new() })
    }

    #[cfg(test)]
    pub(crate) fn of(charts: Vec<Chart>) -> Self {
        let (day, redis, pillarbox) = Default::default();
        let machine =
            Machine { day, processors: 2, memory_gib: 24, sync_us: 100.0, redis, pillarbox };
        Self { format: FORMAT, machine, quick: false, rounds: 3, charts, rows: Vec::new() }
    }

    /// Merges several files. A suite or chart that is in two of them is taken from the later.
    pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Self> {
        let mut all = Vec::new();
        for path in paths {
            all.push(Self::read(path)?);
        }
        let together = all.into_iter().reduce(|mut together, later| {
            together.quick |= later.quick;
            together.rounds = together.rounds.min(later.rounds);
            together.charts.retain(|chart| later.charts.iter().all(|other| other.id != chart.id));
            together.rows.retain(|row| later.rows.iter().all(|other| other.suite != row.suite));
            together.charts.extend(later.charts);
            together.rows.extend(later.rows);
            together
        });
        together.ok_or_else(|| "there are no results".into())
    }

    fn read(path: &Path) -> Result<Self> {
        let place = path.display();
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {place}: {error}"))?;
        let results: Self = serde_json::from_str(&text)
            .map_err(|error| format!("{place} is not a file of results: {error}"))?;
        if results.format != FORMAT {
            let format = results.format;
            return Err(
                format!("{place} is of format {format}, this program reads {FORMAT}").into()
            );
        }
        Ok(results)
    }

    /// Replaces the file. If that fails, the old file stays.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let place = path.display();
        let failed = |error: std::io::Error| format!("cannot write {place}: {error}");
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let part = path.with_extension("part");
        fs::write(&part, serde_json::to_string_pretty(self)? + "\n").map_err(failed)?;
        Ok(fs::rename(&part, path).map_err(failed)?)
    }
}
