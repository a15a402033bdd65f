//! Several processes on one file.

use std::time::{Duration, Instant};

use pillarbox_core::{Outgoing, Receipt, Receive, Settle};
use pillarbox_sqlite::rusqlite::Connection;
use pillarbox_testing::process::{Child, assignment};

use crate::common::{assert_intact, database, directory, open, open_again, queue, send};

/// Waits for messages and prints each. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own"]
fn receiver() {
    let Some((file, count)) = assignment() else { return };
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
    let (_directory, file, _backend, jobs) = database().await;
    let child = Child::start("processes::receiver", &file, "20");
    child.wait_for("waiting", 0);
    let mut waits = Vec::new();
    for n in 0..20 {
        let sent = Instant::now();
        send(&jobs, format!("m{n}")).await;
        child.wait_for("got", n);
        waits.push(sent.elapsed());
    }
    waits.sort();
    println!("from the send to the receipt in the other process: median {:?}", waits[10]);
    let lines = child.finish();
    let receipts = lines.iter().filter_map(|line| line.strip_prefix("got ")?.split(' ').nth(1));
    let settles: Vec<_> = receipts
        .map(|text| Settle::acknowledge(text.parse::<Receipt>().expect("a receipt")))
        .collect();
    assert_eq!(settles.len(), 20);
    for settled in jobs.settle(settles).await.unwrap() {
        settled.unwrap();
    }
    assert_eq!(jobs.counts().await.unwrap().total(), 0);
}

/// Waits without a file descriptor left to watch the log with. Not a test by itself.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "runs in a process of its own"]
fn receiver_that_cannot_watch() {
    let Some((file, _)) = assignment() else { return };
    pillarbox_testing::block_on(async {
        let backend = open(file).await;
        let jobs = queue(&backend, "jobs");
        let mut held = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            held.push(file);
        }
        println!("@ waiting");
        let request = Receive::one().wait(Duration::from_secs(60));
        assert_eq!(jobs.receive(request).await.expect("received").len(), 1);
        println!("@ got it");
        drop(held);
        backend.close().await;
    });
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_waiter_that_cannot_watch_the_log_polls_it() {
    let (_directory, file, _backend, jobs) = database().await;
    let mut limited = std::process::Command::new("sh");
    let test = std::env::current_exe().expect("this test");
    limited.args(["-c", r#"ulimit -n 64 && exec "$0" "$@""#]).arg(test);
    let child = Child::start_by(limited, "processes::receiver_that_cannot_watch", &file, "");
    child.wait_for("waiting", 0);
    send(&jobs, "x").await;
    child.wait_for("got it", 0);
    child.finish();
}

#[tokio::test]
async fn a_waiter_is_woken_by_a_message_in_a_log_that_was_truncated_or_created_again() {
    let (directory, file) = directory();
    for round in 0..3 {
        let backend = open(&file).await;
        let jobs = queue(&backend, "jobs");
        send(&jobs, "settled").await;
        jobs.purge().await.unwrap();
        let child = Child::start("processes::receiver", &file, "2");
        child.wait_for("waiting", 0);
        send(&jobs, "before").await;
        child.wait_for("got", 0);
        // Another program truncates the log.
        let other = Connection::open(&file).unwrap();
        other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        drop(other);
        send(&jobs, "after").await;
        child.wait_for("got", 1);
        child.finish();
        jobs.purge().await.unwrap();
        drop(jobs);
        backend.close().await;
        assert!(!directory.path().join("jobs.db-wal").exists(), "round {round}");
    }
}

#[tokio::test]
async fn a_message_of_another_connection_in_this_process_wakes_a_waiter() {
    let (_directory, file, _backend, jobs) = database().await;
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
    assert!(!waiter.is_finished(), "the message is not committed");
    both.commit().unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().len(), 1);
    assert_intact(&file);
}

#[tokio::test]
async fn the_same_file_opened_twice_shares_a_thread_until_the_last_is_closed() {
    let (directory, file) = directory();
    let (one, other) = (open(&file).await, open(&file).await);
    let (here, there) = (queue(&one, "jobs"), queue(&other, "jobs"));
    send(&here, "x").await;
    one.close().await;
    one.close().await;
    assert!(here.counts().await.is_err());
    assert_eq!(there.counts().await.unwrap().ready, 1);
    other.close().await;
    // All is closed: SQLite has checkpointed and removed the log.
    assert!(!directory.path().join("jobs.db-wal").exists());
    // A queue keeps the file open after its backend is dropped.
    let jobs = queue(&open(&file).await, "jobs");
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
    drop(jobs);
    assert!(!directory.path().join("jobs.db-wal").exists());
}

#[tokio::test]
async fn an_empty_queue_without_handles_is_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let backend = open(directory.path().join("jobs.db")).await;
    for n in 0..50 {
        let reply = queue(&backend, &format!("reply-{n}"));
        send(&reply, "x").await;
        let delivery = reply.receive(Receive::one()).await.unwrap().remove(0);
        reply.settle(vec![Settle::acknowledge(delivery.receipt)]).await.unwrap().remove(0).unwrap();
    }
    let kept = queue(&backend, "kept");
    send(&kept, "x").await;
    let names: Vec<_> = backend.queues().await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["kept"]);
}

