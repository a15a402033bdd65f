//! Sends and acknowledges inside a transaction of the caller.
//!
//! A program that stores its data in the same file can change it and send, or change it and acknowledge, in one
//! transaction: both happen or neither does, whatever is killed when. There is no outbox to drain, and no moment at
//! which the work is done and the message still in the queue.
//!
//! ```
//! use pillarbox_core::{Mailbox, Mailboxes, Receive, SendOptions};
//! use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
//! use pillarbox_sqlite::{SqliteBackend, SqliteOptions, transaction};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("shop.db");
//! let backend = Mailboxes::new(SqliteBackend::open(SqliteOptions::new(&path)).await?);
//! let invoices: Mailbox<u64> = backend.mailbox("invoices")?;
//!
//! let mut shop = Connection::open(&path)?;
//! shop.execute_batch("PRAGMA synchronous = FULL; CREATE TABLE orders (id INTEGER, paid INTEGER)")?;
//!
//! // The order and the message that asks for its invoice: both, or neither.
//! let both = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! both.execute("INSERT INTO orders VALUES (4711, 0)", [])?;
//! transaction::send(&both, &invoices, &4711, SendOptions::new())?;
//! both.commit()?;
//!
//! // The invoice is paid and its message is gone: both, or neither.
//! for message in invoices.receive(Receive::one()).await? {
//!     let both = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     both.execute("UPDATE orders SET paid = 1 WHERE id = ?1", [message.body()])?;
//!     transaction::acknowledge(&both, &message)?;
//!     both.commit()?;
//! }
//! assert_eq!(invoices.approximate_count().await?, 0);
//! # Ok(()) }
//! ```
//!
//! # In the handler of a worker
//!
//! The handler of a `Worker` has no [`Message`](pillarbox_core::Message); it passes its `Metadata`, which is a [`Leased`] delivery as well:
//!
//! ```
//! use pillarbox_core::Leased;
//! use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
//! use pillarbox_sqlite::transaction;
//!
//! type Error = Box<dyn std::error::Error + Send + Sync>;
//!
//! /// Marks an order as paid and acknowledges its message: both, or neither.
//! fn pay(shop: &mut Connection, order: u64, delivery: &impl Leased) -> Result<(), Error> {
//!     let both = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     both.execute("UPDATE orders SET paid = 1 WHERE id = ?1", [order])?;
//!     transaction::acknowledge(&both, delivery)?;
//!     Ok(both.commit()?)
//! }
//! ```
//!
//! The handler calls `pay(&mut shop, order, &metadata)?` and returns `Outcome::settled()`, so that nothing more is
//! settled. From the acknowledgement on, the transaction decides. If it commits, the message is done, whatever the
//! handler returns afterwards. If it is rolled back, the handler's outcome counts, except for `settled()`, after which
//! the message is ready again when its lease expires. Tasks that outlive the handler cannot acknowledge any more.
//!
//! # Rules
//!
//! * The connection must be to the file that the mailbox is in. This is not checked: on another file with queues, the
//!   message goes to the queue of that name there.
//! * Begin with [`TransactionBehavior::Immediate`]: a deferred transaction that has read before it writes fails with
//!   `SQLITE_BUSY` if another connection has written in between.
//! * Do not await a mailbox while the transaction is open. The mailbox waits for the transaction, and if the
//!   transaction waits for the mailbox, both fail after a minute. Nor send by the producer of a handler. The extension
//!   of the handler's lease waits too, by itself.
//! * The durability of a commit is that of `PRAGMA synchronous` on the connection that commits.
//! * A long transaction keeps every sender and receiver waiting.
//! * `max_size` is a limit of the mailbox handle and is not checked here; nor is whether the handle is closed.
//!
//! [`TransactionBehavior::Immediate`]: rusqlite::TransactionBehavior::Immediate

use pillarbox_core::ledger::Stale;
use pillarbox_core::{
    Capabilities, Error, Leased, Mailbox, MessageId, Outgoing, QueueName, Receipt, Result,
    SendOptions, Sent, Settle, SettleAction, Timestamp,
};
use rusqlite::Transaction;

use crate::backend::IN_FILE;
use crate::failure::{Failure, in_transaction};
use crate::store::Store;

/// Sends a message if and when the transaction commits.
///
/// Fails, and leaves the transaction as it was, if the mailbox is not in SQLite, the file has no queues or the message
/// exceeds the limits.
pub fn send<T: 'static, R: 'static>(
    transaction: &Transaction<'_>,
    mailbox: &Mailbox<T, R>,
    body: &T,
    options: SendOptions,
) -> Result<MessageId> {
    check_backend(mailbox.name(), mailbox.capabilities())?;
    let message = mailbox.encode(body, options)?;
    let id = message.id;
    let mut results = send_all(transaction, mailbox.name(), &[message])?;
    results.pop().map_or(Ok(id), |sent| sent.map(|sent| sent.id))
}

