//! Failures of SQS as errors of the contract, with advice.

use std::time::Duration;

use pillarbox_core::{Capabilities, Error, Mailboxes, Outgoing, Receipt, Receive, Settle};
use pillarbox_sqs::aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use pillarbox_sqs::aws_sdk_sqs::{Client, Config};
use pillarbox_sqs::{SqsBackend, SqsOptions};
use pillarbox_testing::block_on;
use pillarbox_testing::server::{RedisServer, SqsFlavour};

use crate::common::fake_server::{FakeServer, Response};
use crate::common::{one, only, open, open_url, queue, start};

const LEASE: Duration = Duration::from_secs(600);

#[test]
fn refusals_of_sqs_are_errors_of_the_contract() {
    let server = start(SqsFlavour::Moto);
    block_on(async {
        let backend = open(&server, "").await;
        let jobs = queue(&backend, "jobs");

        // A queue that was not created yet has issued no receipt.
        let early = Settle::acknowledge("made-up".parse().expect("a receipt"));
        let refused = one(jobs.settle(vec![early]).await).expect_err("there is no queue yet");
        assert!(matches!(refused, Error::ReceiptHandleExpired { .. }), "{refused:?}");

        // At most one purge in a minute.
        assert_eq!(jobs.purge().await.expect("the queue is empty"), 0);
        jobs.send(vec![Outgoing::new("x"), Outgoing::new("y")]).await.expect("sent");
        assert_eq!(jobs.purge().await.expect("purged"), 2);
        let again = jobs.purge().await.expect_err("too soon");
        let Error::PurgeCooldown { queue: name, cooldown } = &again else { panic!("{again:?}") };
        assert_eq!((name, Some(*cooldown)), (jobs.name(), jobs.capabilities().purge_cooldown));
        assert!(again.to_string().contains("less than 60 s ago"), "{again}");

        // A receipt that SQS has not issued.
        jobs.send(vec![Outgoing::new("x")]).await.expect("sent");
        let delivery =
            only(jobs.receive(Receive::one().visibility(LEASE)).await.expect("received"));
        let made_up = || "made-up".parse::<Receipt>().expect("a receipt");
        let nack = |receipt| Settle::nack(receipt, Duration::ZERO);
        for settle in [Settle::acknowledge, nack] as [fn(Receipt) -> Settle; 2] {
            let refused = one(jobs.settle(vec![settle(made_up())]).await);
            let refused = refused.expect_err("it is no receipt");
            assert!(matches!(refused, Error::ReceiptHandleExpired { .. }), "{refused:?}");
            // Together with a valid one.
            let valid = Settle::extend(delivery.receipt.clone(), LEASE);
            let both = jobs.settle(vec![settle(made_up()), valid]).await.expect("answered");
            assert!(both[0].is_err() && both[1].is_ok(), "{both:?}");
        }

        // A lease ends at most twelve hours after the delivery.
        let max = Capabilities::MAX_VISIBILITY;
        let refused = one(jobs.settle(vec![Settle::extend(delivery.receipt, max)]).await);
        let refused = refused.expect_err("more than twelve hours in all");
        assert!(matches!(refused, Error::InvalidParameter { .. }), "{refused:?}");
        assert!(refused.to_string().contains("43200"), "{refused}");

        // Too many attributes and too many bytes are refused before anything is sent.
        let mut message = Outgoing::new("x");
        message.attributes = (0..11).map(|n| (format!("name{n}"), "value")).collect();
        let refused = one(jobs.send(vec![message]).await).expect_err("too many attributes");
        let text = refused.to_string();
        assert!(text.contains("number of attributes") && text.contains("11"), "{text}");
        let mut message = Outgoing::new("x".repeat(1 << 19));
        message.attributes = [("long", "y".repeat(1 << 19))].into_iter().collect();
        let refused = one(jobs.send(vec![message]).await).expect_err("too large");
        let text = refused.to_string();
        assert!(text.contains("1048640 (body 524288, attributes 524352)"), "{text}");

        // A delay that is too long for SQS.
        let mut message = Outgoing::new("x");
        message.delay = Duration::from_secs(901);
        let refused = one(jobs.send(vec![message]).await).expect_err("too long a delay");
        assert!(refused.to_string().contains("allowed: 0 to 900 s"), "{refused}");

        // No queue is created by default.
        let backend = open_url(&server.url()).await;
        let missing = queue(&backend, "missing");
        let refused = [
            missing.send(vec![Outgoing::new("x")]).await.map(|_| ()),
            missing.receive(Receive::one()).await.map(|_| ()),
            missing.counts().await.map(|_| ()),
            missing.purge().await.map(|_| ()),
        ];
        for refused in refused {
            let text = refused.expect_err("there is no such queue").to_string();
            assert!(text.contains("there is no 'missing' at http://127.0.0.1"), "{text}");
            assert!(text.contains("create=true"), "{text}");
        }
        assert!(!backend.queues().await.expect("listed").iter().any(|name| name == missing.name()));
    });
}

