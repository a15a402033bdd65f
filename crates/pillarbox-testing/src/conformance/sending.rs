//! Names, sends, idempotence, delays, capacity.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{
    Error, MessageId, MessageState, Outgoing, QueueName, QueueOptions, Receive, Sent, Timestamp,
};
use tokio::task::JoinSet;

use super::{LONG, Steps, assert_invalid, bodies, needs, only, queue_of};
use crate::Subject;

/// Any allowed name is a separate queue; similar names are not mixed up.
pub async fn names_of_allowed_characters_are_different_queues(s: &Subject) {
    let unique = &MessageId::new().to_string()[..13];
    let mut names = vec![
        format!("{unique}-A_b-9"),
        format!("{unique}-a_b-9"),
        format!("{unique}-a_b-9-"),
        format!("{unique}{}", "x".repeat(80 - unique.len())),
    ];
    if s.capabilities().dotted_names {
        names.extend([format!("{unique}.a_b-9"), format!("{unique}.a_b-9.")]);
    }
    if s.capabilities().extended_names {
        names.extend([format!("{unique}:a/b"), format!("{unique}/a:b"), format!("{unique}.a.b")]);
    }
    let names: Vec<QueueName> = names.iter().map(|name| name.parse().expect("a name")).collect();
    for name in &names {
        let queue = s.reopen(name, QueueOptions::new());
        let message = Outgoing::new(name.as_str().to_owned());
        queue.try_put(message).await.expect("the message is stored");
    }
    for name in &names {
        let queue = s.reopen(name, QueueOptions::new());
        assert_eq!(bodies(&queue.take(10, LONG).await), [name.as_str()]);
        queue.purge().await.expect("the queue is emptied");
    }
}

/// `:` and `/` are refused if the backend cannot hold them, before anything is stored.
pub async fn a_name_that_the_backend_cannot_hold_is_refused(s: &Subject) {
    for name in ["", "a b", "{a}", "a\nb", "ü", &"x".repeat(81)] {
        assert_invalid(s.backend().queue(name, QueueOptions::new()));
    }
    if !s.capabilities().extended_names {
        for name in ["a:b", "a/b"] {
            assert_invalid(s.backend().queue(name, QueueOptions::new()));
        }
    }
}

/// Body, id, attributes and reply address come out as they went in.
pub async fn a_message_arrives_as_it_was_sent(s: &Subject) {
    let queue = s.queue();
    let mut message = Outgoing::new(Bytes::from_iter(0..=255));
    message.attributes =
        [("tenant", "acme"), ("note", "ünï \"quoted\" {}\\"), ("n", "1")].into_iter().collect();
    message.reply_to = Some("client-7".into());
    let sent = message.clone();
    assert_eq!(queue.try_put(message).await.expect("stored").id, sent.id);

    // At every delivery, not only at the first.
    for _ in 0..2 {
        let delivery = queue.take_one(LONG).await;
        let received = &delivery.message;
        assert_eq!((received.id, &received.body), (sent.id, &sent.body));
        assert_eq!(received.attributes, sent.attributes);
        assert_eq!(received.reply_to, sent.reply_to);
        queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    }
}

/// From empty to the backend's limit, at most one mebibyte; more is refused.
pub async fn bodies_of_every_size_arrive(s: &Subject) {
    let queue = s.queue();
    let limit = s.capabilities().max_body;
    // Metadata that a backend stores with a message may count towards the limit.
    let most = match s.capabilities().max_binary_body() {
        Some(most) if s.capabilities().binary_bodies => most.min(1 << 20),
        Some(most) => (most - 1024).min(1 << 20),
        None => 1 << 20,
    };
    for size in [0, 1, 255, 4096, 65_537, most].into_iter().filter(|size| *size <= most) {
        let body = Bytes::from_iter((0..size).map(|n| (n % 251) as u8));
        queue.try_put(Outgoing::new(body.clone())).await.expect("stored");
        let delivery = queue.take_one(LONG).await;
        assert!(delivery.message.body == body, "a body of {size} bytes came out different");
        queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
    }
    if let Some(limit) = limit {
        assert_invalid(queue.try_put(Outgoing::new(vec![0; limit + 1])).await);
    }
}

