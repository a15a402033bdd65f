//! The schema of a database, its versions and its migration.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::failure::Failure;

/// The migrations from each version of the schema to the next; the first creates version 1.
///
/// The statements of a released step never change. A step runs in one transaction with those after it.
const STEPS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("schema-2.sql"),
    include_str!("schema-3.sql"),
    include_str!("schema-4.sql"),
];

/// The schema version of this program.
pub(crate) const VERSION: i64 = STEPS.len() as i64;

/// The content of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// No tables.
    Nothing,
    /// Tables of another program, and none of ours.
    Foreign,
    /// Tables of another program with names like ours.
    NameClash,
    /// Our tables, of this version, possibly beside others.
    Ours(i64),
}

/// Reads the kind of content of a database, and changes nothing.
pub(crate) fn content(connection: &Connection) -> Result<Content, Failure> {
    let tables = "SELECT count(*), coalesce(sum(name = 'pillarbox_schema'), 0),
        coalesce(sum(name LIKE 'pillarbox%'), 0) FROM sqlite_schema";
    let (all, ours, alike): (u64, u64, u64) =
        connection.query_row(tables, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    match (all, ours, alike) {
        (0, ..) => return Ok(Content::Nothing),
        (_, 0, 0) => return Ok(Content::Foreign),
        (_, 0, _) => return Ok(Content::NameClash),
        _ => {}
    }
    let version = connection
        .query_row("SELECT version FROM pillarbox_schema", [], |row| row.get(0))
        .optional()?;
    Ok(Content::Ours(version.unwrap_or(0)))
}

/// Refuses a version that is newer than that of this program.
pub(crate) fn check_version(version: i64) -> Result<(), Failure> {
    if version > VERSION {
        return Err(Failure::Newer { found: version, known: VERSION });
    }
    Ok(())
}

/// Refuses a version other than that of this program: a newer one, and an older one that was not migrated.
pub(crate) fn check_current(version: i64) -> Result<(), Failure> {
    check_version(version)?;
    if version < VERSION {
        return Err(Failure::Older { found: version, known: VERSION });
    }
    Ok(())
}

/// Migrates a database to the version of this program, completely or not at all.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), Failure> {
    migrate_by(connection, STEPS)
}

fn migrate_by(connection: &mut Connection, steps: &[&str]) -> Result<(), Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = match content(&transaction)? {
        Content::Ours(version) => version,
        Content::Nothing | Content::Foreign | Content::NameClash => 0,
    };
    let known = steps.len() as i64;
    if version > known {
        return Err(Failure::Newer { found: version, known });
    }
    for step in steps.iter().skip(version as usize) {
        transaction.execute_batch(step)?;
    }
    if version < known {
        transaction.execute("UPDATE pillarbox_schema SET version = ?1", [known])?;
        transaction.commit()?;
    }
    Ok(())
}

/// Creates the schema of an earlier version.
#[cfg(test)]
pub(crate) fn make_version(connection: &mut Connection, version: usize) {
    migrate_by(connection, &STEPS[..version]).unwrap();
}

