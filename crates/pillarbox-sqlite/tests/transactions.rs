//! Sending and settling inside a transaction of the caller's.

mod common;

use std::time::Duration;

use pillarbox_core::{
    Error, Mailbox, Mailboxes, MemoryBackend, Outgoing, QueueName, Receive, SendOptions, Settle,
};
use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, transaction, verify};

use crate::common::open;

#[tokio::test]
async fn a_transaction_that_is_rolled_back_has_sent_and_settled_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let backend = open(&file).await;
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    jobs.send(&1).await.unwrap();
    let message = jobs.receive(Receive::one()).await.unwrap().into_iter().next().unwrap();
    let mut shop = Connection::open(&file).unwrap();

    let both = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction::send(&both, &jobs, &2, SendOptions::new()).unwrap();
    transaction::acknowledge(&both, &message).unwrap();
    both.rollback().unwrap();
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.ready, counts.in_flight, counts.sent), (0, 1, Some(1)));

    // The message is still to be settled, by either way.
    let both = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction::acknowledge(&both, &message).unwrap();
    both.commit().unwrap();
    let late = message.acknowledge().await;
    assert!(matches!(late, Err(Error::ReceiptHandleExpired { .. })), "{late:?}");
    assert_eq!(jobs.approximate_count().await.unwrap(), 0);
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

#[tokio::test]
async fn every_option_and_action_works_inside_a_transaction() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let backend = open(&file).await;
    let jobs: Mailbox<String> = backend.mailbox("jobs").unwrap();
    let mut shop = Connection::open(&file).unwrap();

    let both = shop.transaction().unwrap();
    let options = SendOptions::new().attribute("tenant", "acme").reply_to("client-7");
    let id = transaction::send(&both, &jobs, &"now".to_owned(), options.clone()).unwrap();
    // Sent again, it is there once.
    transaction::send(&both, &jobs, &"now".to_owned(), options.id(id)).unwrap();
    let later = SendOptions::new().delay(Duration::from_secs(600));
    transaction::send(&both, &jobs, &"later".to_owned(), later).unwrap();
    both.commit().unwrap();

    let message = jobs.receive(Receive::up_to(9)).await.unwrap().into_iter().next().unwrap();
    assert_eq!((message.id(), message.body().as_str()), (id, "now"));
    assert_eq!(message.attributes().get("tenant"), Some("acme"));
    assert_eq!(message.reply_to(), Some("client-7"));
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.delayed, counts.sent), (1, Some(2)));

    let name: QueueName = "jobs".parse().unwrap();
    let receipt = message.receipt().clone();
    let both = shop.transaction().unwrap();
    let extended = [Settle::extend(receipt.clone(), Duration::from_secs(60))];
    transaction::settle_all(&both, &name, &extended).unwrap().remove(0).unwrap();
    let batch = [
        Settle::nack(receipt.clone(), Duration::ZERO),
        Settle::acknowledge(receipt.clone()),
        Settle::extend(receipt, Duration::from_secs(99_999)),
    ];
    let results = transaction::settle_all(&both, &name, &batch).unwrap();
    assert!(results[0].is_ok(), "{results:?}");
    assert!(matches!(results[1], Err(Error::ReceiptHandleExpired { .. })), "{results:?}");
    assert!(matches!(results[2], Err(Error::InvalidParameter { .. })), "{results:?}");
    both.commit().unwrap();
    assert_eq!(jobs.receive(Receive::one()).await.unwrap().messages()[0].delivery_count(), 2);
}

