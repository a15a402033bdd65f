//! Reads as much as possible of a queue in a damaged file.
//!
//! Messages are returned in the order of their keys, which is that of sending. If a page of their table cannot be
//! read, the index of ids contains the messages that are on it; if that is damaged too, the next readable key is searched
//! for. Nothing is swept or written.

use std::collections::HashMap;

use pillarbox_core::{MessageId, MessageState, PeekPage, Peeked, QueueName, RawMessage, Timestamp};
use rusqlite::{OptionalExtension, Result, Row, params};
use uuid::Uuid;

use super::Store;
use super::deliveries::Deliveries;
use super::key::QueueNumber;
use super::ready::PeekFrom;
use super::rows::read_message;
use super::statements::Statements;
use super::sweep::{Timer, read_timer};
use crate::failure::{Failure, is_unreadable};

/// Number of keys past a damaged page that are tried one by one; after them the steps grow. A damaged interior page
/// of the tree hides about ten thousand messages.
const NEAR: i64 = 20_000;

/// The result of reading a part of a queue.
#[derive(Default)]
struct Found {
    messages: Vec<(i64, RawMessage)>,
    unreadable: Vec<String>,
    /// The last key that was tried. `None` if there are no more.
    next: Option<i64>,
}

impl Store<'_> {
    /// Returns up to `max` messages with keys after this one, and what could not be read.
    pub(crate) fn salvage(
        &mut self,
        name: &QueueName,
        max: usize,
        after: Option<i64>,
        now: Timestamp,
    ) -> Result<PeekPage, Failure> {
        let statements = &mut self.statements;
        let number = match find_queue(statements, name)? {
            Some(number) => number,
            None => return Ok(PeekPage::new(Vec::new(), None)),
        };
        let after = after.unwrap_or(number.base()).max(number.base());
        let Found { messages, mut unreadable, next } = read(statements, number, after, max)?;
        let (timers, again) = match (messages.first(), messages.last()) {
            (Some((first, _)), Some((last, _))) => (
                timers(statements, *first, *last, &mut unreadable)?,
                requeued(statements, number, &mut unreadable)?,
            ),
            _ => Default::default(),
        };
        let peeked = messages.into_iter().map(|(key, mut message)| {
            let until = |timer: &Timer| Timestamp::from_nanos(timer.due_at);
            let (state, deliveries) = match timers.get(&key) {
                Some(timer) if until(timer) > now && timer.delayed => {
                    (MessageState::Delayed { until: until(timer) }, timer.deliveries)
                }
                Some(timer) if until(timer) > now => {
                    (MessageState::InFlight { until: until(timer) }, timer.deliveries)
                }
                Some(timer) if timer.delayed => (MessageState::Ready, timer.deliveries),
                Some(timer) => (MessageState::Ready, timer.deliveries.expired(timer.is_started)),
                None => (MessageState::Ready, again.get(&key).copied().unwrap_or(Deliveries::NONE)),
            };
            deliveries.apply_to(&mut message);
            Peeked::new(message, state)
        });
        let next = next.map(|key| PeekFrom::Salvage(key).to_cursor());
        Ok(PeekPage::new(peeked.collect(), next).with_unreadable(unreadable))
    }
}

/// Returns the number of a queue, by the index of names or, if that is damaged, by a scan.
fn find_queue(statements: &mut Statements<'_>, name: &QueueName) -> Result<Option<QueueNumber>> {
    let mut number = statements.find_queue()?.query_row([name.as_str()], |row| row.get(0));
    if number.as_ref().is_err_and(is_unreadable) {
        number = statements.search_queue()?.query_row([name.as_str()], |row| row.get(0));
    }
    Ok(number.optional()?.map(QueueNumber))
}

/// Reads messages in the order of their keys, up to the first that cannot be read; if that is the first of all, past
/// it.
fn read(
    statements: &mut Statements<'_>,
    number: QueueNumber,
    after: i64,
    max: usize,
) -> Result<Found> {
    let mut found = Found::default();
    let mut rows = statements.fresh()?.query(params![after, number.last(), max])?;
    let mut last = None;
    let mut count = 0;
    loop {
        match rows.next() {
            Ok(Some(row)) => {
                let key = row.get(0)?;
                match read_message(row) {
                    Ok(message) => found.messages.push((key, message)),
                    Err(error) if is_unreadable(&error) => {
                        found.unreadable.push(format!("message with key {key}: {error}"));
                    }
                    Err(error) => return Err(error),
                }
                last = Some(key);
                count += 1;
            }
            Ok(None) => {
                found.next = last.filter(|_| count == max);
                return Ok(found);
            }
            Err(error) if is_unreadable(&error) => break,
            Err(error) => return Err(error),
        }
    }
    drop(rows);
    match last {
        // The next page begins with the unreadable message.
        Some(_) => found.next = last,
        None => return read_past(statements, number, after, max),
    }
    Ok(found)
}

