//! The arguments and return values of handlers, and what becomes of their messages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{Mailbox, MessageId, Raw, SendOptions};
use pillarbox_runtime::dead_letters::{DeadLetter, DeadLetterCodec, DlqPolicy};
use pillarbox_runtime::handler::{Attempt, Context, Heartbeat, Metadata, Replies, WorkerId};
use pillarbox_runtime::service::{ServiceRequest, ServiceStackOptions};
use pillarbox_runtime::stats::StatsSnapshot;
use pillarbox_runtime::{
    Backoff, BoxError, Event, Failure, FailureKind, Outcome, ProducerHandle, Router, Runnable,
    Worker,
};
use pillarbox_testing::{CollectingMailbox, FakeMailbox, Injected};
use tokio::sync::mpsc;
use tower::limit::RateLimitLayer;
use tower::{Layer, Service, ServiceBuilder};

use crate::common::memory::{backend, jobs, start_listening};

/// Waits until a number of deliveries was processed and settled.
async fn processed(
    stats: &mut tokio::sync::watch::Receiver<StatsSnapshot>,
    count: u64,
) -> StatsSnapshot {
    let settled = |stats: &StatsSnapshot| stats.processed >= count && stats.in_flight == 0;
    stats.wait_for(settled).await.expect("the workers run").clone()
}

#[tokio::test(start_paused = true)]
async fn a_plain_function_of_the_body_is_enough() {
    let jobs: Mailbox<String> = backend().mailbox("jobs").unwrap();
    jobs.send(&"sweep".to_owned()).await.unwrap();
    let (said, mut heard) = mpsc::channel(1);
    let worker = Worker::new(jobs.clone()).handler(move |job: String| {
        let said = said.clone();
        async move { said.send(job).await.unwrap() }
    });
    let running = worker.start();
    assert_eq!(heard.recv().await.unwrap(), "sweep");
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.processed, stats.succeeded, stats.in_flight), (1, 1, 0));
    assert_eq!(jobs.approximate_count().await.unwrap(), 0);
}

