//! Spans, logs, hooks, trace contexts, metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshot};
use pillarbox_core::{
    Json, Mailbox, MessageId, NoReplies, QueueOptions, Receive, SendOptions, Settle,
};
use pillarbox_runtime::dead_letters::{DeadLetter, Dlq, DlqPolicy};
use pillarbox_runtime::group::LoopGroup;
use pillarbox_runtime::handler::{Attempt, Metadata};
use pillarbox_runtime::loops::{MainLoop, MainLoopRequest, MainLoopResult};
use pillarbox_runtime::service::ServiceStackOptions;
use pillarbox_runtime::trace::{SpanRelation, TraceContext, Tracer};
use pillarbox_runtime::{
    Backoff, DlqAction, DlqConsumer, FailureKind, Outcome, ProducerHandle, Runnable, Worker,
};
use pillarbox_testing::{Fault, FaultQueue, Faults, Operation};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

use crate::common::memory::{backend, jobs};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Returns the metrics that a future records, in virtual time.
fn record_metrics(future: impl Future<Output = ()>) -> Snapshot {
    let recorder = DebuggingRecorder::new();
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || runtime.block_on(future));
    recorder.snapshotter().snapshot()
}

/// Every metric in the table is recorded, and every one that is recorded is in the table, with its labels.
#[test]
fn the_table_of_metrics_is_complete() {
    let mut recorded: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (key, ..) in record_metrics(run_with_every_metric()).into_vec() {
        let kind = format!("{:?}", key.kind()).to_lowercase();
        let labels = key.key().labels().map(|label| label.key().to_owned());
        let name = format!("{} {kind}", key.key().name());
        recorded.entry(name).or_default().extend(labels);
    }
    let docs = include_str!("../../../../docs/metrics.md");
    let documented = docs.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let labels = cells[2].split(", ").map(|label| label.trim_matches('`').to_owned());
        (format!("{} {}", cells[0].trim_matches('`'), cells[1]), labels.collect())
    });
    let documented: BTreeMap<String, BTreeSet<String>> = documented.collect();
    assert_eq!(documented, recorded);
}

#[test]
fn the_run_time_of_a_handler_of_dead_letters_is_recorded_whatever_the_result() {
    let recorded = record_metrics(async {
        let backend = backend();
        let jobs: Mailbox<u32> = backend.mailbox("jobs").expect("a mailbox");
        jobs.send_batch(&[1, 2, 3, 4]).await.expect("sent").all().expect("sent");
        let reject = |_: u32| async { Outcome::reject("no") };
        let worker = Worker::new(jobs).dead_letters(DlqPolicy::new()).handler(reject);
        worker.run_until_empty().await.expect("all is done");
        let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("jobs-dlq").expect("a mailbox");
        let consumer = DlqConsumer::new(dead, |letter: DeadLetter<u32>| async move {
            tokio::time::sleep(Duration::from_secs(letter.body.into())).await;
            match letter.body {
                1 => Ok(()),
                2 => Err("the pager is off"),
                3 => panic!("no pager"),
                _ => std::future::pending().await,
            }
        });
        consumer.run_iterations(4).await.expect("all is done");
    });
    let mut took = Vec::new();
    let mut processed = None;
    for (key, _, _, value) in recorded.into_vec() {
        match (key.key().name(), value) {
            ("dlq.processing.duration_ms", DebugValue::Histogram(values)) => {
                took.extend(values.into_iter().map(|millis| millis.into_inner().round()));
            }
            ("dlq.messages.processed", DebugValue::Counter(count)) => processed = Some(count),
            _ => {}
        }
    }
    took.sort_by(f64::total_cmp);
    assert_eq!(took, [1e3, 2e3, 3e3, 300e3]);
    assert_eq!(processed, Some(1), "those that failed come again");
}

