
use pillarbox::prelude::*;

async fn handle(message: Message<u32>) -> pillarbox::Result<()> {
    message.acknowledge().await?;
    message.nack(Duration::ZERO).await
}

fn main() {}