/// `enqueued_at` is the time of sending, and the same at every delivery.
pub async fn the_backends_clock_stamps_a_message(s: &Subject) {
    let queue = queue_of(s, &["first"]).await;
    s.pass(2).await;
    queue.put("second").await;
    let mut stamps = Vec::new();
    for _ in 0..2 {
        let mut pair = queue.take(10, LONG).await;
        pair.sort_by_key(|d| d.message.enqueued_at);
        assert_eq!(bodies(&pair), ["first", "second"]);
        stamps.push([pair[0].message.enqueued_at, pair[1].message.enqueued_at]);
        for delivery in pair {
            queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
        }
    }
    assert_eq!(stamps[0], stamps[1]);
    assert!(stamps[0][1].since(stamps[0][0]) >= s.ticks(1), "{stamps:?}");
}

/// A message with a time of its first send keeps that time.
pub async fn a_moved_message_keeps_the_time_it_was_sent(s: &Subject) {
    let queue = s.queue();
    let mut message = Outgoing::new("moved");
    let long_ago = Timestamp::from_secs(1_000_000_000);
    message.enqueued_at = Some(long_ago);
    queue.try_put(message).await.expect("stored");
    assert_eq!(queue.take_one(LONG).await.message.enqueued_at, long_ago);
}

/// A send repeated because its answer was lost stores nothing and succeeds.
pub async fn an_id_that_is_ready_is_not_stored_again(s: &Subject) {
    needs!(s: idempotent_send);
    let queue = s.queue();
    let id = queue.put("first").await;
    let again = queue.try_put(Outgoing::with_id(id, "second")).await;
    assert_eq!(again.expect("a repeated send succeeds"), Sent::duplicate(id));
    assert_eq!(bodies(&queue.take(10, LONG).await), ["first"]);
}

/// Neither a lease nor a delay frees an id.
pub async fn an_id_that_is_in_flight_or_delayed_is_not_stored_again(s: &Subject) {
    needs!(s: idempotent_send, exact_counts);
    let queue = s.queue();
    let id = queue.put("once").await;
    let delivery = queue.take_one(LONG).await;
    let again = || async { queue.try_put(Outgoing::with_id(id, "again")).await };
    assert_eq!(again().await.expect("a repeated send succeeds"), Sent::duplicate(id));
    assert_eq!(queue.states().await, (0, 1, 0));
    queue.nack(&delivery.receipt, LONG).await.expect("nacked");
    assert_eq!(again().await.expect("a repeated send succeeds"), Sent::duplicate(id));
    assert_eq!(queue.states().await, (0, 0, 1));
}

/// Deleted ids are not remembered: the same id is a new message.
pub async fn an_id_may_be_sent_again_once_acknowledged(s: &Subject) {
    if s.capabilities().deduplication.is_some() {
        println!("skipped: {} remembers sent ids", s.capabilities().backend);
        return;
    }
    let queue = s.queue();
    let id = queue.put("first").await;
    let delivery = queue.take_one(LONG).await;
    queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
    queue.try_put(Outgoing::with_id(id, "second")).await.expect("stored");
    let delivery = queue.take_one(LONG).await;
    assert_eq!((&delivery.message.body[..], delivery.message.delivery_count), (&b"second"[..], 1));
}

/// Idempotence holds within one call as well.
pub async fn an_id_twice_in_one_batch_is_stored_once(s: &Subject) {
    needs!(s: idempotent_send);
    let queue = s.queue();
    let id = MessageId::new();
    let batch = vec![Outgoing::with_id(id, "first"), Outgoing::with_id(id, "second")];
    let answers = queue.send(batch).await.expect("the batch is answered");
    let answers: Vec<_> = answers.into_iter().map(|sent| sent.expect("both succeed")).collect();
    assert_eq!(answers, [Sent::stored(id), Sent::duplicate(id)]);
    assert_eq!(bodies(&queue.take(10, LONG).await), ["first"]);
}

