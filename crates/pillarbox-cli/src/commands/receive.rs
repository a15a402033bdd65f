//! `pillarbox receive`

use std::sync::Arc;
use std::time::Duration;

use pillarbox::{Delivery, Queue, QueueName, QueueOptions, Settle, Timestamp};
use tokio::time::Instant;

use super::settle::settle_written;
use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::message_json::MessageJson;
use crate::output::{Out, text, time};

pub(crate) async fn run(context: &mut Context, args: args::Receive) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    with_backend(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        if context.out.is_closed() {
            let text = "stdout is closed, so the messages would be lost: nothing was received";
            return Err(Failure::Usage(text.to_owned()));
        }
        let waiting = Waiting::for_up_to(args.wait);
        let mut received = 0;
        while received < args.max {
            let capabilities = queue.capabilities();
            let wait = if received == 0 { waiting.next(&*queue) } else { Duration::ZERO };
            let request =
                pillarbox::Receive::up_to((args.max - received).min(capabilities.max_receive))
                    .visibility(args.visibility)
                    .wait(wait);
            // A receive that a signal cancels returns the messages it has fetched. Delivered messages are printed.
            let deliveries = interrupt.or(queue.receive(request)).await??;
            if deliveries.is_empty() && (received > 0 || waiting.left().is_zero()) {
                break;
            }
            received += deliveries.len();
            print(&mut context.out, &queue, deliveries, &args).await?;
        }
        if received == 0 {
            if !context.out.is_json() {
                context.out.note("nothing received");
            }
            context.note_if_unknown(backend, &args.queue).await?;
            return Err(Failure::NothingReceived);
        }
        Ok(())
    })
    .await
}

/// Prints deliveries. Those that could not be printed are released; the others are acknowledged with `--ack`.
async fn print(
    out: &mut Out,
    queue: &Arc<dyn Queue>,
    deliveries: Vec<Delivery>,
    args: &args::Receive,
) -> Result<()> {
    let mut settles = Vec::new();
    let mut result = Ok(());
    for delivery in deliveries {
        result = result.and_then(|()| print_one(out, queue.name(), &delivery));
        match (&result, args.ack) {
            (Ok(()), true) => settles.push(Settle::acknowledge(delivery.receipt)),
            (Ok(()), false) => {}
            (Err(_), _) => settles.push(Settle::release(delivery.receipt, Duration::ZERO)),
        }
    }
    settle_written(out, queue, settles, result).await
}

fn print_one(out: &mut Out, queue: &QueueName, delivery: &Delivery) -> Result<()> {
    if out.is_json() {
        out.json(&MessageJson::delivered(queue, delivery))?;
    } else {
        describe(out, delivery)?;
    }
    out.flush()
}

fn describe(out: &mut Out, delivery: &Delivery) -> Result<()> {
    let message = &delivery.message;
    let style = out.style();
    let details = format!(
        "  delivery {}, sent {}, {}",
        message.delivery_count,
        time::ago(message.enqueued_at, Timestamp::now()),
        text::bytes(message.body.len() as u64),
    );
    out.parts(&[style.heading(message.id.to_string()), details.into()])?;
    let mut field = |name: &str, value: &str| {
        out.parts(&["  ".into(), style.faint(format!("{name:<8}")), format!("  {value}").into()])
    };
    field("receipt", &delivery.receipt.to_string())?;
    if let Some(reply_to) = &message.reply_to {
        field("reply to", reply_to)?;
    }
    for (name, value) in message.attributes.iter() {
        field("attr", &format!("{name}={value}"))?;
    }
    match std::str::from_utf8(&message.body) {
        Ok(body) => {
            for (index, line) in body.lines().enumerate() {
                field(if index == 0 { "body" } else { "" }, line)?;
            }
        }
        Err(_) => field("body", &text::preview(&message.body))?,
    }
    Ok(())
}

/// A wait that may be longer than one call of the backend allows.
struct Waiting {
    /// `None`: forever.
    deadline: Option<Instant>,
}

impl Waiting {
    fn for_up_to(wait: Duration) -> Self {
        Self { deadline: Instant::now().checked_add(wait) }
    }

    fn left(&self) -> Duration {
        self.deadline
            .map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns the wait of the next call.
    fn next(&self, queue: &dyn Queue) -> Duration {
        let capabilities = queue.capabilities();
        let longest = capabilities.max_wait.unwrap_or(Duration::MAX);
        capabilities.round_up(self.left()).min(longest)
    }
}
