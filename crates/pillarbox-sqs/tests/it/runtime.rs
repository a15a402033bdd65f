//! What stands on the contract works on SQS: workers, dead letters of our own, main loops, clients.

use std::time::Duration;

use pillarbox_core::{Mailbox, SendOptions};
use pillarbox_runtime::dead_letters::{Dlq, DlqPolicy};
use pillarbox_runtime::loops::{Client, MainLoop, MainLoopRequest, MainLoopResult, Run};
use pillarbox_runtime::{Backoff, Runnable, Worker};
use pillarbox_testing::on_threads;
use pillarbox_testing::server::SqsFlavour;

use crate::common::{open, start};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn divide(number: u32) -> Result<(), String> {
    100u32.checked_div(number).map(|_| ()).ok_or_else(|| "division by zero".to_owned())
}

#[test]
fn dead_letters_of_our_own_policy_are_kept_and_replayed() {
    let server = start(SqsFlavour::Moto);
    on_threads(async {
        let backend = open(&server, "&poll=1").await;
        let jobs: Mailbox<u32> = backend.mailbox("jobs").expect("opened");
        jobs.send_batch(&(0..12).collect::<Vec<_>>()).await.expect("sent").all().expect("stored");
        let worker = Worker::new(jobs.clone()).max_deliveries(2).retry(Backoff::none());
        let worker = worker.dead_letters(DlqPolicy::new());
        let stats = worker.handler(divide).run_until_empty().await.expect("it runs");
        assert_eq!((stats.succeeded, stats.dead_lettered), (11, 1));

        let dlq = Dlq::open(&backend, "jobs-dlq").expect("opened");
        let report = dlq.replay().run().await.expect("replayed");
        assert_eq!((report.done, report.skipped), (1, 0));
        let fixed = |_: u32| async {};
        let stats = Worker::new(jobs).handler(fixed).run_until_empty().await.expect("it runs");
        assert_eq!(stats.succeeded, 1);
        backend.close().await;
    });
}

/// A FIFO queue deduplicates for five minutes: a replay must not be taken for a duplicate.
#[test]
fn a_dead_letter_of_a_fifo_queue_is_replayed_at_once_and_arrives() {
    let server = start(SqsFlavour::Moto);
    on_threads(async {
        let backend = open(&server, "&poll=1").await;
        let jobs: Mailbox<u32> = backend.mailbox("jobs.fifo").expect("opened");
        let options = SendOptions::new().deduplication("invoice-4711").group("invoices");
        jobs.send_with(&0, options).await.expect("sent");
        let worker = Worker::new(jobs.clone()).max_deliveries(1).dead_letters(DlqPolicy::new());
        let stats = worker.handler(divide).run_until_empty().await.expect("it runs");
        assert_eq!(stats.dead_lettered, 1);

        let dlq = Dlq::open(&backend, "jobs-dlq.fifo").expect("opened");
        assert_eq!(dlq.replay().run().await.expect("replayed").done, 1);
        let fixed = |_: u32| async {};
        let stats = Worker::new(jobs).handler(fixed).run_until_empty().await.expect("it runs");
        assert_eq!(stats.succeeded, 1);
        backend.close().await;
    });
}

async fn answer(number: u32, _: Run) -> Result<u32, String> {
    number.checked_mul(2).ok_or_else(|| "too large".to_owned())
}

#[test]
fn a_client_asks_and_a_main_loop_answers() {
    let server = start(SqsFlavour::Moto);
    on_threads(async {
        let backend = open(&server, "&poll=1").await;
        let questions: Mailbox<MainLoopRequest<u32>, MainLoopResult<u32>> =
            backend.mailbox("questions").expect("opened");
        let running = MainLoop::new(questions.clone(), answer).start();
        let client = Client::new(&questions).expect("a client");
        for number in [1, 21] {
            let doubled = client.call(&MainLoopRequest::new(number), TIMEOUT).await;
            assert_eq!(doubled.expect("answered"), number * 2);
        }
        let failed = client.call(&MainLoopRequest::new(u32::MAX), TIMEOUT).await;
        assert!(failed.expect_err("it failed there").to_string().contains("too large"));
        client.close().await;
        running.stop().await.expect("it ends");
        backend.close().await;
    });
}
