//! What is in the memory of this process beside ours: a channel, and capp's queue.

use std::sync::Arc;

use bytes::Bytes;
use capp_queue::{
    AbstractTaskQueue, InMemoryTaskQueue, JsonSerializer, Task, TaskId, TaskQueueError,
};
use tokio::sync::{Mutex, mpsc};

use crate::cycles::Contestant;
use crate::load::{BODY, Job, body, seq_of};
use crate::measure::{Result, expect_eq};

/// Room in the channel: more than callers can have on their way.
const BOUND: usize = 4096;

/// The limit: a bounded channel whose receiver callers take turns at. There is no id, no lease, no
/// receipt, no acknowledgement, and nothing left of a message whose receiver fails.
#[derive(Debug, Clone)]
pub(super) struct Channel {
    sender: mpsc::Sender<Bytes>,
    receiver: Arc<Mutex<mpsc::Receiver<Bytes>>>,
}

impl Channel {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(BOUND);
        Self { sender, receiver: Arc::new(Mutex::new(receiver)) }
    }
}

impl Contestant for Channel {
    type Receipt = ();

    async fn send(&self, bodies: Vec<Bytes>) -> Result<()> {
        for body in bodies {
            self.sender.send(body).await?;
        }
        Ok(())
    }

    async fn receive(&self, max: usize) -> Result<Vec<(Bytes, ())>> {
        let mut bodies = Vec::with_capacity(max);
        self.receiver.lock().await.recv_many(&mut bodies, max).await;
        Ok(bodies.into_iter().map(|body| (body, ())).collect())
    }

    async fn acknowledge(&self, _: Vec<()>) -> Result<()> {
        Ok(())
    }

    async fn close(self, left: u64) -> Result<()> {
        expect_eq("messages left", self.receiver.lock().await.len() as u64, left)
    }
}

/// capp-queue 0.7.2: jobs as JSON, one by one. It can neither wait nor lease; a caller that finds nothing
/// lets others go first.
#[derive(Clone)]
pub(super) struct Capp {
    queue: AbstractTaskQueue<Job>,
}

impl Capp {
    pub(super) fn new() -> Self {
        Self { queue: Arc::new(InMemoryTaskQueue::<Job, JsonSerializer>::new()) }
    }
}

impl Contestant for Capp {
    type Receipt = TaskId;

    async fn send(&self, bodies: Vec<Bytes>) -> Result<()> {
        for body in bodies {
            self.queue.push(&Task::new(Job::new(seq_of(&body, BODY)?))).await?;
        }
        Ok(())
    }

    async fn receive(&self, _: usize) -> Result<Vec<(Bytes, TaskId)>> {
        loop {
            match self.queue.pop().await {
                Ok(task) => return Ok(vec![(body(task.payload.seq()?, BODY), task.task_id)]),
                Err(TaskQueueError::QueueEmpty) => tokio::task::yield_now().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn acknowledge(&self, receipts: Vec<TaskId>) -> Result<()> {
        for receipt in receipts {
            self.queue.ack(&receipt).await?;
        }
        Ok(())
    }

    async fn close(self, left: u64) -> Result<()> {
        match self.queue.pop().await {
            Err(TaskQueueError::QueueEmpty) => expect_eq("messages left", 0, left),
            Err(error) => Err(error.into()),
            Ok(_) => Err("there are messages left".into()),
        }
    }
}
