//! `pillarbox load`
//!
//! A message whose id the queue already holds is not stored again. Usually it is the same message, loaded before. But
//! the input may come from a `drain` of the same queue, which acknowledges a message after writing it: then the message
//! exists only until that is done. So a message in flight is sent again until it is stored, or is seen to exist and not
//! be in flight.
//!
//! A line that was read from a pipe may exist nowhere else. So invalid lines of a pipe are reported and skipped, the
//! first interrupt takes effect only when the pipe is empty, and if messages cannot be stored, their lines and all that
//! follow are saved in a file.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{MessageId, Outgoing, Queue, QueueName, QueueOptions, Timestamp};
use pillarbox_core::internal::RetryDelay;
use serde::Serialize;

use super::duplicate::{Existing, RETRY_AFTER, find_by_id, set_deduplication};
use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::input_lines::InputLines;
use crate::interrupt::Interrupt;
use crate::message_json;
use crate::output::file::{Permissions, create};
use crate::output::{Out, Progress, text};

/// Maximum number of messages that wait for one in flight with the same id. No more lines are read then.
const MAX_WAITING: usize = 100_000;
/// The same for a pipe, whose lines exist nowhere else: a few batches of the `drain` that writes them.
const MAX_WAITING_OF_PIPE: usize = 5_000;
/// Maximum size of the messages that wait.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// First delay before they are sent again. It doubles up to [`RETRY_AFTER`].
const FIRST_DELAY: Duration = Duration::from_millis(20);
/// Maximum number of rejected messages that are listed.
const MAX_LISTED: usize = 10;

#[derive(Serialize)]
struct LoadJson<'a> {
    queue: &'a QueueName,
    loaded: u64,
    /// Messages that the queue already held.
    present: u64,
    /// Messages that were not loaded because a different message has their id.
    refused: u64,
}

