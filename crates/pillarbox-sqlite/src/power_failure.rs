//! Tests of what a power failure leaves.
//!
//! While a directory `FILE-synced` exists, every sync first copies the database and its log there. After a call of a
//! single caller, the copy is what the disk is certain to have: everything that was written since may be lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Delivery, Error, Mailboxes, Outgoing, Queue, QueueOptions, Receive, Result, Settle,
    SettleAction,
};
use tempfile::TempDir;

use crate::database_files::{DatabaseFiles, companion_path};
use crate::{SqliteBackend, SqliteOptions, verify};

/// Copies the files of a database as a sync is about to find them.
pub(crate) fn copy_files(files: Option<&DatabaseFiles>) {
    let Some(file) = files.map(|files| files.database.path.as_path()) else { return };
    let copies = companion_path(file, "-synced");
    if copies.is_dir() {
        for path in [file.to_owned(), companion_path(file, "-wal")] {
            fs::copy(&path, copies.join(path.file_name().unwrap())).unwrap();
        }
    }
}

/// A queue on a machine whose power may fail.
struct Machine {
    directory: TempDir,
    file: PathBuf,
    backend: Mailboxes,
    jobs: Arc<dyn Queue>,
}

impl Machine {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let (backend, jobs) = open(&file).await;
        fs::create_dir(companion_path(&file, "-synced")).unwrap();
        Self { directory, file, backend, jobs }
    }

    /// Opens the queue as it is after a power failure at this moment.
    async fn after_power_failure(&self) -> (TempDir, Mailboxes, Arc<dyn Queue>) {
        let copies = companion_path(&self.file, "-synced");
        let after = tempfile::tempdir_in(self.directory.path()).unwrap();
        for copy in fs::read_dir(copies).unwrap() {
            let copy = copy.unwrap();
            fs::copy(copy.path(), after.path().join(copy.file_name())).unwrap();
        }
        let file = after.path().join("jobs.db");
        let (backend, jobs) = open(&file).await;
        assert_eq!(verify(&file).unwrap(), [""; 0]);
        (after, backend, jobs)
    }

    /// Returns the bodies of all messages, with their numbers of deliveries, after a power failure at this moment.
    async fn left(&self) -> Vec<(String, u32)> {
        let (_directory, backend, jobs) = self.after_power_failure().await;
        let page = jobs.peek(100, None).await.unwrap();
        let messages = page.messages.iter().map(|peeked| &peeked.message);
        let mut left: Vec<_> = messages
            .map(|message| (String::from_utf8_lossy(&message.body).into(), message.delivery_count))
            .collect();
        left.sort();
        backend.close().await;
        left
    }

    async fn send(&self, body: &'static str) {
        send(&self.jobs, Outgoing::new(body)).await.unwrap();
    }

    async fn receive(&self) -> Delivery {
        receive(&self.jobs).await
    }

    async fn settle(&self, delivery: &Delivery, action: SettleAction) {
        settle(&self.jobs, delivery, action).await.unwrap();
    }
}

async fn open(file: &Path) -> (Mailboxes, Arc<dyn Queue>) {
    let backend = Mailboxes::new(SqliteBackend::open(SqliteOptions::new(file)).await.unwrap());
    let jobs = backend.queue("jobs", QueueOptions::new()).unwrap();
    (backend, jobs)
}

async fn send(jobs: &Arc<dyn Queue>, message: Outgoing) -> Result<bool> {
    jobs.send(vec![message]).await?.remove(0).map(|sent| sent.is_new)
}

async fn receive(jobs: &Arc<dyn Queue>) -> Delivery {
    jobs.receive(Receive::one()).await.unwrap().pop().expect("a message")
}

async fn settle(jobs: &Arc<dyn Queue>, delivery: &Delivery, action: SettleAction) -> Result<()> {
    let settle = Settle { receipt: delivery.receipt.clone(), action };
    jobs.settle(vec![settle]).await?.remove(0)
}

fn messages(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
    expected.iter().map(|(body, count)| ((*body).to_owned(), *count)).collect()
}

const MINUTE: Duration = Duration::from_secs(60);
const AT_ONCE: SettleAction = SettleAction::Nack { delay: Duration::ZERO };

