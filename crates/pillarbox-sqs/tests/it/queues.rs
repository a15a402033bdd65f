//! Names, URLs and prefixes of queues, creation, FIFO and redrive. On every installed server.

use std::time::Duration;

use pillarbox_core::{
    Delivery, Error, Mailbox, Mailboxes, Outgoing, Queue, QueueOptions, Receive, Redrive,
    SendOptions, Settle,
};
use pillarbox_sqs::{SqsBackend, SqsOptions};
use pillarbox_testing::block_on;
use pillarbox_testing::server::{SqsFlavour, SqsServer};

use crate::common::{one, only, open, open_url, queue, start, start_all};

const LEASE: Duration = Duration::from_secs(600);

async fn take(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    let request = Receive::up_to(max).visibility(LEASE).wait(Duration::from_secs(1));
    queue.receive(request).await.expect("received")
}

async fn acknowledge(queue: &dyn Queue, delivery: &Delivery) {
    let settle = Settle::acknowledge(delivery.receipt.clone());
    one(queue.settle(vec![settle]).await).expect("acknowledged");
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|it| std::str::from_utf8(&it.message.body).expect("text")).collect()
}

fn grouped(body: &'static str, group: &str) -> Outgoing {
    let mut message = Outgoing::new(body);
    message.attributes.insert(Outgoing::GROUP, group);
    message
}

#[test]
fn a_prefix_separates_queues_and_is_not_part_of_their_names() {
    let server = start(SqsFlavour::Moto);
    block_on(async {
        let shop =
            open_url(&format!("{}/shop-?create=true&VisibilityTimeout=7", server.url())).await;
        let all = open(&server, "").await;
        let jobs = queue(&shop, "jobs");
        one(jobs.send(vec![Outgoing::new("x")]).await).expect("sent");
        one(queue(&all, "other").send(vec![Outgoing::new("y")]).await).expect("sent");
        let names = async |backend: &pillarbox_core::Mailboxes| {
            let names = backend.queues().await.expect("listed");
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(&shop).await, ["jobs"]);
        assert_eq!(names(&all).await, ["other", "shop-jobs"]);
        assert_eq!(bodies(&take(&*queue(&all, "shop-jobs"), 1).await), ["x"]);
        let diagnosis = shop.diagnose(false).await.expect("a diagnosis");
        let fact = |name| diagnosis.facts.iter().find(|fact| fact.name == name).expect("a fact");
        assert_eq!((&*fact("prefix").value, &*fact("queues").value), ("shop-", "1"));

        // A limit is as approximate as the counts.
        let few = shop.queue("few", QueueOptions::new().max_size(2)).expect("opened");
        let batch = ["a", "b", "c"].map(Outgoing::new).to_vec();
        let third = batch[2].id;
        let mut sent = few.send(batch).await.expect("answered");
        let refused = sent.pop().expect("three answers").expect_err("the queue is full");
        assert!(matches!(refused, Error::MailboxFull { id: Some(id), .. } if id == third));
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");

        // Names that are invalid on SQS are refused without a request.
        let long = "x".repeat(76);
        for bad in ["a.b", ".fifo", "a.fifo.b", &long] {
            let refused = shop.queue(bad, QueueOptions::new()).expect_err("refused");
            assert!(matches!(refused, Error::InvalidParameter { .. }), "{refused:?}");
        }
    });
}

#[test]
fn a_queue_is_found_by_its_url_and_so_is_the_one_for_replies() {
    let server = start(SqsFlavour::Moto);
    block_on(async {
        let backend = open(&server, "").await;
        let url = format!("{}/123456789012/replies", server.endpoint());
        let requests = backend.builder("requests").allow_reply_to(&*url);
        let requests: Mailbox<u32, String> = requests.open().expect("opened");
        let replies: Mailbox<String> = backend.mailbox("replies").expect("opened");
        let none = replies.receive(Receive::one()).await.expect("received");
        assert!(none.is_empty(), "the queue is created");

        requests.send_with(&7, SendOptions::new().reply_to(&*url)).await.expect("sent");
        for request in requests.receive(Receive::one()).await.expect("received") {
            let to = request.reply_mailbox().expect("resolved");
            assert_eq!(to.name().as_str(), "replies");
            to.send(&"seven".to_owned()).await.expect("replied");
        }
        let same: Mailbox<String> = backend.mailbox_at(&url).expect("opened");
        let batch = same.receive(Receive::one()).await.expect("received");
        assert_eq!(batch.messages()[0].body(), "seven");

        let gone = format!("{}/123456789012/gone", server.endpoint());
        let gone: Mailbox<String> = backend.mailbox_at(&gone).expect("opened");
        let refused = gone.send(&String::new()).await.expect_err("there is no such queue");
        assert!(refused.to_string().contains("/123456789012/gone"), "{refused}");
        assert!(backend.queue_at("http://").is_err());
    });
}

