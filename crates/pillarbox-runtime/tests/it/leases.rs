//! Leases are extended from the receive of a message until it is settled, also by the handler's own transaction, and
//! the loss of one is reported.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::{Mailbox, Mailboxes};
use pillarbox_runtime::dead_letters::{DeadLetter, DlqPolicy};
use pillarbox_runtime::handler::{Attempt, Context, Heartbeat, Metadata, WorkerId};
use pillarbox_runtime::{Backoff, BoxError, Event, FailureKind, Outcome, Runnable, Worker};
use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, transaction, verify};
use pillarbox_testing::{Fault, Faults, Operation};
use tempfile::TempDir;
use tokio::sync::{Semaphore, mpsc};

use crate::common::memory::{faulty, jobs, start_listening, started};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_while_a_handler_runs_and_while_a_message_is_prefetched() {
    let jobs = jobs();
    jobs.send_batch(&[1, 2]).await.unwrap().all().unwrap();
    let worker = Worker::new(jobs.clone()).workers(1).without_timeout().handler(
        |_: u32, Attempt(attempt): Attempt| async move {
            assert_eq!(attempt, 1);
            tokio::time::sleep(10 * LEASE).await;
        },
    );
    let (running, mut events) = start_listening(worker);
    for _ in 0..2 {
        let is_end = |event: &Event| !matches!(event, Event::Received(_) | Event::Started(_));
        let event = events.wait_for(is_end).await.unwrap();
        assert!(matches!(event, Event::Succeeded { .. }), "{event:?}");
    }
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.processed, stats.leases_lost), (2, 0));
}

/// In real time, since it shows that a blocked thread blocks no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_keeps_its_lease_and_blocks_no_other() {
    let jobs = jobs();
    let blocking = jobs.send(&0).await.unwrap();
    let worker = Worker::new(jobs.clone()).workers(4).visibility(Duration::from_secs(1)).handler(
        |job: u32, Attempt(attempt): Attempt| async move {
            assert_eq!(attempt, 1, "its lease was lost");
            if job == 0 {
                // As a computation would, or a library that knows nothing of async.
                std::thread::sleep(Duration::from_millis(2500));
            }
        },
    );
    let (running, mut events) = start_listening(worker);
    started(&mut events).await;
    for job in 1..200 {
        jobs.send(&job).await.unwrap();
    }
    let mut done = Vec::new();
    while done.len() < 200 {
        let event = events.next().await.unwrap();
        assert!(!matches!(event, Event::LeaseLost(_) | Event::Failed { .. }), "{event:?}");
        if let Event::Succeeded { about, .. } = event {
            done.push(about.message_id);
        }
    }
    assert_eq!(done.last(), Some(&blocking), "all others while the first was still at it");
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.succeeded, stats.leases_lost, stats.failed), (200, 0, 0));
}

