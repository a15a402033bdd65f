//! SQS as a backend.

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
use crate::service::{Missing, Service, Target};

/// How long a request may take, one that waits for messages included.
const PATIENCE: Duration = MAX_WAIT.saturating_add(Duration::from_secs(10));
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The region of servers that have none.
const LOCAL_REGION: &str = "us-east-1";

/// Queues on AWS SQS, or on a server that speaks its protocol.
///
/// Must be used within the tokio runtime that it was opened in. When you are done, close it: a long poll that nobody
/// waits for any more is ended in order then, and what it is answered with given back.
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
    /// Finds region and credentials as AWS's own tools do: environment, profile, web identity, container,
    /// instance. Nothing is asked of SQS yet.
    ///
    /// A server at `http://` (not `https://`) gets the credentials of the environment
    /// (`AWS_ACCESS_KEY_ID`), or made up ones where there are none.
    ///
    /// For credentials by SSO, and whatever else the SDK can be told, see
    /// [`from_client`](Self::from_client).
    pub async fn open(options: SqsOptions) -> Result<Self> {
        let attempts = options.usage.attempts;
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .retry_config(RetryConfig::standard().with_max_attempts(attempts))
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(CONNECT)
                    .operation_attempt_timeout(PATIENCE)
                    .build(),
            );
        loader = match &options.endpoint {
            Some(endpoint) if endpoint.starts_with("http://") => {
                let loader = loader.http_client(plain_http()).endpoint_url(endpoint);
                match std::env::var_os("AWS_ACCESS_KEY_ID") {
                    Some(_) => loader,
                    None => loader.credentials_provider(nobodys()),
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
            return Err(Error::invalid(
                None,
                "region",
                "none",
                "one in the URL (sqs://REGION/PREFIX), in AWS_REGION or in the profile",
            ));
        }
        Self::from_client(Client::new(&config), options)
    }

    /// Uses a client that the program has already, with whatever region, endpoint, credentials,
    /// interceptors and retries it was given; those of the options do not count.
    ///
    /// Fails outside of a tokio runtime.
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
        let service = Service::new(client, options.usage, endpoint, runtime);
        Ok(Self { service, capabilities })
    }

    /// The client, for what is not in the contract.
    pub fn client(&self) -> &Client {
        &self.service.client
    }

    fn open_queue(&self, name: &QueueName, target: Target, options: QueueOptions) -> Arc<SqsQueue> {
        Arc::new(SqsQueue::new(self.service.clone(), name.clone(), target, options))
    }

    /// The names of all queues that are of this backend.
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

    async fn read_redrive(&self, target: &Target) -> Result<Option<Redrive>, Failure> {
        let (found, _) = self.service.attributes(target, &[Attribute::RedrivePolicy]).await?;
        let policy = found.get(&Attribute::RedrivePolicy);
        Ok(policy.and_then(|text| redrive::read(text, |name| self.service.name_of(name))))
    }

    async fn write_redrive(&self, target: &Target, policy: String) -> Result<(), Failure> {
        let written = self.service.call(target, Missing::Make, |url| {
            let request = self.service.client.set_queue_attributes().queue_url(&*url);
            request.attributes(Attribute::RedrivePolicy, &policy).send()
        });
        written.await.map(|_| ())
    }

    /// The ARN of a queue that is named by its name here or by its ARN.
    async fn arn_of(&self, queue: &str) -> Result<String> {
        if queue.starts_with("arn:") {
            return Ok(queue.to_owned());
        }
        let name = QueueName::new(queue)?;
        let target = self.service.target(&name)?;
        let names = [Attribute::QueueArn];
        let found = self.service.call(&target, Missing::Make, |url| {
            let request = self.service.client.get_queue_attributes().queue_url(&*url);
            request.set_attribute_names(Some(names.to_vec())).send()
        });
        let place = self.service.place(Some(&name), &target);
        let found = found.await.map_err(|failure| failure.on(&place, "read the address"))?;
        let mut found = found.attributes.unwrap_or_default();
        found.remove(&Attribute::QueueArn).ok_or_else(|| {
            Error::connection(Some(&name), "read the address", "SQS does not tell its ARN")
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
            let allowed = "the URL of an SQS queue, whose last part is its name";
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
            let nowhere = Target::Name("".into());
            let place = self.service.place(None, &nowhere);
            self.list().await.map_err(|failure| failure.on(&place, "list queues"))
        })
    }

    fn redrive<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Option<Redrive>>> {
        Box::pin(async move {
            self.service.gate.check(queue)?;
            let target = self.service.target(queue)?;
            let place = self.service.place(Some(queue), &target);
            let read = self.read_redrive(&target).await;
            read.map_err(|failure| failure.on(&place, "read the redrive policy"))
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
            let place = self.service.place(Some(queue), &target);
            let written = self.write_redrive(&target, policy).await;
            written.map_err(|failure| failure.on(&place, "set the redrive policy"))
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

/// The name of a queue in its URL.
fn last_part(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

fn plain_http() -> SharedHttpClient {
    Builder::new().build_http()
}

fn https() -> SharedHttpClient {
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}

/// Credentials for a server that asks for some and checks none.
fn nobodys() -> Credentials {
    Credentials::new("pillarbox", "pillarbox", None, None, "made up for a local server")
}