/// What makes each of the metrics move.
async fn run_with_every_metric() {
    let backend = backend();
    let queue = backend.queue("jobs", QueueOptions::new()).expect("a queue");
    let faulty = FaultQueue::new(queue, Faults::none(), 0);
    let jobs: Mailbox<String> = Mailbox::new(faulty.clone(), Json, NoReplies);
    let dead: Mailbox<DeadLetter<String>> = backend.mailbox("dead").expect("a mailbox");
    for operation in [Operation::Receive, Operation::Settle] {
        faulty.next(operation, Fault::FailBefore);
    }
    for job in ["done", "reject", "slow", "send", "panic"] {
        jobs.send(&job.to_owned()).await.expect("sent");
    }
    let worker = Worker::new(jobs.clone())
        .dead_letters(DlqPolicy::to(&dead))
        .retry(Backoff::none())
        .depth_every(Duration::from_secs(1))
        .stack(ServiceStackOptions::worker().timeout(Duration::from_secs(300)))
        .handler(
            |job: String, Attempt(attempt): Attempt, producer: ProducerHandle<String>| async move {
                match &*job {
                    "reject" => return Outcome::reject("no"),
                    "slow" => tokio::time::sleep(Duration::from_secs(100)).await,
                    "send" => drop(producer.send(&"done".to_owned()).await),
                    "panic" => assert_ne!(attempt, 1),
                    _ => {}
                }
                Outcome::done()
            },
        );
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.processed >= 7 && stats.in_flight == 0).await.expect("running");
    running.stop().await.expect("stopped");

    let requests: Mailbox<MainLoopRequest<u32>, MainLoopResult<u32>> =
        backend.mailbox("requests").expect("a mailbox");
    requests.send(&MainLoopRequest::new(7)).await.expect("sent");
    let main_loop = MainLoop::new(requests, |n: u32| async move { n });
    main_loop.run_until_empty().await.expect("answered");

    // One dead letter is handled, one replayed, one discarded, and one is too old.
    let consume = async |action: DlqAction| {
        let consumer =
            DlqConsumer::new(dead.clone(), move |_: DeadLetter<String>| async move { action });
        consumer.run_until_empty().await.expect("all is done");
    };
    let letter = dead.peek(1).await.expect("a dead letter").remove(0).body.expect("a dead letter");
    consume(DlqAction::done()).await;
    dead.send(&letter).await.expect("sent");
    let dlq = Dlq::of(&dead);
    dlq.replay().run().await.expect("replayed");
    dead.send(&letter).await.expect("sent");
    dlq.discard().run().await.expect("discarded");
    dead.send(&letter).await.expect("sent");
    dlq.expire(Duration::ZERO).await.expect("expired");

    // A loop that fails is restarted, up to a number of times.
    let gone = self::backend();
    let jobs: Mailbox<String> = gone.mailbox("jobs").expect("a mailbox");
    gone.close().await;
    let group = LoopGroup::new()
        .add_with("jobs", move || Worker::new(jobs.clone()).handler(|_: String| async {}));
    group.run().await.expect_err("its mailbox is closed");
}

/// Keeps what is logged.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("pillarbox_runtime")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = event.metadata().level().to_string();
        event.record(&mut Text(&mut text));
        self.0.lock().expect("a log").push(text);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_logged_with_every_field_of_the_documentation() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let backend = backend();
    let jobs: Mailbox<serde_json::Value> = backend.mailbox("jobs").unwrap();
    let request = "0193b1f4-0000-7000-8000-000000000000";
    let id = jobs.send(&serde_json::json!({ "request_id": request })).await.unwrap();
    let worker = Worker::new(jobs)
        .dead_letters(DlqPolicy::new())
        .handler(|_: serde_json::Value| async { Outcome::reject("no good") });
    worker.run_until_empty().await.unwrap();
    Dlq::open(&backend, "jobs-dlq").unwrap().replay().run().await.unwrap();
    let log = log.0.lock().unwrap();
    let found =
        |start: &str| log.iter().find(|line| line.starts_with(start)).cloned().unwrap_or_default();
    assert_eq!(
        found("WARN message=a message was dead-lettered"),
        format!(
            "WARN message=a message was dead-lettered source_mailbox=jobs message_id={id} \
             request_id={request} delivery_count=1 worker_id=0 error_type=\"rejected\" error_message=\"no good\""
        )
    );
    let replayed = found("INFO message=processing a dead letter");
    let expected = format!("queue=jobs-dlq message_id={id} request_id={request} age_seconds=");
    assert!(replayed.contains(&expected) && replayed.ends_with("action=\"replay\""), "{replayed}");
}

