//! A webhook delivery service: an HTTP API that stores events, and a worker that posts them to their receivers. The
//! events and the queue are in one SQLite file, so that
//!
//! * an event and the message that requests its delivery are stored together, or not at all;
//! * an event is marked as delivered and its message acknowledged together, or not at all.
//!
//! A receiver may still get an event twice, if the process dies between the post and the commit. The receiver
//! recognizes it by the `idempotency-key`, which is the same each time.
//!
//! The example posts 30 events to a local receiver that fails in various ways.
//!
//! `cargo run -p pillarbox --example webhooks`

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use pillarbox::BoxError;
use pillarbox::dead_letters::{Classify, ErrorClass};
use pillarbox::group::Task;
use pillarbox::prelude::*;
use pillarbox::sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};
use pillarbox::sqlite::transaction;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Timeout of a post to a receiver.
const POST_TIMEOUT: Duration = Duration::from_millis(500);

/// Body of a client's post, and of the message in the queue. The id of the event is the id of its message.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Delivery {
    to: String,
    payload: serde_json::Value,
}

/// Error of a delivery. Its class decides whether the message is retried.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("the receiver refuses the event with status {0}")]
    Refused(u16),
    #[error("the receiver limits the rate of requests")]
    TooMany { retry_after: Option<Duration> },
    #[error("the receiver failed with status {0}")]
    Failed(u16),
    #[error("the receiver did not answer")]
    Silent(#[source] io::Error),
    #[error("the event was posted and could not be marked as delivered")]
    Unmarked(#[source] BoxError),
}

impl Classify for DeliveryError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Refused(_) => ErrorClass::Permanent,
            Self::TooMany { retry_after } => ErrorClass::RateLimited { retry_after: *retry_after },
            Self::Failed(_) | Self::Silent(_) | Self::Unmarked(_) => ErrorClass::Retriable,
        }
    }
}

/// The table of events, in the same file as the queues.
#[derive(Clone)]
struct Events(Arc<Mutex<Connection>>);

impl Events {
    fn open(file: &Path) -> Result<Self, BoxError> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.execute_batch(
            "PRAGMA synchronous = FULL;
             CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, payload TEXT NOT NULL,
                 deliveries INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0) STRICT",
        )?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Runs `work` in a transaction, which an error rolls back. Blocks.
    fn transaction<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        // A panic has rolled back its transaction, so the connection is still usable.
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let result = work(&all)?;
        all.commit()?;
        Ok(result)
    }

    /// Stores an event and sends the message that requests its delivery: both, or neither.
    fn store(
        &self,
        delivery: &Delivery,
        deliveries: &Mailbox<Delivery>,
    ) -> Result<MessageId, BoxError> {
        self.transaction(|both| {
            let id = MessageId::new();
            let values = [id.to_string(), delivery.payload.to_string()];
            both.execute("INSERT INTO events (id, payload) VALUES (?1, ?2)", values)?;
            transaction::send(both, deliveries, delivery, SendOptions::new().id(id))?;
            Ok(id)
        })
    }

    /// Marks an event as delivered and acknowledges its message: both, or neither.
    fn delivered(&self, about: &Metadata) -> Result<(), BoxError> {
        self.transaction(|both| {
            // A replayed dead letter has a new id; `original_id` is that of the event.
            let id = [about.original_id().to_string()];
            both.execute(
                "UPDATE events SET deliveries = deliveries + 1, dead = 0 WHERE id = ?1",
                id,
            )?;
            Ok(transaction::acknowledge(both, about)?)
        })
    }

    /// Marks an event as a dead letter. Idempotent.
    fn mark_dead(&self, id: MessageId) -> Result<(), BoxError> {
        self.transaction(|one| {
            one.execute("UPDATE events SET dead = 1 WHERE id = ?1", [id.to_string()])?;
            Ok(())
        })
    }

    /// Counts the events that satisfy a condition.
    fn count(&self, condition: &str) -> Result<u64, BoxError> {
        let query = format!("SELECT count(*) FROM events WHERE {condition}");
        self.transaction(|one| Ok(one.query_row(&query, [], |row| row.get(0))?))
    }
}

/// Opens the queues in the file of the events, which may exist before them.
async fn queues(file: &Path) -> pillarbox::Result<Mailboxes> {
    pillarbox::open(&format!("sqlite:{}?adopt=true", file.display())).await
}

/// State of the HTTP API.
#[derive(Clone)]
struct Api {
    events: Events,
    deliveries: Mailbox<Delivery>,
}

