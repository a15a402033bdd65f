//! The backend and its queues, as [`pillarbox_core`] knows them.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use pillarbox_core::lease::{Full, Stale};
use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Clock, Counts, Cursor, Delivery, Error, Gate, MessageId,
    Outgoing, PeekPage, Queue, QueueName, QueueOptions, Receive, Result, Settle,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::WallClock;
use crate::failure::Failure;
use crate::inbox::{Call, Claim, Inbox, Op, Received, Request, Sending};
use crate::options::SqliteOptions;
use crate::store::PeekFrom;
use crate::sync::Syncer;
use crate::{file, writer};

/// The longest body: SQLite's own limit on a row is a thousand million bytes.
const MAX_BODY: usize = 900_000_000;

pub(crate) static IN_FILE: Capabilities = capabilities(true);
static IN_MEMORY: Capabilities = capabilities(false);

const fn capabilities(durable: bool) -> Capabilities {
    let mut capabilities = Capabilities::full("sqlite");
    capabilities.durable = durable;
    capabilities.max_body = Some(MAX_BODY);
    capabilities
}

/// Queues in a SQLite file.
///
/// All that open the same file with the same options in one process share one thread that writes
/// it. The thread ends when the last backend of the file is closed, or is dropped with the last of
/// its queues.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, Receive};
/// use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("jobs.db");
/// let backend = Mailboxes::new(SqliteBackend::open(SqliteOptions::new(&path)).await?);
/// let jobs: Mailbox<String> = backend.mailbox("jobs")?;
/// jobs.send(&"sweep".to_owned()).await?;
/// backend.close().await;
///
/// let backend = Mailboxes::new(SqliteBackend::open(SqliteOptions::new(&path)).await?);
/// let jobs: Mailbox<String> = backend.mailbox("jobs")?;
/// for message in jobs.receive(Receive::one()).await? {
///     assert_eq!(message.body(), "sweep");
///     message.acknowledge().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SqliteBackend {
    session: Arc<Session>,
}

impl SqliteBackend {
    /// Opens a file, or makes it where it is not there.
    ///
    /// Fails with [`Error::Connection`], and has not touched the file, where it is damaged, belongs
    /// to another program or was written by a newer version of this crate.
    pub async fn open(options: SqliteOptions) -> Result<Self> {
        Self::start(options, None).await
    }

    /// Opens a file on the caller's clock, for tests. Such a backend shares nothing with others
    /// of this process.
    pub async fn open_with_clock(options: SqliteOptions, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::start(options, Some(clock)).await
    }

    async fn start(options: SqliteOptions, clock: Option<Arc<dyn Clock>>) -> Result<Self> {
        let engine = Engine::open(options, clock).await;
        let engine = engine.map_err(|failure| failure.during("open", None))?;
        let session = Session { engine, gate: Arc::new(Gate::new()), left: AtomicBool::new(false) };
        Ok(Self { session: Arc::new(session) })
    }
}

impl Backend for SqliteBackend {
    fn capabilities(&self) -> &Capabilities {
        self.session.engine.capabilities()
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.session.gate.check(name)?;
        self.session.engine.handle_opened(name);
        Ok(Arc::new(SqliteQueue {
            name: name.clone(),
            options,
            gate: Gate::child(&self.session.gate),
            session: self.session.clone(),
        }))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            if self.session.gate.is_closed() {
                return Err(Error::Closed { queue: None });
            }
            let (call, answer) = Call::new(());
            // About no queue in particular; the name is not looked at.
            let request = Request { queue: QueueName::new("queues")?, op: Op::Queues(call) };
            let names = self.session.ask(request, answer).await;
            let names = names.map_err(|failure| failure.during("list the queues", None))?;
            names.iter().map(|name| QueueName::new(name)).collect()
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.session.gate.close();
            if self.session.leave() {
                self.session.engine.ended.closed().await;
            }
        })
    }
}

/// What a backend and its queues share.
#[derive(Debug)]
struct Session {
    engine: Arc<Engine>,
    gate: Arc<Gate>,
    /// Whether the engine was told that this session needs it no more.
    left: AtomicBool,
}