/// Acknowledges a delivery if and when the transaction commits.
///
/// The delivery is a [`Message`](pillarbox_core::Message), which is borrowed, not consumed, because it is still to be
/// settled if the transaction is rolled back; or the `Metadata` of a worker's handler
/// ([above](self#in-the-handler-of-a-worker)).
///
/// Fails with [`Error::ReceiptHandleExpired`] if the lease has ended, and leaves the transaction as it was. Roll it
/// back then: another worker has the message, and will do the work.
pub fn acknowledge(transaction: &Transaction<'_>, delivery: &impl Leased) -> Result<()> {
    let (queue, receipt) = (delivery.queue_name(), delivery.receipt());
    check_backend(queue, delivery.capabilities())?;
    let settle = |store: &mut Store<'_>| {
        store.settle(queue, receipt, SettleAction::Acknowledge).map_err(Failure::from)
    };
    // The acknowledgement is written, so no other connection can write until the transaction has ended.
    with_store(transaction, queue, "settle", settle, |settled| match settled {
        Ok(()) if delivery.acknowledging() => Ok(()),
        _ => Err(stale(queue, receipt)),
    })
}

/// Sends messages to a queue as bytes, and returns for each whether it will be stored.
///
/// The outer error leaves the transaction as it was.
pub fn send_all(
    transaction: &Transaction<'_>,
    queue: &QueueName,
    batch: &[Outgoing],
) -> Result<Vec<Result<Sent>>> {
    let send = |store: &mut Store<'_>| {
        let mut results = Vec::with_capacity(batch.len());
        for message in batch {
            results.push(match IN_FILE.check_outgoing(queue, message) {
                Ok(()) => {
                    // Without a limit, no queue is full.
                    let sent = store.send(queue, std::iter::once((message, None)))?.pop();
                    let is_new = sent.is_none_or(|sent| sent.unwrap_or(false));
                    let id = message.id;
                    Ok(if is_new { Sent::stored(id) } else { Sent::duplicate(id) })
                }
                Err(error) => Err(error),
            });
        }
        Ok(results)
    };
    with_store(transaction, queue, "send", send, Ok)
}

/// Settles deliveries of a queue, and returns the result of each.
///
/// The outer error leaves the transaction as it was.
pub fn settle_all(
    transaction: &Transaction<'_>,
    queue: &QueueName,
    batch: &[Settle],
) -> Result<Vec<Result<()>>> {
    let settle = |store: &mut Store<'_>| {
        let mut results = Vec::with_capacity(batch.len());
        for settle in batch {
            results.push(match IN_FILE.check_settle(queue, settle) {
                Ok(()) => store
                    .settle(queue, &settle.receipt, settle.action)?
                    .map_err(|Stale| stale(queue, &settle.receipt)),
                Err(error) => Err(error),
            });
        }
        Ok(results)
    };
    with_store(transaction, queue, "settle", settle, Ok)
}

fn stale(queue: &QueueName, receipt: &Receipt) -> Error {
    Error::ReceiptHandleExpired { queue: queue.clone(), receipt: receipt.clone() }
}

/// Runs an operation on the store, writes its changes, and turns its result into an answer. An error leaves the
/// transaction as it was.
fn with_store<T, U>(
    transaction: &Transaction<'_>,
    queue: &QueueName,
    action: &'static str,
    run: impl FnOnce(&mut Store<'_>) -> Result<T, Failure>,
    answer: impl FnOnce(T) -> Result<U>,
) -> Result<U> {
    let mut store = Store::new(transaction);
    let failed = |failure| in_transaction(failure).during(action, Some(queue));
    let sql = |sql| transaction.execute_batch(sql).map_err(Failure::from);
    sql("SAVEPOINT pillarbox").map_err(failed)?;
    let written = store.begin(Timestamp::now()).and_then(|()| {
        let result = run(&mut store)?;
        store.flush()?;
        Ok(result)
    });
    let answer = written.map_err(failed).and_then(answer);
    let kept = answer.and_then(|answer| {
        sql("RELEASE pillarbox").map_err(failed)?;
        Ok(answer)
    });
    kept.inspect_err(|_| {
        // If SQLite has rolled back the whole transaction, there is no savepoint to return to.
        let _ = sql("ROLLBACK TO pillarbox; RELEASE pillarbox");
    })
}

/// Refuses a mailbox that cannot join the transaction. A mailbox of another database may support transactions as
/// well, but not this one.
fn check_backend(queue: &QueueName, capabilities: &Capabilities) -> Result<()> {
    if capabilities.transactions && capabilities.backend == IN_FILE.backend {
        return Ok(());
    }
    let location = if capabilities.durable { "" } else { " in memory" };
    let value = format!("one of the {} backend{location}", capabilities.backend);
    Err(Error::invalid(Some(queue), "mailbox", value, "one of the sqlite backend in a file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_of_another_database_cannot_join_though_it_has_transactions() {
        let queue = "jobs".parse().unwrap();
        let mut other = Capabilities::full("postgres");
        other.transactions = true;
        let error = check_backend(&queue, &other).unwrap_err().to_string();
        assert!(error.contains("one of the postgres backend"), "{error}");
        assert!(check_backend(&queue, &IN_FILE).is_ok());
    }
}
