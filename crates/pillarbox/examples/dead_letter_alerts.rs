//! A dead-letter consumer that alerts, replays messages that timed out and keeps the rest, and a health check that
//! fails if there are too many dead letters.
//!
//!     cargo run --example dead_letter_alerts

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pillarbox::FailureKind;
use pillarbox::dead_letters::DlqLimits;
use pillarbox::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open("memory:").await?;
    let emails: Mailbox<String> = backend.mailbox("emails")?;
    let to = ["ada@example.org", "slow@example.org", "no address", "grace@example.org"];
    emails.send_batch(&to.map(str::to_owned)).await?.all()?;

    // The mail server is slow until it is fixed.
    let is_fixed = Arc::new(AtomicBool::new(false));
    let server = is_fixed.clone();
    let workers = Worker::new(emails)
        .retry(Backoff::none())
        .timeout(Duration::from_millis(50))
        .max_deliveries(2)
        .dead_letters(DlqPolicy::new())
        .handler(move |to: String| {
            let server = server.clone();
            async move {
                if to.starts_with("slow") && !server.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                if to.contains('@') { Ok(()) } else { Err(format!("'{to}' is not an address")) }
            }
        })
        .start();
    let mut stats = workers.control().stats();
    stats.wait_for(|stats| stats.succeeded + stats.dead_lettered == 4).await?;

    let dead: Mailbox<DeadLetter<String>> = backend.mailbox("emails-dlq")?;
    let dlq = Dlq::of(&dead);
    let health = dlq.health(DlqLimits::default().depth(2)).await?;
    println!("health  {}", serde_json::to_string(&health)?);

    let server = is_fixed.clone();
    let consumer = DlqConsumer::new(dead.clone(), move |dead_letter: DeadLetter<String>| {
        let server = server.clone();
        async move {
            println!(
                "ALERT   {} of {} failed {} times: {} ({})",
                dead_letter.message_id,
                dead_letter.source_mailbox,
                dead_letter.delivery_count,
                dead_letter.last_error,
                dead_letter.last_error_type
            );
            if dead_letter.failure == FailureKind::Timeout {
                server.store(true, Ordering::Relaxed);
                DlqAction::replay()
            } else {
                // For a person to look at: it stays in the queue, and alerts again tomorrow.
                DlqAction::keep_for(Duration::from_secs(24 * 3600))
            }
        }
    })
    .retain_for(Duration::from_secs(30 * 24 * 3600))
    .start();

    stats.wait_for(|stats| stats.succeeded == 3).await?;
    println!("the replayed message succeeded");
    consumer.stop().await?;
    let stats = workers.stop().await?;
    assert_eq!((stats.succeeded, stats.dead_lettered), (3, 2));
    assert_eq!(dead.approximate_count().await?, 1);
    Ok(())
}
