//! All statements of the store, prepared on first use.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, Result};

/// Largest number of rows that a statement inserts.
pub(super) const MANY: usize = 16;

// `OR FAIL`: if one of them fails, the whole transaction is rolled back. The default would keep a journal of each
// statement, to roll back that statement alone.
const INSERT_MESSAGE: &str =
    "INSERT OR FAIL INTO pillarbox_message VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT (id, queue) DO NOTHING";
const INSERT_TIMER: &str =
    "INSERT OR FAIL INTO pillarbox_timer VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0)";

/// Statements that insert a power of two of rows each, up to [`MANY`].
///
/// One statement for many rows starts once and descends the tree once, not for each row.
pub(super) struct Inserts<'c> {
    connection: &'c Connection,
    sql: &'c ByPower<String>,
    by_power: ByPower<Option<CachedStatement<'c>>>,
}

/// One for each power of two up to [`MANY`].
type ByPower<T> = [T; MANY.ilog2() as usize + 1];

static INSERT_MESSAGES: LazyLock<ByPower<String>> = LazyLock::new(|| by_power(INSERT_MESSAGE));
static INSERT_TIMERS: LazyLock<ByPower<String>> = LazyLock::new(|| by_power(INSERT_TIMER));

fn by_power(of_one: &str) -> ByPower<String> {
    std::array::from_fn(|power| of_rows(of_one, 1 << power))
}

impl<'c> Inserts<'c> {
    fn new(connection: &'c Connection, sql: &'c ByPower<String>) -> Self {
        Self { connection, sql, by_power: Default::default() }
    }

    /// Returns the largest of these statements for at most `rows` rows (at least 1), with its number of rows.
    pub(super) fn most_of(&mut self, rows: usize) -> Result<(usize, &mut CachedStatement<'c>)> {
        let power = rows.min(MANY).ilog2() as usize;
        let rows = 1 << power;
        let statement = match &mut self.by_power[power] {
            Some(statement) => statement,
            empty => empty.insert(self.connection.prepare_cached(&self.sql[power])?),
        };
        Ok((rows, statement))
    }
}

/// Returns the same statement with the values of several rows.
fn of_rows(one: &str, rows: usize) -> String {
    let (start, rest) = one.split_at(one.find('(').unwrap_or(one.len()));
    let (values, end) = rest.split_at(rest.find(')').map_or(rest.len(), |place| place + 1));
    // Parameters in order need no numbers, which would be the same in every row.
    let mut values = values.split('?');
    let mut row = values.next().unwrap_or_default().to_owned();
    for value in values {
        row.push('?');
        row.push_str(value.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    format!("{start}{}{end}", vec![row; rows].join(", "))
}

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $sql:expr;)*) => {
        /// The statements of one connection.
        pub(super) struct Statements<'c> {
            connection: &'c Connection,
            pub(super) insert_messages: Inserts<'c>,
            pub(super) insert_timers: Inserts<'c>,
            $($name: Option<CachedStatement<'c>>,)*
        }

        impl<'c> Statements<'c> {
            pub(super) fn new(connection: &'c Connection) -> Self {
                Self {
                    connection,
                    insert_messages: Inserts::new(connection, &INSERT_MESSAGES),
                    insert_timers: Inserts::new(connection, &INSERT_TIMERS),
                    $($name: None,)*
                }
            }

            $(
                $(#[$doc])*
                pub(super) fn $name(&mut self) -> Result<&mut CachedStatement<'c>> {
                    match &mut self.$name {
                        Some(statement) => Ok(statement),
                        empty => Ok(empty.insert(self.connection.prepare_cached($sql)?)),
                    }
                }
            )*
        }
    };
}

