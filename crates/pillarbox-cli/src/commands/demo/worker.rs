//! A worker as a plain loop: receive, work, settle.

use std::time::{Duration, Instant};

use pillarbox::{Mailbox, Message, MessageId, Receive, SendOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::tally::{Event, What};

/// Longer than any task takes.
const LEASE: Duration = Duration::from_secs(30);
/// How often in a hundred a task fails, and how often it fails whenever it is tried.
const FAILS: u64 = 20;
const ALWAYS_FAILS: u64 = 4;
const ERRORS: [&str; 3] = ["connection reset by peer", "rate limit exceeded", "no answer in time"];

/// The work to be done.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    task: u64,
    prompt: String,
}

impl Task {
    pub(crate) fn new(task: u64) -> Self {
        Self { task, prompt: format!("Summarise document {task}") }
    }
}

/// One of those who work.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) tasks: Mailbox<Task>,
    pub(crate) dead: Mailbox<Task>,
    pub(crate) tell: mpsc::Sender<Event>,
    pub(crate) stopped: watch::Receiver<bool>,
    pub(crate) seed: u64,
    pub(crate) max_retries: u32,
    pub(crate) fast: bool,
}

impl Worker {
    /// Works until it is told to stop. What it is at then is finished.
    pub(crate) async fn run(self) -> pillarbox::Result<()> {
        let mut stopped = self.stopped.clone();
        let request = Receive::one().visibility(LEASE).wait(Duration::from_secs(20));
        loop {
            // A receive that is dropped leaves its message to others.
            let batch = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
                batch = self.tasks.receive(request) => batch?,
            };
            for message in batch {
                self.handle(message).await?;
            }
        }
    }

    async fn handle(&self, message: Message<Task>) -> pillarbox::Result<()> {
        let (task, attempt) = (message.body().task, message.delivery_count());
        self.tell(task, attempt, What::Started).await;
        let start = Instant::now();
        let what = match self.work(task, attempt).await {
            Ok(()) => {
                message.acknowledge().await?;
                What::Succeeded { took: start.elapsed() }
            }
            Err(error) if attempt <= self.max_retries => {
                let again_in = self.scaled(Duration::from_millis(400) * attempt);
                let again_in = self.tasks.capabilities().round_up(again_in);
                message.nack(again_in).await?;
                What::Failed { error, again_in }
            }
            Err(error) => {
                self.bury(message, error).await?;
                What::Dead { error }
            }
        };
        self.tell(task, attempt, what).await;
        Ok(())
    }

    /// Pretends to work, and fails as the seed says.
    async fn work(&self, task: u64, attempt: u32) -> Result<(), &'static str> {
        let doomed =
            StdRng::seed_from_u64(self.seed ^ task << 8).random_range(0..100) < ALWAYS_FAILS;
        let mut luck = StdRng::seed_from_u64(self.seed ^ task << 8 ^ u64::from(attempt) << 40);
        let milliseconds = luck.random_range(250..750);
        tokio::time::sleep(self.scaled(Duration::from_millis(milliseconds))).await;
        if doomed || luck.random_range(0..100) < FAILS {
            return Err(ERRORS[luck.random_range(0..ERRORS.len())]);
        }
        Ok(())
    }

    /// Puts a task that has failed too often aside, with the reason. Its id comes from that of the
    /// task, so that there is one dead letter even if this is cut short and done again.
    async fn bury(&self, message: Message<Task>, error: &str) -> pillarbox::Result<()> {
        let options = SendOptions::new()
            .id(MessageId::from_key(&format!("dead letter of {}", message.id())))
            .attribute("error", error)
            .attribute("deliveries", message.delivery_count().to_string())
            .attribute("source", message.id().to_string());
        self.dead.send_with(message.body(), options).await?;
        message.acknowledge().await
    }

    fn scaled(&self, duration: Duration) -> Duration {
        if self.fast { duration / 10 } else { duration }
    }

    async fn tell(&self, task: u64, attempt: u32, what: What) {
        // Nobody listens any more when the demo has failed.
        let _ = self.tell.send(Event { worker: self.number, task, attempt, what }).await;
    }
}
