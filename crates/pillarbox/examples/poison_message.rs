//! A message that takes down every process that handles it: it kills six, and then it is a dead letter; what
//! was in hand beside it is done all the same.
//!
//!     cargo run --example poison_message
//!
//! This program starts itself again as the worker, as often as it dies, as a supervisor would.

use std::process::Command;

use pillarbox::prelude::*;
use pillarbox::runtime::FailureKind;

const ROLE: &str = "POISON_MESSAGE_WORKER";

/// The process that works, and dies.
async fn work(url: &str) -> pillarbox::Result<()> {
    let backend = pillarbox::open(url).await?;
    let jobs: Mailbox<String> = backend.mailbox("jobs")?;
    Worker::new(jobs)
        // Short, so that this example is.
        .visibility(Duration::from_millis(500))
        .max_deliveries(5)
        .dead_letters(DlqPolicy::new())
        .handler(|job: String| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if job == "poison" {
                // As a stack overflow would, or a bug in a C library, or too little memory.
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

    let mut deaths = 0;
    loop {
        let status = Command::new(std::env::current_exe()?).env(ROLE, &url).status()?;
        let left = jobs.approximate_count().await?;
        println!("a worker ended with {status}; {left} jobs are left");
        if status.success() {
            break;
        }
        deaths += 1;
    }
    let dead: Mailbox<DeadLetter<String>> = backend.mailbox("jobs-dlq")?;
    let letters = dead.peek(10).await?;
    // The first time it is not known which of those in hand a handler had started on.
    assert_eq!((letters.len(), deaths), (1, 6), "one dead letter, after six processes");
    for letter in letters {
        let letter = letter.body?;
        println!("'{}' is a dead letter: {}", letter.body, letter.last_error);
        assert_eq!((&*letter.body, letter.failure), ("poison", FailureKind::Quarantined));
    }
    backend.close().await;
    Ok(())
}
