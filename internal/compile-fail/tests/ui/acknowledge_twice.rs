use pillarbox::prelude::*;

async fn handle(message: Message<u32>) -> pillarbox::Result<()> {
    message.acknowledge().await?;
    message.acknowledge().await
}

fn main() {}
