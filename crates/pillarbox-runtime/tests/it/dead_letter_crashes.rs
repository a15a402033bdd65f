//! Dead-lettering and replaying with a crash between every two steps, before and after each call of a queue takes
//! effect: exactly one dead letter for each message, and none lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::{
    Json, Mailbox, Mailboxes, MemoryBackend, MessageId, NoReplies, QueueOptions, RawMessage,
    Receive, SendOptions,
};
use pillarbox_runtime::dead_letters::{DeadLetter, Dlq, DlqPolicy};
use pillarbox_runtime::{DlqAction, DlqConsumer, Outcome, Runnable, Worker};

use crate::common::crash::Crash;

const LEASE: Duration = Duration::from_secs(30);
const MESSAGES: u32 = 5;

/// The queues of a test.
struct Stage {
    backend: Mailboxes,
    jobs: Mailbox<u32, String>,
    dead: Mailbox<DeadLetter<u32>>,
    replies: Mailbox<String>,
    /// The calls of the hooks of all workers.
    calls: Arc<Mutex<HookCalls>>,
}

#[derive(Debug, Default)]
struct HookCalls {
    failed: Vec<MessageId>,
    dead: Vec<MessageId>,
}

impl Stage {
    fn new() -> Self {
        let backend = Mailboxes::new(MemoryBackend::new());
        Self {
            jobs: backend.builder("jobs").allow_reply_to("replies").open().expect("a mailbox"),
            dead: backend.mailbox("jobs-dlq").expect("a mailbox"),
            replies: backend.mailbox("replies").expect("a mailbox"),
            calls: Arc::default(),
            backend,
        }
    }

    /// Returns the same queues for a process that crashes.
    fn ending(&self, crash: &std::sync::Arc<Crash>) -> Self {
        let over = |name: &str| {
            crash.over(self.backend.queue(name, QueueOptions::new()).expect("a queue"))
        };
        let replies = Mailbox::new(over("replies"), Json, NoReplies);
        let to = replies.clone();
        let resolver = pillarbox_core::Factory::new(move |_: &str| Ok(to.clone()));
        Self {
            backend: self.backend.clone(),
            jobs: Mailbox::new(over("jobs"), Json, resolver),
            dead: Mailbox::new(over("jobs-dlq"), Json, NoReplies),
            replies,
            calls: self.calls.clone(),
        }
    }

    async fn send(&self) -> BTreeSet<MessageId> {
        let mut ids = BTreeSet::new();
        for n in 0..MESSAGES {
            let options = SendOptions::new().reply_to("replies");
            ids.insert(self.jobs.send_with(&n, options).await.expect("sent"));
        }
        ids
    }

    /// Fails every message.
    async fn work(&self) {
        let (failed, dead) = (self.calls.clone(), self.calls.clone());
        let worker = Worker::new(self.jobs.clone())
            .on_failure(move |one| failed.lock().expect("a lock").failed.push(one.about.message_id))
            .on_dead_letter(move |one, _| dead.lock().expect("a lock").dead.push(one.message_id))
            .visibility(LEASE)
            .dead_letters(DlqPolicy::to(&self.dead))
            .error_reply(|letter| format!("{}: {}", letter.body.escape_ascii(), letter.last_error))
            .handler(|_: u32| async { Outcome::reject("no") });
        worker.run_until_empty().await.expect("empty");
    }

    /// Checks that each dead letter was reported as a failure, that each reported dead letter is stored, and that each
    /// acknowledged message was reported as a dead letter: a crash repeats reports, and omits none.
    async fn assert_reported_before_settled(&self, sent: &BTreeSet<MessageId>) {
        let letters: BTreeSet<_> = self.letters().await.iter().map(|one| one.message_id).collect();
        let left: BTreeSet<_> = self.messages().await.into_iter().collect();
        let gone: BTreeSet<_> = sent.difference(&left).copied().collect();
        let calls = self.calls.lock().expect("a lock");
        let [failed, dead] =
            [&calls.failed, &calls.dead].map(|ids| ids.iter().copied().collect::<BTreeSet<_>>());
        assert!(failed.is_superset(&letters), "{calls:?}, dead letters {letters:?}");
        assert!(letters.is_superset(&dead), "{calls:?}, dead letters {letters:?}");
        assert!(dead.is_superset(&gone), "{calls:?}, gone {gone:?}");
    }

