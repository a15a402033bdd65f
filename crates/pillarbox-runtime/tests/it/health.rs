//! Health and metrics over HTTP, on real sockets.
#![cfg(feature = "health")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusBuilder;
use pillarbox_core::{
    BoxFuture, Counts, Json, Mailbox, Mailboxes, NoReplies, Queue, QueueOptions, Result,
};
use pillarbox_runtime::dead_letters::{DeadLetter, Dlq, DlqLimits, DlqPolicy};
use pillarbox_runtime::group::{GroupError, LoopGroup, RunningGroup};
use pillarbox_runtime::stats::{State, StatsSnapshot};
use pillarbox_runtime::{Control, Outcome, Runnable, Worker};
use pillarbox_testing::process::{Child, assignment};
use pillarbox_testing::{Fault, FaultQueue, Faults, Operation, forward_queue, on_threads};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::common::memory::{backend, faulty};

/// Timeout of every step, for slow machines.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A free port of this machine.
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn mailbox(backend: &Mailboxes, name: &str) -> Mailbox<u32> {
    backend.mailbox(name.to_owned()).expect("a mailbox")
}

fn working(mailbox: &Mailbox<u32>) -> impl Runnable + use<> {
    Worker::new(mailbox.clone()).handler(|_: u32| async {})
}

/// An HTTP response.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    fn reasons(&self) -> Vec<String> {
        serde_json::from_value(self.json()["reasons"].clone()).expect("reasons")
    }
}

