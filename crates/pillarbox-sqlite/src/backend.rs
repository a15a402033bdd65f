//! [`Backend`] and [`Queue`] on SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pillarbox_core::clock;
use pillarbox_core::ledger::{Full, Stale};
use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Clock, Counts, Cursor, Delivery, Diagnosis, Error, Gate,
    Outgoing, PeekPage, Queue, QueueName, QueueOptions, Receive, Result, Sent, Settle, Timestamp,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::connection::open_to_read;
use crate::diagnose;
use crate::engine::Session;
use crate::failure::Failure;
use crate::options::SqliteOptions;
use crate::requests::{Call, DeliveryGuard, Op, ReceiveReply, Request, SendBatch};
use crate::store::{PeekFrom, Store};

/// Largest body: SQLite's own limit on a row is 1,000,000,000 bytes.
const MAX_BODY: usize = 900_000_000;

pub(crate) static IN_FILE: Capabilities = capabilities(true);
static IN_MEMORY: Capabilities = capabilities(false);

const fn capabilities(durable: bool) -> Capabilities {
    let mut capabilities = Capabilities::full("sqlite");
    capabilities.durable = durable;
    capabilities.reports_first_received = false;
    // A database in memory belongs to the connection of this backend alone.
    capabilities.transactions = durable;
    capabilities.max_body = Some(MAX_BODY);
    capabilities
}

/// Queues in a SQLite file.
///
/// All backends that open the same file with the same options in one process share one writer thread. The thread
/// ends when the last of them is closed, or dropped together with its queues.
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
    options: SqliteOptions,
}

impl SqliteBackend {
    /// Opens a file, and creates it if it does not exist.
    ///
    /// Fails with [`Error::Connection`], without touching the file, if it is damaged, belongs to another program or
    /// was written by a newer version of this crate.
    pub async fn open(options: SqliteOptions) -> Result<Self> {
        Self::start(options, None).await
    }

    /// Opens a file with the caller's clock, for tests. Such a backend shares no thread with others of this process.
    pub async fn open_with_clock(options: SqliteOptions, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::start(options, Some(clock)).await
    }

    async fn start(options: SqliteOptions, clock: Option<Arc<dyn Clock>>) -> Result<Self> {
        let session = Session::open(options.clone(), clock).await;
        let session = session.map_err(|failure| failure.during("open", None))?;
        Ok(Self { session: Arc::new(session), options })
    }
}

impl Backend for SqliteBackend {
    fn capabilities(&self) -> &Capabilities {
        self.session.capabilities()
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.session.gate.check(name)?;
        self.session.engine.handle_opened(name);
        Ok(Arc::new(SqliteQueue {
            name: name.clone(),
            options,
            gate: Gate::child(&self.session.gate),
            session: self.session.clone(),
            used: AtomicBool::new(false),
        }))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            self.session.gate.check_backend()?;
            let (call, reply) = Call::new(());
            // Of no particular queue; the name is not used.
            let request = Request { queue: QueueName::new("queues")?, op: Op::Queues(call) };
            let names = self.session.call(request, reply).await;
            let names = names.map_err(|failure| failure.during("list the queues", None))?;
            names.iter().map(|name| QueueName::new(name)).collect()
        })
    }

    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        Box::pin(async move {
            self.session.gate.check_backend()?;
            let options = self.options.clone();
            let Some(files) = self.session.engine.files.clone() else {
                return Ok(diagnose::in_memory());
            };
            // On connections of its own, so that sends and receives go on meanwhile.
            let run = move || diagnose::diagnose(&files, &options, repair);
            let found = tokio::task::spawn_blocking(run).await;
            let found = found.unwrap_or(Err(Failure::WriterStopped));
            found.map_err(|failure| failure.during("diagnose", None))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.session.gate.close();
            self.session.release();
            let engine = &self.session.engine;
            if engine.requests.is_closed() {
                engine.ended.closed().await;
            }
        })
    }
}

impl Session {
    fn capabilities(&self) -> &'static Capabilities {
        if self.engine.files.is_some() { &IN_FILE } else { &IN_MEMORY }
    }
}

/// A handle of one queue.
#[derive(Debug)]
struct SqliteQueue {
    name: QueueName,
    options: QueueOptions,
    gate: Gate,
    session: Arc<Session>,
    /// Whether it was used for more than to read.
    used: AtomicBool,
}

impl SqliteQueue {
    /// Has the writer execute an operation on this queue.
    async fn call<I, O>(
        &self,
        action: &'static str,
        input: I,
        op: impl FnOnce(Call<I, O>) -> Op,
    ) -> Result<O> {
        let (call, reply) = Call::new(input);
        let request = Request { queue: self.name.clone(), op: op(call) };
        self.session.call(request, reply).await.map_err(|failure| self.failed(failure, action))
    }

    fn failed(&self, failure: Failure, action: &'static str) -> Error {
        if self.gate.is_closed() {
            return Error::Closed { queue: Some(self.name.clone()) };
        }
        failure.during(action, Some(&self.name))
    }

