//! The operations that a call is made of, and no more.
//!
//! One task receives requests and answers all that it has got by one send and one acknowledgement; another
//! receives answers, hands them out and acknowledges them. Both acknowledge while they receive the next. Nobody
//! extends a lease, catches a panic, watches a deadline, gives up or cleans up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pillarbox_core::{Mailbox, Receive, SendOptions};
use pillarbox_runtime::loops::{MainLoopRequest, MainLoopResult, Uuid};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Caller, Ends, PATIENCE, Requests};
use crate::measure::{Result, expect_eq};

type Waiting = Arc<Mutex<HashMap<Uuid, oneshot::Sender<String>>>>;

#[derive(Clone)]
pub(super) struct Bare {
    requests: Requests,
    answers: Mailbox<MainLoopResult<String>>,
    waiting: Waiting,
    tasks: Arc<[JoinHandle<Result<()>>; 2]>,
}

impl Bare {
    pub(super) async fn open(ends: Ends) -> Result<Self> {
        let requests: Requests = ends.clients.mailbox("requests")?;
        let answers: Mailbox<MainLoopResult<String>> = ends.clients.mailbox("answers")?;
        let waiting = Waiting::default();
        let answering = answer(ends.loops.mailbox("requests")?, ends.loops.mailbox("answers")?);
        let handing_out = hand_out(answers.clone(), waiting.clone());
        let tasks = Arc::new([tokio::spawn(answering), tokio::spawn(handing_out)]);
        Ok(Self { requests, answers, waiting, tasks })
    }
}

impl Caller for Bare {
    async fn call(&self, request: MainLoopRequest<String>) -> Result<String> {
        let (sender, answer) = oneshot::channel();
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(request.request_id, sender);
        self.requests.send_with(&request, SendOptions::new().reply_to("answers")).await?;
        Ok(answer.await?)
    }

    async fn close(self) -> Result<()> {
        // The last acknowledgements are under way.
        let counts = async || -> Result<u64> {
            Ok(self.requests.approximate_count().await? + self.answers.approximate_count().await?)
        };
        let mut left = counts().await?;
        for _ in 0..1_000 {
            if left == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            left = counts().await?;
        }
        expect_eq("messages left", left, 0)?;
        for task in &*self.tasks {
            task.abort();
        }
        Ok(())
    }
}

async fn answer(requests: Requests, answers: Mailbox<MainLoopResult<String>>) -> Result<()> {
    let mut batch = requests.receive(Receive::up_to(128).wait(PATIENCE)).await?;
    loop {
        let results: Vec<_> = batch
            .messages()
            .iter()
            .map(|message| {
                let MainLoopRequest { request, request_id, .. } = message.body();
                MainLoopResult::new(*request_id, Ok(request.clone()))
            })
            .collect();
        answers.send_batch(&results).await?.all()?;
        let next = requests.receive(Receive::up_to(128).wait(PATIENCE));
        let (received, acknowledged) = tokio::join!(next, batch.acknowledge());
        acknowledged?.all()?;
        batch = received?;
    }
}

async fn hand_out(answers: Mailbox<MainLoopResult<String>>, waiting: Waiting) -> Result<()> {
    let mut batch = answers.receive(Receive::up_to(128).wait(PATIENCE)).await?;
    loop {
        {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            for message in &batch {
                let answer = message.body();
                let output = answer.output().ok_or("an answer without output")?.clone();
                let waiter =
                    waiting.remove(&answer.request_id).ok_or("nobody waits for this answer")?;
                let _ = waiter.send(output);
            }
        }
        let next = answers.receive(Receive::up_to(128).wait(PATIENCE));
        let (received, acknowledged) = tokio::join!(next, batch.acknowledge());
        acknowledged?.all()?;
        batch = received?;
    }
}
