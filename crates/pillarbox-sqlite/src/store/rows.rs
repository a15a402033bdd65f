//! Reads and writes the rows of messages, leases and queues.

use bytes::Bytes;
use pillarbox_core::ledger::Full;
use pillarbox_core::{Attributes, MessageId, Outgoing, QueueName, RawMessage, Receipt, Timestamp};
use rusqlite::types::{FromSqlError, ValueRef};
use rusqlite::{OptionalExtension, Result, Row, Statement, params};
use uuid::Uuid;

use super::cache::{Lease, QueueState, bucket_start};
use super::deliveries::Deliveries;
use super::key::QueueNumber;
use super::statements::Statements;

/// Writes messages with their keys, and empties the list. A message whose id is in the queue already is not written;
/// its result, one of the last in `results`, is corrected.
pub(super) fn store(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    messages: &mut Vec<(i64, &Outgoing)>,
    results: &mut [Result<bool, Full>],
    now: Timestamp,
) -> Result<()> {
    let (mut stored, mut rest) = (0, &messages[..]);
    while !rest.is_empty() {
        let (rows, statement) = statements.insert_messages.most_of(rest.len())?;
        let (these, later) = rest.split_at(rows);
        for (row, (key, message)) in these.iter().enumerate() {
            bind_message(statement, row, queue.number, *key, message, now)?;
        }
        stored += statement.raw_execute()?;
        // The bindings hold copies of the bodies.
        statement.clear_bindings();
        rest = later;
    }
    queue.count_stored(stored as u64);
    if stored < messages.len() {
        let first = results.len() - messages.len();
        for ((key, message), result) in messages.iter().zip(&mut results[first..]) {
            *result = Ok(find_message(statements, queue, message.id)? == Some(*key));
        }
    }
    messages.clear();
    Ok(())
}

/// Returns the key of the message with an id.
pub(super) fn find_message(
    statements: &mut Statements<'_>,
    queue: &QueueState,
    id: MessageId,
) -> Result<Option<i64>> {
    let id = params![id.as_bytes(), queue.number.0];
    statements.find_message()?.query_row(id, |row| row.get(0)).optional()
}

/// Binds the values of one row of an insert.
fn bind_message(
    statement: &mut Statement<'_>,
    row: usize,
    queue: QueueNumber,
    key: i64,
    message: &Outgoing,
    now: Timestamp,
) -> Result<()> {
    let first = row * 7 + 1;
    let attributes = (!message.attributes.is_empty()).then(|| write_attributes(message));
    let enqueued_at = message.enqueued_at.unwrap_or(now).as_nanos();
    statement.raw_bind_parameter(first, key)?;
    statement.raw_bind_parameter(first + 1, queue.0)?;
    statement.raw_bind_parameter(first + 2, message.id.as_bytes())?;
    statement.raw_bind_parameter(first + 3, enqueued_at)?;
    statement.raw_bind_parameter(first + 4, message.reply_to.as_deref())?;
    statement.raw_bind_parameter(first + 5, attributes)?;
    statement.raw_bind_parameter(first + 6, &message.body[..])
}

/// Writes a message that is delayed at first. Returns whether it was stored: not if its id is in the queue already.
pub(super) fn store_delayed(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    message: &Outgoing,
    now: Timestamp,
) -> Result<bool> {
    let place = queue.allocate_place();
    let key = queue.number.delayed_key(place);
    let (_, statement) = statements.insert_messages.most_of(1)?;
    bind_message(statement, 0, queue.number, key, message, now)?;
    let stored = statement.raw_execute()?;
    statement.clear_bindings();
    if stored > 0 {
        let due = now + message.delay;
        let timer = queue.set_timer(key, due);
        queue.count_stored(1);
        queue.delayed += 1;
        let (due, nonce) = (due.as_nanos(), None::<&[u8]>);
        let (_, statement) = statements.insert_timers.most_of(1)?;
        statement.execute(params![key, due, timer, 0, place, nonce, 0, 0])?;
    }
    Ok(stored > 0)
}

/// Writes the timers of leases, each with its order among those of the same moment.
pub(super) fn store_leases(statements: &mut Statements<'_>, leases: &[(i64, Lease)]) -> Result<()> {
    let mut rest = leases;
    while !rest.is_empty() {
        let (rows, statement) = statements.insert_timers.most_of(rest.len())?;
        let (these, later) = rest.split_at(rows);
        for (row, (timer, lease)) in these.iter().enumerate() {
            bind_lease(statement, row, *timer, lease)?;
        }
        statement.raw_execute()?;
        rest = later;
    }
    Ok(())
}