/// Everything that is logged: the target, the level and the text of a line, and which fields it had at least once.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>);

/// The text of a line and the names of its other fields.
#[derive(Default)]
struct Line {
    text: String,
    fields: BTreeSet<String>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.text = format!("{value:?}"),
            name => drop(self.fields.insert(name.to_owned())),
        }
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("pillarbox_runtime")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let (target, level) = (event.metadata().target(), event.metadata().level());
        let key = format!("{target} {} {}", level.as_str().to_lowercase(), line.text);
        self.0.lock().expect("lines").entry(key).or_default().extend(line.fields);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The tables of log lines, in the form of [`Lines`].
fn documented_lines() -> BTreeMap<String, BTreeSet<String>> {
    let docs = include_str!("../../../../docs/operations.md");
    let logs = docs.split("## Logs").nth(1).and_then(|rest| rest.split("\n## ").next());
    let mut lines = BTreeMap::new();
    for table in logs.expect("a section about logs").split("\nTarget `").skip(1) {
        let target = table.split('`').next().expect("a target");
        for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let fields = cells[2].split(", ").map(|field| field.trim_matches('`').to_owned());
            lines.insert(format!("{target} {} {}", cells[0], cells[1]), fields.collect());
        }
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn every_documented_line_of_a_worker_is_logged() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    run_with_every_event().await;
    let mut logged = lines.0.lock().unwrap().clone();
    // What fails on the way to a queue is about the queue, and has no table.
    logged.retain(|line, _| !line.starts_with("pillarbox_runtime::driver"));
    assert_eq!(logged, documented_lines());
    for (line, fields) in &logged {
        let is_about_one =
            line.starts_with("pillarbox_runtime::deliveries") && !line.contains("messages");
        let has_ids = fields.contains("message_id") && fields.contains("worker_id");
        assert!(!is_about_one || has_ids, "{line}");
    }
}

/// Pauses, resumes, and stops in both ways, with messages that come to every end there is.
async fn run_with_every_event() {
    let backend = backend();
    let queue = backend.queue("jobs", QueueOptions::new()).expect("a queue");
    let faulty = FaultQueue::new(queue, Faults::none(), 0);
    let jobs: Mailbox<serde_json::Value> = Mailbox::new(faulty.clone(), Json, NoReplies);
    let dead: Mailbox<DeadLetter<serde_json::Value>> = backend.mailbox("dead").expect("a mailbox");
    let work = |job: serde_json::Value, about: Metadata| async move {
        let is_first = about.delivery_count() == 1;
        match job["do"].as_str() {
            Some("fail") if is_first => return Outcome::retry(),
            Some("reject") => return Outcome::reject("no"),
            Some("release") if is_first => return Outcome::release_for(Duration::from_secs(1)),
            Some("hang") => std::future::pending().await,
            Some("slow") => tokio::time::sleep(Duration::from_secs(5)).await,
            _ => {}
        }
        Outcome::done()
    };
    let send = async |what: &str| {
        let request_id = "0193b1f4-0000-7000-8000-000000000000";
        let job = serde_json::json!({ "do": what, "request_id": request_id });
        jobs.send(&job).await.expect("sent");
    };
    let worker = Worker::new(jobs.clone())
        .workers(1)
        .without_timeout()
        .dead_letters(DlqPolicy::to(&dead))
        .retry(Backoff::none())
        .handler(work);
    let running = worker.start();
    let (control, mut events) = (running.control().clone(), running.control().events());
    let mut until = async |name: &str| {
        events.wait_for(|event| event.name() == name).await.expect(name);
    };
    for (what, end) in
        [("fail", "succeeded"), ("reject", "dead_lettered"), ("release", "succeeded")]
    {
        send(what).await;
        until(end).await;
    }
    control.pause();
    until("paused").await;
    control.resume();
    until("resumed").await;
    // No answer to its acknowledgement, for longer than its lease runs.
    (0..30).for_each(|_| faulty.next(Operation::Settle, Fault::FailBefore));
    send("done").await;
    until("unconfirmed").await;
    until("succeeded").await;
    // Fetches are slow, so the next message is prefetched. It goes back when the handler hangs.
    for what in ["done", "done", "hang", "done"] {
        faulty.next(Operation::Receive, Fault::Delay(Duration::from_secs(1)));
        send(what).await;
    }
    until("returned").await;
    jobs.purge().await.expect("purged");
    until("lease_lost").await;
    control.stop_now();
    running.join().await.expect("stopped");

    // Without a place for dead letters, and with a limit.
    jobs.purge().await.expect("purged");
    send("reject").await;
    send("slow").await;
    send("slow").await;
    let worker = Worker::new(jobs.clone())
        .stack(ServiceStackOptions::none().load_shed(true).concurrency_limit(1))
        .handler(work);
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.parked == 1 && stats.shed > 0).await.expect("running");
    running.control().stop_now();
    running.join().await.expect("stopped");
}

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn a_hook_gets_every_failure_even_if_a_listener_is_slow() {
    const MESSAGES: u32 = 10_000;
    let jobs = jobs();
    let bodies: Vec<_> = (0..MESSAGES).collect();
    let ids: BTreeSet<_> =
        jobs.send_batch(&bodies).await.unwrap().all().unwrap().into_iter().collect();
    let heard: Arc<Mutex<Vec<_>>> = Arc::default();
    let hook = heard.clone();
    let worker = Worker::new(jobs)
        .prefetch(64)
        .retry(Backoff::none())
        .on_failure(move |failed| hook.lock().expect("heard").push(failed.about.message_id))
        .handler(|_: u32, Attempt(attempt): Attempt| async move {
            if attempt == 1 { Err("once more") } else { Ok(()) }
        });
    let mut events = worker.control().events();
    worker.run_until_empty().await.unwrap();
    let heard = std::mem::take(&mut *heard.lock().unwrap());
    assert_eq!(heard.len(), MESSAGES as usize);
    assert_eq!(heard.iter().copied().collect::<BTreeSet<_>>(), ids);
    events.next().await.unwrap();
    assert!(events.missed() > u64::from(MESSAGES), "{}", events.missed());
}