impl Session {
    /// Puts a question to the writer and waits for the answer.
    async fn ask<A>(
        &self,
        request: Request,
        answer: oneshot::Receiver<Result<A, Failure>>,
    ) -> Result<A, Failure> {
        self.engine.inbox.send(request).await?;
        answer.await.unwrap_or(Err(Failure::WriterGone))
    }

    /// Lets go of the engine. Says whether it was the last to do so, and the engine ends.
    fn leave(&self) -> bool {
        !self.left.swap(true, Ordering::AcqRel) && self.engine.leave()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The thread that writes one file, as all who use it in this process know it.
struct Engine {
    inbox: Arc<Inbox>,
    /// Closed when the thread has ended.
    ended: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
    durable: bool,
    /// Under which it can be found; `None` where it is private.
    shared_as: Option<Name>,
    handles: Mutex<HashMap<QueueName, usize>>,
}

/// The same file opened the same way.
type Name = (PathBuf, file::Identity, SqliteOptions);

/// The engines of this process that are shared.
static ENGINES: LazyLock<Mutex<HashMap<Name, Running>>> = LazyLock::new(Mutex::default);

struct Running {
    engine: Weak<Engine>,
    /// Counted here, under the lock: of two that leave at once, exactly one is the last.
    sessions: usize,
}

impl Engine {
    /// Finds the engine of a file, or starts it. One with a clock of its own is not shared.
    async fn open(
        options: SqliteOptions,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Arc<Self>, Failure> {
        let shared = clock.is_none();
        if shared && let Some(engine) = name(&options).and_then(Self::join) {
            return Ok(engine);
        }
        let clock = clock.unwrap_or_else(|| Arc::new(WallClock));
        let mut engine = Self::start(&options, clock).await?;
        let Some(name) = name(&options).filter(|_| shared) else { return Ok(Arc::new(engine)) };
        let mut engines = lock(&ENGINES);
        if let Some(running) = engines.get_mut(&name)
            && let Some(other) = running.join()
        {
            // Somebody else was quicker. This one is dropped once the lock is free.
            drop(engines);
            return Ok(other);
        }
        engine.shared_as = Some(name.clone());
        let engine = Arc::new(engine);
        engines.insert(name, Running { engine: Arc::downgrade(&engine), sessions: 1 });
        Ok(engine)
    }

    /// Adds a session to the engine of that name, if there is one and it runs.
    fn join(name: Name) -> Option<Arc<Self>> {
        lock(&ENGINES).get_mut(&name)?.join()
    }

    /// Ends a session. Says whether it was the last one, and so the engine ends.
    fn leave(&self) -> bool {
        if let Some(name) = &self.shared_as {
            let mut engines = lock(&ENGINES);
            if let Some(running) = engines.get_mut(name)
                && std::ptr::eq(running.engine.as_ptr(), self)
            {
                running.sessions -= 1;
                if running.sessions > 0 {
                    return false;
                }
                engines.remove(name);
            }
        }
        self.inbox.close();
        true
    }

    /// Starts the thread, which opens the file.
    async fn start(options: &SqliteOptions, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let inbox = Arc::new(Inbox::new());
        let ended = Arc::new(Gate::new());
        let (opened, is_open) = oneshot::channel();
        let thread = {
            let (options, inbox) = (options.clone(), inbox.clone());
            let end = CloseOnDrop { ended: ended.clone(), inbox: inbox.clone() };
            let body = move || {
                let _end = end;
                let ready = file::open(&options).and_then(|(connection, place)| {
                    let log = place.log_to_sync(&options)?;
                    Ok((connection, place, Syncer::start(log, inbox.clone())?))
                });
                match ready {
                    Ok((connection, place, syncer)) => {
                        if opened.send(Ok(())).is_ok() {
                            writer::run(&connection, &place, &inbox, &*clock, &syncer);
                        }
                        // Its last answers are given before the file is closed.
                        drop(syncer);
                    }
                    // Nobody waits for it any more where this fails.
                    Err(failure) => drop(opened.send(Err(failure))),
                }
            };
            let thread = std::thread::Builder::new().name("pillarbox-sqlite".into());
            thread.spawn(body).map_err(|error| Failure::io("cannot start a thread", error))?
        };
        let durable = options.path.is_some();
        let engine = Self {
            inbox,
            ended,
            thread: Some(thread),
            durable,
            shared_as: None,
            handles: Mutex::default(),
        };
        is_open.await.unwrap_or(Err(Failure::WriterGone))?;
        Ok(engine)
    }

    fn capabilities(&self) -> &'static Capabilities {
        if self.durable { &IN_FILE } else { &IN_MEMORY }
    }

    fn handle_opened(&self, name: &QueueName) {
        *lock(&self.handles).entry(name.clone()).or_default() += 1;
    }

    /// Forgets a queue that holds nothing when its last handle goes, so that short-lived reply
    /// queues do not pile up.
    fn handle_dropped(&self, name: &QueueName) {
        let mut handles = lock(&self.handles);
        let Some(count) = handles.get_mut(name) else { return };
        *count -= 1;
        if *count == 0 {
            handles.remove(name);
            self.inbox.put(Request { queue: name.clone(), op: Op::Forget });
        }
    }
}

impl Running {
    /// Adds a session, if the engine runs.
    fn join(&mut self) -> Option<Arc<Engine>> {
        let engine = self.engine.upgrade().filter(|engine| !engine.ended.is_closed())?;
        self.sessions += 1;
        Some(engine)
    }
}

impl Drop for Engine {
    /// Ends the thread and waits for it: what is in line is done, and the file closed.
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.take() {
            // Its panic, if there was one, was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("shared_as", &self.shared_as).finish_non_exhaustive()
    }
}

/// Tells that the thread has ended, however it did.
struct CloseOnDrop {
    ended: Arc<Gate>,
    inbox: Arc<Inbox>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.inbox.abandon();
        self.ended.close();
    }
}

fn name(options: &SqliteOptions) -> Option<Name> {
    let path = options.path.as_deref()?;
    let identity = file::identity(path).ok()?;
    let canonical = path.canonicalize().ok()?;
    Some((canonical, identity, options.clone()))
}

/// The moment so much later; in some decades where that is out of range.
fn after(wait: Duration) -> Instant {
    const DECADES: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + DECADES)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle of one queue.
#[derive(Debug)]
struct SqliteQueue {
    name: QueueName,
    options: QueueOptions,
    gate: Gate,
    session: Arc<Session>,
}

impl SqliteQueue {
    /// Asks the writer something about this queue.
    async fn ask<Q, A>(
        &self,
        action: &'static str,
        ask: Q,
        op: impl FnOnce(Call<Q, A>) -> Op,
    ) -> Result<A> {
        let (call, answer) = Call::new(ask);
        let request = Request { queue: self.name.clone(), op: op(call) };
        self.session.ask(request, answer).await.map_err(|failure| self.failed(failure, action))
    }