/// One result per entry, in the order of the entries.
pub async fn a_batch_answers_each_entry_in_order(s: &Subject) {
    let queue = s.queue();
    let count = s.capabilities().max_batch;
    let batch: Vec<_> = (0..count).map(|n| Outgoing::new(n.to_string())).collect();
    let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
    let results = queue.send(batch).await.expect("the batch is answered");
    let answered: Vec<_> = results.into_iter().map(|r| r.expect("stored")).collect();
    let expected: Vec<_> = ids.iter().map(|id| Sent::stored(*id)).collect();
    assert_eq!(answered, expected);
    let mut seen = HashSet::new();
    while seen.len() < count {
        let request = Receive::up_to(s.capabilities().max_receive).visibility(LONG);
        let deliveries = queue.take_by(request.wait(s.ticks(20))).await;
        assert!(!deliveries.is_empty(), "{} of {count} arrived", seen.len());
        seen.extend(deliveries.into_iter().map(|d| d.message.id));
    }
    assert_eq!(seen, ids.into_iter().collect());
}

/// Entries fail one by one.
pub async fn an_invalid_entry_does_not_affect_the_rest(s: &Subject) {
    let queue = s.queue();
    let (mut no_address, mut no_name) = (Outgoing::new("bad"), Outgoing::new("bad"));
    no_address.reply_to = Some("".into());
    no_name.attributes = [("", "value")].into_iter().collect();
    let refused = no_address.id;
    let batch = vec![Outgoing::new("one"), no_address, no_name, Outgoing::new("two")];
    let results = queue.send(batch).await.expect("the batch is answered");
    let ok: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, false, true]);
    let error = results[1].as_ref().expect_err("refused");
    assert_eq!(error.message_id(), Some(refused), "{error}");
    let mut arrived = queue.take(10, LONG).await;
    arrived.extend(queue.take(10, LONG).await);
    let arrived: HashSet<_> = bodies(&arrived).into_iter().collect();
    assert_eq!(arrived, HashSet::from(["one", "two"]));
}

/// No entries, no results, no error.
pub async fn an_empty_batch_has_an_empty_result(s: &Subject) {
    let queue = s.queue();
    assert!(queue.send(Vec::new()).await.expect("answered").is_empty());
    assert!(queue.settle(Vec::new()).await.expect("answered").is_empty());
}

/// One entry too many, and nothing is done.
pub async fn a_batch_over_the_limit_is_refused_as_a_whole(s: &Subject) {
    let queue = s.queue();
    let batch = (0..=s.capabilities().max_batch).map(|_| Outgoing::new("x")).collect();
    assert_invalid(queue.send(batch).await);
    assert!(queue.take(1, LONG).await.is_empty());
}

/// Delayed means invisible, and then ready.
pub async fn a_delayed_message_is_invisible_until_its_time(s: &Subject) {
    let queue = s.queue();
    queue.put_delayed("later", s.ticks(6)).await;
    assert!(queue.take(10, LONG).await.is_empty());
    s.pass(1).await;
    assert!(queue.take(10, LONG).await.is_empty());
    s.pass(6).await;
    assert_eq!(bodies(&queue.take(10, LONG).await), ["later"]);
}

/// A long delay does not expire like a lease: no second copy is delivered (a known defect of celery).
pub async fn a_delay_longer_than_any_lease_delivers_once(s: &Subject) {
    let queue = s.queue();
    // Another message's lease, shorter than the delay, expires meanwhile.
    queue.put("beside").await;
    queue.put_delayed("later", s.ticks(8)).await;
    let mut later = 0;
    for _ in 0..14 {
        for delivery in queue.take(10, s.ticks(2)).await {
            if delivery.message.body == "later" {
                assert_eq!(delivery.message.delivery_count, 1);
                queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
                later += 1;
            }
        }
        s.pass(1).await;
    }
    assert_eq!(later, 1);
}

