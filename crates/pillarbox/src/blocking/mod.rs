//! Mailboxes for plain threads: the same contract, without async.
//!
//! Every method blocks until the async method of the same name is done. A waiting receive blocks its thread until a
//! message is ready, the wait is over or the mailbox is closed.
//!
//! ```
//! use std::time::Duration;
//! use pillarbox::blocking::{self, Mailbox};
//! use pillarbox::Receive;
//!
//! # fn main() -> pillarbox::Result<()> {
//! let backend = blocking::open("memory:")?;
//! let jobs: Mailbox<String> = backend.mailbox("jobs")?;
//!
//! let consumer = std::thread::spawn({
//!     let jobs = jobs.clone();
//!     move || -> pillarbox::Result<String> {
//!         let batch = jobs.receive(Receive::one().wait(Duration::from_secs(20)))?;
//!         let message = batch.into_iter().next().expect("a message within 20 s");
//!         let body = message.body().clone();
//!         message.acknowledge()?;
//!         Ok(body)
//!     }
//! });
//! jobs.send(&"sweep the floor".to_owned())?;
//! assert_eq!(consumer.join().expect("no panic")?, "sweep the floor");
//! # Ok(()) }
//! ```
//!
//! # Threads
//!
//! [`open`] starts one background thread, which drives timers and connections; calls run on the calling threads. All
//! handles of the backend share the thread: mailboxes, batches and messages. When the last handle is dropped, the
//! backend is closed and the thread is joined.
//!
//! To stop a waiting thread, [close](Mailbox::close) the mailbox from another: the receive fails with
//! [`Error::Closed`](crate::Error::Closed). If a thread panics or a process dies during a call, its messages are
//! delivered again when their leases expire, as with any receiver.
//!
//! # In async programs
//!
//! | called on | |
//! |---|---|
//! | a plain thread, or in `tokio::task::spawn_blocking` | waits |
//! | a worker of a multi-thread Tokio runtime | waits, as in `tokio::task::block_in_place`: other tasks continue on other threads |
//! | the thread that drives a current-thread Tokio runtime | fails with [`Error::InvalidParameter`](crate::Error::InvalidParameter), since the runtime would be blocked |
//!
//! Handles may be dropped on any thread. On a thread of a runtime, the background thread is not joined but ends by
//! itself. A thread that drives tasks of other runtimes, or of a `LocalSet`, is not recognized: its tasks are blocked
//! meanwhile.

mod engine;
mod mailbox;
mod mailboxes;
mod message;

pub use self::mailbox::Mailbox;
pub use self::mailboxes::{MailboxBuilder, Mailboxes};
pub use self::message::{Batch, Message, Undecodable};

use pillarbox_core::Result;

use self::engine::Engine;

/// Opens the backend at a URL, as [`pillarbox::open`](crate::open) does.
///
/// ```
/// let backend = pillarbox::blocking::open("memory:")?;
/// assert_eq!(backend.capabilities().backend, "memory");
/// # Ok::<(), pillarbox::Error>(())
/// ```
pub fn open(url: &str) -> Result<Mailboxes> {
    open_with(crate::open(url))
}

/// Opens the backend at a URL without creating anything, as [`pillarbox::open_existing`](crate::open_existing) does.
pub fn open_existing(url: &str) -> Result<Mailboxes> {
    open_with(crate::open_existing(url))
}

/// Opens a backend by a future, which runs in the runtime of the background thread.
///
/// ```
/// use pillarbox::{Mailboxes, MemoryBackend, blocking};
///
/// let backend = blocking::open_with(async { Ok(Mailboxes::new(MemoryBackend::new())) })?;
/// # Ok::<(), pillarbox::Error>(())
/// ```
///
/// The future must open the backend itself, since a backend that was opened before depends on another runtime.
pub fn open_with(
    open: impl Future<Output = Result<pillarbox_core::Mailboxes>>,
) -> Result<Mailboxes> {
    Engine::open(open).map(Mailboxes::new)
}
