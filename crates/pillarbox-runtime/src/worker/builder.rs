//! The options of a [`Worker`], as a program sets them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pillarbox_core::{Counts, Error, MessageId, Queue, QueueName};

use super::Worker;
use crate::backoff::Backoff;
use crate::control::Control;
use crate::dead_letters::{DeadLetter, DlqPolicy};
use crate::hooks::FailedAttempt;
use crate::service::ServiceStackOptions;
use crate::trace::Tracer;

/// Options, which can be set before and after the handler.
impl<T: 'static, R: 'static, C, S> Worker<T, R, C, S> {
    /// Sets the number of workers, which is the number of messages handled concurrently. Defaults to 4.
    /// [`Control::set_workers`] changes it later.
    pub fn workers(self, workers: usize) -> Self {
        self.channels.state.desired.send_modify(|desired| desired.workers = workers);
        self
    }

    /// Sets the largest number of messages that may wait in this process until a worker is free. Defaults to 256.
    ///
    /// The pool measures how long a fetch and a handler take, and prefetches what its workers will begin within about
    /// one fetch: many messages if handlers are short, none if they are slow, so that no message waits here while
    /// another process is idle. With 0, only messages that can begin at once are received.
    ///
    /// A pool of several mailboxes may also hold one message of each mailbox that was empty, for a second at most.
    pub fn prefetch(mut self, max: usize) -> Self {
        self.pool.prefetch = max;
        self
    }

    /// Sets the number of finished messages that may wait to be settled before no more are received. Defaults to
    /// 128.
    pub fn result_buffer(mut self, messages: usize) -> Self {
        self.pool.result_buffer = messages;
        self
    }

    /// Sets the number of messages of [producers](crate::ProducerHandle) that may wait to be sent; a send beyond
    /// that waits until there is room. Defaults to 128. A message waits while an earlier call to the same queue is
    /// under way; then all that wait for that queue go in one call, up to the batch size of its backend.
    pub fn producer_buffer(mut self, messages: usize) -> Self {
        self.pool.producer_buffer = messages;
        self
    }

