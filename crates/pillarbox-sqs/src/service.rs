//! Calls of SQS: the client, and names and URLs of queues.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextRef as ResponseContext;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::{BoxError, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use pillarbox_core::internal::{RetryDelay, lock};
use pillarbox_core::{Error, Gate, QueueName, Result, Timestamp};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::failure::{ErrorContext, Failure, Reason};
use crate::limits::{FIFO_SUFFIX, Kind, MAX_NAME};
use crate::options::Usage;

/// Number of URLs that are cached.
const MAX_URLS: usize = 4096;

/// Delay before the second try; doubles with each further one.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The client, shared by all queues of a backend.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) client: Client,
    pub(crate) usage: Usage,
    /// The region or the URL of SQS, for error texts.
    pub(crate) endpoint: String,
    pub(crate) gate: Arc<Gate>,
    /// Polls and releases, which run without a caller.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    urls: Mutex<HashMap<Box<str>, Arc<str>>>,
}

/// The identity of a queue on SQS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Its name on SQS, with prefix and suffix.
    Name(Box<str>),
    Url(Arc<str>),
}

impl Target {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Url(url) => url,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        Kind::of(self.as_str())
    }
}

/// Reaction to a queue that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Create it, if the options allow that.
    Create,
    Fail,
}

impl Service {
    pub(crate) fn new(client: Client, usage: Usage, endpoint: String, runtime: Handle) -> Self {
        Self {
            client,
            usage,
            endpoint,
            gate: Arc::new(Gate::new()),
            tasks: TaskTracker::new(),
            runtime,
            urls: Mutex::default(),
        }
    }

    /// Returns the identity on SQS of the queue with this name.
    pub(crate) fn target(&self, name: &QueueName) -> Result<Target> {
        let stem = name.as_str().strip_suffix(FIFO_SUFFIX).unwrap_or(name.as_str());
        if stem.is_empty() || stem.contains(['.', ':', '/']) {
            let allowed = "letters, digits, '_' and '-' on sqs, optionally with .fifo at the end";
            return Err(Error::invalid(None, "queue name", format!("'{name}'"), allowed));
        }
        let is_fifo = self.usage.fifo || stem.len() < name.as_str().len();
        let suffix = if is_fifo { FIFO_SUFFIX } else { "" };
        let physical = format!("{}{stem}{suffix}", self.usage.prefix);
        if physical.len() > MAX_NAME {
            let value = format!("'{name}', which is '{physical}' on sqs");
            let allowed = format!("at most {MAX_NAME} characters there");
            return Err(Error::invalid(None, "queue name", value, allowed));
        }
        Ok(Target::Name(physical.into()))
    }

    /// Returns the name of the queue with this name on SQS. `None` if it does not belong to this backend.
    pub(crate) fn name_of(&self, physical: &str) -> Option<String> {
        let name = physical.strip_prefix(&self.usage.prefix)?;
        let name = if self.usage.fifo { name.strip_suffix(FIFO_SUFFIX)? } else { name };
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Returns the context for error texts.
    pub(crate) fn error_context<'a>(
        &'a self,
        queue: Option<&'a QueueName>,
        target: &'a Target,
    ) -> ErrorContext<'a> {
        let creates = self.usage.create;
        ErrorContext { queue, physical: target.as_str(), endpoint: &self.endpoint, creates }
    }

    /// Calls SQS with the URL of a queue.
    pub(crate) async fn call<T, E, F>(
        &self,
        target: &Target,
        if_missing: IfMissing,
        operation: impl Fn(Arc<str>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let mut tries = Tries::new(self.usage.tries);
        loop {
            let url = self.url(target, if_missing).await?;
            let failure = match operation(url).await {
                Ok(response) => return Ok(response),
                Err(error) => Failure::of(error),
            };
            if failure.reason != Reason::NoQueue {
                return Err(failure);
            }
            // It was deleted since its URL was cached, or was created just now and is not yet visible on all
            // servers.
            lock(&self.urls).remove(target.as_str());
            if !self.may_create(if_missing) || !tries.wait().await {
                return Err(failure);
            }
        }
    }

    fn may_create(&self, if_missing: IfMissing) -> bool {
        if_missing == IfMissing::Create && self.usage.create && !self.usage.only_existing
    }

    /// Returns the URL of a queue.
    async fn url(&self, target: &Target, if_missing: IfMissing) -> Result<Arc<str>, Failure> {
        let name = match target {
            Target::Url(url) => return Ok(url.clone()),
            Target::Name(name) => name,
        };
        if let Some(url) = lock(&self.urls).get(name) {
            return Ok(url.clone());
        }
        let found = self.client.get_queue_url().queue_name(&**name).send().await;
        let url = match found.map_err(Failure::of) {
            Ok(found) => found.queue_url,
            Err(failure) if failure.reason == Reason::NoQueue && self.may_create(if_missing) => {
                self.create_queue(name).await?
            }
            Err(failure) => return Err(failure),
        };
        let url: Arc<str> = url.unwrap_or_default().into();
        let mut urls = lock(&self.urls);
        if urls.len() >= MAX_URLS {
            urls.clear();
        }
        urls.insert(name.clone(), url.clone());
        Ok(url)
    }

    async fn create_queue(&self, name: &str) -> Result<Option<String>, Failure> {
        let mut request = self.client.create_queue().queue_name(name);
        for (attribute, value) in &self.usage.attributes {
            request = request.attributes(Attribute::from(attribute.as_str()), value);
        }
        if Kind::of(name) == Kind::Fifo {
            request = request.attributes(Attribute::FifoQueue, "true");
        }
        let created = request.send().await.map_err(Failure::of)?;
        tracing::info!(queue = name, "created a queue on SQS");
        Ok(created.queue_url)
    }

    /// Returns attributes of a queue, and the time of the response by the clock of SQS, if known.
    pub(crate) async fn attributes(
        &self,
        target: &Target,
        if_missing: IfMissing,
        names: &[Attribute],
    ) -> Result<(HashMap<Attribute, String>, Option<Timestamp>), Failure> {
        let date = ResponseDate::default();
        let response = self.call(target, if_missing, |url| {
            let request = self.client.get_queue_attributes().queue_url(&*url);
            let request = request.set_attribute_names(Some(names.to_vec()));
            request.customize().interceptor(date.clone()).send()
        });
        let attributes = response.await?.attributes.unwrap_or_default();
        let date = *lock(&date.0);
        Ok((attributes, date))
    }
}

/// Reads the time of the server from the header `Date` of a response, in whole seconds.
#[derive(Debug, Clone, Default)]
struct ResponseDate(Arc<Mutex<Option<Timestamp>>>);

impl Intercept for ResponseDate {
    fn name(&self) -> &'static str {
        "ResponseDate"
    }

    fn read_before_deserialization(
        &self,
        context: &ResponseContext<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|text| DateTime::from_str(text, Format::HttpDate).ok());
        *lock(&self.0) = date.map(|date| Timestamp::from_secs(date.secs()));
        Ok(())
    }
}

/// The tries of a call, with a growing delay between them.
#[derive(Debug)]
pub(crate) struct Tries {
    left: u32,
    delay: RetryDelay,
}

impl Tries {
    pub(crate) fn new(tries: u32) -> Self {
        let delay = RetryDelay::new(RETRY_DELAY, Duration::MAX);
        Self { left: tries.saturating_sub(1), delay }
    }

    /// Waits for the next try. Returns `false` at once if none is left.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        tokio::time::sleep(self.delay.next_delay()).await;
        true
    }
}
