//! What all handles of one queue in this process share, and the operations on it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pillarbox_core::{
    Counts, Cursor, Delivery, Error, MessageState, Outgoing, PeekPage, Peeked, QueueName, Receive,
    Result, Settle, Timestamp,
};
use redis::Cmd;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::failure::Failure;
use crate::format::{self, IdText, Keys, LONG_AGO};
use crate::lane::{Caller, Lane, Limits, submit};
use crate::line::Line;
use crate::operations::{Found, Purges, Receives, Sending, Sends, Settles};
use crate::reply::{Reply, Words};
use crate::scripts::{self, Script};

/// What all handles of one queue in this process share.
pub(crate) struct Hub {
    pub(crate) name: QueueName,
    pub(crate) keys: Keys,
    pub(crate) engine: Arc<Engine>,
    pub(crate) sends: Lane<Sends>,
    pub(crate) receives: Lane<Receives>,
    pub(crate) settles: Lane<Settles>,
    pub(crate) purges: Lane<Purges>,
    line: Mutex<Line>,
    /// Whether the queue's wake-ups are heard.
    is_heard: AtomicBool,
    /// Whether more was done with it than looking.
    is_used: AtomicBool,
    /// When the queue was last put on the list of queues.
    listed: Mutex<Option<Instant>>,
}

/// How often a queue that is sent to is put on the list anew. See `Backend::queues`.
const LIST_AGAIN: Duration = Duration::from_secs(600);

impl Hub {
    pub(crate) fn new(name: QueueName, engine: Arc<Engine>) -> Self {
        let limits = if engine.link.usage.coalesce {
            Limits { runners: 2, entries: 256 }
        } else {
            Limits { runners: usize::MAX, entries: 0 }
        };
        Self {
            keys: Keys::new(&name),
            name,
            engine,
            sends: Lane::new(limits),
            receives: Lane::new(limits),
            settles: Lane::new(limits),
            purges: Lane::new(limits),
            line: Mutex::default(),
            is_heard: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            listed: Mutex::default(),
        }
    }

