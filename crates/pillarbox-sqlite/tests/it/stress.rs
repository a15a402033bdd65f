//! Many tasks on one file: nothing lost, nothing acknowledged twice, no receipt reused.

use std::time::Duration;

use pillarbox_testing::stress::Stress;

use crate::common::{assert_intact, directory, open, open_again, queue};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_producers_and_consumers_break_no_rule() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    for seed in 0..3 {
        let stress = Stress {
            producers: 16,
            consumers: 16,
            messages: 5000,
            visibility: Duration::from_millis(60),
            seed,
            may_go_unseen: true,
        };
        let summary = stress.run(queue(&backend, "stress")).await;
        println!("seed {seed}: {summary:?}");
        assert_eq!((summary.sent, summary.acknowledged), (5000, 5000));
        assert!(summary.redeliveries > 0 && summary.refused > 0, "{summary:?}");
    }
    assert_intact(&file);
}

/// So few that some of their requests are executed on their own threads, and some on the writer thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn few_producers_and_consumers_break_no_rule() {
    let (_directory, file) = directory();
    // Without syncs, which may be slow.
    let backend = open_again(&file).await.expect("the file opens");
    for (seed, consumers) in [(0, 1), (1, 2)] {
        let stress = Stress {
            producers: 1,
            consumers,
            messages: 500,
            visibility: Duration::from_millis(60),
            seed,
            may_go_unseen: true,
        };
        let summary = stress.run(queue(&backend, "stress")).await;
        println!("seed {seed}: {summary:?}");
        assert_eq!((summary.sent, summary.acknowledged), (500, 500));
    }
    assert_intact(&file);
}
