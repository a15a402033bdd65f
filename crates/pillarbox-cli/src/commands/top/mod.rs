//! `pillarbox top`: all queues, full-screen.
//!
//! `model` has the state and the effects of keys, `screen` draws it. This module feeds them with keys, ticks and answers
//! of the backend.

mod keys;
mod model;
mod screen;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use pillarbox::{Mailboxes, Peeked, QueueName, QueueOptions};
use pillarbox_core::internal::BatchSizer;
use ratatui::DefaultTerminal;
use tokio::task::JoinSet;

use self::keys::{Input, Keys};
use self::model::{Model, TopAction};
use super::stats::{Counted, count};
use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// Approximate maximum number of messages that are shown of a queue.
const MAX_MESSAGES: usize = 100;

/// Answer of the backend.
enum Answer {
    Counted(Instant, Result<Counted>),
    Peeked(QueueName, pillarbox::Result<Vec<Peeked>>),
    Purged(QueueName, pillarbox::Result<u64>),
}

pub(crate) async fn run(context: &mut Context, args: args::Top) -> Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal; use `pillarbox stats --watch` without one";
        return Err(Failure::Usage(text.to_owned()));
    }
    let interrupt = Interrupt::listen()?;
    with_backend(context.open_existing().await?, async |backend| {
        // The first count comes before the full screen, so that its errors are printed normally.
        let first = count(backend, &args.queues).await?.any()?;
        let every = args.interval.max(Duration::from_millis(100));
        let mut model = Model::new(context.url().to_string(), every);
        model.counted(Instant::now(), first.counts, &first.failed);
        let failed = |error| Failure::Other(format!("cannot use the terminal: {error}"));
        let mut terminal = ratatui::try_init().map_err(failed)?;
        let result = watch(&mut terminal, &mut model, backend, &args.queues, &interrupt).await;
        ratatui::restore();
        result.map_err(failed)?;
        // By a signal; a key ends it successfully.
        if interrupt.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    })
    .await
}

async fn watch(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    backend: &Mailboxes,
    names: &[QueueName],
    interrupt: &Interrupt,
) -> io::Result<()> {
    let mut keys = Keys::listen()?;
    let mut ticks = tokio::time::interval(model.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut asked = JoinSet::new();
    let (mut counting, mut peeking) = (false, false);
    loop {
        terminal.draw(|frame| screen::draw(frame, model))?;
        let action = tokio::select! {
            () = interrupt.interrupted() => TopAction::Quit,
            input = keys.next() => match input {
                Some(Input::Key(key)) => model.key(key),
                Some(Input::Resized) => TopAction::None,
                None => TopAction::Quit,
            },
            Some(Ok(answer)) = asked.join_next() => {
                counting &= !matches!(answer, Answer::Counted(..));
                peeking &= !matches!(answer, Answer::Peeked(..));
                apply(model, answer)
            }
            // A backend that does not answer is not asked again, and keys still work.
            _ = ticks.tick(), if !counting => TopAction::Count,
        };
        match action {
            TopAction::None => {}
            TopAction::Quit => return Ok(()),
            TopAction::Count if counting => {}
            TopAction::Count => {
                counting = true;
                if let Some(queue) = model.inspected().filter(|_| !peeking) {
                    peeking = true;
                    asked.spawn(peek(backend.clone(), queue.clone()));
                }
                let (backend, names) = (backend.clone(), names.to_vec());
                asked.spawn(async move {
                    let counted = count(&backend, &names).await;
                    Answer::Counted(Instant::now(), counted)
                });
            }
            TopAction::Inspect(queue) => {
                peeking = true;
                asked.spawn(peek(backend.clone(), queue));
            }
            TopAction::Purge(queue) => {
                let backend = backend.clone();
                asked.spawn(async move {
                    let purge = async { backend.queue(&queue, QueueOptions::new())?.purge().await };
                    let purged = purge.await;
                    Answer::Purged(queue, purged)
                });
            }
        }
    }
}

async fn peek(backend: Mailboxes, queue: QueueName) -> Answer {
    let peeked = peek_some(&backend, &queue).await;
    Answer::Peeked(queue, peeked)
}

/// Returns the first messages of a queue, fewer if they are large, since they are read repeatedly.
async fn peek_some(backend: &Mailboxes, queue: &QueueName) -> pillarbox::Result<Vec<Peeked>> {
    let opened = backend.queue(queue, QueueOptions::new())?;
    let mut sizer = BatchSizer::new(opened.capabilities().max_receive.min(MAX_MESSAGES));
    let first = opened.peek(sizer.next_size(), None).await?.whole(queue)?;
    let bytes = first.messages.iter().map(|peeked| peeked.message.body.len()).sum();
    sizer.record(first.messages.len(), bytes);
    let mut messages = first.messages;
    if sizer.next_size() > messages.len() && first.next.is_some() {
        messages.extend(opened.peek(sizer.next_size(), first.next).await?.whole(queue)?.messages);
    }
    Ok(messages)
}

fn apply(model: &mut Model, answer: Answer) -> TopAction {
    match answer {
        Answer::Counted(at, Ok(Counted { counts, failed })) => model.counted(at, counts, &failed),
        Answer::Counted(_, Err(failure)) => model.failed(failure.text().unwrap_or_default()),
        Answer::Peeked(queue, Ok(messages)) => model.peeked(&queue, messages),
        Answer::Purged(queue, Ok(number)) => {
            model.purged(&queue, number);
            return TopAction::Count;
        }
        Answer::Peeked(_, Err(error)) | Answer::Purged(_, Err(error)) => {
            model.failed(error.to_string());
        }
    }
    TopAction::None
}