#[tokio::test]
async fn a_power_failure_undoes_no_confirmed_send_or_settle() {
    let machine = Machine::start().await;
    for body in ["a", "b", "c", "d"] {
        machine.send(body).await;
    }
    assert_eq!(machine.left().await, messages(&[("a", 0), ("b", 0), ("c", 0), ("d", 0)]));

    let a = machine.receive().await;
    machine.settle(&a, SettleAction::Acknowledge).await;
    assert_eq!(machine.left().await, messages(&[("b", 0), ("c", 0), ("d", 0)]));

    let b = machine.receive().await;
    machine.settle(&b, AT_ONCE).await;
    assert_eq!(machine.left().await, messages(&[("b", 1), ("c", 0), ("d", 0)]));

    let (c, d) = (machine.receive().await, machine.receive().await);
    machine.settle(&c, SettleAction::Extend { timeout: MINUTE }).await;
    // The sync of one call covers all that was written before.
    assert_eq!(machine.left().await, messages(&[("b", 1), ("c", 1), ("d", 1)]));
    let (_directory, backend, jobs) = machine.after_power_failure().await;
    assert_eq!(jobs.counts().await.unwrap().in_flight, 2, "extended leases run on");
    for delivery in [&c, &d] {
        settle(&jobs, delivery, SettleAction::Start { timeout: MINUTE }).await.unwrap();
    }
    backend.close().await;

    assert_eq!(machine.jobs.purge().await.unwrap(), 3);
    assert_eq!(machine.left().await, []);
    machine.backend.close().await;
}

#[tokio::test]
async fn a_delivery_that_a_power_failure_undoes_is_delivered_again_with_the_same_count() {
    let machine = Machine::start().await;
    machine.send("a").await;
    let lost = machine.receive().await;
    assert_eq!(lost.message.delivery_count, 1);
    assert_eq!(machine.left().await, messages(&[("a", 0)]), "a receive does not wait for the disk");

    let (_directory, backend, jobs) = machine.after_power_failure().await;
    let stale = settle(&jobs, &lost, SettleAction::Acknowledge).await;
    assert!(matches!(stale, Err(Error::ReceiptHandleExpired { .. })), "{stale:?}");
    let again = receive(&jobs).await;
    assert_eq!((again.message.id, again.message.delivery_count), (lost.message.id, 1));
    for action in [SettleAction::Acknowledge, AT_ONCE, SettleAction::Extend { timeout: MINUTE }] {
        let stale = settle(&jobs, &lost, action).await;
        assert!(matches!(stale, Err(Error::ReceiptHandleExpired { .. })), "{stale:?}");
    }
    settle(&jobs, &again, SettleAction::Acknowledge).await.unwrap();
    backend.close().await;
    machine.backend.close().await;
}

/// A caller that learns that a message is there, or that a receipt is stale, may rely on it.
#[tokio::test]
async fn what_the_reply_to_a_duplicate_or_a_stale_receipt_rests_on_survives_a_power_failure() {
    let machine = Machine::start().await;
    let message = Outgoing::new("a");
    assert!(send(&machine.jobs, message.clone()).await.unwrap());
    let first = machine.receive().await;
    assert!(!send(&machine.jobs, message).await.unwrap(), "a duplicate");
    assert_eq!(machine.left().await, messages(&[("a", 1)]));

    machine.settle(&first, AT_ONCE).await;
    let second = machine.receive().await;
    assert_eq!(machine.left().await, messages(&[("a", 1)]));
    assert!(settle(&machine.jobs, &first, SettleAction::Acknowledge).await.is_err(), "stale");
    assert_eq!(machine.left().await, messages(&[("a", 2)]));
    machine.settle(&second, SettleAction::Acknowledge).await;
    assert_eq!(machine.left().await, []);
    machine.backend.close().await;
}

/// After some calls the caller executes its requests itself, if the disk is quick.
#[tokio::test]
async fn a_power_failure_after_any_call_of_a_lone_caller_undoes_nothing_confirmed() {
    let machine = Machine::start().await;
    for round in 0..20 {
        machine.send("a").await;
        assert_eq!(machine.left().await, messages(&[("a", 0)]), "round {round}");
        let delivery = machine.receive().await;
        machine.settle(&delivery, SettleAction::Acknowledge).await;
        assert_eq!(machine.left().await, [], "round {round}");
    }
    machine.backend.close().await;
}