/// A delay above the backend's limit is refused, not shortened; one within the limit is kept, even if it
/// is longer than the longest lease.
pub async fn a_delay_out_of_range_is_refused(s: &Subject) {
    let queue = s.queue();
    let mut message = Outgoing::new("x");
    if !s.capabilities().sub_second {
        message.delay = Duration::from_millis(1500);
        assert_invalid(queue.try_put(message.clone()).await);
    }
    if let Some(max) = s.capabilities().max_delay {
        message.delay = max + Duration::from_secs(1);
        assert_invalid(queue.try_put(message).await);
        assert!(queue.take(1, LONG).await.is_empty());
        return;
    }
    let month = Duration::from_secs(30 * 24 * 3600);
    message.delay = month;
    queue.try_put(message).await.expect("stored");
    assert!(queue.take(1, LONG).await.is_empty());
    if s.capabilities().peek {
        let peeked = only(queue.shown(1).await);
        let MessageState::Delayed { until } = peeked.state else { panic!("{peeked:?}") };
        let delay = until.since(peeked.message.enqueued_at);
        assert!(delay + s.ticks(1) > month && delay < month + s.ticks(1), "{delay:?}");
    }
}

/// Messages in every state count; a repeated id needs no room.
pub async fn a_full_queue_stores_nothing_more(s: &Subject) {
    needs!(s: bounded, exact_counts, idempotent_send);
    let queue = s.queue_with(QueueOptions::new().max_size(3));
    let first = queue.put("in flight").await;
    queue.take_one(LONG).await;
    queue.put_delayed("delayed", LONG).await;
    let batch = vec![Outgoing::new("fits"), Outgoing::new("does not"), Outgoing::new("nor this")];
    let refused = batch[1].id;
    let results = queue.send(batch).await.expect("the batch is answered");
    assert!(results[0].is_ok() && results[2].is_err());
    match &results[1] {
        Err(Error::MailboxFull { queue: name, id, max_size: Some(3) }) => {
            assert_eq!((name, *id), (queue.name(), Some(refused)));
        }
        other => panic!("expected MailboxFull, got {other:?}"),
    }
    assert_eq!(queue.states().await, (1, 1, 1));
    let again = queue.try_put(Outgoing::with_id(first, "again")).await;
    assert_eq!(again.expect("a repeated send succeeds"), Sent::duplicate(first));
}

/// Every message that leaves makes room.
pub async fn an_acknowledgement_makes_room_in_a_full_queue(s: &Subject) {
    needs!(s: bounded);
    let queue = s.queue_with(QueueOptions::new().max_size(1));
    queue.put("first").await;
    assert!(matches!(queue.try_put(Outgoing::new("x")).await, Err(Error::MailboxFull { .. })));
    let delivery = queue.take_one(LONG).await;
    assert!(matches!(queue.try_put(Outgoing::new("x")).await, Err(Error::MailboxFull { .. })));
    queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
    queue.put("second").await;
}

/// The limit is checked in the step that stores.
pub async fn racing_senders_do_not_overfill_a_queue(s: &Subject) {
    needs!(s: bounded, exact_counts);
    let queue = s.queue_with(QueueOptions::new().max_size(5));
    let mut senders = JoinSet::new();
    for _ in 0..20 {
        let queue = queue.clone();
        senders.spawn(async move { queue.try_put(Outgoing::new("x")).await.is_ok() });
    }
    let stored = senders.join_all().await.into_iter().filter(|ok| *ok).count();
    assert_eq!((stored, queue.states().await), (5, (5, 0, 0)));
}

/// By its capability, before anything is stored; a time to live of zero is refused everywhere.
pub async fn a_time_to_live_that_the_backend_cannot_keep_is_refused(s: &Subject) {
    let open = |time| s.backend().queue(s.fresh_name(), QueueOptions::new().default_ttl(time));
    assert_invalid(open(Duration::ZERO));
    if s.capabilities().default_ttl {
        open(LONG).expect("opened");
    } else {
        assert_invalid(open(LONG));
    }
}

/// With its messages; other queues keep theirs.
pub async fn an_unused_queue_is_deleted_after_its_time_to_live(s: &Subject) {
    needs!(s: default_ttl);
    let kept = s.queue();
    kept.put("x").await;
    let brief = s.queue_with(QueueOptions::new().default_ttl(s.ticks(3)));
    brief.put("x").await;
    s.pass(5).await;
    assert_eq!((brief.states().await, kept.states().await), ((0, 0, 0), (1, 0, 0)));
    brief.put("y").await;
    assert_eq!(bodies(&brief.take(1, LONG).await), ["y"], "it can be used again");
}