    async fn send_checked(&self, batch: Vec<Outgoing>) -> Result<Vec<Result<Sent>>> {
        let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
        let max_size = self.options.max_size;
        let sent = self.call("send", SendBatch { batch, max_size }, Op::Send).await?;
        let each = ids.into_iter().zip(sent).map(|(id, sent)| match sent {
            Ok(true) => Ok(Sent::stored(id)),
            Ok(false) => Ok(Sent::duplicate(id)),
            Err(Full) => {
                Err(Error::MailboxFull { queue: self.name.clone(), id: Some(id), max_size })
            }
        });
        Ok(each.collect())
    }

    async fn settle_checked(&self, batch: Vec<Settle>) -> Result<Vec<Result<()>>> {
        let receipts: Vec<_> = batch.iter().map(|settle| settle.receipt.clone()).collect();
        let settled = self.call("settle", batch, Op::Settle).await?;
        let each = receipts.into_iter().zip(settled).map(|(receipt, settled)| {
            settled
                .map_err(|Stale| Error::ReceiptHandleExpired { queue: self.name.clone(), receipt })
        });
        Ok(each.collect())
    }

    async fn receive_checked(&self, request: Receive) -> Result<Vec<Delivery>> {
        let end = clock::after(request.wait);
        let (call, reply) = Call::new(request);
        let request = Request { queue: self.name.clone(), op: Op::Receive(call) };
        let received = self.session.call(request, reply).await;
        let guard = match received.map_err(|failure| self.failed(failure, "receive"))? {
            ReceiveReply::Delivered(guard) => guard,
            // Boxed: most receives do not wait, and their futures stay small.
            ReceiveReply::Waiting(reply) => match Box::pin(self.wait(reply, end)).await? {
                Some(guard) => guard,
                None => return Ok(Vec::new()),
            },
        };
        // Taken in the poll that returns it: a future that is dropped earlier undoes the delivery.
        Ok(guard.take())
    }

    /// Reads as many messages as can be read, on a connection of its own, so that sends and receives go on meanwhile.
    async fn salvage(&self, max: usize, after: Option<i64>) -> Result<PeekPage, Failure> {
        let Some(files) = self.session.engine.files.clone() else {
            return Err(Failure::WriterStopped);
        };
        let name = self.name.clone();
        let read = move || {
            files.check()?;
            let connection = open_to_read(&files.database.path)?;
            // One snapshot for the whole page.
            connection.execute_batch("BEGIN")?;
            Store::new(&connection).salvage(&name, max, after, Timestamp::now())
        };
        tokio::task::spawn_blocking(read).await.unwrap_or(Err(Failure::WriterStopped))
    }

    /// Waits for messages until `end`.
    async fn wait(
        &self,
        mut reply: oneshot::Receiver<Result<DeliveryGuard, Failure>>,
        end: Instant,
    ) -> Result<Option<DeliveryGuard>> {
        let guard = tokio::select! {
            biased;
            guard = &mut reply => guard.unwrap_or(Err(Failure::WriterStopped)),
            () = self.gate.closed() => {
                return Err(Error::Closed { queue: Some(self.name.clone()) });
            }
            () = tokio::time::sleep_until(end) => {
                // From here on the writer sends nothing; what it sent before counts.
                reply.close();
                match reply.try_recv() {
                    Ok(guard) => guard,
                    Err(_) => return Ok(None),
                }
            }
        };
        guard.map(Some).map_err(|failure| self.failed(failure, "receive"))
    }
}

impl Queue for SqliteQueue {
    fn name(&self) -> &QueueName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        self.session.capabilities()
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        self.used.store(true, Ordering::Relaxed);
        Box::pin(async move {
            self.gate.check(&self.name)?;
            let send = |batch| self.send_checked(batch);
            let check = Capabilities::check_outgoing;
            self.capabilities().check_each(&self.name, batch, check, send).await
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        self.used.store(true, Ordering::Relaxed);
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.capabilities().check_receive(&self.name, &request)?;
            self.receive_checked(request).await
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        self.used.store(true, Ordering::Relaxed);
        Box::pin(async move {
            self.gate.check(&self.name)?;
            let settle = |batch| self.settle_checked(batch);
            let check = Capabilities::check_settle;
            self.capabilities().check_each(&self.name, batch, check, settle).await
        })
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
            if let Some(PeekFrom::Salvage(key)) = after {
                let page = self.salvage(max, Some(key)).await;
                return page.map_err(|failure| self.failed(failure, "peek"));
            }
            let (call, reply) = Call::new((max, after));
            let request = Request { queue: self.name.clone(), op: Op::Peek(call) };
            let page = match self.session.call(request, reply).await {
                Err(failure) if failure.is_unreadable() => {
                    // From the start: salvage has an order of its own.
                    let page = self.salvage(max, None).await;
                    page.map(|mut page| {
                        page.unreadable.insert(0, failure.to_string());
                        page
                    })
                }
                page => page,
            };
            page.map_err(|failure| self.failed(failure, "peek"))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.call("count", (), Op::Counts).await
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        self.used.store(true, Ordering::Relaxed);
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.call("purge", (), Op::Purge).await
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
        self.session.engine.handle_dropped(&self.name, *self.used.get_mut());
    }
}