/// The driver was just woken by a report when the next handler blocks the thread on which it would run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_right_after_another_keeps_its_lease() {
    let jobs = jobs();
    let worker = Worker::new(jobs.clone())
        .workers(1)
        .prefetch(5)
        .visibility(Duration::from_millis(900))
        .handler(|job: u32, Attempt(attempt): Attempt| async move {
            assert_eq!(attempt, 1, "its lease was lost");
            if job % 3 == 2 {
                std::thread::sleep(Duration::from_millis(1500));
            }
        });
    jobs.send_batch(&[0, 1, 2, 3, 4, 5]).await.unwrap().all().unwrap();
    // In a task, so that the dispatcher is on the threads that are blocked.
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.processed == 6 && stats.in_flight == 0).await.unwrap();
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.succeeded, stats.leases_lost, stats.failed), (6, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_notified_when_its_lease_is_lost() {
    let jobs = jobs();
    jobs.send(&1).await.unwrap();
    let (said, mut heard) = mpsc::channel(1);
    let worker = Worker::new(jobs.clone()).context(said).handler(
        |_: u32, heartbeat: Heartbeat, Context(said): Context<mpsc::Sender<bool>>| async move {
            assert!(!heartbeat.is_lost());
            heartbeat.lost().await;
            said.send(heartbeat.is_lost()).await.unwrap();
        },
    );
    let (running, mut events) = start_listening(worker);
    started(&mut events).await;
    // Nobody has a valid receipt any more.
    jobs.purge().await.unwrap();
    let start = tokio::time::Instant::now();
    events.wait_for(|event| matches!(event, Event::LeaseLost(_))).await.unwrap();
    assert_eq!(start.elapsed(), LEASE / 3, "when it is next extended");
    assert_eq!(heard.recv().await, Some(true));
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.leases_lost, stats.in_flight), (1, 0), "once");
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_lease_is_lost_can_be_cancelled() {
    let jobs = jobs();
    jobs.send(&1).await.unwrap();
    let worker = Worker::new(jobs.clone())
        .without_timeout()
        .cancel_when_lost()
        .handler(|_: u32| async { std::future::pending::<()>().await });
    let (running, mut events) = start_listening(worker);
    started(&mut events).await;
    jobs.purge().await.unwrap();
    let failed = events.wait_for(|event| matches!(event, Event::Failed { .. })).await.unwrap();
    assert!(matches!(failed, Event::Failed { kind: FailureKind::Cancelled, .. }), "{failed:?}");
    jobs.send(&2).await.unwrap();
    started(&mut events).await;
    running.control().stop_now();
    let stats = running.join().await.unwrap();
    assert_eq!((stats.leases_lost, stats.released), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_late_acknowledgement_is_refused_and_reported() {
    let (faulty, jobs) = faulty("jobs", Faults::none(), 0);
    jobs.send(&1).await.unwrap();
    // Every extension fails, for longer than the lease.
    for _ in 0..1000 {
        faulty.next(Operation::Settle, Fault::FailBefore);
    }
    let gate = Arc::new(Semaphore::new(0));
    let runs = Arc::new(AtomicUsize::new(0));
    let worker =
        Worker::new(jobs.clone()).without_timeout().context((gate.clone(), runs.clone())).handler(
            |_: u32, Context(shared): Context<(Arc<Semaphore>, Arc<AtomicUsize>)>| async move {
                if shared.1.fetch_add(1, Ordering::SeqCst) == 0 {
                    shared.0.acquire().await.unwrap().forget();
                }
            },
        );
    let (running, mut events) = start_listening(worker);
    let start = tokio::time::Instant::now();
    events.wait_for(|event| matches!(event, Event::LeaseLost(_))).await.unwrap();
    assert_eq!(start.elapsed(), LEASE, "not a moment later than it ended");
    // Another worker of the same pool has it by now.
    let again = started(&mut events).await;
    assert_eq!(again.about().unwrap().attempt, 1, "the start of the first was never recorded");
    gate.add_permits(1);
    running.control().stop_now();
    running.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn extensions_that_fail_sometimes_lose_nothing() {
    let faults = Faults::none().fail_before(0.3).fail_after(0.3).only(&[Operation::Settle]);
    let (faulty, jobs) = faulty("jobs", faults, 7);
    jobs.send_batch(&[1, 2, 3, 4]).await.unwrap().all().unwrap();
    let worker = Worker::new(jobs.clone()).without_timeout().handler(
        |_: u32, Attempt(attempt): Attempt, WorkerId(_): WorkerId| async move {
            assert_eq!(attempt, 1);
            tokio::time::sleep(20 * LEASE).await;
        },
    );
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.processed == 4 && stats.in_flight == 0).await.unwrap();
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.succeeded, stats.leases_lost), (4, 0));
    assert!(faulty.injected() > 20, "{}", faulty.injected());
    assert_eq!(jobs.approximate_count().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn in_beat_mode_only_progress_keeps_a_lease() {
    let jobs = jobs();
    jobs.send_batch(&[1, 2]).await.unwrap().all().unwrap();
    let worker = Worker::new(jobs.clone())
        .workers(2)
        .prefetch(0)
        .without_timeout()
        .extend_while_beating()
        .cancel_when_lost()
        .handler(|job: u32, heartbeat: Heartbeat, metadata: Metadata| async move {
            for _ in 0..40 {
                tokio::time::sleep(LEASE / 4).await;
                // The second one goes silent at its first delivery.
                if job == 1 || metadata.delivery_count() > 1 {
                    heartbeat.beat();
                }
            }
        });
    let (running, mut events) = start_listening(worker);
    let start = tokio::time::Instant::now();
    let lost = events.wait_for(|event| matches!(event, Event::LeaseLost(_))).await.unwrap();
    assert_eq!((start.elapsed(), lost.about().unwrap().attempt), (LEASE, 1));
    for _ in 0..2 {
        events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await.unwrap();
    }
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.leases_lost, stats.succeeded), (1, 2));
}

