//! The smallest program: send, receive, acknowledge.
//!
//!     cargo run --example hello

use pillarbox::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> pillarbox::Result<()> {
    let backend = pillarbox::open("memory:").await?;
    let letters: Mailbox<String> = backend.mailbox("letters")?;

    letters.send(&"Dear reader".to_owned()).await?;

    for message in letters.receive(Receive::up_to(10).wait(Duration::from_secs(20))).await? {
        println!("{} (delivery {})", message.body(), message.delivery_count());
        message.acknowledge().await?;
    }
    Ok(())
}
