//! Several loops in one process: workers for orders and receipts, a main loop that answers prices, and a consumer of
//! the dead letters of the orders. They start together, one of them fails and is restarted, and they stop together.
//!
//!     cargo run --example loop_group
//!
//! A service calls [`LoopGroup::run`], which stops on SIGTERM or Ctrl+C. This example stops itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pillarbox::dead_letters::DlqLimits;
use pillarbox::group::{GroupControl, Restart};
use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

const ORDERS: u64 = 30;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
    euros: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    order: u64,
}

/// Waits until a loop has handled this number of messages.
async fn done(control: &GroupControl, name: &str, count: u64) {
    loop {
        // A restarted loop has a new control.
        let stats = control.control_of(name).map(|control| control.stats());
        if stats.is_some_and(|stats| stats.borrow().succeeded == count) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open("memory:").await?;
    let orders: Mailbox<Order> = backend.mailbox("orders")?;
    let receipts: Mailbox<Receipt> = backend.mailbox("receipts")?;
    let dead: Mailbox<DeadLetter<Order>> = backend.mailbox("orders-dlq")?;
    let all: Vec<_> = (1..=ORDERS).map(|number| Order { number, euros: number % 10 }).collect();
    orders.send_batch(&all).await?.all()?;

    // Every order gets a receipt, except those that cost nothing, which are mistakes.
    let packing =
        Worker::new(orders).context(receipts.clone()).dead_letters(DlqPolicy::new()).handler(
            |order: Order,
             producer: ProducerHandle<Order>,
             Context(receipts): Context<Mailbox<Receipt>>| async move {
                if order.euros == 0 {
                    return Outcome::reject("it costs nothing");
                }
                let receipt = Receipt { order: order.number };
                match producer.send_to(&receipts, &receipt, SendOptions::new()).await {
                    Ok(_) => Outcome::done(),
                    Err(_) => Outcome::retry(),
                }
            },
        );

    let mistakes = Arc::new(AtomicU64::new(0));
    let sorting = DlqConsumer::new(dead.clone(), {
        let mistakes = mistakes.clone();
        move |dead_letter: DeadLetter<Order>| {
            println!("orders-dlq  order {}: {}", dead_letter.body.number, dead_letter.last_error);
            mistakes.fetch_add(1, Ordering::SeqCst);
            std::future::ready(DlqAction::done())
        }
    });

    // A loop that is created by a function can be restarted. The first one has a closed mailbox, and fails.
    let made = Arc::new(AtomicUsize::new(0));
    let printing = {
        let (made, broken) = (made.clone(), pillarbox::open("memory:").await?);
        let closed: Mailbox<Receipt> = broken.mailbox("receipts")?;
        broken.close().await;
        move || {
            let is_first = made.fetch_add(1, Ordering::SeqCst) == 0;
            let mailbox = if is_first { closed.clone() } else { receipts.clone() };
            Worker::new(mailbox).handler(|receipt: Receipt| async move {
                println!("receipts    a receipt for order {}", receipt.order);
            })
        }
    };

    let prices: Mailbox<MainLoopRequest<u64>, MainLoopResult<u64>> = backend.mailbox("prices")?;
    let pricing = MainLoop::new(prices.clone(), |order: u64| async move { order % 10 });

    let group = LoopGroup::new()
        .add(packing)
        .add(pricing)
        .add(sorting)
        .add_with("receipts", printing)
        .restart(Restart::on_failure().backoff(Backoff::constant(Duration::from_millis(50))))
        .dead_letters(&dead, DlqLimits::default().depth(100))
        .drain_for(Duration::from_secs(10));
    let control = group.control();
    let running = group.start()?;

    // Every order becomes a receipt or a mistake.
    done(&control, "receipts", ORDERS - 3).await;
    done(&control, "orders-dlq", 3).await;

    let client = Client::new(&prices)?;
    let euros = client.call(&MainLoopRequest::new(17), Duration::from_secs(5)).await?;
    println!("prices      order 17 costs {euros}");
    assert_eq!(euros, 7);
    client.close().await;

    let readiness = control.readiness().await;
    println!("main        {:?}: {:?}", readiness.status, readiness.reasons);
    assert!(readiness.is_ready(), "{readiness:?}");
    let report = running.stop().await?;
    for one in &report.loops {
        println!("{:<11} {} done, {} restarts", one.name, one.stats.succeeded, one.restarts);
    }
    let done: Vec<_> = report.loops.iter().map(|one| one.stats.succeeded).collect();
    assert_eq!(done, [ORDERS - 3, 1, 3, ORDERS - 3]);
    assert_eq!(report.get("receipts").map(|one| one.restarts), Some(1));
    assert_eq!(mistakes.load(Ordering::SeqCst), 3);
    backend.close().await;
    Ok(())
}