    async fn letters(&self) -> Vec<DeadLetter<u32>> {
        let letters = self.dead.peek(100).await.expect("dead letters");
        letters.into_iter().map(|letter| letter.body.expect("a dead letter")).collect()
    }

    /// Returns the original ids of the messages in the queue.
    async fn messages(&self) -> Vec<MessageId> {
        let messages = self.jobs.peek(100).await.expect("messages");
        messages.into_iter().map(|one| first_id(&one.message)).collect()
    }
}

fn first_id(message: &RawMessage) -> MessageId {
    let original = message.attributes.get("pillarbox.original_id");
    original.map_or(message.id, |id| id.parse().expect("an id"))
}

/// Runs a scenario that crashes at its first step, at its second, and so on, each time before and after the step, until
/// it does not crash any more. Returns the number of steps.
async fn at_every_step(mut play: impl AsyncFnMut(Stage, std::sync::Arc<Crash>) -> bool) -> usize {
    for step in 0..100 {
        for is_after in [false, true] {
            if play(Stage::new(), Crash::at(step, is_after)).await {
                return step;
            }
        }
    }
    panic!("it takes more than 100 steps");
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_steps_of_dead_lettering_makes_one_dead_letter_and_loses_none() {
    let steps = at_every_step(async |stage, crash| {
        let sent = stage.send().await;
        let is_done = crash.run(stage.ending(&crash).work()).await.is_some();
        stage.assert_reported_before_settled(&sent).await;
        tokio::time::sleep(LEASE).await;
        stage.work().await;
        stage.assert_reported_before_settled(&sent).await;
        let letters = stage.letters().await;
        let ids: BTreeSet<_> = letters.iter().map(|letter| letter.message_id).collect();
        assert_eq!((ids, letters.len()), (sent, MESSAGES as usize), "{crash:?}");
        assert!(stage.messages().await.is_empty(), "{crash:?}");
        // One reply for each sender: nobody has received the replies, so a repeated one is not stored.
        let replies = stage.replies.peek(100).await.expect("replies");
        assert_eq!(replies.len(), MESSAGES as usize, "{crash:?}");
        is_done
    })
    .await;
    assert!(steps >= 4, "receive, store, tell the sender, acknowledge: {steps}");
    println!("{steps} steps");
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_steps_of_a_replay_loses_no_message_and_doubles_none() {
    let steps = at_every_step(async |stage, crash| {
        let sent = stage.send().await;
        stage.work().await;
        let replay = async |stage: &Stage| {
            let dlq = Dlq::of(&stage.dead).replay_to(&stage.jobs);
            let pass = dlq.replay().matching(|letter| letter.body[..] != b"2"[..]);
            pass.run().await.expect("replayed")
        };
        let ending = stage.ending(&crash);
        let is_done = crash.run(replay(&ending)).await.is_some();
        // The leases of a pass last for two minutes.
        tokio::time::sleep(Duration::from_secs(120)).await;
        replay(&stage).await;
        let letters = stage.letters().await;
        assert_eq!(letters.iter().map(|letter| letter.body).collect::<Vec<_>>(), [2], "{crash:?}");
        let messages = stage.messages().await;
        let mut ids: BTreeSet<_> = messages.iter().copied().collect();
        assert_eq!(messages.len(), MESSAGES as usize - 1, "{crash:?}");
        ids.insert(letters[0].message_id);
        assert_eq!(ids, sent, "{crash:?}");
        is_done
    })
    .await;
    assert!(steps >= 4, "receive, send, acknowledge, give back: {steps}");
    println!("{steps} steps");
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_steps_of_a_replay_that_waits_loses_no_message_and_doubles_none() {
    const TIME: Duration = Duration::from_secs(60);
    let steps = at_every_step(async |stage, crash| {
        let sent = stage.send().await;
        stage.work().await;
        // Each is delayed for a minute longer than the one before it.
        for (minutes, letter) in
            (0..).zip(stage.dead.receive(Receive::up_to(100)).await.expect("dead letters"))
        {
            letter.nack(TIME * minutes).await.expect("delayed");
        }
        let replay = async |stage: &Stage| {
            let dlq = Dlq::of(&stage.dead).replay_to(&stage.jobs);
            dlq.replay().delayed(TIME * MESSAGES).run().await.expect("replayed")
        };
        let ending = stage.ending(&crash);
        let is_done = crash.run(replay(&ending)).await.is_some();
        tokio::time::sleep(2 * TIME).await;
        replay(&stage).await;
        assert!(stage.letters().await.is_empty(), "{crash:?}");
        let messages = stage.messages().await;
        assert_eq!(messages.len(), MESSAGES as usize, "{crash:?}");
        assert_eq!(messages.into_iter().collect::<BTreeSet<_>>(), sent, "{crash:?}");
        is_done
    })
    .await;
    assert!(steps >= 3 * MESSAGES as usize, "receive, send, acknowledge, of each: {steps}");
    println!("{steps} steps");
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_steps_of_a_consumer_that_replays_loses_no_message() {
    let steps = at_every_step(async |stage, crash| {
        let sent = stage.send().await;
        stage.work().await;
        let consume = async |stage: &Stage| {
            let replay = |_: DeadLetter<u32>| async { DlqAction::replay() };
            let consumer = DlqConsumer::new(stage.dead.clone(), replay).replay_to(&stage.jobs);
            // One at a time, for as many steps as possible.
            let consumer = consumer.worker(|worker| worker.workers(1).prefetch(0));
            consumer.visibility(LEASE).run_until_empty().await.expect("empty")
        };
        let ending = stage.ending(&crash);
        let is_done = crash.run(consume(&ending)).await.is_some();
        tokio::time::sleep(LEASE).await;
        consume(&stage).await;
        assert!(stage.letters().await.is_empty(), "{crash:?}");
        let messages: Vec<_> = stage.messages().await;
        assert_eq!(messages.len(), MESSAGES as usize, "{crash:?}");
        assert_eq!(messages.into_iter().collect::<BTreeSet<_>>(), sent, "{crash:?}");
        is_done
    })
    .await;
    assert!(steps >= 3 * MESSAGES as usize - 3, "{steps}");
    println!("{steps} steps");
}

/// A message fails again after it was replayed, before the replay is complete.
#[tokio::test(start_paused = true)]
async fn a_message_that_fails_before_its_replay_is_acknowledged_is_not_lost() {
    let steps = at_every_step(async |stage, crash| {
        let sent = stage.send().await;
        stage.work().await;
        let ending = stage.ending(&crash);
        let dlq = Dlq::of(&ending.dead).replay_to(&ending.jobs);
        let is_done = crash.run(dlq.replay().run()).await.is_some();
        // It fails again, with or without the first dead letter in its queue.
        stage.work().await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        let ids: BTreeSet<_> =
            stage.letters().await.iter().map(|letter| letter.message_id).collect();
        assert_eq!(ids, sent, "{crash:?}");
        // Replayed again, all messages are there, some of them twice.
        let dlq = Dlq::of(&stage.dead).replay_to(&stage.jobs);
        dlq.replay().run().await.expect("replayed");
        let messages: BTreeSet<_> = stage.messages().await.into_iter().collect();
        assert_eq!(messages, sent, "{crash:?}");
        is_done
    })
    .await;
    println!("{steps} steps");
}