struct Shop {
    name: &'static str,
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_take_every_argument() {
    let backend = backend();
    let requests = backend.builder("requests").allow_reply_to("client");
    let requests: Mailbox<u64, String> = requests.open().unwrap();
    let replies: Mailbox<String> = backend.mailbox("client").unwrap();
    let options = SendOptions::new().reply_to("client").attribute("tenant", "acme");
    let id = requests.send_with(&20, options).await.unwrap();

    async fn answer(
        n: u64,
        replies: Replies<String>,
        Context(shop): Context<Shop>,
        about: Metadata,
        attempt: Attempt,
        worker: WorkerId,
        producer: ProducerHandle<u64>,
    ) -> Result<(), BoxError> {
        let tenant = about.attributes().get("tenant").unwrap_or("none");
        let text = format!(
            "{n} {} {tenant} {} {attempt:?} {worker} {}",
            shop.name,
            about.queue(),
            about.id()
        );
        if n < 21 {
            producer.send_with(&(n + 1), SendOptions::new().reply_to("client")).await?;
        }
        replies.mailbox()?.send(&text).await?;
        Ok(())
    }

    let worker = Worker::new(requests).context(Shop { name: "lamps" }).handler(answer).workers(1);
    let running = worker.start();
    processed(&mut running.control().stats(), 2).await;
    running.stop().await.unwrap();
    let batch = replies.receive(pillarbox_core::Receive::up_to(10)).await.unwrap();
    let texts: Vec<_> = batch.messages().iter().map(|message| message.body().clone()).collect();
    assert_eq!(texts[0], format!("20 lamps acme requests Attempt(1) 0 {id}"));
    assert!(texts[1].starts_with("21 lamps none requests Attempt(1) 0"), "{}", texts[1]);
}

#[tokio::test(start_paused = true)]
async fn every_outcome_has_its_effect() {
    let backend = backend();
    let jobs: Mailbox<String> = backend.mailbox("jobs").unwrap();
    let dead: Mailbox<DeadLetter<String>> = backend.mailbox("dead").unwrap();
    for verb in ["done", "retry", "later", "reject", "release"] {
        jobs.send_with(&verb.to_owned(), SendOptions::new().id(MessageId::from_key(verb)))
            .await
            .unwrap();
    }
    let worker = Worker::new(jobs.clone()).dead_letters(DlqPolicy::to(&dead)).handler(
        |verb: String, Attempt(attempt): Attempt, metadata: Metadata| async move {
            match &*verb {
                "retry" if attempt == 1 => Outcome::retry().because("not yet"),
                "later" if attempt == 1 => Outcome::retry_after(Duration::from_secs(5)),
                // A release is no attempt.
                "release" if metadata.delivery_count() == 1 => {
                    Outcome::release_for(Duration::from_secs(7))
                }
                "reject" => Outcome::reject("it makes no sense"),
                _ => Outcome::done(),
            }
        },
    );
    let (running, mut events) = start_listening(worker);
    let start = tokio::time::Instant::now();
    let mut seen: Vec<(&str, MessageId, u64)> = Vec::new();
    while seen.iter().filter(|(name, ..)| *name == "succeeded" || *name == "dead_lettered").count()
        < 5
    {
        let event = events.next().await.unwrap();
        if let Some(about) = event.about() {
            seen.push((event.name(), about.message_id, start.elapsed().as_secs()));
        }
    }
    let stats = running.stop().await.unwrap();
    let of = |verb: &str| -> Vec<_> {
        let id = MessageId::from_key(verb);
        seen.iter().filter(|(_, of, _)| *of == id).map(|(name, _, at)| (*name, *at)).collect()
    };
    let again = |at| vec![("received", at), ("started", at), ("succeeded", at)];
    assert_eq!(of("done"), again(0));
    let tried = |then, at| {
        let first = vec![("received", 0), ("started", 0), ("failed", 0), (then, 0)];
        [first, again(at)].concat()
    };
    assert_eq!(of("retry"), tried("retried", 60), "min(60 × deliveries, 900) s");
    assert_eq!(of("later"), tried("retried", 5));
    let released = vec![("received", 0), ("started", 0), ("released", 0)];
    assert_eq!(of("release"), [released, again(7)].concat(), "no failure");
    let rejected = [("received", 0), ("started", 0), ("failed", 0), ("dead_lettered", 0)];
    assert_eq!(of("reject"), rejected);
    assert_eq!((stats.retried, stats.released, stats.dead_lettered), (2, 1, 1));
    assert_eq!((stats.terminal_failures, stats.failed, stats.succeeded), (1, 3, 4));

    let letters = dead.peek(10).await.unwrap();
    assert_eq!(letters.len(), 1);
    let letter = letters[0].body.as_ref().unwrap();
    assert_eq!((&*letter.body, letter.source_mailbox.as_str()), ("reject", "jobs"));
    assert_eq!(letter.message_id, MessageId::from_key("reject"));
    assert_eq!((&*letter.last_error, &*letter.last_error_type), ("it makes no sense", "rejected"));
    assert_eq!((letter.delivery_count, letter.failure), (1, FailureKind::Rejected));
}

#[derive(Debug, thiserror::Error)]
#[error("no more lamps")]
struct OutOfLamps;

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_is_retried_with_backoff_and_then_dead_lettered() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("dead").unwrap();
    jobs.send(&7).await.unwrap();
    let start = tokio::time::Instant::now();
    let (said, mut heard) = mpsc::channel(9);
    let worker =
        Worker::new(jobs.clone()).dead_letters(DlqPolicy::to(&dead)).handler(move |_: u32| {
            let said = said.clone();
            async move {
                said.send(start.elapsed().as_secs()).await.unwrap();
                Err::<(), _>(OutOfLamps)
            }
        });
    let (running, mut events) = start_listening(worker);
    events.wait_for(|event| matches!(event, Event::DeadLettered { .. })).await.unwrap();
    running.stop().await.unwrap();
    let mut tried_at = Vec::new();
    heard.recv_many(&mut tried_at, 9).await;
    assert_eq!(tried_at, [0, 60, 180, 360, 600], "five times, 60, 120, 180 and 240 s apart");
    let letter = dead.peek(10).await.unwrap().remove(0).body.unwrap();
    assert_eq!((&*letter.last_error, letter.delivery_count), ("no more lamps", 5));
    assert_eq!(letter.last_error_type, std::any::type_name::<OutOfLamps>());
    assert_eq!(jobs.approximate_count().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_dead_letters_messages_are_parked_and_never_lost() {
    let jobs = jobs();
    jobs.send(&7).await.unwrap();
    let worker = Worker::new(jobs.clone())
        .max_deliveries(1)
        .park_for(Duration::from_secs(3600))
        .handler(|_: u32, Attempt(attempt): Attempt| async move {
            if attempt < 3 { Err("no") } else { Ok(()) }
        });
    let (running, mut events) = start_listening(worker);
    let parked = events.wait_for(|event| matches!(event, Event::Parked { .. })).await.unwrap();
    assert!(matches!(parked, Event::Parked { delay, .. } if delay.as_secs() == 3600));
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.delayed, counts.in_flight), (1, 0));
    let start = tokio::time::Instant::now();
    events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 7200);
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.parked, stats.terminal_failures), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_and_frees_its_worker() {
    let jobs = jobs();
    jobs.send_batch(&[1, 2, 3]).await.unwrap().all().unwrap();
    let worker = Worker::new(jobs.clone())
        .workers(1)
        .retry(Backoff::constant(Duration::from_secs(1)))
        .handler(|job: u32, Attempt(attempt): Attempt| {
            // In the call that makes the future as well, not only when it is polled.
            assert!(job != 1 || attempt != 1, "job one fails early");
            async move { assert!(job != 2 || attempt != 1, "job two fails late") }
        });
    let (running, mut events) = start_listening(worker);
    let stats = processed(&mut running.control().stats(), 5).await;
    assert_eq!((stats.panics, stats.succeeded, stats.workers.len()), (2, 3, 1));
    let failed = events.wait_for(|event| matches!(event, Event::Failed { .. })).await.unwrap();
    let Event::Failed { kind, error, terminal, .. } = failed else { unreachable!() };
    assert_eq!((kind, terminal), (FailureKind::Panic, false));
    assert!(error.contains("job one fails early"), "{error}");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_exceeds_its_timeout_has_failed() {
    let jobs = jobs();
    jobs.send(&1).await.unwrap();
    let worker = Worker::new(jobs).retry(Backoff::none()).handler(
        |_: u32, Attempt(attempt): Attempt| async move {
            if attempt == 1 {
                std::future::pending::<()>().await;
            }
        },
    );
    let (running, mut events) = start_listening(worker);
    let start = tokio::time::Instant::now();
    let failed = events.wait_for(|event| matches!(event, Event::Failed { .. })).await.unwrap();
    assert!(matches!(failed, Event::Failed { kind: FailureKind::Timeout, .. }), "{failed:?}");
    assert_eq!(start.elapsed().as_secs(), 30, "the default");
    let stats = processed(&mut running.control().stats(), 2).await;
    assert_eq!((stats.timeouts, stats.succeeded), (1, 1));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_that_a_limit_refuses_is_tried_again_and_is_no_dead_letter() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("dead").unwrap();
    jobs.send_batch(&[1, 2, 3, 4]).await.unwrap().all().unwrap();
    let most = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let worker = Worker::new(jobs)
        .context(most.clone())
        .max_deliveries(1)
        .dead_letters(DlqPolicy::to(&dead))
        .stack(ServiceStackOptions::none().load_shed(true).concurrency_limit(1))
        .handler(|_: u32, Context(most): Context<Arc<(AtomicUsize, AtomicUsize)>>| async move {
            let now = most.0.fetch_add(1, Ordering::SeqCst) + 1;
            most.1.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            most.0.fetch_sub(1, Ordering::SeqCst);
        });
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.succeeded == 4).await.unwrap();
    let stats = running.stop().await.unwrap();
    assert!(stats.shed >= 3 && stats.dead_lettered == 0 && stats.failed == 0, "{stats:?}");
    let received: u64 = stats.mailboxes.iter().map(|mailbox| mailbox.received).sum();
    assert_eq!(received, 4, "they waited here, and were not delivered again");
    assert_eq!(most.1.load(Ordering::SeqCst), 1, "one at a time");
}