/// Binds the values of one row of an insert.
fn bind_lease(statement: &mut Statement<'_>, row: usize, timer: i64, lease: &Lease) -> Result<()> {
    let first = row * 8 + 1;
    statement.raw_bind_parameter(first, lease.key)?;
    statement.raw_bind_parameter(first + 1, lease.due.as_nanos())?;
    statement.raw_bind_parameter(first + 2, timer)?;
    statement.raw_bind_parameter(first + 3, lease.deliveries.count)?;
    statement.raw_bind_parameter(first + 4, lease.place)?;
    statement.raw_bind_parameter(first + 5, lease.nonce.as_bytes())?;
    statement.raw_bind_parameter(first + 6, lease.deliveries.unsettled)?;
    statement.raw_bind_parameter(first + 7, lease.deliveries.uncounted)
}

/// Removes the lease of a receipt from the cache and returns it. Expired leases were swept before.
pub(super) fn take_lease(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    receipt: &Receipt,
    now: Timestamp,
) -> Result<Option<(MessageId, Lease)>> {
    let Some((id, nonce)) = receipt.token() else { return Ok(None) };
    if let Some(lease) = queue.take_lease(id, nonce, now) {
        return Ok(Some((id, lease)));
    }
    let presented = params![id.as_bytes(), queue.number.0, nonce.as_bytes()];
    let found = statements.find_lease()?.query_row(presented, |row| {
        Ok(Lease {
            key: row.get(0)?,
            nonce,
            due: Timestamp::from_nanos(row.get(1)?),
            deliveries: Deliveries::read(row, 2)?,
            place: row.get(5)?,
            is_started: row.get(6)?,
        })
    });
    let found = found.optional()?.filter(|lease| !queue.acknowledged.contains(&lease.key));
    Ok(found.map(|lease| (id, lease)))
}

/// Deletes the acknowledged messages, consecutive keys together.
pub(super) fn delete_acknowledged(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
) -> Result<()> {
    if queue.acknowledged.is_empty() {
        return Ok(());
    }
    let mut keys: Vec<_> = queue.acknowledged.drain().collect();
    keys.sort_unstable();
    for run in keys.chunk_by(|key, next| key + 1 == *next) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        statements.delete_timers()?.execute([first, last])?;
        statements.delete_messages()?.execute([first, last])?;
    }
    Ok(())
}

pub(super) fn load(
    statements: &mut Statements<'_>,
    name: &QueueName,
) -> Result<Option<QueueState>> {
    let found = statements.find_queue()?.query_row([name.as_str()], |row| {
        Ok(QueueState {
            next_place: row.get(1)?,
            cursor: row.get(2)?,
            next_timer: row.get(3)?,
            total: row.get(4)?,
            in_flight: row.get(5)?,
            delayed: row.get(6)?,
            requeued: row.get(7)?,
            sent: row.get(8)?,
            ..QueueState::new(QueueNumber(row.get(0)?))
        })
    });
    let Some(mut queue) = found.optional()? else { return Ok(None) };
    let first: Option<i64> =
        statements.next_bucket()?.query_row([queue.number.0, i64::MIN], |row| row.get(0))?;
    queue.next_due = first.map(bucket_start);
    Ok(Some(queue))
}

/// Reads a message and sets its delivery counts.
pub(super) fn read_by_key(
    statements: &mut Statements<'_>,
    key: i64,
    deliveries: Deliveries,
) -> Result<RawMessage> {
    let mut message = statements.message()?.query_row([key], read_message)?;
    deliveries.apply_to(&mut message);
    Ok(message)
}

/// Reads key, id, enqueued_at, reply_to, attributes, body.
pub(crate) fn read_message(row: &Row<'_>) -> Result<RawMessage> {
    let id: [u8; 16] = row.get(1)?;
    let body = Bytes::copy_from_slice(row.get_ref(5)?.as_blob()?);
    let enqueued_at = Timestamp::from_nanos(row.get(2)?);
    let id = MessageId::from_uuid(Uuid::from_bytes(id));
    let mut message = RawMessage::new(id, body, enqueued_at);
    message.reply_to = row.get_ref(3)?.as_str_or_null()?.map(Into::into);
    if let ValueRef::Text(json) = row.get_ref(4)? {
        message.attributes = read_attributes(json)?;
    }
    Ok(message)
}

fn read_attributes(json: &[u8]) -> Result<Attributes, FromSqlError> {
    serde_json::from_slice(json).map_err(FromSqlError::other)
}

fn write_attributes(message: &Outgoing) -> String {
    // Cannot fail: names and values are strings.
    serde_json::to_string(&message.attributes).unwrap_or_default()
}
