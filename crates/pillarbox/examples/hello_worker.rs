//! The smallest worker: a mailbox and a handler.
//!
//!     cargo run --example hello_worker
//!
//! A service would end with `.run().await`, which runs until SIGTERM or Ctrl+C. This one stops when the mailbox is
//! empty.

use pillarbox::prelude::*;

#[tokio::main]
async fn main() -> pillarbox::Result<()> {
    let backend = pillarbox::open("memory:").await?;
    let letters: Mailbox<String> = backend.mailbox("letters")?;
    letters.send(&"Dear reader".to_owned()).await?;

    let stats = Worker::new(letters)
        .handler(|letter: String| async move { println!("{letter}") })
        .run_until_empty()
        .await?;
    assert_eq!(stats.succeeded, 1);
    Ok(())
}
