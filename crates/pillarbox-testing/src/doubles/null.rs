//! A mailbox that drops everything.

use std::sync::Arc;

use pillarbox_core::{
    BoxFuture, Capabilities, Codec, Counts, Cursor, Delivery, Error, Gate, Json, Mailbox,
    NoReplies, Outgoing, PeekPage, Queue, QueueName, Receive, Result, Sent, Settle, Timestamp,
};

/// Creates mailboxes that drop what is sent and never deliver anything.
///
/// ```
/// use pillarbox_core::{Mailbox, Receive};
/// use pillarbox_testing::NullMailbox;
///
/// # pillarbox_testing::block_on(async {
/// let mailbox: Mailbox<u32> = NullMailbox::new();
/// mailbox.send(&7).await?;
/// assert!(mailbox.receive(Receive::one()).await?.is_empty());
/// assert_eq!(mailbox.approximate_count().await?, 0);
/// # Ok::<(), pillarbox_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct NullMailbox;

impl NullMailbox {
    /// Creates a mailbox called `null`.
    #[expect(clippy::new_ret_no_self, reason = "a double is a queue; what users hold is a mailbox")]
    pub fn new<T: 'static, R: 'static>() -> Mailbox<T, R>
    where
        Json: Codec<T>,
    {
        let queue = NullQueue {
            name: QueueName::new("null").expect("a valid name"),
            capabilities: Capabilities::full("null"),
            gate: Gate::new(),
        };
        Mailbox::new(Arc::new(queue), Json, NoReplies)
    }
}

#[derive(Debug)]
struct NullQueue {
    name: QueueName,
    capabilities: Capabilities,
    gate: Gate,
}

impl Queue for NullQueue {
    fn name(&self) -> &QueueName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            let accept = |message: Outgoing| {
                let checked = self.capabilities.check_outgoing(&self.name, &message);
                checked.map(|()| Sent::stored(message.id))
            };
            Ok(batch.into_iter().map(accept).collect())
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.capabilities.check_receive(&self.name, &request)?;
            let _ = tokio::time::timeout(request.wait, self.gate.closed()).await;
            self.gate.check(&self.name)?;
            Ok(Vec::new())
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            let refuse = |settle: Settle| {
                let (queue, receipt) = (self.name.clone(), settle.receipt);
                Err(Error::ReceiptHandleExpired { queue, receipt })
            };
            Ok(batch.into_iter().map(refuse).collect())
        })
    }

    fn peek(&self, _max: usize, _after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async { self.gate.check(&self.name).map(|()| PeekPage::new(Vec::new(), None)) })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        let none = Counts::default().with_sent(Some(0)).with_counted_at(Some(Timestamp::now()));
        Box::pin(async move { self.gate.check(&self.name).map(|()| none) })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async { self.gate.check(&self.name).map(|()| 0) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}
