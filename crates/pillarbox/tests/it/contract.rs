//! A program that uses every operation and runs unchanged on every backend URL.

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Request {
    n: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Reply {
    n: u64,
}

async fn program(url: &str) -> pillarbox::Result<Vec<u64>> {
    let backend = pillarbox::open(url).await?;
    let requests = backend.builder("requests").allow_reply_to("client-7");
    let requests: Mailbox<Request, Reply> = requests.open()?;
    let replies: Mailbox<Reply> = backend.mailbox("client-7")?;

    let options = || SendOptions::new().reply_to("client-7").attribute("tenant", "acme");
    requests.send(&Request { n: 1 }).await?;
    requests.send_with(&Request { n: 2 }, options().delay(Duration::from_secs(1))).await?;
    let many: Vec<_> = (3..8).map(|n| Request { n }).collect();
    for result in requests.send_batch(&many).await? {
        result?;
    }
    for result in requests.send_batch_with(many.iter().map(|body| (body, options()))).await? {
        result?;
    }

    let mut seen = Vec::new();
    while seen.len() < 12 {
        let request =
            Receive::up_to(10).visibility(Duration::from_secs(30)).wait(Duration::from_secs(20));
        let batch = requests.receive(request).await?;
        assert!(batch.undecodable().is_empty());
        for message in batch {
            let n = message.body().n;
            assert_eq!(message.id(), message.receipt().message_id().unwrap_or(message.id()));
            assert_eq!(message.delivery_count(), 1);
            assert!(message.enqueued_at() <= pillarbox::Timestamp::now() + Duration::from_secs(5));
            message.extend_visibility(Duration::from_secs(60)).await?;
            match message.reply_to() {
                Some(_) => {
                    assert_eq!(message.attributes().get("tenant"), Some("acme"));
                    message.reply_mailbox()?.send(&Reply { n }).await?;
                }
                None => {
                    let error = message.reply_mailbox().expect_err("it has no address");
                    assert!(matches!(error, pillarbox::Error::ReplyMailboxUnavailable { .. }));
                }
            }
            seen.push(n);
            message.acknowledge().await?;
        }
    }
    assert_eq!(requests.counts().await?.total(), 0);
    assert_eq!(replies.approximate_count().await?, 6);

    for reply in replies.receive(Receive::up_to(3)).await? {
        reply.nack(Duration::ZERO).await?;
    }
    assert_eq!(replies.purge().await?, 6);
    requests.close().await;
    assert!(matches!(requests.counts().await, Err(pillarbox::Error::Closed { .. })));
    Ok(seen)
}

#[tokio::test(start_paused = true)]
async fn the_program_runs_in_memory() {
    let seen = program("memory:").await.unwrap();
    assert_eq!(seen, [1, 3, 4, 5, 6, 7, 3, 4, 5, 6, 7, 2]);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn the_program_runs_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("program.db");
    for url in [format!("sqlite:{}", file.display()), "sqlite::memory:".to_owned()] {
        let seen = program(&url).await.unwrap();
        assert_eq!(seen, [1, 3, 4, 5, 6, 7, 3, 4, 5, 6, 7, 2], "{url}");
    }
}
