//! `pillarbox load`
//!
//! A message whose id the queue holds is not stored again. Often it is the same message, loaded before. But
//! what is loaded may come from a `drain` of the same queue, which acknowledges a message after it has
//! written it: then the message is there only until that is done. So one that somebody holds is sent again
//! until it is stored, or is seen to be there and not in flight.
//!
//! What a pipe has given is gone from there, and perhaps nowhere else any more. So lines of a pipe that cannot
//! be read are named and passed over, the first interrupt ends nothing before the pipe is empty, and if
//! messages cannot be stored, their lines go to a file, with all that follow.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{MessageId, Outgoing, Queue, QueueName, QueueOptions, Timestamp};
use serde::Serialize;

use super::duplicate::{RETRY_AFTER, There, look_for, store_anew};
use super::using;
use crate::args::{self, Permissions};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::line;
use crate::lines::Lines;
use crate::output::file::create;
use crate::output::{Out, Progress, text};

/// Messages that wait for others to settle theirs: no more are read while there are so many of them.
const MAX_WAITING: usize = 100_000;
/// The same for a pipe, where they are nowhere else: some batches of what fills it, which are acknowledged
/// when they are written.
const MAX_WAITING_OF_PIPE: usize = 5_000;
/// Nor while they have so many bytes.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// The first pause before they are sent again. It doubles up to [`RETRY_AFTER`].
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
    let backend = match context.open_to_send().await {
        Ok(backend) => backend,
        Err(failure) => {
            let mut lines = Lines::open(&path, |line| Ok(line.to_owned()))?;
            return Err(save(failure, &args.queue, Vec::new(), &mut lines, &interrupt).await);
        }
    };
    using(backend, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let run = MessageId::new();
        let lines = Lines::open(&path, |text| {
            let mut message = line::read(text, Timestamp::now())?;
            let hop = format!("load {run} of {}", message.id);
            store_anew(&*queue, &mut message, &hop);
            message.delay = queue.capabilities().round_up(message.delay);
            let checked = queue.capabilities().check_outgoing(queue.name(), &message);
            let line = text.into();
            checked.map(|()| Entry { message, line }).map_err(|error| error.to_string())
        });
        let mut lines = lines.map_err(|failure| match failure {
            Failure::Other(text) => Failure::Other(format!(
                "{text}. `pillarbox load {} < {}` loads the other lines",
                args.queue,
                path.display()
            )),
            other => other,
        })?;
        let progress = context.out.progress(lines.total(), "messages");
        let is_pipe = lines.is_pipe();
        let mut loader = Loader::new(queue.clone(), is_pipe);
        // A file is still there when this ends.
        let ending = (!is_pipe).then_some(&interrupt);
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
                    loader.resolve(ending, &progress).await?;
                }
            }
            Ok(())
        };
        let mut result: Result<()> = result.await;
        // After an interrupt, what the pipe has given is still stored.
        let goes_on = match &result {
            Ok(()) => true,
            Err(failure) => is_pipe && matches!(failure, Failure::Interrupted),
        };
        while goes_on && !loader.waiting.is_empty() {
            if let Err(failure) = loader.resolve(ending, &progress).await {
                result = Err(failure);
                break;
            }
        }
        drop(progress);
        if let Err(failure) = result {
            let loaded = loader.loaded + loader.present;
            if is_pipe {
                loader.name_unreadable(&context.out);
                context.out.note(&format!("{loaded} messages were loaded"));
                let left = std::mem::take(&mut loader.waiting);
                return Err(save(failure, &args.queue, left, &mut lines, &interrupt).await);
            }
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

/// A message, and the line that it was read from.
struct Entry {
    message: Outgoing,
    line: Box<str>,
}

/// Saves lines that were read from a pipe and not stored, and all that follow, and adds to a failure where they
/// are.
async fn save<T, R: Fn(&str) -> Result<T, String>>(
    failure: Failure,
    queue: &QueueName,
    left: Vec<Entry>,
    lines: &mut Lines<R>,
    interrupt: &Interrupt,
) -> Failure {
    let saved = match save_lines(queue, left, lines, interrupt).await {
        Ok(None) => return failure,
        Ok(Some((path, count))) => {
            let (path, lines) = (path.display(), text::count(count, "line"));
            format!("{lines} not stored, saved in {path}: `pillarbox load {queue} {path}`")
        }
        Err(error) => format!("lines that were read and not stored cannot be saved: {error}"),
    };
    Failure::Other(match failure.text() {
        Some(text) => format!("{text}\n{saved}"),
        None => saved,
    })
}

/// Writes lines to a new file, and says which and how many. `None`: there were none.
async fn save_lines<T, R: Fn(&str) -> Result<T, String>>(
    queue: &QueueName,
    left: Vec<Entry>,
    lines: &mut Lines<R>,
    interrupt: &Interrupt,
) -> io::Result<Option<(PathBuf, u64)>> {
    let mut left = left.into_iter();
    let mut file = None;
    let mut count = 0;
    loop {
        let line = match left.next() {
            Some(entry) => entry.line,
            // Whoever types them sees the error, and need not type on.
            None if io::stdin().is_terminal() => break,
            None => match lines.next_unread(interrupt).await {
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

/// A new file for lines that could not be loaded: here, or where temporary files are.
fn new_file(queue: &QueueName) -> io::Result<(PathBuf, File)> {
    let queue = queue.as_str().replace([':', '/'], "_");
    let name = format!("pillarbox-load-{queue}-{}.jsonl", std::process::id());
    let make = |path: PathBuf| create(&path, Permissions::Private).map(|file| (path, file));
    make(PathBuf::from(&name)).or_else(|_| make(std::env::temp_dir().join(&name)))
}

struct Loader {
    queue: Arc<dyn Queue>,
    loaded: u64,
    present: u64,
    /// Not loaded, for the queue has another message of the same id: how many, and the first of them.
    refused: u64,
    named: Vec<MessageId>,
    /// Why lines of a pipe could not be read.
    unreadable: Vec<String>,
    /// Not stored yet, for the queue has a message of the same id that may be in flight.
    waiting: Vec<Entry>,
    max_waiting: usize,
    pause: Duration,
}

impl Loader {
    fn new(queue: Arc<dyn Queue>, is_pipe: bool) -> Self {
        Self {
            queue,
            loaded: 0,
            present: 0,
            refused: 0,
            named: Vec::new(),
            unreadable: Vec::new(),
            waiting: Vec::new(),
            max_waiting: if is_pipe { MAX_WAITING_OF_PIPE } else { MAX_WAITING },
            pause: FIRST_PAUSE,
        }
    }

    fn is_full(&self) -> bool {
        let bytes = || self.waiting.iter().map(|entry| entry.line.len()).sum::<usize>();
        self.waiting.len() >= self.max_waiting || bytes() >= MAX_WAITING_BYTES
    }

    /// Sends messages, no more than a call takes. Those that are not stored wait, and so do those of which
    /// nothing is known, when it fails.
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
                    self.pause = FIRST_PAUSE;
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

    /// Sends once more what waits, looks at what is in its way, and pauses if that is in flight.
    async fn resolve(&mut self, ending: Option<&Interrupt>, progress: &Progress) -> Result<()> {
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
        let found = look_for(&self.queue, &ids).await?;
        for entry in std::mem::take(&mut self.waiting) {
            let id = entry.message.id;
            match There::of(&entry.message, found.get(&id)) {
                There::Same => {
                    self.present += 1;
                    progress.add(1);
                }
                There::Other => {
                    self.refused += 1;
                    if self.named.len() < NAMED {
                        self.named.push(id);
                    }
                }
                There::InFlight | There::Nothing => self.waiting.push(entry),
            }
        }
        if !self.waiting.is_empty() {
            let waiting = text::count(self.waiting.len() as u64, "message");
            progress.say(format!("waiting for {waiting} in flight that have the same ids"));
            let pause = tokio::time::sleep(self.pause);
            match ending {
                Some(interrupt) => interrupt.or(pause).await?,
                None => pause.await,
            }
            self.pause = (self.pause * 2).min(RETRY_AFTER);
            progress.say("");
        }
        Ok(())
    }

    fn name_unreadable(&self, out: &Out) {
        for text in self.unreadable.iter().take(NAMED) {
            out.error(&format!("not loaded: {text}"));
        }
        let unreadable = self.unreadable.len();
        if unreadable > NAMED {
            out.error(&format!("and others: {unreadable} lines could not be read"));
        }
    }

    fn report(&self, out: &mut Out, queue: &QueueName) -> Result<()> {
        let Self { loaded, present, refused, .. } = *self;
        self.name_unreadable(out);
        for id in &self.named {
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
        if refused > 0 || !self.unreadable.is_empty() { Err(Failure::Reported) } else { Ok(()) }
    }
}
