//! Many threads on one queue: nothing lost, nothing acknowledged twice, no receipt reused.

use std::time::Duration;

use pillarbox_core::{Mailboxes, MemoryBackend, QueueOptions};
use pillarbox_testing::stress::Stress;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_producers_and_four_consumers_break_no_rule() {
    for seed in 0..4 {
        let backend = Mailboxes::new(MemoryBackend::new());
        let queue = backend.queue("stress", QueueOptions::new()).expect("opened");
        let visibility = Duration::from_millis(25);
        let stress = Stress { messages: 5000, visibility, seed, ..Stress::default() };
        let summary = stress.run(queue).await;
        println!("seed {seed}: {summary:?}");
        // The run was worth something: it went through every kind of ending.
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
