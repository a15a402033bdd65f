//! Benchmarks of Pillarbox against its peers and against physical limits.
//!
//! A suite is a subcommand and a folder: `memory` is `src/memory/`. What all of them share is
//! beside it:
//!
//! | to find | look at |
//! |---|---|
//! | how contestants take turns, and which figure counts | `measure`; for charts `chart` |
//! | rows, units, the ratio, the table and the JSON lines | `report` |
//! | the progress bar | `progress` |
//! | the file of results, and the page and charts generated from it | `results`, `page` |
//! | medians by name, and the quotes of other pages | `figures` |
//! | whether the targets are met | `verdict` |
//! | bodies, and callers that send at the same time | `load` |
//! | callers that send, receive and acknowledge in batches | `cycles`, by ours `ours` |
//! | peers that are programs of their own, and their servers | `peers` |
//! | jobs and a worker of apalis, on a disk or a server | `apalis` |
//! | where files are | `place` |
//! | a backend of each kind, as users have it | `store` |
//! | measurements that need a process of their own | `process` |
//! | whether every message arrived | `tally` |
//! | how many servers a load needs, by the costs measured | `plan` |
//!
//! Build with `--release`; figures of a debug build mean nothing.

mod apalis;
mod chart;
mod cluster;
mod curves;
mod cycles;
mod evals;
mod figures;
mod load;
mod loops;
mod measure;
mod memory;
mod ours;
mod page;
mod peers;
mod place;
mod plan;
mod process;
mod progress;
mod redis;
mod report;
mod results;
mod runtime;
mod sqlite;
mod store;
mod tally;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::figures::Figures;
use crate::measure::{Plan, Result};
use crate::report::{RATIO, Report};
use crate::results::Results;

/// Benchmarks of Pillarbox, its peers, and limits.
#[derive(Debug, Parser)]
#[command(after_help = RATIO)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run several suites and write their results to a file.
    #[command(after_help = RATIO)]
    All {
        /// The suites to run.
        #[arg(long, value_delimiter = ',', default_values_t = Suite::USUAL)]
        suites: Vec<Suite>,
        /// The file for the results, as JSON.
        #[arg(long, default_value = "target/bench/results.json")]
        out: PathBuf,
        #[command(flatten)]
        amount: Amount,
    },
    /// Write the page and the charts from one or more files of results of the same machine.
    Page {
        /// Files written by `all`.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// The directory for `benchmarks.md`, `benchmarks.json` and, in `pictures/`, the charts.
        #[arg(long, default_value = "docs")]
        to: PathBuf,
        /// A README whose benchmark block is replaced. The figures that other pages of the directory quote are replaced too.
        #[arg(long)]
        readme: Option<PathBuf>,
    },
    /// Print whether the targets of the project are met, from one or more files of results.
    Verdict {
        /// Files written by `all`.
        #[arg(required = true)]
        results: Vec<PathBuf>,
    },
    /// Throughput and latency by callers, cost by backlog and queues, throughput by workers.
    ///
    /// On every backend, with limits and peers.
    Curves(Options),
    /// The memory backend compared with capp-queue, apalis and a Tokio channel.
    #[command(after_help = RATIO)]
    Memory(Options),
    /// The SQLite backend compared with an append-only log, and with itself under easier conditions.
    ///
    /// Files are in PILLARBOX_BENCH_DIR, or else in the directory for temporary files. It should be on a disk
    /// with 2 GB free.
    #[command(after_help = RATIO)]
    Sqlite(Options),
    /// The Redis backend compared with plain commands, BullMQ, apalis-redis and a mailbox of Lua scripts.
    ///
    /// Starts its own servers on this machine. Peers that are not installed are skipped.
    #[command(after_help = RATIO)]
    Redis(Options),
    /// Redis queues with partitions on a cluster compared with queues on one server: the inputs of `plan`.
    ///
    /// Starts up to six servers at a time on this machine and needs 2 GB of memory.
    #[command(after_help = RATIO)]
    Cluster(Options),
    /// The worker runtime compared with plain receive loops, capp's runtime and apalis workers.
    ///
    /// On every backend, with the files of the SQLite suite and the servers of the Redis suite.
    #[command(after_help = RATIO)]
    Runtime(Options),
    /// Requests to a main loop compared with the mailbox operations that they consist of.
    ///
    /// On every backend, like the runtime suite.
    #[command(after_help = RATIO)]
    Loops(Options),
    /// Eval runs, from samples to a report, compared with the main loop that they run on.
    ///
    /// On every backend, like the runtime suite.
    #[command(after_help = RATIO)]
    Evals(Options),
    /// Estimate how many servers a load needs, from the measured cost of one message.
    ///
    /// docs/capacity-planning.md describes the model and its limits.
    Plan(Box<plan::Plan>),
    /// One measurement of the memory suite that needs a process of its own.
    #[command(hide = true, subcommand)]
    MemoryChild(memory::Child),
    /// One process of the SQLite suite.
    #[command(hide = true, subcommand)]
    SqliteChild(sqlite::Child),
    /// One measurement of the runtime suite that needs a process of its own.
    #[command(hide = true, subcommand)]
    RuntimeChild(runtime::Child),
    /// One measurement of the evals suite that needs a process of its own.
    #[command(hide = true, subcommand)]
    EvalsChild(evals::Child),
}