/// A file with a queue and a table of the handler's own.
struct Bank {
    file: PathBuf,
    backend: Mailboxes,
    jobs: Mailbox<u32>,
    dead: Mailbox<DeadLetter<u32>>,
    _directory: TempDir,
}

impl Bank {
    async fn open() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("bank.db");
        let backend = SqliteBackend::open(SqliteOptions::new(&file)).await.expect("a backend");
        let backend = Mailboxes::new(backend);
        let jobs = backend.mailbox("jobs").expect("a mailbox");
        let dead = backend.mailbox("jobs-dlq").expect("a mailbox");
        let bank = Connection::open(&file).expect("a connection");
        bank.execute_batch("CREATE TABLE booked (job INTEGER)").expect("a table");
        Self { file, backend, jobs, dead, _directory: directory }
    }

    /// The jobs that were booked, in order.
    fn booked(&self) -> Vec<u32> {
        let bank = Connection::open(&self.file).expect("a connection");
        let mut rows = bank.prepare("SELECT job FROM booked ORDER BY job").expect("a statement");
        let rows = rows.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("numbers")
    }

    /// Returns what was booked and the numbers of messages and dead letters, after an integrity check of the file.
    async fn end(self) -> (Vec<u32>, u64, u64) {
        let left = self.jobs.approximate_count().await.expect("counted");
        let dead = self.dead.approximate_count().await.expect("counted");
        let booked = self.booked();
        self.backend.close().await;
        assert_eq!(verify(&self.file).expect("verified"), [""; 0]);
        (booked, left, dead)
    }
}

