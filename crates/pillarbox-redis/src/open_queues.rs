//! The queues of a backend that have open handles.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::internal::lock;
use pillarbox_core::{Error, QueueName, QueueOptions};

use crate::context::BackendContext;
use crate::options::partitions_with_ttl;
use crate::partitioned_queue::PartitionedQueue;

/// Queues of a backend that have open handles.
#[derive(Debug)]
pub(crate) struct OpenQueues {
    pub(crate) context: Arc<BackendContext>,
    /// Never locked across an await.
    queues: Mutex<BTreeMap<QueueName, OpenQueue>>,
}

#[derive(Debug)]
struct OpenQueue {
    queue: Arc<PartitionedQueue>,
    /// Number of open handles. Counted under the lock: of two handles that close at once, exactly one is
    /// the last.
    handles: usize,
    /// Whether a handle was opened with partitions.
    wants_partitions: bool,
}

impl OpenQueues {
    pub(crate) fn new(context: Arc<BackendContext>) -> Self {
        Self { context, queues: Mutex::default() }
    }

    /// Opens one more handle of a queue and returns what its handles share.
    ///
    /// A `default_ttl` and partitions exclude each other: the partitions of a queue are not used together,
    /// and the server would delete some of them.
    pub(crate) fn open(
        &self,
        name: &QueueName,
        options: &QueueOptions,
    ) -> Result<Arc<PartitionedQueue>, Error> {
        let mut queues = lock(&self.queues);
        let open = queues.get(name);
        let settings = &self.context.client.settings;
        let partitions = options.partitions.unwrap_or(1).max(settings.partitions);
        let ttl = options.default_ttl.or(settings.default_ttl);
        let ttl = ttl.or_else(|| open?.queue.state.requested_ttl());
        if partitions > 1 && ttl.is_some() {
            return Err(partitions_with_ttl(Some(name), partitions));
        }
        let is_partitioned = |open: &OpenQueue| {
            open.wants_partitions || open.queue.state.known_layout().received_from > 1
        };
        if let Some(ttl) = options.default_ttl
            && open.is_some_and(is_partitioned)
        {
            let allowed = "none if the queue has partitions";
            return Err(Error::invalid(Some(name), "default_ttl", format!("{ttl:?}"), allowed));
        }
        let create = || {
            let queue = Arc::new(PartitionedQueue::new(name.clone(), self.context.clone()));
            OpenQueue { queue, handles: 0, wants_partitions: false }
        };
        let open = queues.entry(name.clone()).or_insert_with(create);
        open.handles += 1;
        open.wants_partitions |= partitions > 1;
        if let Some(ttl) = options.default_ttl {
            open.queue.state.request_ttl(ttl);
        }
        Ok(open.queue.clone())
    }

    /// Returns the longest `default_ttl` of the open handles of a queue.
    pub(crate) fn requested_ttl(&self, queue: &QueueName) -> Option<Duration> {
        lock(&self.queues).get(queue)?.queue.state.requested_ttl()
    }

    /// Closes one handle. With the last one, the queue is deleted if it is empty.
    pub(crate) fn close_handle(&self, name: &QueueName) {
        let mut queues = lock(&self.queues);
        let Some(open) = queues.get_mut(name) else { return };
        open.handles -= 1;
        if open.handles == 0
            && let Some(OpenQueue { queue, .. }) = queues.remove(name)
            && !self.context.gate.is_closed()
        {
            self.context.spawn(async move { queue.delete_if_empty().await });
        }
    }

    /// Closes the backend, and deletes queues that are empty.
    pub(crate) async fn close(&self) {
        let queues: Vec<_> = lock(&self.queues).values().map(|open| open.queue.clone()).collect();
        let delete = async {
            join_all(queues.iter().map(|queue| queue.delete_if_empty())).await;
        };
        self.context.close(delete).await;
    }
}