#[tokio::test(start_paused = true)]
async fn a_message_waits_for_its_hook_and_keeps_its_lease() {
    let jobs = jobs();
    jobs.send(&1).await.unwrap();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let once = Mutex::new(Some((begun, may_go_on)));
    let worker = Worker::new(jobs.clone())
        .visibility(LEASE)
        .dead_letters(DlqPolicy::new())
        .on_dead_letter(move |_, _| {
            let (begun, may_go_on) =
                once.lock().expect("a lock").take().expect("it is called once");
            begun.send(()).expect("the test waits");
            may_go_on.recv().expect("a word");
        })
        .handler(|_: u32| async { Outcome::reject("no") });
    let running = worker.start();
    has_begun.await.unwrap();
    for _ in 0..9 {
        tokio::time::advance(LEASE / 3).await;
        // The dispatcher and the queue have their turns.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    // Its lease ended long ago, unless extended.
    assert_eq!(jobs.counts().await.unwrap().in_flight, 1);
    go_on.send(()).unwrap();
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.dead_lettered, stats.leases_lost), (1, 0));
    assert_eq!(jobs.approximate_count().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_is_logged_and_has_no_other_effect() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let id = jobs.send(&1).await.unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let [failed, dead] = [heard.clone(), heard.clone()];
    let worker = Worker::new(jobs)
        .workers(1)
        .max_deliveries(2)
        .dead_letters(DlqPolicy::new())
        .retry(Backoff::none())
        .on_failure(|_| panic!("a hook that panics"))
        .on_failure(move |one| {
            failed.lock().expect("heard").push(format!("{} {}", one.about.attempt, one.terminal));
        })
        .on_dead_letter(|_, _| panic!("a hook that panics"))
        .on_dead_letter(move |letter, to| {
            dead.lock().expect("heard").push(format!("{} to {to}", letter.last_error));
        })
        .handler(|_: u32| async { Err::<(), _>("no") });
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.failed, stats.retried, stats.dead_lettered, stats.unconfirmed), (2, 1, 1, 0));
    assert_eq!(*heard.lock().unwrap(), ["1 false", "2 true", "no to jobs-dlq"]);
    let log = log.0.lock().unwrap();
    let panicked = log.iter().filter(|line| line.contains("panicked")).collect::<Vec<_>>();
    let line = |hook, attempt| {
        format!(
            "ERROR message=the hook {hook} panicked queue=jobs message_id={id} attempt={attempt} \
             worker_id=0 error=\"a hook that panics\""
        )
    };
    let [first, second] = [1, 2].map(|attempt| line("on_failure", attempt));
    assert_eq!(panicked, [&first, &second, &line("on_dead_letter", 2)]);
}

