
use pillarbox::prelude::*;

async fn handle(message: Message<u32>) -> pillarbox::Result<()> {
    message.nack(Duration::ZERO).await?;
    message.extend_visibility(Duration::from_secs(30)).await
}

fn main() {}