    fn failed(&self, failure: Failure, action: &'static str) -> Error {
        if self.gate.is_closed() {
            return Error::Closed { queue: Some(self.name.clone()) };
        }
        failure.during(action, Some(&self.name))
    }

    /// Asks for what passes the check, and puts the refusals of the rest in their places.
    async fn each<E, A, F>(
        &self,
        batch: Vec<E>,
        check: impl Fn(&E) -> Result<()>,
        ask: impl FnOnce(Vec<E>) -> F,
    ) -> Result<Vec<Result<A>>>
    where
        F: Future<Output = Result<Vec<Result<A>>>>,
    {
        self.gate.check(&self.name)?;
        self.capabilities().check_batch(&self.name, batch.len())?;
        let mut refused = Vec::new();
        let mut place = 0;
        let mut batch = batch;
        batch.retain(|entry| {
            let checked = check(entry).map_err(|error| refused.push((place, error)));
            place += 1;
            checked.is_ok()
        });
        let mut results = if batch.is_empty() { Vec::new() } else { ask(batch).await? };
        for (place, error) in refused {
            results.insert(place, Err(error));
        }
        Ok(results)
    }

    async fn send_checked(&self, batch: Vec<Outgoing>) -> Result<Vec<Result<MessageId>>> {
        let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
        let max_size = self.options.max_size;
        let sent = self.ask("send", Sending { batch, max_size }, Op::Send).await?;
        let each = ids.into_iter().zip(sent).map(|(id, sent)| match sent {
            Ok(()) => Ok(id),
            Err(Full) => Err(Error::MailboxFull {
                queue: self.name.clone(),
                id,
                max_size: max_size.unwrap_or(u64::MAX),
            }),
        });
        Ok(each.collect())
    }