/// Options of every suite.
#[derive(Debug, Args)]
struct Options {
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    amount: Amount,
}

/// The amount of work.
#[derive(Debug, Args)]
struct Amount {
    /// Run small counts to check that everything works. The figures mean little.
    #[arg(long)]
    quick: bool,
    /// The number of rounds per median [default: 5, or 3 with --quick].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Run only the cases whose names contain this text.
    #[arg(long)]
    only: Option<String>,
}

impl Amount {
    fn plan(self) -> Plan {
        if cfg!(debug_assertions) {
            eprintln!("warning: this is a debug build; run with --release");
        }
        Plan::new(self.quick, self.rounds, self.only)
    }
}

/// A suite by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    Curves,
    Memory,
    Sqlite,
    Redis,
    Runtime,
    Loops,
    Evals,
    Cluster,
}

impl Suite {
    /// Suites that need at most one server at a time.
    const USUAL: [Self; 7] = [
        Self::Curves,
        Self::Memory,
        Self::Sqlite,
        Self::Redis,
        Self::Runtime,
        Self::Loops,
        Self::Evals,
    ];

    fn run(self, plan: &Plan, report: &mut Report) -> Result<()> {
        match self {
            Self::Curves => curves::run(plan, report),
            Self::Memory => memory::run(plan, report),
            Self::Sqlite => sqlite::run(plan, report),
            Self::Redis => redis::run(plan, report),
            Self::Runtime => runtime::run(plan, report),
            Self::Loops => loops::run(plan, report),
            Self::Evals => evals::run(plan, report),
            Self::Cluster => cluster::run(plan, report),
        }
    }
}

impl std::fmt::Display for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::All { suites, out, amount } => all(&suites, &out, &amount.plan()),
        Command::Page { results, to, readme } => {
            let results = Results::read_all(&results)?;
            let Some(readme) = readme else { return page::write(&results, &to) };
            // First, because it fails if a suite was not run whose figures are quoted.
            page::requote(&results, &to)?;
            page::summarise(&results, &readme)?;
            page::write(&results, &to)
        }
        Command::Verdict { results } => {
            print!("{}", verdict::table(&Figures::of(&Results::read_all(&results)?)));
            Ok(())
        }
        Command::Curves(options) => one(Suite::Curves, options),
        Command::Memory(options) => one(Suite::Memory, options),
        Command::Sqlite(options) => one(Suite::Sqlite, options),
        Command::Redis(options) => one(Suite::Redis, options),
        Command::Cluster(options) => one(Suite::Cluster, options),
        Command::Runtime(options) => one(Suite::Runtime, options),
        Command::Loops(options) => one(Suite::Loops, options),
        Command::Evals(options) => one(Suite::Evals, options),
        Command::Plan(plan) => plan.print(),
        Command::MemoryChild(child) => {
            println!("{}", child.measure()?);
            Ok(())
        }
        Command::SqliteChild(child) => child.run(),
        Command::RuntimeChild(child) => child.run(),
        Command::EvalsChild(child) => {
            println!("{}", child.measure()?);
            Ok(())
        }
    }
}

/// Runs one suite.
fn one(suite: Suite, options: Options) -> Result<()> {
    let mut report = Report::new(options.json);
    suite.run(&options.amount.plan(), &mut report)?;
    report.print();
    Ok(())
}

/// Runs several suites and writes the results after each case. If one fails, the others still run.
fn all(suites: &[Suite], out: &Path, plan: &Plan) -> Result<()> {
    let mut cases = 0;
    for suite in suites {
        cases += plan.count(|plan| suite.run(plan, &mut Report::new(false)))?;
    }
    let mut report = Report::to_file(Results::of_this_machine(plan)?, out);
    progress::start(cases);
    let (mut failures, mut times) = (Vec::new(), Vec::new());
    for suite in suites {
        let start = Instant::now();
        if let Err(error) = suite.run(plan, &mut report) {
            progress::say(format_args!("{suite} failed: {error}"));
            failures.push(format!("{suite}: {error}"));
        }
        times.push(format!("{suite} {:.0} s", start.elapsed().as_secs_f64()));
    }
    progress::finish();
    report.print();
    eprintln!("times: {}", times.join(", "));
    eprintln!("results: {}", out.display());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}
