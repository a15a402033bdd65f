//! Counts, peek, purge, listing.

use std::collections::HashSet;
use std::time::Duration;

use pillarbox_core::{MessageState, Outgoing, QueueOptions, RawMessage, Timestamp};

use super::{LONG, Steps, assert_invalid, needs, only, queue_of};
use crate::Subject;

/// Ready, in flight and delayed, and their sum.
pub async fn counts_report_every_state(s: &Subject) {
    needs!(s: exact_counts);
    let queue = s.queue();
    assert_eq!(queue.states().await, (0, 0, 0));
    queue.put_all(&["a", "b", "c", "d"]).await;
    queue.put_delayed("e", LONG).await;
    let pair = queue.take(2, LONG).await;
    assert_eq!(queue.states().await, (2, 2, 1));
    queue.nack(&pair[0].receipt, LONG).await.expect("nacked");
    assert_eq!(queue.states().await, (2, 1, 2));
    queue.acknowledge(&pair[1].receipt).await.expect("acknowledged");
    assert_eq!(queue.states().await, (2, 0, 2));
    assert_eq!(queue.counts().await.expect("counts").total(), 4);
}

/// A message that became ready by time alone counts as ready, even if no receive has asked for it yet.
pub async fn counts_follow_time(s: &Subject) {
    needs!(s: exact_counts);
    let queue = queue_of(s, &["expires"]).await;
    queue.take_one(s.ticks(6)).await;
    queue.put_delayed("comes due", s.ticks(6)).await;
    assert_eq!(queue.states().await, (0, 1, 1));
    s.pass(8).await;
    assert_eq!(queue.states().await, (2, 0, 0));
}

/// Since it was sent; `None` if nothing is ready.
pub async fn oldest_age_is_that_of_the_next_message(s: &Subject) {
    needs!(s: exact_counts);
    let queue = s.queue();
    let age = || async { queue.counts().await.expect("counts").oldest_age };
    assert_eq!(age().await, None);
    queue.put("x").await;
    s.pass(3).await;
    queue.put("y").await;
    let old = age().await.expect("something is ready");
    assert!(old >= s.ticks(2) && old < LONG, "{old:?}");
    queue.take(10, LONG).await;
    assert_eq!(age().await, None);
}

/// Each message that was stored, once: no repeated id, nothing refused, no redelivery.
pub async fn sent_counts_what_was_stored_and_outlives_purges(s: &Subject) {
    needs!(s: exact_counts);
    let queue = s.queue();
    let Some(at_first) = queue.lifetime().await else {
        println!("skipped: {} does not count sends", s.capabilities().backend);
        return;
    };
    assert_eq!(at_first, (0, 0));
    let ids = queue.put_all(&["a", "b", "c"]).await;
    queue.put_delayed("d", s.ticks(2)).await;
    assert_eq!(queue.lifetime().await, Some((4, 0)));
    if s.capabilities().idempotent_send {
        let again = vec![Outgoing::with_id(ids[0], "a"), Outgoing::with_id(ids[0], "a")];
        queue.send(again).await.expect("repeated sends are answered");
    }
    if s.capabilities().bounded {
        let full = s.reopen(queue.name(), QueueOptions::new().max_size(4));
        full.try_put(Outgoing::new("too many")).await.expect_err("the queue is full");
    }
    let first = queue.take(1, LONG).await;
    queue.nack(&first[0].receipt, Duration::ZERO).await.expect("nacked");
    queue.take(1, s.ticks(2)).await;
    s.pass(4).await;
    assert_eq!(queue.lifetime().await, Some((4, 0)));

    let again = queue.take_one(LONG).await;
    queue.acknowledge(&again.receipt).await.expect("acknowledged");
    assert_eq!(queue.lifetime().await, Some((4, 1)));
    assert_eq!(queue.purge().await.expect("purged"), 3);
    assert_eq!(queue.lifetime().await, Some((4, 4)));
    // An id that is sent again after its message has gone is stored again.
    queue.try_put(Outgoing::with_id(ids[0], "a")).await.expect("stored");
    assert_eq!(queue.lifetime().await, Some((5, 4)));
    if s.capabilities().purge_cooldown.is_none() {
        assert_eq!(queue.purge().await.expect("purged"), 1);
        assert_eq!(queue.purge().await.expect("purged"), 0);
        assert_eq!(queue.lifetime().await, Some((5, 5)));
    }
}

