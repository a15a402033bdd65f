//! [`Backend`] on SQS.

use std::sync::Arc;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{Credentials, SharedHttpClient};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Diagnosis, Error, Queue, QueueName, QueueOptions, Redrive,
    Result,
};
use tokio::runtime::Handle;

use crate::diagnose;
use crate::failure::Failure;
use crate::limits::{Kind, MAX_WAIT};
use crate::options::SqsOptions;
use crate::queue::SqsQueue;
use crate::redrive;
use crate::service::{IfMissing, Service, Target};

/// Timeout of a request, long polls included.
const REQUEST_TIMEOUT: Duration = MAX_WAIT.saturating_add(Duration::from_secs(10));
/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The region of servers without one.
const LOCAL_REGION: &str = "us-east-1";

/// Queues on AWS SQS, or on a server with its protocol.
///
/// Must be used within the Tokio runtime in which it was opened. Close it before the program ends: closing waits for
/// cancelled long polls, and releases their messages.
///
/// ```no_run
/// use pillarbox_core::{Mailbox, Mailboxes};
/// use pillarbox_sqs::{SqsBackend, SqsOptions};
///
/// # async fn run() -> pillarbox_core::Result<()> {
/// let options = SqsOptions::from_url("sqs://eu-central-1/shop-")?;
/// let backend = Mailboxes::new(SqsBackend::open(options).await?);
/// let jobs: Mailbox<String> = backend.mailbox("jobs")?;
/// // A queue of another team, in the same region:
/// let theirs: Mailbox<String> =
///     backend.mailbox_at("https://sqs.eu-central-1.amazonaws.com/210987654321/orders")?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SqsBackend {
    service: Arc<Service>,
    capabilities: Capabilities,
}

