
use pillarbox::prelude::*;

async fn handle(message: Message<String>) -> pillarbox::Result<()> {
    message.acknowledge().await?;
    message.nack(Duration::ZERO).await
}

fn main() {}
