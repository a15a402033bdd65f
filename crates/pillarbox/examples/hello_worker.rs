//! The smallest worker: a handler, and a mailbox that it serves.
//!
//!     cargo run --example hello_worker
//!
//! A service would end with `.run().await`, which works until it is told to stop, by SIGTERM or Ctrl+C.
//! This one stops by itself, when the one letter is read.

use pillarbox::prelude::*;
use pillarbox::runtime::Event;

#[tokio::main]
async fn main() -> pillarbox::Result<()> {
    let backend = pillarbox::open("memory:").await?;
    let letters: Mailbox<String> = backend.mailbox("letters")?;
    letters.send(&"Dear reader".to_owned()).await?;

    let worker = Worker::new(letters).handler(|letter: String| async move { println!("{letter}") });

    let mut events = worker.control().events();
    let read = async move {
        events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await;
    };
    let stats = worker.run_until(read).await?;
    assert_eq!(stats.succeeded, 1);
    Ok(())
}
