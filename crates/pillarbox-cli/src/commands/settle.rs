//! `pillarbox ack`, `nack` and `extend`

use std::sync::Arc;

use bytes::Bytes;
use pillarbox::{
    Error, Mailbox, MessageId, NoReplies, Queue, QueueName, QueueOptions, Raw, Receipt, Settle,
    SettleAction,
};
use serde::Serialize;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Out, time};

#[derive(Serialize)]
struct SettleJson<'a> {
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
    with_backend(context.open_existing().await?, async |backend| {
        let queue = backend.queue(name, QueueOptions::new())?;
        let results = settle(&queue, settles.clone()).await?;
        let has_tokens = queue.capabilities().strict_receipts;
        let (mut failure, mut reported) = (None, Ok(()));
        for (settle, result) in settles.iter().zip(results) {
            let receipt = &settle.receipt;
            match result.map_err(|error| explain(error, receipt, has_tokens)) {
                // Errors are printed even if the results cannot be.
                Ok(()) => {
                    reported = reported.and_then(|()| report(&mut context.out, name, settle));
                }
                Err(error) if settles.len() == 1 => return Err(error),
                Err(error) => {
                    context.out.error(&error.text().unwrap_or_default());
                    failure = Some(Failure::Reported);
                }
            }
        }
        failure.map_or(reported, Err)
    })
    .await
}

/// Distinguishes a text that never was a receipt from a receipt that is no longer valid. A backend
/// without strict receipts has receipts of any form.
fn explain(error: Error, receipt: &Receipt, has_tokens: bool) -> Failure {
    match error {
        Error::ReceiptHandleExpired { .. } if has_tokens && receipt.token().is_none() => {
            Failure::Other(format!(
                "'{receipt}' is not a receipt: use the one that `pillarbox receive` prints, a message id, a dot and \
                 16 characters"
            ))
        }
        error => error.into(),
    }
}

fn report(out: &mut Out, queue: &QueueName, settle: &Settle) -> Result<()> {
    let (action, text) = match settle.action {
        SettleAction::Acknowledge => ("acknowledge", "acknowledged".to_owned()),
        SettleAction::Nack { delay } if delay.is_zero() => {
            ("nack", "returned to the queue".to_owned())
        }
        SettleAction::Nack { delay } | SettleAction::Release { delay } => {
            ("nack", format!("returned to the queue, delayed by {}", time::show(delay)))
        }
        SettleAction::Extend { timeout } | SettleAction::Start { timeout } => {
            ("extend", format!("leased for {} from now", time::show(timeout)))
        }
    };
    let receipt = &settle.receipt;
    let id = receipt.message_id();
    if out.is_json() {
        return out.json(&SettleJson { queue, id, receipt, action });
    }
    match id {
        Some(id) => out.line(&format!("{id}  {text}")),
        None => out.line(&text),
    }
}

/// Settles any number of deliveries, in batches.
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

/// Settles deliveries that the command has received and `written`. Those that could not be written are released by
/// `settles`, and the error says so.
pub(crate) async fn settle_written(
    out: &Out,
    queue: &Arc<dyn Queue>,
    settles: Vec<Settle>,
    written: Result<()>,
) -> Result<()> {
    let settled = settle_all(out, queue, settles).await;
    if settled.is_ok() {
        written.map_err(Failure::with_messages_released)
    } else {
        written.and(settled)
    }
}

/// Settles deliveries, and reports those that failed.
async fn settle_all(out: &Out, queue: &Arc<dyn Queue>, settles: Vec<Settle>) -> Result<()> {
    const MAX_LISTED: usize = 3;
    let results = settle(queue, settles).await?;
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    for error in errors.iter().take(MAX_LISTED) {
        out.error(&error.to_string());
    }
    if errors.len() > MAX_LISTED {
        out.error(&format!("and {} more errors", errors.len() - MAX_LISTED));
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}
