//! The suite works for slow backends with their own clock, such as a server under load.
//!
//! This one is the memory backend with up to 60 ms added to each call, in real time: a rule that mistakes a slow
//! answer for a wrong one would fail here.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Diagnosis, Mailboxes, MemoryBackend, Queue, QueueName,
    QueueOptions, Result,
};
use pillarbox_testing::{FaultQueue, Faults, Subject};

const LAG: Duration = Duration::from_millis(60);

#[derive(Debug)]
struct SlowBackend(MemoryBackend);

impl Backend for SlowBackend {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        Ok(FaultQueue::new(self.0.queue(name, options)?, Faults::none().delay(1.0, LAG), 1))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        self.0.queues()
    }

    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        self.0.diagnose(repair)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }
}

pillarbox_testing::conformance!(Subject::new(Mailboxes::new(SlowBackend(MemoryBackend::new()))));
