//! Files under steady load: space is reused, and the log stays short.
//!
//! `make soak-sqlite` runs the long version: `PILLARBOX_SOAK_MESSAGES` is the number of messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pillarbox_core::{Outgoing, Queue, Receive, Settle};
use pillarbox_sqlite::rusqlite::{Connection, OpenFlags};
use pillarbox_testing::process::setting;
use tokio::task::JoinSet;

use crate::common::{assert_intact, directory, open, queue};

const BODY: usize = 2000;
/// Largest size of the log: the limit from which on writing pauses, and what is written until the limit is checked.
const LOG_LIMIT: u64 = 96 << 20;

fn size(file: &Path, suffix: &str) -> u64 {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    fs::metadata(PathBuf::from(name)).map_or(0, |file| file.len())
}

/// Reads the whole file slowly, again and again, with hardly a pause in between.
fn read_slowly(file: &Path, stop: &AtomicBool) -> usize {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let reader = Connection::open_with_flags(file, flags).expect("a reader");
    let mut reads = 0;
    while !stop.load(Ordering::Relaxed) {
        reader.execute_batch("BEGIN").expect("begun");
        let sql = "SELECT count(*), sum(length(body)) FROM pillarbox_message";
        reader.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("counted");
        std::thread::sleep(Duration::from_millis(100));
        reader.execute_batch("COMMIT").expect("ended");
        reads += 1;
    }
    reads
}

async fn cycle(queue: Arc<dyn Queue>, left: Arc<AtomicUsize>) {
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(10)).is_ok() {
        let batch = (0..10).map(|_| Outgoing::new(vec![7; BODY])).collect();
        for sent in queue.send(batch).await.expect("answered") {
            sent.expect("stored");
        }
        let deliveries = queue.receive(Receive::up_to(10)).await.expect("received");
        let settles = deliveries.into_iter().map(|d| Settle::acknowledge(d.receipt)).collect();
        for settled in queue.settle(settles).await.expect("answered") {
            settled.expect("acknowledged");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_is_reused_and_the_log_stays_short_despite_a_slow_reader() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let messages = setting("PILLARBOX_SOAK_MESSAGES", 250_000);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (file, stop) = (file.clone(), stop.clone());
        move || read_slowly(&file, &stop)
    });

    let left = Arc::new(AtomicUsize::new(messages / 10 * 10));
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        callers.spawn(cycle(queue(&backend, "soak"), left.clone()));
    }
    let (mut highest_file, mut highest_log) = (0, 0);
    while !callers.is_empty() {
        tokio::select! {
            done = callers.join_next() => done.expect("a caller").expect("it went well"),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        highest_file = highest_file.max(size(&file, ""));
        highest_log = highest_log.max(size(&file, "-wal"));
    }
    stop.store(true, Ordering::Relaxed);
    let reads = reader.join().expect("the reader");
    let written = (messages * BODY) as u64;
    println!(
        "{messages} messages, {} MB of bodies, {reads} slow reads: the file grew to {} MB, its log to \
         {} MB",
        written >> 20,
        highest_file >> 20,
        highest_log >> 20
    );
    // Every body is written at least once to the log, and once to the file.
    assert!(written > 2 * LOG_LIMIT, "too few messages to show anything");
    assert!(highest_log < LOG_LIMIT, "the log grew to {highest_log}");
    assert!(highest_file < written / 4, "the file grew to {highest_file}");
    assert!(reads >= 5, "{reads} reads");
    assert_eq!(queue(&backend, "soak").counts().await.expect("counts").total(), 0);
    backend.close().await;
    assert_intact(&file);
}
