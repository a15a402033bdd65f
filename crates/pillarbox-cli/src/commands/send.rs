//! `pillarbox send`

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pillarbox::{Error, MessageId, Outgoing, Queue, QueueName, QueueOptions, Sent};
use serde::Serialize;
use serde::de::IgnoredAny;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::input_lines::InputLines;
use crate::interrupt::Interrupt;
use crate::message_json;

#[derive(Serialize)]
struct SendJson<'a> {
    queue: &'a QueueName,
    id: MessageId,
    /// `None`: the backend does not report it.
    is_new: Option<bool>,
}

pub(crate) async fn run(context: &mut Context, args: args::Send) -> Result<()> {
    let mut names = HashSet::new();
    if let Some((duplicate, _)) = args.attributes.iter().find(|(name, _)| !names.insert(name)) {
        return Err(Failure::Usage(format!("the attribute '{duplicate}' is given twice")));
    }
    match (&args.file, &args.body) {
        (Some(file), _) => send_lines(context, &args, file).await,
        (None, Some(body)) => {
            let body = if body == "-" { standard_input()? } else { body.clone().into() };
            send_one(context, &args, body).await
        }
        (None, None) => Err(Failure::Usage("the body is missing".to_owned())),
    }
}

fn standard_input() -> Result<Bytes> {
    let mut body = Vec::new();
    match io::stdin().lock().read_to_end(&mut body) {
        Ok(_) => Ok(body.into()),
        Err(error) => Err(Failure::Other(format!("cannot read standard input: {error}"))),
    }
}

async fn send_one(context: &mut Context, args: &args::Send, body: Bytes) -> Result<()> {
    let id = match &args.key {
        Some(key) => MessageId::from_key(key),
        None => args.id.unwrap_or_else(MessageId::new),
    };
    let message = outgoing(args, id, body);
    with_backend(context.open_to_send().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        match send_batch(&queue, vec![message]).await {
            (_, Some(error)) => Err(error.about(Some(id)).into()),
            (sent, None) => sent.into_iter().try_for_each(|sent| report(context, &queue, sent)),
        }
    })
    .await
}

/// Parses a message whose body is a line of JSON.
pub(crate) fn read_line(args: &args::Send, line: &str) -> Result<Outgoing, String> {
    serde_json::from_str::<IgnoredAny>(line)
        .map_err(|error| format!("not valid JSON: {}", message_json::describe_error(&error)))?;
    Ok(outgoing(args, MessageId::new(), line.trim().to_owned().into()))
}

pub(crate) fn outgoing(args: &args::Send, id: MessageId, body: Bytes) -> Outgoing {
    let mut message = Outgoing::with_id(id, body);
    message.delay = args.delay;
    message.reply_to = args.reply_to.as_ref().map(|queue| queue.as_str().into());
    message.attributes = args.attributes.iter().cloned().collect();
    if let Some(group) = &args.group {
        message.attributes.insert(Outgoing::GROUP, group);
    }
    if let Some(deduplication) = &args.deduplication {
        message.attributes.insert(Outgoing::DEDUPLICATION, deduplication);
    }
    message
}

fn report(context: &mut Context, queue: &Arc<dyn Queue>, sent: Sent) -> Result<()> {
    let Sent { id, is_new, .. } = sent;
    if !is_new {
        context.out.note("the queue holds a message with this id already");
    }
    if context.out.is_json() {
        let is_new = queue.capabilities().reports_duplicates.then_some(is_new);
        context.out.json(&SendJson { queue: queue.name(), id, is_new })
    } else {
        context.out.line(&id.to_string())
    }
}

async fn send_lines(context: &mut Context, args: &args::Send, path: &Path) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    with_backend(context.open_to_send().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let mut lines = InputLines::open(path, |line| {
            let message = read_line(args, line)?;
            let checked = queue.capabilities().check_outgoing(queue.name(), &message);
            checked.map(|()| message).map_err(|error| error.to_string())
        })?;
        let progress = context.out.progress(lines.total(), "messages");
        let mut sent = 0;
        // Messages are sent even if the reader of the ids is gone.
        let mut reported = Ok(());
        let failure = loop {
            let batch =
                match lines.next_batch(queue.capabilities().max_batch, &interrupt, false).await {
                    Ok(Some(batch)) => batch,
                    Ok(None) => break None,
                    Err(failure) => break Some(failure),
                };
            let (stored, failure) = send_batch(&queue, batch).await;
            sent += stored.len();
            progress.add(stored.len() as u64);
            if reported.is_ok() {
                reported = stored
                    .into_iter()
                    .try_for_each(|sent| report(context, &queue, sent))
                    .and_then(|()| context.out.flush());
            }
            if let Some(error) = failure {
                break Some(error.into());
            }
        };
        drop(progress);
        let ids =
            if reported.is_ok() { "their ids are printed" } else { "not all ids are printed" };
        let so_far = format!("{sent} messages were sent; {ids}");
        match (failure, reported) {
            (None, Ok(())) => Ok(()),
            (None, Err(Failure::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(Failure::Output(error))
            }
            (Some(Failure::Pillarbox(error)), _) => {
                Err(Failure::Other(format!("{error}\n{so_far}")))
            }
            (None, Err(failure)) | (Some(failure), _) => {
                context.out.note(&so_far);
                Err(failure)
            }
        }
    })
    .await
}

/// Sends messages. Returns those that the queue now holds, and the first error.
pub(crate) async fn send_batch(
    queue: &Arc<dyn Queue>,
    messages: Vec<Outgoing>,
) -> (Vec<Sent>, Option<Error>) {
    let results = match queue.send(messages).await {
        Ok(results) => results,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut stored = Vec::with_capacity(results.len());
    let mut failure = None;
    for result in results {
        match result {
            Ok(sent) => stored.push(sent),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    (stored, failure)
}