    /// Sets the duration of a lease. It is extended after a third of it. If the process dies, other consumers get
    /// the message after at most this time. Defaults to 30 seconds.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.options.visibility = visibility;
        self
    }

    /// Sets the time that one receive waits for messages. Defaults to 20 seconds. A message that arrives is
    /// received at once, whatever this time is.
    pub fn poll(mut self, wait: Duration) -> Self {
        self.options.poll = wait;
        self
    }

    /// Sets the share of this mailbox in the workers, if they serve [others](Worker::and) as well: while both have
    /// messages, a mailbox of weight 3 gets three times as many of its messages handled as one of weight 1.
    /// Defaults to 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.options.weight = weight;
        self
    }

    /// Sets the timeout of handlers. A handler that exceeds it has failed, and is cancelled at its next await; one
    /// that blocks its thread cannot be cancelled. Defaults to 30 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.stack.timeout = Some(timeout);
        self.options.is_limited_by_lease = false;
        self
    }

    /// Removes the timeout of handlers.
    pub fn without_timeout(mut self) -> Self {
        self.options.stack.timeout = None;
        self.options.is_limited_by_lease = false;
        self
    }

    /// Makes the [visibility](Self::visibility) the timeout of handlers, until another timeout is set.
    pub(crate) fn timeout_by_lease(mut self) -> Self {
        self.options.is_limited_by_lease = true;
        self
    }

    /// Sets the layers around the handler, which are the timeout alone by default. All workers share them.
    pub fn stack(mut self, options: ServiceStackOptions) -> Self {
        self.options.stack = options;
        self.options.is_limited_by_lease = false;
        self
    }

    /// Sets the number of deliveries after which a message that fails is not retried: it becomes a
    /// [dead letter](Self::dead_letters) or is [parked](Self::park_for). Deliveries that were no attempts, such as
    /// released ones, do not count. Defaults to 5.
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.options.max_deliveries = deliveries;
        self
    }

    /// Sets the delay before a message that failed is retried. Defaults to `min(60 × attempt, 900)` seconds.
    pub fn retry(mut self, backoff: Backoff) -> Self {
        self.options.backoff = backoff;
        self
    }

    /// Stores messages that are not retried as dead letters: those that have failed too often, that were rejected,
    /// that cannot be decoded, or that are [quarantined](Self::quarantine_after).
    pub fn dead_letters(mut self, policy: DlqPolicy) -> Self {
        self.options.dead_letters = Some(policy);
        self
    }

    /// Replies to a message that became a dead letter, if it has a reply address, with what the function makes of
    /// the dead letter. The reply is sent once the dead letter is stored, and never for a failure that is retried.
    /// An error without [`dead_letters`](Self::dead_letters).
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Receive, SendOptions};
    /// # use pillarbox_runtime::{Outcome, Runnable, Worker};
    /// # use pillarbox_runtime::dead_letters::DlqPolicy;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// type Answer = Result<u64, String>;
    ///
    /// let sums: Mailbox<u64, Answer> = backend.builder("sums").allow_reply_to("answers").open()?;
    /// let answers: Mailbox<Answer> = backend.mailbox("answers")?;
    /// sums.send_with(&1, SendOptions::new().reply_to("answers")).await?;
    /// Worker::new(sums)
    ///     .dead_letters(DlqPolicy::new())
    ///     .error_reply(|letter| Err(format!("after {} attempts: {}", letter.delivery_count, letter.last_error)))
    ///     .handler(|_: u64| async { Outcome::reject("no sums today") })
    ///     .run_until_empty()
    ///     .await?;
    /// let answer = answers.receive(Receive::one()).await?.into_iter().next().unwrap();
    /// assert_eq!(answer.body(), &Err("after 1 attempts: no sums today".to_owned()));
    /// # Ok(()) }
    /// ```
    pub fn error_reply(mut self, reply: impl Fn(&DeadLetter) -> R + Send + Sync + 'static) -> Self {
        self.error_reply = Some(Arc::new(move |letter| (None, reply(letter))));
        self.options.has_error_reply = true;
        self
    }

    /// Calls a function for each attempt that fails, before its message is settled. Several are called in order.
    ///
    /// Unlike [events](Control::events), none is missed: the message waits until the function has returned, and
    /// its lease is extended meanwhile. So a function that takes long, or blocks, delays its message and the worker
    /// that has it, and nothing else: it is called on a blocking thread. A panic is logged and has no other effect.
    ///
    /// Each failure is reported at least once: if the process ends before the message is settled, the message is
    /// delivered again, and its next failure is reported as well. A message that is
    /// [quarantined](Self::quarantine_after) is reported with its dead letter, since no handler ran. A request that
    /// a [`MainLoop`](crate::loops::MainLoop) without dead letters answers with an error is no failure of its worker.
    ///
    /// A handler that failed after it had committed its acknowledgement in a transaction may be reported as
    /// [terminal](FailedAttempt::terminal), although its message is done and there will be no dead letter.
    ///
    /// The function gets a [`FailedAttempt`] after the decision what becomes of the message. The decision itself is
    /// up to [`DlqPolicy::decide`], which gets a [`FailedDelivery`](crate::dead_letters::FailedDelivery).
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{Runnable, Worker};
    /// # use pillarbox_runtime::dead_letters::DlqPolicy;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// # let jobs: Mailbox<u32> = Mailboxes::new(MemoryBackend::new()).mailbox("jobs")?;
    /// # jobs.send(&7).await?;
    /// let (pager, pages) = std::sync::mpsc::channel();
    /// Worker::new(jobs)
    ///     .max_deliveries(1)
    ///     .dead_letters(DlqPolicy::new())
    ///     .on_failure(|failed| eprintln!("{}: {}", failed.about.message_id, failed.error))
    ///     .on_dead_letter(move |letter, to| drop(pager.send(format!("{to}: {}", letter.last_error))))
    ///     .handler(|_: u32| async { Err::<(), _>("out of paper") })
    ///     .run_until_empty()
    ///     .await?;
    /// assert_eq!(pages.recv().unwrap(), "jobs-dlq: out of paper");
    /// # Ok(()) }
    /// ```
    pub fn on_failure(mut self, hook: impl Fn(&FailedAttempt) + Send + Sync + 'static) -> Self {
        self.options.hooks.add_on_failure(hook);
        self
    }

    /// Calls a function for each dead letter, with the queue that it is in: after the dead letter is stored and the
    /// error reply is sent, and before its message is acknowledged. Several are called in order.
    ///
    /// As with [`on_failure`](Self::on_failure), none is missed, the message waits, and a panic is only logged. If
    /// the process ends before the message is acknowledged, it is called again for the same dead letter. An error
    /// without [`dead_letters`](Self::dead_letters).
    pub fn on_dead_letter(
        mut self,
        hook: impl Fn(&DeadLetter, &QueueName) + Send + Sync + 'static,
    ) -> Self {
        self.options.hooks.add_on_dead_letter(hook);
        self
    }

    /// Removes the policy for dead letters.
    pub(crate) fn without_dead_letters(mut self) -> Self {
        self.options.dead_letters = None;
        self
    }

    /// Sets the error reply together with its id.
    pub(crate) fn error_reply_with_id(
        mut self,
        reply: impl Fn(&DeadLetter) -> (MessageId, R) + Send + Sync + 'static,
    ) -> Self {
        self.error_reply = Some(Arc::new(move |letter| {
            let (id, reply) = reply(letter);
            (Some(id), reply)
        }));
        self
    }

    pub(crate) const fn has_dead_letters(&self) -> bool {
        self.options.dead_letters.is_some()
    }

    /// Sets the number of unsettled deliveries after which a message is quarantined: it becomes a
    /// [dead letter](Self::dead_letters) without being run again. Such a message crashes the process whenever it is
    /// handled, so no handler ever reports a failure. Defaults to [`max_deliveries`](Self::max_deliveries), but at
    /// least 3.
    ///
    /// Only deliveries that a handler started on and that nobody settled count. They are counted for every message
    /// that was in flight when the process died, so after the second one each of these messages is handled alone,
    /// while nothing else is in flight; those that do not crash the process pass. With 1 or 2 there is no such
    /// trial: all messages that were in flight when a process died once, or twice, become dead letters. A message
    /// whose handler ends, successfully or not, is cleared of what was counted until then, as far as this process
    /// knows. For a backend that does not count unsettled deliveries
    /// ([`counts_unsettled`](pillarbox_core::Capabilities::counts_unsettled)), the number of deliveries is used,
    /// with a margin of ten.
    pub fn quarantine_after(mut self, deliveries: u32) -> Self {
        self.options.quarantine_after = Some(deliveries);
        self
    }

    /// Sets the delay of a message that cannot be handled here: one of an unknown kind, or one that is not retried
    /// and for which there is no policy for [dead letters](Self::dead_letters). It stays in its queue and is
    /// delivered again after the delay. Defaults to 15 minutes.
    pub fn park_for(mut self, time: Duration) -> Self {
        self.options.park = time;
        self
    }

    /// Extends the lease of a running handler only while it calls [`beat`](crate::handler::Heartbeat::beat) at least once in
    /// a third of the [visibility](Self::visibility). A handler that stops beating loses its message to another
    /// consumer when the lease expires.
    pub fn extend_while_beating(mut self) -> Self {
        self.options.extend_while_beating = true;
        self
    }

    /// Cancels a handler whose lease was lost, at its next await. By default it is only
    /// [notified](crate::handler::Heartbeat::lost).
    pub fn cancel_when_lost(mut self) -> Self {
        self.options.cancel_when_lost = true;
        self
    }

    /// Sets the time that running handlers have to finish after a stop. After that they are cancelled and their
    /// messages are released. Defaults to 30 seconds.
    pub fn drain_for(self, time: Duration) -> Self {
        self.channels.state.desired.send_modify(|desired| desired.drain = time);
        self
    }

    /// Sets the delay after a receive that failed; it doubles with each failure, up to 5 seconds. Defaults to 50
    /// milliseconds. An empty queue is waited for and needs no delay.
    pub fn dequeue_backoff(mut self, backoff: Duration) -> Self {
        self.pool.dequeue_backoff = backoff;
        self
    }

    /// Sets the timeout of a call of a queue, in addition to the time for which a receive waits for messages.
    /// Defaults to 10 seconds.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.pool.call_timeout = timeout;
        self
    }

    /// Sets the interval at which the messages of the queues are counted, for the stats and the metrics. By default
    /// they are not counted.
    pub fn depth_every(mut self, interval: Duration) -> Self {
        self.pool.depth_every = Some(interval);
        self
    }

    /// Sets the name of the pool in metrics and logs. Defaults to the name of its first queue.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.pool.name = Some(name.into());
        self
    }

    /// Connects the spans of deliveries to those of senders, by a tracing system.
    pub fn tracer(self, tracer: impl Tracer) -> Self {
        // The first one counts.
        let _ = self.channels.state.tracer.set(Arc::new(tracer));
        self
    }

    /// Leaves signals alone. By default, [`run`](crate::Runnable::run) handles SIGTERM and SIGINT.
    pub fn without_signals(self) -> Self {
        self.channels.state.run.leaves_signals_alone.store(true, Ordering::Relaxed);
        self
    }

    /// Runs a future when everything is settled and the workers have ended, before [`run`](crate::Runnable::run)
    /// returns. Several run in order.
    pub fn on_shutdown<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        self.pool.on_shutdown.push(Box::new(move || Box::pin(hook())));
        self
    }

    /// Runs a future beside the workers. It must not end.
    pub(crate) fn beside(mut self, work: impl Future<Output = ()> + Send + 'static) -> Self {
        self.pool.beside.push(Box::pin(work));
        self
    }

    /// Sets which of the ready messages are still to be handled, for
    /// [`run_until_empty`](crate::Runnable::run_until_empty).
    pub(crate) fn count_ready(
        self,
        count: impl Fn(&Counts) -> u64 + Send + Sync + 'static,
    ) -> Self {
        let _ = self.channels.state.run.count_ready.set(Box::new(count));
        self
    }

    /// Receives from and settles on this wrapper of the mailbox's queue.
    pub(crate) fn receive_from(mut self, queue: Arc<dyn Queue>) -> Self {
        self.options.receive_from = Some(queue);
        self
    }

    /// Fails when it is run, with an error of something that is not an option of the worker.
    pub(crate) fn refused(mut self, error: Error) -> Self {
        self.pool.refused = Some(error);
        self
    }

    /// Returns the name of the pool.
    pub(crate) fn pool_name(&self) -> String {
        self.pool.name.clone().unwrap_or_else(|| self.mailbox.name().to_string())
    }

    /// Returns a handle that controls the workers. Works before they run as well.
    pub fn control(&self) -> Control {
        Control::new(self.channels.state.clone())
    }
}