/// Sends a request as a probe does. Blocks.
fn ask_now(address: SocketAddr, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

async fn ask(address: SocketAddr, method: &'static str, path: &'static str) -> Answer {
    tokio::task::spawn_blocking(move || ask_now(address, method, path)).await.expect("an answer")
}

async fn get(running: &RunningGroup, path: &'static str) -> Answer {
    ask(address(running), "GET", path).await
}

fn address(running: &RunningGroup) -> SocketAddr {
    running.control().health_addr().expect("an address")
}

/// Sends requests until the response satisfies a condition.
async fn until(
    running: &RunningGroup,
    path: &'static str,
    is_meant: impl Fn(&Answer) -> bool,
) -> Answer {
    let end = Instant::now() + TIMEOUT;
    loop {
        let answer = get(running, path).await;
        if is_meant(&answer) {
            return answer;
        }
        assert!(Instant::now() < end, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_group_that_works_is_live_and_ready() {
    on_threads(async {
        let backend = backend();
        let group = LoopGroup::new()
            .add(working(&mailbox(&backend, "orders")))
            .add(working(&mailbox(&backend, "reports")))
            .health_addr(ANY);
        let running = group.start().unwrap();
        let answer = until(&running, "/health/ready", |answer| answer.status == 200).await;
        assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
        let mut body = answer.json();
        for (one, name) in ["orders", "reports"].into_iter().enumerate() {
            let one = &mut body["loops"][one];
            assert!(one["polled_seconds_ago"].take().as_f64().unwrap() < 30.0);
            let expected = json!({
                "name": name, "state": "running", "in_flight": 0, "polled_seconds_ago": null,
                "restarts": 0, "error": null
            });
            assert_eq!(*one, expected);
        }
        assert_eq!((&body["status"], &body["reasons"]), (&json!("healthy"), &json!([])));
        let live = get(&running, "/health/live").await;
        assert_eq!((live.status, live.json()), (200, json!({ "status": "live", "reasons": [] })));
        running.stop().await.unwrap();
    });
}

#[test]
fn other_paths_are_not_found_and_other_methods_not_allowed() {
    on_threads(async {
        let group = LoopGroup::new().add(working(&mailbox(&backend(), "orders"))).health_addr(ANY);
        let running = group.start().unwrap();
        for path in ["/", "/health", "/health/", "/health/ready/", "/metrics/all"] {
            assert_eq!(get(&running, path).await.status, 404, "{path}");
        }
        for method in ["POST", "PUT", "DELETE"] {
            for path in ["/health/live", "/health/ready", "/metrics"] {
                let status = ask(address(&running), method, path).await.status;
                assert_eq!(status, 405, "{method} {path}");
            }
        }
        assert_eq!(ask(address(&running), "HEAD", "/health/live").await.status, 200);
        running.stop().await.unwrap();
    });
}

/// A loop that does not start until it is allowed to.
struct Late<L> {
    gate: Arc<Semaphore>,
    inner: L,
}

impl<L: Runnable> Runnable for Late<L> {
    type Error = L::Error;

    fn name(&self) -> String {
        self.inner.name()
    }

    fn control(&self) -> Control {
        self.inner.control()
    }

    async fn work(self) -> Result<StatsSnapshot, L::Error> {
        drop(self.gate.acquire().await);
        self.inner.work().await
    }
}

#[test]
fn a_group_that_is_starting_paused_or_draining_is_not_ready() {
    on_threads(async {
        let jobs = mailbox(&backend(), "orders");
        let (gate, work) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let worker = Worker::new(jobs.clone()).handler({
            let work = work.clone();
            move |_: u32| {
                let work = work.clone();
                async move { drop(work.acquire().await) }
            }
        });
        let late = Late { gate: gate.clone(), inner: worker };
        let running = LoopGroup::new().add(late).health_addr(ANY).start().unwrap();
        let answer = get(&running, "/health/ready").await;
        assert_eq!((answer.status, answer.json()["status"].clone()), (503, json!("starting")));
        assert_eq!(answer.reasons(), ["loop 'orders' is starting"]);
        gate.add_permits(1);
        until(&running, "/health/ready", |answer| answer.status == 200).await;

        let control = running.control().control_of("orders").unwrap();
        control.pause();
        let answer = until(&running, "/health/ready", |answer| answer.status == 503).await;
        assert_eq!(answer.json()["status"], json!("not_ready"));
        assert_eq!(answer.reasons(), ["loop 'orders' is paused"]);
        control.resume();
        until(&running, "/health/ready", |answer| answer.status == 200).await;

        // Probes are answered until all loops have ended.
        jobs.send(&1).await.unwrap();
        control.stats().wait_for(|stats| stats.in_flight == 1).await.unwrap();
        running.control().stop();
        let is_draining = |answer: &Answer| answer.json()["loops"][0]["state"] == "draining";
        let answer = until(&running, "/health/ready", is_draining).await;
        assert_eq!((answer.status, answer.json()["status"].clone()), (503, json!("draining")));
        assert_eq!(answer.reasons(), ["the group is stopping", "loop 'orders' is draining"]);
        assert_eq!(answer.json()["loops"][0]["in_flight"], 1);
        assert_eq!(get(&running, "/health/live").await.status, 200);
        work.add_permits(1);
        let address = address(&running);
        assert_eq!(running.join().await.unwrap().loops[0].stats.succeeded, 1);
        assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    });
}

#[test]
fn a_queue_that_cannot_be_received_from_is_reported_until_it_recovers() {
    on_threads(async {
        let (faulty, jobs) = faulty("orders", Faults::none(), 0);
        // Enough failures to be observed: the delay doubles each time.
        for _ in 0..6 {
            faulty.next(Operation::Receive, Fault::FailBefore);
        }
        let running = LoopGroup::new().add(working(&jobs)).health_addr(ANY).start().unwrap();
        let is_reported = |answer: &Answer| !answer.json()["loops"][0]["error"].is_null();
        let answer = until(&running, "/health/ready", is_reported).await;
        assert_eq!((answer.status, answer.json()["status"].clone()), (503, json!("not_ready")));
        let reasons = answer.reasons();
        let failing = "loop 'orders': cannot receive on queue 'orders'";
        assert!(reasons[0].starts_with(failing), "{reasons:?}");
        let answer = until(&running, "/health/ready", |answer| answer.status == 200).await;
        assert!(answer.json()["loops"][0]["error"].is_null());
        assert!(answer.json().get("dlq").is_none(), "nobody looks at dead letters");
        running.stop().await.unwrap();
    });
}

#[test]
fn a_probe_from_another_machine_sees_no_host_names() {
    on_threads(async {
        let (faulty, jobs) = faulty("orders", Faults::none(), 0);
        for _ in 0..1000 {
            faulty.next(Operation::Receive, Fault::FailBefore);
        }
        let running = LoopGroup::new().add(working(&jobs)).health_addr(ANY).start().unwrap();
        let is_reported = |answer: &Answer| !answer.json()["loops"][0]["error"].is_null();
        let here = until(&running, "/health/ready", is_reported).await.reasons().remove(0);
        let tried = "loop 'orders': cannot receive on queue 'orders'";
        let cause = here.strip_prefix(tried).and_then(|rest| rest.strip_prefix(": "));
        let cause = cause.unwrap_or_else(|| panic!("{here}"));
        let address = address(&running);
        let elsewhere = "/health/ready HTTP/1.1\r\nX-Forwarded-For: 10.0.0.7\r\nX-Rest:";
        let answer = ask(address, "GET", elsewhere).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.reasons(), [tried]);
        assert!(!answer.body.contains(cause), "{}", answer.body);
        running.stop().await.unwrap();
    });
}

/// A queue that counts the calls of `counts`, which may be slow.
#[derive(Debug)]
struct Counted {
    queue: Arc<dyn Queue>,
    counted: AtomicUsize,
}

impl Queue for Counted {
    forward_queue!(queue: name capabilities send receive settle peek purge close is_closed);

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        self.counted.fetch_add(1, Ordering::SeqCst);
        self.queue.counts()
    }
}

#[test]
fn too_many_dead_letters_are_degraded_and_ready_and_many_probes_share_a_count() {
    on_threads(async {
        let backend = backend();
        let jobs = mailbox(&backend, "orders");
        let queue = backend.queue("orders-dlq", QueueOptions::new()).unwrap();
        let counted = Arc::new(Counted { queue, counted: AtomicUsize::new(0) });
        let dead: Mailbox<DeadLetter<u32>> = Mailbox::new(counted.clone(), Json, NoReplies);
        let worker = Worker::new(jobs.clone())
            .dead_letters(DlqPolicy::to(&dead))
            .handler(|_: u32| async { Outcome::reject("no") });
        let group = LoopGroup::new().add(worker).health_addr(ANY);
        let running = group.dead_letters(&dead, DlqLimits::default().depth(2)).start().unwrap();
        let answer = until(&running, "/health/ready", |answer| answer.status == 200).await;
        let expected = json!([{
            "status": "healthy", "name": "orders-dlq", "depth": 0, "threshold": 2,
            "oldest_age_seconds": null, "age_threshold_seconds": null
        }]);
        assert_eq!(answer.json()["dead_letters"], expected);

        jobs.send_batch(&[1, 2]).await.unwrap().all().unwrap();
        let is_degraded = |answer: &Answer| answer.json()["status"] == "degraded";
        let answer = until(&running, "/health/ready", is_degraded).await;
        assert_eq!(answer.status, 200, "they are no reason to be out of service");
        assert_eq!(answer.reasons(), ["'orders-dlq' holds 2 dead letters, and the limit is 2"]);
        let dlq = json!({ "name": "orders-dlq", "depth": 2, "threshold": 2 });
        assert_eq!(answer.json()["dlq"], dlq);
        assert_eq!(answer.json()["dead_letters"][0]["status"], "degraded");

        let (start, before) = (Instant::now(), counted.counted.load(Ordering::SeqCst));
        for _ in 0..10 {
            let ask = || ask(address(&running), "GET", "/health/ready");
            let asked: Vec<_> = (0..10).map(|_| tokio::spawn(ask())).collect();
            for answer in asked {
                assert!(is_degraded(&answer.await.unwrap()));
            }
        }
        let counted = counted.counted.load(Ordering::SeqCst) - before;
        let most = 1 + start.elapsed().as_secs() / 2;
        assert!(counted as u64 <= most, "100 probes counted {counted} times");

        Dlq::of(&dead).discard().run().await.unwrap();
        let is_healthy = |answer: &Answer| answer.json()["status"] == "healthy";
        until(&running, "/health/ready", is_healthy).await;
        running.stop().await.unwrap();
    });
}

#[test]
fn a_degraded_group_is_not_ready_if_the_program_wants_it() {
    on_threads(async {
        let backend = backend();
        let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq").unwrap();
        let group = LoopGroup::new().add(working(&mailbox(&backend, "orders"))).health_addr(ANY);
        let group = group.dead_letters(&dead, DlqLimits::default().depth(0));
        let running = group.unready_when_degraded().start().unwrap();
        let is_degraded = |answer: &Answer| answer.json()["status"] == "degraded";
        let answer = until(&running, "/health/ready", is_degraded).await;
        assert_eq!(answer.status, 503);
        running.stop().await.unwrap();
    });
}

#[test]
fn dead_letters_that_cannot_be_counted_in_time_are_degraded() {
    on_threads(async {
        let backend = backend();
        let queue = backend.queue("orders-dlq", QueueOptions::new()).unwrap();
        let faulty = FaultQueue::new(queue, Faults::none(), 0);
        faulty.next(Operation::Counts, Fault::Delay(Duration::from_secs(3600)));
        let dead: Mailbox<DeadLetter<u32>> = Mailbox::new(faulty, Json, NoReplies);
        let group = LoopGroup::new().add(working(&mailbox(&backend, "orders"))).health_addr(ANY);
        let running = group.dead_letters(&dead, DlqLimits::default()).start().unwrap();
        let has_counted = |answer: &Answer| !answer.json()["dlq"]["depth"].is_null();
        let answer = until(&running, "/health/ready", |answer| !has_counted(answer)).await;
        let dlq = json!({ "name": "orders-dlq", "depth": null, "threshold": 100 });
        assert_eq!(answer.json()["dlq"], dlq);
        let reason = "the dead letters in 'orders-dlq' cannot be counted: no answer within 2s";
        assert!(answer.reasons().contains(&reason.to_owned()), "{:?}", answer.reasons());
        let answer = until(&running, "/health/ready", has_counted).await;
        assert_eq!(answer.status, 200);
        running.stop().await.unwrap();
    });
}

#[test]
fn a_stuck_loop_is_reported_as_not_live_even_if_every_thread_is_blocked() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let jobs = mailbox(&backend(), "orders");
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let (hook, reports) = mpsc::sync_channel(10);
    let id = runtime.block_on(jobs.send(&1)).unwrap();
    let entered = runtime.enter();
    let running = LoopGroup::new()
        .add(Worker::new(jobs).without_timeout().handler(move |_: u32| {
            let released = released.clone();
            async move { released.lock().unwrap().recv().unwrap_or_default() }
        }))
        .watchdog(Duration::from_millis(300))
        .on_stuck(move |stuck| hook.try_send(stuck.clone()).unwrap())
        .health_addr(ANY)
        .start()
        .unwrap();
    drop(entered);
    reports.recv_timeout(TIMEOUT).unwrap();
    let live = ask_now(address(&running), "GET", "/health/live");
    assert_eq!((live.status, live.json()["status"].clone()), (503, json!("stuck")));
    let named = format!("has been at message {id} of queue 'orders' (attempt 1)");
    assert!(live.reasons().iter().any(|reason| reason.contains(&named)), "{live:?}");
    drop(release);
    runtime.block_on(async {
        until(&running, "/health/live", |answer| answer.status == 200).await;
        running.stop().await.unwrap();
    });
}

#[test]
fn a_port_in_use_is_an_error_before_anything_is_started() {
    on_threads(async {
        let jobs = mailbox(&backend(), "orders");
        jobs.send(&1).await.unwrap();
        let other = TcpListener::bind(ANY).unwrap();
        let address = other.local_addr().unwrap();
        let group = LoopGroup::new().add(working(&jobs)).health_addr(address);
        let error = group.run().await.unwrap_err();
        assert!(matches!(error, GroupError::Listen { .. }), "{error}");
        let start = format!("cannot listen on {address} for health probes: ");
        assert!(error.to_string().starts_with(&start), "{error}");
        assert_eq!(jobs.counts().await.unwrap().ready, 1, "untouched");
        drop(other);
        let group = LoopGroup::new().add(working(&jobs)).health_port(address.port());
        let running = group.start().unwrap();
        assert_eq!(running.control().health_addr(), Some(address), "of this machine alone");
        running.stop().await.unwrap();
    });
}

#[test]
fn an_open_connection_does_not_delay_the_end() {
    on_threads(async {
        let group = LoopGroup::new().add(working(&mailbox(&backend(), "orders"))).health_addr(ANY);
        let running = group.start().unwrap();
        let silent = TcpStream::connect(address(&running)).unwrap();
        let mut asked = TcpStream::connect(address(&running)).unwrap();
        asked.write_all(b"GET /health/live HTTP/1.1\r\nHost: pod\r\n\r\n").unwrap();
        let mut first = [0; 12];
        asked.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        let start = Instant::now();
        running.stop().await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        drop((silent, asked));
    });
}

#[test]
fn many_silent_connections_do_not_block_probes() {
    on_threads(async {
        let group = LoopGroup::new().add(working(&mailbox(&backend(), "orders"))).health_addr(ANY);
        let running = group.start().unwrap();
        let connect = |_| TcpStream::connect(address(&running)).unwrap();
        let mut silent: Vec<_> = (0..200).map(connect).collect();
        // An incomplete request.
        silent[150].write_all(b"GET /health/live HTTP/1.1\r\n").unwrap();
        for path in ["/health/live", "/health/ready", "/metrics"] {
            until(&running, path, |answer| answer.status == 200).await;
        }
        // The first connections were closed for the last.
        for mut one in silent.drain(..100) {
            one.set_read_timeout(Some(TIMEOUT)).unwrap();
            assert!(matches!(one.read(&mut [0; 1]), Ok(0) | Err(_)), "it is closed");
        }
        running.stop().await.unwrap();
    });
}

#[test]
fn a_future_that_is_dropped_ends_everything_at_once() {
    on_threads(async {
        let group = LoopGroup::new().add(working(&mailbox(&backend(), "orders"))).health_addr(ANY);
        let control = group.control();
        let mut stats = control.control_of("orders").unwrap().stats();
        tokio::select! {
            ended = group.run() => panic!("{ended:?}"),
            running = stats.wait_for(|stats| stats.state == State::Running) => drop(running.unwrap()),
        }
        stats.wait_for(|stats| stats.state == State::Stopped).await.unwrap();
        assert!(TcpStream::connect(control.health_addr().unwrap()).is_err(), "nobody listens");
    });
}

#[test]
fn metrics_are_served_for_prometheus() {
    on_threads(async {
        let jobs = mailbox(&backend(), "orders");
        jobs.send_batch(&[1, 2, 3]).await.unwrap().all().unwrap();
        let group = LoopGroup::new().add(working(&jobs)).health_addr(ANY);
        let running = group.start().unwrap();
        let done = r#"pillarbox_messages_settled_total{queue="orders",outcome="done"} 3"#;
        let answer = until(&running, "/metrics", |answer| answer.body.contains(done)).await;
        assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
        for line in [
            "# TYPE pillarbox_handler_duration_seconds histogram",
            r#"pillarbox_handler_duration_seconds_bucket{queue="orders",le="600"} 3"#,
            r#"pillarbox_handler_duration_seconds_count{queue="orders"} 3"#,
            r#"pillarbox_messages_received_total{queue="orders"} 3"#,
        ] {
            assert!(answer.body.contains(line), "{line} is not in\n{}", answer.body);
        }
        running.stop().await.unwrap();
        // The next group of the process has the same metrics.
        let group = LoopGroup::new().add(working(&jobs)).health_addr(ANY);
        let running = group.start().unwrap();
        assert!(get(&running, "/metrics").await.body.contains(done));
        running.stop().await.unwrap();
    });
}

/// A process with its own recorder, since there is one per process. Not a test.
#[test]
#[ignore = "runs in a process of its own, started by the next test"]
fn with_a_recorder() {
    if assignment().is_none() {
        return;
    }
    on_threads(async {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).unwrap();
        metrics::counter!("own").increment(7);
        let group =
            || LoopGroup::new().add(working(&mailbox(&backend(), "orders"))).health_addr(ANY);
        let running = group().start().unwrap();
        let answer = get(&running, "/metrics").await;
        assert_eq!(answer.status, 404);
        assert!(answer.body.contains("handle to LoopGroup::prometheus"), "{answer:?}");
        running.stop().await.unwrap();
        let running = group().prometheus(handle).start().unwrap();
        let answer = get(&running, "/metrics").await;
        assert!(answer.status == 200 && answer.body.contains("own 7"), "{answer:?}");
        running.stop().await.unwrap();
    });
}

#[test]
fn the_metrics_recorder_of_the_program_is_left_alone_and_can_be_served() {
    Child::start("health::with_a_recorder", "", "").finish();
}
