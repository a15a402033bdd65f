use pillarbox::prelude::*;

async fn handle(message: Message<String, u64>) -> pillarbox::Result<MessageId> {
    message.reply_mailbox()?.send(&"not a number").await
}

fn main() {}
