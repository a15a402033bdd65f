//! The threads of a database, and the sessions that share them.
//!
//! All backends that open the same file in one process share an [`Engine`]: one writer, one connection. Each
//! `open` makes a [`Session`], which the backend and its queues hold. When the last session of an engine ends, so
//! do its threads, and the file is closed.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::thread::JoinHandle;

use pillarbox_core::internal::lock;
use pillarbox_core::{Clock, Gate, QueueName, Result};
use tokio::sync::oneshot;

use crate::change_poll::ChangePoll;
use crate::clock::WallClock;
use crate::database_files::{DatabaseFiles, TrackedFile};
use crate::failure::Failure;
use crate::file;
use crate::options::{SqliteOptions, Synchronous};
use crate::requests::{Op, Request, RequestQueue};
use crate::shared_writer::SharedWriter;
use crate::sync::Syncer;
use crate::writer::IdleWriter;

/// The share of a backend and its queues in an engine.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) gate: Arc<Gate>,
    /// Whether the engine was released already.
    is_released: AtomicBool,
}

impl Session {
    pub(crate) async fn open(
        options: SqliteOptions,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, Failure> {
        let engine = Engine::open(options, clock).await?;
        Ok(Self { engine, gate: Arc::new(Gate::new()), is_released: AtomicBool::new(false) })
    }

    /// Has a request executed and waits for its reply.
    pub(crate) async fn call<T>(
        &self,
        request: Request,
        reply: oneshot::Receiver<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match self.engine.writer.try_execute(request) {
            // The thread was blocked for a moment. Other tasks have their turn.
            Ok(()) => tokio::task::yield_now().await,
            Err(request) => self.engine.requests.submit(request).await?,
        }
        reply.await.unwrap_or(Err(Failure::WriterStopped))
    }

    /// Releases the engine, which ends when its last session does so.
    pub(crate) fn release(&self) {
        if !self.is_released.swap(true, Ordering::AcqRel) {
            self.engine.release();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.release();
    }
}

/// The threads that write one database, shared by all its backends in this process.
pub(crate) struct Engine {
    pub(crate) requests: Arc<RequestQueue>,
    writer: Arc<SharedWriter>,
    /// Closed when the writer thread has ended.
    pub(crate) ended: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
    /// The database and its log. `None` if in memory.
    pub(crate) files: Option<DatabaseFiles>,
    /// The key under which other backends find it. `None` if it is not shared.
    shared_as: Option<EngineKey>,
    handles: Mutex<HashMap<QueueName, OpenHandles>>,
}

/// The handles of a queue that this process has open.
#[derive(Debug, Default)]
struct OpenHandles {
    open: usize,
    /// Whether one of them was used for more than to read.
    used: bool,
}

/// The file and the durability for which an engine is shared.
type EngineKey = (TrackedFile, Synchronous);

/// The shared engines of this process.
static ENGINES: LazyLock<Mutex<HashMap<EngineKey, SharedEngine>>> = LazyLock::new(Mutex::default);

struct SharedEngine {
    engine: Weak<Engine>,
    /// Counted under the lock: of two sessions that end at once, exactly one is the last.
    sessions: usize,
}

impl Engine {
    /// Finds the engine of a file, or starts one. An engine with a clock of the caller is not shared.
    async fn open(
        options: SqliteOptions,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Arc<Self>, Failure> {
        let is_shared = clock.is_none();
        if is_shared && let Some(engine) = engine_key(&options).and_then(Self::join) {
            return Ok(engine);
        }
        let clock = clock.unwrap_or_else(|| Arc::new(WallClock));
        let mut engine = Self::start(&options, clock, is_shared).await?;
        let Some(key) = engine_key(&options).filter(|_| is_shared) else {
            return Ok(Arc::new(engine));
        };
        let mut engines = lock(&ENGINES);
        if let Some(shared) = engines.get_mut(&key)
            && let Some(other) = shared.join()
        {
            // Another task was quicker. This engine is dropped after the lock.
            drop(engines);
            return Ok(other);
        }
        engine.shared_as = Some(key.clone());
        let engine = Arc::new(engine);
        engines.insert(key, SharedEngine { engine: Arc::downgrade(&engine), sessions: 1 });
        Ok(engine)
    }

    /// Adds a session to the engine with this key, if there is one and it runs.
    fn join(key: EngineKey) -> Option<Arc<Self>> {
        lock(&ENGINES).get_mut(&key)?.join()
    }

    /// Ends a session. The engine ends with the last one.
    fn release(&self) {
        if let Some(key) = &self.shared_as {
            let mut engines = lock(&ENGINES);
            if let Some(shared) = engines.get_mut(key)
                && std::ptr::eq(shared.engine.as_ptr(), self)
            {
                shared.sessions -= 1;
                if shared.sessions > 0 {
                    return;
                }
                engines.remove(key);
            }
        }
        self.requests.close();
    }

    /// Starts the writer thread, which opens the file. A clock of the caller is polled: it may advance at any moment.
    async fn start(
        options: &SqliteOptions,
        clock: Arc<dyn Clock>,
        is_wall_clock: bool,
    ) -> Result<Self, Failure> {
        let requests = Arc::new(RequestQueue::new());
        let writer = Arc::new(SharedWriter::new(requests.clone()));
        let ended = Arc::new(Gate::new());
        let (opened, when_open) = oneshot::channel();
        let thread = {
            let (options, requests, shared) = (options.clone(), requests.clone(), writer.clone());
            let end = CloseOnDrop { ended: ended.clone(), writer: writer.clone() };
            let body = move || {
                let _end = end;
                let ready = file::open(&options, &|| requests.is_closed()).and_then(
                    |(connection, storage)| {
                        let log = match options.synchronous {
                            Synchronous::Full => storage.log()?,
                            Synchronous::Normal => None,
                        };
                        let syncer =
                            Syncer::start(log, storage.files().cloned(), requests.clone())?;
                        Ok((connection, storage, syncer))
                    },
                );
                match ready {
                    Ok((connection, storage, syncer)) => {
                        let files = storage.files().cloned();
                        let change_poll = if is_wall_clock {
                            ChangePoll::new(files.as_ref().map(DatabaseFiles::log_path))
                        } else {
                            ChangePoll::polled()
                        };
                        let writer = IdleWriter::new(
                            connection,
                            storage,
                            requests,
                            clock,
                            syncer,
                            change_poll,
                        );
                        if opened.send(Ok(files)).is_ok() {
                            shared.run(writer);
                        } else {
                            writer.close();
                        }
                    }
                    // Fails only if the caller is gone.
                    Err(failure) => drop(opened.send(Err(failure))),
                }
            };
            let thread = std::thread::Builder::new().name("pillarbox-sqlite".into());
            thread.spawn(body).map_err(|error| Failure::io("cannot start a thread", error))?
        };
        let mut engine = Self {
            requests,
            writer,
            ended,
            thread: Some(thread),
            files: None,
            shared_as: None,
            handles: Mutex::default(),
        };
        engine.files = when_open.await.unwrap_or(Err(Failure::WriterStopped))?;
        Ok(engine)
    }

    pub(crate) fn handle_opened(&self, name: &QueueName) {
        lock(&self.handles).entry(name.clone()).or_default().open += 1;
    }

    /// Deletes an empty queue when its last handle is dropped, so that short-lived reply queues do not pile up. A
    /// queue that was only read stays: reading changes nothing.
    pub(crate) fn handle_dropped(&self, name: &QueueName, used: bool) {
        let mut handles = lock(&self.handles);
        let Some(of_queue) = handles.get_mut(name) else { return };
        of_queue.open -= 1;
        of_queue.used |= used;
        if of_queue.open == 0 {
            let used = of_queue.used;
            handles.remove(name);
            if used {
                self.requests.push(Request { queue: name.clone(), op: Op::Forget });
            }
        }
    }
}

impl SharedEngine {
    /// Adds a session, if the engine runs.
    fn join(&mut self) -> Option<Arc<Engine>> {
        let engine = self.engine.upgrade().filter(|engine| !engine.ended.is_closed())?;
        self.sessions += 1;
        Some(engine)
    }
}

impl Drop for Engine {
    /// Closes the request queue and waits for the thread, which executes the remaining requests and closes the file.
    fn drop(&mut self) {
        self.requests.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("shared_as", &self.shared_as).finish_non_exhaustive()
    }
}

/// Reports the end of the thread, whether it returns or panics.
struct CloseOnDrop {
    ended: Arc<Gate>,
    writer: Arc<SharedWriter>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.writer.abandon();
        self.ended.close();
    }
}

fn engine_key(options: &SqliteOptions) -> Option<EngineKey> {
    let path = options.path.as_deref()?;
    Some((TrackedFile::of(path).ok()?, options.synchronous))
}
