//! `pillarbox dlq replay`

use pillarbox::dead_letters::Dlq;
use pillarbox::{Mailbox, Mailboxes, Timestamp};

use super::bulk_action::{Action, BulkAction};
use super::filter::Filter;
use crate::args;
use crate::commands::{require_terminal, with_backend};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

pub(super) async fn run(context: &mut Context, args: args::DlqReplay) -> Result<()> {
    if args.to.as_ref() == Some(&args.queue) {
        let text =
            format!("'{}' is the queue of the dead letters: choose another queue", args.queue);
        return Err(Failure::Usage(text));
    }
    let filter = Filter::new(args.filters.clone(), Timestamp::now());
    let must_confirm = filter.is_all() && args.max.is_none() && !args.yes && !args.dry_run;
    if must_confirm {
        require_terminal("add --yes to replay everything, or a filter")?;
    }
    let (to, to_url) = (args.to.clone(), args.to_url.clone());
    let action = Action::Replay { max_replays: args.max_replays, to, to_url };
    let max = args.max.map(|max| max as u64);
    let bulk = BulkAction { queue: args.queue.clone(), filter, max, delayed: args.delayed, action };
    with_backend(context.open_existing().await?, async |backend| {
        let Some(url) = args.to_url.as_ref().filter(|_| !args.dry_run) else {
            return replay(context, backend, None, &bulk, &args, must_confirm).await;
        };
        let target = pillarbox::open(url.reveal()).await;
        let target = target.map_err(|error| Failure::from(error).without_secrets_of(url))?;
        with_backend(target, async |target| {
            if !target.capabilities().durable {
                return Err(Failure::Usage(format!(
                    "messages replayed to {url} would be lost when this command ends"
                )));
            }
            replay(context, backend, Some(target), &bulk, &args, must_confirm).await
        })
        .await
    })
    .await
}

async fn replay(
    context: &mut Context,
    backend: &Mailboxes,
    target: Option<&Mailboxes>,
    bulk: &BulkAction,
    args: &args::DlqReplay,
    must_confirm: bool,
) -> Result<()> {
    let mut dlq = Dlq::open(backend, &args.queue)?;
    if args.dry_run {
        return bulk.dry_run(context, backend, &dlq).await;
    }
    dlq = match (&args.to, target) {
        (Some(queue), target) => {
            let mailbox: Mailbox<()> = target.unwrap_or(backend).mailbox(queue)?;
            dlq.replay_to(&mailbox)
        }
        (None, Some(target)) => dlq.sources_on(target),
        (None, None) => dlq,
    };
    if must_confirm {
        bulk.confirm(context, backend, &dlq).await?;
    }
    let mut pass = dlq.replay();
    if let Some(rate) = args.rate {
        pass = pass.rate(rate.number.get(), rate.per);
    }
    bulk.run(context, backend, &dlq, pass, &Interrupt::listen()?).await
}