impl SqsBackend {
    /// Opens a backend, with region and credentials from the sources of AWS's own tools: environment, profile, web
    /// identity, container, instance. Sends no request to SQS yet.
    ///
    /// A server at `http://` (not `https://`) gets the credentials of the environment (`AWS_ACCESS_KEY_ID`), or
    /// dummy ones if there are none.
    ///
    /// For SSO credentials and other settings of the SDK, see [`from_client`](Self::from_client).
    pub async fn open(options: SqsOptions) -> Result<Self> {
        let tries = options.usage.tries;
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .retry_config(RetryConfig::standard().with_max_attempts(tries))
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(CONNECT_TIMEOUT)
                    .operation_attempt_timeout(REQUEST_TIMEOUT)
                    .build(),
            );
        loader = match &options.endpoint {
            Some(endpoint) if endpoint.starts_with("http://") => {
                let loader = loader.http_client(Builder::new().build_http()).endpoint_url(endpoint);
                match std::env::var_os("AWS_ACCESS_KEY_ID") {
                    Some(_) => loader,
                    None => loader.credentials_provider(dummy_credentials()),
                }
            }
            Some(endpoint) => loader.http_client(https()).endpoint_url(endpoint),
            None => loader.http_client(https()),
        };
        if let Some(region) = &options.region {
            loader = loader.region(Region::new(region.clone()));
        } else if options.endpoint.is_some() {
            loader = loader.region(Region::new(LOCAL_REGION));
        }
        let config = loader.load().await;
        if config.region().is_none() {
            let allowed = "one in the URL (sqs://REGION/PREFIX), in AWS_REGION or in the profile";
            return Err(Error::invalid(None, "region", "none", allowed));
        }
        Self::from_client(Client::new(&config), options)
    }

    /// Opens a backend on an existing client, with its region, endpoint, credentials, interceptors and retries; those
    /// of the options are ignored.
    ///
    /// Fails outside of a Tokio runtime.
    ///
    /// ```no_run
    /// use pillarbox_sqs::{SqsBackend, SqsOptions, aws_sdk_sqs};
    ///
    /// # async fn run(config: aws_sdk_sqs::Config) -> pillarbox_core::Result<()> {
    /// let client = aws_sdk_sqs::Client::from_conf(config);
    /// let backend = SqsBackend::from_client(client, SqsOptions::new().prefix("shop-")?)?;
    /// # Ok(()) }
    /// ```
    pub fn from_client(client: Client, options: SqsOptions) -> Result<Self> {
        let runtime =
            Handle::try_current().map_err(|error| Error::connection(None, "open", error))?;
        let region = client.config().region().map(|region| region.to_string());
        let endpoint = match (options.endpoint, region) {
            (Some(endpoint), _) => endpoint,
            (None, Some(region)) => region,
            (None, None) => "the endpoint of the client".to_owned(),
        };
        let kind = if options.usage.fifo { Kind::Fifo } else { Kind::Standard };
        let capabilities = kind.capabilities(options.usage.max_message);
        let service = Arc::new(Service::new(client, options.usage, endpoint, runtime));
        Ok(Self { service, capabilities })
    }

    /// Returns the client, for operations beyond the contract.
    pub fn client(&self) -> &Client {
        &self.service.client
    }

    fn open_queue(&self, name: &QueueName, target: Target, options: QueueOptions) -> Arc<SqsQueue> {
        Arc::new(SqsQueue::new(self.service.clone(), name.clone(), target, options))
    }

    /// Returns the names of all queues of this backend.
    async fn list(&self) -> Result<Vec<QueueName>, Failure> {
        let prefix = &self.service.usage.prefix;
        let mut pages = self
            .service
            .client
            .list_queues()
            .set_queue_name_prefix((!prefix.is_empty()).then(|| prefix.clone()))
            .max_results(1000)
            .into_paginator()
            .send();
        let mut names = Vec::new();
        while let Some(page) = pages.next().await {
            for url in page.map_err(Failure::of)?.queue_urls.unwrap_or_default() {
                let name = self.service.name_of(last_part(&url));
                names.extend(name.and_then(|name| QueueName::new(&name).ok()));
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Returns the ARN of a queue, given its name or its ARN.
    async fn arn_of(&self, queue: &str) -> Result<String> {
        if queue.starts_with("arn:") {
            return Ok(queue.to_owned());
        }
        let name = QueueName::new(queue)?;
        let target = self.service.target(&name)?;
        let context = self.service.error_context(Some(&name), &target);
        let names = [Attribute::QueueArn];
        let found = self.service.attributes(&target, IfMissing::Create, &names).await;
        let (mut found, _) =
            found.map_err(|failure| failure.into_error(&context, "read the address"))?;
        found.remove(&Attribute::QueueArn).ok_or_else(|| {
            Error::connection(Some(&name), "read the address", "the response of SQS has no ARN")
        })
    }
}

impl Backend for SqsBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.service.gate.check(name)?;
        Ok(self.open_queue(name, self.service.target(name)?, options))
    }

    fn queue_at(&self, address: &str) -> Result<Arc<dyn Queue>> {
        if !address.starts_with("http://") && !address.starts_with("https://") {
            return self.queue(&QueueName::new(address)?, QueueOptions::new());
        }
        let physical = last_part(address);
        let name = self.service.name_of(physical).unwrap_or_else(|| physical.to_owned());
        let name = QueueName::new(&name).map_err(|_| {
            let allowed = "the URL of an SQS queue, which ends with its name";
            Error::invalid(None, "address", format!("{address:?}"), allowed)
        })?;
        self.service.gate.check(&name)?;
        Ok(self.open_queue(&name, Target::Url(address.into()), QueueOptions::new()))
    }

    fn dead_letter_name(&self, source: &QueueName) -> Result<QueueName> {
        redrive::dead_letter_name(source)
    }

    fn is_dead_letter_name(&self, name: &QueueName) -> bool {
        redrive::is_dead_letter_name(name)
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            self.service.gate.check_backend()?;
            let no_queue = Target::Name("".into());
            let context = self.service.error_context(None, &no_queue);
            self.list().await.map_err(|failure| failure.into_error(&context, "list queues"))
        })
    }

    fn redrive<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Option<Redrive>>> {
        Box::pin(async move {
            self.service.gate.check(queue)?;
            let target = self.service.target(queue)?;
            let context = self.service.error_context(Some(queue), &target);
            let names = [Attribute::RedrivePolicy];
            let found = self.service.attributes(&target, IfMissing::Fail, &names).await;
            let (found, _) =
                found.map_err(|failure| failure.into_error(&context, "read the redrive policy"))?;
            let policy = found.get(&Attribute::RedrivePolicy);
            Ok(policy.and_then(|text| redrive::read(text, |name| self.service.name_of(name))))
        })
    }

    fn set_redrive<'a>(
        &'a self,
        queue: &'a QueueName,
        redrive: Option<Redrive>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.service.gate.check(queue)?;
            self.capabilities.check_redrive(queue, redrive.as_ref())?;
            let target = self.service.target(queue)?;
            let policy = match redrive {
                Some(redrive) => {
                    redrive::write(self.arn_of(&redrive.to).await?, redrive.max_deliveries)
                }
                None => String::new(),
            };
            let context = self.service.error_context(Some(queue), &target);
            let written = self.service.call(&target, IfMissing::Create, |url| {
                let request = self.service.client.set_queue_attributes().queue_url(&*url);
                request.attributes(Attribute::RedrivePolicy, &policy).send()
            });
            let failed = |failure: Failure| failure.into_error(&context, "set the redrive policy");
            written.await.map(|_| ()).map_err(failed)
        })
    }

    fn diagnose(&self, _repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        Box::pin(async move {
            let queues = self.queues().await?;
            diagnose::diagnose(&self.service, &self.capabilities, &queues).await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.service.gate.close();
            self.service.tasks.close();
            self.service.tasks.wait().await;
        })
    }
}

/// Returns the name of a queue in its URL.
fn last_part(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

fn https() -> SharedHttpClient {
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}

/// Credentials for a local server that requires some and does not check them.
fn dummy_credentials() -> Credentials {
    Credentials::new("pillarbox", "pillarbox", None, None, "dummy credentials for a local server")
}
