//! Processes on one file, killed at any moment; and writes that fail.
//!
//! `make crash-sqlite` runs the long version: `PILLARBOX_KILLS` is the number of kills.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pillarbox_core::{Mailbox, Receive, SendOptions};
use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox_sqlite::{transaction, verify};
use pillarbox_testing::campaign::{Record, Workload};
use pillarbox_testing::on_threads;
use pillarbox_testing::process::{Child, assignment, setting};
use rand::RngExt;

use crate::common::{SmallDisk, assert_intact, directory, open, open_again, queue};

const QUEUE: &str = "campaign";

/// The workload of a child of the campaigns. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the campaigns"]
fn client() {
    let Some((file, task)) = assignment() else { return };
    let mut words = task.split(' ');
    let mut next = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0u64);
    let (seed, max_body, may_fail) = (next(), next() as usize, next() > 0);
    let is_lone = next() > 0;
    on_threads(async move {
        // Without syncs, which may be slow, a lone client executes its requests itself. A kill loses nothing either way.
        let backend = if is_lone {
            open_again(file.as_ref()).await.expect("the file opens")
        } else {
            open(file).await
        };
        let clients = if is_lone { 1 } else { Workload::default().clients };
        let workload = Workload { clients, seed, max_body, may_fail, ..Workload::default() };
        workload.run(queue(&backend, QUEUE)).await;
    });
}

/// Starts a process with several clients, or every second time with one.
fn client_of(file: &Path, seed: usize) -> Child {
    Child::start("crash::client", file, &format!("{seed} 600 0 {}", seed % 2))
}

/// Waits until a random moment, which may be before the child has begun.
fn until_a_random_moment(child: &Child) {
    let mut random = rand::rng();
    if random.random_bool(0.85) {
        child.wait_for("s", 0);
    }
    std::thread::sleep(Duration::from_micros(random.random_range(0..250_000)));
}

/// Fails unless the database is intact and its content matches the record.
#[track_caller]
fn check(file: &Path, record: &Record, kills: usize) -> String {
    let problems = verify(file).expect("the file can be read");
    assert_eq!(problems, [""; 0], "after {kills} kills");
    assert_eq!(record.failures(), [""; 0], "after {kills} kills");
    on_threads(async {
        let backend = open(file).await;
        let checked = record.check(&queue(&backend, QUEUE)).await;
        backend.close().await;
        let summary = checked.unwrap_or_else(|wrong| panic!("after {kills} kills: {wrong}"));
        assert!(summary.sent > 0 && summary.acknowledged > 0, "{summary:?}");
        let interrupted = record.sends_cut_short();
        format!(
            "{kills} kills, {interrupted} sends interrupted, nothing lost or resurrected: {summary:?}"
        )
    })
}

/// One process after the other, each killed.
#[test]
fn nothing_is_lost_or_resurrected_when_a_process_is_killed() {
    let (_directory, file) = directory();
    let kills = setting("PILLARBOX_KILLS", 15);
    let mut record = Record::new();
    let mut summary = String::new();
    for kill in 1..=kills {
        let child = client_of(&file, kill);
        until_a_random_moment(&child);
        record.add(&child.kill());
        if file.exists() && (kill % 5 == 0 || kill == kills) {
            summary = check(&file, &record, kill);
        } else if file.exists() {
            assert_eq!(verify(&file).expect("the file can be read"), [""; 0], "after {kill} kills");
        }
    }
    println!("one process: {summary}");
}

/// Two processes at a time, one of which is killed and restarted.
#[test]
fn a_process_that_is_killed_does_not_disturb_another() {
    let (_directory, file) = directory();
    let kills = setting("PILLARBOX_KILLS", 10);
    let mut record = Record::new();
    let survivor = client_of(&file, 0);
    survivor.wait_for("s", 0);
    for kill in 1..=kills {
        let child = client_of(&file, kill);
        until_a_random_moment(&child);
        record.add(&child.kill());
        assert_eq!(verify(&file).expect("the file can be read"), [""; 0], "after {kill} kills");
        // It continues, and does not wait for the dead one.
        survivor.wait_for("s", survivor.reported("s"));
    }
    record.add(&survivor.kill());
    println!("two processes: {}", check(&file, &record, kills + 1));
}

/// Runs a child until its writes fail, removes the reason, and checks that it continues.
fn survives(file: &Path, start: impl FnOnce() -> Child, advice: &str, repair: impl FnOnce(&Child)) {
    let mut record = Record::new();
    let child = start();
    child.wait_for("f", 50);
    repair(&child);
    let (sent, settled) = (child.reported("s"), child.reported("x"));
    child.wait_for("s", sent + 20);
    child.wait_for("x", settled + 20);
    record.add(&child.kill());
    let failures = record.failures();
    assert!(failures.iter().all(|failure| failure.contains(advice)), "{:?}", failures.first());
    assert_intact(file);
    on_threads(async {
        let backend = open(file).await;
        let checked = record.check(&queue(&backend, QUEUE)).await;
        backend.close().await;
        let summary = checked.unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{} calls failed, nothing lost: {summary:?}", failures.len());
    });
}

