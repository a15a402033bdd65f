use pillarbox::prelude::*;

async fn handle(message: Message<String>) -> pillarbox::Result<()> {
    message.acknowledge().await?;
    message.acknowledge().await
}

fn main() {}