#[tokio::test(start_paused = true)]
async fn the_default_stack_works() {
    let jobs = jobs();
    jobs.send_batch(&(0..100).collect::<Vec<_>>()).await.unwrap().all().unwrap();
    let worker = Worker::new(jobs)
        .workers(1)
        .stack(ServiceStackOptions::default())
        .handler(|_: u32| async { tokio::time::sleep(Duration::from_millis(1)).await });
    let running = worker.start();
    let stats = processed(&mut running.control().stats(), 100).await;
    assert_eq!((stats.succeeded, stats.shed), (100, 0), "one worker never exceeds a buffer of 1");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_limits_all_workers_together() {
    let jobs = jobs();
    jobs.send_batch(&(0..50).collect::<Vec<_>>()).await.unwrap().all().unwrap();
    let worker = Worker::new(jobs)
        .workers(8)
        .handler(|_: u32| async {})
        .layer(RateLimitLayer::new(10, Duration::from_secs(1)));
    let start = tokio::time::Instant::now();
    let running = worker.start();
    processed(&mut running.control().stats(), 50).await;
    assert!((4..6).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    running.stop().await.unwrap();
}

/// Counts calls and errors, as any middleware might.
#[derive(Clone)]
struct Count(Arc<(AtomicUsize, AtomicUsize)>);

#[derive(Clone)]
struct Counted<S>(S, Count);

impl<S> Layer<S> for Count {
    type Service = Counted<S>;
    fn layer(&self, inner: S) -> Counted<S> {
        Counted(inner, self.clone())
    }
}

impl<S, T, R, C> Service<ServiceRequest<T, R, C>> for Counted<S>
where
    S: Service<ServiceRequest<T, R, C>, Response = Outcome, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Outcome;
    type Error = BoxError;
    type Future = pillarbox_core::BoxFuture<'static, Result<Outcome, BoxError>>;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: ServiceRequest<T, R, C>) -> Self::Future {
        self.1.0.0.fetch_add(1, Ordering::Relaxed);
        let (call, count) = (self.0.call(request), self.1.clone());
        Box::pin(async move {
            let ended = call.await;
            if let Err(error) = &ended {
                // A layer finds the handler's own error behind the failure.
                let failure = error.downcast_ref::<Failure>().expect("a failure");
                assert!(failure.error().is::<io::Error>(), "{failure:?}");
                count.0.1.fetch_add(1, Ordering::Relaxed);
            }
            ended
        })
    }
}

