//! `pillarbox bench`

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pillarbox::{Outgoing, Queue, QueueName, QueueOptions, Receive, Settle};
use rand::Rng;
use serde::Serialize;
use tokio::task::JoinSet;

use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Table, text, time};

/// How long a receive waits where the backend does not show at once what was sent.
const WAIT: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Line<'a> {
    operation: &'a str,
    calls: usize,
    calls_per_second: f64,
    messages_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// How long each call of a kind took.
#[derive(Debug, Default)]
struct Times {
    send: Vec<Duration>,
    receive: Vec<Duration>,
    acknowledge: Vec<Duration>,
    messages: usize,
}

pub(crate) async fn run(context: &mut Context, args: args::Bench) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    using(context.open().await?, async |backend| {
        let name = format!("pillarbox-bench-{:08x}", rand::rng().next_u32());
        let name: QueueName = name.parse()?;
        let queue = backend.queue(&name, QueueOptions::new())?;
        check(&args, &queue)?;
        if !context.out.is_json() {
            let (callers, size) =
                (text::count(args.callers as u64, "caller"), text::bytes(args.size as u64));
            let batch = if args.batch == 1 {
                String::new()
            } else {
                format!(" in batches of {}", args.batch)
            };
            context.out.line(&format!(
                "{}: {callers}, bodies of {size}{batch}, for {}",
                context.url(),
                time::show(args.duration)
            ))?;
            context.out.flush()?;
        }
        let start = Instant::now();
        let measured = measure(&queue, &args, &interrupt).await;
        let elapsed = start.elapsed();
        // Whatever came of it, nothing of it stays.
        let purged = queue.purge().await;
        let times = measured?;
        purged?;
        report(context, &times, elapsed)?;
        if interrupt.is_told() { Err(Failure::Interrupted) } else { Ok(()) }
    })
    .await
}

fn check(args: &args::Bench, queue: &Arc<dyn Queue>) -> Result<()> {
    let capabilities = queue.capabilities();
    capabilities.check_batch(queue.name(), args.batch)?;
    capabilities.check_receive(queue.name(), &Receive::up_to(args.batch))?;
    let body = Outgoing::new(vec![0; args.size]);
    Ok(capabilities.check_outgoing(queue.name(), &body)?)
}

async fn measure(
    queue: &Arc<dyn Queue>,
    args: &args::Bench,
    interrupt: &Interrupt,
) -> Result<Times> {
    let body: Bytes = vec![b'x'; args.size].into();
    let end = Instant::now() + args.duration.min(Duration::from_secs(86_400));
    let mut callers = JoinSet::new();
    for _ in 0..args.callers {
        callers.spawn(call(queue.clone(), body.clone(), args.batch, end));
    }
    let mut all = Times::default();
    while let Ok(Some(caller)) = interrupt.or(callers.join_next()).await {
        let times =
            caller.map_err(|error| Failure::Other(format!("a caller ended: {error}")))??;
        all.send.extend(times.send);
        all.receive.extend(times.receive);
        all.acknowledge.extend(times.acknowledge);
        all.messages += times.messages;
    }
    callers.shutdown().await;
    Ok(all)
}

/// Sends, receives and acknowledges until the time is over. Each caller puts in as many as it takes
/// out, so that there is always something for all of them.
async fn call(
    queue: Arc<dyn Queue>,
    body: Bytes,
    batch: usize,
    end: Instant,
) -> pillarbox::Result<Times> {
    let mut times = Times::default();
    while Instant::now() < end {
        let messages = (0..batch).map(|_| Outgoing::new(body.clone())).collect();
        let start = Instant::now();
        let sent = queue.send(messages).await?;
        times.send.push(start.elapsed());
        sent.into_iter().collect::<Result<Vec<_>, _>>()?;

        let mut wanted = batch;
        while wanted > 0 {
            let wait = queue.capabilities().max_wait.unwrap_or(WAIT).min(WAIT);
            let start = Instant::now();
            let received = queue.receive(Receive::up_to(wanted).wait(wait)).await?;
            times.receive.push(start.elapsed());
            if received.is_empty() {
                break;
            }
            wanted -= received.len();
            let acknowledge = |delivery: pillarbox::Delivery| Settle::acknowledge(delivery.receipt);
            let start = Instant::now();
            let settled = queue.settle(received.into_iter().map(acknowledge).collect()).await?;
            times.acknowledge.push(start.elapsed());
            times.messages += settled.len();
            settled.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
    }
    Ok(times)
}

fn report(context: &mut Context, times: &Times, elapsed: Duration) -> Result<()> {
    let per_second = |number: usize| number as f64 / elapsed.as_secs_f64();
    let mut table = Table::new(&["OPERATION", ">CALLS", ">P50", ">P99", ">MAX"]);
    let kinds =
        [("send", &times.send), ("receive", &times.receive), ("acknowledge", &times.acknowledge)];
    for (operation, times_of_kind) in kinds {
        let mut sorted = times_of_kind.clone();
        sorted.sort_unstable();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(&sorted, share));
        if context.out.is_json() {
            let ms = |duration: Duration| duration.as_micros() as f64 / 1e3;
            context.out.json(&Line {
                operation,
                calls: sorted.len(),
                calls_per_second: per_second(sorted.len()).round(),
                messages_per_second: per_second(times.messages).round(),
                p50_ms: ms(p50),
                p99_ms: ms(p99),
                max_ms: ms(max),
            })?;
        }
        let calls = text::rate(per_second(sorted.len()));
        table.row([
            operation.to_owned(),
            calls,
            time::measured(p50),
            time::measured(p99),
            time::measured(max),
        ]);
    }
    if !context.out.is_json() {
        context.out.table(&table)?;
        let rate = text::rate(per_second(times.messages));
        let all = text::count(times.messages as u64, "message");
        context.out.line(&format!(
            "{rate} sent, received and acknowledged: {all} in {}",
            time::measured(elapsed)
        ))?;
    }
    Ok(())
}

/// The time that this share of the calls did not exceed.
fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}