#[test]
fn sqs_that_cannot_be_reached_is_a_connection_error_that_says_what_to_check() {
    block_on(async {
        // The port of a server that was stopped.
        let gone = FakeServer::start(Vec::new()).await.url();
        let backend = open_url(&format!("{gone}?tries=1")).await;
        let error = queue(&backend, "jobs").send(vec![Outgoing::new("x")]).await;
        let error = error.expect_err("unreachable");
        assert!(matches!(error, Error::Connection { .. }) && error.is_transient(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("cannot send on queue 'jobs': SQS at http://127.0.0.1"), "{text}");
        assert!(text.contains("check the region or the endpoint"), "{text}");
    });
}

/// TLS is used, and certificates are verified.
#[test]
fn an_endpoint_with_an_untrusted_certificate_is_a_connection_error() {
    let untrusted = RedisServer::builder().tls().start();
    block_on(async {
        let url = format!("sqs+https://127.0.0.1:{}?tries=1", untrusted.port());
        let options = SqsOptions::from_url(&url).expect("a URL");
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(Credentials::new("a", "b", None, None, "test"));
        // Like the client of `open`, but with credentials, which it would look up.
        let opened = SqsBackend::open(options.clone()).await.expect("a backend");
        let template = opened.client().config();
        let config = config
            .region(template.region().cloned())
            .endpoint_url(format!("https://127.0.0.1:{}", untrusted.port()))
            .http_client(template.http_client().expect("it has one"));
        let backend = SqsBackend::from_client(Client::from_conf(config.build()), options);
        let backend = Mailboxes::new(backend.expect("a backend"));
        let error = queue(&backend, "jobs").counts().await.expect_err("not trusted");
        assert!(matches!(error, Error::Connection { .. }), "{error:?}");
        assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    });
}

#[test]
fn credentials_that_are_wrong_or_missing_say_what_to_check() {
    block_on(async {
        let denied = Response::error(403, "AccessDeniedException", "User is not authorized");
        let server = FakeServer::start(vec![denied]).await;
        let backend = open_url(&server.url()).await;
        let refused = queue(&backend, "jobs").counts().await.expect_err("not allowed").to_string();
        assert!(refused.contains("User is not authorized"), "{refused}");
        assert!(refused.contains("check AWS_ACCESS_KEY_ID"), "{refused}");

        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url("http://127.0.0.1:9")
            .http_client(aws_smithy_http_client::Builder::new().build_http());
        let client = Client::from_conf(config.build());
        let backend = SqsBackend::from_client(client, SqsOptions::new()).expect("a backend");
        let backend = Mailboxes::new(backend);
        let refused = queue(&backend, "jobs").counts().await.expect_err("no credentials");
        assert!(matches!(refused, Error::Connection { .. }), "{refused:?}");
        assert!(refused.to_string().contains("check AWS_ACCESS_KEY_ID"), "{refused}");
    });
}

/// None of the real servers has such a limit.
#[test]
fn too_many_messages_in_flight_are_a_full_mailbox() {
    block_on(async {
        let over = Response::error(403, "OverLimit", "Too many messages in flight");
        let server = FakeServer::start(vec![over]).await;
        let backend = open_url(&server.url()).await;
        let full = queue(&backend, "jobs").receive(Receive::one()).await.expect_err("full");
        let Error::MailboxFull { id: None, max_size: Some(120_000), .. } = full else {
            panic!("{full:?}");
        };
        assert!(full.is_transient());
    });
}

/// None of the real servers throttles.
#[test]
fn a_throttled_request_is_retried() {
    block_on(async {
        let throttled = Response::error(400, "ThrottlingException", "Rate exceeded");
        // First the call, then one entry of two.
        let half = r#"{"Successful":[{"Id":"0","MessageId":"m","MD5OfMessageBody":"x"}],
            "Failed":[{"Id":"1","SenderFault":false,"Code":"InternalError"}]}"#;
        let rest = r#"{"Successful":[{"Id":"1","MessageId":"n","MD5OfMessageBody":"y"}]}"#;
        let answers =
            vec![throttled.clone(), throttled.clone(), Response::ok(half), Response::ok(rest)];
        let server = FakeServer::start(answers).await;
        let backend = open_url(&server.url()).await;
        let batch = vec![Outgoing::new("first"), Outgoing::new("second")];
        let sent = queue(&backend, "jobs").send(batch).await.expect("sent");
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        let requests = server.requests();
        assert_eq!(requests.len(), 4);
        assert!(
            requests[3].1.contains("second") && !requests[3].1.contains("first"),
            "{requests:?}"
        );

        // The number of tries is limited.
        let server = FakeServer::start(vec![throttled; 9]).await;
        let backend = open_url(&format!("{}?tries=2", server.url())).await;
        let error = queue(&backend, "jobs").receive(Receive::one()).await.expect_err("throttled");
        assert!(error.to_string().contains("Rate exceeded; send fewer requests"), "{error}");
        assert_eq!(server.requests().len(), 2);
    });
}