    /// The receivers that wait. Held for moments, never across an await.
    pub(crate) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that more is done than looking.
    pub(crate) fn use_it(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Notes whether wake-ups are heard from now on. What was published before they were must be asked for.
    pub(crate) fn set_heard(&self, is_heard: bool) {
        self.is_heard.store(is_heard, Ordering::Release);
        self.line().wake();
    }

    pub(crate) fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::Acquire)
    }

    /// Stores messages. Says of each whether there was room.
    pub(crate) async fn send(
        self: &Arc<Self>,
        messages: Vec<Outgoing>,
        max_size: Option<u64>,
    ) -> Result<Vec<bool>, Failure> {
        submit::<Sends>(self, Sending { messages, max_size }).await
    }

    /// Delivers what is ready; where nothing is, says when something will be.
    pub(crate) async fn receive(self: &Arc<Self>, request: Receive) -> Result<Found, Failure> {
        let found = submit::<Receives>(self, request).await?;
        if let Found::Claim { next, .. } = &found {
            let next = next.map_or(request.visibility, |next| next.min(request.visibility));
            self.line().found_something(later(next));
        }
        Ok(found)
    }

    /// Ends or extends leases. Says of each whether its receipt was good.
    pub(crate) async fn settle(self: &Arc<Self>, batch: Vec<Settle>) -> Result<Vec<bool>, Failure> {
        submit::<Settles>(self, batch).await
    }

    /// Deletes all messages and says how many.
    pub(crate) async fn purge(self: &Arc<Self>) -> Result<u64, Failure> {
        submit::<Purges>(self, ()).await
    }

    /// Counts the messages.
    pub(crate) async fn counts(&self) -> Result<Counts, Failure> {
        loop {
            let mut reply = self.run_unremembered(&scripts::COUNTS, |_| ()).await?;
            let is_more_due = reply.integer()? == 1;
            let (ready, in_flight, delayed) = (reply.count()?, reply.count()?, reply.count()?);
            let sent = reply.count()?;
            let now = reply.parsed::<i64>().map(Timestamp::from_micros)?;
            let start = reply.bytes_or_nothing()?;
            let oldest = start.map(|start| format::sent_at(&start).unwrap_or(LONG_AGO));
            if !is_more_due {
                return Ok(Counts::new(ready, in_flight, delayed)
                    .with_oldest_age(oldest.map(|at| now.since(at)))
                    .with_sent(Some(sent)));
            }
        }
    }

    /// Shows messages, from the first one or from where a page ended.
    pub(crate) async fn peek(&self, max: usize, after: &PageEnd) -> Result<PeekPage, Failure> {
        let mut reply = self
            .run_unremembered(&scripts::PEEK, |command| {
                command.arg(max).arg(after.part).arg(&after.place).arg(&after.last);
            })
            .await?;
        let in_line = reply.bytes()? == b"r";
        let ready_shown = reply.count()?;
        let (mut messages, mut shown, mut last) = (Vec::new(), 0, None);
        while !reply.is_empty() {
            let (id_text, score) = (reply.bytes()?, reply.bytes()?);
            let (meta, data) = (reply.bytes()?, reply.bytes_or_nothing()?);
            // Without data it is no message; a receive would pass over it.
            if let Some(data) = data {
                let id = IdText::parse(&id_text).ok_or_else(|| reply.wrong())?;
                let (is_held, count) = format::meta(&meta).ok_or_else(|| reply.wrong())?;
                let state = match format::score(&score) {
                    None => MessageState::Ready,
                    Some(until) if is_held => MessageState::InFlight { until },
                    Some(until) => MessageState::Delayed { until },
                };
                messages.push(Peeked::new(format::message(id, data, count), state));
            }
            shown += 1;
            last = Some((id_text, score));
        }
        let next = last.filter(|_| shown == max).map(|(id, score)| {
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let (part, place) =
                if in_line { ("r", ready_shown.to_string()) } else { ("i", text(score)) };
            PageEnd { part, place, last: text(id) }.into()
        });
        Ok(PeekPage::new(messages, next))
    }

    /// Deletes what is left of the queue if it holds no message, so that short-lived queues do not
    /// pile up. One that was only looked at is left as it is.
    pub(crate) async fn forget(&self) {
        if self.is_used.load(Ordering::Relaxed)
            && let Err(failure) = self.run_unremembered(&scripts::FORGET, |_| ()).await
        {
            tracing::debug!(queue = %self.name, %failure, "a queue was not forgotten");
        }
    }

    /// Gives deliveries back that nobody has seen.
    pub(crate) fn release(self: Arc<Self>, deliveries: Vec<Delivery>) {
        let engine = self.engine.clone();
        engine.spawn(async move {
            let tokens: Vec<_> = deliveries.iter().filter_map(|d| d.receipt.token()).collect();
            let released = self.run_unremembered(&scripts::RELEASE, |command| {
                for (id, nonce) in &tokens {
                    command.arg(IdText::new(*id).as_bytes()).arg(nonce.to_string());
                }
            });
            if let Err(failure) = released.await {
                // They come back when their leases end.
                tracing::debug!(queue = %self.name, %failure, "deliveries could not be given back");
            }
        });
    }

    /// Runs a script whose answer needs not be remembered.
    pub(crate) async fn run_unremembered(
        &self,
        script: &Script,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Words, Failure> {
        let caller = Caller { key: self.keys.call(""), number: 0, is_unsure: false };
        self.run(script, &caller, arguments).await.map(Reply::words)
    }

    pub(crate) async fn run(
        &self,
        script: &Script,
        caller: &Caller,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Reply, Failure> {
        let Engine { link, gate, .. } = &*self.engine;
        let remembered = link.usage.retry_for * 2 + Duration::from_secs(60);
        let ttl = link.usage.default_ttl.map_or(0, |ttl| ttl.as_millis().max(1));
        let value = link.run(gate, script, caller.is_unsure, |command, again| {
            let Keys { pending, invisible, data, meta, .. } = &self.keys;
            let keys = [pending, invisible, data, meta, &caller.key, &caller.key];
            let keys = if again { &keys[..] } else { &keys[..5] };
            command.arg(keys.len()).arg(keys);
            command.arg(format!("{:012}", caller.number));
            command.arg(remembered.as_millis() as u64).arg(ttl as u64);
            arguments(command);
        });
        Ok(Reply::new(value.await?, &link.place))
    }

    /// Puts the queue on the list of queues, for it came into being just now.
    pub(crate) async fn list_anew(&self) -> Result<(), Failure> {
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.list().await
    }

    /// Puts the queue on the list of queues, unless that was done lately.
    pub(crate) async fn list(&self) -> Result<(), Failure> {
        let now = Instant::now();
        let listed = *self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.is_some_and(|at| now.duration_since(at) < LIST_AGAIN) {
            return Ok(());
        }
        self.engine.list(&self.name).await?;
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
    }
}

/// So long from now, or as long as it makes a difference.
pub(crate) fn later(wait: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);
    Instant::now() + wait.min(YEARS)
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Where a page of messages ended.
#[derive(Debug)]
pub(crate) struct PageEnd {
    /// `r` among the ready ones, `i` among the others.
    part: &'static str,
    /// How many ready ones were shown, or the score of the last.
    place: String,
    /// The id of the last.
    last: String,
}

impl PageEnd {
    /// Before the first message.
    pub(crate) fn beginning() -> Self {
        Self { part: "r", place: "0".into(), last: String::new() }
    }

    /// Reads a cursor that was given before.
    pub(crate) fn of(cursor: &Cursor, queue: &QueueName) -> Result<Self> {
        let read = || {
            let mut words = cursor.as_str().split(' ');
            let part = match words.next()? {
                "r" => "r",
                "i" => "i",
                _ => return None,
            };
            let (place, last) = (words.next()?, words.next()?);
            match part {
                "r" => drop(place.parse::<u64>().ok()?),
                _ => drop(place.parse::<f64>().ok().filter(|score| score.is_finite())?),
            }
            Some(Self { part, place: place.to_owned(), last: last.to_owned() })
        };
        read().ok_or_else(|| {
            let allowed = "a cursor that this queue gave";
            Error::invalid(Some(queue), "cursor", cursor.as_str(), allowed)
        })
    }
}

impl From<PageEnd> for Cursor {
    fn from(end: PageEnd) -> Self {
        Self::new(format!("{} {} {}", end.part, end.place, end.last))
    }
}
