//! Sends and settles inside a transaction of the caller.

use std::path::PathBuf;
use std::time::Duration;

use pillarbox_core::{
    Capabilities, Error, Leased, Mailbox, Mailboxes, MemoryBackend, Message, Outgoing, QueueName,
    Receipt, Receive, SendOptions, Settle,
};
use pillarbox_sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::common::{assert_intact, assert_says, directory, open};

/// Creates a database. Returns a mailbox in it and a connection of the program.
async fn shop<T>() -> (TempDir, PathBuf, Mailbox<T>, Connection)
where
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let (directory, file) = directory();
    let jobs = open(&file).await.mailbox("jobs").expect("a mailbox");
    let shop = Connection::open(&file).expect("a connection");
    (directory, file, jobs, shop)
}

fn begin(shop: &mut Connection) -> Transaction<'_> {
    shop.transaction_with_behavior(TransactionBehavior::Immediate).expect("a transaction")
}

async fn receive<T: 'static>(jobs: &Mailbox<T>) -> Message<T> {
    let received = jobs.receive(Receive::one()).await.expect("received");
    received.into_iter().next().expect("a message")
}

#[tokio::test]
async fn a_transaction_that_is_rolled_back_has_sent_and_settled_nothing() {
    let (_directory, file, jobs, mut shop) = shop::<u32>().await;
    jobs.send(&1).await.unwrap();
    let message = receive(&jobs).await;

    let both = begin(&mut shop);
    transaction::send(&both, &jobs, &2, SendOptions::new()).unwrap();
    transaction::acknowledge(&both, &message).unwrap();
    both.rollback().unwrap();
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.ready, counts.in_flight, counts.sent), (0, 1, Some(1)));

    // The message can still be settled, with or without a transaction.
    let both = begin(&mut shop);
    transaction::acknowledge(&both, &message).unwrap();
    both.commit().unwrap();
    let late = message.acknowledge().await;
    assert!(matches!(late, Err(Error::ReceiptHandleExpired { .. })), "{late:?}");
    assert_eq!(jobs.approximate_count().await.unwrap(), 0);
    assert_intact(&file);
}

/// A delivery that its worker has withdrawn.
struct Withdrawn<'a>(&'a Message<u32>);

impl Leased for Withdrawn<'_> {
    fn queue_name(&self) -> &QueueName {
        self.0.queue_name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn receipt(&self) -> &Receipt {
        self.0.receipt()
    }

    fn acknowledging(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_withdrawn_delivery_does_not_join_the_transaction() {
    let (_directory, file, jobs, mut shop) = shop::<u32>().await;
    jobs.send(&1).await.unwrap();
    let message = receive(&jobs).await;

    let both = begin(&mut shop);
    transaction::send(&both, &jobs, &2, SendOptions::new()).unwrap();
    let late = transaction::acknowledge(&both, &Withdrawn(&message));
    assert!(matches!(late, Err(Error::ReceiptHandleExpired { .. })), "{late:?}");
    both.commit().unwrap();
    let counts = jobs.counts().await.unwrap();
    let states = (counts.ready, counts.in_flight);
    assert_eq!(states, (1, 1), "the rest is committed, without the acknowledgement");
    message.acknowledge().await.unwrap();
    assert_intact(&file);
}

#[tokio::test]
async fn every_option_and_action_works_inside_a_transaction() {
    let (_directory, _file, jobs, mut shop) = shop::<String>().await;

    let both = shop.transaction().unwrap();
    let options = SendOptions::new().attribute("tenant", "acme").reply_to("client-7");
    let id = transaction::send(&both, &jobs, &"now".to_owned(), options.clone()).unwrap();
    // The second send is a duplicate.
    transaction::send(&both, &jobs, &"now".to_owned(), options.id(id)).unwrap();
    let later = SendOptions::new().delay(Duration::from_secs(600));
    transaction::send(&both, &jobs, &"later".to_owned(), later).unwrap();
    both.commit().unwrap();

    let message = receive(&jobs).await;
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
    let (_directory, file) = directory();
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
        assert_says(&error.to_string(), &["one of the sqlite backend in a file"]);
        jobs.send(&1).await.unwrap();
        for message in jobs.receive(Receive::one()).await.unwrap() {
            let error = transaction::acknowledge(&both, &message).unwrap_err();
            assert_says(&error.to_string(), &["one of the sqlite backend in a file"]);
        }
    }
}

#[tokio::test]
async fn a_transaction_on_a_file_without_queues_fails() {
    let mut shop = Connection::open_in_memory().unwrap();
    let both = shop.transaction().unwrap();
    let name = "jobs".parse().unwrap();
    let error = transaction::send_all(&both, &name, &[Outgoing::new("x")]).unwrap_err();
    assert_says(&error.to_string(), &["a file without queues"]);
}

/// A database of version 1, with a message.
#[tokio::test]
async fn a_transaction_on_an_older_schema_fails_until_a_backend_has_migrated_it() {
    let (_directory, file) = directory();
    let mut shop = Connection::open(&file).unwrap();
    shop.execute_batch(include_str!("../../src/schema.sql")).unwrap();
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
    assert_says(&error, &["version 1", "open it once"]);

    let backend = open(&file).await;
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    assert_eq!(jobs.counts().await.unwrap().sent, Some(1));
    send(&mut shop).unwrap();
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.ready, counts.sent), (2, Some(2)));
    assert_eq!(jobs.receive(Receive::up_to(9)).await.unwrap().len(), 2);
    assert_intact(&file);
}

#[tokio::test]
async fn a_transaction_that_cannot_upgrade_its_lock_says_how_to_begin() {
    let (_directory, _file, jobs, mut shop) = shop::<u32>().await;
    let both = shop.transaction().unwrap();
    both.query_row("SELECT count(*) FROM pillarbox", [], |row| row.get::<_, i64>(0)).unwrap();
    jobs.send(&1).await.unwrap();
    let error = transaction::send(&both, &jobs, &2, SendOptions::new()).unwrap_err();
    assert_says(&error.to_string(), &["TransactionBehavior::Immediate"]);
}

/// A message in every state.
#[tokio::test]
async fn the_views_show_each_message_with_its_state() {
    let (_directory, _file, jobs, people) = shop::<String>().await;
    let id = jobs.send(&"held".to_owned()).await.unwrap();
    let _held = jobs.receive(Receive::one()).await.unwrap();
    jobs.send(&"again".to_owned()).await.unwrap();
    for message in jobs.receive(Receive::one()).await.unwrap() {
        message.nack(Duration::ZERO).await.unwrap();
    }
    jobs.send_with(&"new".to_owned(), SendOptions::new().reply_to("r")).await.unwrap();
    let later = SendOptions::new().delay(Duration::from_secs(600)).attribute("a", "b");
    jobs.send_with(&"later".to_owned(), later).await.unwrap();

    let sql =
        "SELECT body, state, delivery_count, until IS NOT NULL, queue, bytes, attributes, reply_to
        FROM pillarbox ORDER BY enqueued_at, id";
    let mut statement = people.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| {
        let text = |column| row.get::<_, Option<String>>(column);
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
    let read = || people.query_row(counts, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(read(), "2 1 1 4 4");
    jobs.purge().await.unwrap();
    assert_eq!(read(), "0 0 0 0 4");
}
