//! SQS as it is called: a client, and the URLs of queues.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextRef as Answered;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::{BoxError, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use pillarbox_core::{Error, Gate, QueueName, Result, Timestamp};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::failure::{Failure, Place, Reason};
use crate::limits::{FIFO_ENDING, Kind, MAX_NAME};
use crate::options::Usage;

/// How many URLs are kept. They are asked for again when needed.
const KEPT_URLS: usize = 4096;

/// The first pause before something is tried again; it doubles.
const PAUSE: Duration = Duration::from_millis(50);

/// SQS, and what all queues of a backend share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) client: Client,
    pub(crate) usage: Usage,
    /// Where SQS is, for people: a region or a URL.
    pub(crate) endpoint: String,
    pub(crate) gate: Arc<Gate>,
    /// Polls, and what is given back: all that runs without somebody who waits for it.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    urls: Mutex<HashMap<Box<str>, Arc<str>>>,
}

/// What SQS knows a queue by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Its name there, prefix and ending included.
    Name(Box<str>),
    /// Its URL.
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

/// What to do where there is no queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Make it, if the options say so.
    Make,
    /// Leave it so.
    Leave,
}

impl Service {
    pub(crate) fn new(
        client: Client,
        usage: Usage,
        endpoint: String,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            usage,
            endpoint,
            gate: Arc::new(Gate::new()),
            tasks: TaskTracker::new(),
            runtime,
            urls: Mutex::default(),
        })
    }

    /// What SQS knows a queue by that has this name here.
    pub(crate) fn target(&self, name: &QueueName) -> Result<Target> {
        let stem = name.as_str().strip_suffix(FIFO_ENDING).unwrap_or(name.as_str());
        if stem.is_empty() || stem.contains(['.', ':', '/']) {
            let allowed = "letters, digits, '_' and '-' on sqs, and .fifo at the end";
            return Err(Error::invalid(None, "queue name", format!("'{name}'"), allowed));
        }
        let is_fifo = self.usage.fifo || stem.len() < name.as_str().len();
        let ending = if is_fifo { FIFO_ENDING } else { "" };
        let physical = format!("{}{stem}{ending}", self.usage.prefix);
        if physical.len() > MAX_NAME {
            let value = format!("'{name}', which is '{physical}' on sqs");
            let allowed = format!("at most {MAX_NAME} characters there");
            return Err(Error::invalid(None, "queue name", value, allowed));
        }
        Ok(Target::Name(physical.into()))
    }

    /// The name here of a queue that SQS knows by this one. `None` for one that is not of this backend.
    pub(crate) fn name_of(&self, physical: &str) -> Option<String> {
        let name = physical.strip_prefix(&self.usage.prefix)?;
        let name = if self.usage.fifo { name.strip_suffix(FIFO_ENDING)? } else { name };
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Where a failure is.
    pub(crate) fn place<'a>(
        &'a self,
        queue: Option<&'a QueueName>,
        target: &'a Target,
    ) -> Place<'a> {
        let creates = self.usage.create;
        Place { queue, physical: target.as_str(), endpoint: &self.endpoint, creates }
    }

    /// Calls SQS with the URL of a queue.
    pub(crate) async fn call<T, E, F>(
        &self,
        target: &Target,
        missing: Missing,
        operation: impl Fn(Arc<str>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let mut backoff = Backoff::new(self.usage.attempts);
        loop {
            let url = self.url(target, missing).await?;
            let failure = match operation(url).await {
                Ok(answer) => return Ok(answer),
                Err(error) => Failure::of(error),
            };
            if failure.reason != Reason::NoQueue {
                return Err(failure);
            }
            // It was deleted since its URL was asked for, or was made a moment ago and is not yet known
            // everywhere.
            self.forget(target);
            if !self.makes(missing) || !backoff.pause().await {
                return Err(failure);
            }
        }
    }

    fn makes(&self, missing: Missing) -> bool {
        missing == Missing::Make && self.usage.create && !self.usage.only_existing
    }

    /// The URL of a queue.
    async fn url(&self, target: &Target, missing: Missing) -> Result<Arc<str>, Failure> {
        let name = match target {
            Target::Url(url) => return Ok(url.clone()),
            Target::Name(name) => name,
        };
        if let Some(url) = self.urls().get(name) {
            return Ok(url.clone());
        }
        let found = self.client.get_queue_url().queue_name(&**name).send().await;
        let url = match found.map_err(Failure::of) {
            Ok(found) => found.queue_url,
            Err(failure) if failure.reason == Reason::NoQueue && self.makes(missing) => {
                self.make(name).await?
            }
            Err(failure) => return Err(failure),
        };
        let url: Arc<str> = url.unwrap_or_default().into();
        let mut urls = self.urls();
        if urls.len() >= KEPT_URLS {
            urls.clear();
        }
        urls.insert(name.clone(), url.clone());
        Ok(url)
    }

    async fn make(&self, name: &str) -> Result<Option<String>, Failure> {
        let mut request = self.client.create_queue().queue_name(name);
        for (attribute, value) in &self.usage.attributes {
            request = request.attributes(Attribute::from(attribute.as_str()), value);
        }
        if Kind::of(name) == Kind::Fifo {
            request = request.attributes(Attribute::FifoQueue, "true");
        }
        let made = request.send().await.map_err(Failure::of)?;
        tracing::info!(queue = name, "made a queue on SQS");
        Ok(made.queue_url)
    }

    fn forget(&self, target: &Target) {
        self.urls().remove(target.as_str());
    }

    fn urls(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<str>>> {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attributes of a queue, and when they were told by the clock of SQS, where it says so.
    pub(crate) async fn attributes(
        &self,
        target: &Target,
        names: &[Attribute],
    ) -> Result<(HashMap<Attribute, String>, Option<Timestamp>), Failure> {
        let date = Date::default();
        let answer = self.call(target, Missing::Leave, |url| {
            let request = self.client.get_queue_attributes().queue_url(&*url);
            let request = request.set_attribute_names(Some(names.to_vec()));
            request.customize().interceptor(date.clone()).send()
        });
        let attributes = answer.await?.attributes.unwrap_or_default();
        Ok((attributes, date.get()))
    }
}

/// Reads the time of the server off an answer: the header `Date`, in whole seconds.
#[derive(Debug, Clone, Default)]
struct Date(Arc<Mutex<Option<Timestamp>>>);

impl Date {
    fn get(&self) -> Option<Timestamp> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for Date {
    fn name(&self) -> &'static str {
        "Date"
    }

    fn read_before_deserialization(
        &self,
        answer: &Answered<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = answer.response().headers().get("date");
        let date = date.and_then(|text| DateTime::from_str(text, Format::HttpDate).ok());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            date.map(|date| Timestamp::from_secs(date.secs()));
        Ok(())
    }
}

/// Pauses between attempts: longer each time, and not for ever.
#[derive(Debug)]
pub(crate) struct Backoff {
    left: u32,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(attempts: u32) -> Self {
        Self { left: attempts.saturating_sub(1), next: PAUSE }
    }

    /// Pauses, unless there is no attempt left.
    pub(crate) async fn pause(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        tokio::time::sleep(self.next).await;
        self.next *= 2;
        true
    }
}
