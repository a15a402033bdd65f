//! `pillarbox dlq replay`

use pillarbox::runtime::Dlq;
use pillarbox::{Mailbox, Mailboxes, Timestamp};

use super::filter::Filter;
use super::round::{Deed, Round};
use crate::args;
use crate::commands::{must_be_there, using, want};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

pub(super) async fn run(context: &mut Context, args: args::DlqReplay) -> Result<()> {
    if args.to.as_ref() == Some(&args.queue) {
        let text = format!("'{}' is where the dead letters are: say another queue", args.queue);
        return Err(Failure::Usage(text));
    }
    let filter = Filter::new(args.filters.clone(), Timestamp::now());
    let asks = filter.is_all() && args.max.is_none() && !args.yes && !args.dry_run;
    if asks {
        must_be_there("replay everything; say --yes, or a filter")?;
    }
    let (to, to_url) = (args.to.clone(), args.to_url.clone());
    let deed = Deed::Replay { max_replays: args.max_replays, to, to_url };
    let max = args.max.map(|max| max as u64);
    let round = Round { queue: args.queue.clone(), filter, max, delayed: args.delayed, deed };
    using(context.open_existing().await?, async |backend| {
        let Some(url) = args.to_url.as_ref().filter(|_| !args.dry_run) else {
            return replay(context, backend, None, &round, &args, asks).await;
        };
        let target = pillarbox::open(url.reveal()).await;
        let target = target.map_err(|error| Failure::from(error).without_secrets_of(url))?;
        using(target, async |target| {
            if !target.capabilities().durable {
                return Err(Failure::Usage(format!(
                    "what is replayed to {url} would be gone when this command ends"
                )));
            }
            replay(context, backend, Some(target), &round, &args, asks).await
        })
        .await
    })
    .await
}

async fn replay(
    context: &mut Context,
    backend: &Mailboxes,
    target: Option<&Mailboxes>,
    round: &Round,
    args: &args::DlqReplay,
    asks: bool,
) -> Result<()> {
    let mut dlq = Dlq::open(backend, &args.queue)?;
    if args.dry_run {
        return round.rehearse(context, backend, &dlq).await;
    }
    dlq = match (&args.to, target) {
        (Some(queue), target) => {
            let mailbox: Mailbox<()> = target.unwrap_or(backend).mailbox(queue)?;
            dlq.replay_to(&mailbox)
        }
        (None, Some(target)) => dlq.sources_on(target),
        (None, None) => dlq,
    };
    if asks {
        let number = round.expected(backend, &dlq).await?;
        let question = round.question(number, context);
        if number > 0 && !want(&question)? {
            return Err(Failure::Other("nothing was replayed".to_owned()));
        }
    }
    let mut pass = dlq.replay();
    if let Some(rate) = args.rate {
        pass = pass.rate(rate.number.get(), rate.per);
    }
    round.perform(context, backend, &dlq, pass, &Interrupt::listen()?).await
}