/// The time of a count lies between the timestamps of messages sent before and after it, to within a second,
/// which is the precision of some servers.
pub async fn a_count_has_the_time_of_the_clock_that_stamps_messages(s: &Subject) {
    let queue = queue_of(s, &["before"]).await;
    s.pass(2).await;
    let counted_at = queue.counts().await.expect("counts").counted_at;
    let counted_at = counted_at.expect("a count has its time");
    s.pass(2).await;
    queue.put("after").await;
    let mut pair = queue.take(10, LONG).await;
    pair.sort_by_key(|d| d.message.enqueued_at);
    let [before, after] = [0, 1].map(|place: usize| pair[place].message.enqueued_at);
    let second = Duration::from_secs(1);
    assert!(before.since(counted_at) <= second, "{before} {counted_at}");
    assert!(counted_at.since(after) == Duration::ZERO, "{counted_at} {after}");
    assert!(after.since(counted_at) < LONG, "{after} {counted_at}");
}

/// Messages in every state.
pub async fn purge_returns_the_number_deleted_and_leaves_none(s: &Subject) {
    needs!(s: exact_counts);
    let queue = queue_of(s, &["a", "b", "c"]).await;
    queue.put_delayed("d", s.ticks(4)).await;
    queue.take_one(s.ticks(4)).await;
    assert_eq!(queue.purge().await.expect("purged"), 4);
    s.pass(6).await;
    assert_eq!(queue.states().await, (0, 0, 0));
    assert!(queue.take(10, LONG).await.is_empty());
    assert_eq!(queue.purge().await.expect("purged"), 0);
}

/// In the order in which they are, or will be, ready, with their states.
pub async fn peek_shows_every_state_and_delivers_nothing(s: &Subject) {
    needs!(s: peek, fifo);
    let queue = s.queue();
    let mut leased = Outgoing::new("leased");
    leased.attributes = [("k", "v")].into_iter().collect();
    leased.reply_to = Some("client-7".into());
    queue.try_put(leased).await.expect("stored");
    queue.put_all(&["first", "second"]).await;
    queue.put_delayed("delayed", s.ticks(30)).await;
    let delivery = queue.take_one(s.ticks(60)).await;

    let shown = queue.shown(10).await;
    let bodies: Vec<_> = shown.iter().map(|p| &p.message.body[..]).collect();
    assert_eq!(bodies, [&b"first"[..], b"second", b"delayed", b"leased"]);
    let counts: Vec<_> = shown.iter().map(|p| p.message.delivery_count).collect();
    assert_eq!(counts, [0, 0, 0, 1]);
    assert!(matches!(shown[0].state, MessageState::Ready));
    let (MessageState::Delayed { until: due }, MessageState::InFlight { until: deadline }) =
        (shown[2].state, shown[3].state)
    else {
        panic!("{shown:?}");
    };
    let apart = deadline.since(due);
    assert!(apart > s.ticks(20) && apart < s.ticks(40), "{apart:?}");
    assert_eq!(shown[3].message, delivery.message);
    assert_eq!(queue.shown(1).await.len(), 1);

    assert_eq!(queue.take_one(LONG).await.message.delivery_count, 1);
    queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
}

/// Whether or not the message was requeued yet, as for its state.
pub async fn peek_shows_an_expired_delivery_as_soon_as_its_lease_has_ended(s: &Subject) {
    needs!(s: peek, counts_unsettled);
    let queue = queue_of(s, &["x"]).await;
    let shown = async || {
        let shown = only(queue.shown(10).await);
        let RawMessage { unsettled, uncounted, .. } = shown.message;
        (unsettled, uncounted, shown.state == MessageState::Ready)
    };
    assert_eq!(shown().await, (0, 0, true));
    queue.take_one(s.ticks(6)).await;
    assert_eq!(shown().await, (0, 0, false), "the lease runs");
    s.pass(8).await;
    assert_eq!(shown().await, (0, 1, true));
    let delivery = queue.take_one(LONG).await;
    queue.start(&delivery.receipt, s.ticks(6)).await.expect("started");
    assert_eq!(shown().await, (0, 1, false), "the lease runs");
    s.pass(8).await;
    assert_eq!(shown().await, (1, 1, true));
    // A peek does not count as a delivery.
    assert_eq!(shown().await, (1, 1, true));
    let delivery = queue.take_one(LONG).await;
    assert_eq!((delivery.message.unsettled, delivery.message.uncounted), (1, 1));
    assert_eq!(shown().await, (1, 1, false));
    queue.nack(&delivery.receipt, LONG).await.expect("nacked");
    assert_eq!(shown().await, (1, 1, false));
}

