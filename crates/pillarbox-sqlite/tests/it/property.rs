//! Random commands on a file, with the lease ledger as the oracle.

use std::sync::Arc;

use pillarbox_core::{Mailboxes, ManualClock};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
use pillarbox_testing::{Subject, property};

/// On a manual clock: both must agree to the nanosecond.
#[test]
fn a_file_agrees_with_the_ledger() {
    property::check(250, 60, || async {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = SqliteOptions::new(directory.path().join("property.db"));
        let clock = ManualClock::new();
        let backend = SqliteBackend::open_with_clock(options, Arc::new(clock.clone())).await;
        let backend = Mailboxes::new(backend.expect("the file opens"));
        Subject::with_clock(backend, clock).keeping(directory)
    });
}

#[test]
fn a_database_in_memory_agrees_with_the_ledger() {
    property::check(1000, 60, || async {
        let clock = ManualClock::new();
        let backend =
            SqliteBackend::open_with_clock(SqliteOptions::in_memory(), Arc::new(clock.clone()));
        let backend = Mailboxes::new(backend.await.expect("it opens"));
        Subject::with_clock(backend, clock)
    });
}