#[tokio::test(start_paused = true)]
async fn middleware_gets_every_call_and_every_error() {
    let jobs = jobs();
    jobs.send_batch(&(0..10).collect::<Vec<_>>()).await.unwrap().all().unwrap();
    let count = Count(Arc::default());
    let worker = Worker::new(jobs)
        .retry(Backoff::none())
        .handler(|job: u32, Attempt(attempt): Attempt| async move {
            if job < 3 && attempt == 1 { Err(io::Error::other("not now")) } else { Ok(()) }
        })
        .layer(ServiceBuilder::new().layer(count.clone()).into_inner())
        .layer(count.clone());
    let running = worker.start();
    processed(&mut running.control().stats(), 13).await;
    running.stop().await.unwrap();
    let counted = (count.0.0.load(Ordering::Relaxed), count.0.1.load(Ordering::Relaxed));
    assert_eq!(counted, (26, 6), "thirteen calls, through two layers");
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_panics_does_not_end_its_worker() {
    #[derive(Clone)]
    struct Bad<S>(S);
    impl<S: Service<ServiceRequest<u32>>> Service<ServiceRequest<u32>> for Bad<S> {
        type Response = S::Response;
        type Error = S::Error;
        type Future = S::Future;
        fn poll_ready(
            &mut self,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), S::Error>> {
            self.0.poll_ready(context)
        }
        fn call(&mut self, request: ServiceRequest<u32>) -> S::Future {
            assert!(request.message.body != 1 || request.attempt != 1, "a bad layer");
            self.0.call(request)
        }
    }
    let jobs = jobs();
    jobs.send_batch(&[1, 2]).await.unwrap().all().unwrap();
    let worker = Worker::new(jobs)
        .workers(1)
        .retry(Backoff::none())
        .handler(|_: u32| async {})
        .layer(tower::layer::layer_fn(Bad));
    let running = worker.start();
    let stats = processed(&mut running.control().stats(), 3).await;
    assert_eq!((stats.panics, stats.succeeded), (1, 2));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_body_is_dead_lettered_unchanged() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let raw: Mailbox<Bytes> = jobs.with_codec(Raw);
    let dead: Mailbox<DeadLetter> =
        backend.builder("dead").codec(DeadLetterCodec(Raw)).open().unwrap();
    raw.send(&Bytes::from_static(b"\xffno number")).await.unwrap();
    jobs.send(&5).await.unwrap();
    let worker = Worker::new(jobs).dead_letters(DlqPolicy::to(&dead)).handler(|_: u32| async {});
    let (running, mut events) = start_listening(worker);
    let failed = events.wait_for(|event| matches!(event, Event::Failed { .. })).await.unwrap();
    assert!(matches!(failed, Event::Failed { kind: FailureKind::Undecodable, terminal: true, .. }));
    events.wait_for(|event| matches!(event, Event::DeadLettered { .. })).await.unwrap();
    running.stop().await.unwrap();
    let letters = dead.peek(10).await.unwrap();
    let letter = letters[0].body.as_ref().unwrap();
    assert_eq!(letter.body, Bytes::from_static(b"\xffno number"));
    assert_eq!(letter.failure, FailureKind::Undecodable);
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Email {
    to: String,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Resize {
    width: u32,
}

#[tokio::test(start_paused = true)]
async fn a_router_gives_each_kind_to_its_handler_and_parks_the_others() {
    let backend = backend();
    let emails: Mailbox<Email> = backend.mailbox("jobs").unwrap();
    let resizes: Mailbox<Resize> = backend.mailbox("jobs").unwrap();
    let dead: Mailbox<DeadLetter> =
        backend.builder("dead").codec(DeadLetterCodec(Raw)).open().unwrap();
    let kind = |kind: &str| SendOptions::new().kind(kind);
    emails.send_with(&Email { to: "ada".into() }, kind("email")).await.unwrap();
    resizes.send_with(&Resize { width: 7 }, kind("resize")).await.unwrap();
    resizes.send_with(&Resize { width: 8 }, kind("later version")).await.unwrap();
    resizes.send(&Resize { width: 9 }).await.unwrap();
    resizes.send_with(&Resize { width: 10 }, kind("email")).await.unwrap();
    let (said, mut heard) = mpsc::channel(9);
    let router =
        Router::new()
            .on("email", |email: Email, Context(said): Context<mpsc::Sender<String>>| async move {
                said.send(email.to).await
            })
            .on(
                "resize",
                |resize: Resize,
                 Context(said): Context<mpsc::Sender<String>>,
                 heartbeat: Heartbeat| async move {
                    heartbeat.beat();
                    said.send(resize.width.to_string()).await
                },
            );
    assert_eq!(router.kinds().collect::<Vec<_>>(), ["email", "resize"]);
    let worker =
        Worker::new(emails.clone()).context(said).router(router).dead_letters(DlqPolicy::to(&dead));
    let running = worker.start();
    let stats = processed(&mut running.control().stats(), 5).await;
    running.stop().await.unwrap();
    let mut handled = Vec::new();
    heard.recv_many(&mut handled, 9).await;
    handled.sort();
    assert_eq!(handled, ["7", "ada"]);
    assert_eq!((stats.succeeded, stats.parked, stats.dead_lettered), (2, 2, 1));
    assert_eq!(emails.counts().await.unwrap().delayed, 2, "the unknown ones are still there");
}

#[tokio::test(start_paused = true)]
async fn a_tagged_enum_carries_several_kinds_as_well() {
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    enum Job {
        Email(Email),
        Resize(Resize),
    }
    let backend = backend();
    let jobs: Mailbox<Job> = backend.mailbox("jobs").unwrap();
    let others: Mailbox<serde_json::Value> = backend.mailbox("jobs").unwrap();
    jobs.send(&Job::Email(Email { to: "ada".into() })).await.unwrap();
    jobs.send(&Job::Resize(Resize { width: 3 })).await.unwrap();
    others.send(&serde_json::json!({ "kind": "new" })).await.unwrap();
    let worker = Worker::new(jobs.clone()).handler(|job: Job| async move {
        match job {
            Job::Email(Email { to }) => assert_eq!(to, "ada"),
            Job::Resize(Resize { width }) => assert_eq!(width, 3),
        }
    });
    let running = worker.start();
    let stats = processed(&mut running.control().stats(), 3).await;
    running.stop().await.unwrap();
    assert_eq!((stats.succeeded, stats.parked), (2, 1));
    assert_eq!(jobs.approximate_count().await.unwrap(), 1, "the unknown one is still there");
}

#[tokio::test(start_paused = true)]
async fn a_tracer_that_panics_has_no_effect_on_messages() {
    /// What runs outside of the handler and its layers.
    struct Bad(AtomicUsize);
    impl pillarbox_runtime::trace::Tracer for Bad {
        fn join(&self, _: &tracing::Span, _: pillarbox_runtime::trace::SpanRelation<'_>) {
            assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "a bad tracer");
        }
        fn context(&self, _: &tracing::Span) -> Option<pillarbox_runtime::trace::TraceContext> {
            None
        }
    }
    let jobs = jobs();
    let traced = SendOptions::new()
        .attribute("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    for job in 0..3 {
        jobs.send_with(&job, traced.clone()).await.unwrap();
    }
    let worker = Worker::new(jobs)
        .workers(1)
        .park_for(Duration::from_secs(5))
        .tracer(Bad(AtomicUsize::new(0)))
        .handler(|_: u32| async {});
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.processed), (3, 3), "{stats:?}");
}

