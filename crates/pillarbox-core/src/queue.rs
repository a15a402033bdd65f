//! The traits of a backend: [`Queue`] and [`Backend`].
//!
//! They work on bytes and batches. Users hold a [`Mailbox`](crate::Mailbox) instead, which adds types. It is
//! built on these two traits alone, and so is every test double.

use std::fmt;
use std::sync::Arc;

use crate::capabilities::expect_len;
use crate::error::Result;
use crate::future::{BoxFuture, OperationFuture};
use crate::message::{Cursor, Delivery, Outgoing, PeekPage, Sent};
use crate::options::{Partitions, QueueOptions, Receive, Redrive};
use crate::settle::Settle;
use crate::{Capabilities, Counts, Diagnosis, QueueName};

/// One queue of a backend, on the level of bytes and batches.
///
/// `docs/design.md` states the contract that each method keeps, and `pillarbox-testing` has a test for each
/// rule, which a backend runs by one macro call. In short:
///
/// * The outer error of a batch means that nothing is known about any entry. The inner results report the
///   outcome of each entry, in the order given.
/// * Batches are atomic per entry, not as a whole.
/// * Parameters outside the [`Capabilities`] are refused, never clamped: use the `check_` methods there.
/// * Dropping a future leaves no message in flight without a receiver.
pub trait Queue: fmt::Debug + Send + Sync + 'static {
    /// Returns the name that the queue was opened with.
    fn name(&self) -> &QueueName;

    /// Returns the capabilities and limits of the backend.
    fn capabilities(&self) -> &Capabilities;

    /// Stores messages. A message whose id the queue already holds is not stored again, and its send
    /// succeeds; [`Sent::is_new`] distinguishes the two.
    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>>;

    /// Stores one message. Does the same as [`send`](Self::send) with a batch of one, which is the default.
    ///
    /// A backend that can store a message at once may do so in the call: it may be stored although the future is
    /// dropped without being polled.
    fn send_one(&self, message: Outgoing) -> OperationFuture<'_, Result<Sent>> {
        OperationFuture::boxed(async { single(self.send(vec![message]).await) })
    }

    /// Delivers at most `request.max` ready messages and starts a lease on each.
    ///
    /// Returns as soon as one message is ready; waits for it at most `request.wait`.
    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>>;

    /// Ends or extends leases, each only if its receipt is current and the lease has not expired.
    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>>;

    /// Ends or extends one lease. Does the same as [`settle`](Self::settle) with a batch of one, which is the
    /// default.
    ///
    /// A backend that can settle at once may do so in the call, before the future is polled.
    fn settle_one(&self, settle: Settle) -> OperationFuture<'_, Result<()>> {
        OperationFuture::boxed(async { single(self.settle(vec![settle]).await) })
    }

    /// Returns at most `max` messages without delivering them: the ready ones in order of delivery, then the
    /// others in the order in which they will become ready; from the first message, or from `after`, the end
    /// of an earlier page. A page may have fewer messages than `max` and not be the last, if they are large:
    /// [`PeekPage::next`] says where the next one begins.
    ///
    /// If its storage is damaged, a backend may return what it can read, in any order, and describe what it
    /// cannot read in [`PeekPage::unreadable`].
    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>>;

    /// Counts the messages by state, and those ever stored if the backend counts them.
    fn counts(&self) -> BoxFuture<'_, Result<Counts>>;

    /// Deletes all messages, invalidates every earlier receipt, and returns the number of messages deleted.
    fn purge(&self) -> BoxFuture<'_, Result<u64>>;

    /// Closes this handle: waiting receives end, and every later call fails with
    /// [`Closed`](crate::Error::Closed). Messages and other handles are not affected.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Returns whether this handle is closed.
    fn is_closed(&self) -> bool;
}

/// Returns the result of a batch of one entry.
fn single<T>(results: Result<Vec<Result<T>>>) -> Result<T> {
    let mut results = expect_len(results?, 1)?;
    results.remove(0)
}

/// An open connection to a storage that holds queues.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the capabilities and limits of the backend.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a queue, which is created when it is first used.
    ///
    /// Does no I/O: opening is cheap, and the first operation reports a server that is unreachable.
    /// [`Mailboxes`](crate::Mailboxes) has checked the name and the options against the capabilities.
    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>>;

    /// Opens the queue at a reply address. By default an address is the name of a queue; a backend may accept
    /// other forms too, such as URLs.
    fn queue_at(&self, address: &str) -> Result<Arc<dyn Queue>> {
        let name = QueueName::new(address)?;
        self.capabilities().check_name(&name)?;
        self.queue(&name, QueueOptions::new())
    }

    /// Returns the name of the queue that dead letters of `source` go to by default: `{source}-dlq`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) if that is too long for a name.
    fn dead_letter_name(&self, source: &QueueName) -> Result<QueueName> {
        format!("{source}-dlq").parse()
    }

    /// Returns whether a queue is named like those that dead letters go to
    /// [by default](Self::dead_letter_name).
    fn is_dead_letter_name(&self, name: &QueueName) -> bool {
        name.as_str().ends_with("-dlq")
    }

    /// Lists the queues that hold messages, and others that the backend knows, in order of name. Fails with
    /// [`Closed`](crate::Error::Closed) once the backend is closed.
    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>>;

    /// Returns the partitions of a queue.
    ///
    /// A backend without partitions need not implement this method or the next one.
    fn partitions<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Partitions>> {
        let _ = queue;
        Box::pin(async { Ok(Partitions::SINGLE) })
    }

    /// Sets the number of partitions of a queue, which may be in use meanwhile, and returns the result.
    ///
    /// Messages stay where they are: if the number is reduced, the surplus partitions are received from until
    /// they are empty.
    fn set_partitions<'a>(
        &'a self,
        queue: &'a QueueName,
        partitions: u32,
    ) -> BoxFuture<'a, Result<Partitions>> {
        Box::pin(async move {
            self.capabilities().check_partitions(queue, partitions)?;
            self.partitions(queue).await
        })
    }

    /// Returns the rule by which the backend itself moves messages of a queue after too many deliveries.
    /// `None`: there is no such rule.
    ///
    /// A backend without [`Capabilities::redrive`] need not implement this method or the next one.
    fn redrive<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Option<Redrive>>> {
        let _ = queue;
        Box::pin(async { Ok(None) })
    }

    /// Sets or removes the rule by which the backend itself moves messages of a queue after too many
    /// deliveries.
    fn set_redrive<'a>(
        &'a self,
        queue: &'a QueueName,
        redrive: Option<Redrive>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.capabilities().check_redrive(queue, redrive.as_ref()) })
    }

    /// Looks for problems, and fixes those that it can if `repair` is set.
    ///
    /// May take long and read everything, but blocks no other call except during a repair. No repair deletes
    /// a message.
    ///
    /// A backend that has nothing to look at returns [`Diagnosis::of`] its capabilities. Fails with
    /// [`Closed`](crate::Error::Closed) once the backend is closed.
    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>>;

    /// Closes every queue that was opened through this handle.
    fn close(&self) -> BoxFuture<'_, ()>;
}