#[tokio::test]
async fn a_mailbox_that_is_not_in_the_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let backend = open(&file).await;
    assert!(backend.capabilities().transactions);
    let mut shop = Connection::open(&file).unwrap();
    let both = shop.transaction().unwrap();
    let elsewhere = [
        Mailboxes::new(MemoryBackend::new()),
        Mailboxes::new(SqliteBackend::open(SqliteOptions::in_memory()).await.unwrap()),
    ];
    for backend in elsewhere {
        assert!(!backend.capabilities().transactions);
        let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
        let error = transaction::send(&both, &jobs, &1, SendOptions::new()).unwrap_err();
        assert!(error.to_string().contains("one of the sqlite backend in a file"), "{error}");
        jobs.send(&1).await.unwrap();
        for message in jobs.receive(Receive::one()).await.unwrap() {
            let error = transaction::acknowledge(&both, &message).unwrap_err();
            assert!(error.to_string().contains("one of the sqlite backend in a file"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_file_without_queues_says_so() {
    let mut shop = Connection::open_in_memory().unwrap();
    let both = shop.transaction().unwrap();
    let name = "jobs".parse().unwrap();
    let error = transaction::send_all(&both, &name, &[Outgoing::new("x")]).unwrap_err();
    assert!(error.to_string().contains("a file without queues"), "{error}");
}

/// A file as the first version made it, with a message.
#[tokio::test]
async fn a_file_of_an_older_version_says_so_until_a_backend_has_opened_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let mut shop = Connection::open(&file).unwrap();
    shop.execute_batch(include_str!("../src/schema.sql")).unwrap();
    let rows = "INSERT INTO pillarbox_queue VALUES (1, 'jobs', 2, 0, 1, 1, 0, 0, 0);
        INSERT INTO pillarbox_message VALUES (1 << 45 | 1, 1, randomblob(16), 0, NULL, NULL, x'37')";
    shop.execute_batch(rows).unwrap();
    let name: QueueName = "jobs".parse().unwrap();
    let send = |shop: &mut Connection| {
        let both = shop.transaction().unwrap();
        transaction::send_all(&both, &name, &[Outgoing::new("8")])?.remove(0)?;
        both.commit().unwrap();
        Ok::<_, Error>(())
    };
    let error = send(&mut shop).unwrap_err().to_string();
    assert!(error.contains("version 1") && error.contains("open it once"), "{error}");

    let backend = open(&file).await;
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    assert_eq!(jobs.counts().await.unwrap().sent, Some(1));
    send(&mut shop).unwrap();
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.ready, counts.sent), (2, Some(2)));
    assert_eq!(jobs.receive(Receive::up_to(9)).await.unwrap().len(), 2);
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_transaction_that_read_too_early_says_how_to_begin() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let backend = open(&file).await;
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let mut shop = Connection::open(&file).unwrap();
    let both = shop.transaction().unwrap();
    both.query_row("SELECT count(*) FROM pillarbox", [], |row| row.get::<_, i64>(0)).unwrap();
    jobs.send(&1).await.unwrap();
    let error = transaction::send(&both, &jobs, &2, SendOptions::new()).unwrap_err();
    assert!(error.to_string().contains("TransactionBehavior::Immediate"), "{error}");
}

/// What people see of a file with a message in every state.
#[tokio::test]
async fn the_views_show_each_message_with_its_state() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let backend = open(&file).await;
    let jobs: Mailbox<String> = backend.mailbox("jobs").unwrap();
    let id = jobs.send(&"held".to_owned()).await.unwrap();
    let _held = jobs.receive(Receive::one()).await.unwrap();
    jobs.send(&"again".to_owned()).await.unwrap();
    for message in jobs.receive(Receive::one()).await.unwrap() {
        message.nack(Duration::ZERO).await.unwrap();
    }
    jobs.send_with(&"new".to_owned(), SendOptions::new().reply_to("r")).await.unwrap();
    let later = SendOptions::new().delay(Duration::from_secs(600)).attribute("a", "b");
    jobs.send_with(&"later".to_owned(), later).await.unwrap();

    let people = Connection::open(&file).unwrap();
    let sql =
        "SELECT body, state, delivery_count, until IS NOT NULL, queue, bytes, attributes, reply_to
        FROM pillarbox ORDER BY enqueued_at, id";
    let mut statement = people.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| {
        let text = |place| row.get::<_, Option<String>>(place);
        let (body, state, queue) = (text(0)?.unwrap(), text(1)?.unwrap(), text(4)?.unwrap());
        let (count, until): (u32, bool) = (row.get(2)?, row.get(3)?);
        let bytes: u32 = row.get(5)?;
        let (attributes, reply_to) = (text(6)?, text(7)?);
        Ok(format!("{queue} {body} {bytes} {state} {count} {until} {attributes:?} {reply_to:?}"))
    });
    let mut rows: Vec<_> = rows.unwrap().map(Result::unwrap).collect();
    rows.sort();
    assert_eq!(
        rows,
        [
            r#"jobs "again" 7 ready 1 false None None"#,
            r#"jobs "held" 6 in flight 1 true None None"#,
            r#"jobs "later" 7 delayed 0 true Some("{\"a\":\"b\"}") None"#,
            r#"jobs "new" 5 ready 0 false None Some("r")"#,
        ]
    );
    let shown: String = people
        .query_row("SELECT id FROM pillarbox WHERE state = 'in flight'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(shown, id.to_string());
    let counts = "SELECT ready || ' ' || in_flight || ' ' || delayed || ' ' || total || ' ' || sent
        FROM pillarbox_queues WHERE queue = 'jobs'";
    let look = || people.query_row(counts, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(look(), "2 1 1 4 4");
    jobs.purge().await.unwrap();
    assert_eq!(look(), "0 0 0 0 4");
}