/// Returns the tables, indexes and views that a database of this version lacks, with the statements that create them.
pub(crate) fn missing(connection: &Connection) -> Result<Vec<(String, String)>, Failure> {
    let mut whole = Connection::open_in_memory()?;
    migrate(&mut whole)?;
    let mut expected =
        whole.prepare("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")?;
    let mut exists = connection.prepare("SELECT 1 FROM sqlite_schema WHERE name = ?1")?;
    let mut missing = Vec::new();
    for row in expected.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        let (name, sql): (String, String) = row?;
        if !exists.exists([&name])? {
            missing.push((name, sql));
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(connection: &Connection) -> i64 {
        let sql = "SELECT version FROM pillarbox_schema";
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_file_goes_forward_step_by_step_and_keeps_its_rows() {
        let mut connection = Connection::open_in_memory().unwrap();
        make_version(&mut connection, 1);
        assert_eq!(version(&connection), 1);
        connection
            .execute("INSERT INTO pillarbox_queue VALUES (1, 'q', 1, 0, 1, 0, 0, 0, 0)", [])
            .unwrap();

        let next = [STEPS[0], "ALTER TABLE pillarbox_queue ADD COLUMN paused INTEGER", "SELECT 1"];
        migrate_by(&mut connection, &next).unwrap();
        migrate_by(&mut connection, &next).unwrap();
        assert_eq!(version(&connection), 3);
        let sql = "SELECT name FROM pillarbox_queue WHERE paused IS NULL";
        let name: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(name, "q");
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was() {
        let mut connection = Connection::open_in_memory().unwrap();
        make_version(&mut connection, 1);
        let next = [STEPS[0], "CREATE TABLE more (x); SELECT * FROM missing"];
        migrate_by(&mut connection, &next).unwrap_err();
        assert_eq!(content(&connection).unwrap(), Content::Ours(1));
        let more = "SELECT count(*) FROM sqlite_schema WHERE name = 'more'";
        assert_eq!(connection.query_row(more, [], |row| row.get::<_, u64>(0)).unwrap(), 0);
    }

    #[test]
    fn a_queue_of_version_1_has_sent_what_it_holds() {
        let mut connection = Connection::open_in_memory().unwrap();
        make_version(&mut connection, 1);
        let rows = "INSERT INTO pillarbox_queue VALUES
            (1, 'full', 9, 3, 3, 4, 1, 1, 1), (2, 'empty', 9, 8, 3, 0, 0, 0, 0)";
        connection.execute(rows, []).unwrap();
        assert!(matches!(check_current(1), Err(Failure::Older { found: 1, known: VERSION })));
        migrate(&mut connection).unwrap();
        check_current(version(&connection)).unwrap();
        let shown =
            "SELECT group_concat(queue || ' ' || total || ' ' || sent) FROM pillarbox_queues";
        let shown: String = connection.query_row(shown, [], |row| row.get(0)).unwrap();
        assert_eq!(shown, "empty 0 0,full 4 4");
    }

    /// A database of version 2, with a message in every state.
    #[test]
    fn a_message_of_version_2_was_never_unsettled() {
        let mut connection = Connection::open_in_memory().unwrap();
        make_version(&mut connection, 2);
        let rows = "
            INSERT INTO pillarbox_queue VALUES (1, 'q', 9, 3, 3, 4, 1, 1, 1, 6);
            INSERT INTO pillarbox_message VALUES
                (1 << 45 | 2, 1, x'00000000000000000000000000000001', 0, NULL, NULL, x'61'),
                (1 << 45 | 3, 1, x'00000000000000000000000000000002', 0, NULL, NULL, x'62'),
                (1 << 45 | 4, 1, x'00000000000000000000000000000003', 0, NULL, NULL, x'63'),
                ((1 << 45) + (1 << 44) + 5, 1, x'00000000000000000000000000000004', 0, NULL, NULL, x'64');
            INSERT INTO pillarbox_timer VALUES
                (1 << 45 | 2, 4000000000000000000, 1, 3, 2, x'00'),
                ((1 << 45) + (1 << 44) + 5, 4000000000000000000, 2, 0, 5, NULL);
            INSERT INTO pillarbox_requeued VALUES (1 << 45 | 8, 1 << 45 | 3, 2);";
        connection.execute_batch(rows).unwrap();
        migrate(&mut connection).unwrap();
        check_current(version(&connection)).unwrap();
        let shown = "SELECT group_concat(body || ' ' || delivery_count || ' ' || unsettled) FROM
            (SELECT * FROM pillarbox ORDER BY body)";
        let shown: String = connection.query_row(shown, [], |row| row.get(0)).unwrap();
        assert_eq!(shown, "a 3 0,b 2 0,c 0 0,d 0 0");
    }

    /// A database of version 3, with a message in flight and one that is ready again.
    #[test]
    fn a_message_of_version_3_keeps_its_unsettled_deliveries() {
        let mut connection = Connection::open_in_memory().unwrap();
        make_version(&mut connection, 3);
        let rows = "
            INSERT INTO pillarbox_queue VALUES (1, 'q', 9, 3, 3, 2, 1, 0, 1, 2);
            INSERT INTO pillarbox_message VALUES
                (1 << 45 | 2, 1, x'00000000000000000000000000000001', 0, NULL, NULL, x'61'),
                (1 << 45 | 3, 1, x'00000000000000000000000000000002', 0, NULL, NULL, x'62');
            INSERT INTO pillarbox_timer VALUES (1 << 45 | 2, 4000000000000000000, 1, 3, 2, x'00', 2);
            INSERT INTO pillarbox_requeued VALUES (1 << 45 | 8, 1 << 45 | 3, 2, 1);";
        connection.execute_batch(rows).unwrap();
        migrate(&mut connection).unwrap();
        check_current(version(&connection)).unwrap();
        let shown =
            "SELECT group_concat(body || ' ' || delivery_count || ' ' || unsettled || ' ' ||
            uncounted) FROM (SELECT * FROM pillarbox ORDER BY body)";
        let shown: String = connection.query_row(shown, [], |row| row.get(0)).unwrap();
        assert_eq!(shown, "a 3 2 0,b 2 1 0");
    }

    #[test]
    fn a_newer_file_is_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        connection.execute("UPDATE pillarbox_schema SET version = 7", []).unwrap();
        let error = migrate(&mut connection).unwrap_err().to_string();
        assert!(error.contains("version 7") && error.contains("Upgrade"), "{error}");
    }
}
