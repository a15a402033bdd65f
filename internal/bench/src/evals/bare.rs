//! The same main loop without an eval: sent, answered, received, acknowledged.

use std::time::Instant;

use pillarbox_core::{Mailbox, Receive, SendOptions};
use pillarbox_runtime::Runnable;
use pillarbox_runtime::loops::{MainLoop, MainLoopRequest, MainLoopResult};

use super::{PATIENCE, figures, input};
use crate::measure::{Result, expect_eq, on_two_threads};
use crate::store::{Kind, Store};

/// As many as an eval sends at a time, and as many as it takes.
const SENT: usize = 100;
const TAKEN: usize = 500;

pub(super) fn run(kind: Kind, samples: u64) -> Result<[f64; 2]> {
    let store = Store::fresh(kind)?;
    let address = store.address();
    on_two_threads(async {
        let backend = address.backend().await?;
        let requests: Mailbox<MainLoopRequest<String>, MainLoopResult<String>> =
            backend.builder("requests").allow_reply_to("answers").open()?;
        let answers: Mailbox<MainLoopResult<String>> = backend.mailbox("answers")?;
        let inputs: Vec<_> = (0..samples).map(input).collect();
        let main_loop = MainLoop::new(requests.clone(), |text: String| async move { text });
        let running = main_loop.start();
        let begun = Instant::now();
        for batch in inputs.chunks(SENT) {
            let batch: Vec<_> =
                batch.iter().map(|input| MainLoopRequest::new(input.clone())).collect();
            let entries =
                batch.iter().map(|request| (request, SendOptions::new().reply_to("answers")));
            requests.send_batch_with(entries).await?.all()?;
        }
        let mut answered = 0;
        while answered < samples {
            let batch = answers.receive(Receive::up_to(TAKEN).wait(PATIENCE)).await?;
            expect_eq("nothing comes any more", batch.is_empty(), false)?;
            answered += batch.len() as u64;
            batch.acknowledge().await?.all()?;
        }
        let elapsed = begun.elapsed();
        running.stop().await?;
        backend.close().await;
        Ok(figures(samples, elapsed))
    })
}
