//! The `pillarbox` command: what an engineer has open all day.
//!
//! | to find | look at |
//! |---|---|
//! | what can be said on the command line | `args` |
//! | what a command does | the file of its name in `commands/` |
//! | how a message is written as a line of JSON, and read again | `line` |
//! | the lines of a file or a pipe, some at a time | `lines` |
//! | tables, colours, ages, progress | `output/` |
//! | conditions on bodies | `json_path` |
//! | URLs that tell no password | `url` |
//! | Ctrl+C | `interrupt` |
//! | how much to take at a time, and when there is no more | `pace`, `emptiness` |
//! | which failure ends with which exit code | `failure` |
//!
//! A command knows no backend by name: all of them go through `pillarbox::open` and the contract.
//!
//! A library only so that the fuzzer reaches what reads the command line and its input.

mod args;
mod commands;
mod context;
mod emptiness;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod interrupt;
mod json_path;
mod line;
mod lines;
#[cfg(test)]
mod narrow;
mod output;
mod pace;
mod url;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Cli;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Log, text};
use crate::url::BackendUrl;

/// Does what the command line says, and gives the exit code.
pub fn main() -> ExitCode {
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    log_to_stderr(cli.global.verbose, matches!(cli.command, args::Command::Top(_)));
    let urls = cli.urls().into_iter().try_for_each(BackendUrl::look_up);
    let mut context = Context::new(&cli.global);
    let result = urls.map_err(Failure::Usage).and_then(|()| run(&mut context, cli));
    let result = result.and_then(|()| context.out.flush());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.text() {
                context.out.error(&text);
            }
            failure.exit_code()
        }
    }
}

/// Says what is wrong with the command line, or gives the help that was asked for.
fn refuse(error: &clap::Error) -> ExitCode {
    let told = error.to_string();
    let shown = refusal(&told, std::env::args_os().skip(1));
    let shown: String = shown
        .split_inclusive('\n')
        .map(|line| match line.strip_suffix('\n') {
            Some(line) => format!("{}\n", text::printable(line)),
            None => text::printable(line).into_owned(),
        })
        .collect();
    let has_controls = |arg: OsString| arg.to_string_lossy().chars().any(char::is_control);
    if shown == told && !std::env::args_os().skip(1).any(has_controls) {
        // With colours, where there are any.
        error.exit();
    }
    eprint!("{shown}");
    Failure::Usage(shown).exit_code()
}

/// What is said of a command line that is refused.
fn refusal(told: &str, args: impl Iterator<Item = OsString>) -> String {
    url::without_secrets(told.to_owned(), args.map(|arg| arg.to_string_lossy().into_owned()))
}

fn run(context: &mut Context, cli: Cli) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Other(format!("cannot start: {error}")))?;
    let result = runtime.block_on(commands::run(context, cli.command));
    // Reading from a terminal cannot be ended, and nothing else is left running.
    runtime.shutdown_background();
    result
}

/// Shows what the backends warn of, and more where asked for. What the workers of the demo warn of is what
/// the demo shows; and whoever has the whole screen shows by itself what is wrong.
fn log_to_stderr(verbose: u8, has_screen: bool) {
    let level = match verbose {
        0 if has_screen => Level::ERROR,
        0 => Level::WARN,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let workers = if verbose == 0 { Level::ERROR } else { level };
    // Without colours, for which it needs a feature, and says so on a terminal.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Log)
        .with_ansi(false)
        .without_time()
        .with_target(false);
    let shown = Targets::new().with_default(level).with_target("pillarbox_runtime", workers);
    tracing_subscriber::registry().with(lines).with(shown).init();
}
