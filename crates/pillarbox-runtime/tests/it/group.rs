//! Groups of loops: stops, failures, restarts, stuck loops, tasks, systemd.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, Mailboxes, QueueOptions, Result};
use pillarbox_runtime::dead_letters::{DeadLetter, DlqLimits};
use pillarbox_runtime::group::{
    GroupError, GroupStatus, LoopGroup, LoopState, Restart, StopSignal, Stuck, Task,
};
use pillarbox_runtime::stats::{State, StatsSnapshot};
use pillarbox_runtime::{
    Backoff, Control, DlqConsumer, Event, LoopFailure, ReadyWorker, Runnable, Worker,
};
use pillarbox_testing::process::Child;
use pillarbox_testing::{Fault, Faults, Operation, on_threads};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::common::group_process::{Job, QUEUES, ROLE, Setup, start_group, task};
use crate::common::memory::{backend, faulty, started};
use crate::common::shared_backend::{SharedBackend, open};

const SECOND: Duration = Duration::from_secs(1);
/// Timeout of every step, for slow machines.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The process that runs a group. Not a test.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn run_group() {
    crate::common::group_process::serve();
}

fn mailbox(backend: &Mailboxes, name: &str) -> Mailbox<u32> {
    backend.mailbox(name.to_owned()).expect("a mailbox")
}

/// A loop whose handlers take this long.
fn working(mailbox: &Mailbox<u32>, takes: Duration) -> ReadyWorker<u32> {
    Worker::new(mailbox.clone())
        .without_timeout()
        .handler(move |_: u32| async move { tokio::time::sleep(takes).await })
}

/// A loop with a fixed behaviour, and the control of a worker that never runs.
struct Scripted {
    name: &'static str,
    control: Control,
    act: Act,
    /// It waits for four permits before it starts.
    gate: Option<Arc<Semaphore>>,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Fail,
    Panic,
    /// Does not end, even if it is stopped.
    Endless,
}

fn scripted(name: &'static str, act: Act) -> Scripted {
    let worker = Worker::new(mailbox(&backend(), "unused")).handler(|_: u32| async {});
    Scripted { name, control: worker.control(), act, gate: None }
}

impl Runnable for Scripted {
    type Error = LoopFailure;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn control(&self) -> Control {
        self.control.clone()
    }