#[tokio::test(start_paused = true)]
async fn hooks_get_dead_letters_on_every_path() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let queue = jobs.queue().clone();
    let mut expected = BTreeMap::new();
    // One takes its process down whenever it is started.
    let quarantined = jobs.send(&0).await.unwrap();
    for _ in 0..3 {
        let lease = Duration::from_secs(1);
        let delivery = queue.receive(Receive::one().visibility(lease)).await.unwrap().remove(0);
        queue
            .settle(vec![Settle::start(delivery.receipt, lease)])
            .await
            .unwrap()
            .remove(0)
            .unwrap();
        tokio::time::sleep(lease).await;
    }
    expected.insert(quarantined, ("quarantined", 1));
    expected.insert(jobs.send(&1).await.unwrap(), ("rejected", 1));
    expected.insert(jobs.send(&2).await.unwrap(), ("error", 2));
    let text: Mailbox<String> = backend.mailbox("jobs").unwrap();
    expected.insert(text.send(&"no number".to_owned()).await.unwrap(), ("undecodable", 1));

    type Heard = Arc<Mutex<Vec<(MessageId, &'static str)>>>;
    let (failed, dead): (Heard, Heard) = Default::default();
    let [on_failed, on_dead] = [failed.clone(), dead.clone()];
    let worker = Worker::new(jobs)
        .max_deliveries(2)
        .dead_letters(DlqPolicy::new())
        .retry(Backoff::none())
        .on_failure(move |one| {
            assert_eq!(one.about.queue.as_str(), "jobs");
            assert_eq!(one.about.worker_id.is_none(), one.kind == FailureKind::Quarantined);
            assert!(!one.error.is_empty() && !one.error_type.is_empty());
            on_failed.lock().expect("heard").push((one.about.message_id, one.kind.as_str()));
        })
        .on_dead_letter(move |letter, to| {
            assert_eq!((letter.source_mailbox.as_str(), to.as_str()), ("jobs", "jobs-dlq"));
            on_dead.lock().expect("heard").push((letter.message_id, letter.failure.as_str()));
        })
        .handler(
            |n: u32| async move { if n == 1 { Ok(Outcome::reject("no")) } else { Err("no") } },
        );
    worker.run_until_empty().await.unwrap();
    let mut times: BTreeMap<_, (&str, usize)> = BTreeMap::new();
    for (id, kind) in failed.lock().unwrap().iter() {
        let (_, times) = times.entry(*id).or_insert((*kind, 0));
        *times += 1;
    }
    assert_eq!(times, expected);
    let dead: BTreeMap<_, _> = dead.lock().unwrap().iter().copied().collect();
    let kinds: BTreeMap<_, _> = expected.into_iter().map(|(id, (kind, _))| (id, kind)).collect();
    assert_eq!(dead, kinds);
}

#[tokio::test(start_paused = true)]
async fn hooks_get_the_requests_of_a_main_loop() {
    let backend = backend();
    let requests: Mailbox<MainLoopRequest<u32>, MainLoopResult<u32>> =
        backend.mailbox("requests").unwrap();
    requests.send(&MainLoopRequest::new(7)).await.unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let [failed, dead] = [heard.clone(), heard.clone()];
    let main_loop = MainLoop::new(requests, |_: u32| async { Err::<u32, _>("no") })
        .max_deliveries(1)
        .dead_letters(DlqPolicy::new())
        .worker(|worker| {
            worker
                .on_failure(move |one| failed.lock().expect("heard").push(one.error.to_string()))
                .on_dead_letter(move |_, to| dead.lock().expect("heard").push(to.to_string()))
        });
    main_loop.run_until_empty().await.unwrap();
    assert_eq!(*heard.lock().unwrap(), ["no", "requests-dlq"]);
}

