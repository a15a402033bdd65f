//! Replay of dead letters after a bug is fixed.
//!
//!     cargo run --example replay_after_fix
//!
//! The same from the command line: `pillarbox dlq stats orders-dlq`, then
//! `pillarbox dlq replay orders-dlq --error-type DivisionByZero --rate 50/s`.

use pillarbox::prelude::*;

#[derive(Debug)]
struct DivisionByZero;

impl std::fmt::Display for DivisionByZero {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a discount cannot be divided by no items")
    }
}

impl std::error::Error for DivisionByZero {}

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    items: u32,
    discount: u32,
}

/// Before the fix.
async fn broken(order: Order) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if order.discount > 500 {
        return Err("the discount is too high".into());
    }
    order.discount.checked_div(order.items).map(|_| ()).ok_or_else(|| DivisionByZero.into())
}

/// After the fix.
async fn fixed(order: Order) {
    println!("  {} each", order.discount.checked_div(order.items).unwrap_or(0));
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("shop.db").display());
    let backend = pillarbox::open(&url).await?;
    let orders: Mailbox<Order> = backend.mailbox("orders")?;
    let all: Vec<_> =
        (0..60).map(|n| Order { items: n % 3, discount: if n == 7 { 9_999 } else { n } }).collect();
    orders.send_batch(&all).await?.all()?;

    // The broken handler runs at night.
    let policy = DlqPolicy::new().names::<DivisionByZero>();
    let worker =
        Worker::new(orders.clone()).max_deliveries(2).retry(Backoff::none()).dead_letters(policy);
    let night = worker.handler(broken).run_until_empty().await?;
    println!("at night: {} succeeded, {} dead letters", night.succeeded, night.dead_lettered);

    // In the morning, the summary shows what failed.
    let dlq = Dlq::open(&backend, "orders-dlq")?;
    let summary = dlq.summary(|_| true).await?;
    for group in &summary.errors {
        println!("  {:3} × {} ({})", group.count, group.error, group.error_type);
    }
    assert_eq!(summary.errors[0].count, 20);

    // The fix is deployed: the affected messages are replayed at a limited rate, and the others stay.
    let report = dlq
        .replay()
        .matching(|dead_letter| dead_letter.last_error_type.ends_with("DivisionByZero"))
        .rate(500, Duration::from_secs(1))
        .run()
        .await?;
    println!("replayed {}, skipped {}", report.done, report.skipped);
    let day = Worker::new(orders).handler(fixed).run_until_empty().await?;
    assert_eq!((report.done, report.skipped, day.succeeded), (20, 1, 20));

    // The last one was the customer's mistake.
    assert_eq!(dlq.discard().run().await?.done, 1);
    backend.close().await;
    Ok(())
}
