//! `pillarbox bench`

mod histogram;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pillarbox::{Outgoing, Queue, QueueName, QueueOptions, Receive, Settle};
use rand::Rng;
use serde::Serialize;
use tokio::task::JoinSet;

use self::histogram::Histogram;
use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Table, text, time};

/// Maximum size of a body on a backend without a limit.
const MAX_SIZE: usize = 1 << 30;
/// Wait of a receive, for backends that show a sent message with a delay.
const WAIT: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct BenchJson<'a> {
    operation: &'a str,
    calls: usize,
    calls_per_second: f64,
    messages_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// Durations of the calls of each kind.
#[derive(Debug, Default)]
struct Times {
    send: Histogram,
    receive: Histogram,
    acknowledge: Histogram,
    messages: usize,
}

pub(crate) async fn run(context: &mut Context, args: args::Bench) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    with_backend(context.open().await?, async |backend| {
        let name = format!("pillarbox-bench-{:08x}", rand::rng().next_u32());
        let name: QueueName = name.parse()?;
        let queue = backend.queue(&name, QueueOptions::new())?;
        let capabilities = queue.capabilities();
        capabilities.check_batch(&name, args.batch)?;
        capabilities.check_receive(&name, &Receive::up_to(args.batch))?;
        // Before a body is allocated.
        let max = capabilities.max_body.unwrap_or(MAX_SIZE);
        if args.size > max {
            let text = format!("--size {} is too large: use at most {max} bytes", args.size);
            return Err(Failure::Usage(text));
        }
        capabilities.check_outgoing(&name, &Outgoing::new(vec![0; args.size]))?;
        if !context.out.is_json() {
            let (callers, size) =
                (text::count(args.callers as u64, "caller"), text::bytes(args.size as u64));
            let batch = match args.batch {
                1 => String::new(),
                batch => format!(" in batches of {batch}"),
            };
            let (url, time) = (context.url(), time::show(args.duration));
            let line = format!("{url}: {callers}, bodies of {size}{batch}, for {time}");
            context.out.line(&line)?;
            context.out.flush()?;
        }
        let start = Instant::now();
        let measured = measure(&queue, &args, &interrupt).await;
        let elapsed = start.elapsed();
        // The queue is purged even after an error.
        let purged = queue.purge().await;
        let times = measured?;
        purged?;
        report(context, &times, elapsed)?;
        if interrupt.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    })
    .await
}

async fn measure(
    queue: &Arc<dyn Queue>,
    args: &args::Bench,
    interrupt: &Interrupt,
) -> Result<Times> {
    let body: Bytes = vec![b'x'; args.size].into();
    let end = Instant::now() + args.duration.min(Duration::from_secs(86_400));
    let stopped = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..args.callers {
        callers.spawn(call(queue.clone(), body.clone(), args.batch, end, stopped.clone()));
    }
    let mut all = Times::default();
    let mut result = Ok(());
    while let Some(caller) = tokio::select! {
        biased;
        caller = callers.join_next() => caller,
        () = interrupt.interrupted(), if !stopped.load(Ordering::Relaxed) => {
            stopped.store(true, Ordering::Relaxed);
            callers.join_next().await
        }
    } {
        match caller {
            Ok(Ok(times)) => all.add(&times),
            Ok(Err(error)) => result = Err(error.into()),
            Err(error) => result = Err(Failure::Other(format!("a caller failed: {error}"))),
        }
        if result.is_err() {
            break;
        }
    }
    // No caller may send after the purge.
    callers.shutdown().await;
    result.map(|()| all)
}

/// Sends, receives and acknowledges until the time is over. Each caller receives as many messages as it sends, so that
/// none of them starves.
async fn call(
    queue: Arc<dyn Queue>,
    body: Bytes,
    batch: usize,
    end: Instant,
    stopped: Arc<AtomicBool>,
) -> pillarbox::Result<Times> {
    let mut times = Times::default();
    while Instant::now() < end && !stopped.load(Ordering::Relaxed) {
        let messages = (0..batch).map(|_| Outgoing::new(body.clone())).collect();
        let start = Instant::now();
        let sent = queue.send(messages).await?;
        times.send.record(start.elapsed());
        sent.into_iter().collect::<Result<Vec<_>, _>>()?;

        let mut wanted = batch;
        while wanted > 0 {
            let wait = queue.capabilities().max_wait.unwrap_or(WAIT).min(WAIT);
            let start = Instant::now();
            let received = queue.receive(Receive::up_to(wanted).wait(wait)).await?;
            times.receive.record(start.elapsed());
            if received.is_empty() {
                break;
            }
            wanted -= received.len();
            let acknowledge = |delivery: pillarbox::Delivery| Settle::acknowledge(delivery.receipt);
            let start = Instant::now();
            let settled = queue.settle(received.into_iter().map(acknowledge).collect()).await?;
            times.acknowledge.record(start.elapsed());
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
    for (operation, calls) in kinds {
        let [p50, p99, max] = [calls.quantile(0.5), calls.quantile(0.99), calls.max];
        if context.out.is_json() {
            let ms = |duration: Duration| duration.as_micros() as f64 / 1e3;
            context.out.json(&BenchJson {
                operation,
                calls: calls.count,
                calls_per_second: per_second(calls.count).round(),
                messages_per_second: per_second(times.messages).round(),
                p50_ms: ms(p50),
                p99_ms: ms(p99),
                max_ms: ms(max),
            })?;
        }
        let rate = text::rate(per_second(calls.count));
        let [p50, p99, max] = [p50, p99, max].map(time::measured);
        table.row([operation.to_owned(), rate, p50, p99, max]);
    }
    if !context.out.is_json() {
        context.out.table(&table)?;
        let rate = text::rate(per_second(times.messages));
        let (all, time) = (text::count(times.messages as u64, "message"), time::measured(elapsed));
        context.out.line(&format!("{rate} sent, received and acknowledged: {all} in {time}"))?;
    }
    Ok(())
}

impl Times {
    fn add(&mut self, other: &Self) {
        self.send.add(&other.send);
        self.receive.add(&other.receive);
        self.acknowledge.add(&other.acknowledge);
        self.messages += other.messages;
    }
}