#[test]
fn an_answer_to_a_queue_that_does_not_exist_has_no_reply_mailbox() {
    let server = start(SqsFlavour::Moto);
    block_on(async {
        let creates = open(&server, "").await;
        let client: Mailbox<u32, String> = creates.mailbox("requests").expect("opened");
        let url = format!("{}/123456789012/gone", server.endpoint());
        let to_name = SendOptions::new().reply_to("gone");
        let first = client.send_with(&1, to_name).await.expect("sent");
        let to_url = SendOptions::new().reply_to(&*url);
        let second = client.send_with(&2, to_url).await.expect("sent");

        // This one creates no queue.
        let backend = open_url(&server.url()).await;
        let requests = backend.builder("requests").allow_reply_to("gone").allow_reply_to(&*url);
        let requests: Mailbox<u32, String> = requests.open().expect("opened");
        let mut answered = Vec::new();
        for _ in 0..2 {
            for request in requests.receive(Receive::one()).await.expect("received") {
                let replies = request.reply_mailbox().expect("resolved");
                let one = replies.send(&"x".to_owned()).await.expect_err("there is no such queue");
                let many = replies.send_batch([&"x".to_owned()]).await;
                let many = many.and_then(|batch| batch.into_iter().collect::<Result<Vec<_>, _>>());
                for error in [one, many.expect_err("there is no such queue")] {
                    let text = error.to_string();
                    assert!(matches!(error, Error::ReplyMailboxUnavailable { .. }), "{error:?}");
                    assert_eq!(error.message_id(), Some(request.id()));
                    assert!(text.contains("cannot reply to") && text.contains("gone"), "{text}");
                }
                answered.push(request.id());
            }
        }
        answered.sort();
        let mut sent = [first, second];
        sent.sort();
        assert_eq!(answered, sent);
    });
}

#[test]
fn a_queue_that_was_not_created_yet_has_nothing_to_receive() {
    let server = start(SqsFlavour::Moto);
    block_on(async {
        let creates = open(&server, "").await;
        assert_eq!(take(&*queue(&creates, "made"), 1).await, []);
        assert_eq!(creates.queues().await.expect("listed").len(), 1, "it was created");

        // A tool that inspects queues of other programs creates none.
        let url = format!("{}?create=true&poll=1", server.url());
        let options = SqsOptions::from_url(&url).expect("options").only_existing(true);
        let inspects = Mailboxes::new(SqsBackend::open(options).await.expect("opened"));
        let later = queue(&inspects, "later");
        assert_eq!(take(&*later, 1).await, []);
        assert_eq!(creates.queues().await.expect("listed").len(), 1, "it was not created");
        let refused = later.counts().await.expect_err("there is no queue").to_string();
        assert!(refused.contains("there is no 'later'"), "{refused}");
        assert!(!refused.contains("create=true"), "{refused}");

        // A waiter receives a message that is sent meanwhile.
        let waiting = async {
            let request = Receive::one().wait(Duration::from_secs(20));
            later.receive(request).await.expect("received")
        };
        let sending = async {
            one(queue(&creates, "later").send(vec![Outgoing::new("at last")]).await).expect("sent")
        };
        let (received, _) = tokio::join!(waiting, sending);
        assert_eq!(bodies(&received), ["at last"]);
    });
}

