//! `pillarbox ack`, `nack` and `extend`

use std::sync::Arc;

use bytes::Bytes;
use pillarbox::{
    Mailbox, MessageId, NoReplies, Queue, QueueName, QueueOptions, Raw, Receipt, Settle,
    SettleAction,
};
use serde::Serialize;

use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Out, time};

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    id: Option<MessageId>,
    receipt: &'a Receipt,
    action: &'static str,
}

pub(crate) async fn ack(context: &mut Context, args: args::Ack) -> Result<()> {
    run(context, &args.queue, args.receipts.into_iter().map(Settle::acknowledge).collect()).await
}

pub(crate) async fn nack(context: &mut Context, args: args::Nack) -> Result<()> {
    let nack = |receipt| Settle::nack(receipt, args.delay);
    run(context, &args.queue, args.receipts.into_iter().map(nack).collect()).await
}

pub(crate) async fn extend(context: &mut Context, args: args::Extend) -> Result<()> {
    run(context, &args.queue, vec![Settle::extend(args.receipt, args.duration)]).await
}

async fn run(context: &mut Context, name: &QueueName, settles: Vec<Settle>) -> Result<()> {
    using(context.open_existing().await?, async |backend| {
        let queue = backend.queue(name, QueueOptions::new())?;
        let results = settle(&queue, settles.clone()).await?;
        let (mut failure, mut reported) = (None, Ok(()));
        for (settle, result) in settles.iter().zip(results) {
            match result {
                // What went wrong is told even if nobody reads what went well.
                Ok(()) => {
                    reported = reported.and_then(|()| report(&mut context.out, name, settle));
                }
                Err(error) if settles.len() == 1 => return Err(error.into()),
                Err(error) => {
                    context.out.error(&error.to_string());
                    failure = Some(Failure::Reported);
                }
            }
        }
        failure.map_or(reported, Err)
    })
    .await
}

fn report(out: &mut Out, queue: &QueueName, settle: &Settle) -> Result<()> {
    let (action, said) = match settle.action {
        SettleAction::Acknowledge => ("acknowledge", "acknowledged".to_owned()),
        SettleAction::Nack { delay } if delay.is_zero() => ("nack", "given back".to_owned()),
        SettleAction::Nack { delay } | SettleAction::Release { delay } => {
            ("nack", format!("given back, invisible for {}", time::show(delay)))
        }
        SettleAction::Extend { timeout } | SettleAction::Start { timeout } => {
            ("extend", format!("invisible for {} from now", time::show(timeout)))
        }
    };
    let receipt = &settle.receipt;
    let id = receipt.message_id();
    if out.is_json() {
        return out.json(&Line { queue, id, receipt, action });
    }
    match id {
        Some(id) => out.line(&format!("{id}  {said}")),
        None => out.line(&said),
    }
}

/// Settles any number of deliveries, as many at a time as the backend takes.
pub(crate) async fn settle(
    queue: &Arc<dyn Queue>,
    settles: Vec<Settle>,
) -> pillarbox::Result<Vec<pillarbox::Result<()>>> {
    if settles.is_empty() {
        return Ok(Vec::new());
    }
    let mailbox: Mailbox<Bytes> = Mailbox::new(queue.clone(), Raw, NoReplies);
    Ok(mailbox.settle(settles).await?.into_iter().collect())
}

/// Settles deliveries that the command itself has received, and says which it came too late for.
pub(crate) async fn settle_all(
    out: &Out,
    queue: &Arc<dyn Queue>,
    settles: Vec<Settle>,
) -> Result<()> {
    const ENOUGH: usize = 3;
    let results = settle(queue, settles).await?;
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    for error in errors.iter().take(ENOUGH) {
        out.error(&error.to_string());
    }
    if errors.len() > ENOUGH {
        out.error(&format!("and {} more like this", errors.len() - ENOUGH));
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}
