//! Several processes on one file.

use std::time::{Duration, Instant};

use pillarbox_core::{Mailboxes, Outgoing, Receipt, Receive, Settle};
use pillarbox_sqlite::rusqlite::Connection;
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, Synchronous, verify};
use pillarbox_testing::process::{Child, told};

use crate::common::{open, queue};

/// Waits for messages and tells each. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own"]
fn receiver() {
    let Some((file, count)) = told() else { return };
    pillarbox_testing::block_on(async {
        let backend = open(file).await;
        let jobs = queue(&backend, "jobs");
        println!("@ waiting");
        for _ in 0..count.parse().expect("a number") {
            let request = Receive::one().wait(Duration::from_secs(60));
            for delivery in jobs.receive(request).await.expect("received") {
                let body = String::from_utf8_lossy(&delivery.message.body).into_owned();
                println!("@ got {body} {}", delivery.receipt);
            }
        }
        backend.close().await;
    });
}

#[tokio::test]
async fn a_waiter_in_another_process_is_woken_and_its_receipt_settles_here() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    let child = Child::start("processes::receiver", &file, "20");
    child.wait_for("waiting", 0);
    let mut waits = Vec::new();
    for n in 0..20 {
        let sent = Instant::now();
        jobs.send(vec![Outgoing::new(format!("m{n}"))]).await.unwrap().remove(0).unwrap();
        child.wait_for("got", n);
        waits.push(sent.elapsed());
    }
    waits.sort();
    println!("from the send to the word of the other process: {:?} in the middle", waits[10]);
    let said = child.finish();
    let receipts = said.iter().filter_map(|line| line.strip_prefix("got ")?.split(' ').nth(1));
    let settles: Vec<_> = receipts
        .map(|text| Settle::acknowledge(text.parse::<Receipt>().expect("a receipt")))
        .collect();
    assert_eq!(settles.len(), 20);
    for settled in jobs.settle(settles).await.unwrap() {
        settled.unwrap();
    }
    assert_eq!(jobs.counts().await.unwrap().total(), 0);
}

#[tokio::test]
async fn what_somebody_else_writes_in_the_same_process_is_seen() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    let waiter = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.receive(Receive::one().wait(Duration::from_secs(60))).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    let mut shop = Connection::open(&file).unwrap();
    let both = shop.transaction().unwrap();
    let name = "jobs".parse().unwrap();
    let sent = pillarbox_sqlite::transaction::send_all(&both, &name, &[Outgoing::new("x")]);
    sent.unwrap().remove(0).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiter.is_finished(), "what is not committed is not there");
    both.commit().unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().len(), 1);
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

#[tokio::test]
async fn the_same_file_opened_twice_shares_a_thread_until_the_last_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    let (one, other) = (open(&file).await, open(&file).await);
    let (here, there) = (queue(&one, "jobs"), queue(&other, "jobs"));
    here.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    one.close().await;
    one.close().await;
    assert!(here.counts().await.is_err());
    assert_eq!(there.counts().await.unwrap().ready, 1);
    other.close().await;
    // All is closed: SQLite has moved its log into the file and removed it.
    assert!(!directory.path().join("jobs.db-wal").exists());
    // A queue keeps the file open after its backend is gone.
    let jobs = queue(&open(&file).await, "jobs");
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
    drop(jobs);
    assert!(!directory.path().join("jobs.db-wal").exists());
}

#[tokio::test]
async fn a_queue_that_nobody_has_open_and_that_holds_nothing_is_forgotten() {
    let directory = tempfile::tempdir().expect("a directory");
    let backend = open(directory.path().join("jobs.db")).await;
    for n in 0..50 {
        let reply = queue(&backend, &format!("reply-{n}"));
        reply.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
        let delivery = reply.receive(Receive::one()).await.unwrap().remove(0);
        reply.settle(vec![Settle::acknowledge(delivery.receipt)]).await.unwrap().remove(0).unwrap();
    }
    let kept = queue(&backend, "kept");
    kept.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let names: Vec<_> = backend.queues().await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["kept"]);
}

#[tokio::test]
async fn a_queue_that_was_only_looked_at_is_not_forgotten() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    let worker = open(&file).await;
    let jobs = queue(&worker, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let delivery = jobs.receive(Receive::one()).await.unwrap().remove(0);
    jobs.settle(vec![Settle::acknowledge(delivery.receipt)]).await.unwrap().remove(0).unwrap();

    // As another process would: with a connection of its own.
    let options = SqliteOptions::new(&file).synchronous(Synchronous::Normal);
    let monitor = Mailboxes::new(SqliteBackend::open(options).await.unwrap());
    for _ in 0..3 {
        let looked = queue(&monitor, "jobs");
        assert_eq!(looked.counts().await.unwrap().sent, Some(1));
        assert_eq!(looked.peek(1, None).await.unwrap().messages, []);
        drop(looked);
        assert_eq!(monitor.queues().await.unwrap().len(), 1);
    }
}

/// Closes at the moment when a waiter is being served: it has the message, or the message is there
/// for others. A lease that nobody holds would keep it away from everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_strands_nothing_that_was_on_its_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    let long = Receive::one().visibility(Duration::from_secs(600)).wait(Duration::from_secs(600));
    for round in 0..30u64 {
        let backend = open(&file).await;
        let jobs = queue(&backend, "jobs");
        let waiter = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.receive(long).await }
        });
        // Others keep the writer and the disk busy.
        let busy: Vec<_> = (0..8)
            .map(|n| {
                let other = queue(&backend, &format!("other-{n}"));
                tokio::spawn(
                    async move { while other.send(vec![Outgoing::new("x")]).await.is_ok() {} },
                )
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let sent = tokio::spawn(async move { jobs.send(vec![Outgoing::new("x")]).await });
        tokio::time::sleep(Duration::from_micros(round * 40)).await;
        backend.close().await;
        let held = waiter.await.unwrap().map_or(0, |deliveries| deliveries.len() as u64);
        let sent = sent.await.unwrap().is_ok();
        for task in busy {
            task.await.unwrap();
        }
        let backend = open(&file).await;
        let jobs = queue(&backend, "jobs");
        let counts = jobs.counts().await.unwrap();
        assert_eq!(counts.in_flight, held, "round {round}: a lease that nobody holds");
        assert!(!sent || counts.total() == 1, "round {round}: {counts:?}");
        jobs.purge().await.unwrap();
        backend.close().await;
    }
}

/// As if another process had been stopped in the midst of writing.
#[tokio::test]
async fn a_turn_that_does_not_come_keeps_nobody_from_closing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    let lock = std::fs::File::options()
        .write(true)
        .open(directory.path().join("jobs.db-lock"))
        .expect("the file beside it");
    lock.lock().expect("locked");
    let send = tokio::spawn(async move { jobs.send(vec![Outgoing::new("x")]).await });
    let opening = tokio::time::timeout(Duration::from_millis(300), {
        let options = pillarbox_sqlite::SqliteOptions::new(&file);
        let options = options.synchronous(pillarbox_sqlite::Synchronous::Normal);
        pillarbox_sqlite::SqliteBackend::open(options)
    });
    assert!(opening.await.is_err(), "it waits for its turn too");
    assert!(!send.is_finished());
    tokio::time::timeout(Duration::from_secs(20), backend.close()).await.expect("it closes");
    assert!(send.await.unwrap().is_err());
    lock.unlock().expect("unlocked");
    let jobs = queue(&open(&file).await, "jobs");
    assert_eq!(jobs.counts().await.unwrap().total(), 0);
}
