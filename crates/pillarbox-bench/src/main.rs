//! Benchmarks of Pillarbox against its peers and against physical limits.
//!
//! A suite is a subcommand and a folder: `memory` is `src/memory/`. What all of them share is
//! beside it:
//!
//! | to find | look at |
//! |---|---|
//! | how contestants take turns and which figure counts | `measure` |
//! | rows, units, the ratio, the table and the JSON lines | `report` |
//! | bodies, and callers that send at the same time | `load` |
//! | jobs and a worker of apalis, on a disk or a server | `apalis` |
//! | where files are | `place` |
//! | a backend of each kind, as users have it | `store` |
//! | measurements that need a process of their own | `process` |
//! | whether every message arrived | `tally` |
//! | how many servers a load needs, by the costs measured | `plan` |
//!
//! Build with `--release`; figures of a debug build mean nothing.

mod apalis;
mod cluster;
mod evals;
mod load;
mod loops;
mod measure;
mod memory;
mod place;
mod plan;
mod process;
mod redis;
mod report;
mod runtime;
mod sqlite;
mod store;
mod tally;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::measure::{Plan, Result};
use crate::report::{RATIO, Report};

/// Benchmarks of Pillarbox against its peers and against physical limits.
#[derive(Debug, Parser)]
#[command(after_help = RATIO)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The memory backend against capp-queue, apalis and a bare channel.
    #[command(after_help = RATIO)]
    Memory(Options),
    /// The SQLite backend against a bare log and apalis-sqlite, and its own promises.
    ///
    /// The files are in the directory that PILLARBOX_BENCH_DIR names, or else in that for temporary
    /// files. It should be on a disk and have 2 GB to spare.
    #[command(after_help = RATIO)]
    Sqlite(Options),
    /// The Redis backend against plain commands, BullMQ, apalis-redis and the scripts it began with.
    ///
    /// Starts servers of its own on this machine. Peers that `make bench` could not install are left
    /// out.
    #[command(after_help = RATIO)]
    Redis(Options),
    /// Redis queues spread over a cluster against whole ones: the inputs of a plan for more machines.
    ///
    /// Starts servers of its own on this machine, up to six at a time, and needs 2 GB of memory.
    #[command(after_help = RATIO)]
    Cluster(Options),
    /// The worker runtime against bare receives, capp's runtime and the workers of apalis.
    ///
    /// On every backend: files as of the SQLite suite, servers as of the Redis suite.
    #[command(after_help = RATIO)]
    Runtime(Options),
    /// Calls of a main loop by a client, against the mailbox operations that they are made of.
    ///
    /// On every backend, like the runtime suite.
    #[command(after_help = RATIO)]
    Loops(Options),
    /// Eval runs, from samples to a report, against the main loop beneath alone.
    ///
    /// On every backend, like the runtime suite.
    #[command(after_help = RATIO)]
    Evals(Options),
    /// How many servers a load needs, reckoned from what one message was measured to cost.
    ///
    /// docs/scale.md says what the model is and what it leaves out.
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

/// What every suite can be told.
#[derive(Debug, Args)]
struct Options {
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// Run small counts, to see that everything works. The figures mean little.
    #[arg(long)]
    quick: bool,
    /// How many rounds the medians are taken of [default: 5, or 3 with --quick].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Run only the cases whose names hold this text.
    #[arg(long)]
    only: Option<String>,
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
        Command::Memory(options) => suite(&options, memory::run),
        Command::Sqlite(options) => suite(&options, sqlite::run),
        Command::Redis(options) => suite(&options, redis::run),
        Command::Cluster(options) => suite(&options, cluster::run),
        Command::Runtime(options) => suite(&options, runtime::run),
        Command::Loops(options) => suite(&options, loops::run),
        Command::Evals(options) => suite(&options, evals::run),
        Command::Plan(plan) => plan.print(),
        Command::MemoryChild(child) => {
            println!("{}", child.measure()?);
            Ok(())
        }
        Command::SqliteChild(child) => child.run(),
        Command::RuntimeChild(child) => {
            println!("{}", child.measure()?);
            Ok(())
        }
        Command::EvalsChild(child) => {
            println!("{}", child.measure()?);
            Ok(())
        }
    }
}

fn suite(options: &Options, run: fn(&Plan, &mut Report) -> Result<()>) -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("warning: this is a debug build; run with --release");
    }
    let plan = Plan::new(options.quick, options.rounds, options.only.clone());
    let mut report = Report::new(options.json);
    run(&plan, &mut report)?;
    report.finish();
    Ok(())
}