pub(crate) async fn run(context: &mut Context, args: args::Load) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let path = args.file.unwrap_or_else(|| PathBuf::from("-"));
    let backend = match context.open_to_send().await {
        Ok(backend) => backend,
        Err(failure) => {
            let mut lines = InputLines::open(&path, |line| Ok(line.to_owned()))?;
            return Err(save(failure, &args.queue, Vec::new(), &mut lines, &interrupt).await);
        }
    };
    with_backend(backend, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let run = MessageId::new();
        let parse = |text: &str| {
            let mut message = message_json::parse(text, Timestamp::now())?;
            let transfer = format!("load {run} of {}", message.id);
            set_deduplication(&*queue, &mut message, &transfer);
            message.delay = queue.capabilities().round_up(message.delay);
            let checked = queue.capabilities().check_outgoing(queue.name(), &message);
            let line = text.into();
            checked.map(|()| Entry { message, line }).map_err(|error| error.to_string())
        };
        let is_invalid = Cell::new(false);
        let lines =
            InputLines::open(&path, |text| parse(text).inspect_err(|_| is_invalid.set(true)));
        let mut lines = lines.map_err(|failure| match failure {
            Failure::Other(text) if is_invalid.get() => Failure::Other(format!(
                "{text}. `pillarbox load {} < {}` loads the other lines",
                args.queue,
                path.display()
            )),
            other => other,
        })?;
        let progress = context.out.progress(lines.total(), "messages");
        let is_pipe = lines.is_pipe();
        let mut loader = Loader::new(queue.clone(), is_pipe);
        // A file can be read again after an interrupt.
        let stop_on = (!is_pipe).then_some(&interrupt);
        let result = async {
            let max = queue.capabilities().max_batch;
            loop {
                match lines.next_batch(max, &interrupt, is_pipe).await {
                    Ok(Some(batch)) => loader.send(batch, &progress).await?,
                    Ok(None) => break,
                    Err(Failure::Other(text)) if is_pipe => loader.unreadable.push(text),
                    Err(failure) => return Err(failure),
                }
                while loader.is_full() {
                    loader.resolve(stop_on, &progress).await?;
                }
            }
            Ok(())
        };
        let mut result: Result<()> = result.await;
        // After an interrupt, the lines that were read from a pipe are still stored.
        let continues = match &result {
            Ok(()) => true,
            Err(failure) => is_pipe && matches!(failure, Failure::Interrupted),
        };
        while continues && !loader.waiting.is_empty() {
            if let Err(failure) = loader.resolve(stop_on, &progress).await {
                result = Err(failure);
                break;
            }
        }
        drop(progress);
        if let Err(failure) = result {
            let loaded = loader.loaded + loader.present;
            if is_pipe {
                loader.report_unreadable(&context.out);
                context.out.note(&format!("{loaded} messages were loaded"));
                let left = std::mem::take(&mut loader.waiting);
                return Err(save(failure, &args.queue, left, &mut lines, &interrupt).await);
            }
            let again =
                format!("{loaded} messages were loaded; run the same command again to continue");
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

/// A message and its line.
struct Entry {
    message: Outgoing,
    line: Box<str>,
}

/// Saves lines of a pipe that were not stored, and all that follow, and adds the path of the file to the failure.
async fn save<T, R: Fn(&str) -> Result<T, String>>(
    failure: Failure,
    queue: &QueueName,
    left: Vec<Entry>,
    lines: &mut InputLines<R>,
    interrupt: &Interrupt,
) -> Failure {
    let saved = match save_lines(queue, left, lines, interrupt).await {
        Ok(None) => return failure,
        Ok(Some((path, count))) => {
            let (path, lines) = (path.display(), text::count(count, "line"));
            format!("{lines} not stored, saved in {path}: `pillarbox load {queue} {path}`")
        }
        Err(error) => format!("lines that were not stored cannot be saved: {error}"),
    };
    Failure::Other(match failure.text() {
        Some(text) => format!("{text}\n{saved}"),
        None => saved,
    })
}

/// Writes lines to a new file, and returns its path and their number, or `None` if there are no lines.
async fn save_lines<T, R: Fn(&str) -> Result<T, String>>(
    queue: &QueueName,
    left: Vec<Entry>,
    lines: &mut InputLines<R>,
    interrupt: &Interrupt,
) -> io::Result<Option<(PathBuf, u64)>> {
    let mut left = left.into_iter();
    let mut file = None;
    let mut count = 0;
    loop {
        let line = match left.next() {
            Some(entry) => entry.line,
            // A user who types lines sees the error and need not continue.
            None if io::stdin().is_terminal() => break,
            None => match lines.next_raw(interrupt).await {
                Some(line) => line.into(),
                None => break,
            },
        };
        if file.is_none() {
            file = Some(new_file(queue)?);
        }
        if let Some((_, file)) = &mut file {
            writeln!(file, "{}", line.trim_end_matches(['\r', '\n']))?;
            count += 1;
        }
    }
    let Some((path, file)) = file else { return Ok(None) };
    file.sync_all()?;
    Ok(Some((path, count)))
}

/// Creates a file for lines that could not be loaded, in the current or the temporary directory.
fn new_file(queue: &QueueName) -> io::Result<(PathBuf, File)> {
    let queue = queue.as_str().replace([':', '/'], "_");
    let name = format!("pillarbox-load-{queue}-{}.jsonl", std::process::id());
    let new = |path: PathBuf| create(&path, Permissions::Private).map(|file| (path, file));
    new(PathBuf::from(&name)).or_else(|_| new(std::env::temp_dir().join(&name)))
}

struct Loader {
    queue: Arc<dyn Queue>,
    loaded: u64,
    present: u64,
    /// Messages that were not loaded because the queue has a different message with their id, and the first ids.
    refused: u64,
    refused_ids: Vec<MessageId>,
    /// Errors of invalid lines of a pipe.
    unreadable: Vec<String>,
    /// Messages that are not stored yet because the queue has a message with their id that may be in flight.
    waiting: Vec<Entry>,
    max_waiting: usize,
    retry_delay: RetryDelay,
}

impl Loader {
    fn new(queue: Arc<dyn Queue>, is_pipe: bool) -> Self {
        Self {
            queue,
            loaded: 0,
            present: 0,
            refused: 0,
            refused_ids: Vec::new(),
            unreadable: Vec::new(),
            waiting: Vec::new(),
            max_waiting: if is_pipe { MAX_WAITING_OF_PIPE } else { MAX_WAITING },
            retry_delay: RetryDelay::new(FIRST_DELAY, RETRY_AFTER),
        }
    }

    fn is_full(&self) -> bool {
        let bytes = || self.waiting.iter().map(|entry| entry.line.len()).sum::<usize>();
        self.waiting.len() >= self.max_waiting || bytes() >= MAX_WAITING_BYTES
    }

    /// Sends at most one batch of messages. Those that are not stored wait, as do those with an unknown outcome after
    /// an error.
    async fn send(&mut self, batch: Vec<Entry>, progress: &Progress) -> Result<()> {
        let messages = batch.iter().map(|entry| entry.message.clone()).collect();
        let results = match self.queue.send(messages).await {
            Ok(results) => results,
            Err(error) => {
                self.waiting.extend(batch);
                return Err(Failure::Other(error.to_string()));
            }
        };
        let mut failure = None;
        for (entry, result) in batch.into_iter().zip(results) {
            match result {
                Ok(sent) if sent.is_new => {
                    self.loaded += 1;
                    self.retry_delay.reset();
                    progress.add(1);
                }
                Ok(_) => self.waiting.push(entry),
                Err(error) => {
                    self.waiting.push(entry);
                    failure = failure.or(Some(error));
                }
            }
        }
        failure.map_or(Ok(()), |error| Err(Failure::Other(error.to_string())))
    }

    /// Sends the waiting messages again, compares those that still exist, and waits if some are in flight.
    async fn resolve(&mut self, stop_on: Option<&Interrupt>, progress: &Progress) -> Result<()> {
        let mut again = std::mem::take(&mut self.waiting);
        while !again.is_empty() {
            let most = again.len().min(self.queue.capabilities().max_batch);
            let sent = self.send(again.drain(..most).collect(), progress).await;
            if sent.is_err() {
                self.waiting.append(&mut again);
                return sent;
            }
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        let ids: HashSet<_> = self.waiting.iter().map(|entry| entry.message.id).collect();
        let found = find_by_id(&self.queue, &ids).await?;
        for entry in std::mem::take(&mut self.waiting) {
            let id = entry.message.id;
            match Existing::compare(&entry.message, found.get(&id)) {
                Existing::Same => {
                    self.present += 1;
                    progress.add(1);
                }
                Existing::Different => {
                    self.refused += 1;
                    if self.refused_ids.len() < MAX_LISTED {
                        self.refused_ids.push(id);
                    }
                }
                Existing::InFlight | Existing::Absent => self.waiting.push(entry),
            }
        }
        if !self.waiting.is_empty() {
            let waiting = text::count(self.waiting.len() as u64, "message");
            progress.set_message(format!("waiting for {waiting} in flight with the same ids"));
            let delay = tokio::time::sleep(self.retry_delay.next_delay());
            match stop_on {
                Some(interrupt) => interrupt.or(delay).await?,
                None => delay.await,
            }
            progress.set_message("");
        }
        Ok(())
    }

    fn report_unreadable(&self, out: &Out) {
        for text in self.unreadable.iter().take(MAX_LISTED) {
            out.error(&format!("not loaded: {text}"));
        }
        let unreadable = self.unreadable.len();
        if unreadable > MAX_LISTED {
            out.error(&format!("{unreadable} lines in total could not be read"));
        }
    }

    fn report(&self, out: &mut Out, queue: &QueueName) -> Result<()> {
        let Self { loaded, present, refused, .. } = *self;
        self.report_unreadable(out);
        for id in &self.refused_ids {
            out.error(&format!("not loaded: '{queue}' has a different message with the id {id}"));
        }
        if refused > MAX_LISTED as u64 {
            out.error(&format!("{refused} messages in total were not loaded"));
        }
        if out.is_json() {
            out.json(&LoadJson { queue, loaded, present, refused })?;
        } else {
            let present = match present {
                0 => String::new(),
                present => format!("; {} already in the queue", text::count(present, "message")),
            };
            out.line(&format!("{} loaded{present}", text::count(loaded, "message")))?;
        }
        if refused > 0 || !self.unreadable.is_empty() { Err(Failure::Reported) } else { Ok(()) }
    }
}
