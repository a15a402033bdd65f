//! A message that crashes every process that handles it. After six crashes it becomes a dead letter; all other messages
//! are handled.
//!
//!     cargo run --example poison_message
//!
//! This program starts itself as the worker and restarts it after each crash, as a supervisor would.

use std::process::Command;

use pillarbox::FailureKind;
use pillarbox::prelude::*;

const ROLE: &str = "POISON_MESSAGE_WORKER";

/// The worker process, which crashes.
async fn work(url: &str) -> pillarbox::Result<()> {
    let backend = pillarbox::open(url).await?;
    let jobs: Mailbox<String> = backend.mailbox("jobs")?;
    Worker::new(jobs)
        // Short, to keep the example short.
        .visibility(Duration::from_millis(500))
        .max_deliveries(5)
        .dead_letters(DlqPolicy::new())
        .handler(|job: String| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if job == "poison" {
                // As by a stack overflow, a bug in a C library, or lack of memory.
                std::process::abort();
            }
        })
        .run_until_empty()
        .await?;
    backend.close().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Ok(url) = std::env::var(ROLE) {
        return Ok(work(&url).await?);
    }
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("jobs.db").display());
    let backend = pillarbox::open(&url).await?;
    let jobs: Mailbox<String> = backend.mailbox("jobs")?;
    let all: Vec<_> =
        (0..30).map(|n| if n == 3 { "poison".to_owned() } else { format!("job {n}") }).collect();
    jobs.send_batch(&all).await?.all()?;

    let mut crashes = 0;
    loop {
        let status = Command::new(std::env::current_exe()?).env(ROLE, &url).status()?;
        let left = jobs.approximate_count().await?;
        println!("a worker ended with {status}; {left} jobs are left");
        if status.success() {
            break;
        }
        crashes += 1;
    }
    let dead: Mailbox<DeadLetter<String>> = backend.mailbox("jobs-dlq")?;
    let dead_letters = dead.peek(10).await?;
    // After the first crash, it is not known which of the received messages a handler had started.
    assert_eq!((dead_letters.len(), crashes), (1, 6), "one dead letter after six crashes");
    for dead_letter in dead_letters {
        let dead_letter = dead_letter.body?;
        println!("'{}' is a dead letter: {}", dead_letter.body, dead_letter.last_error);
        assert_eq!((&*dead_letter.body, dead_letter.failure), ("poison", FailureKind::Quarantined));
    }
    backend.close().await;
    Ok(())
}
