//! The contract, in a file with restarts, and in memory; in real time.

use pillarbox_core::Mailboxes;
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
use pillarbox_testing::Subject;

async fn open(options: SqliteOptions) -> Mailboxes {
    Mailboxes::new(SqliteBackend::open(options).await.expect("the file opens"))
}

mod in_a_file {
    use super::*;

    pillarbox_testing::conformance!({
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = SqliteOptions::new(directory.path().join("conformance.db"));
        let backend = open(options.clone()).await;
        Subject::new(backend).with_restart(move || open(options.clone())).keeping(directory)
    });
}

mod in_memory {
    use super::*;

    pillarbox_testing::conformance!(Subject::new(open(SqliteOptions::in_memory()).await));
}
