//! Mailboxes for plain threads: the same contract, without async.
//!
//! Every method does what the one of the same name in the async API does, and returns when it is done. A receive
//! that waits blocks its thread until a message comes, its wait is over or the mailbox is closed.
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
//! [`open`] starts one background thread, which drives timers and connections; calls run on the threads that
//! make them. All handles of the opened backend share it: mailboxes, batches and messages. When the last of
//! them goes, the backend is closed and the thread is ended and joined.
//!
//! To stop a thread that waits, [close](Mailbox::close) the mailbox from another: the receive fails with
//! [`Error::Closed`](crate::Error::Closed). A thread that panics in a call, or a process that dies in one, leaves
//! behind what any receiver does: messages under leases that end.
//!
//! # In async programs
//!
//! | called on | |
//! |---|---|
//! | a plain thread, or in `tokio::task::spawn_blocking` | waits |
//! | a worker of a multi-thread Tokio runtime | waits, as within `tokio::task::block_in_place`: other tasks go on elsewhere |
//! | the thread that drives a current-thread Tokio runtime | fails with [`Error::InvalidParameter`](crate::Error::InvalidParameter): the runtime would stand still |
//!
//! Handles may be dropped anywhere. On the thread of a runtime the background thread is not joined; it ends by itself.
//! A thread that drives tasks of other runtimes, or of a `LocalSet`, is not recognised: its tasks wait with it.

mod engine;
mod mailbox;
mod mailboxes;
mod message;

pub use self::mailbox::Mailbox;
pub use self::mailboxes::{MailboxBuilder, Mailboxes};
pub use self::message::{Batch, Message, Undecodable};

use pillarbox_core::Result;

use self::engine::Engine;

/// Opens the backend that a URL names, as [`pillarbox::open`](crate::open) does.
///
/// ```
/// let backend = pillarbox::blocking::open("memory:")?;
/// assert_eq!(backend.capabilities().backend, "memory");
/// # Ok::<(), pillarbox::Error>(())
/// ```
pub fn open(url: &str) -> Result<Mailboxes> {
    open_with(crate::open(url))
}

/// Opens the backend that a URL names, and makes nothing, as
/// [`pillarbox::open_existing`](crate::open_existing) does.
pub fn open_existing(url: &str) -> Result<Mailboxes> {
    open_with(crate::open_existing(url))
}

/// Opens a backend that is set up by hand. The future runs within the runtime of the background thread.
///
/// ```
/// use pillarbox::{Mailboxes, MemoryBackend, blocking};
///
/// let backend = blocking::open_with(async { Ok(Mailboxes::new(MemoryBackend::new())) })?;
/// # Ok::<(), pillarbox::Error>(())
/// ```
///
/// The future must open the backend itself: one that was opened before depends on another runtime.
pub fn open_with(
    open: impl Future<Output = Result<pillarbox_core::Mailboxes>>,
) -> Result<Mailboxes> {
    Engine::open(open).map(Mailboxes::new)
}
