//! Many threads on one queue: nothing lost, nothing acknowledged twice, no receipt reused.

use std::time::Duration;

use pillarbox_core::{Mailboxes, MemoryBackend, QueueOptions};
use pillarbox_testing::stress::Stress;

use crate::broken::Breakage;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_producers_and_four_consumers_break_no_rule() {
    for seed in 0..4 {
        let backend = Mailboxes::new(MemoryBackend::new());
        let queue = backend.queue("stress", QueueOptions::new()).expect("opened");
        let visibility = Duration::from_millis(25);
        let stress = Stress { messages: 5000, visibility, seed, ..Stress::default() };
        let summary = stress.run(queue).await;
        println!("seed {seed}: {summary:?}");
        // The run covered every way in which a delivery ends.
        assert_eq!((summary.sent, summary.acknowledged), (5000, 5000));
        assert!(summary.redeliveries > 500, "{summary:?}");
        assert!(summary.refused > 100, "{summary:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leases_of_a_millisecond_break_no_rule() {
    let backend = Mailboxes::new(MemoryBackend::new());
    let queue = backend.queue("stress", QueueOptions::new()).expect("opened");
    let visibility = Duration::from_millis(1);
    let stress = Stress { messages: 2000, visibility, seed: 9, ..Stress::default() };
    let summary = stress.run(queue).await;
    assert_eq!(summary.acknowledged, 2000);
}

/// Returns the failure of the stress test on a broken queue.
async fn verdict(breakage: Breakage) -> String {
    let queue =
        crate::broken::backend(breakage).queue("stress", QueueOptions::new()).expect("opened");
    let visibility = Duration::from_millis(25);
    let stress = Stress { messages: 500, visibility, seed: 3, ..Stress::default() };
    let outcome = tokio::spawn(async move { stress.run(queue).await }).await;
    let panic = outcome.expect_err("the stress test finds the breakage").into_panic();
    panic.downcast_ref::<String>().expect("a text").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_finds_a_queue_that_loses_nacked_messages() {
    let text = verdict(Breakage::LosesNacked).await;
    assert!(text.contains("is lost"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_finds_a_queue_that_accepts_stale_receipts() {
    let text = verdict(Breakage::AcceptsStale).await;
    assert!(text.contains("after it was settled"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_finds_a_queue_that_resets_delivery_counts() {
    let text = verdict(Breakage::ResetsCount).await;
    assert!(text.contains("delivery counts"), "{text}");
}
