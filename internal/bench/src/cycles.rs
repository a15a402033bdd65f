//! Callers that send, receive and acknowledge in batches: what contestants need for it, and how it is done.

use std::time::Duration;

use bytes::Bytes;

pub(crate) use crate::load::{BODY, Numbers, ResponseTimes, WAIT, body, crowd, seq_of};
use crate::measure::{Result, per_second};
use crate::tally::Tally;

/// A queue, within this process.
pub(crate) trait Contestant: Clone + Send + Sync + 'static {
    /// The right to acknowledge one delivery.
    type Receipt: Send + 'static;

    /// Sends messages in one call.
    fn send(&self, bodies: Vec<Bytes>) -> impl Future<Output = Result<()>> + Send;

    /// Receives up to `max` messages in one call. Waits at most [`WAIT`] for the first, and fails if
    /// none arrives, which means that a message was lost.
    fn receive(
        &self,
        max: usize,
    ) -> impl Future<Output = Result<Vec<(Bytes, Self::Receipt)>>> + Send;

    /// Acknowledges deliveries in one call.
    fn acknowledge(&self, receipts: Vec<Self::Receipt>) -> impl Future<Output = Result<()>> + Send;

    /// Checks how many messages are there, and closes.
    fn close(self, left: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Who asks for what, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// How many ask at the same time.
    pub(crate) callers: u64,
    /// Messages in a call.
    pub(crate) batch: u64,
    pub(crate) window: Duration,
}

impl Load {
    /// In words.
    pub(crate) fn name(self) -> String {
        let Self { callers, batch, .. } = self;
        let callers = format!("{callers} {}", if callers == 1 { "caller" } else { "callers" });
        if batch == 1 {
            format!("{callers}, one at a time")
        } else {
            format!("{callers}, batch {batch}")
        }
    }
}

/// What was done, and how long it took.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    pub(crate) messages: u64,
    pub(crate) elapsed: Duration,
    /// The response time of each cycle of a caller.
    pub(crate) each: Vec<Duration>,
}

impl Done {
    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        per_second(self.messages, self.elapsed)
    }
}

/// Full cycles until time is up, on a queue that is empty before and after: each caller sends a
/// batch, receives as many messages, though not always its own, and acknowledges them.
pub(crate) async fn cycles(queue: &impl Contestant, load: Load) -> Result<Done> {
    let (done, tally) = cycles_on_backlog(queue, load).await?;
    tally.expect_all(done.messages)?;
    Ok(done)
}

/// Full cycles until time is up, on a queue where others may come first. Says what was received.
pub(crate) async fn cycles_on_backlog(
    queue: &impl Contestant,
    load: Load,
) -> Result<(Done, Tally)> {
    let numbers = Numbers::within(load.window);
    let callers = (0..load.callers).map(|_| {
        let (queue, numbers) = (queue.clone(), numbers.clone());
        let mut times = ResponseTimes::start(load.callers);
        async move {
            let mut tally = Tally::default();
            while let Some(number) = numbers.take() {
                tally.merge(cycle(&queue, number, load.batch).await?);
                times.next().await;
            }
            Ok((tally, times.all()))
        }
    });
    let (outcomes, elapsed) = crowd(callers).await?;
    let (mut all, mut each) = (Tally::default(), Vec::new());
    for (tally, of_caller) in outcomes {
        all.merge(tally);
        each.extend(of_caller);
    }
    Ok((Done { messages: numbers.taken() * load.batch, elapsed, each }, all))
}

/// One cycle of the batch of this number. Says what was received.
pub(crate) async fn cycle(queue: &impl Contestant, number: u64, batch: u64) -> Result<Tally> {
    let bodies = (number * batch..(number + 1) * batch).map(|seq| body(seq, BODY));
    queue.send(bodies.collect()).await?;
    let mut tally = Tally::default();
    let mut missing = batch as usize;
    // Nobody takes more than it has sent, so that there is always enough. A receive may still give
    // fewer than were asked for.
    while missing > 0 {
        let deliveries = queue.receive(missing).await?;
        missing = missing.checked_sub(deliveries.len()).ok_or("more than were asked for")?;
        let mut receipts = Vec::with_capacity(deliveries.len());
        for (body, receipt) in deliveries {
            tally.add(seq_of(&body, BODY)?);
            receipts.push(receipt);
        }
        queue.acknowledge(receipts).await?;
    }
    Ok(tally)
}
