//! `pillarbox eval`: submit samples, collect results, report.
//!
//! | to find | look at |
//! |---|---|
//! | a command | the file of its name |
//! | limits for CI | `report` |

mod collect;
mod report;
mod submit;

use std::path::Path;

use pillarbox::Mailbox;
use pillarbox::evals::{EvalError, EvalRun};
use pillarbox::loops::{MainLoopRequest, MainLoopResult};
use serde_json::Value;

use crate::args::{self, EvalCommand};
use crate::context::Context;
use crate::failure::{Failure, Result};

pub(crate) async fn run(context: &mut Context, args: args::Eval) -> Result<()> {
    match args.command {
        EvalCommand::Submit(args) => submit::run(context, args).await,
        EvalCommand::Collect(args) => collect::run(context, args).await,
        EvalCommand::Report(args) => report::run(context, &args),
    }
}

/// Requests of a plain main loop.
type PlainRequests = Mailbox<MainLoopRequest<Value>, MainLoopResult<Value>>;

fn failure(error: EvalError) -> Failure {
    match error {
        EvalError::Backend(error) => Failure::Pillarbox(error),
        error @ EvalError::Dataset(_) => Failure::Usage(error.to_string()),
        other => Failure::Other(other.to_string()),
    }
}

/// Opens a run that was submitted.
fn open_submitted(
    directory: &Path,
    open: impl FnOnce(&Path) -> pillarbox::evals::Result<EvalRun>,
) -> Result<EvalRun> {
    let run = open(directory).map_err(failure)?;
    if run.requests().is_none() {
        let directory = directory.display();
        let text =
            format!("nothing was sent yet: run `pillarbox eval submit {directory} DATASET.jsonl`");
        return Err(Failure::Other(text));
    }
    Ok(run)
}
