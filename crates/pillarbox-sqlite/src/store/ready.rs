//! Ready messages in order: those that were never delivered, and those that are ready again.

use pillarbox_core::{Cursor, RawMessage};
use rusqlite::{Result, params};

use super::cache::QueueState;
use super::deliveries::Deliveries;
use super::key::{MAX_PLACE, place_of};
use super::rows::{read_by_key, read_message};
use super::statements::Statements;

/// A message that is to be delivered.
pub(super) struct Picked {
    pub(super) key: i64,
    pub(super) place: i64,
    /// The counts before this delivery.
    pub(super) deliveries: Deliveries,
    pub(super) message: RawMessage,
}

/// Takes the next messages if none is ready again: those past the cursor.
pub(super) fn pick_fresh(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    max: usize,
) -> Result<Vec<Picked>> {
    let (after, last) = (queue.number.key(queue.cursor), queue.number.last_ready());
    let mut rows = statements.fresh()?.query(params![after, last, max])?;
    let mut picked = Vec::with_capacity(max);
    while let Some(row) = rows.next()? {
        let key = row.get(0)?;
        let (place, deliveries) = (place_of(key), Deliveries::NONE);
        picked.push(Picked { key, place, deliveries, message: read_message(row)? });
    }
    if let Some(last) = picked.last() {
        queue.cursor = last.place;
    }
    Ok(picked)
}

/// Takes the next messages, both of those ready again and of those past the cursor.
pub(super) fn pick_merged(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    max: usize,
) -> Result<Vec<Picked>> {
    let ready = ReadyMessages::new(statements, queue, 0, max)?;
    let mut picked = Vec::with_capacity(max);
    let mut last_requeued = None;
    for next in ready {
        let message = read_by_key(statements, next.key, next.deliveries)?;
        if next.is_requeued {
            last_requeued = Some(next.place);
            queue.requeued -= 1;
        } else {
            queue.cursor = next.place;
        }
        let ReadyEntry { key, place, deliveries, .. } = next;
        picked.push(Picked { key, place, deliveries, message });
    }
    if let Some(last) = last_requeued {
        let taken = params![queue.number.base(), queue.number.key(last)];
        statements.delete_requeued()?.execute(taken)?;
    }
    Ok(picked)
}

/// The ready messages of both kinds, merged in order.
pub(super) struct ReadyMessages {
    requeued: std::iter::Peekable<std::vec::IntoIter<ReadyEntry>>,
    fresh: std::iter::Peekable<std::vec::IntoIter<ReadyEntry>>,
    left: usize,
}

pub(super) struct ReadyEntry {
    pub(super) place: i64,
    pub(super) key: i64,
    pub(super) deliveries: Deliveries,
    is_requeued: bool,
}

impl ReadyMessages {
    /// Up to `max` messages after a place.
    pub(super) fn new(
        statements: &mut Statements<'_>,
        queue: &QueueState,
        after: i64,
        max: usize,
    ) -> Result<Self> {
        let (number, last) = (queue.number, queue.number.last_ready());
        let mut requeued = Vec::new();
        if queue.requeued > 0 {
            let range = params![number.key(after), last, max];
            let mut rows = statements.requeued()?.query(range)?;
            while let Some(row) = rows.next()? {
                requeued.push(ReadyEntry {
                    place: place_of(row.get(0)?),
                    key: row.get(1)?,
                    deliveries: Deliveries::read(row, 2)?,
                    is_requeued: true,
                });
            }
        }
        let mut fresh = Vec::new();
        if queue.fresh() > 0 {
            let range = params![number.key(after.max(queue.cursor)), last, max];
            let mut rows = statements.fresh_keys()?.query(range)?;
            while let Some(row) = rows.next()? {
                let key = row.get(0)?;
                let (place, deliveries) = (place_of(key), Deliveries::NONE);
                fresh.push(ReadyEntry { place, key, deliveries, is_requeued: false });
            }
        }
        let (requeued, fresh) = (requeued.into_iter().peekable(), fresh.into_iter().peekable());
        Ok(Self { requeued, fresh, left: max })
    }
}

impl Iterator for ReadyMessages {
    type Item = ReadyEntry;

    fn next(&mut self) -> Option<ReadyEntry> {
        self.left = self.left.checked_sub(1)?;
        let from_requeued = match (self.requeued.peek(), self.fresh.peek()) {
            (Some(requeued), Some(fresh)) => requeued.place < fresh.place,
            (requeued, _) => requeued.is_some(),
        };
        if from_requeued { self.requeued.next() } else { self.fresh.next() }
    }
}

/// The message after which a page of a peek begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeekFrom {
    /// A ready message, by its place.
    Place(i64),
    /// A message in flight or delayed, by its deadline and its order among those of the same moment.
    Timer(i64, i64),
    /// A message in any state, by its key: the file is damaged, and the peek reads what can be read.
    Salvage(i64),
}

impl PeekFrom {
    pub(crate) fn to_cursor(self) -> Cursor {
        Cursor::new(match self {
            Self::Place(place) => format!("ready.{place}"),
            Self::Timer(due, timer) => format!("timer.{due}.{timer}"),
            Self::Salvage(key) => format!("salvage.{key}"),
        })
    }

    pub(crate) fn of_cursor(cursor: &Cursor) -> Option<Self> {
        let (kind, rest) = cursor.as_str().split_once('.')?;
        match kind {
            "ready" => {
                let place = rest.parse().ok()?;
                (0..=MAX_PLACE).contains(&place).then_some(Self::Place(place))
            }
            "timer" => {
                let (due, timer) = rest.split_once('.')?;
                Some(Self::Timer(due.parse().ok()?, timer.parse().ok()?))
            }
            "salvage" => Some(Self::Salvage(rest.parse().ok()?)),
            _ => None,
        }
    }
}