/// If the queue does not change, each message is shown once and in order.
pub async fn peek_pages_through_a_queue_of_any_length(s: &Subject) {
    needs!(s: peek, fifo);
    let queue = s.queue();
    let count = s.capabilities().max_receive + 7;
    for start in (0..count).step_by(100) {
        let batch = (start..count.min(start + 100)).map(|n| Outgoing::new(n.to_string()));
        queue.send(batch.collect()).await.expect("stored");
    }
    // The first ones are in flight, and so are shown last.
    queue.take(5, LONG).await;
    for size in [s.capabilities().max_receive, 300] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = queue.peek(size, after).await.expect("shown");
            assert!(page.messages.len() <= size);
            seen.extend(page.messages.into_iter().map(|peeked| peeked.message.body));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected: Vec<_> = (5..count).chain(0..5).map(|n| n.to_string()).collect();
        assert_eq!(seen, expected, "in pages of {size}");
    }
    let nonsense = Some(pillarbox_core::Cursor::new("no cursor"));
    assert_invalid(queue.peek(1, nonsense).await);
}

/// Monitoring has no side effects at any rate (a known defect of asynqmon).
pub async fn inspection_changes_nothing(s: &Subject) {
    needs!(s: peek, fifo, exact_counts);
    let queue = queue_of(s, &["a", "b"]).await;
    let delivery = queue.take_one(LONG).await;
    for _ in 0..50 {
        assert_eq!(queue.states().await, (1, 1, 0));
        assert_eq!(queue.shown(10).await.len(), 2);
        s.backend().queues().await.expect("listed");
    }
    queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    let both = queue.take(10, LONG).await;
    let counts: Vec<_> = both.iter().map(|d| d.message.delivery_count).collect();
    assert_eq!(counts, [1, 2]);
}

/// By its name, once.
pub async fn a_queue_with_messages_is_listed(s: &Subject) {
    let queues = [s.queue(), s.queue()];
    for queue in &queues {
        queue.put("x").await;
    }
    let listed = s.backend().queues().await.expect("listed");
    for queue in &queues {
        assert_eq!(listed.iter().filter(|name| *name == queue.name()).count(), 1);
    }
    let distinct: HashSet<_> = listed.iter().collect();
    assert_eq!(distinct.len(), listed.len());
    assert!(listed.is_sorted());
}

/// Nothing is left behind, however the messages were settled.
pub async fn a_queue_that_was_drained_holds_nothing(s: &Subject) {
    needs!(s: exact_counts);
    let queue = s.queue();
    for n in 0..20 {
        let mut message = Outgoing::new("x");
        message.delay = s.ticks(n % 3);
        message.enqueued_at = (n % 2 == 0).then(|| Timestamp::from_secs(1));
        queue.try_put(message).await.expect("stored");
    }
    let mut round = 0;
    while queue.counts().await.expect("counts").total() > 0 {
        round += 1;
        assert!(round < 100, "the queue does not drain: {:?}", queue.states().await);
        // One is left to expire, the others are nacked or acknowledged.
        if round < 5 {
            queue.take(1, s.ticks(2)).await;
        }
        for (n, delivery) in queue.take(7, LONG).await.into_iter().enumerate() {
            match (n + round) % 3 {
                0 => queue.nack(&delivery.receipt, s.ticks(1)).await.expect("nacked"),
                _ => queue.acknowledge(&delivery.receipt).await.expect("acknowledged"),
            }
        }
        s.pass(1).await;
    }
    if s.capabilities().peek {
        assert!(queue.shown(10).await.is_empty());
    }
    queue.put("works on").await;
    only(queue.take(10, LONG).await);
}

/// Neither looking for problems nor a repair of a sound backend.
pub async fn a_sound_backend_has_no_problem_and_diagnosing_changes_nothing(s: &Subject) {
    let queue = queue_of(s, &["a", "b"]).await;
    queue.put_delayed("c", LONG).await;
    let held = queue.take_one(LONG).await;
    for repair in [false, true] {
        let diagnosis = s.backend().diagnose(repair).await.expect("a diagnosis");
        let problems: Vec<_> = diagnosis.problems().collect();
        assert!(problems.is_empty(), "{problems:?}");
        assert!(!diagnosis.promise.is_empty());
    }
    if s.capabilities().exact_counts {
        assert_eq!(queue.states().await, (1, 1, 1));
    }
    queue.acknowledge(&held.receipt).await.expect("the lease runs on");
}
