//! Assembles the dispatcher, the driver and the services of a worker pool from its options, and runs them.

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use pillarbox_core::{Mailboxes, Queue, Result};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::options::{MailboxOptions, PoolOptions};
use crate::control::{ControlState, DrainedOnDrop};
use crate::dead_letters::{Dlq, Rules};
use crate::dispatcher::{Dispatcher, QuarantineSettings, STAGGER, Settings, SourceSettings};
use crate::driver::{Driver, DriverSettings, MailboxQueues};
use crate::mailbox_service::MailboxService;
use crate::metrics::PoolMetrics;
use crate::outcome::{Failure, FailureKind};
use crate::producer::{DirectSends, SendRequest};
use crate::retry_policy::fit_delay;
use crate::service::ServiceStackOptions;
use crate::stats::StatsSnapshot;
use crate::worker_task::{PoolContext, ServedMailbox};

/// Builds a service once all options are known.
pub(super) type Build<S> = Box<dyn FnOnce(&ServiceStackOptions) -> S + Send>;

/// A mailbox and its service, whatever their types are.
pub(super) struct AnyMailbox {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) backend: Option<Mailboxes>,
    pub(super) options: MailboxOptions,
    pub(super) build: Build<Box<dyn MailboxService>>,
}

/// The state and the receiving halves of the channels that [`Control`](crate::Control) and producers have the
/// sending halves of.
pub(super) struct Channels {
    pub(super) state: Arc<ControlState>,
    pub(super) sends: mpsc::Receiver<SendRequest>,
    pub(super) desired_changed: mpsc::Receiver<()>,
    pub(super) drained: DrainedOnDrop,
}

/// Runs a worker pool until it is stopped.
pub(super) async fn run(
    mailboxes: Vec<AnyMailbox>,
    mut options: PoolOptions,
    channels: Channels,
) -> Result<StatsSnapshot> {
    let Channels { state, sends, desired_changed, drained: _drained } = channels;
    // What was requested before the start counts: a pause, a stop, a number of workers.
    let desired = *state.desired.borrow();
    options.validate(desired.workers)?;
    for mailbox in &mailboxes {
        mailbox.options.validate(&*mailbox.queue)?;
    }
    state.send_permits.add_permits(options.producer_buffer);
    let routes = mailboxes.iter().map(AnyMailbox::resolve_routes).collect::<Result<Vec<_>>>()?;
    let queues =
        mailboxes.iter().map(|mailbox| (mailbox.queue.name().clone(), mailbox.options.poll));
    let snapshot = StatsSnapshot::new(queues);
    let settings = Settings {
        prefetch: options.prefetch,
        result_buffer: options.result_buffer,
        receive_backoff: options.dequeue_backoff,
    };
    let sources: Vec<_> = mailboxes
        .iter()
        .zip(&routes)
        .map(|(mailbox, (rules, dead_letters))| mailbox.source(rules, !dead_letters.is_empty()))
        .collect();
    let dispatcher = Dispatcher::new(settings, sources, desired, Instant::now());
    let name = options.name.take().unwrap_or_else(|| mailboxes[0].queue.name().to_string());
    let mut beside = std::mem::take(&mut options.beside);
    let mut queues = Vec::new();
    let mut served = Vec::new();
    for (mailbox, (rules, dead_letters)) in mailboxes.into_iter().zip(routes) {
        let AnyMailbox { queue, options: one, build, .. } = mailbox;
        let wait = queue.capabilities().max_wait.map_or(one.poll, |max| one.poll.min(max));
        served.push(ServedMailbox {
            queue: queue.clone(),
            policy: one.retry_policy(rules, !dead_letters.is_empty()),
            hooks: one.hooks.clone(),
            prototype: build(&one.stack()),
        });
        if let (Some(every), false) = (options.depth_every, dead_letters.is_empty()) {
            beside.push(Box::pin(Dlq::watch_depth(dead_letters.clone(), every)));
        }
        if let Some(age) = one.dead_letters.as_ref().and_then(|policy| policy.retain_for) {
            beside.push(Box::pin(Dlq::keep_retention(dead_letters.clone(), age)));
        }
        let queue = one.receive_from.unwrap_or(queue);
        queues.push(MailboxQueues { queue, visibility: one.visibility, wait, dead_letters });
    }
    let settings = DriverSettings {
        prefetch: options.prefetch,
        call_timeout: options.call_timeout,
        depth_every: options.depth_every,
        name,
    };
    let (call_timeout, metrics) = (settings.call_timeout, PoolMetrics::new(&settings.name));
    let channel = state.send_channel(Some(DirectSends { call_timeout, metrics }));
    let pool = Arc::new(PoolContext { control: state, sends: channel, mailboxes: served });
    let driver = Driver::new(settings, queues, dispatcher, pool, sends, desired_changed, snapshot);
    let mut beside: FuturesUnordered<_> = beside.into_iter().collect();
    let ended = tokio::select! {
        biased;
        ended = driver.run() => ended,
        () = async { while beside.next().await.is_some() {} std::future::pending().await } => {
            unreachable!("a pending future does not end")
        }
    };
    for hook in options.on_shutdown {
        hook().await;
    }
    ended
}

impl AnyMailbox {
    /// Returns the rules for dead letters, and their queues.
    fn resolve_routes(&self) -> Result<(Rules, Vec<Arc<dyn Queue>>)> {
        match &self.options.dead_letters {
            Some(policy) => policy.clone().resolve(&self.queue, self.backend.as_ref()),
            None => Ok((Rules::default(), Vec::new())),
        }
    }

    fn source(&self, rules: &Rules, has_dead_letters: bool) -> SourceSettings {
        let (capabilities, options) = (self.queue.capabilities(), &self.options);
        let quarantined = Failure::new(FailureKind::Quarantined, "quarantined");
        let default_limit = || QuarantineSettings::default_limit(options.max_deliveries);
        let quarantine = QuarantineSettings {
            after: options.quarantine_after.unwrap_or_else(default_limit),
            route: has_dead_letters.then(|| rules.route_of(&quarantined)),
            is_exact: capabilities.counts_unsettled,
            stagger: fit_delay(STAGGER, capabilities),
        };
        SourceSettings {
            weight: options.weight,
            visibility: options.visibility,
            max_receive: capabilities.max_receive,
            max_batch: capabilities.max_batch,
            extend_while_beating: options.extend_while_beating,
            cancel_when_lost: options.cancel_when_lost,
            quarantine,
            park: fit_delay(options.park, capabilities),
        }
    }
}