fn api(api: Api) -> Router {
    Router::new().route("/events", post(accept)).with_state(api)
}

/// `POST /events`: responds with the id of the event once the event and its message are stored.
async fn accept(State(api): State<Api>, body: String) -> (StatusCode, String) {
    let delivery = match serde_json::from_str::<Delivery>(&body) {
        Ok(delivery) if delivery.to.starts_with("http://") => delivery,
        Ok(_) => return (StatusCode::BAD_REQUEST, "`to` is not an http:// URL".to_owned()),
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()),
    };
    let stored =
        tokio::task::spawn_blocking(move || api.events.store(&delivery, &api.deliveries)).await;
    match stored.map_err(BoxError::from).flatten() {
        Ok(id) => (StatusCode::ACCEPTED, id.to_string()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Posts an event to its receiver, marks it as delivered and acknowledges its message.
async fn deliver(
    delivery: Delivery,
    about: Metadata,
    Context(events): Context<Events>,
) -> Result<Outcome, DeliveryError> {
    let payload = delivery.payload.to_string();
    let answer = http_post(&delivery.to, about.original_id(), &payload);
    let answer = tokio::time::timeout(POST_TIMEOUT, answer).await.map_err(io::Error::from);
    let answer = answer.flatten().map_err(DeliveryError::Silent)?;
    match answer.status {
        200..=299 => {}
        429 => return Err(DeliveryError::TooMany { retry_after: answer.retry_after }),
        status @ 400..=499 => return Err(DeliveryError::Refused(status)),
        status => return Err(DeliveryError::Failed(status)),
    }
    // The handler waits for the thread, because a message cannot be acknowledged after its handler has ended.
    let marked = tokio::task::spawn_blocking(move || events.delivered(&about)).await;
    marked.map_err(BoxError::from).flatten().map_err(DeliveryError::Unmarked)?;
    Ok(Outcome::settled())
}

/// Events that a receiver refuses become dead letters at once. Rate limits are retried without a limit.
fn rules(policy: DlqPolicy) -> DlqPolicy {
    policy
        .classify::<DeliveryError>()
        .include_permanent()
        .exclude_where(|error: &DeliveryError| matches!(error, DeliveryError::TooMany { .. }))
}

fn worker(
    deliveries: Mailbox<Delivery>,
    policy: DlqPolicy,
    events: Events,
) -> ReadyWorker<Delivery, (), Events> {
    let table = events.clone();
    Worker::new(deliveries)
        .context(events)
        .workers(8)
        .retry(Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1)).jitter(0.5))
        .max_deliveries(5)
        .dead_letters(rules(policy))
        .on_failure(|failed| {
            let next = if failed.terminal { "dead letter" } else { "retry" };
            println!(
                "{}: attempt {}: {}: {next}",
                failed.about.message_id, failed.about.attempt, failed.error
            );
        })
        .on_dead_letter(move |dead_letter, _| {
            if let Err(error) = table.mark_dead(dead_letter.message_id) {
                eprintln!("{}: cannot mark it as dead: {error}", dead_letter.message_id);
            }
        })
        .handler(deliver)
}

struct Answer {
    status: u16,
    retry_after: Option<Duration>,
    body: String,
}

/// A minimal HTTP client.
async fn http_post(url: &str, key: impl fmt::Display, body: &str) -> io::Result<Answer> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let (host, path) = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(|| invalid("the URL is not http://HOST:PORT/PATH"))?;
    let mut connection = TcpStream::connect(host).await?;
    let length = body.len();
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    connection.write_all((head + body).as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;

    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| invalid("no HTTP answer"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let retry_after = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))
        .and_then(|(_, seconds)| seconds.parse().ok().map(Duration::from_secs));
    Ok(Answer {
        status: status.ok_or_else(|| invalid("no HTTP status"))?,
        retry_after,
        body: body.to_owned(),
    })
}

/// The receiver of the events, which counts the posts of each.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<HashMap<String, Received>>>);

#[derive(Default)]
struct Received {
    posts: u32,
    accepted: u32,
}

impl Receiver {
    /// Starts the server, and returns its URL without the name of a hook.
    async fn start(&self) -> io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/hooks/", listener.local_addr()?);
        let app = Router::new().route("/hooks/{hook}", post(receive)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(url)
    }

    fn with<T>(&self, key: &str, f: impl FnOnce(&mut Received) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f(all.entry(key.to_owned()).or_default())
    }

    fn accepted(&self) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().filter(|received| received.accepted > 0).count()
    }
}

