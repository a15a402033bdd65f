//! Packs orders.

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    count: u32,
}

/// Looks up the price. The list of prices may not be there; then the order cannot be packed.
async fn pack(order: Order, about: Metadata) -> std::io::Result<()> {
    let prices = std::fs::read_to_string("prices.txt")?;
    let Order { item, count } = order;
    println!("{count} x {item}, delivery {}, at {}", about.delivery_count(), prices.trim());
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
        .dead_letters(DlqPolicy::new())
        .run_until_empty()
        .await?;
    println!("{} packed, {} given up", stats.succeeded, stats.terminal_failures);
    backend.close().await;
    Ok(())
}
