//! Where SQS is, and how it is used.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use pillarbox_core::{Error, Result};

use crate::limits::{MAX_MESSAGE, MAX_NAME, MAX_WAIT};

/// Where SQS is, and how it is used.
///
/// | URL | where |
/// |---|---|
/// | `sqs://REGION[/PREFIX]` | AWS, in this region |
/// | `sqs:///[PREFIX]` | AWS, in the region of the environment or the profile |
/// | `sqs+http://HOST[:PORT][/PREFIX]` | a local server, such as moto |
/// | `sqs+https://HOST[:PORT][/PREFIX]` | another endpoint, with the credentials of AWS |
///
/// `PREFIX` is what the names of all queues begin with on SQS: `sqs://eu-central-1/shop-` has the
/// queue `shop-jobs` as `jobs`.
///
/// | option | default | what it does |
/// |---|---|---|
/// | `create=true` | `false` | makes queues that are not there when they are sent to or received from |
/// | `ATTRIBUTE=VALUE` | | an attribute of queues that are made, as SQS names it: `MessageRetentionPeriod=1209600` |
/// | `fifo=true` | `false` | every name stands for a FIFO queue: `jobs` is `jobs.fifo` |
/// | `poll=SECONDS` | `20` | the longest long poll: 1 to 20 |
/// | `max_message=BYTES` | `1048576` | how large a message may be, attributes included; 262144 for servers of the former limit |
/// | `attempts=N` | `5` | how often a request is tried that is throttled or fails on the way |
/// | `region=REGION` | `us-east-1` | the region, for the URLs with a host |
///
/// ```
/// use pillarbox_sqs::SqsOptions;
///
/// let options = SqsOptions::from_url("sqs://eu-central-1/shop-?poll=5")?;
/// let local = SqsOptions::from_url("sqs+http://127.0.0.1:5000?create=true")?;
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct SqsOptions {
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) usage: Usage,
}

/// How SQS is used, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prefix: String,
    pub(crate) create: bool,
    pub(crate) only_existing: bool,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) fifo: bool,
    pub(crate) poll: Duration,
    pub(crate) max_message: usize,
    pub(crate) attempts: u32,
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SqsOptions {
    /// AWS, in the region of the environment or the profile; queues by their whole names, none is made.
    pub fn new() -> Self {
        let usage = Usage {
            prefix: String::new(),
            create: false,
            only_existing: false,
            attributes: BTreeMap::new(),
            fifo: false,
            poll: MAX_WAIT,
            max_message: MAX_MESSAGE,
            attempts: 5,
        };
        Self { region: None, endpoint: None, usage }
    }

    /// Reads a URL.
    pub fn from_url(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("there is no ://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, prefix) = place.split_once('/').unwrap_or((place, ""));
        // First of all: a secret with a slash in it would be taken for a prefix, and told.
        let user = "a host has no user and no password: credentials are those of AWS";
        if place.contains('@') {
            return Err(wrong(user));
        }
        // It may be a password with a ? in it.
        let is_told = !query.contains('@');
        let untold = |error, instead: &str| if is_told { error } else { wrong(instead) };
        let mut options = Self::new().prefix(prefix).map_err(|error| untold(error, user))?;
        match scheme {
            "sqs" if host.contains(':') => {
                return Err(wrong("a host with a port is written sqs+http://HOST:PORT"));
            }
            "sqs" if host.is_empty() => {}
            "sqs" => options.region = Some(host.to_owned()),
            "sqs+http" | "sqs+https" if host.is_empty() => return Err(wrong("there is no host")),
            "sqs+http" => options.endpoint = Some(format!("http://{host}")),
            "sqs+https" => options.endpoint = Some(format!("https://{host}")),
            _ => return Err(wrong(&format!("unknown scheme {scheme:?}"))),
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            let unknown = "an option is not known, or its value; credentials are those of AWS";
            // No attribute of a queue has one in its name.
            if name.contains('@') {
                return Err(wrong(unknown));
            }
            options = options.set(name, value).map_err(|error| untold(error, unknown))?;
        }
        Ok(options)
    }

    fn set(self, name: &str, value: String) -> Result<Self> {
        let refuse = |allowed: &str| {
            Error::invalid(None, "option of an SQS URL", format!("{name}={value}"), allowed)
        };
        let truth = || match value.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(refuse("true or false")),
        };
        let number = |allowed| value.parse::<u32>().map_err(|_| refuse(allowed));
        match name {
            "create" => Ok(self.create(truth()?)),
            "fifo" => Ok(self.fifo(truth()?)),
            "poll" => self.poll(Duration::from_secs(number("1 to 20, in seconds")?.into())),
            "max_message" => self.max_message(number("a number of bytes")? as usize),
            "attempts" => self.attempts(number("at least 1")?),
            "region" => Ok(self.region(value)),
            _ if name.starts_with(|c: char| c.is_ascii_uppercase()) => {
                Ok(self.queue_attribute(name, value))
            }
            // Only its name: the value may be a secret.
            _ => Err(Error::invalid(
                None,
                "option of an SQS URL",
                format!("{name:?}"),
                "create, fifo, poll, max_message, attempts, region, or an attribute of a queue as SQS \
                 names it, such as MessageRetentionPeriod",
            )),
        }
    }

    /// Sets the region.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Sets an endpoint other than AWS's own for the region, such as `http://127.0.0.1:5000`.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Sets what the names of all queues begin with on SQS.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        if !prefix.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
            || prefix.len() >= MAX_NAME
        {
            let allowed = "fewer than 80 characters out of A-Z a-z 0-9 _ -";
            return Err(Error::invalid(None, "prefix of queues", format!("{prefix:?}"), allowed));
        }
        self.usage.prefix = prefix.to_owned();
        Ok(self)
    }

    /// Makes queues that are not there, when they are first sent to or received from.
    pub fn create(mut self, create: bool) -> Self {
        self.usage.create = create;
        self
    }

    /// Makes no queue, whatever [`create`](Self::create) says: for tools that look at what others have sent.
    /// Where `create` says that a queue would be made, one that is not there has nothing to receive;
    /// everything else says that it is not there. Defaults to `false`.
    pub fn only_existing(mut self, only_existing: bool) -> Self {
        self.usage.only_existing = only_existing;
        self
    }

    /// Adds an attribute of queues that are made, in words of SQS, such as `MessageRetentionPeriod`.
    pub fn queue_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.usage.attributes.insert(name.into(), value.into());
        self
    }

    /// Has every name stand for a FIFO queue, whose name on SQS ends with `.fifo`.
    pub fn fifo(mut self, fifo: bool) -> Self {
        self.usage.fifo = fifo;
        self
    }

    /// Sets the longest long poll, in whole seconds: 1 to 20. A receive that waits longer makes
    /// several. As a poll cannot be called back, it is also the longest time that closing the backend
    /// takes.
    pub fn poll(mut self, poll: Duration) -> Result<Self> {
        if poll.subsec_nanos() != 0 || poll.is_zero() || poll > MAX_WAIT {
            return Err(Error::invalid(None, "poll", format!("{poll:?}"), "1 to 20 whole seconds"));
        }
        self.usage.poll = poll;
        Ok(self)
    }

    /// Sets how large a message may be in bytes, attributes included.
    pub fn max_message(mut self, bytes: usize) -> Result<Self> {
        if !(1024..=MAX_MESSAGE).contains(&bytes) {
            let allowed = format!("1024 to {MAX_MESSAGE} bytes");
            return Err(Error::invalid(None, "max_message", bytes.to_string(), allowed));
        }
        self.usage.max_message = bytes;
        Ok(self)
    }

    /// Sets how often a request is tried that is throttled or fails on the way.
    pub fn attempts(mut self, attempts: u32) -> Result<Self> {
        if attempts == 0 {
            return Err(Error::invalid(None, "attempts", "0", "at least 1"));
        }
        self.usage.attempts = attempts;
        Ok(self)
    }
}