/// The operating system limits the size of files, and then lifts the limit.
#[test]
fn writes_that_fail_lose_nothing_and_work_again() {
    for is_lone in [0, 1] {
        writes_fail(is_lone);
    }
}

fn writes_fail(is_lone: u8) {
    let (_directory, file) = directory();
    let mut limited = Command::new("sh");
    // The unit is 512 bytes. The signal that comes with the error must not end the process.
    limited.args(["-c", "trap '' XFSZ; ulimit -S -f 8000; exec \"$0\" \"$@\""]);
    limited.arg(std::env::current_exe().expect("this test"));
    let task = format!("1 20000 1 {is_lone}");
    let start = || Child::start_by(limited, "crash::client", &file, &task);
    survives(&file, start, "could not read or write", |child| {
        let pid = child.id().to_string();
        let lifted = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status();
        assert!(lifted.expect("prlimit runs").success());
    });
}

/// The disk is full, and then has space again.
#[test]
fn a_full_disk_loses_nothing_and_works_again() {
    for is_lone in [0, 1] {
        disk_is_full(is_lone);
    }
}

fn disk_is_full(is_lone: u8) {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(directory.path()) else { return };
    let filler = disk.0.join("filler");
    std::fs::write(&filler, vec![0; 8 << 20]).expect("written");
    let file = disk.0.join("full.db");
    let start = || Child::start("crash::client", &file, &format!("1 20000 1 {is_lone}"));
    survives(&file, start, "the disk is full", |_| {
        std::fs::remove_file(&filler).expect("removed");
    });
}

/// Writes orders and messages in one transaction each. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the campaign of transactions"]
fn shop() {
    let Some((file, _)) = assignment() else { return };
    on_threads(async move {
        let backend = open(&file).await;
        let invoices: Mailbox<u64> = backend.mailbox("invoices").expect("a mailbox");
        let mut shop = Connection::open(&file).expect("a connection");
        let tables = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, paid INTEGER)";
        shop.execute_batch(tables).expect("tables");
        loop {
            let both = shop.transaction_with_behavior(TransactionBehavior::Immediate);
            let both = both.expect("a transaction");
            let insert = "INSERT INTO orders (paid) VALUES (0) RETURNING id";
            let id: u64 = both.query_row(insert, [], |row| row.get(0)).expect("an order");
            transaction::send(&both, &invoices, &id, SendOptions::new()).expect("sent");
            both.commit().expect("committed");
            println!("@ s {id}");

            let lease = Receive::one().visibility(Duration::from_millis(200));
            for message in invoices.receive(lease).await.expect("received") {
                let both = shop.transaction_with_behavior(TransactionBehavior::Immediate);
                let both = both.expect("a transaction");
                let update = "UPDATE orders SET paid = paid + 1 WHERE id = ?1";
                both.execute(update, [message.body()]).expect("paid");
                if transaction::acknowledge(&both, &message).is_ok() {
                    both.commit().expect("committed");
                }
            }
        }
    });
}

/// An order and its message, a payment and its acknowledgement: both, or neither.
#[test]
fn a_transaction_of_the_caller_is_atomic_when_its_process_is_killed() {
    let (_directory, file) = directory();
    let kills = setting("PILLARBOX_KILLS", 15);
    for kill in 1..=kills {
        let child = Child::start("crash::shop", &file, "");
        child.wait_for("s", 0);
        std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..100_000)));
        let answered = child.kill().len() as u64;

        assert_intact(&file);
        let shop = Connection::open(&file).expect("a connection");
        let count =
            |sql: &str| shop.query_row(sql, [], |row| row.get::<_, u64>(0)).expect("a count");
        let (orders, paid) = (
            count("SELECT count(*) FROM orders"),
            count("SELECT count(*) FROM orders WHERE paid = 1"),
        );
        let waiting = count("SELECT count(*) FROM pillarbox WHERE queue = 'invoices'");
        assert_eq!(orders, paid + waiting, "after {kill} kills: an order without its message");
        assert_eq!(count("SELECT count(*) FROM orders WHERE paid > 1"), 0, "paid twice");
        assert!(orders >= answered, "{answered} confirmed, {orders} in the file");
        if kill == kills {
            println!("transactions: {kills} kills, {orders} orders, {paid} paid, all complete");
        }
    }
}
