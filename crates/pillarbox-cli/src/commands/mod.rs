//! One file per command.

mod bench;
mod demo;
mod dlq;
mod doctor;
mod drain;
mod dump;
mod duplicate;
mod eval;
mod load;
mod move_messages;
mod partitions;
mod peek;
mod purge;
mod queues;
mod receive;
mod redrive;
pub(crate) mod send;
mod settle;
mod shell;
mod stats;
mod top;

use std::io::{self, BufRead, IsTerminal, Write};

use pillarbox::Mailboxes;

use crate::args::Command;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::text;

pub(crate) async fn run(context: &mut Context, command: Command) -> Result<()> {
    match command {
        Command::Queues => queues::run(context).await,
        Command::Stats(args) => stats::run(context, args).await,
        Command::Send(args) => send::run(context, args).await,
        Command::Receive(args) => receive::run(context, args).await,
        Command::Peek(args) => peek::run(context, args).await,
        Command::Ack(args) => settle::ack(context, args).await,
        Command::Nack(args) => settle::nack(context, args).await,
        Command::Extend(args) => settle::extend(context, args).await,
        Command::Purge(args) => purge::run(context, args).await,
        Command::Dump(args) => dump::run(context, args).await,
        Command::Drain(args) => drain::run(context, args).await,
        Command::Load(args) => load::run(context, args).await,
        Command::Move(args) => move_messages::run(context, args).await,
        Command::Dlq(args) => dlq::run(context, args).await,
        Command::Eval(args) => eval::run(context, args).await,
        Command::Partitions(args) => partitions::run(context, args).await,
        Command::Redrive(args) => redrive::run(context, args).await,
        Command::Top(args) => top::run(context, args).await,
        Command::Bench(args) => bench::run(context, args).await,
        Command::Doctor(args) => doctor::run(context, args).await,
        Command::Demo(args) => demo::run(context, args).await,
        Command::Completions(args) => shell::completions(context, &args),
        Command::Man(args) => shell::man(context, &args),
    }
}

/// Runs `work` with a backend and then closes it, even after an error: closing returns messages that were fetched but
/// not used.
async fn with_backend<T>(
    backend: Mailboxes,
    work: impl AsyncFnOnce(&Mailboxes) -> Result<T>,
) -> Result<T> {
    let result = work(&backend).await;
    backend.close().await;
    result
}

/// Fails unless stdin is a terminal, so that the user can be asked for confirmation.
fn require_terminal(hint: &str) -> Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::Usage(format!("cannot ask for confirmation without a terminal: {hint}")))
}

/// Asks the user for confirmation.
fn confirm(question: &str) -> Result<bool> {
    let ask = || -> io::Result<String> {
        let mut stderr = io::stderr();
        write!(stderr, "{} [y/N] ", text::printable(question))?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(answer)
    };
    let answer =
        ask().map_err(|error| Failure::Other(format!("cannot ask for confirmation: {error}")))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
