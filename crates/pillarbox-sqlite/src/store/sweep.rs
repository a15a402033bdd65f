//! Timers: the deadlines of leases and the ends of delays.

use pillarbox_core::Timestamp;
use rusqlite::{Result, Row, params};

use super::cache::{QueueState, bucket_of, bucket_start};
use super::deliveries::Deliveries;
use super::statements::Statements;

/// A row of `timer`.
pub(super) struct Timer {
    pub(super) key: i64,
    pub(super) due_at: i64,
    pub(super) timer: i64,
    pub(super) deliveries: Deliveries,
    pub(super) delayed: bool,
    pub(super) is_started: bool,
}

pub(super) fn read_timer(row: &Row<'_>) -> Result<Timer> {
    Ok(Timer {
        key: row.get(0)?,
        due_at: row.get(1)?,
        timer: row.get(2)?,
        deliveries: Deliveries::read(row, 3)?,
        delayed: row.get(6)?,
        is_started: row.get(7)?,
    })
}

/// Requeues the messages whose timers ended by `now`, after all that are ready.
pub(super) fn sweep(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    now: Timestamp,
) -> Result<()> {
    write_expiry(statements, queue)?;
    let number = queue.number;
    let this_bucket = bucket_of(now);
    let ranges: Vec<(i64, i64, i64)> = statements
        .buckets_until()?
        .query_map([number.0, this_bucket], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_>>()?;
    let mut due = Vec::new();
    let mut next_due = None;
    for (bucket, lo, hi) in ranges {
        let timers = statements.due_timers()?;
        for timer in timers.query_map([lo, hi, now.as_nanos()], read_timer)? {
            due.push(timer?);
        }
        if bucket == this_bucket {
            let next: Option<i64> =
                statements.next_timer()?.query_row([lo, hi, now.as_nanos()], |row| row.get(0))?;
            next_due = next.into_iter().chain(next_due).min();
        }
    }
    // Ranges may overlap: a timer that was set twice is in two of them.
    due.sort_unstable_by_key(|timer| (timer.due_at, timer.timer));
    due.dedup_by_key(|timer| timer.key);
    for timer in &due {
        let place = queue.allocate_place();
        let deliveries = if timer.delayed {
            queue.delayed -= 1;
            timer.deliveries
        } else {
            queue.in_flight -= 1;
            timer.deliveries.expired(timer.is_started)
        };
        requeue(statements, queue, timer.key, place, deliveries)?;
    }
    if statements.delete_buckets()?.execute([number.0, this_bucket])? > 0 {
        // Ranges that are deleted here must be written again if the clock is set back.
        queue.expiry.clear();
    }
    let next_bucket: Option<i64> =
        statements.next_bucket()?.query_row([number.0, this_bucket], |row| row.get(0))?;
    let next_due = next_due.map(Timestamp::from_nanos);
    queue.next_due = next_due.into_iter().chain(next_bucket.map(bucket_start)).min();
    queue.swept = queue.swept.max(now);
    queue.dirty = true;
    Ok(())
}

/// Replaces the timer of a message by a row of `requeued`.
pub(super) fn requeue(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    key: i64,
    place: i64,
    deliveries: Deliveries,
) -> Result<()> {
    statements.delete_timer()?.execute([key])?;
    let place = queue.number.key(place);
    let Deliveries { count, unsettled, uncounted } = deliveries;
    let row = params![place, key, count, unsettled, uncounted];
    statements.insert_requeued()?.execute(row)?;
    queue.requeued += 1;
    Ok(())
}

/// Writes the ranges in which timers were set.
pub(super) fn write_expiry(statements: &mut Statements<'_>, queue: &mut QueueState) -> Result<()> {
    if queue.expiry_written {
        return Ok(());
    }
    for range in &queue.expiry {
        let range = [queue.number.0, range.bucket, range.lo, range.hi];
        statements.insert_expiry()?.execute(range)?;
    }
    // The last one is kept to be extended.
    queue.expiry.drain(..queue.expiry.len().saturating_sub(1));
    queue.expiry_written = true;
    Ok(())
}
