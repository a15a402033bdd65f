//! The number of requests to SQS, which is what AWS charges for.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::{MessageId, Outgoing, Receive, Settle};
use pillarbox_sqs::SqsOptions;
use pillarbox_testing::on_threads;
use pillarbox_testing::server::{SqsFlavour, SqsServer};
use tokio::task::JoinSet;

use crate::common::{Requests, open_counted, queue, start, start_if_installed};

const LEASE: Duration = Duration::from_secs(600);

/// The result of [`drain`].
struct Drained {
    sent: HashSet<MessageId>,
    acknowledged: Vec<MessageId>,
    requests: Requests,
    requests_per_message: f64,
}

/// Sends messages in batches of ten, and receives and acknowledges them in several tasks.
async fn drain(server: &SqsServer, messages: usize, consumers: usize) -> Drained {
    let (backend, requests) = open_counted(server, SqsOptions::new().create(true));
    let jobs = queue(&backend, "jobs");
    // Creates the queue and caches its URL, which are not counted.
    assert!(jobs.receive(Receive::one()).await.expect("received").is_empty());
    let before = requests.total();

    let mut sent = HashSet::new();
    for batch in 0..messages / 10 {
        let batch: Vec<_> = (0..10).map(|n| Outgoing::new(format!("{batch}.{n}"))).collect();
        sent.extend(batch.iter().map(|message| message.id));
        for answer in jobs.send(batch).await.expect("sent") {
            answer.expect("stored");
        }
    }

    let acknowledged: Arc<Mutex<Vec<MessageId>>> = Arc::default();
    let taken = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..consumers {
        let (jobs, acknowledged, taken) = (jobs.clone(), acknowledged.clone(), taken.clone());
        tasks.spawn(async move {
            while taken.load(Ordering::Relaxed) < messages {
                let request = Receive::up_to(10).visibility(LEASE).wait(Duration::from_secs(1));
                let deliveries = jobs.receive(request).await.expect("received");
                taken.fetch_add(deliveries.len(), Ordering::Relaxed);
                let receipts = deliveries.iter().map(|it| Settle::acknowledge(it.receipt.clone()));
                for answer in jobs.settle(receipts.collect()).await.expect("settled") {
                    answer.expect("acknowledged");
                }
                let ids = deliveries.iter().map(|delivery| delivery.message.id);
                acknowledged.lock().expect("the ids").extend(ids);
            }
        });
    }
    tasks.join_all().await;
    let requests_per_message = (requests.total() - before) as f64 / messages as f64;
    println!("{requests_per_message:.3} requests per message: {:?}", requests.counts());
    assert!(jobs.receive(Receive::up_to(10)).await.expect("received").is_empty());
    let acknowledged = std::mem::take(&mut *acknowledged.lock().expect("the ids"));
    Drained { sent, acknowledged, requests, requests_per_message }
}

/// Not on moto, which delivers a message to two concurrent receives, and takes minutes.
#[test]
fn twenty_consumers_drain_a_queue_and_none_is_lost_or_acknowledged_twice() {
    let servers = [SqsFlavour::Ministack, SqsFlavour::Fauxqs].map(start_if_installed);
    let (mut load, mut servers) = ((2_000, 20), servers.into_iter().flatten().collect::<Vec<_>>());
    if servers.is_empty() {
        (load, servers) = ((200, 1), vec![start(SqsFlavour::Moto)]);
    }
    for server in servers {
        on_threads(async {
            let Drained { sent, acknowledged, requests, requests_per_message } =
                drain(&server, load.0, load.1).await;
            let distinct: HashSet<_> = acknowledged.iter().copied().collect();
            assert_eq!(acknowledged.len(), distinct.len(), "some were acknowledged twice");
            assert_eq!(distinct, sent, "some were lost");
            assert!(
                requests_per_message <= 0.35,
                "{requests_per_message} per message: {:?}",
                requests.counts()
            );
        });
    }
}

#[test]
fn a_message_costs_a_third_of_a_request_in_batches_of_ten() {
    let server = start(SqsFlavour::Moto);
    on_threads(async {
        let Drained { sent, acknowledged, requests, .. } = drain(&server, 100, 1).await;
        assert_eq!(acknowledged.into_iter().collect::<HashSet<_>>(), sent);
        let number = |operation| requests.of(operation);
        assert_eq!((number("SendMessageBatch"), number("DeleteMessageBatch")), (10, 10));
        // One before and one after, which find nothing.
        assert_eq!(number("ReceiveMessage"), 10 + 2);
        // Once to find that the queue is missing, and once to create it.
        assert_eq!((number("GetQueueUrl"), number("CreateQueue")), (1, 1));
        assert_eq!(requests.total(), 34, "{:?}", requests.counts());

        // A call may be as large as one message: what is larger in sum goes in several.
        let (backend, requests) = open_counted(&server, SqsOptions::new().create(true));
        let large = queue(&backend, "large");
        let sizes = [400, 400, 400, 900, 100];
        let batch = sizes.map(|size| Outgoing::new("x".repeat(size * 1024)));
        let sent = large.send(batch.to_vec()).await.expect("answered");
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        assert_eq!(requests.of("SendMessageBatch"), 3, "400 and 400, 400, 900 and 100");
    });
}