    fn work(self) -> impl Future<Output = Result<StatsSnapshot, LoopFailure>> + Send + 'static {
        // Before there is a future, which the group has to survive as well.
        assert!(!matches!(self.act, Act::Panic), "all is lost");
        async move {
            if let Some(gate) = self.gate {
                drop(gate.acquire_many(4).await);
            }
            match self.act {
                Act::Fail => Err(Error::Closed { queue: None }.into()),
                _ => std::future::pending().await,
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_drains_all_loops_at_the_same_time() {
    let backend = backend();
    let (orders, reports) = (mailbox(&backend, "orders"), mailbox(&backend, "reports"));
    for jobs in [&orders, &reports] {
        jobs.send_batch(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).await.unwrap().all().unwrap();
    }
    let group =
        LoopGroup::new().add(working(&orders, 5 * SECOND)).add(working(&reports, 7 * SECOND));
    let control = group.control();
    assert_eq!(control.names(), ["orders", "reports"]);
    let running = group.start().unwrap();
    for name in ["orders", "reports"] {
        let mut stats = control.control_of(name).unwrap().stats();
        stats.wait_for(|stats| stats.in_flight == 4).await.unwrap();
    }
    let start = Instant::now();
    let report = running.stop().await.unwrap();
    assert!(start.elapsed() <= 7 * SECOND, "one after the other");
    for (jobs, name) in [(&orders, "orders"), (&reports, "reports")] {
        let stats = &report.get(name).unwrap().stats;
        assert_eq!((stats.succeeded, stats.returned), (4, 0), "{name}");
        assert_eq!(stats.state, State::Stopped, "{name}");
        assert_eq!(jobs.counts().await.unwrap().ready, 5, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_start_applies() {
    let jobs = mailbox(&backend(), "orders");
    jobs.send(&1).await.unwrap();
    let own = jobs.clone();
    let group = LoopGroup::new().add_with("orders", move || working(&own, SECOND));
    let control = group.control();
    assert!(control.control_of("orders").is_none(), "it is made at the start");
    control.stop();
    let report = group.run().await.unwrap();
    assert_eq!(report.loops[0].stats.processed, 0);
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_runs_until_a_future_completes() {
    let jobs = mailbox(&backend(), "orders");
    jobs.send(&1).await.unwrap();
    let group = LoopGroup::new().add(working(&jobs, 3 * SECOND));
    let report = group.run_until(tokio::time::sleep(SECOND)).await.unwrap();
    assert_eq!(report.loops[0].stats.succeeded, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_is_dropped_stops_all_loops_now() {
    let jobs = mailbox(&backend(), "orders");
    jobs.send(&1).await.unwrap();
    let worker = Worker::new(jobs.clone()).without_timeout();
    let worker = worker.handler(|_: u32| async { std::future::pending::<()>().await });
    let mut events = worker.control().events();
    let running = LoopGroup::new().add(worker).start().unwrap();
    started(&mut events).await;
    drop(running);
    events.wait_for(|event| matches!(event, Event::Drained)).await.unwrap();
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
}

#[test]
fn a_handle_whose_runtime_was_shut_down_returns_an_error() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let jobs = mailbox(&backend(), "orders");
    let running = runtime.block_on(async { LoopGroup::new().add(working(&jobs, SECOND)).start() });
    runtime.shutdown_background();
    let ended = on_threads(running.unwrap().join());
    assert!(matches!(ended, Err(GroupError::ShutDown)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn invalid_options_are_refused_before_anything_is_started() {
    let jobs = mailbox(&backend(), "orders");
    jobs.send(&1).await.unwrap();
    let refused = |group: LoopGroup| match group.start() {
        Err(GroupError::Invalid(error @ Error::InvalidParameter { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let none = refused(LoopGroup::new());
    assert_eq!(none, "invalid loops: none; allowed: at least one: see LoopGroup::add");
    let group = LoopGroup::new().add(working(&jobs, SECOND)).add(working(&jobs, SECOND));
    let twice = refused(group);
    assert!(twice.starts_with("invalid loops: two with the name 'orders'"), "{twice}");
    let group = LoopGroup::new().add(working(&jobs, SECOND)).watchdog(Duration::ZERO);
    assert!(refused(group).starts_with("invalid watchdog: 0ns"));
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_ends_without_an_error_leaves_the_others_running() {
    let backend = backend();
    let (orders, reports) = (mailbox(&backend, "orders"), mailbox(&backend, "reports"));
    let group = LoopGroup::new().add(working(&orders, SECOND)).add(working(&reports, SECOND));
    let running = group.start().unwrap();
    let control = running.control().clone();
    let of = |name| control.control_of(name).unwrap();
    of("orders").stop();
    of("orders").stats().wait_for(|stats| stats.state == State::Stopped).await.unwrap();
    reports.send(&1).await.unwrap();
    of("reports").stats().wait_for(|stats| stats.succeeded == 1).await.unwrap();
    let readiness = control.readiness().await;
    assert_eq!(readiness.reasons, ["loop 'orders' is stopped"]);
    of("reports").stop();
    let report = running.join().await.unwrap();
    assert_eq!(report.get("reports").unwrap().stats.succeeded, 1);
    assert!(report.get("nobody").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_fails_ends_the_group_and_is_named_and_the_others_are_drained() {
    for (act, cause) in
        [(Act::Fail, "the mailbox was closed"), (Act::Panic, "it panicked: all is lost")]
    {
        let jobs = mailbox(&backend(), "orders");
        jobs.send_batch(&[1; 20]).await.unwrap().all().unwrap();
        let gate = Arc::new(Semaphore::new(0));
        // It fails once the other one runs a handler.
        let worker = Worker::new(jobs.clone()).handler({
            let gate = gate.clone();
            move |_: u32| {
                gate.add_permits(1);
                tokio::time::sleep(3 * SECOND)
            }
        });
        let late = Scripted { gate: Some(gate), ..scripted("bad", act) };
        let error = LoopGroup::new().add(worker).add(late).run().await.unwrap_err();
        let said = format!("the loop 'bad' failed: {cause}");
        assert_eq!(error.to_string(), said);
        let orders = error.report().unwrap().get("orders").unwrap();
        assert_eq!((orders.stats.succeeded, orders.failure.is_none()), (4, true), "{act:?}");
        let bad = error.report().unwrap().get("bad").unwrap();
        assert_eq!(bad.failure.as_ref().unwrap().to_string(), cause);
        let GroupError::Failed { name, cause, .. } = error else { panic!("{error}") };
        assert_eq!(name, "bad");
        assert!(matches!(
            (act, cause),
            (Act::Fail, LoopFailure::Error(Error::Closed { .. }))
                | (Act::Panic, LoopFailure::Panic(_))
        ));
        let counts = jobs.counts().await.unwrap();
        assert_eq!((counts.ready, counts.in_flight), (16, 0));
    }
}

/// A loop that fails, or one that works.
enum Made<W> {
    Failing(Scripted),
    Working(W),
}

impl<W: Runnable<Error = Error>> Runnable for Made<W> {
    type Error = LoopFailure;

    fn name(&self) -> String {
        match self {
            Self::Failing(failing) => failing.name(),
            Self::Working(worker) => worker.name(),
        }
    }

    fn control(&self) -> Control {
        match self {
            Self::Failing(failing) => failing.control(),
            Self::Working(worker) => worker.control(),
        }
    }

    async fn work(self) -> Result<StatsSnapshot, LoopFailure> {
        match self {
            Self::Failing(failing) => failing.work().await,
            Self::Working(worker) => Ok(worker.work().await?),
        }
    }
}

/// A loop that fails at its first `times` starts, and then works.
fn failing(
    jobs: &Mailbox<u32>,
    times: u32,
    act: Act,
) -> (Arc<AtomicU32>, impl FnMut() -> Made<ReadyWorker<u32>> + use<>) {
    let made = Arc::new(AtomicU32::new(0));
    let (count, jobs) = (made.clone(), jobs.clone());
    let make = move || {
        if count.fetch_add(1, Ordering::SeqCst) < times {
            assert!(!matches!(act, Act::Endless), "it cannot even be made");
            Made::Failing(scripted("orders", act))
        } else {
            Made::Working(working(&jobs, Duration::ZERO))
        }
    };
    (made, make)
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_fails_is_restarted_until_it_works() {
    for act in [Act::Fail, Act::Panic, Act::Endless] {
        let jobs = mailbox(&backend(), "orders");
        let (made, make) = failing(&jobs, 3, act);
        let restart = Restart::on_failure().at_most(3, 60 * SECOND);
        let start = Instant::now();
        let running = LoopGroup::new().add_with("orders", make).restart(restart).start().unwrap();
        jobs.send(&1).await.unwrap();
        // Handled by the fourth one.
        while jobs.counts().await.unwrap().total() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(start.elapsed().as_secs(), 1 + 2 + 4, "each time it waits for longer");
        let readiness = running.control().readiness().await;
        assert_eq!(readiness.loops[0].restarts, 3);
        let report = running.stop().await.unwrap();
        let orders = report.get("orders").unwrap();
        assert_eq!((orders.restarts, orders.failure.is_none()), (3, true), "{act:?}");
        assert_eq!((orders.stats.succeeded, made.load(Ordering::SeqCst)), (1, 4));
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_fails_too_often_ends_the_group_and_is_named() {
    let backend = backend();
    let (orders, reports) = (mailbox(&backend, "orders"), mailbox(&backend, "reports"));
    let (made, make) = failing(&orders, 4, Act::Fail);
    let restart = Restart::on_failure().at_most(3, 60 * SECOND).backoff(Backoff::constant(SECOND));
    let start = Instant::now();
    let group = LoopGroup::new().add(working(&reports, SECOND)).add_with("orders", make);
    let error = group.restart(restart).run().await.unwrap_err();
    assert_eq!(error.to_string(), "the loop 'orders' failed: the mailbox was closed");
    assert_eq!((start.elapsed(), made.load(Ordering::SeqCst)), (3 * SECOND, 4));
    assert_eq!(error.report().unwrap().get("orders").unwrap().restarts, 3);
    assert_eq!(error.report().unwrap().get("reports").unwrap().stats.state, State::Stopped);
}

#[tokio::test(start_paused = true)]
async fn failures_that_are_far_apart_do_not_add_up() {
    let jobs = mailbox(&backend(), "orders");
    let (made, make) = failing(&jobs, 20, Act::Fail);
    let restart = Restart::on_failure().at_most(1, SECOND).backoff(Backoff::constant(2 * SECOND));
    let running = LoopGroup::new().add_with("orders", make).restart(restart).start().unwrap();
    jobs.send(&1).await.unwrap();
    while jobs.counts().await.unwrap().total() > 0 {
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(made.load(Ordering::SeqCst), 21);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_restart() {
    let jobs = mailbox(&backend(), "orders");
    let (made, make) = failing(&jobs, 1, Act::Fail);
    let restart = Restart::on_failure().backoff(Backoff::constant(3600 * SECOND));
    let running = LoopGroup::new().add_with("orders", make).restart(restart).start().unwrap();
    let control = running.control().clone();
    let restarting = async {
        loop {
            let readiness = control.readiness().await;
            if readiness.loops[0].state == LoopState::Restarting {
                return readiness;
            }
            tokio::task::yield_now().await;
        }
    };
    let readiness = restarting.await;
    assert_eq!(readiness.reasons, ["loop 'orders' is being restarted: the mailbox was closed"]);
    let start = Instant::now();
    let report = running.stop().await.unwrap();
    assert_eq!((start.elapsed(), made.load(Ordering::SeqCst)), (Duration::ZERO, 1));
    assert!(report.get("orders").unwrap().failure.is_some(), "it is reported nevertheless");
}

#[tokio::test(start_paused = true)]
async fn without_restarts_the_first_failure_ends_the_group() {
    let jobs = mailbox(&backend(), "orders");
    let (made, make) = failing(&jobs, 1, Act::Fail);
    let group = LoopGroup::new().add_with("orders", make).restart(Restart::never());
    assert!(matches!(group.run().await, Err(GroupError::Failed { .. })));
    assert_eq!(made.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn after_the_drain_time_everything_is_cancelled_and_released() {
    let backend = backend();
    let (orders, reports) = (mailbox(&backend, "orders"), mailbox(&backend, "reports"));
    let mut group = LoopGroup::new().drain_for(7 * SECOND);
    let mut events = Vec::new();
    for jobs in [&orders, &reports] {
        jobs.send(&1).await.unwrap();
        let worker = Worker::new(jobs.clone()).without_timeout().drain_for(3600 * SECOND);
        let worker = worker.handler(|_: u32| async { std::future::pending::<()>().await });
        events.push(worker.control().events());
        group = group.add(worker);
    }
    let running = group.start().unwrap();
    for events in &mut events {
        started(events).await;
    }
    let start = Instant::now();
    let report = running.stop().await.unwrap();
    assert_eq!(start.elapsed(), 7 * SECOND);
    for (jobs, one) in [&orders, &reports].into_iter().zip(&report.loops) {
        assert_eq!((one.stats.released, one.is_left_behind), (1, false), "{}", one.name);
        assert_eq!(jobs.counts().await.unwrap().ready, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_does_not_end_is_left_behind_and_named() {
    let jobs = mailbox(&backend(), "orders");
    let group = LoopGroup::new()
        .add(working(&jobs, SECOND))
        .add(scripted("unstoppable", Act::Endless))
        .drain_for(7 * SECOND);
    let running = group.start().unwrap();
    let start = Instant::now();
    let error = running.stop().await.unwrap_err();
    assert_eq!(start.elapsed(), 12 * SECOND);
    assert_eq!(error.to_string(), "the loop 'unstoppable' did not end in time and was left behind");
    let report = error.report().unwrap();
    assert!(report.get("unstoppable").unwrap().is_left_behind);
    assert!(!report.get("orders").unwrap().is_left_behind);
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_cancels_what_is_running() {
    let jobs = mailbox(&backend(), "orders");
    jobs.send(&1).await.unwrap();
    let running = LoopGroup::new().add(working(&jobs, 3600 * SECOND)).start().unwrap();
    let control = running.control().clone();
    let mut stats = control.control_of("orders").unwrap().stats();
    stats.wait_for(|stats| stats.in_flight == 1).await.unwrap();
    control.stop();
    stats.wait_for(|stats| stats.state == State::Draining).await.unwrap();
    assert_eq!(control.readiness().await.status, GroupStatus::Draining);
    let start = Instant::now();
    control.stop_now();
    running.join().await.unwrap();
    assert_eq!((start.elapsed(), jobs.counts().await.unwrap().ready), (Duration::ZERO, 1));
}

/// Waits until the member of this name is in this state.
async fn reaches(running: &pillarbox_runtime::group::RunningGroup, name: &str, state: State) {
    let mut stats = running.control().control_of(name).expect("a member").stats();
    stats.wait_for(|stats| stats.state == state).await.expect("a running loop");
}

#[tokio::test(start_paused = true)]
async fn a_task_is_a_member_of_its_group_that_is_reported_and_drained() {
    let jobs = mailbox(&backend(), "orders");
    let serve = async |stop: StopSignal| {
        stop.await;
        // It finishes its connections.
        tokio::time::sleep(5 * SECOND).await;
        Ok::<(), std::io::Error>(())
    };
    let group = LoopGroup::new().add(working(&jobs, SECOND)).add(Task::new("http", serve));
    assert_eq!(group.control().names(), ["orders", "http"]);
    let running = group.start().unwrap();
    reaches(&running, "http", State::Running).await;
    let mut stats = running.control().control_of("orders").unwrap().stats();
    stats.wait_for(|stats| stats.mailboxes[0].answered_at.is_some()).await.unwrap();
    let readiness = running.control().readiness().await;
    assert_eq!((readiness.status, &readiness.reasons[..]), (GroupStatus::Healthy, &[][..]));
    let http = &readiness.loops[1];
    assert_eq!((&*http.name, http.state, http.restarts), ("http", LoopState::Running, 0));

    let start = Instant::now();
    let mut events = running.control().control_of("http").unwrap().events();
    let report = running.stop().await.unwrap();
    assert_eq!(start.elapsed(), 5 * SECOND);
    let http = report.get("http").unwrap();
    assert_eq!((http.stats.state, http.is_left_behind), (State::Stopped, false));
    events.wait_for(|event| matches!(event, Event::Drained)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_is_not_started_after_a_stop() {
    let never = async |_: StopSignal| -> std::io::Result<()> { unreachable!("it is to stop") };
    let group = LoopGroup::new().add(Task::new("http", never));
    group.control().stop();
    assert_eq!(group.run().await.unwrap().loops[0].stats.state, State::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_or_panics_is_restarted_like_a_loop() {
    let begun = Arc::new(AtomicU32::new(0));
    let count = begun.clone();
    let make = move || {
        let life = count.fetch_add(1, Ordering::SeqCst);
        Task::new("http", move |stop: StopSignal| async move {
            match life {
                0 => return Err("the port is taken"),
                1 => panic!("all is lost"),
                _ => stop.await,
            }
            Ok(())
        })
    };
    let running = LoopGroup::new().add_with("http", make).start().unwrap();
    tokio::time::sleep(SECOND / 2).await;
    let readiness = running.control().readiness().await;
    assert_eq!(readiness.loops[0].state, LoopState::Restarting);
    let said = "loop 'http' is being restarted: it ended with an error: the port is taken";
    assert_eq!(readiness.reasons, [said]);
    while begun.load(Ordering::SeqCst) < 3 {
        tokio::time::sleep(SECOND).await;
    }
    reaches(&running, "http", State::Running).await;
    let report = running.stop().await.unwrap();
    assert_eq!((begun.load(Ordering::SeqCst), report.loops[0].restarts), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_a_task_that_cannot_be_restarted_ends_the_group() {
    let jobs = mailbox(&backend(), "orders");
    let taken = std::io::Error::from(std::io::ErrorKind::AddrInUse);
    let group = LoopGroup::new()
        .add(working(&jobs, SECOND))
        .add(Task::new("http", |_: StopSignal| async move { Err(taken) }));
    let error = group.run().await.unwrap_err();
    let GroupError::Failed { name, cause: LoopFailure::Task(cause), .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(name, "http");
    let cause = cause.downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(cause.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().starts_with("the loop 'http' failed: it ended with an error: "));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_without_an_error_is_not_restarted_and_leaves_the_others_running() {
    let jobs = mailbox(&backend(), "orders");
    let own = jobs.clone();
    let once = async |_: StopSignal| Ok::<(), std::io::Error>(());
    let running = LoopGroup::new()
        .add_with("orders", move || working(&own, SECOND))
        .add_with("once", move || Task::new("once", once))
        .start()
        .unwrap();
    jobs.send(&1).await.unwrap();
    tokio::task::yield_now().await;
    let mut stats = running.control().control_of("orders").unwrap().stats();
    stats.wait_for(|stats| stats.succeeded == 1).await.unwrap();
    assert_eq!(running.control().readiness().await.reasons, ["loop 'once' is stopped"]);
    let report = running.stop().await.unwrap();
    assert_eq!(report.get("once").unwrap().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_stop_is_cancelled_after_the_drain_time_and_named() {
    let dropped = Arc::new(Semaphore::new(0));
    let deaf = |dropped: &Arc<Semaphore>| {
        let guard = Dropped(dropped.clone());
        Task::new("unstoppable", move |_: StopSignal| async move {
            let _guard = guard;
            std::future::pending::<std::io::Result<()>>().await
        })
    };
    let jobs = mailbox(&backend(), "orders");
    let group = LoopGroup::new().add(working(&jobs, SECOND)).add(deaf(&dropped));
    let running = group.drain_for(7 * SECOND).start().unwrap();
    reaches(&running, "unstoppable", State::Running).await;
    let start = Instant::now();
    let error = running.stop().await.unwrap_err();
    assert_eq!((start.elapsed(), dropped.available_permits()), (7 * SECOND, 1));
    assert_eq!(error.to_string(), "the loop 'unstoppable' did not end in time and was left behind");
    assert!(!error.report().unwrap().get("orders").unwrap().is_left_behind);

    // If it was never drained, it is not left behind.
    let running = LoopGroup::new().add(deaf(&dropped)).start().unwrap();
    reaches(&running, "unstoppable", State::Running).await;
    running.control().stop_now();
    assert!(!running.join().await.unwrap().loops[0].is_left_behind);
    assert_eq!(dropped.available_permits(), 2);
}

/// Records that it was dropped.
struct Dropped(Arc<Semaphore>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

#[test]
fn a_task_that_waits_is_not_stuck_and_one_that_blocks_its_thread_is() {
    on_threads(async {
        let (release, released) = mpsc::channel::<()>();
        let (hook, mut reports) = tokio::sync::mpsc::channel(10);
        let running = LoopGroup::new()
            .add(Task::new("idle", async |stop: StopSignal| {
                stop.await;
                Ok::<(), std::io::Error>(())
            }))
            .add(Task::new("blocked", |stop: StopSignal| async move {
                released.recv().unwrap_or_default();
                stop.await;
                Ok::<(), std::io::Error>(())
            }))
            .watchdog(SECOND)
            .on_stuck(move |stuck| hook.try_send(stuck.clone()).unwrap())
            .start()
            .unwrap();
        let stuck = reports.recv().await.unwrap();
        assert!(stuck.to_string().starts_with("loop 'blocked' has done nothing for"), "{stuck}");
        drop(release);
        running.stop().await.unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn a_group_is_ready_if_its_loops_run_and_its_dead_letters_are_few() {
    let backend = backend();
    let jobs = mailbox(&backend, "orders");
    let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq").unwrap();
    let limits = DlqLimits::default().depth(2);
    // Dead letters of another queue are not handled.
    let other: Mailbox<DeadLetter<u32>> = backend.mailbox("other-dlq").unwrap();
    let running = LoopGroup::new()
        .add(working(&jobs, SECOND))
        .add(DlqConsumer::new(dead, |_: DeadLetter<u32>| async {}))
        .dead_letters(&other, limits)
        .start()
        .unwrap();
    let control = running.control().clone();
    for name in ["orders", "orders-dlq"] {
        let mut stats = control.control_of(name).unwrap().stats();
        let polled = |stats: &StatsSnapshot| stats.mailboxes[0].answered_at.is_some();
        stats.wait_for(polled).await.unwrap();
    }
    let readiness = control.readiness().await;
    assert_eq!((readiness.status, readiness.reasons), (GroupStatus::Healthy, vec![]));
    control.control_of("orders").unwrap().pause();
    let mut stats = control.control_of("orders").unwrap().stats();
    stats.wait_for(|stats| stats.state == State::Paused).await.unwrap();
    let readiness = control.readiness().await;
    assert_eq!(readiness.reasons, ["loop 'orders' is paused"]);
    let queue = backend.queue("other-dlq", QueueOptions::new()).unwrap();
    assert_eq!(queue.counts().await.unwrap().total(), 0);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fails_while_all_workers_are_busy_is_reported() {
    let (faulty, jobs) = faulty("orders", Faults::none(), 0);
    jobs.send(&1).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let worker = Worker::new(jobs).workers(1).prefetch(0).without_timeout().handler({
        let gate = gate.clone();
        move |_: u32| {
            let gate = gate.clone();
            async move { drop(gate.acquire().await) }
        }
    });
    let running = LoopGroup::new().add(worker).start().unwrap();
    let control = running.control().clone();
    let mut stats = control.control_of("orders").unwrap().stats();
    stats.wait_for(|stats| stats.in_flight == 1).await.unwrap();
    assert!(control.readiness().await.is_ready());
    let fails = |stats: &StatsSnapshot| stats.mailboxes[0].last_error.is_some();
    // First it cannot extend the lease, then it cannot settle. The delay doubles each time.
    for permits in [0, 1] {
        for _ in 0..4 {
            faulty.next(Operation::Settle, Fault::FailBefore);
        }
        gate.add_permits(permits);
        stats.wait_for(fails).await.unwrap();
        let readiness = control.readiness().await;
        assert_eq!(readiness.status, GroupStatus::NotReady);
        let reason = "loop 'orders': cannot settle on queue 'orders': ";
        assert!(readiness.reasons[0].starts_with(reason), "{:?}", readiness.reasons);
        assert!(readiness.loops[0].error.is_some());
        stats.wait_for(|stats| !fails(stats)).await.unwrap();
        assert!(control.readiness().await.is_ready());
    }
    assert_eq!(running.stop().await.unwrap().loops[0].stats.succeeded, 1);
}

/// Returns a hook for a watchdog, and the list of its calls.
fn recorder() -> (Arc<Mutex<Vec<Stuck>>>, impl Fn(&Stuck) + Send + Sync + 'static) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    (kept, move |stuck: &Stuck| keep.lock().expect("a list").push(stuck.clone()))
}

#[test]
fn a_handler_that_blocks_its_thread_is_reported_as_stuck() {
    on_threads(async {
        let jobs = mailbox(&backend(), "orders");
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let id = jobs.send(&1).await.unwrap();
        let (hook, mut reports) = tokio::sync::mpsc::channel(10);
        let running = LoopGroup::new()
            .add(Worker::new(jobs).without_timeout().handler(move |_: u32| {
                let released = released.clone();
                async move { released.lock().unwrap().recv().unwrap_or_default() }
            }))
            .watchdog(Duration::from_millis(300))
            .on_stuck(move |stuck| hook.try_send(stuck.clone()).unwrap())
            .start()
            .unwrap();
        let stuck = reports.recv().await.unwrap();
        let about = stuck.about.as_ref().unwrap();
        assert_eq!((&*stuck.loop_name, about.queue.as_str()), ("orders", "orders"));
        assert_eq!((about.message_id, about.attempt), (id, 1));
        assert!(about.worker_id.is_some() && stuck.lasting >= Duration::from_millis(300));
        assert_eq!(running.control().stuck().len(), 1);
        drop(release);
        // The handler goes on, and so does the group.
        while !running.control().stuck().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let report = running.stop().await.unwrap();
        assert_eq!(report.loops[0].stats.succeeded, 1);
        assert!(reports.recv().await.is_none(), "it is reported once");
    });
}

#[test]
fn a_hook_may_stop_the_group_and_wait_for_its_end() {
    on_threads(async {
        let jobs = mailbox(&backend(), "orders");
        jobs.send(&1).await.unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let (done, mut is_done) = tokio::sync::mpsc::channel(1);
        let ended = Mutex::new(ended);
        let group = LoopGroup::new().add(working(&jobs, 3600 * SECOND));
        let control = group.control();
        let group = group.watchdog(Duration::from_millis(300)).on_stuck(move |_| {
            control.stop_now();
            // Until the sender is dropped.
            let _ = ended.lock().unwrap().recv();
            done.try_send(()).unwrap();
        });
        let report = tokio::time::timeout(TIMEOUT, group.run()).await.expect("it ends").unwrap();
        assert_eq!(report.loops[0].stats.released, 1);
        assert!(is_done.try_recv().is_err(), "the hook still waits");
        drop(end);
        assert_eq!(is_done.recv().await, Some(()));
    });
}

#[test]
fn a_loop_whose_threads_are_all_blocked_is_reported_as_stuck() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let (hook, reports) = mpsc::sync_channel(10);
    let jobs = mailbox(&backend(), "orders");
    runtime.block_on(jobs.send(&1)).unwrap();
    let running = {
        let _entered = runtime.enter();
        LoopGroup::new()
            .add(Worker::new(jobs).without_timeout().handler(move |_: u32| {
                let released = released.clone();
                async move { released.lock().unwrap().recv().unwrap_or_default() }
            }))
            .watchdog(Duration::from_millis(300))
            .on_stuck(move |stuck| hook.try_send(stuck.clone()).unwrap())
            .start()
            .unwrap()
    };
    let mut found =
        [reports.recv_timeout(TIMEOUT).unwrap(), reports.recv_timeout(TIMEOUT).unwrap()];
    found.sort_by_key(|stuck| stuck.about.is_some());
    let [the_loop, handler] = found;
    assert!(the_loop.to_string().starts_with("loop 'orders' has done nothing for"), "{the_loop}");
    assert!(handler.to_string().starts_with("loop 'orders': worker "), "{handler}");
    drop(release);
    runtime.block_on(running.stop()).unwrap();
}

#[test]
fn a_loop_that_is_idle_or_paused_or_beats_is_not_stuck() {
    on_threads(async {
        let backend = backend();
        let long = mailbox(&backend, "long");
        let (kept, hook) = recorder();
        let group = LoopGroup::new()
            .add(working(&mailbox(&backend, "idle"), SECOND))
            .add(working(&mailbox(&backend, "paused"), SECOND))
            .add(Worker::new(long.clone()).without_timeout().handler(
                |_: u32, heartbeat: pillarbox_runtime::handler::Heartbeat| async move {
                    for _ in 0..300 {
                        heartbeat.beat();
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                },
            ))
            .watchdog(SECOND)
            .on_stuck(hook);
        group.control().control_of("paused").unwrap().pause();
        long.send(&1).await.unwrap();
        let running = group.start().unwrap();
        let mut stats = running.control().control_of("long").unwrap().stats();
        stats.wait_for(|stats| stats.succeeded == 1).await.unwrap();
        assert!(kept.lock().unwrap().is_empty(), "{kept:?}");
        running.stop().await.unwrap();
    });
}

const CALM: Setup = Setup {
    workers: 4,
    watchdog: Duration::from_secs(720),
    drain: Duration::from_secs(60),
    has_hook: false,
};
const STRICT: Setup = Setup { watchdog: Duration::from_millis(500), ..CALM };

/// Opens the queues of a group in another process.
async fn mailboxes(shared: &SharedBackend) -> [Mailbox<Job>; 2] {
    let backend = open(&shared.url).await;
    QUEUES.map(|queue| backend.mailbox(queue).expect("a mailbox"))
}

#[test]
fn sigterm_under_load_drains_both_loops_of_a_process_and_loses_nothing() {
    const EACH: usize = 400;
    on_threads(async {
        let shared = SharedBackend::sqlite();
        let mailboxes = mailboxes(&shared).await;
        for mailbox in &mailboxes {
            mailbox.send_batch(&[Job::Work(5); EACH]).await.unwrap().all().unwrap();
        }
        let mut done = [0; 2];
        for stop in 1..=3 {
            let child = start_group(&shared, &CALM);
            for queue in QUEUES {
                child.wait_for(&format!("event {queue} succeeded"), 50);
            }
            child.signal(if stop % 2 == 0 { "INT" } else { "TERM" });
            let (status, said) = child.end_within(TIMEOUT);
            assert!(status.success(), "{status}");
            for ((queue, mailbox), done) in QUEUES.iter().zip(&mailboxes).zip(&mut done) {
                let start = format!("done {queue} ");
                let count = said.iter().find_map(|line| line.strip_prefix(&start)).unwrap();
                *done += count.parse::<u64>().unwrap();
                let counts = mailbox.counts().await.unwrap();
                assert_eq!((counts.in_flight, counts.delayed), (0, 0), "all is settled");
                assert_eq!(counts.ready + *done, EACH as u64, "{queue} after stop {stop}");
                assert!(said.contains(&format!("event {queue} drained")));
            }
        }
        println!("{done:?} of {EACH} done in three processes, nothing lost");
    });
}

#[test]
fn a_second_signal_cancels_what_runs_in_all_loops() {
    on_threads(async {
        let shared = SharedBackend::sqlite();
        let mailboxes = mailboxes(&shared).await;
        for mailbox in &mailboxes {
            mailbox.send(&Job::Endless).await.unwrap();
        }
        let child = start_group(&shared, &CALM);
        child.wait_for("begun", 1);
        child.signal("TERM");
        for queue in QUEUES {
            child.wait_for(&format!("event {queue} draining"), 0);
        }
        child.signal("INT");
        let (status, said) = child.end_within(TIMEOUT);
        assert!(status.success(), "{status}");
        for (queue, mailbox) in QUEUES.iter().zip(&mailboxes) {
            assert!(said.contains(&format!("event {queue} released")));
            assert_eq!(mailbox.counts().await.unwrap().ready, 1);
        }
    });
}

#[test]
fn a_process_ends_even_if_a_handler_that_blocks_its_thread_is_left_behind() {
    on_threads(async {
        let shared = SharedBackend::sqlite();
        let [orders, reports] = mailboxes(&shared).await;
        orders.send(&Job::Block).await.unwrap();
        reports.send(&Job::Endless).await.unwrap();
        let child = start_group(&shared, &Setup { drain: Duration::from_millis(100), ..CALM });
        for queue in QUEUES {
            child.wait_for(&format!("begun {queue}"), 0);
        }
        child.signal("TERM");
        let (status, said) = child.end_within(TIMEOUT);
        assert_eq!(status.code(), Some(1), "{status}");
        let failed = "failed the loop 'orders' did not end in time and was left behind";
        assert!(said.contains(&failed.to_owned()), "{said:?}");
        let counts = (orders.counts().await.unwrap(), reports.counts().await.unwrap());
        // It comes back when its lease ends.
        assert_eq!((counts.0.in_flight, counts.1.ready), (1, 1));
    });
}

#[test]
fn a_third_signal_ends_a_process_whose_threads_are_all_blocked() {
    on_threads(async {
        let shared = SharedBackend::sqlite();
        for mailbox in &mailboxes(&shared).await {
            mailbox.send_batch(&[Job::Block; 4]).await.unwrap().all().unwrap();
        }
        let child = start_group(&shared, &CALM);
        child.wait_for("begun", 1);
        // It cannot confirm a signal, and several signals of one kind may be merged.
        for signal in ["TERM", "INT", "TERM", "INT", "TERM"] {
            child.signal(signal);
            std::thread::sleep(Duration::from_millis(100));
        }
        let (status, _) = child.end_within(TIMEOUT);
        assert!(matches!(status.code(), Some(130 | 143)), "{status}");
    });
}

#[test]
fn a_process_whose_threads_are_all_blocked_is_ended_by_its_watchdog() {
    on_threads(async {
        let shared = SharedBackend::sqlite();
        let mailboxes = mailboxes(&shared).await;
        for mailbox in &mailboxes {
            mailbox.send_batch(&[Job::Block; 4]).await.unwrap().all().unwrap();
        }
        let child = start_group(&shared, &STRICT);
        let (status, said) = child.end_within(TIMEOUT);
        assert_eq!(status.code(), Some(LoopGroup::STUCK_EXIT_CODE), "{status}");
        assert!(said.iter().filter(|line| line.starts_with("begun")).count() >= 2, "{said:?}");
        let mut total = 0;
        for mailbox in &mailboxes {
            total += mailbox.counts().await.unwrap().total();
        }
        assert_eq!(total, 8, "its messages are still there");
    });
}

#[test]
fn a_process_that_was_suspended_is_not_taken_for_stuck() {
    on_threads(async {
        let shared = SharedBackend::sqlite();
        let [orders, _] = mailboxes(&shared).await;
        let child = start_group(&shared, &STRICT);
        orders.send(&Job::Beat(100)).await.unwrap();
        child.wait_for("event orders succeeded", 0);
        orders.send(&Job::Beat(1000)).await.unwrap();
        child.wait_for("begun orders", 1);
        child.signal("STOP");
        std::thread::sleep(Duration::from_millis(1500));
        child.signal("CONT");
        child.wait_for("event orders succeeded", 1);
        child.signal("TERM");
        let (status, _) = child.end_within(TIMEOUT);
        assert!(status.success(), "{status}");
    });
}

/// The socket of systemd, which receives one notification at a time.
struct Init(UnixDatagram);

impl Init {
    fn receive(&self) -> String {
        let mut buffer = [0; 4096];
        let count = self.0.recv(&mut buffer).expect("a message");
        String::from_utf8(buffer[..count].to_vec()).expect("text")
    }

    fn wait_for_message(&self, start: &str) -> String {
        self.receive_until(start).0
    }

    /// Returns the first notification with this prefix, and those before it.
    fn receive_until(&self, start: &str) -> (String, Vec<String>) {
        let end = std::time::Instant::now() + TIMEOUT;
        let mut others = Vec::new();
        loop {
            let heard = self.receive();
            if heard.starts_with(start) {
                return (heard, others);
            }
            others.push(heard);
            assert!(
                std::time::Instant::now() < end,
                "systemd was not notified of {start}: {others:?}"
            );
        }
    }
}

#[test]
fn systemd_is_notified_of_the_start_the_stop_and_that_the_loops_are_alive() {
    on_threads(async {
        let shared = SharedBackend::sqlite();
        let path = shared.file("notify");
        let init = Init(UnixDatagram::bind(&path).unwrap());
        init.0.set_read_timeout(Some(TIMEOUT)).unwrap();
        let [orders, _] = mailboxes(&shared).await;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
        let setup = Setup { has_hook: true, ..STRICT };
        let child = Child::start_by(command, ROLE, &shared.url, &task(&setup));
        // The watchdog has its own thread, and may come first.
        init.wait_for_message("STATUS=starting");
        assert_eq!(init.wait_for_message("READY=1"), "READY=1\nSTATUS=running orders, reports");
        for _ in 0..5 {
            init.wait_for_message("WATCHDOG=1");
        }
        // A stuck loop is reported once, and no pings are sent from then on.
        orders.send(&Job::Block).await.unwrap();
        let stuck = init.wait_for_message("STATUS=stuck: ");
        assert!(stuck.starts_with("STATUS=stuck: loop 'orders': worker "), "{stuck}");
        child.wait_for("stuck loop 'orders'", 0);
        child.signal("TERM");
        let (last, others) = init.receive_until("STOPPING=1");
        assert_eq!(last, "STOPPING=1\nSTATUS=finishing what is running");
        assert!(!others.contains(&"WATCHDOG=1".to_owned()), "{others:?}");
    });
}

#[test]
fn pings_for_another_process_are_not_sent() {
    on_threads(async {
        let shared = SharedBackend::sqlite();
        let path = shared.file("notify");
        let init = Init(UnixDatagram::bind(&path).unwrap());
        init.0.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "20000").env("WATCHDOG_PID", "1");
        let child = Child::start_by(command, ROLE, &shared.url, &task(&CALM));
        init.wait_for_message("READY=1");
        child.signal("TERM");
        assert!(init.receive().starts_with("STOPPING=1"), "and nothing in between");
        assert_eq!(init.receive(), "STATUS=the loops have ended");
        assert!(child.end_within(TIMEOUT).0.success());
    });
}