/// Continues past a message that cannot be read.
fn read_past(
    statements: &mut Statements<'_>,
    number: QueueNumber,
    after: i64,
    max: usize,
) -> Result<Found> {
    let ids = read_ids(statements, number, after, max);
    let ids = match ids {
        // It lists none although there are some: the index or the table is wrong, or both are.
        Ok(ids) if !ids.is_empty() => ids,
        Err(error) if !is_unreadable(&error) && !is_missing_index(&error) => return Err(error),
        _ => return search_past(statements, number, after),
    };
    let mut found = Found { next: ids.last().map(|(key, _)| *key), ..Found::default() };
    if ids.len() < max {
        found.next = None;
    }
    for (key, id) in ids {
        match statements.message()?.query_row([key], read_message).optional() {
            Ok(Some(message)) => found.messages.push((key, message)),
            Ok(None) => {
                found.unreadable.push(format!("message {id}, which is only in the index of ids"));
            }
            Err(error) if is_unreadable(&error) => found.unreadable.push(format!("message {id}")),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns the keys and ids of messages, from the index of ids.
fn read_ids(
    statements: &mut Statements<'_>,
    number: QueueNumber,
    after: i64,
    max: usize,
) -> Result<Vec<(i64, MessageId)>> {
    let read = statements.ids_by_key()?.query_map(params![number.0, after, max], |row| {
        Ok((row.get(0)?, MessageId::from_uuid(Uuid::from_bytes(row.get(1)?))))
    })?;
    read.collect()
}

/// Searches for the next readable key, and reads its message, if there is one.
fn search_past(statements: &mut Statements<'_>, number: QueueNumber, after: i64) -> Result<Found> {
    let last = number.last();
    // By the key itself first: a search for the next one may lead from an intact page to a damaged one. If there is
    // no message with that key, the next one decides.
    let mut can_read = |key: i64| {
        let number = |row: &Row<'_>| row.get::<_, i64>(0);
        let found = match statements.enqueued_at()?.query_row([key], number).optional() {
            Ok(None) => {
                statements.fresh_keys()?.query_row(params![key, last, 1], number).optional()
            }
            found => found,
        };
        match found {
            Ok(_) => Ok(true),
            Err(error) if is_unreadable(&error) => Ok(false),
            Err(error) => Err(error),
        }
    };
    let mut found = Found::default();
    let (mut damaged, mut step) = (after, 1);
    let mut readable = loop {
        let next = damaged.saturating_add(step).min(last);
        if can_read(next)? {
            break next;
        }
        if next == last {
            found.unreadable.push(format!("any messages after key {after}"));
            return Ok(found);
        }
        damaged = next;
        if damaged - after > NEAR {
            step *= 2;
        }
    };
    // The first readable key lies between the two.
    while readable - damaged > 1 {
        let middle = damaged + (readable - damaged) / 2;
        if can_read(middle)? {
            readable = middle;
        } else {
            damaged = middle;
        }
    }
    if damaged > after {
        found.unreadable.push(format!("any messages between keys {after} and {readable}"));
    }
    match statements.message()?.query_row([readable], read_message).optional() {
        Ok(message) => found.messages.extend(message.map(|message| (readable, message))),
        Err(error) if is_unreadable(&error) => {
            found.unreadable.push(format!("message with key {readable}: {error}"));
        }
        Err(error) => return Err(error),
    }
    found.next = Some(readable);
    Ok(found)
}

fn is_missing_index(error: &rusqlite::Error) -> bool {
    error.to_string().contains("no such index")
}

/// Returns the timers of messages with keys from `first` to `last`.
fn timers(
    statements: &mut Statements<'_>,
    first: i64,
    last: i64,
    unreadable: &mut Vec<String>,
) -> Result<HashMap<i64, Timer>> {
    let range = params![first, last, i64::MIN, 0, i64::MAX];
    let read = statements.timers_in_order()?.query_map(range, read_timer)?.collect();
    let read: Vec<Timer> = or_none(read, unreadable, "which messages are in flight or delayed")?;
    Ok(read.into_iter().map(|timer| (timer.key, timer)).collect())
}

/// Returns the delivery counts of messages that are ready again.
fn requeued(
    statements: &mut Statements<'_>,
    number: QueueNumber,
    unreadable: &mut Vec<String>,
) -> Result<HashMap<i64, Deliveries>> {
    let range = params![number.base(), number.last_ready(), i64::MAX];
    let read = statements
        .requeued()?
        .query_map(range, |row| Ok((row.get::<_, i64>(1)?, Deliveries::read(row, 2)?)))?;
    let subject = "the delivery counts of messages that are ready again";
    let read: Vec<_> = or_none(read.collect(), unreadable, subject)?;
    Ok(read.into_iter().collect())
}

/// Returns what was read, or nothing if it is unreadable.
fn or_none<T>(
    read: Result<Vec<T>>,
    unreadable: &mut Vec<String>,
    subject: &'static str,
) -> Result<Vec<T>> {
    read.or_else(|error| {
        if is_unreadable(&error) {
            unreadable.push(subject.to_owned());
            return Ok(Vec::new());
        }
        Err(error)
    })
}
