//! Servers, and backends on them.

pub(crate) mod fake_server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pillarbox_core::{Mailboxes, Queue, QueueOptions, Result};
use pillarbox_sqs::aws_sdk_sqs::config::interceptors::BeforeTransmitInterceptorContextRef;
use pillarbox_sqs::aws_sdk_sqs::config::{
    BehaviorVersion, ConfigBag, Credentials, Intercept, Region, RuntimeComponents,
};
use pillarbox_sqs::aws_sdk_sqs::error::BoxError;
use pillarbox_sqs::aws_sdk_sqs::{Client, Config};
use pillarbox_sqs::{SqsBackend, SqsOptions};
use pillarbox_testing::Subject;
use pillarbox_testing::server::{SqsFlavour, SqsServer};

/// Starts a server that must be installed.
pub(crate) fn start(flavour: SqsFlavour) -> SqsServer {
    SqsServer::start(flavour)
}

/// Starts a server, if it is installed.
pub(crate) fn start_if_installed(flavour: SqsFlavour) -> Option<SqsServer> {
    if !flavour.is_installed() {
        println!("skipped: {} is not installed", flavour.name());
        return None;
    }
    Some(start(flavour))
}

/// Starts all installed servers, moto first, which is required.
pub(crate) fn start_all() -> Vec<SqsServer> {
    let others = [SqsFlavour::Ministack, SqsFlavour::Fauxqs];
    let mut servers = vec![start(SqsFlavour::Moto)];
    servers.extend(others.into_iter().filter_map(start_if_installed));
    servers
}

pub(crate) async fn open_url(url: &str) -> Mailboxes {
    let options = SqsOptions::from_url(url).unwrap_or_else(|error| panic!("{error}"));
    let backend = SqsBackend::open(options).await;
    Mailboxes::new(backend.unwrap_or_else(|error| panic!("{error}")))
}

/// Opens a backend that creates queues when they are used.
pub(crate) async fn open(server: &SqsServer, options: &str) -> Mailboxes {
    open_url(&format!("{}?create=true{options}", server.url())).await
}

pub(crate) fn queue(backend: &Mailboxes, name: &str) -> Arc<dyn Queue> {
    backend.queue(name, QueueOptions::new()).expect("a queue")
}

#[track_caller]
pub(crate) fn only<T>(mut items: Vec<T>) -> T {
    assert_eq!(items.len(), 1);
    items.remove(0)
}

#[track_caller]
pub(crate) fn one<T>(results: Result<Vec<Result<T>>>) -> Result<T> {
    only(results?)
}

/// A backend with polls of 2 s, so that a test of the end of a poll does not take 20 s.
pub(crate) async fn subject(server: &SqsServer) -> Subject {
    let url = format!("{}?create=true&poll=2", server.url());
    let backend = open_url(&url).await;
    Subject::new(backend).with_restart(move || {
        let url = url.clone();
        async move { open_url(&url).await }
    })
}

/// Counts the requests of each operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<BTreeMap<String, usize>>>);

impl Requests {
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        self.0.lock().expect("the counts").clone()
    }

    pub(crate) fn of(&self, operation: &str) -> usize {
        self.counts().get(operation).copied().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> usize {
        self.counts().values().sum()
    }
}

impl Intercept for Requests {
    fn name(&self) -> &'static str {
        "counts requests"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or(target).to_owned();
        *self.0.lock().expect("the counts").entry(operation).or_default() += 1;
        Ok(())
    }
}

/// Opens a backend on a client that counts its requests.
pub(crate) fn open_counted(server: &SqsServer, options: SqsOptions) -> (Mailboxes, Requests) {
    let requests = Requests::default();
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(server.endpoint())
        .credentials_provider(Credentials::new("a", "b", None, None, "test"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .interceptor(requests.clone())
        .build();
    let backend = SqsBackend::from_client(Client::from_conf(config), options).expect("a backend");
    (Mailboxes::new(backend), requests)
}
