//! The threads of a file, and who shares them.
//!
//! All that open the same file in one process share an [`Engine`]: one writer, one connection. Each
//! `open` makes a [`Session`], which the backend and its queues hold; with the last session of an
//! engine, its threads end and the file is closed.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use pillarbox_core::{Clock, Gate, QueueName, Result};
use tokio::sync::oneshot;

use crate::clock::WallClock;
use crate::failure::Failure;
use crate::file::{Located, Pair};
use crate::inbox::{Inbox, Op, Request};
use crate::options::{SqliteOptions, Synchronous};
use crate::sync::Syncer;
use crate::{file, writer};

/// What a backend and its queues share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) gate: Arc<Gate>,
    /// Whether the engine was told that this session needs it no more.
    left: AtomicBool,
}

impl Session {
    pub(crate) async fn open(
        options: SqliteOptions,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, Failure> {
        let engine = Engine::open(options, clock).await?;
        Ok(Self { engine, gate: Arc::new(Gate::new()), left: AtomicBool::new(false) })
    }

    /// Puts a question to the writer and waits for the answer.
    pub(crate) async fn ask<A>(
        &self,
        request: Request,
        answer: oneshot::Receiver<Result<A, Failure>>,
    ) -> Result<A, Failure> {
        self.engine.inbox.send(request).await?;
        answer.await.unwrap_or(Err(Failure::WriterGone))
    }

    /// Lets go of the engine, which ends with the last to do so.
    pub(crate) fn leave(&self) {
        if !self.left.swap(true, Ordering::AcqRel) {
            self.engine.leave();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The thread that writes one file, as all who use it in this process know it.
pub(crate) struct Engine {
    pub(crate) inbox: Arc<Inbox>,
    /// Closed when the thread has ended.
    pub(crate) ended: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
    /// The file that was opened, and its log. `None`: in memory.
    pub(crate) pair: Option<Pair>,
    /// Under which it can be found; `None` where it is private.
    shared_as: Option<Name>,
    handles: Mutex<HashMap<QueueName, Handles>>,
}

/// The handles of a queue that this process has open.
#[derive(Debug, Default)]
struct Handles {
    open: usize,
    /// Whether one of them did more than look.
    used: bool,
}

/// The same file, with the same promise.
type Name = (Located, Synchronous);

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

    /// Ends a session. With the last one the engine ends.
    fn leave(&self) {
        if let Some(name) = &self.shared_as {
            let mut engines = lock(&ENGINES);
            if let Some(running) = engines.get_mut(name)
                && std::ptr::eq(running.engine.as_ptr(), self)
            {
                running.sessions -= 1;
                if running.sessions > 0 {
                    return;
                }
                engines.remove(name);
            }
        }
        self.inbox.close();
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
                let ready =
                    file::open(&options, &|| inbox.is_closed()).and_then(|(connection, place)| {
                        let log = match options.synchronous {
                            Synchronous::Full => place.log()?,
                            Synchronous::Normal => None,
                        };
                        let syncer = Syncer::start(log, place.pair().cloned(), inbox.clone())?;
                        Ok((connection, place, syncer))
                    });
                match ready {
                    Ok((connection, place, syncer)) => {
                        if opened.send(Ok(place.pair().cloned())).is_ok() {
                            writer::run(&connection, &place, &inbox, &*clock, &syncer);
                        }
                        // Its last answers are given before the file is closed.
                        drop(syncer);
                        place.before_close(&connection);
                        drop(connection);
                    }
                    // Nobody waits for it any more where this fails.
                    Err(failure) => drop(opened.send(Err(failure))),
                }
            };
            let thread = std::thread::Builder::new().name("pillarbox-sqlite".into());
            thread.spawn(body).map_err(|error| Failure::io("cannot start a thread", error))?
        };
        let mut engine = Self {
            inbox,
            ended,
            thread: Some(thread),
            pair: None,
            shared_as: None,
            handles: Mutex::default(),
        };
        engine.pair = is_open.await.unwrap_or(Err(Failure::WriterGone))?;
        Ok(engine)
    }

    pub(crate) fn handle_opened(&self, name: &QueueName) {
        lock(&self.handles).entry(name.clone()).or_default().open += 1;
    }

    /// Forgets a queue that holds nothing when its last handle goes, so that short-lived reply
    /// queues do not pile up. Not if it was only looked at: looking changes nothing.
    pub(crate) fn handle_dropped(&self, name: &QueueName, used: bool) {
        let mut handles = lock(&self.handles);
        let Some(of_queue) = handles.get_mut(name) else { return };
        of_queue.open -= 1;
        of_queue.used |= used;
        if of_queue.open == 0 {
            let used = of_queue.used;
            handles.remove(name);
            if used {
                self.inbox.put(Request { queue: name.clone(), op: Op::Forget });
            }
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
    Some((Located::of(path).ok()?, options.synchronous))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