    async fn settle_checked(&self, batch: Vec<Settle>) -> Result<Vec<Result<()>>> {
        let receipts: Vec<_> = batch.iter().map(|settle| settle.receipt.clone()).collect();
        let settled = self.ask("settle", batch, Op::Settle).await?;
        let each = receipts.into_iter().zip(settled).map(|(receipt, settled)| {
            settled
                .map_err(|Stale| Error::ReceiptHandleExpired { queue: self.name.clone(), receipt })
        });
        Ok(each.collect())
    }

    async fn receive_checked(&self, request: Receive) -> Result<Vec<Delivery>> {
        let end = after(request.wait);
        let (call, answer) = Call::new(request);
        let asked = Request { queue: self.name.clone(), op: Op::Receive(call) };
        let received = self.session.ask(asked, answer).await;
        let claim = match received.map_err(|failure| self.failed(failure, "receive"))? {
            Received::Now(claim) => claim,
            // In a box of its own: most receives do not wait, and need not carry the room.
            Received::Later(answer) => match Box::pin(self.wait(answer, end)).await? {
                Some(claim) => claim,
                None => return Ok(Vec::new()),
            },
        };
        // Taken in the poll that returns it: a future that is dropped before has given it back.
        Ok(claim.take())
    }

    /// Waits for messages, no longer than until `end`.
    async fn wait(
        &self,
        mut answer: oneshot::Receiver<Result<Claim, Failure>>,
        end: Instant,
    ) -> Result<Option<Claim>> {
        let claim = tokio::select! {
            biased;
            claim = &mut answer => claim.unwrap_or(Err(Failure::WriterGone)),
            () = self.gate.closed() => {
                return Err(Error::Closed { queue: Some(self.name.clone()) });
            }
            () = tokio::time::sleep_until(end) => {
                // From here on the writer gives nothing; what it gave before counts.
                answer.close();
                match answer.try_recv() {
                    Ok(claim) => claim,
                    Err(_) => return Ok(None),
                }
            }
        };
        claim.map(Some).map_err(|failure| self.failed(failure, "receive"))
    }
}

impl Queue for SqliteQueue {
    fn name(&self) -> &QueueName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        self.session.engine.capabilities()
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<MessageId>>>> {
        let check = |message: &Outgoing| self.capabilities().check_outgoing(&self.name, message);
        Box::pin(self.each(batch, check, |batch| self.send_checked(batch)))
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.capabilities().check_receive(&self.name, &request)?;
            self.receive_checked(request).await
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        let check = |settle: &Settle| self.capabilities().check_settle(&self.name, settle);
        Box::pin(self.each(batch, check, |batch| self.settle_checked(batch)))
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.capabilities().check_peek(&self.name, max)?;
            let after = match &after {
                None => None,
                Some(cursor) => Some(PeekFrom::of_cursor(cursor).ok_or_else(|| {
                    let allowed = "a cursor that this queue gave";
                    Error::invalid(Some(&self.name), "cursor", cursor.as_str(), allowed)
                })?),
            };
            self.ask("peek", (max, after), Op::Peek).await
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.ask("count", (), Op::Counts).await
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.ask("purge", (), Op::Purge).await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}

impl Drop for SqliteQueue {
    fn drop(&mut self) {
        self.session.engine.handle_dropped(&self.name);
    }
}
