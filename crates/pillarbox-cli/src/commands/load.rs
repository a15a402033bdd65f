//! `pillarbox load`
//!
//! A message whose id the queue holds is not stored again. Often it is the same message, loaded before. But
//! what is loaded may come from a `drain` of the same queue, which acknowledges a message after it has
//! written it: then the message is there only until that is done. So one that somebody holds is sent again
//! until it is stored, or is seen to be there with nobody holding it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{Outgoing, Queue, QueueName, QueueOptions, Timestamp};
use serde::Serialize;

use super::duplicate::{HELD_FOR, Held, look_for};
use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::line;
use crate::lines::Lines;
use crate::output::{Out, Progress, text};

/// Messages that wait for others to settle theirs: no more are read while there are so many of them.
const MAX_WAITING: usize = 100_000;
/// Nor while they have so many bytes.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// The first pause before they are sent again. It doubles up to [`HELD_FOR`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Of how many messages it is said that they were not loaded.
const NAMED: usize = 10;

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    loaded: u64,
    /// How many were there already.
    present: u64,
    /// How many were not loaded, for another message has their id.
    refused: u64,
}

pub(crate) async fn run(context: &mut Context, args: args::Load) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let path = args.file.unwrap_or_else(|| PathBuf::from("-"));
    using(context.open_to_send().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let mut lines = Lines::open(&path, |text| {
            let mut message = line::read(text, Timestamp::now())?;
            message.delay = queue.capabilities().round_up(message.delay);
            let checked = queue.capabilities().check_outgoing(queue.name(), &message);
            checked.map(|()| message).map_err(|error| error.to_string())
        })?;
        let progress = context.out.progress(lines.total(), "messages");
        let mut loader = Loader::new(queue.clone());
        let result = async {
            let max = queue.capabilities().max_batch;
            while let Some(batch) = lines.next_batch(max, &interrupt).await? {
                loader.send(batch, &progress).await?;
                while loader.is_full() {
                    loader.resolve(&interrupt, &progress).await?;
                }
            }
            while !loader.waiting.is_empty() {
                loader.resolve(&interrupt, &progress).await?;
            }
            Ok(())
        };
        let result: Result<()> = result.await;
        drop(progress);
        if let Err(failure) = result {
            let loaded = loader.loaded + loader.present;
            let again = format!("{loaded} messages were loaded; load it again to go on");
            return Err(match failure {
                Failure::Other(text) => Failure::Other(format!("{text}\n{again}")),
                other => {
                    context.out.note(&again);
                    other
                }
            });
        }
        loader.report(&mut context.out, &args.queue)
    })
    .await
}

struct Loader {
    queue: Arc<dyn Queue>,
    loaded: u64,
    present: u64,
    /// Not loaded, for the queue has another message of the same id.
    refused: Vec<Outgoing>,
    /// Not stored, for the queue has a message of the same id that somebody may hold.
    waiting: Vec<Outgoing>,
    pause: Duration,
}

impl Loader {
    fn new(queue: Arc<dyn Queue>) -> Self {
        let (refused, waiting) = (Vec::new(), Vec::new());
        Self { queue, loaded: 0, present: 0, refused, waiting, pause: FIRST_PAUSE }
    }

    fn is_full(&self) -> bool {
        let bytes = || self.waiting.iter().map(|message| message.body.len()).sum::<usize>();
        self.waiting.len() >= MAX_WAITING || bytes() >= MAX_WAITING_BYTES
    }

    /// Sends messages, no more than a call takes. Those that are not stored wait.
    async fn send(&mut self, batch: Vec<Outgoing>, progress: &Progress) -> Result<()> {
        let results = self.queue.send(batch.clone()).await;
        let results = results.map_err(|error| Failure::Other(error.to_string()))?;
        let mut failure = None;
        for (message, result) in batch.into_iter().zip(results) {
            match result {
                Ok(sent) if sent.is_new => {
                    self.loaded += 1;
                    self.pause = FIRST_PAUSE;
                    progress.add(1);
                }
                Ok(_) => self.waiting.push(message),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(()), |error| Err(Failure::Other(error.to_string())))
    }

    /// Sends once more what waits, looks at what is in its way, and pauses if somebody holds that.
    async fn resolve(&mut self, interrupt: &Interrupt, progress: &Progress) -> Result<()> {
        let mut again = std::mem::take(&mut self.waiting);
        while !again.is_empty() {
            let most = again.len().min(self.queue.capabilities().max_batch);
            self.send(again.drain(..most).collect(), progress).await?;
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        let ids: HashSet<_> = self.waiting.iter().map(|message| message.id).collect();
        let found = look_for(&self.queue, &ids).await?;
        for message in std::mem::take(&mut self.waiting) {
            match Held::of(&message, found.get(&message.id)) {
                Held::Same => {
                    self.present += 1;
                    progress.add(1);
                }
                Held::Other => self.refused.push(message),
                Held::InFlight | Held::Nothing => self.waiting.push(message),
            }
        }
        if !self.waiting.is_empty() {
            let waiting = text::count(self.waiting.len() as u64, "message");
            progress.say(format!("waiting: somebody holds {waiting} of the same id"));
            interrupt.or(tokio::time::sleep(self.pause)).await?;
            self.pause = (self.pause * 2).min(HELD_FOR);
            progress.say("");
        }
        Ok(())
    }

    fn report(&self, out: &mut Out, queue: &QueueName) -> Result<()> {
        let (loaded, present, refused) = (self.loaded, self.present, self.refused.len() as u64);
        for message in self.refused.iter().take(NAMED) {
            let id = message.id;
            out.error(&format!("not loaded: '{queue}' has another message of the id {id}"));
        }
        if refused > NAMED as u64 {
            out.error(&format!("and others: {refused} messages were not loaded"));
        }
        if out.is_json() {
            out.json(&Line { queue, loaded, present, refused })?;
        } else {
            let there = match present {
                0 => String::new(),
                present => format!("; {} there already", text::count(present, "message")),
            };
            out.line(&format!("{} loaded{there}", text::count(loaded, "message")))?;
        }
        if refused > 0 { Err(Failure::Reported) } else { Ok(()) }
    }
}