/// Messages of a group are ordered and delivered one at a time; groups are independent.
async fn groups_keep_their_order(server: &SqsServer) {
    let backend = open(server, "").await;
    let jobs = queue(&backend, "orders.fifo");
    let batch =
        vec![grouped("a1", "a"), grouped("a2", "a"), grouped("b1", "b"), grouped("a3", "a")];
    for answer in jobs.send(batch).await.expect("sent") {
        answer.expect("stored");
    }
    let first = only(take(&*jobs, 1).await);
    assert_eq!(first.message.body, "a1");
    assert_eq!(first.message.attributes.get(Outgoing::GROUP), Some("a"));
    // While it is in flight, its group waits, but not the others.
    assert_eq!(bodies(&take(&*jobs, 10).await), ["b1"]);
    acknowledge(&*jobs, &first).await;
    let second = only(take(&*jobs, 1).await);
    assert_eq!(second.message.body, "a2");
    let nack = Settle::nack(second.receipt.clone(), Duration::ZERO);
    one(jobs.settle(vec![nack]).await).expect("nacked");
    let again = only(take(&*jobs, 1).await);
    assert_eq!((&again.message.body[..], again.message.delivery_count), (&b"a2"[..], 2));
}

/// By the id, or by the deduplication id of the sender.
async fn duplicates_are_stored_once(server: &SqsServer) {
    let backend = open(server, "&fifo=true").await;
    let jobs = queue(&backend, "once");
    assert_eq!(jobs.capabilities().deduplication, Some(Duration::from_secs(300)));
    let message = Outgoing::new("x");
    for _ in 0..2 {
        let sent = one(jobs.send(vec![message.clone()]).await).expect("sent");
        assert_eq!(sent.id, message.id);
    }
    let only_one = only(take(&*jobs, 10).await);
    assert_eq!(only_one.message.id, message.id);
    assert!(only_one.message.attributes.is_empty());
    acknowledge(&*jobs, &only_one).await;
    for body in ["first", "second"] {
        let mut message = Outgoing::new(body);
        message.attributes.insert(Outgoing::DEDUPLICATION, "invoice-4711");
        one(jobs.send(vec![message]).await).expect("sent");
    }
    assert_eq!(bodies(&take(&*jobs, 10).await), ["first"]);
    assert_eq!(backend.queues().await.expect("listed"), ["once".parse().expect("a name")]);

    // A message of a FIFO queue cannot have a delay of its own.
    let mut later = Outgoing::new("later");
    later.delay = Duration::from_secs(1);
    let refused = one(jobs.send(vec![later]).await).expect_err("refused");
    assert!(refused.to_string().contains("allowed: 0 to 0 s"), "{refused}");
}

#[test]
fn fifo_queues_keep_the_order_of_groups_and_store_nothing_twice() {
    for server in start_all() {
        println!("on {}", server.flavour().name());
        block_on(async {
            duplicates_are_stored_once(&server).await;
            groups_keep_their_order(&server).await;
        });
    }
}

#[test]
fn messages_that_were_delivered_too_often_are_moved_by_sqs_if_configured() {
    for server in start_all() {
        println!("on {}", server.flavour().name());
        block_on(async {
            let backend = open_url(&format!("{}/shop-?create=true", server.url())).await;
            let (jobs, dead) = (queue(&backend, "jobs"), queue(&backend, "jobs-dead"));
            one(jobs.send(vec![Outgoing::new("poison")]).await).expect("sent");
            assert_eq!(backend.redrive("jobs").await.expect("read"), None);
            let redrive = Redrive::new("jobs-dead", 2);
            backend.set_redrive("jobs", Some(redrive.clone())).await.expect("set");
            assert_eq!(backend.redrive("jobs").await.expect("read"), Some(redrive));
            let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
            let facts: Vec<_> = diagnosis.facts.iter().map(|fact| &*fact.value).collect();
            assert!(facts.contains(&"jobs → jobs-dead after 2 deliveries"), "{facts:?}");

            for count in 1..=2 {
                let delivery = only(take(&*jobs, 1).await);
                assert_eq!(delivery.message.delivery_count, count);
                assert!(delivery.message.first_received_at.is_some());
                let nack = Settle::nack(delivery.receipt, Duration::ZERO);
                one(jobs.settle(vec![nack]).await).expect("nacked");
            }
            assert!(take(&*jobs, 1).await.is_empty(), "it is not delivered a third time");
            assert_eq!(bodies(&take(&*dead, 1).await), ["poison"]);

            backend.set_redrive("jobs", None).await.expect("removed");
            assert_eq!(backend.redrive("jobs").await.expect("read"), None);
            let never = backend.set_redrive("jobs", Some(Redrive::new("jobs-dead", 0))).await;
            assert!(matches!(never, Err(Error::InvalidParameter { .. })), "{never:?}");
        });
    }
}