statements! {
    schema_version = "SELECT version FROM pillarbox_schema";

    find_queue = "SELECT queue, next_place, cursor, next_timer, total, in_flight, delayed, requeued,
        sent FROM pillarbox_queue WHERE name = ?1";
    /// The same, without the index of names.
    search_queue = "SELECT queue FROM pillarbox_queue NOT INDEXED WHERE name = ?1";
    next_queue = "SELECT coalesce(max(queue), 0) + 1 FROM pillarbox_queue";
    /// The lowest free number below the highest one in use.
    gap_queue = "SELECT min(number) + 1
        FROM (SELECT 0 AS number UNION ALL SELECT queue FROM pillarbox_queue) AS q
        WHERE NOT EXISTS (SELECT 1 FROM pillarbox_queue WHERE queue = q.number + 1)";
    insert_queue = "INSERT INTO pillarbox_queue VALUES (?1, ?2, 1, 0, 1, 0, 0, 0, 0, ?3)";
    update_queue = "UPDATE pillarbox_queue SET next_place = ?2, cursor = ?3, next_timer = ?4,
        total = ?5, in_flight = ?6, delayed = ?7, requeued = ?8, sent = ?9 WHERE queue = ?1";
    mark_purged = "UPDATE pillarbox_queue SET name = NULL WHERE queue = ?1";
    delete_queue = "DELETE FROM pillarbox_queue WHERE queue = ?1";
    queue_names = "SELECT name FROM pillarbox_queue WHERE name IS NOT NULL ORDER BY name";
    purged_queue = "SELECT queue FROM pillarbox_queue WHERE name IS NULL LIMIT 1";

    find_message = "SELECT key FROM pillarbox_message WHERE id = ?1 AND queue = ?2";
    /// Messages that were never delivered, in order, between two keys.
    fresh = "SELECT key, id, enqueued_at, reply_to, attributes, body FROM pillarbox_message
        WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3";
    fresh_keys = "SELECT key FROM pillarbox_message
        WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3";
    message = "SELECT key, id, enqueued_at, reply_to, attributes, body FROM pillarbox_message
        WHERE key = ?1";
    enqueued_at = "SELECT enqueued_at FROM pillarbox_message WHERE key = ?1";
    delete_messages = "DELETE FROM pillarbox_message WHERE key BETWEEN ?1 AND ?2";

    /// Keys and ids, read from the index alone.
    ids_by_key = "SELECT key, id FROM pillarbox_message INDEXED BY pillarbox_message_id
        WHERE queue = ?1 AND key > ?2 ORDER BY key LIMIT ?3";

    /// The lease of a receipt.
    find_lease = "SELECT t.key, t.due_at, t.deliveries, t.unsettled, t.uncounted, t.place, t.started
        FROM pillarbox_message AS m JOIN pillarbox_timer AS t ON t.key = m.key
        WHERE m.id = ?1 AND m.queue = ?2 AND t.nonce = ?3";
    update_timer = "UPDATE pillarbox_timer SET due_at = ?2, timer = ?3, nonce = ?4, uncounted = ?5, started = ?6
        WHERE key = ?1";
    delete_timer = "DELETE FROM pillarbox_timer WHERE key = ?1";
    delete_timers = "DELETE FROM pillarbox_timer WHERE key BETWEEN ?1 AND ?2";
    due_timers = "SELECT key, due_at, timer, deliveries, unsettled, uncounted, nonce IS NULL, started
        FROM pillarbox_timer
        WHERE key BETWEEN ?1 AND ?2 AND due_at <= ?3";
    next_timer = "SELECT min(due_at) FROM pillarbox_timer
        WHERE key BETWEEN ?1 AND ?2 AND due_at > ?3";
    timers_in_order = "SELECT t.key, t.due_at, t.timer, t.deliveries, t.unsettled, t.uncounted,
        t.nonce IS NULL, t.started FROM pillarbox_timer AS t WHERE t.key BETWEEN ?1 AND ?2 AND (t.due_at, t.timer) > (?3, ?4)
        ORDER BY t.due_at, t.timer LIMIT ?5";

    insert_expiry = "INSERT INTO pillarbox_expiry VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (queue, bucket, lo) DO UPDATE SET hi = max(hi, excluded.hi)";
    next_bucket = "SELECT min(bucket) FROM pillarbox_expiry WHERE queue = ?1 AND bucket > ?2";
    buckets_until = "SELECT bucket, lo, hi FROM pillarbox_expiry WHERE queue = ?1 AND bucket <= ?2";
    delete_buckets = "DELETE FROM pillarbox_expiry WHERE queue = ?1 AND bucket < ?2";
    delete_all_buckets = "DELETE FROM pillarbox_expiry WHERE queue = ?1";

    insert_requeued = "INSERT OR FAIL INTO pillarbox_requeued VALUES (?1, ?2, ?3, ?4, ?5)";
    requeued = "SELECT key, message, deliveries, unsettled, uncounted FROM pillarbox_requeued
        WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3";
    delete_requeued = "DELETE FROM pillarbox_requeued WHERE key BETWEEN ?1 AND ?2";

    reclaim_messages = "DELETE FROM pillarbox_message WHERE key IN
        (SELECT key FROM pillarbox_message WHERE key BETWEEN ?1 AND ?2 LIMIT ?3)";
    reclaim_timers = "DELETE FROM pillarbox_timer WHERE key IN
        (SELECT key FROM pillarbox_timer WHERE key BETWEEN ?1 AND ?2 LIMIT ?3)";
    reclaim_requeued = "DELETE FROM pillarbox_requeued WHERE key IN
        (SELECT key FROM pillarbox_requeued WHERE key BETWEEN ?1 AND ?2 LIMIT ?3)";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_for_several_rows_is_that_for_one_repeated() {
        let three = of_rows("INSERT INTO t VALUES (?1, ?2, 0) ON CONFLICT (a) DO NOTHING", 3);
        let expected =
            "INSERT INTO t VALUES (?, ?, 0), (?, ?, 0), (?, ?, 0) ON CONFLICT (a) DO NOTHING";
        assert_eq!(three, expected);
    }

    #[test]
    fn rows_go_into_as_few_statements_as_there_are_powers_of_two_in_them() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (a, b)").unwrap();
        let sql = by_power("INSERT INTO t VALUES (?1, ?2)");
        let mut inserts = Inserts::new(&connection, &sql);
        for (mut left, expected) in
            [(1, &[1][..]), (10, &[8, 2]), (16, &[16]), (39, &[16, 16, 4, 2, 1])]
        {
            let mut parts = Vec::new();
            while left > 0 {
                let (rows, statement) = inserts.most_of(left).unwrap();
                assert_eq!(statement.parameter_count(), 2 * rows);
                parts.push(rows);
                left -= rows;
            }
            assert_eq!(parts, expected);
        }
    }
}