#[derive(Debug, Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("pillarbox_runtime") && metadata.is_span()
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = span.metadata().name().to_owned();
        span.record(&mut Text(&mut text));
        let mut spans = self.0.lock().expect("spans");
        spans.push(text);
        Id::from_u64(spans.len() as u64)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut spans = self.0.lock().expect("spans");
        values.record(&mut Text(&mut spans[span.into_u64() as usize - 1]));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn each_delivery_has_a_span() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(spans.clone());
    let jobs = jobs();
    let context: TraceContext = TRACE.parse().unwrap();
    let id = jobs.send_with(&1, context.attach(SendOptions::new())).await.unwrap();
    let worker = Worker::new(jobs).workers(1).retry(Backoff::none()).handler(
        |_: u32, Attempt(attempt): Attempt| async move {
            if attempt == 1 { Err("once more") } else { Ok(()) }
        },
    );
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.succeeded == 1).await.unwrap();
    running.stop().await.unwrap();
    let of = |attempt, ended| {
        format!(
            "delivery queue=jobs message_id={id} attempt={attempt} worker_id=0 otel.kind=\"consumer\" trace_id=\"{}\" {ended}",
            context.trace_id()
        )
    };
    assert_eq!(
        *spans.0.lock().unwrap(),
        [
            of(1, "outcome=\"error\" error=\"once more\" otel.status_code=\"ERROR\""),
            of(2, "outcome=\"done\""),
        ]
    );
}

/// The calls of a tracer.
#[derive(Debug, Default)]
struct TracerCalls(Mutex<Vec<String>>);

struct RecordingTracer(Arc<TracerCalls>);

impl Tracer for RecordingTracer {
    fn join(&self, _: &tracing::Span, relation: SpanRelation<'_>) {
        let (how, context) = match relation {
            SpanRelation::Child(context) => ("child", context),
            SpanRelation::Link(context) => ("link", context),
        };
        self.0.0.lock().expect("the calls").push(format!("{how} of {context}"));
    }

    fn context(&self, _: &tracing::Span) -> Option<TraceContext> {
        let calls = self.0.0.lock().expect("the calls").len();
        // The span of the second delivery has a context of its own.
        let own = format!("00-0af7651916cd43dd8448eb211c80319c-{calls:016x}-01");
        (calls == 2).then(|| own.parse().expect("a context"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_delivery_is_a_child_and_later_ones_are_links_and_handlers_propagate_the_context() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let next: Mailbox<u32> = backend.mailbox("next").unwrap();
    let context: TraceContext = TRACE.parse().unwrap();
    let context = context.with_state("vendor=1");
    jobs.send_with(&1, context.attach(SendOptions::new())).await.unwrap();
    let calls = Arc::new(TracerCalls::default());
    let worker = Worker::new(jobs)
        .context(next.clone())
        .retry(Backoff::none())
        .tracer(RecordingTracer(calls.clone()))
        .handler(
            |_: u32,
             Attempt(attempt): Attempt,
             producer: ProducerHandle<u32>,
             pillarbox_runtime::handler::Context(next): pillarbox_runtime::handler::Context<
                Mailbox<u32>,
            >| async move {
                producer.send_to(&next, &attempt, SendOptions::new()).await?;
                if attempt == 1 {
                    Err("once more".into())
                } else {
                    Ok::<_, pillarbox_runtime::BoxError>(())
                }
            },
        );
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.succeeded == 1).await.unwrap();
    running.stop().await.unwrap();
    assert_eq!(*calls.0.lock().unwrap(), [format!("child of {TRACE}"), format!("link of {TRACE}")]);

    let batch = next.receive(Receive::up_to(10)).await.unwrap();
    let contexts = batch.messages().iter().map(|message| TraceContext::of(message.attributes()));
    let contexts: Vec<_> = contexts.flatten().collect();
    assert_eq!(contexts[0], context, "that of the message which is handled");
    assert_eq!(contexts[1].span_id(), "0000000000000002", "that of the handler's span");
}
