//! Carries out the steps of dead-lettering that the dispatcher asks for: store, reply, run hooks.

use std::sync::{Arc, LazyLock};

use pillarbox_core::{Error, MessageId, Queue, QueueName, Timestamp};

use super::calls::CallResult;
use super::outbox::SendOrigin;
use super::{Driver, MailboxQueues};
use crate::dead_letters::DeadLetter;
use crate::delivery_event::DeadLetterIds;
use crate::dispatcher::{Input, Key, NewDeadLetter, StoredDeadLetter};
use crate::event::About;
use crate::log::DELIVERIES;
use crate::mailbox_service::ErrorReply;
use crate::request::WorkerId;
use crate::worker_task::ServedMailbox;

/// A dead letter whose message is not acknowledged yet.
pub(super) struct DeadLetterInProgress {
    source: usize,
    about: About,
    ids: DeadLetterIds,
    /// The dead letter and its queue, if there are hooks for it.
    for_hooks: Option<(DeadLetter, QueueName)>,
    reply: Option<ErrorReply>,
}

impl DeadLetterInProgress {
    /// Returns the message, and the worker that had it last.
    fn log_ids(&self) -> (MessageId, Option<usize>) {
        (self.about.message_id, self.about.worker_id.map(|id| id.0))
    }
}

impl Driver {
    pub(super) fn store_dead_letter(&mut self, new: NewDeadLetter) {
        let NewDeadLetter { key, source, worker: worker_id, message, attempt, failure, route } =
            new;
        let MailboxQueues { queue, dead_letters, .. } = &self.queues[source];
        let worker = worker_name(&self.settings.name, worker_id);
        let ServedMailbox { policy, hooks, prototype, .. } = &self.pool.mailboxes[source];
        let mut letter =
            DeadLetter::new(queue.name(), &message, &failure, worker, Timestamp::now());
        if policy.rules.is_on_other_backend(route) {
            letter.source_backend = Some(queue.capabilities().backend.to_owned());
        }
        match (dead_letters.get(route), letter.outgoing(message.id)) {
            (Some(dead_letters), Ok(outgoing)) => {
                let reply = prototype.error_reply(&message, &letter).unwrap_or_else(|error| {
                    let (queue, message_id) = (queue.name(), message.id);
                    tracing::warn!(target: DELIVERIES, %queue, %message_id, worker_id, error = %error, "no error reply can be sent");
                    None
                });
                let ids =
                    DeadLetterIds { message_id: letter.message_id, request_id: letter.request_id };
                let for_hooks = hooks.want(&letter).then(|| (letter, dead_letters.name().clone()));
                let mut about = About::new(queue.name().clone(), message.id, attempt);
                about.worker_id = worker_id.map(WorkerId);
                let in_progress = DeadLetterInProgress { source, about, ids, for_hooks, reply };
                self.dead_letters.insert(key, in_progress);
                self.outbox.push(dead_letters.clone(), outgoing, SendOrigin::DeadLetter(key));
            }
            // Unreachable: every dead letter can be encoded, and a route has a queue.
            (_, encoded) => {
                let error = encoded.err().map_or_else(|| "no queue".to_owned(), |e| e.to_string());
                let (queue, message_id) = (queue.name(), message.id);
                tracing::error!(target: DELIVERIES, %queue, %message_id, worker_id, error, "cannot write a dead letter");
                let result = Err(Error::invalid(Some(queue), "dead letter", error, "JSON"));
                self.inputs.push_back(Input::DeadLetterStored { key, result });
            }
        }
    }

    /// Takes in that a dead letter was sent to its queue, or why not.
    pub(super) fn dead_letter_sent(
        &mut self,
        key: Key,
        queue: &Arc<dyn Queue>,
        error: Option<Error>,
    ) {
        let result = match (error, self.dead_letters.get(&key)) {
            (None, None) => return,
            (None, Some(stored)) => {
                Ok(StoredDeadLetter { ids: stored.ids, has_reply: stored.reply.is_some() })
            }
            (Some(error), _) => {
                let failed = self.dead_letters.remove(&key);
                let (message_id, worker_id) =
                    failed.as_ref().map(DeadLetterInProgress::log_ids).unzip();
                tracing::error!(
                    target: DELIVERIES,
                    queue = %queue.name(),
                    message_id = message_id.map(tracing::field::display),
                    worker_id = worker_id.flatten(),
                    %error,
                    "cannot store a dead letter"
                );
                Err(error)
            }
        };
        self.inputs.push_back(Input::DeadLetterStored { key, result });
    }

    pub(super) fn send_error_reply(&mut self, key: Key) {
        let reply = self.dead_letters.get(&key).and_then(|stored| stored.reply.as_ref());
        if let Some(ErrorReply { queue, message }) = reply {
            self.outbox.push(queue.clone(), message.clone(), SendOrigin::ErrorReply(key));
        }
    }

    /// Runs the hooks of a dead letter that is stored.
    pub(super) fn report_dead_letter(&mut self, key: Key, reply_error: Option<Error>) {
        let Some(stored) = self.dead_letters.remove(&key) else { return };
        if let (Some(error), Some(ErrorReply { queue, .. })) = (reply_error, &stored.reply) {
            let (message_id, worker_id) = stored.log_ids();
            tracing::warn!(target: DELIVERIES, queue = %queue.name(), %message_id, worker_id, %error, "no error reply was sent");
        }
        let Some((letter, to)) = stored.for_hooks else {
            self.inputs.push_back(Input::DeadLetterReported { key });
            return;
        };
        let hooks = self.pool.mailboxes[stored.source].hooks.clone();
        self.calls.push(Box::pin(async move {
            hooks.dead_lettered(stored.about, letter, to).await;
            CallResult::HooksRan { key }
        }));
    }
}

/// Returns the name of a worker by which people can find it: pool and number, host and process.
fn worker_name(pool: &str, worker: Option<usize>) -> String {
    static PROCESS: LazyLock<String> = LazyLock::new(process_name);
    match worker {
        Some(worker) => format!("{pool}/{worker}@{}", *PROCESS),
        None => format!("{pool}@{}", *PROCESS),
    }
}

fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host
        .or_else(|| ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok()));
    let host =
        host.as_deref().map(str::trim).filter(|host| !host.is_empty()).unwrap_or("localhost");
    format!("{host}:{}", std::process::id())
}
