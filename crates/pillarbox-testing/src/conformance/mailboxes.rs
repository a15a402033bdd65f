//! Typed mailboxes: codecs and replies.

use std::time::Duration;

use pillarbox_core::{Error, Mailbox, Outgoing, Receive, SendOptions};

use super::{LONG, Steps};
use crate::Subject;

/// The rest of the batch arrives, and the raw bytes can be read and settled (a known defect of river and
/// sidekiq-rs).
pub async fn an_undecodable_body_is_isolated(s: &Subject) {
    let name = s.fresh_name();
    let mailbox: Mailbox<u32> = s.backend().mailbox(&name).expect("opened");
    mailbox.send(&1).await.expect("sent");
    mailbox.queue().try_put(Outgoing::new("not a number")).await.expect("sent");
    mailbox.send(&2).await.expect("sent");

    let (mut good, mut bad) = (Vec::new(), Vec::new());
    while good.len() + bad.len() < 3 {
        let request = Receive::up_to(10).visibility(LONG).wait(s.ticks(10));
        let mut batch = mailbox.receive(request).await.expect("received");
        assert!(!batch.is_empty());
        bad.extend(batch.take_undecodable());
        good.extend(batch);
    }
    good.sort_by_key(|message| *message.body());
    assert_eq!(good.iter().map(|message| *message.body()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(bad.len(), 1);
    for undecodable in bad {
        assert!(matches!(undecodable.error(), Error::Serialization { .. }));
        let message = undecodable.into_message();
        assert_eq!(&message.body()[..], b"not a number");
        message.acknowledge().await.expect("acknowledged");
    }
    for message in good {
        message.acknowledge().await.expect("acknowledged");
    }
}

/// On the same backend, by the name of the queue, if the receiver's resolver allows it.
pub async fn a_reply_goes_to_the_address_in_the_message(s: &Subject) {
    let (asked, answered) = (s.fresh_name(), s.fresh_name());
    let requests = s.backend().builder(&asked).allow_reply_to(answered.as_str());
    let requests: Mailbox<u32, String> = requests.open().expect("opened");
    let replies: Mailbox<String> = s.backend().mailbox(&answered).expect("opened");
    let options = SendOptions::new().reply_to(answered.as_str());
    requests.send_with(&7, options).await.expect("sent");

    let batch = requests.receive(Receive::one().wait(s.ticks(10))).await.expect("received");
    for request in batch {
        let reply = format!("{} it is", request.body());
        request.reply_mailbox().expect("resolved").send(&reply).await.expect("replied");
        request.acknowledge().await.expect("acknowledged");
    }
    let batch = replies.receive(Receive::one().wait(s.ticks(10))).await.expect("received");
    assert_eq!(batch.messages()[0].body(), "7 it is");
}

/// No address, an invalid one, or one that the resolver does not allow.
pub async fn a_reply_without_an_address_is_unavailable(s: &Subject) {
    let requests: Mailbox<u32, String> = s.backend().mailbox(s.fresh_name()).expect("opened");
    requests.send(&1).await.expect("sent");
    requests.send_with(&2, SendOptions::new().reply_to("no such name")).await.expect("sent");
    let other = s.fresh_name();
    requests.send_with(&3, SendOptions::new().reply_to(other.as_str())).await.expect("sent");
    let mut seen = 0;
    while seen < 3 {
        let request = Receive::up_to(10).visibility(LONG).wait(s.ticks(10));
        let batch = requests.receive(request).await.expect("received");
        assert!(!batch.is_empty());
        for message in batch {
            let error = message.reply_mailbox().expect_err("nowhere to reply to");
            assert!(matches!(error, Error::ReplyMailboxUnavailable { .. }), "{error}");
            assert_eq!(error.message_id(), Some(message.id()));
            message.nack(Duration::ZERO).await.expect("nacked");
            seen += 1;
        }
    }
}

/// More than the backend accepts at once.
pub async fn a_long_batch_goes_in_several_calls(s: &Subject) {
    let mailbox: Mailbox<usize> = s.backend().mailbox(s.fresh_name()).expect("opened");
    let count = s.capabilities().max_batch * 2 + 1;
    let bodies: Vec<_> = (0..count).collect();
    let results = mailbox.send_batch(&bodies).await.expect("sent");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), count);

    let (mut sum, mut receipts) = (0, Vec::new());
    while receipts.len() < count {
        let max = s.capabilities().max_receive;
        let request = Receive::up_to(max).visibility(LONG).wait(s.ticks(10));
        let batch = mailbox.receive(request).await.expect("received");
        assert!(!batch.is_empty(), "{} of {count} arrived", receipts.len());
        sum += batch.messages().iter().map(|message| *message.body()).sum::<usize>();
        receipts.extend(batch.into_iter().map(|message| message.receipt().clone()));
    }
    assert_eq!(sum, count * (count - 1) / 2);
    let settles = receipts.into_iter().map(pillarbox_core::Settle::acknowledge);
    let results = mailbox.settle(settles).await.expect("settled");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), count);
}
