//! The `pillarbox` command.
//!
//! | to find | look at |
//! |---|---|
//! | command-line arguments | `args` |
//! | a command | the file of its name in `commands/` |
//! | a message as a line of JSON, and back | `message_json` |
//! | reading lines from a file or a pipe in batches | `input_lines` |
//! | tables, colours, ages, progress | `output/` |
//! | conditions on JSON bodies | `json_path` |
//! | URLs without passwords | `url` |
//! | Ctrl+C | `interrupt` |
//! | errors and exit codes | `failure` |
//!
//! Commands are independent of the backend: they use `pillarbox::open` and the queue API.
//!
//! It is a library only so that the fuzzer can call the parsers of arguments and input.

mod args;
mod commands;
mod context;
mod demo_errors;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod input_lines;
mod interrupt;
mod json_path;
#[cfg(test)]
mod limited_queue;
mod message_json;
mod output;
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
use crate::output::log::{self, Log};
use crate::url::BackendUrl;

/// Runs the command line and returns the exit code.
pub fn main() -> ExitCode {
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report_parse_error(&error),
    };
    log_to_stderr(cli.global.verbose, matches!(cli.command, args::Command::Top(_)));
    let urls = check_url(&cli.global)
        .and_then(|()| cli.urls().into_iter().try_for_each(BackendUrl::resolve));
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

/// Rejects an empty `--url`, as of a script whose variable is not set. An empty `PILLARBOX_URL` counts as unset.
fn check_url(global: &args::Global) -> Result<(), String> {
    let is_empty = global.url.as_ref().is_some_and(|url| url.reveal().is_empty());
    let is_from_environment = std::env::var_os("PILLARBOX_URL").is_some_and(|url| url.is_empty());
    if is_empty && !is_from_environment {
        return Err("--url is empty: give a URL, such as sqlite:jobs.db, or omit it".to_owned());
    }
    Ok(())
}

/// Prints the error of an invalid command line, or the help that was requested.
fn report_parse_error(error: &clap::Error) -> ExitCode {
    let original = error.to_string();
    let shown = redact(&original, std::env::args_os().skip(1));
    let shown: String = shown.split_inclusive('\n').map(log::printable_line).collect();
    let has_controls = |arg: OsString| arg.to_string_lossy().chars().any(char::is_control);
    if shown == original && !std::env::args_os().skip(1).any(has_controls) {
        // With colours, if the terminal has them.
        error.exit();
    }
    eprint!("{shown}");
    Failure::Usage(shown).exit_code()
}

/// Returns the text of an error without the secrets of URLs in the arguments.
fn redact(text: &str, args: impl Iterator<Item = OsString>) -> String {
    url::without_secrets(text.to_owned(), args.map(|arg| arg.to_string_lossy().into_owned()))
}

fn run(context: &mut Context, cli: Cli) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Other(format!("cannot start the async runtime: {error}")))?;
    let result = runtime.block_on(commands::run(context, cli.command));
    // A blocking read from a terminal cannot be cancelled; nothing else is still running.
    runtime.shutdown_background();
    result
}

/// Logs warnings to stderr, and more with `--verbose`. Warnings of the runtime are hidden, since the demo shows them
/// itself; so are all warnings while `top` has the whole screen.
fn log_to_stderr(verbose: u8, has_screen: bool) {
    let level = match verbose {
        0 if has_screen => Level::ERROR,
        0 => Level::WARN,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let workers = if verbose == 0 { Level::ERROR } else { level };
    // Without the feature for colours it would print a warning on a terminal.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Log)
        .with_ansi(false)
        .without_time()
        .with_target(false);
    let shown = Targets::new().with_default(level).with_target("pillarbox_runtime", workers);
    tracing_subscriber::registry().with(lines).with(shown).init();
}
