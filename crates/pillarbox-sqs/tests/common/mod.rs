//! Real servers, and backends on them.
#![allow(dead_code, reason = "each test binary uses some of it")]

use pillarbox_core::Mailboxes;
use pillarbox_sqs::{SqsBackend, SqsOptions};
use pillarbox_testing::Subject;
use pillarbox_testing::server::{SqsFlavour, SqsServer};

pub(crate) fn start(flavour: SqsFlavour) -> SqsServer {
    SqsServer::start(flavour)
}

/// A backend on a server, which makes queues when they are used.
pub(crate) async fn open(server: &SqsServer, options: &str) -> Mailboxes {
    let url = format!("{}?create=true{options}", server.url());
    let options = SqsOptions::from_url(&url).unwrap_or_else(|error| panic!("{error}"));
    let backend = SqsBackend::open(options).await;
    Mailboxes::new(backend.unwrap_or_else(|error| panic!("{error}")))
}

/// Polls of two seconds, so that a rule about the end of one does not take twenty.
pub(crate) async fn subject(server: &SqsServer) -> Subject {
    Subject::new(open(server, "&poll=2").await)
}
