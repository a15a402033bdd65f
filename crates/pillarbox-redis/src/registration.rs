//! Making queues known to others: on the list of queues, and partitions in the layout of their queue.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::internal::lock;
use tokio::time::{Instant, timeout};

use crate::context::BackendContext;
use crate::failure::Result;
use crate::partition_layout::{Layout, PartitionNumber};
use crate::queue_state::{QueueState, Registration};
use crate::script_call::ScriptCall;
use crate::script_runner::ScriptRunner;
use crate::scripts;
use crate::servers::Route;

/// Interval at which a queue that is sent to is added to the list of queues again. See `Backend::queues`.
const REGISTER_INTERVAL: Duration = Duration::from_secs(600);

/// Time that a send waits for that. The list may be on another server than the queue, which may be down.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces a partition that is new or not known to receivers yet: puts the queue on the list of queues, unless
/// this very send has done so, and makes sure that the partition is received from.
pub(crate) async fn announce(partition: &ScriptRunner, is_registered: bool) -> Result<()> {
    let ScriptRunner { queue, number, keys, .. } = partition;
    if !is_registered {
        // The list may have been lost together with what the queue had.
        {
            let mut registration = lock(&queue.registration);
            if matches!(*registration, Registration::Done(_)) {
                *registration = Registration::Missing;
            }
        }
        register(queue).await?;
    }
    if *number > 0 {
        enlist(queue, *number).await?;
        let BackendContext { client, gate, .. } = &*queue.context;
        let meta = [&*keys.meta];
        let call = ScriptCall::with_own_keys(&scripts::ENLISTED, &meta, |_| ());
        client.run(gate, Route::Slot(keys.slot), call).await?;
    }
    Ok(())
}

/// Puts a queue on the list of queues, unless that was done recently, and returns whether it did. If the list is
/// unreachable, a task goes on trying.
pub(crate) async fn register(queue: &Arc<QueueState>) -> Result<bool> {
    let registration = *lock(&queue.registration);
    match registration {
        Registration::InBackground => return Ok(false),
        Registration::Done(at) if at.elapsed() < REGISTER_INTERVAL => return Ok(false),
        Registration::Done(_) | Registration::Missing => {}
    }
    match timeout(REGISTER_TIMEOUT, queue.context.register(&queue.name)).await {
        Ok(Ok(())) => {
            *lock(&queue.registration) = Registration::Done(Instant::now());
            return Ok(true);
        }
        Ok(Err(failure)) if !failure.is_transient() => return Err(failure),
        Ok(Err(_)) | Err(_) => {
            *lock(&queue.registration) = Registration::InBackground;
            queue.context.spawn(register_in_background(queue.clone()));
        }
    }
    Ok(false)
}

async fn register_in_background(queue: Arc<QueueState>) {
    let registered = queue.context.register(&queue.name).await;
    if let Err(failure) = &registered {
        tracing::debug!(queue = %queue.name, %failure, "a queue is not on the list of queues");
    }
    let done = |()| Registration::Done(Instant::now());
    *lock(&queue.registration) = registered.map_or(Registration::Missing, done);
}

/// Enters a partition into the layout, so that it is received from.
pub(crate) async fn enlist(queue: &QueueState, partition: PartitionNumber) -> Result<Layout> {
    let sent_to = queue.known_layout().sent_to.to_string();
    let received_from = (partition + 1).to_string();
    queue.update_layout(&scripts::LAYOUT, &[sent_to, received_from, "1".into()]).await
}
