//! One file a command.

mod bench;
mod demo;
mod dlq;
mod doctor;
mod drain;
mod dump;
mod duplicate;
mod eval;
mod load;
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
mod transfer;

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
        Command::Move(args) => transfer::run(context, args).await,
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

/// Does something with a backend and closes it, however that ended: what was claimed and not used
/// is given back then.
async fn using<T>(
    backend: Mailboxes,
    work: impl AsyncFnOnce(&Mailboxes) -> Result<T>,
) -> Result<T> {
    let result = work(&backend).await;
    backend.close().await;
    result
}

/// Sees to it that somebody is there to be asked whether to do something.
fn must_be_there(whether_to: &str) -> Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::Usage(format!("nobody is there to be asked whether to {whether_to}")))
}

/// Asks the user.
fn want(question: &str) -> Result<bool> {
    let ask = || -> io::Result<String> {
        let mut stderr = io::stderr();
        write!(stderr, "{} [y/N] ", text::printable(question))?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|error| Failure::Other(format!("cannot ask: {error}")))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