/// `POST /hooks/{hook}`: fails depending on the name of the hook and the number of posts of the event.
async fn receive(
    State(receiver): State<Receiver>,
    UrlPath(hook): UrlPath<String>,
    headers: HeaderMap,
) -> (StatusCode, [(&'static str, &'static str); 1]) {
    let answer = |status| (status, [("retry-after", "1")]);
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return answer(StatusCode::BAD_REQUEST);
    };
    let posts = receiver.with(key, |received| {
        received.posts += 1;
        received.posts
    });
    match (hook.as_str(), posts) {
        ("gone", _) => return answer(StatusCode::GONE),
        ("broken", _) | ("flaky", 1) => return answer(StatusCode::INTERNAL_SERVER_ERROR),
        ("busy", 1) => return answer(StatusCode::TOO_MANY_REQUESTS),
        ("slow", 1) => tokio::time::sleep(2 * POST_TIMEOUT).await,
        _ => {}
    }
    receiver.with(key, |received| received.accepted += 1);
    answer(StatusCode::OK)
}

/// Posts one event to the API.
async fn submit(api: SocketAddr, to: &str, n: usize) -> Result<(), BoxError> {
    let body = serde_json::json!({ "to": to, "payload": { "n": n } }).to_string();
    let answer = http_post(&format!("http://{api}/events"), n, &body).await?;
    if answer.status != 202 {
        return Err(format!("the API responds with {}: {}", answer.status, answer.body).into());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("webhooks.db");
    let backend = queues(&file).await?;
    let deliveries: Mailbox<Delivery> = backend.mailbox("deliveries")?;
    let events = Events::open(&file)?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = api(Api { events: events.clone(), deliveries: deliveries.clone() });
    let group = LoopGroup::new()
        .add(worker(deliveries.clone(), DlqPolicy::new(), events.clone()))
        .add(Task::new("http", move |stop| async move {
            axum::serve(listener, app).with_graceful_shutdown(stop).await
        }))
        .start()?; // a service calls `.run().await?`, which ends on SIGTERM or Ctrl+C

    let receiver = Receiver::default();
    let url = receiver.start().await?;
    let hooks = ["steady", "flaky", "busy", "slow", "gone", "broken"];
    let total = 5 * hooks.len();
    for (n, hook) in hooks.iter().cycle().take(total).enumerate() {
        submit(address, &format!("{url}{hook}"), n).await?;
    }
    let control = group.control().control_of("deliveries").ok_or("no such loop")?;
    let all = total as u64;
    control.stats().wait_for(|stats| stats.succeeded + stats.dead_lettered == all).await?;
    let report = group.stop().await?;

    // Every event is marked as delivered once, or it is a dead letter.
    let delivered = events.count("deliveries = 1 AND dead = 0")?;
    let dead = events.count("deliveries = 0 AND dead = 1")?;
    let dead_letters = Dlq::open(&backend, "deliveries-dlq")?.summary(|_| true).await?.dead_letters;
    let attempts: u64 = report.loops.iter().map(|one| one.stats.processed).sum();
    println!("{total} events: {delivered} delivered, {dead} dead letters, {attempts} attempts");
    assert_eq!((delivered, dead, dead_letters), (20, 10, 10));
    assert_eq!(receiver.accepted() as u64, delivered);
    assert_eq!(deliveries.approximate_count().await?, 0);
    backend.close().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use pillarbox_testing::{CollectingMailbox, FakeMailbox};
    use tempfile::TempDir;

    use super::*;

    /// A temporary file with an empty table of events, and a receiver.
    struct Fixture {
        directory: TempDir,
        events: Events,
        receiver: Receiver,
        url: String,
    }

    impl Fixture {
        async fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let events = Events::open(&directory.path().join("webhooks.db")).unwrap();
            let receiver = Receiver::default();
            let url = receiver.start().await.unwrap();
            Self { directory, events, receiver, url }
        }

        fn file(&self) -> PathBuf {
            self.directory.path().join("webhooks.db")
        }

        fn to(&self, hook: &str) -> Delivery {
            Delivery { to: format!("{}{hook}", self.url), payload: 7.into() }
        }

        /// Calls the handler as a plain function.
        async fn deliver(&self, hook: &str) -> Result<Outcome, DeliveryError> {
            let events = Context(Arc::new(self.events.clone()));
            deliver(self.to(hook), Metadata::detached(), events).await
        }
    }

    #[tokio::test]
    async fn the_class_of_an_error_follows_from_the_response() {
        let fixture = Fixture::new().await;
        for (hook, class) in [
            ("gone", ErrorClass::Permanent),
            ("broken", ErrorClass::Retriable),
            ("slow", ErrorClass::Retriable),
            ("busy", ErrorClass::RateLimited { retry_after: Some(Duration::from_secs(1)) }),
        ] {
            assert_eq!(fixture.deliver(hook).await.unwrap_err().class(), class, "{hook}");
        }
    }

    #[tokio::test]
    async fn an_event_whose_message_cannot_be_acknowledged_is_not_marked() {
        let fixture = Fixture::new().await;
        // The transaction cannot acknowledge metadata that belongs to no queue.
        let error = fixture.deliver("steady").await.unwrap_err();
        assert!(matches!(error, DeliveryError::Unmarked(_)));
        assert_eq!(fixture.receiver.accepted(), 1);
        assert_eq!(fixture.events.count("deliveries > 0").unwrap(), 0);
    }

    #[tokio::test]
    async fn an_event_whose_message_cannot_be_sent_is_not_stored() {
        let fixture = Fixture::new().await;
        // A mailbox outside the file of the table.
        let deliveries = FakeMailbox::named("deliveries").mailbox();
        let api = Api { events: fixture.events.clone(), deliveries };
        let body = serde_json::to_string(&fixture.to("steady")).unwrap();
        let (status, _) = accept(State(api), body).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(fixture.events.count("true").unwrap(), 0);
    }

    #[tokio::test]
    async fn a_refused_event_is_a_dead_letter_at_once_and_a_failed_one_after_five_attempts() {
        let fixture = Fixture::new().await;
        let deliveries = FakeMailbox::named("deliveries");
        let dead: CollectingMailbox<DeadLetter<Delivery>> = CollectingMailbox::named("dead");
        deliveries.send(&fixture.to("gone")).await.unwrap();
        deliveries.send(&fixture.to("broken")).await.unwrap();
        let stats = worker(deliveries.mailbox(), DlqPolicy::to(&dead), fixture.events.clone())
            .retry(Backoff::none())
            .run_until_empty()
            .await
            .unwrap();
        assert_eq!((stats.dead_lettered, stats.processed), (2, 6));
        let mut dead_letters: Vec<_> =
            dead.sent().into_iter().map(|one| (one.delivery_count, one.info.last_error)).collect();
        dead_letters.sort();
        assert_eq!(
            dead_letters[0],
            (1, "the receiver refuses the event with status 410".to_owned())
        );
        assert_eq!(dead_letters[1], (5, "the receiver failed with status 500".to_owned()));
    }

    #[tokio::test]
    async fn a_rate_limited_event_is_retried_after_the_requested_delay() {
        let fixture = Fixture::new().await;
        let deliveries = FakeMailbox::named("deliveries");
        deliveries.send(&fixture.to("busy")).await.unwrap();
        let worker = worker(deliveries.mailbox(), DlqPolicy::new(), fixture.events.clone());
        let mut events = worker.control().events();
        let running = worker.start();
        let delay = loop {
            if let Event::Retried { delay, .. } = events.next().await.unwrap() {
                break delay;
            }
        };
        assert_eq!(delay, Duration::from_secs(1));
        running.stop().await.unwrap();
    }

    #[tokio::test]
    async fn an_event_is_stored_with_its_message_and_marked_with_its_acknowledgement() {
        let fixture = Fixture::new().await;
        let backend = queues(&fixture.file()).await.unwrap();
        let deliveries: Mailbox<Delivery> = backend.mailbox("deliveries").unwrap();
        let api = Api { events: fixture.events.clone(), deliveries: deliveries.clone() };
        for hook in ["flaky", "gone"] {
            let body = serde_json::to_string(&fixture.to(hook)).unwrap();
            assert_eq!(accept(State(api.clone()), body).await.0, StatusCode::ACCEPTED);
        }
        assert_eq!(deliveries.approximate_count().await.unwrap(), 2);
        worker(deliveries.clone(), DlqPolicy::new(), fixture.events.clone())
            .retry(Backoff::none())
            .run_until_empty()
            .await
            .unwrap();
        assert_eq!(fixture.events.count("deliveries = 1 AND dead = 0").unwrap(), 1);
        assert_eq!(fixture.events.count("deliveries = 0 AND dead = 1").unwrap(), 1);
        assert_eq!(deliveries.approximate_count().await.unwrap(), 0);
        backend.close().await;
    }
}