#[tokio::test]
async fn a_queue_that_was_only_read_is_not_deleted() {
    let (_directory, file) = directory();
    let worker = open(&file).await;
    let jobs = queue(&worker, "jobs");
    send(&jobs, "x").await;
    let delivery = jobs.receive(Receive::one()).await.unwrap().remove(0);
    jobs.settle(vec![Settle::acknowledge(delivery.receipt)]).await.unwrap().remove(0).unwrap();

    let monitor = open_again(&file).await.unwrap();
    for _ in 0..3 {
        let read_only = queue(&monitor, "jobs");
        assert_eq!(read_only.counts().await.unwrap().sent, Some(1));
        assert_eq!(read_only.peek(1, None).await.unwrap().messages, []);
        drop(read_only);
        assert_eq!(monitor.queues().await.unwrap().len(), 1);
    }
}

/// Closes while a waiter is being served: either it has the message, or the message is ready. A lease that no caller
/// knows of would hide it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_strands_no_delivery_on_its_way() {
    let (_directory, file) = directory();
    let long = Receive::one().visibility(Duration::from_secs(600)).wait(Duration::from_secs(600));
    for round in 0..30u64 {
        let backend = open(&file).await;
        let jobs = queue(&backend, "jobs");
        let waiter = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.receive(long).await }
        });
        // Other queues keep the writer and the disk busy.
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
        assert_eq!(counts.in_flight, held, "round {round}: a lease that no caller has");
        assert!(!sent || counts.total() == 1, "round {round}: {counts:?}");
        jobs.purge().await.unwrap();
        backend.close().await;
    }
}

/// As if another process had been stopped while it wrote.
#[tokio::test]
async fn closing_does_not_wait_for_the_write_lock_of_another_process() {
    let (directory, file, backend, jobs) = database().await;
    let lock = std::fs::File::options()
        .write(true)
        .open(directory.path().join("jobs.db-lock"))
        .expect("the lock file");
    lock.lock().expect("locked");
    let send = tokio::spawn(async move { jobs.send(vec![Outgoing::new("x")]).await });
    let opening = tokio::time::timeout(Duration::from_millis(300), open_again(&file));
    assert!(opening.await.is_err(), "opening waits for the lock too");
    assert!(!send.is_finished());
    tokio::time::timeout(Duration::from_secs(20), backend.close()).await.expect("it closes");
    assert!(send.await.unwrap().is_err());
    lock.unlock().expect("unlocked");
    let jobs = queue(&open(&file).await, "jobs");
    assert_eq!(jobs.counts().await.unwrap().total(), 0);
}