/// A body whose decoding panics, as generated code may.
#[derive(serde::Serialize)]
struct Fragile(u32);

impl<'de> serde::Deserialize<'de> for Fragile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let n = u32::deserialize(deserializer)?;
        assert_ne!(n, 7, "a decoder that panics");
        Ok(Self(n))
    }
}

#[tokio::test(start_paused = true)]
async fn a_decoder_that_panics_fails_one_message_and_ends_no_worker() {
    let backend = backend();
    let dead: Mailbox<DeadLetter> =
        backend.builder("dead").codec(DeadLetterCodec(Raw)).open().unwrap();
    let run = async |jobs: Mailbox<Fragile>, is_routed: bool| {
        for n in 0..20 {
            jobs.send_with(&Fragile(n), SendOptions::new().kind("fragile")).await.unwrap();
        }
        let worker = Worker::new(jobs)
            .max_deliveries(1)
            .dead_letters(DlqPolicy::to(&dead))
            .stack(ServiceStackOptions::default().buffer(8).concurrency_limit(4));
        let stats = if is_routed {
            let router = Router::new().on("fragile", |_: Fragile| async {});
            worker.router(router).run_until_empty().await.unwrap()
        } else {
            worker.handler(|_: Fragile| async {}).run_until_empty().await.unwrap()
        };
        assert_eq!((stats.succeeded, stats.panics, stats.dead_lettered), (19, 1, 1), "{stats:?}");
    };
    run(backend.mailbox("plain").unwrap(), false).await;
    run(backend.mailbox("routed").unwrap(), true).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_whose_display_panics_is_an_error() {
    #[derive(Debug)]
    struct Shy;
    impl std::fmt::Display for Shy {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("do not look at me")
        }
    }
    impl std::error::Error for Shy {}
    let jobs = jobs();
    jobs.send(&1).await.unwrap();
    let worker =
        Worker::new(jobs).retry(Backoff::none()).handler(
            |_: u32, Attempt(attempt): Attempt| async move {
                if attempt == 1 { Err(Shy) } else { Ok(()) }
            },
        );
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.failed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn each_message_has_its_own_dead_letter() {
    let backend = backend();
    let dead: Mailbox<DeadLetter<String>> = backend.mailbox("dead").unwrap();
    // The same id in two queues, and once more in the first.
    for (queue, body) in [("one", "first"), ("two", "second"), ("one", "third")] {
        let jobs: Mailbox<String> = backend.mailbox(queue).unwrap();
        let options = SendOptions::new().id(MessageId::from_key("order-7"));
        jobs.send_with(&body.to_owned(), options).await.unwrap();
        let worker = Worker::new(jobs)
            .dead_letters(DlqPolicy::to(&dead))
            .handler(|_: String| async { Outcome::reject("no") });
        worker.run_until_empty().await.unwrap();
    }
    let letters = dead.peek(10).await.unwrap();
    let bodies: Vec<_> = letters.iter().map(|letter| letter.body.clone().unwrap().body).collect();
    assert_eq!(bodies, ["first", "second", "third"]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_kind_is_never_a_dead_letter_and_a_handler_sends_messages_of_its_kind() {
    let backend = backend();
    let jobs: Mailbox<Resize> = backend.mailbox("jobs").unwrap();
    let dead: Mailbox<DeadLetter> =
        backend.builder("dead").codec(DeadLetterCodec(Raw)).open().unwrap();
    let kind = |kind: &str| SendOptions::new().kind(kind);
    jobs.send_with(&Resize { width: 3 }, kind("resize")).await.unwrap();
    jobs.send_with(&Resize { width: 0 }, kind("unknown")).await.unwrap();
    let router =
        Router::new().on("resize", |job: Resize, producer: ProducerHandle<Resize>| async move {
            if job.width > 0 {
                producer.send(&Resize { width: job.width - 1 }).await?;
            }
            Ok::<_, pillarbox_core::Error>(())
        });
    let worker = Worker::new(jobs.clone()).router(router).dead_letters(DlqPolicy::to(&dead));
    let running = worker.start();
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.succeeded, stats.dead_lettered), (4, 0), "{stats:?}");
    assert!(stats.parked > 90, "{stats:?}");
    assert_eq!(jobs.approximate_count().await.unwrap(), 1);
}

/// A handler as a program has them, called as a function.
async fn announce(order: u32, about: Metadata, Context(shop): Context<Shop>) -> Outcome {
    let tenant = about.attributes().get("tenant").unwrap_or("nobody");
    match about.delivery_count() {
        1 if order == 0 => Outcome::reject(format!("{tenant} orders nothing from {}", shop.name)),
        _ => Outcome::done(),
    }
}

#[tokio::test]
async fn a_handler_can_be_called_as_a_function() {
    let shop = || Context(Arc::new(Shop { name: "lamps" }));
    let detached = Metadata::detached();
    assert_eq!((detached.queue().as_str(), detached.unsettled()), ("detached", 0));
    assert_ne!(detached.id(), Metadata::detached().id());
    let rejected = Outcome::reject("nobody orders nothing from lamps");
    assert_eq!(announce(0, detached, shop()).await, rejected);
    let attributes = [("tenant", "acme")].into_iter().collect();
    let injected = Injected::json(&0).delivered(1).attributes(attributes);
    let about = Metadata::detached_from("orders".try_into().unwrap(), injected);
    assert_eq!((about.queue().as_str(), about.delivery_count()), ("orders", 2));
    assert!(announce(0, about, shop()).await.is_done());
}

#[tokio::test]
async fn a_fake_mailbox_has_dead_letters_by_default_or_in_another_double() {
    let reject = |order: u32| async move { Outcome::reject(format!("{order} is not wanted")) };
    let orders: FakeMailbox<u32> = FakeMailbox::named("orders");
    orders.send(&7).await.unwrap();
    let worker = Worker::new(orders.mailbox()).dead_letters(DlqPolicy::new()).handler(reject);
    assert_eq!(worker.run_until_empty().await.unwrap().dead_lettered, 1);
    let dead: Mailbox<DeadLetter<u32>> = orders.backend().mailbox("orders-dlq").unwrap();
    let letter = dead.peek(1).await.unwrap().remove(0).body.unwrap();
    assert_eq!((letter.body, &*letter.last_error), (7, "7 is not wanted"));

    let dead: CollectingMailbox<DeadLetter<u32>> = CollectingMailbox::named("orders-dlq");
    orders.send(&8).await.unwrap();
    let worker = Worker::new(orders.mailbox()).dead_letters(DlqPolicy::to(&dead)).handler(reject);
    worker.run_until_empty().await.unwrap();
    assert_eq!(dead.sent().iter().map(|letter| letter.body).collect::<Vec<_>>(), [8]);

    // The defaults have names of their own, too.
    let (source, dead) = (FakeMailbox::<u32>::new(), CollectingMailbox::<DeadLetter<u32>>::new());
    source.send(&9).await.unwrap();
    let worker = Worker::new(source.mailbox()).dead_letters(DlqPolicy::to(&dead)).handler(reject);
    worker.run_until_empty().await.unwrap();
    assert_eq!(dead.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_stands_still_is_reported_if_a_message_waits_for_it() {
    let orders: FakeMailbox<u32> = FakeMailbox::named("orders");
    orders.send(&7).await.unwrap();
    let worker = || {
        Worker::new(orders.mailbox()).handler(|_: u32, Attempt(attempt): Attempt| async move {
            if attempt == 1 { Err("not yet") } else { Ok(()) }
        })
    };
    let error = worker().run_until_empty().await.unwrap_err();
    assert!(matches!(error, pillarbox_core::Error::InvalidParameter { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("'orders'") && text.contains("1 delayed message waits"), "{text}");
    assert!(text.contains("FakeMailbox::advance"), "{text}");
    // When the clock is advanced, the message is handled.
    orders.advance(Duration::from_secs(60));
    assert_eq!(worker().run_until_empty().await.unwrap().succeeded, 1);
}

#[tokio::test]
async fn a_manual_clock_may_be_advanced_while_a_worker_runs_until_empty() {
    let orders: FakeMailbox<u32> = FakeMailbox::named("orders");
    orders.send(&7).await.unwrap();
    let worker = Worker::new(orders.mailbox()).handler(|_: u32, Attempt(n): Attempt| async move {
        if n < 3 { Err("not yet") } else { Ok(()) }
    });
    let mut events = worker.control().events();
    let running = tokio::spawn(worker.run_until_empty());
    for _ in 0..2 {
        events.wait_for(|event| matches!(event, Event::Retried { .. })).await.unwrap();
        orders.advance(Duration::from_secs(120));
    }
    assert_eq!(running.await.unwrap().unwrap().succeeded, 1);
}