fn wrong(problem: &str) -> Error {
    let allowed = "sqs://REGION[/PREFIX], sqs+http://HOST[:PORT][/PREFIX] or sqs+https://...";
    Error::invalid(None, "SQS URL", problem, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> SqsOptions {
        SqsOptions::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_says_where_sqs_is() {
        let options = read("sqs://eu-central-1/shop-");
        assert_eq!(options.region.as_deref(), Some("eu-central-1"));
        assert_eq!((options.endpoint, options.usage.prefix.as_str()), (None, "shop-"));
        assert_eq!(read("sqs://eu-central-1").usage.prefix, "");
        assert_eq!(read("sqs:///shop-").region, None);
        let local = read("sqs+http://127.0.0.1:5000/a_b?region=eu-west-3");
        assert_eq!(local.endpoint.as_deref(), Some("http://127.0.0.1:5000"));
        assert_eq!(local.region.as_deref(), Some("eu-west-3"));
        assert_eq!(read("sqs+https://vpce.example").endpoint.unwrap(), "https://vpce.example");
    }

    #[test]
    fn a_url_has_options() {
        let url = "sqs://r?create=true&fifo=true&poll=3&max_message=262144&attempts=2\
                   &MessageRetentionPeriod=60&Policy=%7B%22a%22%3A1%7D";
        let usage = read(url).usage;
        assert!(usage.create && usage.fifo);
        assert_eq!((usage.poll.as_secs(), usage.max_message, usage.attempts), (3, 262_144, 2));
        let attributes: Vec<_> = usage.attributes.into_iter().collect();
        let attribute = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected =
            [attribute("MessageRetentionPeriod", "60"), attribute("Policy", "{\"a\":1}")];
        assert_eq!(attributes, expected);
        assert!(!read("sqs://r").usage.create, "nothing is made unless told to");
    }

    #[test]
    fn no_error_tells_a_secret() {
        for url in [
            "sqs://AKIA:hun/ter2@eu-west-1",
            "sqs://AKIA:hun?ter2@eu-west-1",
            "sqs+https://AKIA:hun?Ter2@host",
            "sqs://AKIA:hun?ter2=1@eu-west-1",
            "sqs://r?secret=hunter%32",
        ] {
            let error = SqsOptions::from_url(url).unwrap_err().to_string();
            assert!(!error.to_lowercase().contains("ter2"), "{url}: {error}");
        }
        let policy = SqsOptions::from_url("sqs://r?Policy=me@here").unwrap();
        assert_eq!(policy.usage.attributes["Policy"], "me@here");
    }

    #[test]
    fn a_url_that_is_wrong_says_what_is_right() {
        let wrong = [
            ("sqs:jobs", "sqs://REGION"),
            ("sqs://localhost:5000", "sqs+http://HOST:PORT"),
            ("sqs+http:///jobs", "no host"),
            ("sqs+smtp://x", "unknown scheme"),
            ("sqs://r/a/b", "prefix"),
            ("sqs://r/a.b", "prefix"),
            ("sqs://r?poll=21", "1 to 20"),
            ("sqs://r?poll=0", "1 to 20"),
            ("sqs://r?create=yes", "true or false"),
            ("sqs://r?max_message=10", "1024 to"),
            ("sqs://r?attempts=0", "at least 1"),
            ("sqs://r?colour=red", "create, fifo"),
        ];
        for (url, right) in wrong {
            let error = SqsOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains(right), "{url}: {error}");
        }
    }
}