/// Books a job and acknowledges its message, in one transaction.
fn book(file: &Path, job: u32, about: &Metadata, commits: bool) -> Result<(), BoxError> {
    let mut bank = Connection::open(file)?;
    bank.busy_timeout(Duration::from_secs(30))?;
    let both = bank.transaction_with_behavior(TransactionBehavior::Immediate)?;
    both.execute("INSERT INTO booked VALUES (?1)", [job])?;
    transaction::acknowledge(&both, about)?;
    if commits { both.commit() } else { both.rollback() }?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_does_its_work_and_acknowledges_in_one_transaction() {
    let bank = Bank::open().await;
    let jobs: Vec<_> = (0..30).collect();
    bank.jobs.send_batch(&jobs).await.unwrap().all().unwrap();
    let worker = Worker::new(bank.jobs.clone()).context(bank.file.clone()).handler(
        |job: u32, about: Metadata, Context(file): Context<PathBuf>| async move {
            book(&file, job, &about, true)?;
            // `done()` has the same effect, and costs a call.
            Ok::<_, BoxError>(if job.is_multiple_of(2) {
                Outcome::settled()
            } else {
                Outcome::done()
            })
        },
    );
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.failed), (30, 0));
    assert_eq!((stats.leases_lost, stats.unconfirmed), (0, 0));
    assert_eq!(bank.end().await, (jobs, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_rolled_back_leaves_its_message() {
    let bank = Bank::open().await;
    bank.jobs.send_batch(&[0, 1, 2]).await.unwrap().all().unwrap();
    let worker = Worker::new(bank.jobs.clone())
        .context(bank.file.clone())
        .visibility(Duration::from_secs(1))
        .retry(Backoff::none())
        .handler(|job: u32, about: Metadata, Context(file): Context<PathBuf>| async move {
            let is_first = about.delivery_count() == 1;
            book(&file, job, &about, !is_first)?;
            match job {
                // Tried again, like by any error.
                0 if is_first => Err("rolled back".into()),
                // Comes back when its lease ends: there is nothing that anybody else knows of.
                1 if is_first => Ok(Outcome::settled()),
                // Done is done.
                2 => Ok(Outcome::done()),
                _ => Ok::<_, BoxError>(Outcome::settled()),
            }
        });
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.failed, stats.retried, stats.leases_lost), (1, 1, 0));
    assert_eq!(bank.end().await, (vec![0, 1], 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_after_its_commit_is_done_and_makes_no_dead_letter() {
    let bank = Bank::open().await;
    bank.jobs.send_batch(&[0, 1, 2, 3, 4, 5]).await.unwrap().all().unwrap();
    let worker = Worker::new(bank.jobs.clone())
        .context(bank.file.clone())
        .max_deliveries(1)
        .dead_letters(DlqPolicy::new())
        .timeout(Duration::from_millis(300))
        .handler(|job: u32, about: Metadata, Context(file): Context<PathBuf>| async move {
            book(&file, job, &about, job != 5)?;
            match job {
                0 => panic!("after the commit"),
                1 => std::future::pending().await,
                2 => return Ok(Outcome::reject("after the commit")),
                3 => return Ok(Outcome::release()),
                _ => {}
            }
            Err::<Outcome, BoxError>("after the commit, but for one".into())
        });
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.panics, stats.timeouts, stats.failed), (1, 1, 5));
    assert_eq!((stats.succeeded, stats.dead_lettered, stats.released), (5, 1, 0));
    assert_eq!((stats.leases_lost, stats.unconfirmed), (0, 0));
    assert_eq!(bank.dead.peek(9).await.unwrap()[0].body.as_ref().unwrap().body, 5);
    assert_eq!(bank.end().await, (vec![0, 1, 2, 3, 4], 0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_continues_after_its_commit_has_lost_no_lease() {
    let bank = Bank::open().await;
    bank.jobs.send(&0).await.unwrap();
    let lease = Duration::from_secs(1);
    let worker = Worker::new(bank.jobs.clone())
        .context(bank.file.clone())
        .visibility(lease)
        .cancel_when_lost()
        .handler(
            move |job: u32,
                  about: Metadata,
                  heartbeat: Heartbeat,
                  Context(file): Context<PathBuf>| async move {
                book(&file, job, &about, true)?;
                // An extension is due meanwhile, and refused; and the lease would have ended.
                let lost = tokio::time::timeout(lease.mul_f64(1.5), heartbeat.lost()).await;
                assert!(lost.is_err(), "it is not lost, it is acknowledged");
                Ok::<_, BoxError>(Outcome::settled())
            },
        );
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.failed, stats.leases_lost), (1, 0, 0));
    assert_eq!(bank.end().await, (vec![0], 0, 0));
}

/// What a handler starts and does not wait for may come to its transaction at any time: also while the message is on
/// its way to the dead letters, under a lease that still runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_thread_that_a_handler_left_behind_cannot_acknowledge() {
    let bank = Bank::open().await;
    bank.jobs.send(&7).await.unwrap();
    let left_behind: Arc<Mutex<Option<Metadata>>> = Arc::default();
    let (kept, file) = (left_behind.clone(), bank.file.clone());
    let answer: Arc<Mutex<Option<String>>> = Arc::default();
    let answered = answer.clone();
    let worker = Worker::new(bank.jobs.clone())
        .context_arc(left_behind)
        .max_deliveries(1)
        .dead_letters(DlqPolicy::new())
        .on_dead_letter(move |_, _| {
            let about = kept.lock().expect("a lock").take().expect("what the handler left behind");
            let error = book(&file, 7, &about, true).expect_err("the handler has ended");
            *answered.lock().expect("a lock") = Some(error.to_string());
        })
        .handler(
            |_: u32, about: Metadata, Context(left): Context<Mutex<Option<Metadata>>>| async move {
                assert!(!format!("{about:?}").contains("eceipt"), "{about:?}");
                *left.lock().expect("a lock") = Some(about);
                Err::<(), _>("no")
            },
        );
    worker.run_until_empty().await.unwrap();
    let answer = answer.lock().unwrap().take().expect("an answer");
    assert!(answer.contains("no longer valid"), "{answer}");
    assert_eq!(bank.end().await, (vec![], 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_returns_settled_without_an_acknowledgement_has_failed() {
    let jobs = jobs();
    jobs.send(&1).await.unwrap();
    let worker =
        Worker::new(jobs.clone()).max_deliveries(1).handler(|_: u32| async { Outcome::settled() });
    let (running, mut events) = start_listening(worker);
    let failed = events.wait_for(|event| event.name() == "failed").await.unwrap();
    let Event::Failed { error, terminal: true, .. } = failed else { panic!("{failed:?}") };
    assert!(error.contains("acknowledged its message in no transaction"), "{error}");
    running.stop().await.unwrap();
    assert_eq!(jobs.approximate_count().await.unwrap(), 1, "nothing was deleted");
}
