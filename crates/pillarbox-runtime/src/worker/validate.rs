//! Refuses options that cannot work, before any message is received.

use std::time::Duration;

use pillarbox_core::{Error, Queue, QueueName, Receive, Result};

use super::options::{MAX_WAITING, MailboxOptions, PoolOptions};
use crate::control::MAX_WORKERS;

impl PoolOptions {
    pub(super) fn validate(&self, workers: usize) -> Result<()> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        in_range("workers", workers, 1, MAX_WORKERS)?;
        in_range("prefetch", self.prefetch, 0, MAX_WAITING)?;
        in_range("result_buffer", self.result_buffer, 1, MAX_WAITING)?;
        in_range("producer_buffer", self.producer_buffer, 1, MAX_WAITING)?;
        at_least(None, "dequeue_backoff", self.dequeue_backoff, 1)?;
        at_least(None, "call_timeout", self.call_timeout, 10)?;
        if let Some(every) = self.depth_every {
            at_least(None, "depth_every", every, 100)?;
        }
        Ok(())
    }
}

impl MailboxOptions {
    pub(super) fn validate(&self, queue: &dyn Queue) -> Result<()> {
        let name = Some(queue.name());
        let request = Receive::one().visibility(self.visibility);
        queue.capabilities().check_receive(queue.name(), &request)?;
        // Leases are extended while a handler runs, which takes some time.
        at_least(name, "visibility", self.visibility, 10)?;
        at_least(name, "poll", self.poll, 100)?;
        at_least(name, "park_for", self.park, 100)?;
        let zero = |what| Err(Error::invalid(name, what, "0", "at least 1"));
        if self.max_deliveries == 0 {
            return zero("max_deliveries");
        }
        if self.weight == 0 {
            return zero("weight");
        }
        if self.quarantine_after == Some(0) {
            return zero("quarantine_after");
        }
        let needs_dead_letters = |what| {
            let allowed = "only with Worker::dead_letters";
            Err(Error::invalid(name, what, "without dead_letters", allowed))
        };
        if self.has_error_reply && self.dead_letters.is_none() {
            return needs_dead_letters("error_reply");
        }
        if self.hooks.has_on_dead_letter() && self.dead_letters.is_none() {
            return needs_dead_letters("on_dead_letter");
        }
        let limits = [self.stack.concurrency_limit, self.stack.buffer];
        for limit in limits.into_iter().flatten() {
            in_range("a limit of the stack", limit, 1, MAX_WAITING)?;
        }
        Ok(())
    }
}

fn in_range(what: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(None, what, value.to_string(), format!("{min} to {max}")))
}

fn at_least(
    queue: Option<&QueueName>,
    what: &'static str,
    value: Duration,
    millis: u64,
) -> Result<()> {
    if value >= Duration::from_millis(millis) {
        return Ok(());
    }
    Err(Error::invalid(queue, what, format!("{value:?}"), format!("at least {millis} ms")))
}
