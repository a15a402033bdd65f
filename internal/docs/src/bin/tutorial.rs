//! Program of the tutorial: a worker that packs orders.

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

/// The body of a message, stored as JSON.
#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    count: u32,
}

/// Handles one message. Fails if the price list does not exist.
async fn pack(order: Order, metadata: Metadata) -> std::io::Result<()> {
    let prices = std::fs::read_to_string("prices.txt")?;
    let Order { item, count } = order;
    println!("{count} x {item}, delivery {}, at {}", metadata.delivery_count(), prices.trim());
    Ok(())
}

#[tokio::main]
async fn main() -> pillarbox::Result<()> {
    let backend = pillarbox::open("sqlite:pillarbox.db").await?;
    let orders: Mailbox<Order> = backend.mailbox("orders")?;
    let stats = Worker::new(orders)
        .handler(pack)
        .retry(Backoff::constant(Duration::from_millis(200)))
        .max_deliveries(3)
        .dead_letters(DlqPolicy::new()) // to `orders-dlq`
        .run_until_empty()
        .await?;
    println!("{} packed, {} failed", stats.succeeded, stats.terminal_failures);
    backend.close().await;
    Ok(())
}
