//! What goes wrong, in words of the contract, with what to do about it.

use std::time::Duration;

use pillarbox_core::{Capabilities, Error, Mailboxes, Outgoing, Receipt, Receive, Settle};
use pillarbox_sqs::aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use pillarbox_sqs::aws_sdk_sqs::{Client, Config};
use pillarbox_sqs::{SqsBackend, SqsOptions};
use pillarbox_testing::block_on;
use pillarbox_testing::server::{RedisServer, SqsFlavour};

use crate::common::canned::{Answer, Canned};
use crate::common::{one, only, open, open_url, queue, start};

const LEASE: Duration = Duration::from_secs(600);

#[test]
fn what_sqs_refuses_is_an_error_of_the_contract() {
    let server = start(SqsFlavour::Moto);
    block_on(async {
        let backend = open(&server, "").await;
        let jobs = queue(&backend, "jobs");

        // A queue that is yet to be made has given no receipt.
        let early = Settle::acknowledge("made-up".parse().expect("a receipt"));
        let refused = one(jobs.settle(vec![early]).await).expect_err("there is no queue yet");
        assert!(matches!(refused, Error::ReceiptHandleExpired { .. }), "{refused:?}");

        // One purge in a minute, and the error says so.
        assert_eq!(jobs.purge().await.expect("there is nothing yet"), 0);
        jobs.send(vec![Outgoing::new("x"), Outgoing::new("y")]).await.expect("sent");
        assert_eq!(jobs.purge().await.expect("purged"), 2);
        let again = jobs.purge().await.expect_err("too soon");
        let Error::PurgeCooldown { queue: name, cooldown } = &again else { panic!("{again:?}") };
        assert_eq!((name, Some(*cooldown)), (jobs.name(), jobs.capabilities().purge_cooldown));
        assert!(again.to_string().contains("less than 60 s ago"), "{again}");

        // A receipt that never was one.
        jobs.send(vec![Outgoing::new("x")]).await.expect("sent");
        let delivery =
            only(jobs.receive(Receive::one().visibility(LEASE)).await.expect("received"));
        let made_up = || "made-up".parse::<Receipt>().expect("a receipt");
        let nack = |receipt| Settle::nack(receipt, Duration::ZERO);
        for settle in [Settle::acknowledge, nack] as [fn(Receipt) -> Settle; 2] {
            let refused = one(jobs.settle(vec![settle(made_up())]).await);
            let refused = refused.expect_err("it is no receipt");
            assert!(matches!(refused, Error::ReceiptHandleExpired { .. }), "{refused:?}");
            // Beside a good one.
            let good = Settle::extend(delivery.receipt.clone(), LEASE);
            let both = jobs.settle(vec![settle(made_up()), good]).await.expect("answered");
            assert!(both[0].is_err() && both[1].is_ok(), "{both:?}");
        }

        // Twelve hours from the first delivery are the end, however often it is extended.
        let most = Capabilities::MAX_VISIBILITY;
        let refused = one(jobs.settle(vec![Settle::extend(delivery.receipt, most)]).await);
        let refused = refused.expect_err("more than twelve hours in all");
        assert!(matches!(refused, Error::InvalidParameter { .. }), "{refused:?}");
        assert!(refused.to_string().contains("43200"), "{refused}");

        // More attributes than there may be, and more bytes, before anything is sent.
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

        // A delay longer than SQS has.
        let mut message = Outgoing::new("x");
        message.delay = Duration::from_secs(901);
        let refused = one(jobs.send(vec![message]).await).expect_err("too long a delay");
        assert!(refused.to_string().contains("allowed: 0 to 900 s"), "{refused}");

        // No queue is made unless that was asked for.
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
        // Nobody listens on the port of a listener that is gone.
        let gone = Canned::start(Vec::new()).await.url();
        let backend = open_url(&format!("{gone}?attempts=1")).await;
        let error = queue(&backend, "jobs").send(vec![Outgoing::new("x")]).await;
        let error = error.expect_err("nobody is there");
        assert!(matches!(error, Error::Connection { .. }) && error.is_transient(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("cannot send on queue 'jobs': SQS at http://127.0.0.1"), "{text}");
        assert!(text.contains("check the region or the endpoint"), "{text}");
    });
}

/// TLS is there, and looks at certificates.
#[test]
fn an_endpoint_whose_certificate_nobody_has_signed_is_a_connection_error() {
    let stranger = RedisServer::builder().tls().start();
    block_on(async {
        let url = format!("sqs+https://127.0.0.1:{}?attempts=1", stranger.port());
        let options = SqsOptions::from_url(&url).expect("a URL");
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(Credentials::new("a", "b", None, None, "test"));
        // As `open` makes it, but for the credentials, which would be looked for.
        let opened = SqsBackend::open(options.clone()).await.expect("a backend");
        let like = opened.client().config();
        let config = config
            .region(like.region().cloned())
            .endpoint_url(format!("https://127.0.0.1:{}", stranger.port()))
            .http_client(like.http_client().expect("it has one"));
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
        let denied = Answer::error(403, "AccessDeniedException", "User is not authorized");
        let server = Canned::start(vec![denied]).await;
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

/// No server here has such a limit.
#[test]
fn too_many_messages_in_flight_are_a_full_mailbox() {
    block_on(async {
        let over = Answer::error(403, "OverLimit", "Too many messages in flight");
        let server = Canned::start(vec![over]).await;
        let backend = open_url(&server.url()).await;
        let full = queue(&backend, "jobs").receive(Receive::one()).await.expect_err("full");
        let Error::MailboxFull { id: None, max_size: Some(120_000), .. } = full else {
            panic!("{full:?}");
        };
        assert!(full.is_transient());
    });
}

/// Nor does any throttle.
#[test]
fn what_is_throttled_is_tried_again() {
    block_on(async {
        let throttled = Answer::error(400, "ThrottlingException", "Rate exceeded");
        // First the call, then one entry of two.
        let half = r#"{"Successful":[{"Id":"0","MessageId":"m","MD5OfMessageBody":"x"}],
            "Failed":[{"Id":"1","SenderFault":false,"Code":"InternalError"}]}"#;
        let rest = r#"{"Successful":[{"Id":"1","MessageId":"n","MD5OfMessageBody":"y"}]}"#;
        let answers =
            vec![throttled.clone(), throttled.clone(), Answer::ok(half), Answer::ok(rest)];
        let server = Canned::start(answers).await;
        let backend = open_url(&server.url()).await;
        let batch = vec![Outgoing::new("first"), Outgoing::new("second")];
        let sent = queue(&backend, "jobs").send(batch).await.expect("sent");
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        let asked = server.asked();
        assert_eq!(asked.len(), 4);
        assert!(asked[3].1.contains("second") && !asked[3].1.contains("first"), "{asked:?}");

        // And not for ever.
        let server = Canned::start(vec![throttled; 9]).await;
        let backend = open_url(&format!("{}?attempts=2", server.url())).await;
        let error = queue(&backend, "jobs").receive(Receive::one()).await.expect_err("throttled");
        assert!(error.to_string().contains("Rate exceeded; ask for less"), "{error}");
        assert_eq!(server.asked().len(), 2);
    });
}
